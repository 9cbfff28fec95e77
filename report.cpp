// report.cpp - the body of report.h.
#include "report.h"
#include "device/error.h"
#include "files.h"
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fcntl.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

namespace baretrain {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

const char* const log_name = "log.jsonl";
const char* const samples_name = "samples.jsonl";
const char* const config_name = "config.toml";
const char* const facts_name = "run.json";
const char* const page_name = "run.html";
const char* const trace_name = "trace.html";
const char* const stats_name = "stats.jsonl";

// One line, or indented. What is not UTF-8 becomes U+FFFD; NaN and infinity, which JSON does not have, become null.
std::string text_of(const json& j, int indent = -1) {
    return j.dump(indent, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string utf8(const std::string& text) { return json::parse(text_of(text)).get<std::string>(); }

json json_of(const StepLog& log) {
    json line = {{"step", log.step}, {"loss", log.loss}, {"grad_norm", log.grad_norm}, {"lr", log.lr},
                 {"tokens", log.tokens}, {"tokens_per_s", log.tokens_per_s}, {"mfu", nullptr}};
    if (!(log.mfu < 0)) line["mfu"] = log.mfu;
    if (log.resident >= 0) line["resident"] = log.resident;
    if (log.val_loss) line["val_loss"] = *log.val_loss;
    json nonfinite;
    for (const auto& [name, number] : line.items())
        if (const double v = number.is_number() ? number.get<double>() : 0; !std::isfinite(v))
            nonfinite[name] = std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
    if (!log.ms.empty()) line["ms"] = log.ms;
    if (!log.bytes.empty()) line["bytes"] = log.bytes;
    if (!log.skipped.empty()) line["skipped"] = log.skipped;
    if (!nonfinite.empty()) line["nonfinite"] = nonfinite;
    return line;
}

json json_of(const StatsLog& log) {
    json line = {{"step", log.step}};
    for (const auto& [name, numbers] : log.tensors)
        for (const auto& [what, v] : numbers) line["tensors"][name][what] = v;
    for (const auto& [name, numbers] : log.activations)
        for (const auto& [what, v] : numbers) line["activations"][name][what] = v;
    return line;
}

[[noreturn]] void cannot_write(const std::string& path) {
    fail(path, ": can't write: ", std::strerror(errno), "; free some space or choose another --out");
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

// Calls use with each line of a log up to that step, and returns the bytes of them. A line without end was torn.
template <class Use> size_t read_log(const std::string& path, long last_step, Use use) {
    if (!fs::exists(path)) return 0;
    const std::string text = read_text(path);
    size_t keep = 0;
    for (size_t end, line = 1; (end = text.find('\n', keep)) != std::string::npos; keep = end + 1, ++line) {
        const json parsed = json::parse(text.substr(keep, end - keep), shallow, false);
        if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer())
            fail(path, ": line ", line, " is not a line of a run's log; move the file away to go on without it");
        if (parsed["step"].get<long>() > last_step) break;
        use(parsed);
    }
    return keep;
}

void cut_log(const std::string& path, long last_step) {
    const size_t keep = read_log(path, last_step, [](const json&) {});
    std::error_code error;
    if (fs::exists(path)) fs::resize_file(path, keep, error);
    if (error) fail(path, ": can't cut it to step ", last_step, ": ", error.message());
}

// A number of the log as it was: null is a NaN.
double number_at(const json& line, const char* name) {
    return line.contains(name) && line[name].is_number() ? line[name].get<double>() : NAN;
}

RunPage::Point point_of(const json& l) {
    return {number_at(l, "step"), number_at(l, "loss"), number_at(l, "grad_norm"), number_at(l, "lr"),
            number_at(l, "tokens_per_s"), number_at(l, "val_loss"), number_at(l, "mfu"), number_at(l, "resident")};
}

void add_step(RunPage& run, const json& l) {
    run.points.push_back(point_of(l));
    run.sent.clear();
    const json bytes = l.value("bytes", json()), ms = l.value("ms", json());
    for (const auto& [name, sent] : bytes.items())
        run.sent[name] = {number_at(bytes, name.c_str()), number_at(ms, name.c_str())};
}

Texts texts_of(const json& facts) {
    Texts texts;
    for (const auto& [name, value] : facts.items())
        texts.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    return texts;
}

std::string name_of(const std::string& folder) {       // of a folder that may be given as `.` or end in a slash
    const fs::path path = fs::absolute(folder).lexically_normal();
    return utf8((path.has_filename() ? path : path.parent_path()).filename().string());
}

void add_layers(RunPage& run, const json& l) {
    std::map<long, std::pair<double, double>> squares;
    if (l.contains("tensors"))
        for (const auto& [name, t] : l["tensors"].items()) {
            const size_t digit = name.find_first_of("0123456789");
            auto& [update, weight] = squares[digit == std::string::npos ? -1 : std::atol(name.c_str() + digit)];
            update += std::pow(number_at(t, "update"), 2), weight += std::pow(number_at(t, "weight"), 2);
        }
    for (const auto& [block, s] : squares)
        run.layers[block].emplace_back(number_at(l, "step"), std::sqrt(s.first / s.second));
}

// What a run folder says of its run; nothing is changed.
RunPage read_run(const std::string& folder) {
    RunPage run;
    const std::string base = folder + "/", facts = base + facts_name;
    run.name = name_of(folder);
    if (fs::exists(base + config_name)) run.config = utf8(read_text(base + config_name));
    if (fs::exists(base + trace_name)) run.trace = read_text(base + trace_name);
    if (fs::exists(facts)) {
        const json parsed = json::parse(read_text(facts), shallow, false);
        if (!parsed.is_object()) fail(facts, ": is not an object of JSON; move the file away to go on without it");
        run.facts = texts_of(parsed);
    }
    read_log(base + log_name, LONG_MAX, [&](const json& l) { add_step(run, l); });
    read_log(base + stats_name, LONG_MAX, [&](const json& l) { add_layers(run, l); });
    read_log(base + samples_name, LONG_MAX, [&](const json& l) {
        if (l.contains("text") && l["text"].is_string())
            run.samples.emplace_back(l["step"].get<long>(), l["text"].get<std::string>());
    });
    return run;
}

// Makes the folder of a run, if it may.
std::string run_folder(const std::string& path, bool resumed) {
    std::error_code error;
    const bool used = fs::exists(path, error) && (!fs::is_directory(path, error) || !fs::is_empty(path, error));
    if (used && !resumed)
        fail("--out ", path, ": exists and is not empty; choose another name, or take it up with --resume auto");
    fs::create_directories(path, error);
    if (error) fail("--out ", path, ": can't make the folder: ", error.message());
    return path;
}

}  // namespace

std::string to_json(const StepLog& log) { return text_of(json_of(log)); }
std::string to_json(const StatsLog& log) { return text_of(json_of(log)); }

std::map<long, StepLog> read_steps(const std::string& folder) {
    std::map<long, StepLog> steps;
    read_log(folder + "/" + log_name, LONG_MAX, [&](const json& l) {
        StepLog& s = steps[l["step"].get<long>()];
        const auto number = [&](const char* name) {
            const std::string word = l.contains("nonfinite") ? l["nonfinite"].value(name, "") : "";
            return word == "inf" ? INFINITY : word == "-inf" ? -INFINITY : number_at(l, name);
        };
        s.step = l["step"].get<long>(), s.tokens = l.value("tokens", 0L), s.skipped = l.value("skipped", "");
        s.loss = number("loss"), s.grad_norm = number("grad_norm"), s.lr = number("lr");
    });
    return steps;
}

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

RunLock::RunLock(const std::string& folder) : file_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) == 0) return;
    if (file_ >= 0) close(file_);
    fail(folder, ": another process is training in this folder; wait for it, or choose another name");
}
RunLock::~RunLock() { close(file_); }

