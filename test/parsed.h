// parsed.h - a reader of safetensors that knows nothing of ours: what another program finds in a file.
// Copy with: test/host.h, nlohmann-json
#pragma once
#include "host.h"
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace baretrain::test {

struct ParsedTensor {
    std::string dtype, bytes;
    std::vector<long> shape;
    bool operator==(const ParsedTensor&) const = default;
    // Of F32 and F64.
    std::vector<double> numbers() const {
        if (dtype == "F64") return as<double>();
        const std::vector<float> all = as<float>();
        return {all.begin(), all.end()};
    }
private:
    template <class T> std::vector<T> as() const {
        std::vector<T> all(bytes.size() / sizeof(T));
        std::memcpy(all.data(), bytes.data(), bytes.size());
        return all;
    }
};

// By name. The tensors cover the file.
inline std::map<std::string, ParsedTensor> parsed(const fs::path& path) {
    const std::string file = get(path);
    uint64_t length = 0;
    REQUIRE(file.size() >= 8);
    std::memcpy(&length, file.data(), 8);
    REQUIRE(8 + length <= file.size());
    std::map<std::string, ParsedTensor> tensors;
    size_t covered = 8 + length;
    const auto header = nlohmann::json::parse(file.substr(8, length));
    for (const auto& [name, t] : header.items()) {
        if (name == "__metadata__") continue;
        const size_t begin = t.at("data_offsets")[0], end = t.at("data_offsets")[1];
        REQUIRE(8 + length + end <= file.size());
        tensors[name] = {t.at("dtype"), file.substr(8 + length + begin, end - begin), t.at("shape")};
        covered += end - begin;
    }
    CHECK(covered == file.size());
    return tensors;
}

}  // namespace baretrain::test
