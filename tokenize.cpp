// tokenize.cpp - the body of tokenize.h.
#include "tokenize.h"
#include "device/error.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <glob.h>
#include <nlohmann/json.hpp>
#include <set>

namespace baretrain {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t bytes_at_once = 4 << 20;              // of text for each thread, unless a document is longer
constexpr size_t bytes_of_part = 1 << 20;              // and of a document that is cut

// Why a file is not text; empty: it is.
std::string why_no_text(const fs::path& path) {
    std::string head(64 << 10, '\0');
    std::ifstream in(path, std::ios::binary);
    if (!in) fail(path.string(), ": can't be opened: ", std::strerror(errno), "; allow it, or take it away");
    in.read(head.data(), std::streamsize(head.size()));
    const bool whole = size_t(in.gcount()) < head.size();
    head.resize(size_t(in.gcount()));
    Utf8Stream stream;
    const bool valid = stream.push(head) + stream.pending() == head && (!whole || stream.pending().empty());
    if (head.empty()) return "empty";
    if (path.extension() == ".svg") return "picture";
    return path.extension() != ".bin" && valid && head.find('\0') == std::string::npos ? "" : "binary";
}

void add_folder(Inputs& inputs, const std::string& flag, const fs::path& folder) {
    const std::set<std::string> skipped = {"out", "build", "third_party", "node_modules"};
    std::vector<std::string> found;
    auto it = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied);
    for (; it != fs::recursive_directory_iterator(); ++it) {
        const std::string name = it->path().filename().string();
        std::error_code ignored;                       // a dangling link is not a file
        const bool is_folder = it->is_directory(ignored);
        const bool built = is_folder && (skipped.count(name) || fs::exists(it->path() / "log.jsonl", ignored));
        const std::string why = name[0] == '.' ? "hidden" : built ? "built" : is_folder ? "" :
                                it->is_regular_file(ignored) ? why_no_text(it->path()) : "no file";
        if (!why.empty()) ++inputs.left_out[why];
        if (is_folder && !why.empty()) it.disable_recursion_pending();
        if (!is_folder && why.empty()) found.push_back(it->path().string());
    }
    if (found.empty())
        fail(flag, " ", folder.string(), ": the folder holds no text file; name token shards: ",
             (folder / "*.bin").string());
    std::sort(found.begin(), found.end());
    inputs.files.insert(inputs.files.end(), found.begin(), found.end());
}

[[noreturn]] void fail_line(const std::string& path, long line, const std::string& why, const char* expected) {
    fail(path, ": line ", line, " ", why, "; each line is ", expected);
}

// The library stops at a zero byte as if the text ended there.
json parse_line(const std::string& text) {
    return text.find('\0') == std::string::npos ? json::parse(text, shallow, false) : json(json::value_t::discarded);
}

std::string text_of_line(const std::string& path, long number, const std::string& line) {
    const json value = parse_line(line);
    const bool named = value.is_object() && value.contains("text");
    if (!named || !value["text"].is_string())
        fail_line(path, number, value.is_discarded()   ? "is not JSON in UTF-8"
                                : !value.is_object()   ? "is JSON, but no object"
                                : !named               ? "has no \"text\""
                                                       : "has a \"text\" that is no string", "{\"text\": \"...\"}");
    return value["text"].get<std::string>();
}

void read_documents(const std::string& path, const std::function<void(std::string)>& use) {
    if (path.ends_with(".bin")) fail(path, ": ends in .bin, as token shards do; give text files");
    if (!fs::is_regular_file(path)) fail(path, ": is not a regular file; give text files or folders of them");
    const std::string complaint = "can't read it; check its permissions";
    bool empty = true;
    if (path.ends_with(".jsonl")) {
        std::ifstream in(path, std::ios::binary);
        if (!in) fail(path, ": ", complaint);
        long number = 0;
        for (std::string line; std::getline(in, line); empty = false) use(text_of_line(path, ++number, line));
    } else {
        std::string text = read_text(path, complaint);
        empty = text.empty();
        use(std::move(text));
    }
    if (empty) fail(path, ": is empty; give a file with text");
}

// Calls work(i) for all i below n.
void on_threads(int threads, size_t n, const std::function<void(size_t)>& work) {
    std::atomic<size_t> next = 0;
    const auto take = [&] { for (size_t i; (i = next++) < n;) work(i); };
    std::vector<std::future<void>> others;
    for (size_t t = 1; t < std::min(n, size_t(threads)); ++t) others.push_back(std::async(std::launch::async, take));
    take();
    for (std::future<void>& other : others) other.get();
}

}  // namespace

