#include "report.h"
#include "device/error.h"
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace baretrain {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

const char* const log_name = "log.jsonl";
const char* const samples_name = "samples.jsonl";

template <class... Args> std::string format(const char* form, Args... args) {
    std::string text(size_t(std::snprintf(nullptr, 0, form, args...)), '\0');
    std::snprintf(text.data(), text.size() + 1, form, args...);
    return text;
}

std::string short_number(double v) {
    const char* const units[] = {"", "k", "M", "G"};
    int unit = 0;
    while (unit < 3 && std::fabs(v) >= 999.5) v /= 1000, ++unit;
    return format(unit ? "%.1f%s" : "%.0f%s", v, units[unit]);
}

// The shortest digits that read back as the same double. JSON has no NaN and no infinity.
std::string json_number(double v) {
    if (!std::isfinite(v)) return "null";
    char text[40];
    return std::string(text, std::to_chars(text, text + sizeof text, v).ptr);
}

std::string json_object(const std::map<std::string, double>& numbers) {
    std::string text = "{";
    for (const auto& [name, value] : numbers)
        text += (text.size() > 1 ? "," : "") + json(name).dump() + ":" + json_number(value);
    return text + "}";
}

// Text that nlohmann accepts: what is not UTF-8 becomes U+FFFD.
std::string json_text(const std::string& text) {
    return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_line(const StepLog& log) {
    std::string line = "{\"step\":" + std::to_string(log.step), nonfinite;
    const auto add = [&](const char* name, double value) {
        line += std::string(",\"") + name + "\":" + json_number(value);
        if (std::isfinite(value)) return;
        const char* word = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
        nonfinite += std::string(nonfinite.empty() ? "" : ",") + "\"" + name + "\":\"" + word + "\"";
    };
    add("loss", log.loss);
    add("grad_norm", log.grad_norm);
    add("lr", log.lr);
    line += ",\"tokens\":" + std::to_string(log.tokens);
    add("tokens_per_s", log.tokens_per_s);
    line += ",\"mfu\":" + (log.mfu < 0 ? "null" : json_number(log.mfu));
    if (log.val_loss) add("val_loss", *log.val_loss);
    if (!log.ms.empty()) line += ",\"ms\":" + json_object(log.ms);
    if (!log.bytes.empty()) line += ",\"bytes\":" + json_object(log.bytes);
    if (!log.skipped.empty()) line += ",\"skipped\":" + json_text(log.skipped);
    if (!nonfinite.empty()) line += ",\"nonfinite\":{" + nonfinite + "}";
    return line + "}\n";
}

[[noreturn]] void cannot_write(const std::string& path) {
    fail(path + ": can't write: " + std::strerror(errno) + "; free some space or choose another --out");
}

void append(const std::string& path, const std::string& line) {
    std::ofstream out(path, std::ios::app | std::ios::binary);
    if (!(out << line << std::flush)) cannot_write(path);
}

// Writes over the end of a file from byte `at` on; `line` is at least as long as what stood there.
void write_over(const std::string& path, std::uintmax_t at, const std::string& line) {
    std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
    if (!out.seekp(std::streamoff(at)) || !(out << line << std::flush)) cannot_write(path);
}

void write_whole(const std::string& path, const std::string& text) {
    const std::string temporary = path + ".tmp";
    std::ofstream out(temporary, std::ios::binary);
    out << text;
    out.close();
    if (!out) cannot_write(temporary);
    std::error_code error;
    fs::rename(temporary, path, error);
    if (error) fail(path + ": can't replace it: " + error.message());
}

// Cuts a log behind its last line of `last_step` or before and gives the lines that stay. A line without end was torn.
std::vector<json> cut_log(const std::string& path, long last_step) {
    std::ifstream in(path, std::ios::binary);
    std::vector<json> lines;
    if (!in) return lines;
    std::string line;
    std::uintmax_t keep = 0;
    while (std::getline(in, line) && !in.eof()) {
        const json parsed = json::parse(line, nullptr, false);
        if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer())
            fail(path + ": line " + std::to_string(lines.size() + 1) +
                 " is not a line of a run's log; move the file away to resume without it");
        if (parsed["step"].get<long>() > last_step) break;
        keep += line.size() + 1;
        lines.push_back(parsed);
    }
    in.close();
    std::error_code error;
    fs::resize_file(path, keep, error);
    if (error) fail(path + ": can't cut it to step " + std::to_string(last_step) + ": " + error.message());
    return lines;
}

// A number of the log as it was: null is a NaN.
double number_at(const json& line, const char* name) {
    return line.contains(name) && line[name].is_number() ? line[name].get<double>() : NAN;
}

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
    std::vector<std::pair<double, double>> points;     // x grows
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
std::string svg_path(const std::vector<std::pair<double, double>>& points, const Axis& x, const Axis& y) {
    const size_t n = points.size(), stretch = n <= 1000 ? 1 : (n + 499) / 500;
    std::string path;
    bool pen_up = true;
    const auto draw = [&](const std::pair<double, double>& p) {
        path += format(pen_up ? "M%.1f %.1fh0" : "L%.1f %.1f", x.at(p.first), y.at(p.second));
        pen_up = false;
    };
    for (size_t begin = 0; begin < n; begin += stretch) {
        const size_t end = std::min(n, begin + stretch);
        size_t low = end, high = end;
        for (size_t i = begin; i < end; ++i) {
            if (!std::isfinite(points[i].second)) pen_up = true;
            else if (low == end) low = high = i;
            else if (points[i].second < points[low].second) low = i;
            else if (points[i].second > points[high].second) high = i;
        }
        if (low == end) continue;
        draw(points[std::min(low, high)]);
        if (low != high) draw(points[std::max(low, high)]);
    }
    return path;
}

std::string chart(const std::string& title, const std::vector<Curve>& curves) {
    Axis x{.from = 64, .to = 708}, y{.from = 224, .to = 12};
    for (const Curve& curve : curves)
        for (const auto& [px, py] : curve.points)
            if (std::isfinite(py)) x.include(px), y.include(py);
    std::string legend;
    for (const Curve& curve : curves)
        if (curves.size() > 1 && !curve.points.empty())
            legend += format(" <span class=\"%s\">&#9632; %s</span>", curve.style, curve.name);
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
        svg += std::string("<path class=\"curve ") + curve.style + "\" d=\"" + svg_path(curve.points, x, y) + "\"/>";
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
        if (equals == std::string::npos) table += "<tr><th colspan=\"2\">" + escape(text) + "</th></tr>";
        else
            table += "<tr><td>" + escape(trim(text.substr(0, equals))) + "</td><td>" +
                     escape(trim(text.substr(equals + 1))) + "</td></tr>";
    }
    return table + "</table>\n";
}

