// report.h - what a run says: the console line of a step, and the run folder with its log and its page.
// Copy with: report.cpp, page.h, files.h and what they name, nlohmann-json
// Folder: config.toml  run.json  log.jsonl (a line a step)  samples.jsonl  stats.jsonl  trace.json  run.html (one file,
// no network), and beside them the trainer's checkpoints. Files appear whole (temporary name, then rename); logs grow
// by whole lines; a line torn by a crash is cut on resume. Nothing is ever overwritten without a resume.
#pragma once
#include "page.h"
#include <map>
#include <optional>
#include <variant>

namespace baretrain {

struct StepLog {
    long step = 0;                                     // after this many updates; the first is 1
    double loss = 0, grad_norm = 0, lr = 0;            // grad_norm: before clipping
    long tokens = 0;                                   // trained so far, in all ranks
    double tokens_per_s = 0, mfu = -1;                 // mfu: share of the measured peak, 0..1; negative: unknown
    long resident = -1;                                // bytes of memory that the process holds; negative: unknown
    std::optional<double> val_loss;                    // where it was evaluated
    std::map<std::string, double> ms;                  // of the step, and in collectives of rank 0, by name
    std::map<std::string, long> bytes;                 // sent by rank 0, by name: axis.operation.what
    std::string skipped;                               // why the update was left out; empty: it was not
};

// Statistic by statistic of each tensor, and of each activation of each block.
struct StatsLog {
    using Numbers = std::vector<std::pair<std::string, double>>;
    using Row = std::pair<std::string, Numbers>;
    long step = 0;
    std::vector<Row> tensors, activations;
};

std::string to_json(const StepLog& log);               // the line of log.jsonl, of stats.jsonl
std::string to_json(const StatsLog& log);
std::map<long, StepLog> read_steps(const std::string& folder);   // of a run, by step: all but times
std::string log_header();                              // what the columns mean, one line
std::string log_line(const StepLog& log, long last_step);
// "evaluating  37 %  12 s left": seconds have passed since the first of `total` was begun.
std::string progress_line(const std::string& what, long done, long total, double seconds);
std::string time_name();                               // local time as a folder name: 2026-01-31-142530

using Facts = std::vector<std::pair<std::string, std::variant<std::string, long, double>>>;
std::string to_json(const Facts& facts);               // one object, indented

// One process at a time writes into a run folder; Error while another does. Let go too when a constructor throws.
class RunLock {
public:
    explicit RunLock(const std::string& folder);
    ~RunLock();
    RunLock(const RunLock&) = delete;
private:
    int file_;
};

class RunFolder {
public:
    // resume_after_step -1: a new run; the folder must be new or empty. Else both logs are cut to steps up to that one.
    RunFolder(const std::string& path, long resume_after_step = -1);
    RunFolder(const RunFolder&) = delete;
    const std::string& path() const { return path_; }
    void write_config(const std::string& toml);
    void write_run_json(const Facts& facts);
    void log(const StepLog& log);   // one line, written when it returns; steps only grow, or come again
                                    // with more in them (val_loss): then the line is replaced
    void sample(long step, const std::string& text);
    void stats(const std::string& line);               // as to_json() gives it; nothing where it is empty
    void trace(const std::string& json, const std::string& html);   // trace.json; trace.html, for run.html
    void write_html() const;
    bool stop_requested() const;                       // somebody made a file `stop` in the folder
private:
    std::string file(const char* name) const { return path_ + "/" + name; }
    std::string path_;
    RunLock lock_;
    RunPage page_;                                     // all that was logged
    size_t last_line_ = 0;                             // bytes of the line of the last step in log.jsonl
};

// The page of the runs in these folders, of which nothing is changed; a line torn by a crash is left out. output "":
// run.html of the only one. Returns where it was written.
std::string write_report(const std::vector<std::string>& folders, std::string output);

}  // namespace baretrain
