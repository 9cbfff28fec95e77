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

std::vector<int> all(const Tokens& tokens) { return tokens.read(0, tokens.size()); }
std::string text_of(const std::vector<TokenStream>& streams) {   // a | between streams
    std::string text;
    for (const TokenStream& s : streams) text += (text.empty() ? "" : "|") + byte.decode(all(s.tokens), Special::show);
    return text;
}

std::vector<TokenStream> counting(size_t n) {          // token i is i: a window tells where it came from
    std::vector<int> ids(n);
    std::iota(ids.begin(), ids.end(), 0);
    return {{Tokens(100'000, ids)}};
}

std::vector<long> starts(const Loader& loader, long position, long count) {
    std::vector<long> s;
    for (long p = position; p < position + count; ++p) s.push_back(loader.place(p).start);
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
        CHECK(r.tokens[size_t(n)] == loader.place(2 + n / 5).start + n % 5);
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
    for (long p = 0; p < 50000; ++p) ++seen[size_t(p % 10)][size_t(loader.place(p).start)];
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
            if (few[0].tokens.size() <= seq) {             // no window: fine for validation, and nothing to train on
                const Loader none(few, seq, 5);
                CHECK(none.windows() == 0);
                CHECK(none.in_order(0, 2).tokens.empty());
                CHECK_THROWS_AS(none.rows(0, 1), Error);
            }
}

TEST_CASE("A7: behind a prompt of one token, an answer of three and its end are four targets, none of them lost") {
    const int p = 7, a1 = 11, a2 = 12, a3 = 13, end = 256;
    const Rows rows = Loader({{Tokens(257, {p, a1, a2, a3, end})}}, 4, 1).in_order(0, 1);
    CHECK(rows.tokens == std::vector<int>{p, a1, a2, a3});
    CHECK(rows.targets == std::vector<int>{a1, a2, a3, end});
    CHECK(rows.trained() == 4);
}

TEST_CASE("C1: a run resumed at any step of epochs 1, 2 and 3 sees the windows of the run that never stopped") {
    const auto one = counting(10 * 6 + 1 + 4);         // 10 windows, batches of 2
    auto two = counting(4 * 6 + 1);
    two[0].weight = 3;
    two.push_back({one[0].tokens, 2});
    for (const auto& streams : {one, two}) {
        const auto batches = [&](long from, long to) {
            const Loader loader(streams, 6, 9);
            std::vector<std::vector<int>> list;
            for (long step = from; step < to; ++step) list.push_back(loader.rows(step * 2, 2).tokens);
            return list;
        };
        const auto whole = batches(0, 20);
        for (long stop = 1; stop < 20; ++stop) {
            auto list = batches(0, stop);
            const auto rest = batches(stop, 20);
            list.insert(list.end(), rest.begin(), rest.end());
            CHECK(list == whole);
        }
        const Loader backwards(streams, 6, 9);         // and the way there does not matter
        for (long step = 19; step >= 0; --step) CHECK(backwards.rows(step * 2, 2).tokens == whole[size_t(step)]);
        const Loader odd(streams, 6, 9);               // one batch over the border of two epochs
        CHECK(odd.rows(9, 2).tokens[0] == whole[4][6]);
        CHECK(odd.rows(9, 2).tokens[6] == whole[5][0]);
    }
}

TEST_CASE("C9: ranks are disjoint, together they read each window once an epoch, and each epoch has another order") {
    const Loader loader(counting(12 * 4 + 1), 4, 3);   // 12 windows
    for (long ranks : {1, 2, 3})
        for (long batch : {1, 2}) {
            CAPTURE(ranks);
            CAPTURE(batch);
            const long micro_steps = 12 / (ranks * batch);
            std::set<std::vector<long>> orders;
            for (long epoch = 0; epoch < 3; ++epoch) {
                std::vector<long> order;
                std::set<long> seen;
                for (long i = 0; i < micro_steps; ++i)
                    for (long rank = 0; rank < ranks; ++rank)
                        for (long s : starts(loader, RankShare{batch, rank, ranks}.first(12 * epoch, i), batch))
                            order.push_back(s), seen.insert(s);
                CHECK(order.size() == 12);
                CHECK(seen.size() == 12);
                CHECK(order == starts(loader, 12 * epoch, 12));   // and any number of ranks reads the same windows
                orders.insert(order);
            }
            CHECK(orders.size() == 3);
        }
}

TEST_CASE("C2: with accumulation and ranks, a step reads the windows behind those of the step before") {
    const Loader loader(counting(12 * 4 + 1), 4, 3);
    for (long ranks : {1, 2}) {
        std::vector<long> read;
        long position = 0;                             // all that a resumed run knows
        for (long step = 0; step < 4; ++step, position += 3 * ranks)
            for (long micro = 0; micro < 3; ++micro)
                for (long rank = 0; rank < ranks; ++rank)
                    read.push_back(loader.place(RankShare{1, rank, ranks}.first(position, micro)).start);
        CHECK(read == starts(loader, 0, 12 * ranks));
    }
}

TEST_CASE("a mixture: in every prefix each stream is within one window of its share, exact after a period") {
    uint64_t n = 1;
    const auto random = [&](long below) {
        n = n * 6364136223846793005 + 1442695040888963407;
        return long(n >> 33) % below;
    };
    const Tokens tokens = counting(9)[0].tokens;
    for (int trial = 0; trial < 200; ++trial) {
        std::vector<TokenStream> streams;
        long sum = 0;
        for (long i = 0, k = 1 + random(8); i < k; ++i) streams.push_back({tokens, 1 + random(trial % 2 ? 9 : 300)});
        for (const TokenStream& s : streams) sum += s.weight;
        const Loader loader(streams, 4, 1);
        std::vector<long> taken(streams.size(), 0);
        bool close = true;
        for (long p = 0; p < 2 * sum; ++p) {
            ++taken[loader.place(p).stream];
            for (size_t i = 0; i < streams.size(); ++i)
                close = close && std::abs(taken[i] * sum - (p + 1) * streams[i].weight) < sum;
        }
        CHECK(close);
        for (size_t i = 0; i < streams.size(); ++i) CHECK(taken[i] == 2 * streams[i].weight);
    }
}

TEST_CASE("a mixture: each stream goes through its own windows as if it were alone, in epochs of its own") {
    auto mixed = counting(7 * 4 + 1 + 2), other = counting(3 * 4 + 1);
    mixed[0].weight = 5;
    mixed.push_back({other[0].tokens, 2});
    const Loader both(mixed, 4, 11), first({{mixed[0].tokens}}, 4, 11), second(other, 4, 11);
    CHECK(both.windows() == 10);
    long taken[2] = {};
    for (long p = 0; p < 700; ++p) {
        const Loader::Place place = both.place(p);
        CHECK(place.start == (place.stream ? second : first).place(taken[place.stream]++).start);
    }
    CHECK(taken[0] == 500);
    CHECK(both.in_order(6, 3).tokens == std::vector<int>{24, 25, 26, 27, 0, 1, 2, 3, 4, 5, 6, 7});   // validation
    CHECK(both.in_order(9, 3).tokens == std::vector<int>{8, 9, 10, 11});
}

TEST_CASE("A11: windows beyond 2^31 ids and positions beyond 2^31 are 64-bit numbers") {
    const TempFolder f;
    const long n = (1L << 32) + 1025;
    uint32_t header[256] = {20240520, 1, 1025};
    header[7] = 1;
    std::ofstream(f / "t.bin", std::ios::binary).write(reinterpret_cast<const char*>(header), 1024);
    fs::resize_file(f / "t.bin", size_t(1024 + 2 * n));   // a hole: it takes no room on the disk
    Tokens tokens(257);
    tokens.append(open_shard(f / "t.bin", {257}));
    const Loader loader({{tokens}}, 1024, 1);
    CHECK(loader.windows() == (1L << 22) + 1);
    std::vector<long> s = starts(loader, (1L << 40), 64);
    for (long start : s) CHECK((start >= 0 && start % 1024 == 0 && start + 1025 <= n));
    CHECK(*std::max_element(s.begin(), s.end()) > 1L << 31);
    CHECK(loader.rows(1L << 40, 1).trained() == 1024);
    const RankShare share{1L << 20, 3, 8};
    CHECK(share.first(1, 1L << 20) == (1L << 43) + 3 * (1L << 20) + 1);
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
    CHECK(c.train.size() == 1);
    CHECK(c.train[0].tokens.size() == 12);
    CHECK(c.val.empty());
    CHECK(c.bytes == 11);
    CHECK(c.inputs.files == std::vector<std::string>{b, a});
    CHECK(c.describe() == "2 files, 11 bytes: 12 training tokens, no validation, hash " + c.hash);
    CHECK(text_of(read_corpus(a, "0", byte, 4).train) == "first");
}

TEST_CASE("a folder gives its text files by path, without what is hidden, built, drawn or binary") {
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
    f.put("drawn.svg", "<svg></svg>");
    fs::create_symlink("nowhere", f.path / "dangling");
    const Corpus c = read_corpus(f.path.string(), "", byte, 4);
    const std::vector<std::string> expected = {f / "a/a.md", f / "a/z.txt", f / "b.txt", f / "utf8.txt",
                                               f / "z_cut.txt"};
    CHECK(c.inputs.files == expected);
    CHECK(contains(c.describe(), "5 files (12 left out: 3 binary, 4 built, 1 empty, 2 hidden, 1 no file, 1 picture), "));
    CHECK(read_corpus(f / "out", "", byte, 1).inputs.files ==      // asked for by name
          std::vector<std::string>{f / "out/x"});
}

TEST_CASE("runs inside a data folder are not data, unless one is asked for by name") {
    const TempFolder f;
    f.put("a.txt", "some text");
    const std::string hash = read_corpus(f.path.string(), "", byte, 4).hash;
    f.put("runs/first/log.jsonl", "{}");
    f.put("runs/first/config.toml", "lr = 1");
    f.put("runs/first/step-000100/config.json", "{}");
    CHECK(read_corpus(f.path.string(), "", byte, 4).hash == hash);
    fs::remove(f.path / "runs/first/log.jsonl");
    CHECK(read_corpus(f / "runs/first", "", byte, 1).inputs.files.size() == 2);
    f.put("runs/first/log.jsonl", "{}");
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

TEST_CASE("token shards are data like the text that they were made from: the same windows, the same hash") {
    const TempFolder f;
    f.put("a.txt", "first document"), f.put("b.txt", "the second one");
    const auto shard = [&](const std::string& name, const std::vector<int>& ids) {
        ShardWriter writer(f / name, vocabulary_of(byte));
        writer.append(ids), writer.close();
    };
    const std::vector<int> ids = byte.encode("first document"), more = byte.encode("the second one");
    shard("1.bin", ids), shard("2.bin", {256}), shard("3.bin", more);
    shard("none.bin", {}), shard("bad.bin", {7, 65, 66});
    for (const char* val : {"0", "0.3"}) {
        const Corpus text = read_corpus(f / "?.txt", val, byte, 4), shards = read_corpus(f / "?.bin", val, byte, 4);
        CHECK(text_of(shards.train) == text_of(text.train));
        CHECK(text_of(shards.val) == text_of(text.val));
        CHECK(shards.hash == text.hash);
        CHECK(shards.inputs.files == std::vector<std::string>{f / "1.bin", f / "2.bin", f / "3.bin"});
    }
    CHECK(text_of(read_corpus(f / "?.bin", f / "3.bin", byte, 4).train) == "first document<|endoftext|>");
    CHECK(error_of((f / "1.bin") + "," + (f / "a.txt"), "", 4) ==
          (f / "1.bin") + "," + (f / "a.txt") + ": text and token shards (.bin) in one stream; give each a weight, "
          "a.txt:1,b.bin:1, or turn the text into a shard: train_gpt tokenize");
    CHECK(text_of(read_corpus((f / "1.bin:1,") + (f / "a.txt:1"), "", byte, 4).train) ==
          "first document|first document");
    CHECK(contains(error_of(f / "none.bin", "", 4), "none.bin: 0 tokens are too few"));
    const std::string bad = get(f / "bad.bin");
    f.put("bad.bin", bad.substr(0, 1026) + "\x57\x04" + bad.substr(1028));
    CHECK(contains(error_of((f / "1.bin,") + (f / "bad.bin"), "", 4),    // C12
                   (f / "bad.bin") + ": token 1 is id 1111, but the vocabulary has 257 ids"));
    f.put("text.bin", "text with a wrong name");
    CHECK(contains(error_of(f / "text.bin", "", 4), "text.bin: 22 bytes are no token shard"));
}

TEST_CASE("shards stay on the disk: 64 MB of them take no 16 MB of memory") {
    const TempFolder f;
    uint32_t header[256] = {20240520, 1, 1 << 25};
    std::ofstream(f / "t.bin", std::ios::binary).write(reinterpret_cast<const char*>(header), 1024);
    fs::resize_file(f / "t.bin", 1024 + (2 << 25));
    const auto resident = [] {                         // pages, where there is a /proc
        long whole = 0, pages = 0;
        std::ifstream("/proc/self/statm") >> whole >> pages;
        return pages;
    };
    const long before = resident();
    const Corpus corpus = read_corpus(f / "t.bin", "0.1", byte, 64);
    const Loader loader(corpus.train, 64, 1);
    CHECK(loader.rows(123, 7).trained() == 7 * 64);
#if defined(__SANITIZE_ADDRESS__)
    MESSAGE("skipped: the address sanitizer keeps what was freed");
#else
    if (before == 0) MESSAGE("skipped: there is no /proc/self/statm");
    CHECK((resident() - before) * 4096 < 16 << 20);
#endif
}

TEST_CASE("weights make a mixture: in lowest terms, each part a stream with its own end for validation") {
    const TempFolder f;
    f.put("a/1.txt", "0123456789"), f.put("a/2.txt", "ABCDEFGHIJ"), f.put("b.txt", "abcdefghij"), f.put("c:d", "colon");
    f.put("e:2", "a path ");
    const std::string data = (f / "a/*.txt:0.75,") + (f / "b.txt:0.25");
    const Corpus c = read_corpus(data, "0.4", byte, 2);
    CHECK(text_of(c.train) == "0123456789<|endoftext|>AB|abcdef");
    CHECK(text_of(c.val) == "CDEFGHIJ|ghij");
    REQUIRE(c.train.size() == 2);
    CHECK(c.train[0].weight == 3);
    CHECK(c.train[1].weight == 1);
    CHECK(c.describe() == "3 files, 30 bytes: 19 training tokens, mixed 3:1, 12 validation tokens, hash " + c.hash);
    CHECK(c.hash != read_corpus((f / "a:0.7,") + (f / "b.txt:0.3"), "0.4", byte, 2).hash);
    CHECK(c.hash == read_corpus((f / "a:3,") + (f / "b.txt:1"), "0.4", byte, 2).hash);
    CHECK(read_corpus(f / "b.txt:0.3", "", byte, 2).hash == read_corpus(f / "b.txt", "", byte, 2).hash);
    CHECK(text_of(read_corpus((f / "c:d,") + (f / "e:2"), "", byte, 2).train) == "colon<|endoftext|>a path ");

    const auto b = [&](const std::string& weight) { return error_of((f / "a:1,") + (f / "b.txt:" + weight), "", 2); };
    for (const char* weight : {"0", "-1", "0.00001", "1000000", "1.23456", "nan", "inf"})
        CHECK(contains(b(weight), "b.txt:" + std::string(weight) + ": a weight is above 0, below 1000000, and has at "));
    CHECK(contains(b("999.9999"), "the mixture repeats after 10009999 windows, at most 1000000 are possible"));
    CHECK(b("99").empty());
    CHECK(contains(b("x"), "b.txt:x: no such file or folder"));
    CHECK(contains(error_of((f / "a:1,") + (f / "b.txt"), "", 2), ": 1 of 2 parts have a weight; give one to each or"));
    CHECK(contains(error_of(f / "a", f / "b.txt:1", 2), "--val " + (f / "b.txt:1") + ": validation reads everything "));
    CHECK(contains(error_of((f / "a:1,") + (f / "b.txt:1"), "", 12), (f / "b.txt") + ": 10 tokens are too few"));
    CHECK(contains(error_of((f / "a:1,") + (f / "b.txt:1"), f / "b.txt", 2), "--data " + (f / "b.txt") + ": all of it"));
}

TEST_CASE("what can't be trained on is refused in one line before anything else") {
    const TempFolder f;
    const std::string text = f.put("t.txt", std::string(40, 'x')), empty = f.put("empty.txt", "");
    fs::create_directories(f.path / "bare/.git");
    CHECK(error_of(f / "none", "", 4) == "--data " + (f / "none") + ": no such file or folder");
    CHECK(error_of(text, f / "none", 4) == "--val " + (f / "none") + ": no such file or folder");
    CHECK(error_of(text + ",", "", 4).find("an empty name; ") != std::string::npos);
    CHECK(error_of(f / "bare", "", 4) == "--data " + (f / "bare") + ": the folder holds no text file; name token "
                                         "shards: " + (f / "bare/*.bin"));
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
