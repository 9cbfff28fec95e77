// dataloader.cpp - the body of dataloader.h.
#include "dataloader.h"
#include "device/error.h"
#include "device/random.h"
#include <bit>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

namespace baretrain {

namespace {

namespace fs = std::filesystem;

constexpr long longest_period = 1'000'000;             // positions; its table has 16 bytes for each

// What --data or --val names: all of it as one stream, or each part of it that has a weight.
struct Source {
    std::string name;
    Inputs inputs;
    long weight = 1;
};

// A weight is a number of at most four decimals, counted in ten-thousandths here. None: 0.
long take_weight(const std::string& flag, std::string& path) {
    const size_t colon = path.rfind(':');
    const auto weight = colon == std::string::npos ? std::nullopt : number_in(path.substr(colon + 1));
    std::error_code ignored;
    if (!weight || fs::exists(path, ignored)) return 0;
    const double parts = *weight * 1e4;
    if (!(parts > 0.5 && parts < 1e10 && std::fabs(parts - std::round(parts)) < 1e-4))
        fail(flag, " ", path, ": a weight is above 0, below 1000000, and has at most four decimals");
    path.resize(colon);
    return std::lround(parts);
}

std::vector<Source> find_sources(const std::string& flag, const std::string& list) {
    std::vector<Source> sources;
    long common = 0, sum = 0, weighted = 0, paths = 0;
    for (size_t begin = 0, end; begin <= list.size(); begin = end + 1, ++paths) {
        end = std::min(list.find(',', begin), list.size());
        std::string path = list.substr(begin, end - begin);
        if (path.empty()) fail(flag, " \"", list, "\": an empty name; give files and folders, separated by commas");
        const long weight = take_weight(flag, path);
        weighted += weight > 0, common = std::gcd(common, weight), sum += weight;
        if (weight) sources.push_back({path, {}, weight});
        else if (sources.empty()) sources.push_back({list, {}});
        add_inputs(sources.back().inputs, flag, path);
    }
    if (weighted && weighted < paths)
        fail(flag, " ", list, ": ", weighted, " of ", paths, " parts have a weight; give one to each or to none");
    if (weighted && flag == "--val") fail(flag, " ", list, ": validation reads everything once; leave the weights out");
    if (weighted && sum / common > longest_period)
        fail(flag, " ", list, ": the mixture repeats after ", sum / common,
             " windows, at most 1000000 are possible; give weights with fewer digits");
    if (weighted)
        for (Source& s : sources) s.weight /= common;
    return sources;
}

Tokens read_source(Corpus& corpus, const Source& source, const Tokenizer& tokenizer, int threads) {
    const std::vector<std::string>& files = source.inputs.files;
    const long shards = std::count_if(files.begin(), files.end(), [](auto& file) { return file.ends_with(".bin"); });
    if (shards && shards < long(files.size()))
        fail(source.name, ": text and token shards (.bin) in one stream; give each a weight, a.txt:1,b.bin:1, or "
                           "turn the text into a shard: train_gpt tokenize");
    const Vocabulary vocabulary = vocabulary_of(tokenizer);
    Tokens tokens(vocabulary.size);
    for (const std::string& file : shards ? files : std::vector<std::string>())
        tokens.append(open_shard(file, vocabulary));
    if (!shards) encode_files(files, {tokenizer}, threads, [&](const Ids& ids) { tokens.append(ids); });
    for (const std::string& file : files) corpus.bytes += fs::file_size(file);
    for (const auto& [why, count] : source.inputs.left_out) corpus.inputs.left_out[why] += count;
    corpus.inputs.files.insert(corpus.inputs.files.end(), files.begin(), files.end());
    return tokens;
}

// The length of each training stream, and its weight if there are several, before its tokens; then the tokens of
// validation. Reads all of them, so that a wrong id is found here.
std::string hash_tokens(const Corpus& corpus) {
    Hash hash;
    const auto add_tokens = [&](const Tokens& tokens) {
        for (long at = 0, next; at < tokens.size(); at = next) {
            next = std::min(tokens.size(), at + (1 << 20));
            for (int id : tokens.read(at, next)) hash.add(uint64_t(id));
        }
    };
    for (const TokenStream& stream : corpus.train) {
        hash.add(uint64_t(stream.tokens.size()));
        if (corpus.train.size() > 1) hash.add(uint64_t(stream.weight));
        add_tokens(stream.tokens);
    }
    for (const TokenStream& stream : corpus.val) add_tokens(stream.tokens);
    return hex(hash.value);
}

void need_window(const Tokens& tokens, long seq, const std::string& what, const std::string& remedy) {
    if (tokens.size() <= seq)
        fail(what, ": ", tokens.size(), " tokens are too few: a window of --seq ", seq, " needs ", seq + 1, "; ",
             remedy);
}

// Swap-or-not (Hoang, Morris, Rogaway 2012), a keyed permutation of 0..n-1 without a table: each round pairs x with
// k - x, and a bit that both partners share decides whether they change places.
long permuted(long x, long n, uint64_t seed, uint64_t epoch) {
    const uint64_t rounds = 6 * std::bit_width(uint64_t(n));
    for (uint64_t round = 1; round <= rounds; ++round) {
        const Bits4 key = philox(seed, Stream::shuffle, epoch, round);
        const long k = long((uint64_t(key.v[0]) << 32 | key.v[1]) % uint64_t(n)), partner = (k - x + n) % n;
        const uint64_t pair = uint64_t(std::max(x, partner));
        if (philox(seed, Stream::shuffle, epoch, round << 48 | pair).v[2] & 1) x = partner;
    }
    return x;
}

long total(const std::vector<TokenStream>& streams) {
    return std::accumulate(streams.begin(), streams.end(), 0L, [](long n, auto& s) { return n + s.tokens.size(); });
}

}  // namespace

std::string Corpus::describe() const {
    const auto short_total = [](auto& streams) { return short_number(double(total(streams))); };
    std::string mixture;
    for (const TokenStream& s : train) mixture += (mixture.empty() ? ", mixed " : ":") + std::to_string(s.weight);
    return concat(inputs.describe(), ", ", short_number(double(bytes)), " bytes: ", short_total(train),
                  " training tokens", train.size() > 1 ? mixture : "", ", ",
                  val.empty() ? "no validation" : short_total(val) + " validation tokens", ", hash ", hash);
}

Corpus read_corpus(const std::string& data, const std::string& val, const Tokenizer& tokenizer, long seq, int threads) {
    require(seq > 0 && threads > 0, "corpus: seq and threads are positive");
    const std::optional<double> number = val.empty() ? 0 : number_in(val);
    const double fraction = number.value_or(0);
    if (!(fraction >= 0 && fraction < 1))
        fail("--val ", val, ": a fraction is at least 0 and below 1; give 0 for no validation, or a path");
    std::vector<Source> sources = find_sources("--data", data), held_out;
    if (!number) held_out = find_sources("--val", val);
    std::set<fs::path> names;
    for (const Source& source : held_out)
        for (const std::string& file : source.inputs.files) names.insert(fs::canonical(file));
    const std::string more = "give more text or a smaller --seq",
                      more_val = "give more, a smaller --seq, or --val 0 for no validation";
    Corpus corpus;
    for (Source& source : sources) {
        std::vector<std::string>& files = source.inputs.files;
        std::erase_if(files, [&](const std::string& file) { return names.count(fs::canonical(file)) > 0; });
        if (files.empty()) fail("--data ", source.name, ": all of it is in --val ", val, " too; nothing is left");
        const Tokens tokens = read_source(corpus, source, tokenizer, threads);
        const long cut = tokens.size() - long(double(tokens.size()) * fraction);
        const Tokens train = tokens.range(0, cut), rest = tokens.range(cut, tokens.size());
        need_window(train, seq, source.name + (fraction > 0 ? " without its --val " + val : ""), more);
        if (fraction > 0) need_window(rest, seq, "--val " + val + " of " + source.name, more_val);
        corpus.train.push_back({train, source.weight});
        if (fraction > 0) corpus.val.push_back({rest});
    }
    for (const Source& source : held_out) {
        corpus.val.push_back({read_source(corpus, source, tokenizer, threads)});
        need_window(corpus.val.back().tokens, seq, source.name, more_val);
    }
    corpus.hash = hash_tokens(corpus);
    return corpus;
}

long Rows::trained() const {
    return std::count_if(targets.begin(), targets.end(), [](int target) { return target != -1; });
}

void Rows::append(const std::vector<int>& ids) {
    tokens.insert(tokens.end(), ids.begin(), ids.end() - 1);
    targets.insert(targets.end(), ids.begin() + 1, ids.end());
    for (size_t t = 0; t + 1 < ids.size(); ++t) positions.push_back(int(t));
    documents.push_back(int(tokens.size()));
}

Rows read_id_lists(const std::string& path, long vocab, long longest) {
    const auto lists = nlohmann::json::parse(read_text(path), shallow, false);
    if (!lists.is_array()) fail(path, ": expected JSON, a list of lists of ids");
    Rows rows;
    for (size_t l = 0; l < lists.size(); ++l) {
        const std::string here = concat(path, ": list ", l + 1);
        if (!lists[l].is_array()) fail(here, " is no list; expected JSON, a list of lists of ids");
        const long n = long(lists[l].size());
        if (n < 2 || n > longest + 1) fail(here, " has ", n, " ids; expected 2 to ", longest + 1);
        for (const auto& id : lists[l])
            if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t(vocab))
                fail(here, " holds ", id.dump(), "; the model's ids are 0 to ", vocab - 1);
        rows.append(lists[l].get<std::vector<int>>());
    }
    if (lists.empty()) fail(path, ": holds no list of ids");
    return rows;
}

