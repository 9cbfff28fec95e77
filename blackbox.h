// blackbox.h - what a run leaves of a step that went wrong: its numbers, those before it, its sequences, worst first.
// Copy with: blackbox.cpp, dataloader.h, report.h and what they name, nlohmann-json
// A step is reported when its loss lies z deviations above the mean of the (at most 50, at least 20) finite steps
// before it, or when loss or gradient are not finite. The default, 6, is a normal noise's once in eight million steps,
// and leaves room for heavier tails. A report is a folder, whole or absent: spike-000123/ in the run's, with spike.json
// (the line of the log, position, mean, deviation, statistics if they were taken, the steps before) and worst.txt (32
// sequences, with the loss of each token). After one, 50 steps have none of its kind; a run writes ten. A resume leaves
// them: the same step, reported again, replaces its own.
#pragma once
#include "dataloader.h"
#include "report.h"
#include <deque>

namespace baretrain {

struct TakenStep {
    long position = 0;                                 // the window of its first sequence
    std::vector<Rows> micros;
    StepLog log;
};
// Sequences with the highest mean loss first, NaN before all: text, then each target with its loss; ids without texts.
// logprobs: of all targets, one micro-batch behind the other.
std::string worst_sequences(const TakenStep& step, const std::vector<double>& logprobs, const Tokenizer& tokenizer,
                            size_t most);

class BlackBox {
public:
    BlackBox(const std::string& run, double z);        // knows what the run has logged; z 0: reports nothing
    std::string see(const TakenStep& step);            // remembers it; why it is to be reported, or "". All ranks agree
    // By one rank, of the step that see() was last told of, with the sequences of all. statistics: a line of
    // stats.jsonl, or "". Returns the folder.
    std::string write(const std::string& why, const TakenStep& step, const std::vector<double>& logprobs,
                      const Tokenizer& tokenizer, const std::string& statistics);
private:
    struct Seen { StepLog log; long position; };       // position -1: before this process began
    std::string folder_of(long step) const;
    std::string run_;
    double z_, mean_ = 0, deviation_ = 0;              // of the steps before the last one
    std::deque<Seen> seen_;
    long quiet_until_[2] = {0, 0}, written_ = 0;
};

// What two runs of a step disagree on, of loss, grad_norm, lr and tokens; "": they are equal, bit for bit.
std::string difference(const StepLog& now, const StepLog& logged);

}  // namespace baretrain
