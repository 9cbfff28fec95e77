// bpe.cpp - the body of bpe.h.
#include "bpe.h"
#include "device/error.h"
#include <algorithm>
#include <future>
#include <queue>
#include <thread>
#include <unordered_set>

namespace baretrain {

namespace {

// Bytes from 0x80 on are letters: they are parts of characters that ASCII has not.
enum class Kind { space, letter, digit, other };
Kind kind_of(char c) {
    const auto byte = static_cast<unsigned char>(c), lower = static_cast<unsigned char>(byte | 32);
    if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return Kind::space;
    if (byte >= 0x80 || (lower >= 'a' && lower <= 'z')) return Kind::letter;
    return byte >= '0' && byte <= '9' ? Kind::digit : Kind::other;
}

size_t first_plain_word(std::string_view text) {
    if (text[0] == '\'')
        for (const std::string_view end : {"s", "d", "m", "t", "ll", "ve", "re"})
            if (text.substr(1, end.size()) == end) return 1 + end.size();
    const size_t first = text[0] == ' ' && text.size() > 1 && kind_of(text[1]) != Kind::space;
    const Kind kind = kind_of(text[first]);
    const size_t most = kind == Kind::digit ? std::min(text.size(), first + 3) : text.size();
    size_t n = first + 1;
    while (n < most && kind_of(text[n]) == kind) ++n;
    const bool next_takes_space = kind == Kind::space && n < text.size() && text[n - 1] == ' ';
    return n - next_takes_space;
}

uint64_t key_of(int left, int right) { return uint64_t(left) << 32 | uint32_t(right); }

struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;                       // where it stands, or has stood
};

// All distinct words as tokens, and all pairs in them with their counts, kept up to date from merge to merge.
class Learner {
public:
    explicit Learner(const WordCounts& words) {
        require(words.size() < UINT32_MAX, "bpe: distinct words are numbered with 32 bits");
        for (const auto& [text, count] : words) {
            words_.push_back({ids_.size(), text.size(), count});
            for (char c : text) ids_.push_back(static_cast<unsigned char>(c));
            for (size_t i = words_.back().begin; i + 1 < ids_.size(); ++i)
                change(ids_[i], ids_[i + 1], count, uint32_t(words_.size() - 1));
        }
        grown_.clear();
        for (const auto& [key, pair] : pairs_) offer(key, pair.count);
    }

    // The next pair to merge; false: none is left. What lies in the heap may be out of date: a pair that grew was
    // offered again, one that shrank is offered now.
    bool best(uint64_t& key) {
        while (!heap_.empty()) {
            const int64_t count = heap_.top().first;
            key = ~heap_.top().second;
            heap_.pop();
            const auto found = pairs_.find(key);
            const int64_t now = found == pairs_.end() ? 0 : found->second.count;
            if (now == count) return true;
            if (now < count) offer(key, now);
        }
        return false;
    }

    void merge(const Merge& m) {
        grown_.clear();
        const uint64_t key = key_of(m.left, m.right);
        const std::vector<uint32_t> words = std::move(pairs_[key].words);
        for (uint32_t word : words) merge_in(word, m);
        pairs_.erase(key);
        std::sort(grown_.begin(), grown_.end());
        grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
        for (uint64_t grown : grown_) offer(grown, pairs_.at(grown).count);
    }

private:
    struct Word { size_t begin, length; int64_t count; };

    void change(int left, int right, int64_t by, uint32_t word) {
        Pair& pair = pairs_[key_of(left, right)];
        pair.count += by;
        if (by <= 0) return;
        if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
        grown_.push_back(key_of(left, right));
    }

    void merge_in(uint32_t word, const Merge& m) {
        Word& w = words_[word];
        int* const ids = ids_.data() + w.begin;
        size_t to = 0;
        for (size_t i = 0; i < w.length; ++i) {
            if (i + 1 == w.length || ids[i] != m.left || ids[i + 1] != m.right) {
                ids[to++] = ids[i];
                continue;
            }
            if (to > 0) {
                change(ids[to - 1], m.left, -w.count, word);
                change(ids[to - 1], m.result, w.count, word);
            }
            if (i + 2 < w.length) {
                change(m.right, ids[i + 2], -w.count, word);
                change(m.result, ids[i + 2], w.count, word);
            }
            ids[to++] = m.result;
            ++i;
        }
        w.length = to;
    }

    void offer(uint64_t key, int64_t count) { if (count > 0) heap_.emplace(count, ~key); }

    std::vector<int> ids_;                             // of all words, one behind the other
    std::vector<Word> words_;
    std::unordered_map<uint64_t, Pair> pairs_;
    std::vector<uint64_t> grown_;                      // pairs that a merge made more of
    std::priority_queue<std::pair<int64_t, uint64_t>> heap_;   // count, then ~key: the smaller key wins
};

// White space stands only at the front of a word, or makes the whole of it.
size_t next_plain_cut(std::string_view text, size_t at) {
    for (at = std::max<size_t>(at, 1); at < text.size(); ++at)
        if (kind_of(text[at]) == Kind::space && kind_of(text[at - 1]) != Kind::space) return at;
    return text.size();
}

}  // namespace

