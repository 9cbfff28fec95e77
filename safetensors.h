// safetensors.h - reads and writes safetensors files; the reader checks the whole header before anything is read.
// Copy with: safetensors.cpp, device/error.h
//   file = length of the header (8 bytes), JSON header, data. The tensors tile the data: no gap, no overlap, no rest.
// The reader takes any bytes: it loads them or throws one line. The writer holds one tensor at a time, puts wide types
// first and starts the data at a multiple of 8, so every tensor is aligned. Hosts are little-endian.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace baretrain {

struct TensorInfo {
    std::string name, dtype;                           // dtype as in the file: F32, BF16, F64, I64, ...
    std::vector<long> shape;
    size_t begin = 0, end = 0;                         // bytes within the data part
    size_t bytes() const { return end - begin; }
};

// Reads on demand (not mapped: resident memory stays what the caller asked for).
class SafetensorsFile {
public:
    explicit SafetensorsFile(const std::string& path);
    ~SafetensorsFile();
    SafetensorsFile(const SafetensorsFile&) = delete;
    const std::string& path() const { return path_; }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }          // in file order
    const TensorInfo* find(const std::string& name) const;                       // null: not there
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    void read(const TensorInfo& tensor, void* to) const;                         // to: tensor.bytes() bytes
private:
    void read_header();
    std::string path_;
    int file_ = -1;
    size_t data_ = 0;                                  // where the data part starts in the file
    std::vector<TensorInfo> tensors_;
    std::map<std::string, size_t> index_;
    std::map<std::string, std::string> metadata_;
};

// Size and checksum of a file: enough to notice truncation and flipped bits, no protection against forgery.
struct Digest {
    size_t bytes = 0;
    uint64_t hash = 0xCBF29CE484222325;
    bool operator==(const Digest&) const = default;
};
Digest digest_of_file(const std::string& path);

// A file being written. Every failure is one line that names it; nothing is safe on the disk before close() returns.
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
    int file_ = -1;
    std::vector<char> buffer_;
    Digest digest_;
};

// A tensor to be written; fetch copies its bytes to host memory.
struct TensorSource {
    std::string name, dtype;
    std::vector<long> shape;
    std::function<void(void* to)> fetch;
};

// Synced when it returns; an error may leave a part of the file. Not atomic: write to a temporary name and rename.
Digest write_safetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace baretrain
