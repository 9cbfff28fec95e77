// error.h - the two ways to fail. fail(): somebody gave us something wrong. require(): a caller broke a contract.
// Copy with: nothing
// Both throw Error with one line: what, where, found, expected, what to do. Headers never print or exit; main() does.
#pragma once
#include <source_location>
#include <stdexcept>
#include <string>

namespace baretrain {

using Where = std::source_location;

// A message may quote what a file or a flag says: a control character in it becomes a space, so that it is one line.
struct Error : std::runtime_error {
    explicit Error(const std::string& message) : std::runtime_error(one_line(message)) {}
private:
    static std::string one_line(std::string text) {
        for (char& c : text)
            if ((c >= 0 && c < ' ') || c == 127) c = ' ';
        return text;
    }
};

// The message already says which file, flag or tensor is meant; the source line would not help its reader.
[[noreturn]] inline void fail(const std::string& message) { throw Error(message); }

// A broken contract names the line that broke it: only a programmer reads it.
[[noreturn]] inline void fail_at(const std::string& message, Where at) {
    throw Error(std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": " + message);
}

inline void require(bool ok, const char* contract, Where at = Where::current()) {
    if (!ok) fail_at(std::string("broken contract: ") + contract, at);
}

// Equality has a form of its own because the two numbers are what the reader needs.
inline void require_equal(long a, long b, const char* contract, Where at = Where::current()) {
    if (a != b) fail_at(std::string(contract) + ": " + std::to_string(a) + " != " + std::to_string(b), at);
}

}  // namespace baretrain
