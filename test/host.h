// host.h - what host-only tests share: a folder of their own, files put and read, and the line of an error.
// Copy with: device/error.h
#pragma once
#include "device/error.h"
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

namespace baretrain::test {

namespace fs = std::filesystem;

inline std::string put(const fs::path& path, const std::string& bytes) {   // returns the path
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
}
inline std::string get(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

struct TempFolder {
    fs::path path = fs::temp_directory_path() / ("baretrain_test_" + std::to_string(std::random_device()()));
    TempFolder() { fs::create_directories(path); }
    ~TempFolder() { fs::remove_all(path); }
    std::string operator/(const std::string& name) const { return (path / name).string(); }
    std::string put(const std::string& name, const std::string& bytes) const { return test::put(path / name, bytes); }
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
inline size_t count(const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

// The message of the error, which is one line, or nothing.
template <class Body> std::string error_of(Body body) {
    try {
        body();
        return "";
    } catch (const Error& e) {
        CHECK(!contains(e.what(), "\n"));
        return e.what();
    }
}

}  // namespace baretrain::test
