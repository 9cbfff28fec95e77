// report.cpp - the body of report.h.
#include "report.h"
#include "device/error.h"
#include "files.h"
#include <cerrno>
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

// One line, or indented. What is not UTF-8 becomes U+FFFD; NaN and infinity, which JSON does not have, become null.
std::string text_of(const json& j, int indent = -1) {
    return j.dump(indent, ' ', false, json::error_handler_t::replace) + "\n";
}

json json_of(const StepLog& log) {
    json line = {{"step", log.step}, {"loss", log.loss}, {"grad_norm", log.grad_norm}, {"lr", log.lr},
                 {"tokens", log.tokens}, {"tokens_per_s", log.tokens_per_s}, {"mfu", nullptr}};
    if (!(log.mfu < 0)) line["mfu"] = log.mfu;
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

// Cuts a log behind its last line of `last_step` or before and gives the lines that stay. A line without end was torn.
std::vector<json> cut_log(const std::string& path, long last_step) {
    std::vector<json> lines;
    if (!fs::exists(path)) return lines;
    const std::string text = read_text(path);
    size_t keep = 0;
    for (size_t end; (end = text.find('\n', keep)) != std::string::npos; keep = end + 1) {
        const json parsed = json::parse(text.substr(keep, end - keep), shallow, false);
        if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer())
            fail(path, ": line ", lines.size() + 1,
                 " is not a line of a run's log; move the file away to resume without it");
        if (parsed["step"].get<long>() > last_step) break;
        lines.push_back(parsed);
    }
    std::error_code error;
    fs::resize_file(path, keep, error);
    if (error) fail(path, ": can't cut it to step ", last_step, ": ", error.message());
    return lines;
}

// A number of the log as it was: null is a NaN.
double number_at(const json& line, const char* name) {
    return line.contains(name) && line[name].is_number() ? line[name].get<double>() : NAN;
}

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
    page_.name = fs::path(path).lexically_normal().string();
    std::error_code error;
    const bool used = fs::exists(path, error) && (!fs::is_directory(path, error) || !fs::is_empty(path, error));
    if (used && resume_after_step < 0)
        fail("--out ", path, ": exists and is not empty; choose another name, or take it up with --resume auto");
    fs::create_directories(path, error);
    if (error) fail("--out ", path, ": can't make the folder: ", error.message());
    lock_.file = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_.file < 0 || flock(lock_.file, LOCK_EX | LOCK_NB) != 0)
        fail("--out ", path, ": another process is training in this folder; wait for it, or choose another name");
    if (resume_after_step < 0) return;
    fs::remove(file("stop"), error);                   // the wish of the run before
    for (const json& l : cut_log(file(log_name), resume_after_step))
        page_.points.push_back({number_at(l, "step"), number_at(l, "loss"), number_at(l, "grad_norm"),
                                number_at(l, "lr"), number_at(l, "tokens_per_s"), number_at(l, "val_loss")});
    for (const json& l : cut_log(file(samples_name), resume_after_step))
        if (l.contains("text") && l["text"].is_string())
            page_.samples.emplace_back(l["step"].get<long>(), l["text"].get<std::string>());
}

void RunFolder::write_config(const std::string& toml) {
    page_.config = toml;
    write_whole(file("config.toml"), toml);
}

std::string to_json(const Facts& facts) {
    json all = json::object();
    for (const auto& [name, value] : facts) std::visit([&](const auto& v) { all[name] = v; }, value);
    return text_of(all, 2);
}

void RunFolder::write_run_json(const Facts& facts) { write_whole(file("run.json"), to_json(facts)); }

void RunFolder::log(const StepLog& log) {
    require(log.step >= 1, "run folder: the first step is 1");
    std::vector<RunPage::Point>& points = page_.points;
    const bool again = !points.empty() && double(log.step) == points.back().step;
    require(points.empty() || again || double(log.step) > points.back().step, "run folder: steps only grow");
    const std::string line = text_of(json_of(log)), path = file(log_name);
    if (again) {
        require(line.size() >= last_line_, "run folder: a line that is written again only grows");
        write_over(path, fs::file_size(path) - last_line_, line);
        points.pop_back();
    } else append(path, line);
    last_line_ = line.size();
    points.push_back({double(log.step), log.loss, log.grad_norm, log.lr, log.tokens_per_s, log.val_loss.value_or(NAN)});
}

void RunFolder::sample(long step, const std::string& text) {
    const std::string line = text_of({{"step", step}, {"text", text}});
    append(file(samples_name), line);
    page_.samples.emplace_back(step, json::parse(line)["text"].get<std::string>());   // UTF-8 now
}

void RunFolder::trace(const std::string& json, const std::string& html) {
    page_.trace = html;
    write_whole(file("trace.json"), json);
    write_html();
}

void RunFolder::write_html() const { write_whole(file("run.html"), page_.html()); }

RunFolder::Lock::~Lock() { if (file >= 0) close(file); }

bool RunFolder::stop_requested() const {
    std::error_code ignored;
    return fs::exists(file("stop"), ignored);
}

}  // namespace baretrain
