// page.cpp - the body of page.h.
#include "page.h"
#include "device/error.h"
#include "files.h"
#include "page/style.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

namespace baretrain {

namespace {

using Runs = std::span<const RunPage>;
using Point = RunPage::Point;

std::string escape(const std::string& text) {
    std::string out;
    for (char c : text) {
        if (c == '&') out += "&amp;";
        else if (c == '<') out += "&lt;";
        else if (c == '>') out += "&gt;";
        else if (c == '"') out += "&quot;";
        else if (c >= 0 && c < ' ' && c != '\n' && c != '\t')
            out += "&#" + std::to_string(0x2400 + c) + ";";   // the picture of the control character
        else out += c;
    }
    return out;
}

// ---- charts ---------------------------------------------------------------------------------------------------------
// From low to high in thousandths of the plot; ticks at multiples of 1, 2 or 5 times a power of ten.
struct Axis {
    double low = INFINITY, high = -INFINITY, from, to;
    void include(double v) {
        if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
    }
    bool empty() const { return low > high; }
    void widen() {                                     // one value alone still needs a scale
        if (low < high) return;
        const double margin = low == 0 ? 1 : std::fabs(low) / 10;
        low -= margin, high += margin;
    }
    double at(double v) const { return from + (v - low) / (high - low) * (to - from); }
    std::vector<double> ticks() const {
        const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
        const double step = power * (raw > 5 * power ? 10 : raw > 2 * power ? 5 : raw > power ? 2 : 1);
        const double first = std::ceil(low / step);
        std::vector<double> values;                    // six at most; by number: adding 1 to a huge one changes nothing
        for (int i = 0; i <= 5 && (first + i) * step <= high; ++i) values.push_back((first + i) * step);
        return values;
    }
};

std::string tick_text(double v) {
    const double size = std::fabs(v);
    return size < 1e4 || size >= 1e9 ? format("%g", v) : size < 1e6 ? format("%gk", v / 1e3) : format("%gM", v / 1e6);
}

// At most 1,000 points: of each stretch the lowest and highest, so that a spike is seen. What is not finite is a gap.
std::string svg_path(const Curve& curve, const Axis& x, const Axis& y) {
    const size_t n = curve.points.size(), stretch = n <= 1000 ? 1 : (n + 499) / 500;
    std::string path;
    bool pen_up = true;
    const auto value = [&](size_t i) { return curve.points[i].second; };
    const auto draw = [&](size_t i) {
        path += format(pen_up ? "M%.1f %.1fh0" : "L%.1f %.1f", x.at(curve.points[i].first), y.at(value(i)));
        pen_up = false;
    };
    for (size_t begin = 0; begin < n; begin += stretch) {
        const size_t end = std::min(n, begin + stretch);
        size_t low = end, high = end;
        for (size_t i = begin; i < end; ++i) {
            if (!std::isfinite(value(i))) pen_up = true;
            else if (low == end) low = high = i;
            else if (value(i) < value(low)) low = i;
            else if (value(i) > value(high)) high = i;
        }
        if (low == end) continue;
        draw(std::min(low, high));
        if (low != high) draw(std::max(low, high));
    }
    return path;
}

// ---- tables ---------------------------------------------------------------------------------------------------------
enum class Rows { all, different };

// A column a run, its cells HTML; a row for each name that some column has, in the order of its first appearance.
std::string table(Runs runs, const std::vector<Texts>& columns, Rows which, const char* style = "") {
    std::vector<std::string> names;
    std::map<std::string, std::vector<std::string>> rows;
    for (size_t run = 0; run < columns.size(); ++run)
        for (const auto& [name, cell] : columns[run]) {
            const auto [row, fresh] = rows.try_emplace(name, columns.size(), "&ndash;");
            if (fresh) names.push_back(name);
            row->second[run] = cell;
        }
    std::string text = concat("<div class=\"scroll\"><table class=\"", style, "\">");
    if (runs.size() > 1) text += "<tr><th></th>";
    for (size_t run = 0; run < runs.size() && runs.size() > 1; ++run)
        text += concat("<th><b class=\"color-", run % 6, "\">&#9632;</b> ", escape(runs[run].name), "</th>");
    if (runs.size() > 1) text += "</tr>";
    for (const std::string& name : names) {
        const std::vector<std::string>& cells = rows.at(name);
        const bool same = std::count(cells.begin(), cells.end(), cells[0]) == long(cells.size());
        if (same && which == Rows::different) continue;
        text += "<tr><td>" + escape(name) + "</td>";
        for (const std::string& cell : cells) text += "<td>" + cell + "</td>";
        text += "</tr>\n";
    }
    return text + "</table></div>\n";
}

double fact(const RunPage& run, const std::string& name) {
    for (const auto& [key, text] : run.facts)
        if (key == name) return number_in(text).value_or(NAN);
    return NAN;
}

std::vector<double> finite(const RunPage& run, double Point::*value) {
    std::vector<double> all;
    for (const Point& p : run.points)
        if (std::isfinite(p.*value)) all.push_back(p.*value);
    return all;
}
double median(std::vector<double> v) {
    if (v.empty()) return NAN;
    std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
    return v[v.size() / 2];
}
double most(const std::vector<double>& v) { return v.empty() ? NAN : *std::max_element(v.begin(), v.end()); }

// Where a run stands.
Texts summary(const RunPage& run) {
    if (run.points.empty()) return {{"step", "no step yet"}};
    const Point& last = run.points.back();
    const Point *val = nullptr, *best = nullptr;
    long broken = 0;
    for (const Point& p : run.points) {
        broken += !std::isfinite(p.loss) || !std::isfinite(p.grad_norm);
        if (std::isnan(p.val_loss)) continue;
        val = &p;
        if (!best || p.val_loss < best->val_loss) best = &p;
    }
    Texts rows = {{"step", format("%.0f", last.step)}, {"loss", format("%.4f", last.loss)}};
    const auto at_step = [](const Point& p) { return format("%.4f <small>at %.0f</small>", p.val_loss, p.step); };
    if (val) rows.push_back({"validation loss", at_step(*val)});
    if (val) rows.push_back({"best validation loss", at_step(*best)});
    rows.push_back({"gradient norm", format("%.3g", last.grad_norm)});
    rows.push_back({"learning rate", format("%.3g", last.lr)});
    rows.push_back({"tokens/s, median", short_number(median(finite(run, &Point::tokens_per_s)))});
    const double share = 100 * median(finite(run, &Point::mfu)), peak = fact(run, "peak_flops") / 1e9;
    const std::string of = std::isfinite(peak) ? format(" <small>of %.0f GFLOP/s</small>", peak) : "";
    if (std::isfinite(share)) rows.push_back({"share of the measured peak", format("%.1f %%", share) + of});
    if (broken) rows.push_back({"not finite", format("<b>%ld</b> steps", broken)});
    return rows;
}

// Planned bytes by class, and what the process held. `full`: as many bytes as make the longest bar.
Texts memory(const RunPage& run, double full) {
    const std::string prefix = "memory.";
    const auto cell = [&](double bytes) {
        return format("<span class=\"bar\" style=\"--part:%.1f%%\">%.1f MB</span>", 100 * bytes / full, bytes / 1e6);
    };
    Texts rows;
    for (const auto& [name, text] : run.facts)
        if (name.starts_with(prefix))
            rows.push_back({name == "memory.all" ? "all that is planned" : name.substr(prefix.size()),
                            cell(number_in(text).value_or(0))});
    const double ranks = fact(run, "ranks"), held = most(finite(run, &Point::resident));
    const bool threads = std::count(run.facts.begin(), run.facts.end(), Texts::value_type("engine", "threads")) > 0;
    if (threads && ranks > 1)
        rows.push_back({format("all, of the %.0f ranks of the process", ranks), cell(ranks * fact(run, "memory.all"))});
    rows.push_back({"held by the process", std::isfinite(held) ? cell(held) : "not known"});
    return rows;
}

// What rank 0 sent in the last step, beside what the formulas say. Two kinds of rows are not of every step: statistics,
// and the search for what is not finite.
Texts sent(const RunPage& run) {
    const std::string prefix = "sent.";
    auto rows = run.sent;
    std::map<std::string, double> formula;
    for (const auto& [name, text] : run.facts)
        if (name.starts_with(prefix)) formula[name.substr(prefix.size())] = number_in(text).value_or(NAN);
    for (const auto& [name, bytes] : formula)
        if (!name.ends_with(".statistics") && name.find(".max.") == std::string::npos) rows[name];
    Texts cells;
    for (const auto& [name, row] : rows) {
        const double due = formula.count(name) ? formula[name] : 0;
        const std::string text = format("%.0f bytes", row.first) + format(" <small>in %.3g ms</small>", row.second);
        cells.push_back({name, row.first == due ? text : text + format(", <b>%.0f by formula</b>", due)});
    }
    return cells;
}

// Lines `key = value  # origin`. A comparison shows no origins: they are no difference.
Texts settings(const RunPage& run, bool origins) {
    const auto trim = [](std::string s) {
        s.erase(0, std::min(s.find_first_not_of(" \t\r"), s.size()));
        return s.erase(s.find_last_not_of(" \t\r") + 1);
    };
    Texts rows;
    std::string line;
    for (std::istringstream in(run.config); std::getline(in, line);) {
        const size_t equals = line.find('='), origin = line.rfind("# ");
        if (equals == std::string::npos || equals > origin || trim(line)[0] == '#') continue;
        std::string cell = escape(trim(line.substr(equals + 1, origin - equals - 1)));
        if (origins && origin != std::string::npos) cell += " <small>" + escape(line.substr(origin + 2)) + "</small>";
        rows.push_back({trim(line.substr(0, equals)), cell});
    }
    return rows;
}

// What made the run: but for the configuration and the memory, which stand elsewhere.
Texts versions(const RunPage& run) {
    Texts rows;
    for (const auto& [name, text] : run.facts)
        if (const auto of = name.substr(0, name.find('.')); of != "config" && of != "memory" && of != "sent")
            rows.push_back({name, escape(text)});
    return rows;
}

// The newest stand open; of the older ones, to be unfolded, so many that one sees the model learn.
std::string samples(const RunPage& run, size_t open) {
    std::string text;
    const size_t n = run.samples.size(), older = n - std::min(n, open), stride = older / 30 + 1;
    for (size_t back = 0; back < n; back += back < open ? 1 : stride) {
        const auto& [step, sample] = run.samples[n - 1 - back];
        text += format("<details%s><summary>step %ld</summary><pre>", back < open ? " open" : "", step) +
                escape(sample) + "</pre></details>\n";
    }
    if (stride > 1) text += format("<p>Of the older ones every %zuth; samples.jsonl has all.</p>\n", stride);
    return text;
}

// Of the ends and of at most five blocks, from the first to the last.
std::string layers(const RunPage& run) {
    std::vector<Curve> all;
    const long steps = std::max(1L, long(run.layers.size()) - 2);
    for (const auto& [block, points] : run.layers)
        if (block <= 0 || block * 4 / steps != (block - 1) * 4 / steps)
            all.push_back({block < 0 ? "ends" : concat("block ", block), concat("color-", all.size() % 6), points});
    return chart("Layers: norm of the update over that of the weight", all, Floor::zero);
}

// How far the loss of each run lies above that of the first, at the steps of both: the mean of a twentieth of them. A
// run with another seed shows what chance alone does: a band.
std::string gaps(Runs runs) {
    std::map<double, double> base;
    for (const Point& p : runs[0].points) base[p.step] = p.loss;
    std::vector<Curve> all;
    for (size_t run = 1; run < runs.size(); ++run) {
        std::vector<std::pair<double, double>> apart;
        for (const Point& p : runs[run].points)
            if (base.count(p.step)) apart.push_back({p.step, 100 * (p.loss / base[p.step] - 1)});
        const size_t window = std::max<size_t>(1, apart.size() / 20);
        const bool chance = std::fabs(fact(runs[run], "seed") - fact(runs[0], "seed")) > 0;   // where both are known
        Curve up{runs[run].name, concat("color-", run % 6, chance ? " dashed" : ""), {}}, down{"", up.style, {}};
        for (size_t end = window; end <= apart.size(); ++end) {
            double sum = 0;
            for (size_t i = end - window; i < end; ++i) sum += apart[i].second / double(window);
            up.points.push_back({apart[end - 1].first, chance ? std::fabs(sum) : sum});
            down.points.push_back({apart[end - 1].first, -std::fabs(sum)});
        }
        all.push_back(up);
        if (chance) all.push_back(down);
    }
    return chart(concat("Loss above that of ", runs[0].name, ", %; dashed: what another seed does"), all, Floor::zero);
}

std::string charts(Runs runs) {
    const bool many = runs.size() > 1;
    const auto curves = [&](double Point::*value, const char* name, const char* kind, size_t color) {
        std::vector<Curve> all;
        for (size_t run = 0; run < runs.size(); ++run) {
            Curve c{many ? runs[run].name : name, concat("color-", (many ? run : color) % 6, " ", kind), {}};
            if (run >= 6) c.style += " dashed";        // colours come again
            for (const Point& p : runs[run].points)
                if (value != &Point::val_loss || !std::isnan(p.val_loss)) c.points.push_back({p.step, p.*value});
            all.push_back(c);
        }
        return all;
    };
    std::vector<Curve> losses = curves(&Point::loss, "training", many ? "thin" : "", 0);
    for (Curve c : curves(&Point::val_loss, "validation", "bold", 1)) {
        if (many) c.name = "";
        losses.push_back(c);
    }
    return "<div class=\"charts\">\n" +
           chart(many ? "Loss: training thin, validation bold" : "Loss", losses) +
           (many ? gaps(runs) : "") + chart("Gradient norm before clipping", curves(&Point::grad_norm, "", "", 0)) +
           chart("Learning rate", curves(&Point::lr, "", "", 0), Floor::zero) +
           chart("Tokens per second", curves(&Point::tokens_per_s, "", "", 0), Floor::zero) +
           chart("Share of the measured peak of the machine", curves(&Point::mfu, "", "", 0), Floor::zero) +
           (runs.size() == 1 ? layers(runs[0]) : "") + "</div>\n";
}

}  // namespace

std::string chart(const std::string& title, const std::vector<Curve>& curves, Floor floor) {
    Axis x{.from = 0, .to = 1000}, y{.from = 1000, .to = 0};
    std::string legend, lines, labels;
    for (const Curve& curve : curves) {
        for (const auto& [step, value] : curve.points)
            if (std::isfinite(value)) x.include(step), y.include(value);
        if (!curve.name.empty() && !curve.points.empty())
            legend += concat("<span><b class=\"", curve.style, "\">&#9632;</b> ", escape(curve.name), "</span>");
    }
    if (y.empty()) return "";
    if (floor == Floor::zero) y.include(0);
    x.widen(), y.widen();
    for (double v : y.ticks()) {
        lines += format("<path class=\"grid\" d=\"M0 %.1fH1000\"/>", y.at(v));
        labels += format("<i class=\"y\" style=\"top:%.2f%%\">%s</i>", y.at(v) / 10, tick_text(v).c_str());
    }
    for (double v : x.ticks()) {
        if (v != std::floor(v)) continue;
        lines += format("<path class=\"grid\" d=\"M%.1f 0V1000\"/>", x.at(v));
        labels += format("<i class=\"x\" style=\"left:%.2f%%\">%s</i>", x.at(v) / 10, tick_text(v).c_str());
    }
    lines += "<path class=\"axis\" d=\"M0 0V1000H1000\"/>";
    for (const Curve& curve : curves)
        lines += concat("<path class=\"curve ", curve.style, "\" d=\"", svg_path(curve, x, y), "\"/>");
    const std::string range = format("%.9g %.9g %.9g %.9g", x.low, x.high, y.low, y.high);
    return concat("<figure><figcaption>", escape(title), legend, "</figcaption><div class=\"plot\"><svg viewBox=\"0 0 "
                  "1000 1000\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"", escape(title),
                  " by step\" data-range=\"", range, "\">", lines, "</svg>", labels, "</div></figure>\n");
}

std::string html_page(Runs runs) {
    const bool many = runs.size() > 1;
    const std::string title = many ? format("%zu runs", runs.size()) : runs.empty() ? "" : escape(runs[0].name);
    const auto columns = [&](auto column) {
        std::vector<Texts> all;
        for (const RunPage& run : runs) all.push_back(column(run));
        return all;
    };
    double full = 1;                                   // byte
    for (const RunPage& run : runs)
        full = std::fmax(full, std::fmax(fact(run, "memory.all") * std::fmax(1, fact(run, "ranks")),
                                         most(finite(run, &Point::resident))));
    std::string page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                       "<meta name=\"viewport\" content=\"width=device-width\"><title>" + title + "</title>\n" + style +
                       "</head><body>\n<h1>" + title + "</h1>\n";
    page += table(runs, columns(summary), Rows::all, many ? "" : "tiles") + charts(runs);
    for (const RunPage& run : runs)
        if (!run.trace.empty()) page += (many ? "<h2>Trace of " + escape(run.name) + "</h2>\n" : "") + run.trace;
    for (const RunPage& run : runs)
        if (!run.samples.empty())
            page += concat("<h2>Samples", many ? " of " + escape(run.name) : "", "</h2>\n", samples(run, many ? 1 : 3));
    page += "<h2>Memory</h2>\n" + table(runs, columns([&](const RunPage& r) { return memory(r, full); }), Rows::all);
    if (std::any_of(runs.begin(), runs.end(), [](const RunPage& r) { return !sent(r).empty(); }))
        page += "<h2>Sent between ranks</h2>\n<p>By rank 0 in the last step: axis, operation, what.</p>\n" +
                table(runs, columns(sent), Rows::all);
    const Rows rows = many ? Rows::different : Rows::all;
    const char* const looks = many ? "" : "pairs";
    const std::string what = many ? ": what differs</h2>\n" : "</h2>\n";
    const auto config = [&](const RunPage& r) { return settings(r, !many); };
    page += "<h2>Configuration" + what + table(runs, columns(config), rows, looks);
    page += "<h2>Versions" + what + table(runs, columns(versions), rows, looks);
    return page + script + "</body></html>\n";
}

}  // namespace baretrain
