// dataloader.h - text files to tokens, tokens to an endless shuffled sequence of windows; a position is one integer.
// Copy with: dataloader.cpp, tokenizer.h, device/random.h and what they name
// A window is T + 1 neighbouring tokens: T inputs and T targets. An epoch has floor((tokens - 1) / T) of them, side by
// side from an offset in [0, slack]; offset and order depend on (seed, epoch) alone; each window comes exactly once.
// What stands at a position is a function of (tokens, T, seed, position), not of what was read before: resume is exact.
#pragma once
#include "tokenizer.h"
#include <cstddef>
#include <cstdint>

namespace baretrain {

// The tokens of all documents (files), in order, with <|endoftext|> between them.
struct Corpus {
    std::vector<uint16_t> train, val;
    std::vector<std::string> files;                    // as read, training files first
    size_t bytes = 0;                                  // of text
    std::string hash;                                  // 64 bits in hex, of the tokens and of where validation begins
    std::string describe() const;                      // one line for the console
};

// data: files and folders, separated by commas. val: files and folders too (left out of data), or a fraction: "0.1" is
// the last tenth of the tokens, "0" or "" none. A folder gives every text file below it, sorted by path, without hidden
// names, folders named out, build, third_party, node_modules, run folders (they hold a log.jsonl), empty files, and
// binary ones (a zero byte or no UTF-8 in the first 64 KB). At least one window of seq + 1 tokens must be in each part.
Corpus read_corpus(const std::string& data, const std::string& val, const Tokenizer& tokenizer, long seq);

// A micro-batch as the model sees it: N rows.
struct Rows {
    std::vector<int> tokens, targets, positions;       // N each; a target is the next token, or -1: not trained
    std::vector<int> documents;                        // the rows where documents start, then N
    long trained() const;                              // targets that are not -1
};

class Loader {
public:
    Loader(const std::vector<uint16_t>& tokens, long seq, uint64_t seed);   // keeps a reference to the tokens
    long windows() const { return windows_; }          // per epoch; 0: no validation, or fewer than seq + 1 tokens
    long window_start(long position) const;            // first token of the window at this position of the sequence
    Rows rows(long position, long batch) const;        // the windows at position .. position + batch - 1, T rows each
    Rows in_order(long first_window, long batch) const;   // for validation: not shuffled, fewer windows at the end
private:
    void append(Rows& rows, long start) const;
    const std::vector<uint16_t>& tokens_;
    long seq_, windows_;
    uint64_t seed_;
};

}  // namespace baretrain
