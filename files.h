// files.h - what all host code shares: files read and written whole, their checksums, and numbers as short texts.
// Copy with: files.cpp, device/error.h
// Every failure is one line that names the file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace baretrain {

// complaint: what the error says instead of "cannot be opened" and why.
std::string read_text(const std::string& path, const std::string& complaint = "");
void write_whole(const std::string& path, const std::string& text);   // as path.tmp, synced, then renamed
// write(path.tmp), then its name; when write() throws, nothing stays and path is as it was.
void replace_file(const std::string& path, const std::function<void(const std::string&)>& write);

// A file or folder that is being built: what lies under this name goes, unless it has another name by then.
struct Building {
    const std::string path;
    ~Building();
};
void change_folders(const std::function<void()>& body);   // what std::filesystem throws becomes one line

// FNV-1a over 64-bit words.
struct Hash {
    uint64_t value = 0xCBF29CE484222325;
    void add(uint64_t word) { value = (value ^ word) * 0x100000001B3; }
};
std::string hex(uint64_t hash);                        // all 16 digits

// Size and checksum of a file: enough to notice truncation and flipped bits, no protection against forgery.
struct Digest {
    size_t bytes = 0;
    uint64_t hash = Hash().value;
    bool operator==(const Digest&) const = default;
};
Digest digest_of_file(const std::string& path);

// A plain file, read on demand (not mapped: resident memory stays what the caller asked for).
class InputFile {
public:
    explicit InputFile(const std::string& path);
    ~InputFile();
    InputFile(const InputFile&) = delete;
    const std::string& path() const { return path_; }
    size_t bytes() const { return bytes_; }
    void read(void* to, size_t bytes, size_t from) const;
private:
    std::string path_;
    int file_;
    size_t bytes_ = 0;
};

// A file being written; nothing is safe on the disk before close() returns.
class OutputFile {
public:
    explicit OutputFile(const std::string& path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    void write(const void* from, size_t bytes);
    Digest close();
private:
    void flush();
    std::string path_;
    int file_;
    std::vector<char> buffer_;
    Digest digest_;
};

template <class... Args> std::string format(const char* form, Args... args) {   // as printf
    std::string text(size_t(std::snprintf(nullptr, 0, form, args...)), '\0');
    std::snprintf(text.data(), text.size() + 1, form, args...);
    return text;
}
// json::parse(text, shallow): the library goes down into a value by recursion, and brackets can be had by the million.
inline constexpr auto shallow = [](int depth, auto, auto&) { return depth < 64; };   // what lies deeper is left out
std::string short_number(double v);                    // 999, 31.2k, 1.2M
std::optional<double> number_in(const std::string& text);   // if the whole of it is one

}  // namespace baretrain
