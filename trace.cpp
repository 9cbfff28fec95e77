// trace.cpp - the body of trace.h.
#include "trace.h"
#include "files.h"
#include <algorithm>
#include <cmath>

namespace baretrain {

namespace {

const char* const lane_names[] = {"compute", "wire", "data", "save"};
const char* const mark_names[] = {"", "micro-batch", "gather", "release", "open", "hand over", "update"};

std::string microseconds(long ns) { return format("%ld.%03ld", ns / 1000, ns % 1000); }

}  // namespace

// ---- events ---------------------------------------------------------------------------------------------------------
void Trace::step(long number) {
    settle_();                                         // what lay before is nobody's memory
    step_ = number, micro_ = -1;
    leased_.clear();
}

long Trace::now() const {
    return clock_.real ? long((std::chrono::steady_clock::now() - clock_.zero) / std::chrono::nanoseconds(1))
                       : virtual_now_;
}

Event Trace::event() const {
    Event e;
    e.step = step_, e.unit = leased_.empty() ? -1 : leased_.back(), e.micro = micro_, e.begin = now();
    return e;
}

void Trace::begin(const Work& work) {
    if (depth_++) return;
    open_ = events_.size();
    events_.push_back(event());
    events_.back().work = work;
}

void Trace::end() {
    if (--depth_) return;
    Event& e = events_[open_];
    e.memory = settle_();
    const Work& w = e.work;
    const double seconds = w.flops > 0 ? w.flops / clock_.flops : w.bytes / clock_.bytes;
    if (!clock_.real) virtual_now_ += std::llround(1e9 * seconds);
    e.end = now();
}

void Trace::mark(Mark what, long index, double bytes) {
    if (what == Mark::micro) micro_ = index, leased_.clear();
    if (what == Mark::gather || what == Mark::open) leased_.push_back(index);
    if (what == Mark::update) leased_.assign(1, index);
    Event e = event();
    e.mark = what, e.work.bytes = bytes, e.end = e.begin;
    events_.push_back(e);
    if (what != Mark::release && what != Mark::hand_over) return;
    const auto last = std::find(leased_.rbegin(), leased_.rend(), index);
    if (last != leased_.rend()) leased_.erase(last.base() - 1);
    if (leased_.empty()) micro_ = -1;                  // the ends are leased as long as a micro-batch lasts
}

// "void baretrain::norm_forward(Device&, ...) [with T = float]" or whatever else a compiler makes of it.
std::string operation(const Work& work) {
    const std::string name = work.where.function_name(), head = name.substr(0, name.find('('));
    const size_t end = head.ends_with('>') ? head.rfind('<') : head.size();
    const size_t begin = head.find_last_of(" :*&", end - 1) + 1;
    return head.substr(begin, end - begin);
}

// ---- trace.json -----------------------------------------------------------------------------------------------------
// Threads count from 1: Perfetto keeps 0 for itself.
std::string trace_json(const Ranks& ranks) {
    std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
    const auto name = [&](const char* what, int rank, int lane, const std::string& text) {
        out += format("{\"name\": \"%s\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, ", what, rank, lane + 1) +
               "\"args\": {\"name\": \"" + text + "\"}},\n";
    };
    for (const Trace* t : ranks) {
        name("process_name", t->rank, 0, "rank " + std::to_string(t->rank));
        for (int lane = 0; lane < 4; ++lane) name("thread_name", t->rank, lane, lane_names[lane]);
        size_t memory = 0;
        for (const Event& e : t->events()) {
            const bool work = e.mark == Mark::none;
            const int lane = work ? int(e.work.lane) : int(Lane::wire);
            const std::string op = work ? operation(e.work) : mark_names[int(e.mark)], at = microseconds(e.begin);
            out += format("{\"name\": \"%s\", \"cat\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %s, ", op.c_str(),
                          lane_names[lane], t->rank, lane + 1, at.c_str()) +
                   (work ? "\"ph\": \"X\", \"dur\": " + microseconds(e.end - e.begin) : "\"ph\": \"i\", \"s\": \"t\"") +
                   format(", \"args\": {\"step\": %ld, \"unit\": %ld, \"micro\": %ld, ", e.step, e.unit, e.micro) +
                   format("\"bytes\": %.0f, \"flops\": %.0f}},\n", e.work.bytes, e.work.flops);
            if (work && e.memory != memory)
                out += format("{\"name\": \"memory\", \"ph\": \"C\", \"pid\": %d, \"tid\": 1, \"ts\": %s, ", t->rank,
                              at.c_str()) + format("\"args\": {\"bytes\": %zu}},\n", memory = e.memory);
        }
    }
    out.replace(out.size() - 2, 2, "\n]}\n");          // no comma behind the last
    return out;
}

std::string trace_svg(const Ranks&, size_t) { return ""; }
std::string explain(const Trace&) { return ""; }

}  // namespace baretrain