const char* const page_style = R"(<style>
:root { color-scheme: light dark; --back: #fff; --text: #1f2328; --faint: #d8dee4; --train: #0969da; --val: #bc4c00; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --faint: #30363d; --train: #58a6ff; --val: #f0883e; }
}
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 760px;
       margin: 2em auto; padding: 0 1em; }
figure { margin: 1.5em 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--text); } 
.grid { stroke: var(--faint); } .axis { stroke: var(--text); fill: none; }
.curve { fill: none; stroke-width: 1.6; stroke-linecap: round; stroke-linejoin: round; }
.curve.train { stroke: var(--train); } .curve.val { stroke: var(--val); stroke-width: 2.4; }
span.train { color: var(--train); } span.val { color: var(--val); }
table { border-collapse: collapse; }
td, th { text-align: left; border-bottom: 1px solid var(--faint); padding: 2px 1.5em 2px 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--faint); padding: 0.7em; }
</style>
)";

}  // namespace

std::string log_header() {
    return "loss: mean over the step's tokens | norm: of the gradient, before clipping | lr: of this step | "
           "tok/s: all ranks together | mfu: share of the peak";
}

std::string log_line(const StepLog& log, long last_step) {
    const std::string last = std::to_string(last_step);
    std::string line = format("step %*ld/%s | loss %7.4f", int(last.size()), log.step, last.c_str(), log.loss) +
                       format(" | norm %5.2f | lr %.1e", log.grad_norm, log.lr) +
                       format(" | %6s tok/s", short_number(log.tokens_per_s).c_str());
    if (log.mfu >= 0) line += format(" | mfu %4.1f %%", 100 * log.mfu);
    if (log.val_loss) line += format(" | val %.4f", *log.val_loss);
    if (!log.skipped.empty()) line += " | skipped: " + log.skipped;
    return line;
}

std::string progress_line(const std::string& what, long done, long total, double seconds) {
    const std::string line = format("%s  %ld %%", what.c_str(), total > 0 ? 100 * done / total : 100);
    if (done <= 0 || done >= total) return line;
    const long left = std::lround(seconds * double(total - done) / double(done));
    if (left < 120) return line + format("  %ld s left", left);
    if (left < 7200) return line + format("  %ld min left", left / 60);
    return line + format("  %ld h %ld min left", left / 3600, left / 60 % 60);
}

std::string time_name() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d-%H%M%S", &local);
    return text;
}

