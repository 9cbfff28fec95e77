#include "bpe.h"
#include "host.h"
#include "device/random.h"
#include <algorithm>
#include <map>
#include <regex>

using namespace baretrain;
using namespace baretrain::test;

namespace {

uint64_t random(uint64_t a, uint64_t b, uint64_t below) { return philox(3, Stream::test, a, b).v[0] % below; }

std::string random_text(uint64_t round, size_t length, const std::string& alphabet) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += alphabet[random(round, i, alphabet.size())];
    return text;
}

std::vector<std::string> words_of(std::string_view text) {
    std::vector<std::string> words;
    for (; !text.empty(); text.remove_prefix(words.back().size()))
        words.emplace_back(text.substr(0, plain_words().first_word(text)));
    return words;
}

// As the rule says it: look at every pair, merge one, begin again.
std::vector<int> naive(std::vector<int> ids, const std::vector<Merge>& ranked) {
    for (;;) {
        size_t best = ranked.size(), where = 0;
        for (size_t i = 0; i + 1 < ids.size(); ++i)
            for (size_t rank = 0; rank < best; ++rank)
                if (ranked[rank].left == ids[i] && ranked[rank].right == ids[i + 1]) best = rank, where = i;
        if (best == ranked.size()) return ids;
        ids[where] = ranked[best].result;
        ids.erase(ids.begin() + long(where) + 1);
    }
}

std::vector<int> bytes_of(const std::string& text) {
    std::vector<int> ids;
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
}

// The trainer's rule, every pair counted anew for each merge.
std::vector<Merge> naive_learn(const WordCounts& words, size_t merges) {
    std::vector<Merge> ranked;
    std::vector<std::pair<std::vector<int>, int64_t>> all;
    for (const auto& [text, count] : words) all.emplace_back(bytes_of(text), count);
    while (ranked.size() < merges) {
        std::map<std::pair<int, int>, int64_t> counts;
        for (const auto& [ids, count] : all)
            for (size_t i = 0; i + 1 < ids.size(); ++i) counts[{ids[i], ids[i + 1]}] += count;
        const auto best = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
            return a.second < b.second;                // the first of equal ones is the smallest pair
        });
        ranked.push_back({best->first.first, best->first.second, 256 + int(ranked.size())});
        for (auto& [ids, count] : all) ids = naive(ids, {ranked.back()});
    }
    return ranked;
}

bool same(const std::vector<Merge>& a, const std::vector<Merge>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Merge& x, const Merge& y) {
        return x.left == y.left && x.right == y.right && x.result == y.result;
    });
}

}  // namespace

