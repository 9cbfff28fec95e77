// trace.cpp - the body of trace.h.
#include "trace.h"
#include "files.h"
#include <algorithm>
#include <climits>
#include <cmath>
#include <map>
#include <utility>

namespace baretrain {

namespace {

const char* const lane_names[] = {"compute", "wire", "data", "save"};
const char* const mark_names[] = {"", "micro-batch", "gather", "release", "open", "hand over", "update"};

// What the functions at the doors do, in a kind that gives the colour.
struct Operation { const char *name, *kind, *words; };
const Operation operations[] = {
    {"linear_forward", "product", "input by weight"},
    {"linear_backward_input", "product", "gradient by weight: the gradient of the input"},
    {"linear_backward_weight", "product", "input by gradient: the gradient of the weight"},
    {"for_each_logits", "product", "hidden states by head: the logits"},
    {"attention_forward", "attention", "each query over the keys it sees"},
    {"attention_backward", "attention", "the gradients of queries, keys and values"},
    {"norm_forward", "norm", "each row to size one, times a weight"},
    {"norm_backward_weight", "norm", "the gradient of its weight, in parts"},
    {"norm_backward_input", "norm", "the gradient of its input"},
    {"column_sums", "norm", "the gradient of a bias, in parts"},
    {"add_parts", "norm", "adds the parts up"},
    {"rope", "activation", "turns queries and keys by their positions"},
    {"copy", "activation", "keeps or converts"},
    {"residual", "activation", "adds the branch to the stream"},
    {"activation_forward", "activation", "GELU or SwiGLU"},
    {"activation_backward", "activation", "the gradient before GELU or SwiGLU"},
    {"embed_forward", "ends", "a row of the embedding for each token"},
    {"embed_backward", "ends", "the rows' gradients, token by token"},
    {"cross_entropy", "ends", "the loss, and the gradient of the logits in their place"},
    {"sum_squares", "optimizer", "for the norm"},
    {"decide", "optimizer", "the norm; clips it; skips the step if it is not finite"},
    {"adamw", "optimizer", "new moments and weights"},
    {"next_rows", "data", "reads tokens and targets"},
    {"upload", "data", "tokens and targets to the device"},
    {"save", "save", "writes a checkpoint"},
};
const std::pair<const char*, const char*> colours[] = {
    {"product", "#4c78a8"}, {"attention", "#f58518"}, {"norm", "#54a24b"}, {"activation", "#b279a2"},
    {"ends", "#e45756"}, {"optimizer", "#9d755d"}, {"data", "#72b7b2"}, {"save", "#eeca3b"}, {"other", "#999999"},
};

const Operation& find(const std::string& name) {
    static const Operation other{"", "other", ""};
    const auto row = std::find_if(std::begin(operations), std::end(operations),
                                  [&](const Operation& o) { return o.name == name; });
    return row == std::end(operations) ? other : *row;
}

// Of the table of parameters: the ends, then the blocks.
std::string unit_name(long unit) { return unit > 0 ? "block " + std::to_string(unit - 1) : unit ? "" : "the ends"; }

std::string size_text(double bytes) {
    return bytes < 99950 ? format("%.1f kB", bytes / 1e3) : format("%.1f MB", bytes / 1e6);
}
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

// Compilers say "View<T> baretrain::f(View<T>) [with T = float]", and in a lambda "baretrain::f<float>(View<T>)::...".
std::string operation(const Work& work) {
    const std::string name = work.where.function_name(), head = name.substr(0, name.find('('));
    const size_t end = head.ends_with('>') ? head.find('<') : head.size();
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

// ---- the picture ----------------------------------------------------------------------------------------------------
namespace {

struct Picture {
    long first = LONG_MAX, last = 0;                   // nanoseconds
    size_t most = 1;                                   // bytes
    std::map<std::string, long> busy;                  // nanoseconds of each kind, all ranks
    double x(long t) const { return 64 + 644 * double(t - first) / double(std::max(1L, last - first)); }
    double y(size_t bytes) const { return 172 - 80 * double(bytes) / double(most); }
};

// What is narrower than a pixel joins its neighbour and has the colour of the longest.
std::string lane_svg(const Trace& trace, const Picture& p, bool wire) {
    struct Box { const Event* longest; long begin, end, pieces; };
    std::vector<Box> boxes;
    for (const Event& e : trace.events()) {
        if (e.mark != Mark::none || (e.work.lane == Lane::wire) != wire) continue;
        if (boxes.empty() || p.x(e.end) - p.x(boxes.back().begin) > 1) boxes.push_back({&e, e.begin, e.end, 0});
        Box& b = boxes.back();
        if (e.end - e.begin > b.longest->end - b.longest->begin) b.longest = &e;
        b.end = e.end, ++b.pieces;
    }
    const int top = wire ? 48 : 16;
    if (boxes.empty()) return format("<text x=\"72\" y=\"%d\">nothing %s</text>", top + 16, wire ? "travels" : "runs");
    std::string svg;
    for (const Box& b : boxes) {
        const Event& e = *b.longest;
        const std::string name = operation(e.work);
        svg += format("<rect class=\"%s\" x=\"%.2f\" y=\"%d\" ", find(name).kind, p.x(b.begin), top) +
               format("width=\"%.2f\" height=\"24\"><title>%s", p.x(b.end) - p.x(b.begin), name.c_str()) +
               format(" %s, micro-batch %ld, ", unit_name(e.unit).c_str(), e.micro + 1) +
               format("%.3f ms, %s", double(e.end - e.begin) / 1e6, size_text(e.work.bytes).c_str()) +
               (e.work.flops > 0 ? format(", %.3f GFLOP", e.work.flops / 1e9) : "") +
               (b.pieces > 1 ? format("; the longest of %ld pieces", b.pieces) : "") + "</title></rect>";
    }
    return svg;
}

// Of the pieces in one pixel the one that needs most.
std::string memory_path(const Trace& trace, const Picture& p) {
    std::map<long, size_t> most;
    for (const Event& e : trace.events())
        if (size_t& m = most[long(p.x(e.begin))]; e.mark == Mark::none) m = std::max(m, e.memory);
    std::string path = "M64 172";
    for (const auto& [x, bytes] : most) path += format("H%ldV%.1f", x, p.y(bytes));
    return path + "H708V172Z";
}

}  // namespace

std::string trace_html(const Ranks& ranks, size_t planned) {
    Picture p;
    p.most = planned;
    long all = 0;
    for (const Trace* t : ranks)
        for (const Event& e : t->events()) {
            if (e.mark != Mark::none) continue;
            p.first = std::min(p.first, e.begin), p.last = std::max(p.last, e.end), p.most = std::max(p.most, e.memory);
            p.busy[find(operation(e.work)).kind] += e.end - e.begin, all += e.end - e.begin;
        }
    std::string html = "<figure class=\"trace\"><style>.trace text { fill: currentColor }", legend, body;
    for (const auto& [kind, colour] : colours) {
        html += format(" .trace .%s { fill: %s; color: %s }", kind, colour, colour);
        if (p.busy[kind]) legend += format(" <span class=\"%s\">&#9632;</span>&nbsp;%s", kind, kind) +
                                    format("&nbsp;%.1f&nbsp;%%", 100 * double(p.busy[kind]) / double(all));
    }
    for (const Trace* t : ranks) {
        size_t top = 0;
        long step = 0;
        std::string lines;
        for (const Event& e : t->events()) {
            top = std::max(top, e.memory);
            if (std::exchange(step, e.step) == e.step) continue;
            lines += format("<path class=\"grid\" stroke=\"currentColor\" d=\"M%.1f 12V172\"/>", p.x(e.begin)) +
                     format("<text x=\"%.1f\" y=\"10\">step %ld</text>", p.x(e.begin) + 3, e.step);
        }
        body += format("<svg viewBox=\"0 0 720 192\" role=\"img\" aria-label=\"rank %d by time\">", t->rank) +
                "<text x=\"58\" y=\"32\" text-anchor=\"end\">compute</text><text x=\"58\" y=\"64\" "
                "text-anchor=\"end\">wire</text><text x=\"58\" y=\"96\" text-anchor=\"end\">memory</text>" +
                lane_svg(*t, p, false) + lane_svg(*t, p, true) + "<path class=\"product\" fill-opacity=\"0.5\" d=\"" +
                memory_path(*t, p) + "\"/>" + lines +
                format("<path stroke=\"currentColor\" stroke-dasharray=\"6 4\" d=\"M64 %.1fH708\"/>", p.y(planned));
        for (int i = 0; i <= 4; ++i)
            body += format("<text x=\"%d\" y=\"188\" ", 64 + 161 * i) +
                    format("text-anchor=\"%s\">", i == 4 ? "end" : "middle") +
                    format("%.4g ms</text>", double(p.last - p.first) / 4e6 * i);
        body += format("</svg><p>rank %d: at most %zu bytes in use, ", t->rank, top) +
                format("a step was planned with %zu (dashed)</p>", planned);
    }
    return html + "</style><figcaption>What these steps did when</figcaption><p>" + legend + "</p>" + body +
           "</figure>\n";
}

// ---- sentences ------------------------------------------------------------------------------------------------------
namespace {

// Some lines, of which neighbours that are equal are said once. Those that begin with a tab get numbers in the end.
struct Section { long number; std::string title; std::vector<std::string> lines; };

std::vector<std::string> fold(const std::vector<Section>& all, const std::string& plural) {
    std::vector<std::string> lines;
    for (size_t i = 0, end; i < all.size(); i = end) {
        for (end = i + 1; end < all.size() && all[end].lines == all[i].lines && !all[i].title.empty();) ++end;
        if (!all[i].title.empty()) lines.push_back(all[i].title);
        lines.insert(lines.end(), all[i].lines.begin(), all[i].lines.end());
        if (end > i + 1)
            lines.push_back(concat(plural, " ", all[i + 1].number, " to ", all[end - 1].number, ": the same"));
    }
    return lines;
}

std::string sentence(const Event& e, double bytes, double flops, long pieces) {
    const std::string whose = e.unit == 0 ? "of the ends (embeddings, final norm, head), " : "of the block, ";
    switch (e.mark) {
        case Mark::gather: return "\tgather the weights " + whose + size_text(bytes);
        case Mark::release: return "\trelease the weights";
        case Mark::open: return "\topen the gradients " + whose + size_text(bytes);
        case Mark::hand_over: return "\thand over the gradients";
        default: break;
    }
    const Work& w = e.work;
    std::string text = "\t" + operation(w) + ": " + find(operation(w)).words;
    if (w.rows) text += format(", (%ld x %ld) (%ld x %ld)", w.rows, w.inner, w.inner, w.cols);
    if (pieces > 1) text += format(", %ld times", pieces);
    if (flops > 0) return text + format(", %.3f GFLOP", flops / 1e9);
    return bytes > 0 ? text + ", " + size_text(bytes) : text;
}

}  // namespace

std::string explain(const Trace& step) {
    std::vector<Section> micros, units;
    double products = 0, attention = 0, moved = 0;
    size_t top = 0;
    const auto close = [&](long micro) {
        std::vector<std::string> lines = fold(units, "blocks");
        micros.push_back({micro + 1, micro < 0 ? "update" : concat("micro-batch ", micro + 1), lines});
        units.clear();
    };
    const std::vector<Event>& all = step.events();
    for (size_t i = 0, end; i < all.size(); i = end) {
        const Event& e = all[i];
        double bytes = 0, flops = 0;
        for (end = i; end < all.size(); ++end) {       // one sentence for pieces that differ in nothing but their size
            const Event& f = all[end];
            if (f.mark != e.mark || f.unit != e.unit || f.micro != e.micro || (end > i && (e.mark != Mark::none ||
                e.work.rows || operation(f.work) != operation(e.work)))) break;
            bytes += f.work.bytes, flops += f.work.flops, top = std::max(top, f.memory);
        }
        if (e.mark == Mark::none) (e.work.rows ? products : attention) += flops, moved += bytes;
        if (i && all[i - 1].micro != e.micro) close(all[i - 1].micro);
        if (e.mark == Mark::micro || e.mark == Mark::update) continue;
        if (units.empty() || units.back().number != e.unit - 1)
            units.push_back({e.unit - 1, e.unit > 0 ? "  " + unit_name(e.unit) : "", {}});
        units.back().lines.push_back(sentence(e, bytes, flops, long(end - i)));
    }
    close(-1);
    std::string text;
    long number = 0;
    for (const std::string& line : fold(micros, "micro-batches"))
        text += (line[0] == '\t' ? format("%4ld. ", ++number) + line.substr(1) : line) + "\n";
    return text + format("in all %.3f GFLOP of products, %.3f of attention, ", products / 1e9, attention / 1e9) +
           size_text(moved) + " moved, at most " + size_text(double(top)) + " in use\n";
}

}  // namespace baretrain