Loader::Loader(std::vector<TokenStream> streams, long seq, uint64_t seed)
    : streams_(std::move(streams)), seq_(seq), seed_(seed) {
    require(seq > 0, "loader: seq is positive");
    long sum = 0;
    for (const TokenStream& s : streams_) sum += s.weight, windows_ += windows_of(s);
    std::vector<long> taken(streams_.size(), 0);
    for (long position = 0; position < sum; ++position) {
        size_t next = streams_.size();
        long soonest = 0;
        for (size_t i = 0; i < streams_.size(); ++i) {
            const long w = streams_[i].weight, due = ((taken[i] + 1) * sum + w - 1) / w;
            if (taken[i] * sum / w > position || (next < streams_.size() && soonest <= due)) continue;
            next = i, soonest = due;
        }
        period_.push_back({next, taken[next]++});
    }
}

Loader::Place Loader::place(long position) const {
    require(position >= 0 && windows_ > 0, "loader: positions start at 0, and there is a window");
    const long period = long(period_.size());
    const Turn& turn = period_[size_t(position % period)];
    const TokenStream& stream = streams_[turn.stream];
    const long window = position / period * stream.weight + turn.before, windows = windows_of(stream);
    require(windows > 0, "loader: each stream has a window");
    const uint64_t epoch = uint64_t(window / windows);
    const long slack = stream.tokens.size() - 1 - windows * seq_;
    const long offset = long(philox(seed_, Stream::shuffle, epoch, 0).v[0] % uint64_t(slack + 1));
    return {turn.stream, offset + seq_ * permuted(window % windows, windows, seed_, epoch)};
}

void Loader::append(Rows& rows, const Place& place) const {
    rows.append(streams_[place.stream].tokens.read(place.start, place.start + seq_ + 1));
}

Rows Loader::rows(long position, long batch) const {
    Rows rows;
    for (long b = 0; b < batch; ++b) append(rows, place(position + b));
    return rows;
}

Rows Loader::in_order(long first_window, long batch) const {
    require(first_window >= 0, "loader: windows start at 0");
    Rows rows;
    for (long w = first_window; w < std::min(first_window + batch, windows_); ++w) {
        size_t stream = 0;
        long window = w;
        while (window >= windows_of(streams_[stream])) window -= windows_of(streams_[stream++]);
        append(rows, {stream, window * seq_});
    }
    return rows;
}

}  // namespace baretrain
