// page.cpp - the body of page.h.
#include "page.h"
#include "device/error.h"
#include "files.h"
#include <algorithm>
#include <cmath>
#include <sstream>

namespace baretrain {

namespace {

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

struct Curve {
    const char *name, *style;                          // a CSS class
    const std::vector<RunPage::Point>& points;
    double RunPage::Point::*value;
};

// From a to b in pixels; ticks at multiples of 1, 2 or 5 times a power of ten.
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

// At most 1,000 points: of each stretch the lowest and highest, so that a spike is seen. What is not finite is a gap.
std::string svg_path(const Curve& curve, const Axis& x, const Axis& y) {
    const size_t n = curve.points.size(), stretch = n <= 1000 ? 1 : (n + 499) / 500;
    std::string path;
    bool pen_up = true;
    const auto value = [&](size_t i) { return curve.points[i].*curve.value; };
    const auto draw = [&](size_t i) {
        path += format(pen_up ? "M%.1f %.1fh0" : "L%.1f %.1f", x.at(curve.points[i].step), y.at(value(i)));
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

std::string chart(const std::string& title, const std::vector<Curve>& curves) {
    Axis x{.from = 64, .to = 708}, y{.from = 224, .to = 12};
    std::string legend;
    for (const Curve& curve : curves) {
        for (const auto& p : curve.points)
            if (std::isfinite(p.*curve.value)) x.include(p.step), y.include(p.*curve.value);
        if (curves.size() > 1 && !curve.points.empty())
            legend += format(" <span class=\"%s\">&#9632; %s</span>", curve.style, curve.name);
    }
    const std::string head = "<figure><figcaption>" + title + legend + "</figcaption>";
    if (y.empty()) return head + "<p>nothing to draw yet</p></figure>\n";
    x.widen(), y.widen();
    std::string svg = head + "<svg viewBox=\"0 0 720 252\" role=\"img\" aria-label=\"" + title + " by step\">";
    for (double v : y.ticks())
        svg += format("<path class=\"grid\" d=\"M64 %.1fH708\"/>", y.at(v)) +
               format("<text x=\"58\" y=\"%.1f\" text-anchor=\"end\">%g</text>", y.at(v) + 4, v);
    for (double v : x.ticks())
        if (v == std::floor(v))
            svg += format("<path class=\"grid\" d=\"M%.1f 224v5\"/>", x.at(v)) +
                   format("<text x=\"%.1f\" y=\"244\" text-anchor=\"middle\">%.0f</text>", x.at(v), v);
    svg += "<path class=\"axis\" d=\"M64 12V224H708\"/>";
    for (const Curve& curve : curves)
        svg += concat("<path class=\"curve ", curve.style, "\" d=\"", svg_path(curve, x, y), "\"/>");
    return svg + "</svg></figure>\n";
}

// The lines of a TOML file as a table; what stands behind a value (where it came from) stays with it.
std::string config_table(const std::string& toml) {
    const auto trim = [](std::string s) {
        s.erase(0, std::min(s.find_first_not_of(" \t\r"), s.size()));
        return s.erase(s.find_last_not_of(" \t\r") + 1);
    };
    std::string table = "<table>", line;
    for (std::istringstream in(toml); std::getline(in, line);) {
        const std::string text = trim(line);
        const size_t equals = text.find('=');
        if (text.empty() || text[0] == '#') continue;
        table += equals == std::string::npos ? concat("<tr><th colspan=\"2\">", escape(text), "</th></tr>")
                                             : concat("<tr><td>", escape(trim(text.substr(0, equals))), "</td><td>",
                                                      escape(trim(text.substr(equals + 1))), "</td></tr>");
    }
    return table + "</table>\n";
}

const char* const style = R"(<style>
:root { color-scheme: light dark; --back: #fff; --text: #1f2328; --faint: #d8dee4; --train: #0969da; --val: #bc4c00; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --faint: #30363d; --train: #58a6ff; --val: #f0883e; }
}
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 760px;
       margin: 2em auto; padding: 0 1em; }
figure { margin: 1.5em 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--text); }
.grid { stroke: var(--faint); } .axis { stroke: var(--text); fill: none; }
.train { color: var(--train); } .val { color: var(--val); }
.curve { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linecap: round; stroke-linejoin: round; }
.curve.val { stroke-width: 2.4; }
table { border-collapse: collapse; }
td, th { text-align: left; border-bottom: 1px solid var(--faint); padding: 2px 1.5em 2px 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--faint); padding: 0.7em; }
</style>
)";

}  // namespace

std::string RunPage::html() const {
    std::vector<Point> evaluated = points;
    std::erase_if(evaluated, [](const Point& p) { return std::isnan(p.val_loss); });
    const long broken = std::count_if(points.begin(), points.end(), [](const Point& p) {
        return !std::isfinite(p.loss) || !std::isfinite(p.grad_norm);
    });
    const std::string title = escape(name);
    std::string page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                       "<meta name=\"viewport\" content=\"width=device-width\"><title>" + title + "</title>\n" +
                       style + "</head><body>\n<h1>" + title + "</h1>\n";
    if (points.empty()) page += "<p>no step yet</p>\n";
    else {
        const Point& p = points.back();
        page += format("<p>step %.0f: loss <b>%.4f</b>, gradient norm %.3g", p.step, p.loss, p.grad_norm) +
                format(", learning rate %.3g, %s tokens/s", p.lr, short_number(p.tokens_per_s).c_str());
        if (!evaluated.empty())
            page += format("; validation loss <b>%.4f</b> at step %.0f", evaluated.back().val_loss,
                           evaluated.back().step);
        if (broken) page += format("; <b>%ld steps were not finite</b>", broken);
        page += "</p>\n";
    }
    page += chart("Loss", {{"training", "train", points, &Point::loss},
                           {"validation", "val", evaluated, &Point::val_loss}}) +
            chart("Gradient norm before clipping", {{"", "train", points, &Point::grad_norm}}) +
            chart("Learning rate", {{"", "train", points, &Point::lr}}) +
            chart("Tokens per second", {{"", "train", points, &Point::tokens_per_s}});
    page += trace;
    if (!samples.empty()) page += "<h2>Latest samples</h2>\n";
    for (size_t i = samples.size(); i-- > 0 && i + 5 >= samples.size();)
        page += format("<h3>step %ld</h3><pre>", samples[i].first) + escape(samples[i].second) + "</pre>\n";
    return page + "<h2>Configuration</h2>\n" + config_table(config) + "</body></html>\n";
}

}  // namespace baretrain
