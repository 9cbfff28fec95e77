// safetensors.h - reads and writes safetensors files; the reader checks the whole header before anything is read.
// Copy with: safetensors.cpp, files.h and what they name, nlohmann-json
//   file = length of the header (8 bytes), JSON header, data. The tensors tile the data: no gap, no overlap, no rest.
// The reader takes any bytes: it loads them or throws one line. The writer holds one tensor at a time, puts wide types
// first and starts the data at a multiple of 8, so every tensor is aligned. Hosts are little-endian.
#pragma once
#include "files.h"
#include <functional>
#include <map>

namespace baretrain {

struct TensorInfo {
    std::string name, dtype;                           // dtype as in the file: F32, BF16, F64, I64, ...
    std::vector<long> shape;
    size_t begin = 0, end = 0;                         // bytes within the data part
    size_t bytes() const { return end - begin; }
};

size_t dtype_bytes(const std::string& dtype);          // of one element; 0: unknown

class SafetensorsFile {
public:
    explicit SafetensorsFile(const std::string& path);
    const std::string& path() const { return file_.path(); }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }          // in file order
    const TensorInfo* find(const std::string& name) const;                       // null: not there
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    void read(const TensorInfo& tensor, void* to) const;                         // to: tensor.bytes() bytes
    void read(const TensorInfo& tensor, void* to, size_t from, size_t bytes) const;   // a part of them
private:
    InputFile file_;
    size_t data_ = 0;                                  // where the data part starts in the file
    std::vector<TensorInfo> tensors_;
    std::map<std::string, size_t> index_;
    std::map<std::string, std::string> metadata_;
};

// A tensor to be written; fetch copies its bytes to host memory. It may take several ranks: then one of them writes the
// file, and the others join_fetches(), with a null for `to`.
struct TensorSource {
    std::string name, dtype;
    std::vector<long> shape;
    std::function<void(void* to)> fetch;
};

// Synced when it returns; an error may leave a part of the file. Not atomic: write to a temporary name and rename.
Digest write_safetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                         const std::map<std::string, std::string>& metadata);
void join_fetches(const std::vector<TensorSource>& tensors);

}  // namespace baretrain
