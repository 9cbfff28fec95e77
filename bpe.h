// bpe.h - byte-pair encoding without files: how a text is cut into words, how merges are learned, how they are applied.
// Copy with: bpe.cpp, device/error.h
// A word begins as bytes; a merge joins two neighbouring tokens to one. Merges never cross the border of a word.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace baretrain {

struct Splitter {
    std::string regex;                                 // the same rule, as tokenizer.json says it
    size_t (*first_word)(std::string_view text);       // how many bytes it has; text is not empty
    // The first place at or behind `at` where a text may be cut in two that have the same words as the whole; its size
    // if there is none. It is never inside of a special token's name.
    size_t (*next_cut)(std::string_view text, size_t at);
};
Splitter whole_text();                                 // a text is one word
Splitter plain_words();                                // the one that our own tokenizers are trained with

struct Merge { int left, right, result; };

class Merges {
public:
    explicit Merges(std::vector<Merge> ranked = {});   // the first has the lowest rank
    const std::vector<Merge>& ranked() const { return ranked_; }
    // Of all pairs that can be merged the one of the lowest rank is, of equal ones the leftmost, until there is none.
    // n log n in the length, without recursion. ids[from..] are the tokens of a word's bytes, and then of the word.
    void apply(std::vector<int>& ids, size_t from) const;
private:
    std::vector<Merge> ranked_;
    std::unordered_map<uint64_t, uint32_t> rank_;      // of a pair
};

struct TextHash : std::hash<std::string_view> { using is_transparent = void; };
using WordCounts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;
void count_words(WordCounts& counts, std::string_view text, long threads = 0);   // plain_words; threads 0: all cores

// The merges that make `tokens` new tokens, with ids from 256 on; ids below are the bytes. The pair that stands most
// often is merged, of equal ones that of the smaller left id, then right: as in Hugging Face's BpeTrainer.
std::vector<Merge> learn_merges(const WordCounts& words, long tokens);

}  // namespace baretrain
