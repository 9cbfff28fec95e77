// tokenizer.h - text to token ids and back: byte-level BPE, in the files that Hugging Face's `tokenizers` opens.
// Copy with: tokenizer.cpp, bpe.h, files.h and what they name, nlohmann-json
// Ours have ids 0..255 for the bytes themselves, then the merged tokens, and last <|endoftext|>: between documents, and
// the prompt when there is none. The byte tokenizer is the one without merges.
#pragma once
#include "bpe.h"
#include <array>
#include <map>

namespace baretrain {

enum class Special { hide, show };                     // does decode() write special tokens out?
enum class Parse { ordinary, special };                // "<|endoftext|>" in a text: 13 bytes like others, or the token?

class Tokenizer {
public:
    static Tokenizer bytes() { return Tokenizer(whole_text(), {}); }
    static Tokenizer none(long vocab);                 // ids without texts, for token shards: encode() throws
    static Tokenizer from_json(const std::string& text, const std::string& where);   // where: for the errors
    Tokenizer(Splitter splitter, std::vector<Merge> merges);   // their results are 256, 257, ... as they come up
    long vocab() const { return long(pieces_.size()); }
    int end_of_text() const { return end_of_text_; }   // -1: no texts
    bool has_text() const { return end_of_text_ >= 0; }
    std::vector<int> encode(std::string_view text, Parse parse = Parse::ordinary) const;
    // Where a text may be cut in two that have the ids of the whole (Splitter, bpe.h).
    size_t next_cut(std::string_view text, size_t at) const { return splitter_.next_cut(text, at); }
    std::string decode(const std::vector<int>& ids, Special special = Special::hide) const;   // byte for byte
    const std::string& bytes_of(int id) const;         // that the token stands for; of <|endoftext|>: none
    uint64_t hash() const;                             // of all that decides the ids; none: 0
    std::map<std::string, std::string> files() const;  // name -> content: what a Hugging Face folder needs of us
private:
    Splitter splitter_;
    Merges merges_;
    std::vector<std::string> pieces_;                  // the bytes of each id
    std::array<int, 256> byte_id_{};
    int end_of_text_;
};

// "byte"; a folder or tokenizer.json of byte-level BPE that is cut into words as ours, or not at all; or "none", with
// so many ids.
Tokenizer load_tokenizer(const std::string& what, long ids_of_none = 0);
Tokenizer train_bpe(const WordCounts& words, long vocab);   // vocab counts the bytes and <|endoftext|> too

// Bytes come in any pieces, whole characters go out. Each maximal invalid part becomes one U+FFFD.
class Utf8Stream {
public:
    std::string push(std::string_view bytes);          // keeps the beginning of an incomplete character back
    std::string finish();                              // what was kept back will never be completed
    const std::string& pending() const { return pending_; }
private:
    std::string pending_;
};

}  // namespace baretrain
