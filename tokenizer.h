// tokenizer.h - text to token ids and back: byte-level, 257 ids, and the files that Hugging Face's `tokenizers` opens.
// Copy with: tokenizer.cpp, files.h and what they name, nlohmann-json
// Ids 0..255 are the bytes themselves, 256 is <|endoftext|>: between documents, and the prompt when there is none.
// encode() reads plain text: "<|endoftext|>" in it is 13 bytes, never id 256. Other tokenizers are refused in one line.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace baretrain {

enum class Special { hide, show };                     // does decode() write special tokens out?

class Tokenizer {
public:
    static Tokenizer bytes() { return {}; }
    long vocab() const { return 257; }
    int end_of_text() const { return 256; }
    std::vector<int> encode(std::string_view text) const;
    std::string decode(const std::vector<int>& ids, Special special = Special::hide) const;   // byte for byte
    std::map<std::string, std::string> files() const;  // name -> content: what a Hugging Face folder needs of us
};

// "byte", or a folder or tokenizer.json that holds the byte tokenizer.
Tokenizer load_tokenizer(const std::string& what);

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