Splitter whole_text() {
    return {"", [](std::string_view text) { return text.size(); },
            [](std::string_view text, size_t) { return text.size(); }};
}

Splitter plain_words() {
    return {R"('(?:[sdmt]|ll|ve|re)| ?[A-Za-z\x{80}-\x{10FFFF}]+| ?[0-9]{1,3}|)"
            R"( ?[^\t-\r 0-9A-Za-z\x{80}-\x{10FFFF}]+|[\t-\r ]+(?= [^\t-\r ])|[\t-\r ]+)",
            first_plain_word, next_plain_cut};
}

Merges::Merges(std::vector<Merge> ranked) : ranked_(std::move(ranked)) {
    for (size_t i = 0; i < ranked_.size(); ++i) rank_.emplace(key_of(ranked_[i].left, ranked_[i].right), uint32_t(i));
}

void Merges::apply(std::vector<int>& ids, size_t from) const {
    if (ranked_.empty() || ids.size() < from + 2) return;
    require(ids.size() - from < UINT32_MAX, "bpe: a word is shorter than 4 GB");
    const auto n = uint32_t(ids.size() - from);
    int* const token = ids.data() + from;              // -1: became a part of its left neighbour
    std::vector<uint32_t> next(n), previous(n);        // n: none
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap;   // rank, then position; may be old
    const auto add = [&](uint32_t at) {
        if (at == n || next[at] == n) return;
        const auto found = rank_.find(key_of(token[at], token[next[at]]));
        if (found != rank_.end()) heap.push(uint64_t(found->second) << 32 | at);
    };
    for (uint32_t i = 0; i < n; ++i) next[i] = i + 1, previous[i] = i ? i - 1 : n;
    for (uint32_t i = 0; i < n; ++i) add(i);
    while (!heap.empty()) {
        const Merge& m = ranked_[heap.top() >> 32];
        const auto left = uint32_t(heap.top());
        heap.pop();
        const uint32_t right = next[left];
        if (token[left] != m.left || right == n || token[right] != m.right) continue;
        token[left] = m.result, token[right] = -1;
        next[left] = next[right];
        if (next[left] != n) previous[next[left]] = left;
        add(previous[left]), add(left);
    }
    ids.erase(std::remove(ids.begin() + long(from), ids.end(), -1), ids.end());
}

void count_words(WordCounts& counts, std::string_view text, long threads) {
    constexpr size_t worth_a_thread = 1 << 20;
    const auto count = [](WordCounts& into, std::string_view part) {
        while (!part.empty()) {
            const std::string_view word = part.substr(0, first_plain_word(part));
            const auto found = into.find(word);
            if (found != into.end()) ++found->second;
            else into.emplace(word, 1);
            part.remove_prefix(word.size());
        }
    };
    if (threads == 0) threads = long(std::max(1u, std::thread::hardware_concurrency()));
    const size_t parts = std::min(size_t(threads), text.size() / worth_a_thread + 1), target = text.size() / parts;
    std::vector<std::future<WordCounts>> others;
    for (size_t i = 1; i < parts; ++i) {
        const std::string_view part = text.substr(0, next_plain_cut(text, target));
        text.remove_prefix(part.size());
        others.push_back(std::async(std::launch::async, [=] { WordCounts c; count(c, part); return c; }));
    }
    count(counts, text);
    for (auto& other : others)
        for (const auto& [word, n] : other.get()) counts[word] += n;
}

std::vector<Merge> learn_merges(const WordCounts& words, long tokens) {
    Learner learner(words);
    std::vector<std::string> pieces;
    for (int byte = 0; byte < 256; ++byte) pieces.push_back({char(byte)});
    std::unordered_map<std::string, int> id_of;        // two ways may lead to the same piece, which has one id
    std::unordered_set<uint64_t> known;                // and may bring a pair back that was merged before
    std::vector<Merge> merges;
    for (uint64_t key; id_of.size() < size_t(tokens);) {
        if (!learner.best(key))
            fail("training a tokenizer: the texts give ", id_of.size(), " merged tokens, not ", tokens,
                 "; give more text or a smaller vocabulary");
        const int left = int(key >> 32), right = int(key & UINT32_MAX);
        const std::string piece = pieces[size_t(left)] + pieces[size_t(right)];
        const auto [found, is_new] = id_of.emplace(piece, int(pieces.size()));
        if (is_new) pieces.push_back(piece);
        const Merge m{left, right, found->second};
        if (known.insert(key).second) merges.push_back(m);
        learner.merge(m);
    }
    return merges;
}

}  // namespace baretrain
