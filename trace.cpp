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

// What the functions at the doors do, in words, by the kind that gives the colour.
struct Kind { const char *name, *colour; std::map<std::string, const char*> operations; };
const std::vector<Kind> kinds = {
    {"product", "#4c78a8", {{"linear_forward", "input by weight"}, {"for_each_logits", "hidden states by head: logits"},
                            {"linear_backward_input", "gradient by weight: the gradient of the input"},
                            {"linear_backward_weight", "input by gradient: the gradient of the weight"}}},
    {"attention", "#f58518", {{"attention_forward", "each query over the keys it sees"},
                              {"attention_backward", "the gradients of queries, keys and values"}}},
    {"norm", "#54a24b", {{"norm_forward", "each row to size one, times a weight"},
                         {"norm_backward_weight", "the gradient of its weight, in parts"},
                         {"norm_backward_input", "the gradient of its input"}, {"add_parts", "adds the parts up"},
                         {"column_sums", "the gradient of a bias, in parts"}}},
    {"activation", "#b279a2", {{"rope", "turns queries and keys by their positions"}, {"copy", "y = x, y += x"},
                               {"residual", "adds the branch to the stream"}, {"activation_forward", "GELU or SwiGLU"},
                               {"activation_backward", "the gradient before GELU or SwiGLU"}}},
    {"ends", "#e45756", {{"embed_forward", "a row of the embedding for each token"},
                         {"embed_backward", "the rows' gradients, token by token"},
                         {"cross_entropy", "the loss, and the gradient of the logits in their place"},
                         {"row_max", "the largest logit of each row"}, {"part_sums", "of e^logits, of this rank's ids"},
                         {"join_parts", "log-probabilities, from the sums of all ranks"},
                         {"part_gradient", "the gradient of this rank's logits in their place"}}},
    {"optimizer", "#9d755d", {{"sum_squares", "for the norm"}, {"adamw", "new moments and weights"},
                              {"loss_weight", "-1 / trained tokens"}, {"add_elements", "log-probabilities, in parts"},
                              {"agreed", "by all ranks: trained tokens, loss, wishes to stop"},
                              {"decide", "the norm; clips it; skips the step if it is not finite"}}},
    {"data", "#72b7b2", {{"next_rows", "reads tokens and targets"}, {"upload", "tokens and targets to the device"}}},
    {"save", "#eeca3b", {{"save", "writes a checkpoint"}}},
    {"between ranks", "#ff9da6", {}},
    {"other", "#999999", {}},
};
const Kind& kind_of(const Event& e) {
    if (e.work.ranks > 1) return kinds[kinds.size() - 2];
    return *std::find_if(kinds.begin(), kinds.end() - 1, [&](const Kind& k) { return k.operations.count(e.name) > 0; });
}

Events work_of(Events all) {
    std::erase_if(all, [](const Event& e) { return e.mark != Mark::none; });
    return all;
}

std::vector<Events> by_rank(const Events& all) {
    std::map<int, Events> ranks;
    for (const Event& e : all) ranks[e.rank].push_back(e);
    std::vector<Events> list;
    for (auto& [rank, events] : ranks) list.push_back(std::move(events));
    return list;
}

// Of the table of parameters: the ends, then the blocks.
std::string unit_name(long unit) { return unit > 0 ? concat("block ", unit - 1) : unit ? "no unit" : "the ends"; }
std::string microseconds(long ns) { return format("%ld.%03ld", ns / 1000, ns % 1000); }
std::string size_text(double bytes) {
    return bytes < 1000    ? format("%.0f bytes", bytes)
           : bytes < 99950 ? format("%.1f kB", bytes / 1e3)
                           : format("%.1f MB", bytes / 1e6);
}