RunFolder::RunFolder(const std::string& path, long resume_after_step)
    : path_(run_folder(path, resume_after_step >= 0)), lock_(path) {
    page_.name = name_of(path);
    if (resume_after_step < 0) return;
    std::error_code error;
    fs::remove(file("stop"), error);                   // the wish of the run before
    for (const char* name : {log_name, samples_name, stats_name}) cut_log(file(name), resume_after_step);
    page_ = read_run(path);
}

void RunFolder::write_config(const std::string& toml) {
    page_.config = utf8(toml);
    write_whole(file(config_name), toml);
}

std::string to_json(const Facts& facts) {
    json all = json::object();
    for (const auto& [name, value] : facts) std::visit([&](const auto& v) { all[name] = v; }, value);
    return text_of(all, 2);
}

void RunFolder::write_run_json(const Facts& facts) {
    const std::string text = to_json(facts);
    page_.facts = texts_of(json::parse(text));
    write_whole(file(facts_name), text);
}

void RunFolder::log(const StepLog& log) {
    require(log.step >= 1, "run folder: the first step is 1");
    std::vector<RunPage::Point>& points = page_.points;
    const bool again = !points.empty() && double(log.step) == points.back().step;
    require(points.empty() || again || double(log.step) > points.back().step, "run folder: steps only grow");
    const std::string line = to_json(log), path = file(log_name);
    if (again) {
        require(line.size() >= last_line_, "run folder: a line that is written again only grows");
        write_over(path, fs::file_size(path) - last_line_, line);
        points.pop_back();
    } else append(path, line);
    last_line_ = line.size();
    add_step(page_, json::parse(line));                // as a resume will see it
}

