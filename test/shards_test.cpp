// shards_test.cpp - ids come back as they were, from memory and from shards of both widths; no damaged shard is read.
#include "shards.h"
#include "host.h"
#include <cstring>
#include <numeric>

using namespace baretrain;
using namespace baretrain::test;

namespace {

const Vocabulary small{50, 0x1234567890ABCDEF};

std::string write(const std::string& path, const std::vector<int>& ids, const Vocabulary& vocabulary) {
    ShardWriter writer(path, vocabulary);
    writer.append(ids);
    CHECK(writer.close() == long(ids.size()));
    CHECK(!fs::exists(path + ".tmp"));
    return path;
}

Tokens read(const std::string& path, const Vocabulary& vocabulary) {
    Tokens tokens(vocabulary.size);
    tokens.append(open_shard(path, vocabulary));
    return tokens;
}

std::vector<int> all(const Tokens& tokens) { return tokens.read(0, tokens.size()); }

std::vector<int> counting(int n) {
    std::vector<int> ids(static_cast<size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

// The file that llm.c's scripts write: three fields, the rest 0.
std::string llmc(const std::vector<uint32_t>& fields, const std::vector<uint16_t>& ids) {
    std::string bytes(1024 + 2 * ids.size(), '\0');
    std::memcpy(bytes.data(), fields.data(), 4 * fields.size());
    if (!ids.empty()) std::memcpy(bytes.data() + 1024, ids.data(), 2 * ids.size());
    return bytes;
}

std::string set(std::string bytes, size_t field, uint32_t value) {
    std::memcpy(bytes.data() + 4 * field, &value, 4);
    return bytes;
}

}  // namespace

TEST_SUITE("shards") {

TEST_CASE("C11: ids of 65,535, 65,536 and 65,537 come back, in 16 bits as long as the vocabulary allows") {
    const TempFolder f;
    for (long vocab : {65535L, 65536L, 65537L, 70001L}) {
        CAPTURE(vocab);
        const std::vector<int> ids = {0, int(vocab - 1), 1, int(vocab - 2)};
        const size_t width = vocab > 65536 ? 4 : 2;
        const std::string path = write(f / "t.bin", ids, {vocab});
        CHECK(get(path).size() == 1024 + 4 * width);
        CHECK(all(read(path, {vocab})) == ids);
        CHECK(all(Tokens(vocab, ids)) == ids);
        for (int id : {int(vocab), int(vocab) + 65536, -1}) {   // neither the writer nor memory takes what is too big
            CAPTURE(id);
            ShardWriter writer(f / "w.bin", {vocab});
            writer.append({1, 2});
            const std::string says = "token 3 is id " + std::to_string(unsigned(id)) + ", but the vocabulary has " +
                                     std::to_string(vocab) + " ids (from 0); ";
            CHECK(contains(error_of([&] { writer.append({0, id}); }), (f / "w.bin: ") + says));
            CHECK(contains(error_of([&] { Tokens(vocab, {0, 1, 2, id}); }), "text: " + says));
        }
    }
    CHECK(all(read(write(f / "t.bin", {70000}, {70001}), {70001})) == std::vector<int>{70000});
}

TEST_CASE("C12: an id that the vocabulary does not have stops the reader with file, position and id") {
    const TempFolder f;
    std::vector<int> ids(101, 7);
    ids[50] = 57;
    const std::string path = write(f / "t.bin", ids, {58}), wide = write(f / "w.bin", {3, 70000, 3}, {70001});
    const Tokens tokens = read(path, {50});
    CHECK(error_of([&] { all(tokens); }) ==
          path + ": token 50 is id 57, but the vocabulary has 50 ids (from 0); give the --tokenizer that it was made "
                 "with (none: ids alone), or make it again");
    CHECK(error_of([&] { tokens.read(0, 50), tokens.read(51, 101); }).empty());
    CHECK(contains(error_of([&] { tokens.range(40, 90).read(5, 20); }), "token 50 is id 57"));
    CHECK(contains(error_of([&] { all(read(wide, {50})); }), "token 1 is id 70000"));
    put(wide, get(wide).substr(0, 1024) + std::string(12, '\xFF'));   // 2^32 - 1, which is -1 as an int
    CHECK(contains(error_of([&] { all(read(wide, {70001})); }), "token 0 is id 4294967295"));
}

TEST_CASE("the header is llm.c's, with the width, the vocabulary and the tokenizer in fields that llm.c leaves 0") {
    const TempFolder f;
    const auto fields = [](const std::string& path) {
        std::vector<uint32_t> h(256);
        std::memcpy(h.data(), get(path).data(), 1024);
        return h;
    };
    std::vector<uint32_t> h = fields(write(f / "t.bin", {1, 2, 3}, small)), expected(256);
    const uint32_t narrow[] = {20240520, 1, 3, 16, 50, 0x90ABCDEF, 0x12345678}, wide[] = {20240801, 7, 1, 32, 65537};
    std::copy(std::begin(narrow), std::end(narrow), expected.begin());
    CHECK(h == expected);
    expected.assign(256, 0);
    std::copy(std::begin(wide), std::end(wide), expected.begin());
    CHECK(fields(write(f / "t.bin", {65536}, {65537})) == expected);

    const std::string plain = f.put("plain.bin", llmc({20240520, 1, 3}, {4, 5, 6}));   // nothing but a width is known
    CHECK(all(read(plain, small)) == std::vector<int>{4, 5, 6});
    const std::string llama = f.put("llama.bin", llmc({20240801, 7, 2}, {1, 2, 3, 0}));
    CHECK(all(read(llama, {200000})) == std::vector<int>{131073, 3});
    CHECK(all(read(write(f / "t.bin", {}, small), small)).empty());
}

TEST_CASE("C13: a shard of another version, width, length or tokenizer is refused, and how to rebuild it said") {
    const TempFolder f;
    const std::string path = write(f / "t.bin", counting(48), small), good = get(path);
    const std::string again = "make it again: train_gpt tokenize --tokenizer T IN... -o " + path;
    const auto check = [&](const std::string& bytes, const std::string& says) {
        put(path, bytes);
        CHECK(error_of([&] { open_shard(path, small); }) == path + ": " + says + (says.ends_with("or ") ? "" : "; ") + again);
    };
    const std::string magics = " is not a token shard's: 20240520 (16-bit ids) or 20240801 (32-bit ids); text needs a "
                               "name that does not end in .bin";
    check(set(good, 0, 20240521), "magic 20240521" + magics);
    check(std::string(2000, 'x'), "magic 2021161080" + magics);
    check(set(good, 1, 2), "version 2, expected 1");
    check(set(set(good, 0, 20240801), 1, 7), "ids of 16 bits, but its magic says 32");
    check(set(good, 3, 32), "ids of 32 bits, but its magic says 16");
    check(good.substr(0, good.size() - 1), "the header says 48 ids, the file holds 47: it is cut off");
    check(set(good, 2, 49), "the header says 49 ids, the file holds 48: it is cut off");
    check(set(good, 2, 0xFFFFFFFF), "the header says 4294967295 ids, the file holds 48: it is cut off");
    check(set(good, 7, 0x80000000), "the header says 9223372036854775856 ids, the file holds 48: it is cut off");
    check(good + "x", "1 bytes behind its 48 ids");
    check(set(good, 2, 47), "2 bytes behind its 47 ids");
    check(set(good, 5, 1), "made with tokenizer 1234567800000001 of 50 ids, but this one is 1234567890abcdef of 50; "
                           "give the --tokenizer that it was made with, or ");
    check("", "0 bytes are no token shard: its header alone has 1024");
    put(path, good);
    CHECK(all(read(path, small)) == counting(48));
    CHECK(error_of([&] { open_shard(path, {50}); }).empty());       // a tokenizer that has no hash fits
    CHECK(contains(error_of([&] { open_shard(f / "none.bin", small); }), "none.bin: cannot be opened: "));
    CHECK(contains(error_of([&] { open_shard(f.path.string(), small); }), "is not a file"));
}

TEST_CASE("C13: every prefix of a shard is refused, and so is every count but the right one") {
    const TempFolder f;
    const std::string path = write(f / "t.bin", counting(20), small), good = get(path);
    for (size_t n = 0; n < good.size(); ++n) {
        put(path, good.substr(0, n));
        CHECK(error_of([&] { open_shard(path, small); }) != "");
    }
    for (uint32_t n = 0; n < 100; ++n) {
        put(path, set(good, 2, n));
        CHECK(error_of([&] { open_shard(path, small); }).empty() == (n == 20));
    }
}

TEST_CASE("a writer that is cut off leaves no shard, and the old one as it was") {
    const TempFolder f;
    const std::string path = write(f / "t.bin", {1, 2}, small);
    {
        ShardWriter writer(path, small);
        writer.append(counting(50));
        CHECK(error_of([&] { open_shard(path + ".tmp", small); }) != "");
    }
    CHECK(all(read(path, small)) == std::vector<int>{1, 2});
    CHECK(!fs::exists(path + ".tmp"));
    CHECK(contains(error_of([&] { ShardWriter(f / "no/t.bin", small); }), ".tmp: cannot be created"));
    fs::create_directories(f.path / "d.bin/x");
    ShardWriter onto(f / "d.bin", small);
    CHECK(error_of([&] { onto.close(); }) == (f / "d.bin") + ": cannot be written: Is a directory");
}

TEST_CASE("A11: a shard of more than 2^32 ids is read at its end") {
    const TempFolder f;
    const long n = (1L << 32) + 5;
    const std::string path = f.put("t.bin", set(llmc({20240520, 1, 5}, {}), 7, 1));
    fs::resize_file(path, size_t(1024 + 2 * n));       // a hole: it takes no room on the disk
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(1024 + 2 * (n - 1)).put(9);
    const Tokens tokens = read(path, small);
    CHECK(tokens.size() == n);
    CHECK(tokens.read(n - 2, n) == std::vector<int>{0, 9});
    CHECK(tokens.range(n - 3, n).read(1, 3) == std::vector<int>{0, 9});
}

TEST_CASE("a sequence of memory and shards reads as one, in any range and range of a range") {
    const TempFolder f;
    const std::vector<int> ids = counting(40);
    Tokens tokens(50, {ids.begin(), ids.begin() + 7});
    tokens.append(std::vector<int>{});
    tokens.append(std::vector<int>(ids.begin() + 7, ids.begin() + 10));
    tokens.append(open_shard(write(f / "a.bin", {ids.begin() + 10, ids.begin() + 15}, small), small));
    tokens.append(open_shard(write(f / "none.bin", {}, small), small));
    tokens.append(open_shard(write(f / "b.bin", {ids.begin() + 15, ids.begin() + 16}, small), small));
    tokens.append(std::vector<int>(ids.begin() + 16, ids.end()));
    REQUIRE(tokens.size() == 40);
    for (long begin = 0; begin <= 40; ++begin)
        for (long end = begin; end <= 40; ++end) {
            const std::vector<int> expected(ids.begin() + begin, ids.begin() + end);
            CHECK(tokens.read(begin, end) == expected);
            const Tokens part = tokens.range(begin, end);
            CHECK(part.size() == end - begin);
            CHECK(all(part) == expected);
            CHECK(all(part.range(part.size() / 3, part.size())) ==
                  std::vector<int>(expected.begin() + part.size() / 3, expected.end()));
        }
    CHECK_THROWS_AS(tokens.read(0, 41), Error);
    CHECK_THROWS_AS(tokens.range(-1, 3), Error);
}

TEST_CASE("what is appended to a range or a copy is not seen by others, and long texts keep every id") {
    Tokens whole(50, {1, 2, 3, 4});
    Tokens part = whole.range(0, 2), copy = whole;
    part.append({7});
    copy.append({8});
    whole.append({9});
    CHECK(all(part) == std::vector<int>{1, 2, 7});
    CHECK(all(copy) == std::vector<int>{1, 2, 3, 4, 8});
    CHECK(all(whole) == std::vector<int>{1, 2, 3, 4, 9});
    Tokens kept(50);
    kept = Tokens(50, {1, 2, 3, 4}).range(1, 3);       // the only one that sees that memory now
    kept.append({5});
    CHECK(all(kept) == std::vector<int>{2, 3, 5});

    const std::vector<int> ids = counting(2'500'000);  // more than one piece of memory
    Tokens tokens(3'000'000, {ids.begin(), ids.begin() + 600'000});
    tokens.append({ids.begin() + 600'000, ids.end()});
    CHECK(all(tokens) == ids);
}

}  // TEST_SUITE
