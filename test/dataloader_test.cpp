#include "dataloader.h"
#include "host.h"
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

using namespace baretrain;
using namespace baretrain::test;

namespace {

const Tokenizer byte = Tokenizer::bytes();

std::string error_of(const std::string& data, const std::string& val, long seq) {
    return test::error_of([&] { read_corpus(data, val, byte, seq); });
}

std::string text_of(const std::vector<uint16_t>& tokens) {
    return byte.decode({tokens.begin(), tokens.end()}, Special::show);
}

std::vector<uint16_t> counting(size_t n) {             // token i is i: a window tells where it came from
    std::vector<uint16_t> tokens(n);
    std::iota(tokens.begin(), tokens.end(), uint16_t(0));
    return tokens;
}

std::vector<long> starts(const Loader& loader, long position, long count) {
    std::vector<long> s;
    for (long p = position; p < position + count; ++p) s.push_back(loader.window_start(p));
    return s;
}

}  // namespace

TEST_SUITE("dataloader") {

TEST_CASE("a window is one document: inputs, the next tokens, positions from 0") {
    const auto tokens = counting(21);
    const Loader loader(tokens, 5, 1);
    const Rows r = loader.rows(2, 3);
    REQUIRE(r.tokens.size() == 15);
    REQUIRE(r.targets.size() == 15);
    REQUIRE(r.positions.size() == 15);
    CHECK(r.documents == std::vector<int>{0, 5, 10, 15});
    CHECK(r.trained() == 15);
    for (long n = 0; n < 15; ++n) {
        CHECK(r.positions[size_t(n)] == n % 5);
        CHECK(r.tokens[size_t(n)] == loader.window_start(2 + n / 5) + n % 5);
        CHECK(r.targets[size_t(n)] == r.tokens[size_t(n)] + 1);
    }
    Rows masked = r;
    masked.targets[3] = masked.targets[9] = -1;
    CHECK(masked.trained() == 13);
}

TEST_CASE("every window comes exactly once an epoch, and each epoch has another order") {
    for (long windows : {1, 2, 3, 7, 64, 100, 1000})
        for (long slack : {0, 3}) {
            CAPTURE(windows);
            const auto tokens = counting(size_t(windows * 4 + 1 + slack));
            const Loader loader(tokens, 4, 7);
            REQUIRE(loader.windows() == windows);
            std::set<std::vector<long>> orders;
            for (long epoch = 0; epoch < 5; ++epoch) {
                std::vector<long> s = starts(loader, epoch * windows, windows);
                orders.insert(s);
                std::sort(s.begin(), s.end());
                CHECK(s[0] >= 0);
                CHECK(s[0] <= slack);
                for (long w = 0; w < windows; ++w) CHECK(s[size_t(w)] == s[0] + 4 * w);
            }
            if (windows >= 64) CHECK(orders.size() == 5);
        }
}

TEST_CASE("all orders of three windows are equally likely, and all offsets") {
    const auto tokens = counting(3 * 4 + 1 + 3);
    const Loader loader(tokens, 4, 42);
    std::map<std::vector<long>, int> orders;
    std::map<long, int> offsets;
    const int epochs = 6000;
    for (long epoch = 0; epoch < epochs; ++epoch) {
        std::vector<long> s = starts(loader, epoch * 3, 3);
        const long offset = *std::min_element(s.begin(), s.end());
        ++offsets[offset];
        for (long& start : s) start = (start - offset) / 4;
        ++orders[s];
    }
    CHECK(orders.size() == 6);                         // 1000 each, standard deviation 29
    for (const auto& [order, count] : orders) CHECK(std::abs(count - 1000) < 150);
    CHECK(offsets.size() == 4);                        // 1500 each, standard deviation 34
    for (const auto& [offset, count] : offsets) CHECK(std::abs(count - 1500) < 170);
}

TEST_CASE("no place of an epoch prefers a window") {
    const auto tokens = counting(11);
    const Loader loader(tokens, 1, 3);
    std::vector<std::vector<int>> seen(10, std::vector<int>(10));
    for (long p = 0; p < 50000; ++p) ++seen[size_t(p % 10)][size_t(loader.window_start(p))];
    for (const auto& place : seen)                     // 500 each, standard deviation 21
        for (int count : place) CHECK(std::abs(count - 500) < 110);
}

TEST_CASE("the order is another one with another seed and the same one with the same") {
    const auto tokens = counting(400);
    const Loader a(tokens, 4, 1), b(tokens, 4, 2), again(tokens, 4, 1);
    CHECK(starts(a, 0, 300) == starts(again, 0, 300));
    CHECK(starts(a, 0, 99) != starts(b, 0, 99));
}

TEST_CASE("the smallest texts have one window, two windows, two with a shift") {
    const long T = 8;
    const std::pair<long, long> cases[] = {{T + 1, 1}, {2 * T, 1}, {2 * T + 1, 2}, {2 * T + 2, 2}, {3 * T, 2}};
    for (const auto& [size, windows] : cases) {
        CAPTURE(size);
        const auto tokens = counting(size_t(size));
        const Loader loader(tokens, T, 5);
        CHECK(loader.windows() == windows);
        std::set<long> first;
        for (long epoch = 0; epoch < 200; ++epoch) {
            const Rows r = loader.rows(epoch * windows, windows);
            CHECK(*std::max_element(r.targets.begin(), r.targets.end()) < size);
            first.insert(*std::min_element(r.tokens.begin(), r.tokens.end()));
        }
        CHECK(long(first.size()) == size - windows * T);   // every offset 0 .. slack was used
    }
    const auto small = counting(size_t(T));
    for (const auto& few : {small, counting(1), counting(0)})
        for (long seq : {1L, T})
            if (long(few.size()) <= seq) {             // no window: fine for validation, and nothing to train on
                const Loader none(few, seq, 5);
                CHECK(none.windows() == 0);
                CHECK(none.in_order(0, 2).tokens.empty());
                CHECK_THROWS_AS(none.rows(0, 1), Error);
            }
}

TEST_CASE("a run that stops and resumes sees the windows of the run that never stopped") {
    const auto tokens = counting(10 * 6 + 1 + 4);      // 10 windows, batches of 2: stops inside epochs 0, 1 and 2
    const auto batches = [&](const Loader& loader, long from, long to) {
        std::vector<std::vector<int>> list;
        for (long step = from; step < to; ++step) list.push_back(loader.rows(step * 2, 2).tokens);
        return list;
    };
    const auto whole = batches(Loader(tokens, 6, 9), 0, 15);
    for (long stop : {3, 7, 12}) {
        CAPTURE(stop);
        auto list = batches(Loader(tokens, 6, 9), 0, stop);
        const auto rest = batches(Loader(tokens, 6, 9), stop, 15);
        list.insert(list.end(), rest.begin(), rest.end());
        CHECK(list == whole);
    }
    const Loader backwards(tokens, 6, 9);              // and the way there does not matter
    for (long step = 14; step >= 0; --step) CHECK(backwards.rows(step * 2, 2).tokens == whole[size_t(step)]);
    const Loader odd(tokens, 6, 9);                    // one batch over the border of two epochs
    CHECK(odd.rows(9, 2).tokens[0] == whole[4][6]);
    CHECK(odd.rows(9, 2).tokens[6] == whole[5][0]);
}

TEST_CASE("validation goes through the windows in order and ends with what is left") {
    const auto tokens = counting(5 * 4 + 1 + 2);
    const Loader loader(tokens, 4, 1);
    CHECK(loader.in_order(0, 2).tokens == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(loader.in_order(0, 2).targets == std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8});
    const Rows last = loader.in_order(4, 2);
    CHECK(last.tokens == std::vector<int>{16, 17, 18, 19});
    CHECK(last.documents == std::vector<int>{0, 4});
    CHECK(loader.in_order(5, 2).tokens.empty());
    CHECK(loader.in_order(5, 2).documents == std::vector<int>{0});
}

TEST_CASE("documents come in order with end-of-text between them") {
    const TempFolder f;
    const std::string a = f.put("a.txt", "first"), b = f.put("b.txt", "second");
    const Corpus c = read_corpus(b + "," + a, "", byte, 4);
    CHECK(text_of(c.train) == "second<|endoftext|>first");
    CHECK(c.train.size() == 12);
    CHECK(c.val.empty());
    CHECK(c.bytes == 11);
    CHECK(c.files == std::vector<std::string>{b, a});
    CHECK(c.describe() == "2 files, 11 bytes: 12 training tokens, no validation, hash " + c.hash);
    CHECK(text_of(read_corpus(a, "0", byte, 4).train) == "first");
}

TEST_CASE("a folder gives its text files by path, without what is hidden, built or binary") {
    const TempFolder f;
    f.put("b.txt", "BBBB");
    f.put("a/z.txt", "ZZZZ");
    f.put("a/a.md", "AAAA");
    f.put("utf8.txt", "\xC3\xA9\xE2\x82\xAC");
    const std::string long_text((64 << 10) - 1, 'x');
    f.put("z_cut.txt", long_text + "\xC3\xA9");      // a character over the border of the 64 KB that are looked at
    f.put("z_torn.txt", "abc\xC3");                  // a whole file that ends inside a character
    for (const char* name : {".hidden", ".git/x", "out/x", "a/build/x", "third_party/x", "node_modules/x/y"})
        f.put(name, "NO");
    f.put("zero.bin", std::string("ab\0cd", 5));
    f.put("latin1.txt", "caf\xE9 noir");
    f.put("empty.txt", "");
    fs::create_symlink("nowhere", f.path / "dangling");
    const Corpus c = read_corpus(f.path.string(), "", byte, 4);
    const std::vector<std::string> expected = {f / "a/a.md", f / "a/z.txt", f / "b.txt", f / "utf8.txt",
                                               f / "z_cut.txt"};
    CHECK(c.files == expected);
    CHECK(read_corpus(f / "out", "", byte, 1).files == std::vector<std::string>{f / "out/x"});   // asked for by name
}

TEST_CASE("runs inside a data folder are not data, unless one is asked for by name") {
    const TempFolder f;
    f.put("a.txt", "some text");
    const std::string hash = read_corpus(f.path.string(), "", byte, 4).hash;
    f.put("runs/first/log.jsonl", "{}");
    f.put("runs/first/config.toml", "lr = 1");
    f.put("runs/first/step-000100/config.json", "{}");
    CHECK(read_corpus(f.path.string(), "", byte, 4).hash == hash);
    CHECK(read_corpus(f / "runs/first", "", byte, 1).files.size() == 3);
    f.put("runs/notes.txt", "more text");
    CHECK(read_corpus(f.path.string(), "", byte, 4).hash != hash);
}

TEST_CASE("validation is a fraction at the end, or files that are then not trained on") {
    const TempFolder f;
    const std::string a = f.put("d/a.txt", "0123456789abcdefghij"), b = f.put("d/b.txt", "validation");
    const Corpus tenth = read_corpus(a, "0.25", byte, 4);
    CHECK(text_of(tenth.train) == "0123456789abcde");
    CHECK(text_of(tenth.val) == "fghij");
    const Corpus apart = read_corpus(f / "d", f / "d/../d/b.txt", byte, 4);
    CHECK(text_of(apart.train) == "0123456789abcdefghij");
    CHECK(text_of(apart.val) == "validation");
    CHECK(apart.describe() ==
          "2 files, 30 bytes: 20 training tokens, 10 validation tokens, hash " + apart.hash);
    CHECK(error_of(b, f / "d", 4) == "--data " + b + ": all of it is in --val " + (f / "d") + " too; nothing is left");
}

TEST_CASE("the hash knows the tokens, their order and where validation begins") {
    const TempFolder f;
    const std::string a = f.put("a", "abcdefgh"), b = f.put("b", "abcdefhg"), copy = f.put("c", "abcdefgh");
    const std::string hash = read_corpus(a, "0", byte, 2).hash;
    CHECK(hash.size() == 16);
    CHECK(hash.find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(hash == read_corpus(copy, "", byte, 4).hash);
    CHECK(hash != read_corpus(b, "0", byte, 2).hash);
    CHECK(hash != read_corpus(a, "0.5", byte, 2).hash);
}

TEST_CASE("what can't be trained on is refused in one line before anything else") {
    const TempFolder f;
    const std::string text = f.put("t.txt", std::string(40, 'x')), empty = f.put("empty.txt", "");
    fs::create_directories(f.path / "bare/.git");
    CHECK(error_of(f / "none", "", 4) == "--data " + (f / "none") + ": no such file or folder");
    CHECK(error_of(text, f / "none", 4) == "--val " + (f / "none") + ": no such file or folder");
    CHECK(error_of(text + ",", "", 4).find("an empty name; ") != std::string::npos);
    CHECK(error_of(f / "bare", "", 4) == "--data " + (f / "bare") + ": the folder holds no text file");
    CHECK(error_of(empty, "", 4) == empty + ": is empty; give a file with text");
    CHECK(error_of(text, "", 40) ==
          text + ": 40 tokens are too few: a window of --seq 40 needs 41; give more text or a smaller --seq");
    CHECK(error_of(text, "", 39) == "");
    CHECK(error_of(text, "0.1", 36) == text + " without its --val 0.1: 36 tokens are too few: a window of --seq 36 "
                                              "needs 37; give more text or a smaller --seq");
    CHECK(error_of(text, "0.1", 4) == "--val 0.1 of " + text + ": 4 tokens are too few: a window of --seq 4 needs 5; "
                                      "give more, a smaller --seq, or --val 0 for no validation");
    CHECK(error_of(text, "0.125", 4) == "");
    for (const char* fraction : {"1", "1.5", "-0.1", "nan"}) {
        CAPTURE(fraction);
        CHECK(error_of(text, fraction, 4).find("a fraction is at least 0 and below 1") != std::string::npos);
    }
}

}  // TEST_SUITE