TEST_SUITE("bpe") {

TEST_CASE("plain words: the last space belongs to the word behind it, digits go by three, white space is one word") {
    using Words = std::vector<std::string>;
    const std::pair<const char*, Words> cases[] = {
        {"Hello world", {"Hello", " world"}},
        {"don't we'll 'tis DON'T", {"don", "'t", " we", "'ll", " '", "tis", " DON", "'", "T"}},
        {"12345 1234567", {"123", "45", " 123", "456", "7"}},
        {"a1b", {"a", "1", "b"}},
        {"x += 1;\n", {"x", " +=", " 1", ";", "\n"}},
        {"a   b", {"a", "  ", " b"}},
        {"a\n\n  b", {"a", "\n\n ", " b"}},
        {"a \n\tb", {"a", " \n\t", "b"}},
        {"a\r\n", {"a", "\r\n"}},
        {"  ", {"  "}},
        {" ", {" "}},
        {"été 日本 😀!", {"été", " 日本", " 😀", "!"}},
        {"a\xC2\xA0" "b", {"a\xC2\xA0" "b"}},          // a space that ASCII has not is a letter
        {"\xFFz\x01\x7F", {"\xFFz", "\x01\x7F"}}};
    for (const auto& [text, words] : cases) {
        CAPTURE(text);
        CHECK(words_of(text) == words);
    }
    CHECK(whole_text().first_word("a b") == 3);
    CHECK(whole_text().next_cut("a b", 1) == 3);
}

TEST_CASE("the regular expression in tokenizer.json cuts as our own code does") {
    std::wstring wide;
    const std::string regex = plain_words().regex;
    for (size_t i = 0; i < regex.size(); ++i) {        // C++ has no \x{...}
        if (regex.compare(i, 3, "\\x{") != 0) wide += wchar_t(regex[i]);
        else wide += wchar_t(std::stol(regex.substr(i + 3), nullptr, 16)), i = regex.find('}', i);
    }
    const std::wregex re(wide);
    for (uint64_t round = 0; round < 600; ++round) {
        const std::string text = random_text(round, round % 40, "  \n\t\r''sdtlvreA09.,<_\xE9\xFF\x01\x7F@[`{/:");
        std::wstring wide_text;
        for (char c : text) wide_text += wchar_t(static_cast<unsigned char>(c));   // a byte from 0x80 on: a character
        std::vector<size_t> expected, lengths;
        for (auto it = std::wsregex_iterator(wide_text.begin(), wide_text.end(), re); it != std::wsregex_iterator(); ++it)
            expected.push_back(size_t(it->length()));
        for (const std::string& word : words_of(text)) lengths.push_back(word.size());
        CAPTURE(text);
        CHECK(lengths == expected);
    }
}

TEST_CASE("words are counted the same by one thread and by several") {
    const std::string some = random_text(1, 3000, "ab' \n1.\xC3\xA9");
    for (size_t at = 0; at < some.size(); at += 7) {
        const size_t cut = plain_words().next_cut(some, at);
        std::vector<std::string> parts = words_of(some.substr(0, cut));
        for (const std::string& word : words_of(some.substr(cut))) parts.push_back(word);
        CHECK(parts == words_of(some));
    }
    std::string text;
    while (text.size() < (9 << 19)) text += some + std::to_string(text.size());
    WordCounts one, four;
    count_words(one, text, 1);
    count_words(four, text, 4);
    CHECK(one == four);
    CHECK(same(learn_merges(one, 50), learn_merges(four, 50)));   // whatever the order of the tables
    size_t bytes = 0;
    for (const auto& [word, count] : one) bytes += word.size() * size_t(count);
    CHECK(bytes == text.size());
    count_words(one, "ab ab", 1);
    CHECK(one.at("ab") == four.at("ab") + 1);
}

TEST_CASE("merges are learned and applied as the plain rule says") {
    for (uint64_t round = 0; round < 40; ++round) {
        WordCounts words;
        for (uint64_t w = 0; w < 20; ++w)
            words[random_text(round * 100 + w, 1 + w, round % 2 ? "ab" : "abc ")] += int64_t(1 + random(round, w, 5));
        const std::vector<Merge> merges = learn_merges(words, 6), slow = naive_learn(words, 6);
        CHECK(same(merges, slow));
        const Merges fast(merges);
        for (uint64_t n = 0; n < 40; ++n) {
            std::vector<int> ids = bytes_of(random_text(round * 1000 + n, n, round % 2 ? "ab" : "abc "));
            const std::vector<int> expected = naive(ids, merges);
            ids.insert(ids.begin(), {'a', 'b'});       // of the word before: not touched
            fast.apply(ids, 2);
            CHECK(std::vector<int>(ids.begin() + 2, ids.end()) == expected);
            CHECK(ids[0] == 'a');
        }
    }
}

TEST_CASE("equal counts are decided by the smaller pair, and texts that give too few tokens are named") {
    const std::vector<Merge> merges = learn_merges({{"zy", 2}, {"bc", 2}, {"bd", 2}, {"xx", 3}}, 4);
    CHECK(same(merges, {{'x', 'x', 256}, {'b', 'c', 257}, {'b', 'd', 258}, {'z', 'y', 259}}));
    CHECK(error_of([] { learn_merges({{"abc", 1}}, 3); }) ==
          "training a tokenizer: the texts give 2 merged tokens, not 3; give more text or a smaller vocabulary");
}

TEST_CASE("a token that two pairs make has one id") {
    // abc is first made of ab and c, and where x comes before a, of a and bc.
    const WordCounts words = {{"abc", 10}, {"ab", 5}, {"xabc", 7}, {"xa", 50}, {"bc", 9}};
    const std::vector<Merge> merges = learn_merges(words, 4);
    std::map<int, std::string> pieces;
    const auto piece = [&](int id) { return id < 256 ? std::string(1, char(id)) : pieces.at(id); };
    for (const Merge& m : merges) {
        const std::string made = piece(m.left) + piece(m.right);
        CHECK(pieces.emplace(m.result, made).first->second == made);
    }
    std::map<std::string, int> ids;
    for (const auto& [id, text] : pieces) CHECK(ids.emplace(text, id).second);
}

TEST_CASE("F7: counts above 2^31 and 2^32 are kept") {
    const int64_t many = int64_t(1) << 31;
    const std::vector<Merge> merges =
        learn_merges({{"ab", many}, {"cd", many + 1}, {"ef", 2 * many}, {"gh", 5}, {"xef", many}}, 5);
    CHECK(same(merges, {{'e', 'f', 256}, {'c', 'd', 257}, {'a', 'b', 258}, {'x', 256, 259}, {'g', 'h', 260}}));
}

}  // TEST_SUITE
