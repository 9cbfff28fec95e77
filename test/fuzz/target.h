// target.h - what every libFuzzer target shares: the good files of a parser are its first corpus, its contract the test.
// Copy with: test/parsers.h and what it names
#pragma once
#include "test/parsers.h"

// A target that is given a folder puts the good files there before libFuzzer reads it.
#define BT_FUZZ(parser)                                                                                        \
    static const baretrain::test::Parser& parser_() {                                                          \
        static const baretrain::test::Parser p = baretrain::test::parser();                                    \
        return p;                                                                                              \
    }                                                                                                          \
    extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {                                             \
        for (size_t i = 0; i < parser_().good.size(); ++i)                                                     \
            for (char **word = *argv + 1; word < *argv + *argc; ++word)                                        \
                if (baretrain::test::fs::is_directory(*word))                                                  \
                    baretrain::test::put(*word + std::string("/good-") + std::to_string(i), parser_().good[i]); \
        return 0;                                                                                              \
    }                                                                                                          \
    extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t n) {                              \
        baretrain::test::refusal_of(parser_(), std::string(reinterpret_cast<const char*>(bytes), n));          \
        return 0;                                                                                              \
    }