// Of an event, or of several that differ in their sizes, which it adds up.
std::string sentence(const Event& e, long pieces = 1) {
    const std::string whose = e.unit == 0 ? " of the ends (embeddings, final norm, head), " : " of the block, ";
    const std::string leased = mark_names[int(e.mark)], size = size_text(e.work.bytes);
    if (e.mark == Mark::gather || e.mark == Mark::release)
        return leased + " the weights" + (e.mark == Mark::gather ? whose + size : "");
    if (e.mark != Mark::none) return leased + " the gradients" + (e.mark == Mark::open ? whose + size : "");
    const Work& w = e.work;
    const auto& words = kind_of(e).operations;
    std::string text = e.name;
    if (w.ranks > 1) {
        if (w.unit >= 0) text.insert(text.find(" on "), " of " + unit_name(w.unit));
        text = text.replace(text.find(' '), 1, " of the ") + concat(" among ", w.ranks, " ranks");
    } else if (!words.empty()) text += concat(": ", words.at(e.name));
    if (w.rows) text += format(", (%ld x %ld) (%ld x %ld)", w.rows, w.inner, w.inner, w.cols);
    if (pieces > 1) text += format(", %ld times", pieces);
    if (w.flops > 0) return text + format(", %.3f GFLOP", w.flops / 1e9);
    return w.bytes > 0 ? text + ", " + size + (w.ranks > 1 ? " sent" : "") : text;
}

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

Event Trace::event(const Work& work) const {
    Event e;
    e.work = work, e.rank = rank_, e.step = step_, e.micro = micro_;
    e.unit = work.unit >= 0 ? work.unit : leased_.empty() ? -1 : leased_.back();
    std::snprintf(e.name, sizeof e.name, "%s", operation(work).c_str());
    e.work.where = {}, e.work.op = e.work.what = e.work.axis = nullptr;   // pointers: of no use to another process
    e.begin = now();
    return e;
}

void Trace::begin(const Work& work) {
    if (depth_++) return;
    open_ = events_.size();
    events_.push_back(event(work));
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
    Event e = event({.where = {}, .bytes = bytes});
    e.mark = what, e.end = e.begin;
    events_.push_back(e);
    if (what != Mark::release && what != Mark::hand_over) return;
    const auto last = std::find(leased_.rbegin(), leased_.rend(), index);
    if (last != leased_.rend()) leased_.erase(last.base() - 1);
    if (leased_.empty()) micro_ = -1;                  // the ends are leased as long as a micro-batch lasts
}

void Trace::travelled(const Work& work, long latest) {
    Event e = event(work);
    e.begin = std::max(latest, wire_free_);
    e.end = wire_free_ = clock_.real ? now() : e.begin + std::lround(1e9 * work.bytes / clock_.wire);
    virtual_now_ = std::max(virtual_now_, e.end);
    events_.push_back(e);
}

// Compilers say "View<T> baretrain::f(View<T>) [with T = float]", and in a lambda "baretrain::f<float>(View<T>)::...".
std::string operation(const Work& work) {
    if (work.op) return concat(work.op, " ", work.what, " on ", work.axis);
    const std::string name = work.where.function_name(), head = name.substr(0, name.find('('));
    const size_t end = head.ends_with('>') ? head.find('<') : head.size();
    const size_t begin = head.find_last_of(" :*&", end - 1) + 1;
    return head.substr(begin, end - begin);
}

// ---- trace.json -----------------------------------------------------------------------------------------------------
// Threads count from 1: Perfetto keeps 0 for itself.
std::string trace_json(const Events& ranks) {
    std::string out;
    const auto add = [&](int rank, int lane, const std::string& name, const std::string& rest) {
        out += format("%s{\"pid\": %d, \"tid\": %d, \"name\": \"", out.empty() ? "" : ",\n", rank, lane + 1) + name +
               "\", \"ph\": " + rest + "}}";
    };
    for (const Events& events : by_rank(ranks)) {
        const int rank = events[0].rank;
        add(rank, 0, "process_name", format("\"M\", \"args\": {\"name\": \"rank %d\"", rank));
        for (int lane = 0; lane < 4; ++lane)
            add(rank, lane, "thread_name", format("\"M\", \"args\": {\"name\": \"%s\"", lane_names[lane]));
        for (const Event& e : events) {
            const bool work = e.mark == Mark::none;
            const std::string at = ", \"ts\": " + microseconds(e.begin) + ", \"args\": {";
            add(rank, int(work ? e.work.lane : Lane::wire), work ? e.name : mark_names[int(e.mark)],
                (work ? "\"X\", \"dur\": " + microseconds(e.end - e.begin) : "\"i\", \"s\": \"t\"") + at +
                    format("\"step\": %ld, \"unit\": %ld, \"micro\": %ld, ", e.step, e.unit, e.micro) +
                    format("\"bytes\": %.0f, \"flops\": %.0f", e.work.bytes, e.work.flops));
            if (e.memory > 0) add(rank, 0, "memory", "\"C\"" + at + format("\"bytes\": %zu", e.memory));
        }
    }
    return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + out + "\n]}\n";
}

