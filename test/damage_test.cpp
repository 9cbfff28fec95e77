// damage_test.cpp - every format cut at every byte and with bits of its head flipped, each value replaced: it loads, or is
// refused in one line. `make DEBUG=1 test SUITE=damage` tries every bit, under AddressSanitizer and UBSan.
#include "parsers.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t head = 1024;                          // bytes of a file that are damaged one by one
constexpr int every = 1;                               // which bits of them are flipped: all, or 0, 3 and 6
#else
constexpr size_t head = 256;
constexpr int every = 3;
#endif

struct Outcome { long loaded = 0, refused = 0; };

void try_one(const Parser& parser, const std::string& bytes, Outcome& outcome) {
    try {
        ++(refusal_of(parser, bytes).empty() ? outcome.loaded : outcome.refused);
    } catch (const std::exception& e) {
        FAIL_CHECK(parser.name << ": not an error of ours: " << std::string(e.what()) << " for: " << bytes.substr(0, 2000));
    }
}

// body(before, after) for each value in the head of a good file of JSON or TOML.
template <class Body> void for_each_value(const Parser& parser, Body body) {
    for (const std::string& good : parser.good)
        for (size_t at = good.find_first_of(":="); at < head; at = good.find_first_of(":=", at + 1))
            body(good.substr(0, at + 1) + " ", good.substr(std::min(good.size(), good.find_first_of(",}\n", at))));
}

}  // namespace

TEST_SUITE("damage") {

TEST_CASE("what is whole loads") {
    for (const Parser& parser : all_parsers())
        for (const std::string& good : parser.good) {
            CAPTURE(parser.name);
            CHECK(refusal_of(parser, good) == "");
        }
}

TEST_CASE("a file that is cut anywhere loads or is refused in one line") {
    for (const Parser& parser : all_parsers())
        for (const std::string& good : parser.good) {
            CAPTURE(parser.name);
            Outcome outcome;
            // Every byte of a short file and of its head; of what follows, places 61 bytes apart.
            for (size_t n = 0; n < good.size(); n += n < head ? 1 : 61) try_one(parser, good.substr(0, n), outcome);
            CHECK((outcome.refused > 0 || parser.name == "log"));   // a torn line of a log is cut off
            CHECK(refusal_of(parser, good) == "");     // nothing stays behind of what was refused
        }
}

TEST_CASE("brackets without end and zeros without end are refused in one line, wherever a file may hold a value") {
    const std::string open(200000, '['), objects = [] {
        std::string text;
        for (int i = 0; i < 200000; ++i) text += "{\"a\":";
        return text;
    }();
    const std::string closed = open + std::string(open.size(), ']');
    Outcome outcome;
    for (const Parser& parser : all_parsers()) {
        CAPTURE(parser.name);
        for (const std::string& all : {open, closed, objects, std::string(200000, '\0'), std::string(200000, '1')})
            try_one(parser, all, outcome);
        for_each_value(parser, [&](const std::string& before, const std::string& after) {
            try_one(parser, before + closed + after, outcome);
        });
    }
    CHECK(outcome.refused > 0);
}

TEST_CASE("a value of another type or size in the place of each value loads or is refused in one line") {
    Outcome outcome;
    for (const Parser& parser : all_parsers()) {
        CAPTURE(parser.name);
        for_each_value(parser, [&](const std::string& before, const std::string& after) {
            for (const char* value : {"null", "true", "0", "-1", "1.5", "1e999", "9223372036854775807",
                                      "18446744073709551615", "99999999999999999999", "\"\"", "\"a\\nb\"", "[]", "{}",
                                      "[1,\"\"]", "{\"a\\n\":1}", "\"\xFF\"", "'", ""})
                try_one(parser, before + value + after, outcome);
        });
        CHECK(refusal_of(parser, parser.good[0]) == "");
    }
    CHECK(outcome.refused > outcome.loaded);
}

TEST_CASE("a file with one bit flipped, or one byte that is zero or 255, loads or is refused in one line") {
    for (const Parser& parser : all_parsers())
        for (const std::string& good : parser.good) {
            CAPTURE(parser.name);
            Outcome outcome;
            for (size_t i = 0; i < std::min(good.size(), head); ++i) {
                std::string bad = good;
                for (int bit = 0; bit < 8; bit += every) {
                    bad[i] = char(good[i] ^ 1 << bit);
                    try_one(parser, bad, outcome);
                }
                for (const char byte : {'\0', '\xFF'}) {
                    bad[i] = byte;
                    try_one(parser, bad, outcome);
                }
            }
            CHECK(outcome.loaded + outcome.refused >= long(5 * std::min(good.size(), head)));
        }
}

}
