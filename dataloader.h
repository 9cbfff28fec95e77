// dataloader.h - text and token shards to an endless shuffled sequence of windows; a position in it is one integer.
// Copy with: dataloader.cpp, tokenize.h, device/random.h and what they name
// A window is T + 1 neighbouring tokens: T inputs and T targets. An epoch of a stream has floor((tokens - 1) / T) of
// them, side by side from an offset in [0, slack]; offset and order depend on (seed, epoch) alone; each window comes
// exactly once. What stands at a position is a function of (streams, T, seed, position): resume is exact.
// Streams with weights are mixed window by window: the first p windows hold p w_s / W of stream s, up or down by less
// than one (W = sum of the weights). Its window j = 0, 1, ... is due from position floor(j W / w_s) on, and before
// ceil((j + 1) W / w_s). At each position the turn is the stream's that must be first; of equals, the one named first.
// All repeats after W positions (weights in lowest terms), so a table of one period says which window has a position.
#pragma once
#include "tokenize.h"
#include <algorithm>

namespace baretrain {

struct TokenStream {
    Tokens tokens;
    long weight = 1;                                   // in lowest terms
};

struct Corpus {
    std::vector<TokenStream> train, val;
    Inputs inputs;                                     // as read, training files first
    size_t bytes = 0;                                  // of the files
    std::string hash;                                  // 64 bits in hex: tokens, weights, where validation begins
    std::string describe() const;                      // one line for the console
};

// data: files, folders and patterns (tokenize.h), separated by commas, are one stream: the documents of text files with
// <|endoftext|> between them, or token shards (.bin) one behind the other as they are, not both. With a weight behind
// each, "a/*.bin:0.7,b.txt:0.3", each is a stream of its own. A path may hold a colon that no number follows.
// val: the same without weights (left out of data), or a fraction: "0.1" is the last tenth of each stream's tokens, "0"
// or "" none. Validation reads all of it, once and in order. A stream has at least one window of seq + 1 tokens.
// Shards stay on the disk. They are read through once at the start: each id is checked, and hashed.
Corpus read_corpus(const std::string& data, const std::string& val, const Tokenizer& tokenizer, long seq,
                   int threads = 1);

// A micro-batch as the model sees it: N rows.
struct Rows {
    std::vector<int> tokens, targets, positions;       // N each; a target is the next token, or -1: not trained
    std::vector<int> documents = {0};                  // the rows where documents start, then N
    long trained() const;                              // targets that are not -1
    void append(const std::vector<int>& ids);          // a document more: each id but the first is a target
};

// A batch as JSON: lists of ids, each a document of 2 to longest + 1 ids below vocab.
Rows read_id_lists(const std::string& path, long vocab, long longest);

// What a data-parallel rank reads: micro-step i of a step that begins at `position` is ranks * batch windows long, and
// each rank takes the next `batch` of them. A step of n micro-steps moves the position by n * ranks * batch.
struct RankShare {
    long batch, rank = 0, ranks = 1;
    long first(long position, long micro_step) const { return position + (micro_step * ranks + rank) * batch; }
};

class Loader {
public:
    struct Place { size_t stream; long start; };       // which stream's, and its first token there
    Loader(std::vector<TokenStream> streams, long seq, uint64_t seed);
    long windows() const { return windows_; }          // of all streams; 0: no validation, or fewer than seq + 1 tokens
    Place place(long position) const;                  // of the window at this position of the sequence
    Rows rows(long position, long batch) const;        // the windows at position .. position + batch - 1, T rows each
    Rows in_order(long first_window, long batch) const;   // for validation: not shuffled, fewer windows at the end
private:
    struct Turn { size_t stream; long before; };       // how many of its windows come before it in the period
    long windows_of(const TokenStream& stream) const { return std::max(0L, stream.tokens.size() - 1) / seq_; }
    void append(Rows& rows, const Place& place) const;
    std::vector<TokenStream> streams_;
    std::vector<Turn> period_;
    long seq_, windows_ = 0;
    uint64_t seed_;
};

}  // namespace baretrain