RunFolder::RunFolder(const std::string& path, long resume_after_step) : path_(path) {
    std::error_code error;
    const bool used = fs::exists(path, error) && (!fs::is_directory(path, error) || !fs::is_empty(path, error));
    if (used && resume_after_step < 0)
        fail("--out " + path + ": exists and is not empty; choose another name, or --resume it");
    fs::create_directories(path, error);
    if (error) fail("--out " + path + ": can't make the folder: " + error.message());
    if (resume_after_step < 0) return;
    fs::remove(file("stop"), error);                   // the wish of the run before
    for (const json& l : cut_log(file(log_name), resume_after_step))
        points_.push_back({number_at(l, "step"), number_at(l, "loss"), number_at(l, "grad_norm"), number_at(l, "lr"),
                           number_at(l, "tokens_per_s"), number_at(l, "val_loss")});
    for (const json& l : cut_log(file(samples_name), resume_after_step))
        samples_.emplace_back(l["step"].get<long>(), l.value("text", std::string()));
}

void RunFolder::write_config(const std::string& toml) {
    config_ = toml;
    write_whole(file("config.toml"), toml);
}

void RunFolder::write_run_json(const Facts& facts) {
    std::string text = "{";
    for (const auto& [name, value] : facts) {
        text += (text.size() > 1 ? ",\n  " : "\n  ") + json_text(name) + ": ";
        if (const auto* s = std::get_if<std::string>(&value)) text += json_text(*s);
        else if (const auto* n = std::get_if<long>(&value)) text += std::to_string(*n);
        else text += json_number(std::get<double>(value));
    }
    write_whole(file("run.json"), text + "\n}\n");
}

void RunFolder::log(const StepLog& log) {
    require(log.step >= 1, "run folder: the first step is 1");
    const bool again = !points_.empty() && double(log.step) == points_.back().step;
    require(points_.empty() || again || double(log.step) > points_.back().step, "run folder: steps only grow");
    const std::string line = json_line(log), path = file(log_name);
    if (again) {
        require(line.size() >= last_line_, "run folder: a line that is written again only grows");
        write_over(path, fs::file_size(path) - last_line_, line);
        points_.pop_back();
    } else append(path, line);
    last_line_ = line.size();
    const double val_loss = log.val_loss.value_or(NAN);
    points_.push_back({double(log.step), log.loss, log.grad_norm, log.lr, log.tokens_per_s, val_loss});
}

void RunFolder::sample(long step, const std::string& text) {
    const std::string valid = json_text(text);
    append(file(samples_name), "{\"step\":" + std::to_string(step) + ",\"text\":" + valid + "}\n");
    samples_.emplace_back(step, json::parse(valid).get<std::string>());
}

void RunFolder::write_html() const {
    Curve loss{"training", "train", {}}, val{"validation", "val", {}}, norm{"", "train", {}}, lr = norm, speed = norm;
    long broken = 0;
    for (const Point& p : points_) {
        loss.points.emplace_back(p.step, p.loss);
        if (!std::isnan(p.val_loss)) val.points.emplace_back(p.step, p.val_loss);
        norm.points.emplace_back(p.step, p.grad_norm);
        lr.points.emplace_back(p.step, p.lr);
        speed.points.emplace_back(p.step, p.tokens_per_s);
        broken += !std::isfinite(p.loss) || !std::isfinite(p.grad_norm);
    }
    const std::string name = escape(fs::path(path_).lexically_normal().string());
    std::string page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                       "<meta name=\"viewport\" content=\"width=device-width\"><title>" + name + "</title>\n" +
                       page_style + "</head><body>\n<h1>" + name + "</h1>\n";
    if (points_.empty()) page += "<p>no step yet</p>\n";
    else {
        const Point& p = points_.back();
        page += format("<p>step %.0f: loss <b>%.4f</b>, gradient norm %.3g", p.step, p.loss, p.grad_norm) +
                format(", learning rate %.3g, %s tokens/s", p.lr, short_number(p.tokens_per_s).c_str());
        if (!val.points.empty()) page += format("; validation loss <b>%.4f</b>", val.points.back().second);
        if (!val.points.empty()) page += format(" at step %.0f", val.points.back().first);
        if (broken) page += format("; <b>%ld steps were not finite</b>", broken);
        page += "</p>\n";
    }
    page += chart("Loss", {loss, val}) + chart("Gradient norm before clipping", {norm}) + chart("Learning rate", {lr}) +
            chart("Tokens per second", {speed});
    if (!samples_.empty()) page += "<h2>Latest samples</h2>\n";
    for (size_t i = samples_.size(); i-- > 0 && i + 5 >= samples_.size();)
        page += format("<h3>step %ld</h3><pre>", samples_[i].first) + escape(samples_[i].second) + "</pre>\n";
    page += "<h2>Configuration</h2>\n" + config_table(config_) + "</body></html>\n";
    write_whole(file("run.html"), page);
}

bool RunFolder::stop_requested() const {
    std::error_code ignored;
    return fs::exists(file("stop"), ignored);
}

}  // namespace baretrain
