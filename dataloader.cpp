#include "dataloader.h"
#include "device/error.h"
#include "device/random.h"
#include "files.h"
#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

namespace baretrain {

namespace {

namespace fs = std::filesystem;

bool is_text(const fs::path& path) {
    std::string head(64 << 10, '\0');
    std::ifstream in(path, std::ios::binary);
    in.read(head.data(), std::streamsize(head.size()));
    const bool whole = size_t(in.gcount()) < head.size();
    head.resize(size_t(in.gcount()));
    Utf8Stream stream;
    const bool valid = stream.push(head) + stream.pending() == head && (!whole || stream.pending().empty());
    return !head.empty() && valid && head.find('\0') == std::string::npos;
}

std::vector<std::string> text_files_below(const fs::path& folder) {
    const std::set<std::string> skipped = {"out", "build", "third_party", "node_modules"};
    std::vector<std::string> found;
    auto it = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied);
    for (; it != fs::recursive_directory_iterator(); ++it) {
        const std::string name = it->path().filename().string();
        std::error_code ignored;                       // a dangling link is not a file
        if (it->is_directory(ignored)) {
            const bool run = fs::exists(it->path() / "log.jsonl", ignored);
            if (name[0] == '.' || skipped.count(name) || run) it.disable_recursion_pending();
        } else if (name[0] != '.' && it->is_regular_file(ignored) && is_text(it->path())) {
            found.push_back(it->path().string());
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

std::vector<std::string> list_files(const std::string& flag, const std::string& paths) {
    std::vector<std::string> files;
    for (size_t begin = 0, end; begin <= paths.size(); begin = end + 1) {
        end = std::min(paths.find(',', begin), paths.size());
        const std::string path = paths.substr(begin, end - begin);
        std::error_code ignored;
        if (path.empty()) fail(flag + " \"" + paths + "\": an empty name; give files and folders, separated by commas");
        if (!fs::exists(path, ignored)) fail(flag + " " + path + ": no such file or folder");
        if (!fs::is_directory(path, ignored)) {
            files.push_back(path);
            continue;
        }
        const std::vector<std::string> below = text_files_below(path);
        if (below.empty()) fail(flag + " " + path + ": the folder holds no text file");
        files.insert(files.end(), below.begin(), below.end());
    }
    return files;
}

void append_documents(Corpus& corpus, std::vector<uint16_t>& tokens, const std::vector<std::string>& files,
                      const Tokenizer& tokenizer) {
    for (const std::string& file : files) {
        if (!fs::is_regular_file(file)) fail(file + ": is not a regular file; give text files or folders of them");
        const std::string text = read_text(file, "can't read it; check its permissions");
        if (text.empty()) fail(file + ": is empty; give a file with text");
        if (!tokens.empty()) tokens.push_back(uint16_t(tokenizer.end_of_text()));
        const std::vector<int> ids = tokenizer.encode(text);
        tokens.insert(tokens.end(), ids.begin(), ids.end());
        corpus.files.push_back(file);
        corpus.bytes += text.size();
    }
}

// FNV-1a over 64-bit words: the length of the training part, then all tokens.
std::string hash_tokens(const Corpus& corpus) {
    uint64_t h = 0xCBF29CE484222325;
    const auto add = [&h](uint64_t word) { h = (h ^ word) * 0x100000001B3; };
    add(corpus.train.size());
    for (uint16_t token : corpus.train) add(token);
    for (uint16_t token : corpus.val) add(token);
    return format("%016llx", static_cast<unsigned long long>(h));
}

void need_window(const std::vector<uint16_t>& tokens, long seq, const std::string& what, const std::string& remedy) {
    if (long(tokens.size()) <= seq)
        fail(what + ": " + std::to_string(tokens.size()) + " tokens are too few: a window of --seq " +
             std::to_string(seq) + " needs " + std::to_string(seq + 1) + "; " + remedy);
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

}  // namespace

std::string Corpus::describe() const {
    std::string line = std::to_string(files.size()) + (files.size() == 1 ? " file, " : " files, ");
    line += short_number(double(bytes)) + " bytes: " + short_number(double(train.size())) + " training tokens";
    line += val.empty() ? ", no validation" : ", " + short_number(double(val.size())) + " validation tokens";
    return line + ", hash " + hash;
}

Corpus read_corpus(const std::string& data, const std::string& val, const Tokenizer& tokenizer, long seq) {
    require(tokenizer.vocab() <= 65536, "corpus: token ids fit in 16 bits");
    require(seq > 0, "corpus: seq is positive");
    const std::optional<double> number = val.empty() ? 0 : number_in(val);
    const bool has_fraction = number.has_value();
    const double fraction = number.value_or(0);
    if (!(fraction >= 0 && fraction < 1))
        fail("--val " + val + ": a fraction is at least 0 and below 1; give 0 for no validation, or a path");
    std::vector<std::string> files = list_files("--data", data), val_files;
    if (!has_fraction) {
        val_files = list_files("--val", val);
        std::set<fs::path> held_out;
        for (const std::string& file : val_files) held_out.insert(fs::canonical(file));
        std::erase_if(files, [&](const std::string& file) { return held_out.count(fs::canonical(file)) > 0; });
        if (files.empty()) fail("--data " + data + ": all of it is in --val " + val + " too; nothing is left");
    }
    Corpus corpus;
    append_documents(corpus, corpus.train, files, tokenizer);
    append_documents(corpus, corpus.val, val_files, tokenizer);
    if (fraction > 0) {
        const auto cut = corpus.train.end() - long(double(corpus.train.size()) * fraction);
        corpus.val.assign(cut, corpus.train.end());
        corpus.train.erase(cut, corpus.train.end());
    }
    const std::string rest = fraction > 0 ? data + " without its --val " + val : data;
    need_window(corpus.train, seq, rest, "give more text or a smaller --seq");
    if (!has_fraction || fraction > 0)
        need_window(corpus.val, seq, has_fraction ? "--val " + val + " of " + data : val,
                    "give more, a smaller --seq, or --val 0 for no validation");
    corpus.hash = hash_tokens(corpus);
    return corpus;
}

long Rows::trained() const {
    return std::count_if(targets.begin(), targets.end(), [](int target) { return target != -1; });
}

Loader::Loader(const std::vector<uint16_t>& tokens, long seq, uint64_t seed)
    : tokens_(tokens), seq_(seq), windows_(0), seed_(seed) {
    require(seq > 0, "loader: seq is positive");
    if (!tokens.empty()) windows_ = (long(tokens.size()) - 1) / seq;
}

long Loader::window_start(long position) const {
    require(position >= 0 && windows_ > 0, "loader: positions start at 0, and there is a window");
    const uint64_t epoch = uint64_t(position / windows_);
    const long slack = long(tokens_.size()) - 1 - windows_ * seq_;
    const long offset = long(philox(seed_, Stream::shuffle, epoch, 0).v[0] % uint64_t(slack + 1));
    return offset + seq_ * permuted(position % windows_, windows_, seed_, epoch);
}

void Loader::append(Rows& rows, long start) const {
    for (long t = 0; t < seq_; ++t) {
        rows.tokens.push_back(tokens_[size_t(start + t)]);
        rows.targets.push_back(tokens_[size_t(start + t + 1)]);
        rows.positions.push_back(int(t));
    }
    rows.documents.push_back(int(rows.tokens.size()));
}

Rows Loader::rows(long position, long batch) const {
    Rows rows{{}, {}, {}, {0}};
    for (long b = 0; b < batch; ++b) append(rows, window_start(position + b));
    return rows;
}

Rows Loader::in_order(long first_window, long batch) const {
    require(first_window >= 0, "loader: windows start at 0");
    Rows rows{{}, {}, {}, {0}};
    for (long w = first_window; w < std::min(first_window + batch, windows_); ++w) append(rows, w * seq_);
    return rows;
}

}  // namespace baretrain