// ---- the picture ----------------------------------------------------------------------------------------------------
namespace {

struct Picture {
    long first = LONG_MAX, last = 0;                   // nanoseconds
    size_t most;                                       // bytes
    double x(long t) const { return 64 + 644 * double(t - first) / double(std::max(1L, last - first)); }
    double y(size_t bytes) const { return 172 - 80 * double(bytes) / double(most); }
};

// What is narrower than a pixel joins its neighbour and has the colour of the longest.
std::string lane_svg(const Events& rank, const Picture& p, bool wire) {
    std::vector<Event> boxes;
    long longest = 0;
    for (const Event& e : work_of(rank)) {
        if ((e.work.lane == Lane::wire) != wire) continue;
        if (boxes.empty() || p.x(e.end) - p.x(boxes.back().begin) > 1) boxes.push_back(e), longest = 0;
        const long begin = boxes.back().begin;
        if (e.end - e.begin >= longest) boxes.back() = e, longest = e.end - e.begin;
        boxes.back().begin = begin, boxes.back().end = e.end;
    }
    const int top = wire ? 48 : 16;
    std::string svg = format("<text x=\"58\" y=\"%d\" text-anchor=\"end\">%s</text>", top + 16, lane_names[wire]);
    if (boxes.empty()) svg += format("<text x=\"72\" y=\"%d\">nothing %s</text>", top + 16, wire ? "travels" : "runs");
    for (const Event& e : boxes)
        svg += format("<rect fill=\"%s\" x=\"%.2f\" y=\"%d\" ", kind_of(e).colour, p.x(e.begin), top) +
               format("width=\"%.2f\" height=\"24\"><title>", p.x(e.end) - p.x(e.begin)) + sentence(e) +
               format("; %s, %.3f ms</title></rect>", unit_name(e.unit).c_str(), double(e.end - e.begin) / 1e6);
    return svg;
}

// Of the pieces in one pixel the one that needs most.
std::string memory_svg(const Events& rank, const Picture& p) {
    std::map<long, size_t> most;
    for (const Event& e : rank)
        if (e.memory > 0) most[long(p.x(e.begin))] = std::max(most[long(p.x(e.begin))], e.memory);
    std::string path = "<path fill=\"#4c78a8\" fill-opacity=\"0.5\" d=\"M64 172";
    for (const auto& [x, bytes] : most) path += format("H%ldV%.1f", x, p.y(bytes));
    return path + "H708V172Z\"/><text x=\"58\" y=\"96\" text-anchor=\"end\">memory</text>";
}

}  // namespace

std::string trace_html(const Events& all, size_t planned) {
    Picture p;
    p.most = planned;
    std::map<std::string, double> busy;                // nanoseconds of each kind
    for (const Event& e : work_of(all)) {
        p.first = std::min(p.first, e.begin), p.last = std::max(p.last, e.end), p.most = std::max(p.most, e.memory);
        busy[kind_of(e).name] += double(e.end - e.begin);
    }
    const std::vector<Events> ranks = by_rank(all);
    const double time = double(std::max(1L, p.last - p.first)) * double(ranks.size());
    std::string html = "<figure class=\"trace\"><figcaption>What these steps did when</figcaption><p>";
    for (const auto& [kind, colour, operations] : kinds)
        if (busy[kind] > 0)
            html += format("<span style=\"color: %s\">&#9632;</span>&nbsp;%s&nbsp;", colour, kind) +
                    format("%.1f&nbsp;%% ", 100 * busy[kind] / time);
    html += "of the time</p>";
    for (const Events& rank : ranks) {
        html += "<svg viewBox=\"0 0 720 176\" fill=\"currentColor\" font-size=\"12\" role=\"img\" " +
                format("aria-label=\"rank %d by time\">", rank[0].rank) + lane_svg(rank, p, false) +
                lane_svg(rank, p, true) + memory_svg(rank, p);
        size_t top = 0;
        long step = 0;
        for (const Event& e : rank) {
            top = std::max(top, e.memory);
            if (std::exchange(step, e.step) == e.step) continue;
            html += format("<path stroke=\"currentColor\" d=\"M%.1f 0V172\"/>", p.x(e.begin)) +
                    format("<text x=\"%.1f\" y=\"10\">step %ld</text>", p.x(e.begin) + 3, e.step);
        }
        html += format("<path stroke=\"currentColor\" stroke-dasharray=\"6 4\" d=\"M64 %.1fH708\"/>", p.y(planned)) +
                format("</svg><p>rank %d, %.4g ms: at most ", rank[0].rank, double(p.last - p.first) / 1e6) +
                format("%zu bytes in use, a step was planned with %zu (dashed)</p>", top, planned);
    }
    return html + "</figure>\n";
}