std::string Inputs::describe() const {
    std::string reasons;
    long left = 0;
    for (const auto& [why, count] : left_out) reasons += concat(left ? ", " : ": ", count, " ", why), left += count;
    return concat(files.size(), files.size() == 1 ? " file" : " files",
                  left ? concat(" (", left, " left out", reasons, ")") : "");
}

void add_inputs(Inputs& inputs, const std::string& flag, const std::string& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) return add_folder(inputs, flag, path);
    if (fs::exists(path, ignored)) return inputs.files.push_back(path);
    if (path.find_first_of("*?[") == std::string::npos) fail(flag, " ", path, ": no such file or folder");
    glob_t found{};
    std::vector<std::string> matches;
    if (glob(path.c_str(), 0, nullptr, &found) == 0) matches = {found.gl_pathv, found.gl_pathv + found.gl_pathc};
    globfree(&found);
    if (matches.empty()) fail(flag, " ", path, ": no file matches");
    std::sort(matches.begin(), matches.end());
    for (const std::string& match : matches) fs::is_directory(match, ignored) ? add_folder(inputs, flag, match)
                                                                             : inputs.files.push_back(match);
}

void encode_files(const std::vector<std::string>& files, const Encoder& encode, int threads,
                  const std::function<void(const Ids&)>& use) {
    std::vector<std::string> documents;
    size_t bytes = 0;
    bool first = true;
    const auto flush = [&] {
        std::vector<std::string_view> parts;
        for (std::string_view rest : documents)
            for (size_t cut; !rest.empty(); rest.remove_prefix(cut)) {
                cut = rest.size() > bytes_of_part ? encode.tokenizer.next_cut(rest, bytes_of_part) : rest.size();
                parts.push_back(rest.substr(0, cut));
            }
        std::vector<Ids> ids(parts.size());
        on_threads(threads, parts.size(), [&](size_t i) { ids[i] = encode(parts[i]); });
        size_t part = 0;
        for (const std::string& document : documents) {
            if (!std::exchange(first, false)) use({encode.tokenizer.end_of_text()});
            for (size_t done = 0; done < document.size(); done += parts[part++].size()) use(ids[part]);
        }
        documents.clear(), bytes = 0;
    };
    for (const std::string& file : files)
        read_documents(file, [&](std::string text) {
            if (text.empty()) return;
            bytes += text.size();
            documents.push_back(std::move(text));
            if (bytes >= bytes_at_once * size_t(threads)) flush();
        });
    flush();
}

Vocabulary vocabulary_of(const Tokenizer& tokenizer) { return {tokenizer.vocab(), tokenizer.hash()}; }

Tokenizer learn_tokenizer(const Inputs& inputs, long vocab, int threads) {
    WordCounts words;
    for (const std::string& file : inputs.files)
        read_documents(file, [&](const std::string& text) { count_words(words, text, threads); });
    return train_bpe(words, vocab);
}

void write_tokenizer(const Tokenizer& tokenizer, const std::string& out) {
    const auto files = tokenizer.files();
    if (out.ends_with(".json")) return write_whole(out, files.at("tokenizer.json"));
    std::error_code failed;                            // the file will say so
    fs::create_directories(out, failed);
    for (const auto& [name, content] : files) write_whole(out + "/" + name, content);
}

long tokenize_files(const Inputs& inputs, const Encoder& encode, const std::string& out, int threads) {
    if (!out.ends_with(".bin")) fail(out, ": a token shard is called .bin, so that --data knows it; give -o F.bin");
    ShardWriter shard(out, vocabulary_of(encode.tokenizer));
    encode_files(inputs.files, encode, threads, [&](const Ids& ids) { shard.append(ids); });
    return shard.close();
}

void encode_lines(std::istream& in, std::ostream& out, const Encoder& encode) {
    long number = 0;
    for (std::string line; out && std::getline(in, line);)
        out << json(encode(text_of_line("standard input", ++number, line))).dump() << std::endl;
}

void decode_lines(std::istream& in, std::ostream& out, const Tokenizer& tokenizer) {
    const char* const name = "standard input";
    const auto is_id = [&](const json& v) { return v.is_number_integer() && v >= 0 && v < tokenizer.vocab(); };
    long number = 0;
    for (std::string line; out && std::getline(in, line);) {
        const json ids = parse_line(line);
        ++number;
        if (!ids.is_array()) fail_line(name, number, "is no JSON list", "a list of ids");
        for (const json& id : ids)
            if (!is_id(id))
                fail_line(name, number, concat("holds ", id.dump().substr(0, 40), ", the tokenizer has the ids 0 to ",
                                               tokenizer.vocab() - 1), "a list of ids");
        const json text = {{"text", tokenizer.decode(ids.get<Ids>(), Special::show)}};
        out << text.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    }
}

}  // namespace baretrain
