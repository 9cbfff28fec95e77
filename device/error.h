// error.h - the two ways to fail. fail(): somebody gave us something wrong. require(): a caller broke a contract.
// Copy with: nothing
// Both throw Error with one line: what, where, found, expected, what to do. Headers never print or exit; main() does.
#pragma once
#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace baretrain {

using Where = std::source_location;

#if defined(BT_CHECKED)
inline constexpr bool checked_build = true;            // make DEBUG=1
#else
inline constexpr bool checked_build = false;
#endif

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

// One text: strings as they are and whole numbers in decimal, one behind the other.
template <class... Parts> std::string concat(const Parts&... parts) {
    std::string all;
    const auto add = [&all](const auto& part) {
        if constexpr (std::is_integral_v<std::decay_t<decltype(part)>>) all += std::to_string(part);
        else all.append(part);
    };
    (add(parts), ...);
    return all;
}

// The message already says which file, flag or tensor is meant; the source line would not help its reader.
template <class... Parts> [[noreturn]] void fail(const Parts&... parts) { throw Error(concat(parts...)); }

// A broken contract names the line that broke it: only a programmer reads it.
[[noreturn]] inline void fail_at(const std::string& message, Where at) {
    throw Error(concat(at.file_name(), ":", at.line(), ": ", message));
}

inline void require(bool ok, const char* contract, Where at = Where::current()) {
    if (!ok) fail_at(concat("broken contract: ", contract), at);
}

// Equality has a form of its own because the two numbers are what the reader needs.
inline void require_equal(long a, long b, const char* contract, Where at = Where::current()) {
    if (a != b) fail_at(concat(contract, ": ", a, " != ", b), at);
}

}  // namespace baretrain