void RunFolder::sample(long step, const std::string& text) {
    const std::string line = text_of({{"step", step}, {"text", text}});
    append(file(samples_name), line);
    page_.samples.emplace_back(step, utf8(text));
}

void RunFolder::stats(const std::string& line) {
    if (line.empty()) return;
    append(file(stats_name), line);
    add_layers(page_, json::parse(line));
}

void RunFolder::trace(const std::string& json, const std::string& html) {
    page_.trace = html;
    write_whole(file("trace.json"), json);
    write_whole(file(trace_name), html);
    write_html();
}

void RunFolder::write_html() const { write_whole(file(page_name), html_page({&page_, 1})); }

bool RunFolder::stop_requested() const {
    std::error_code ignored;
    return fs::exists(file("stop"), ignored);
}

std::string write_report(const std::vector<std::string>& folders, std::string output) {
    if (output.empty()) output = folders.at(0) + "/" + page_name;
    if (!output.ends_with(".html")) fail("-o ", output, ": is to be a page; give it a name that ends in .html");
    std::vector<RunPage> runs;
    for (const std::string& folder : folders) {
        const fs::path base = folder;
        if (!fs::exists(base / config_name) && !fs::exists(base / log_name))
            fail(folder, ": is no run: it has neither ", config_name, " nor ", log_name, "; give the --out of a run");
        runs.push_back(read_run(folder));
    }
    const auto shared = [&](const std::string& name) {   // by folders in different places
        return std::count_if(folders.begin(), folders.end(), [&](const auto& f) { return name_of(f) == name; }) > 1;
    };
    for (size_t i = 0; i < runs.size(); ++i)
        if (shared(runs[i].name)) runs[i].name = utf8(folders[i]);
    std::optional<RunLock> lock;                       // a run that is training writes its page itself
    std::error_code absent;
    const fs::path place = fs::absolute(output).parent_path();
    for (const std::string& folder : folders)
        if (!lock && fs::equivalent(place, folder, absent)) lock.emplace(folder);
    write_whole(output, html_page(runs));
    return output;
}

}  // namespace baretrain