// ---- sentences ------------------------------------------------------------------------------------------------------
namespace {

// Lines that begin with a tab get numbers in the end. What is said of another block is equal where that is as far away.
struct Line {
    std::string text, meaning = text;
    bool operator==(const Line& other) const { return meaning == other.meaning; }
};
struct Section { long number; std::string title; std::vector<Line> lines; };

// Neighbours with a title that are equal but for it are said once.
std::vector<Line> fold(const std::vector<Section>& all, const std::string& plural) {
    std::vector<Line> lines;
    for (size_t i = 0, end; i < all.size(); i = end) {
        for (end = i + 1; end < all.size() && all[end].lines == all[i].lines && !all[i].title.empty();) ++end;
        if (!all[i].title.empty()) lines.push_back({all[i].title});
        lines.insert(lines.end(), all[i].lines.begin(), all[i].lines.end());
        if (end > i + 1)
            lines.push_back({concat(plural, " ", all[i + 1].number, " to ", all[end - 1].number, ": the same")});
    }
    return lines;
}

}  // namespace

std::string explain(const Events& all) {
    std::vector<Section> micros, units;
    const auto alike = [](const Event& a, const Event& b) {
        return a.mark == Mark::none && b.mark == Mark::none && a.unit == b.unit && a.micro == b.micro &&
               !a.work.rows && std::string(a.name) == b.name;
    };
    const auto close = [&] {
        if (!micros.empty()) micros.back().lines = fold(std::exchange(units, {}), "blocks");
    };
    for (size_t i = 0, end; i < all.size(); i = end) {
        Event e = all[i];
        for (end = i + 1; end < all.size() && alike(e, all[end]); ++end)
            e.work.bytes += all[end].work.bytes, e.work.flops += all[end].work.flops;
        if (micros.empty() || micros.back().number != e.micro + 1) {
            close();
            const char* const around = micros.empty() ? "before" : "update";
            micros.push_back({e.micro + 1, e.micro < 0 ? around : concat("micro-batch ", e.micro + 1), {}});
        }
        if (e.mark == Mark::micro || e.mark == Mark::update) continue;
        const bool wire = e.work.ranks > 1;            // told where it is awaited, whatever unit it is for
        if (units.empty() || (units.back().number != e.unit - 1 && !wire))
            units.push_back({e.unit - 1, e.unit > 0 ? "  " + unit_name(e.unit) : "", {}});
        units.back().lines.push_back({"\t" + sentence(e, long(end - i))});
        if (!wire || e.work.unit <= 0) continue;
        e.work.unit = 1;
        units.back().lines.back().meaning = concat(sentence(e), e.unit - units.back().number);
    }
    close();
    std::string text;
    long number = 0;
    for (const auto& [line, meaning] : fold(micros, "micro-batches"))
        text += (line[0] == '\t' ? format("%4ld. ", ++number) + line.substr(1) : line) + "\n";
    double products = 0, attention = 0, moved = 0, sent = 0, top = 0;
    for (const Event& e : work_of(all)) {
        (e.work.rows ? products : attention) += e.work.flops, (e.work.ranks > 1 ? sent : moved) += e.work.bytes;
        top = std::max(top, double(e.memory));
    }
    return text + format("in all %.3f GFLOP of products, %.3f of attention, ", products / 1e9, attention / 1e9) +
           size_text(moved) + " moved, " + (sent > 0 ? size_text(sent) + " sent, " : "") + "at most " + size_text(top) +
           " in use\n";
}

}  // namespace baretrain
