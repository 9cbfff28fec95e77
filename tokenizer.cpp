// tokenizer.cpp - the body of tokenizer.h.
#include "tokenizer.h"
#include "device/error.h"
#include "files.h"
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace baretrain {

namespace {

using nlohmann::json;
using ordered = nlohmann::ordered_json;                // the files read best in the order of the ids
const char* const end_of_text_name = "<|endoftext|>";
const char* const advice = "; --tokenizer is byte, or a folder or tokenizer.json";

std::string utf8(int code) {                           // code < 0x800 is all that ByteLevel needs
    if (code < 0x80) return {char(code)};
    return {char(0xC0 | code >> 6), char(0x80 | (code & 63))};
}

// GPT-2's printable alphabet: a printable Latin-1 byte is its own symbol, the other 68 follow from U+0100 on.
std::array<std::string, 256> byte_symbols() {
    std::array<std::string, 256> symbols;
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        symbols[size_t(byte)] = utf8(printable ? byte : next++);
    }
    return symbols;
}

std::string to_symbols(const std::string& bytes) {
    static const std::array<std::string, 256> symbols = byte_symbols();
    std::string out;
    for (char c : bytes) out += symbols[static_cast<unsigned char>(c)];
    return out;
}

std::optional<std::string> from_symbols(const std::string& text) {
    static const std::map<std::string, char> bytes = [] {
        std::map<std::string, char> inverse;
        for (int byte = 0; byte < 256; ++byte) inverse[to_symbols({char(byte)})] = char(byte);
        return inverse;
    }();
    std::string out;
    for (size_t i = 0, n; i < text.size(); i += n) {
        n = static_cast<unsigned char>(text[i]) < 0x80 ? 1 : 2;
        const auto found = bytes.find(text.substr(i, n));
        if (found == bytes.end()) return std::nullopt;
        out += found->second;
    }
    return out;
}

// ---- tokenizer.json, written: what it holds, but for the ids

const char* const tokenizer_json = R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false}})";
const char* const tokenizer_config_json = R"({"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {},
    "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "clean_up_tokenization_spaces": false})";

// ---- tokenizer.json, read

[[noreturn]] void fail_damaged(const std::string& where, const std::string& why) {
    fail(where, ": not a sound tokenizer.json: ", why, "; copy or download it again");
}

const json& field(const json& from, const char* name) {   // null where there is none
    static const json none;
    const auto found = from.is_object() ? from.find(name) : from.end();
    return from.is_object() && found != from.end() ? *found : none;
}

bool is_off(const json& v) { return v.is_null() || v == false || v == 0 || v == ""; }

std::string shown(const json& v) {
    const json& named = field(v, "type").is_string() ? field(v, "type") : v;
    return named.is_structured() ? named.type_name() : named.dump(-1, ' ', true).substr(0, 200);
}

[[noreturn]] void refuse(const std::string& where, const std::string& part, const json& found, const char* expected) {
    fail(where, ": not built yet: ", part, " ", shown(found), "; byte-level BPE is read with ", expected);
}

Splitter read_splitter(const json& pre, const std::string& where) {
    const char* const known = "ByteLevel (add_prefix_space, use_regex: false), alone or behind Split by our own regex";
    const json list = field(pre, "type") == "Sequence" ? field(pre, "pretokenizers") : json::array({pre});
    const json last = list.is_array() && !list.empty() ? list.back() : pre;
    if (field(last, "type") != "ByteLevel") refuse(where, "pre_tokenizer", last, known);
    for (const char* flag : {"add_prefix_space", "use_regex"})   // both are true where they are left out
        if (field(last, flag) != false) refuse(where, std::string("pre_tokenizer's ") + flag, field(last, flag), known);
    if (list.size() == 1) return whole_text();
    const json &split = list[0], &regex = field(field(split, "pattern"), "Regex");
    if (list.size() > 2) refuse(where, "pre_tokenizer", pre, known);
    if (field(split, "type") != "Split") refuse(where, "pre_tokenizer", split, known);
    if (regex != plain_words().regex) refuse(where, "pre_tokenizer's Regex", regex, known);
    if (field(split, "behavior") != "Isolated" || !is_off(field(split, "invert")))
        refuse(where, "pre_tokenizer's Split", field(split, "behavior"), "behavior Isolated, invert false");
    return plain_words();
}

size_t read_end_of_text(const json& added, const std::string& where) {
    const char* const known = "one: <|endoftext|>, special, without single_word, lstrip, rstrip and normalized";
    if (!added.is_array() || added.size() != 1) refuse(where, "added_tokens", added, known);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"})
        if (!is_off(field(added[0], flag)))
            refuse(where, std::string("an added token with ") + flag, field(added[0], flag), known);
    if (field(added[0], "content") != end_of_text_name || field(added[0], "special") != true)
        refuse(where, "added token", field(added[0], "content"), known);
    const json& id = field(added[0], "id");
    if (!id.is_number_unsigned()) fail_damaged(where, "the id of the added token is not a number from 0 on");
    return id.get<size_t>();
}

// The ids are 0 to n-1, each once; <|endoftext|> may stand in the vocabulary too.
std::vector<std::string> read_pieces(const json& vocab, size_t end_of_text, const std::string& where) {
    if (!vocab.is_object()) fail_damaged(where, "model.vocab is not an object");
    std::vector<std::string> pieces(vocab.size() + !vocab.contains(end_of_text_name));
    std::vector<bool> taken(pieces.size());
    const auto take = [&](const json& id) {
        const bool fits = id.is_number_unsigned() && id < taken.size() && !taken[id.get<size_t>()];
        if (!fits)
            fail_damaged(where, concat("the ids are not 0 to ", taken.size() - 1, ", each once: ", shown(id)));
        taken[id.get<size_t>()] = true;
        return id.get<size_t>();
    };
    take(end_of_text);
    for (const auto& [symbols, id] : vocab.items()) {
        if (symbols == end_of_text_name && id == end_of_text) continue;
        const std::optional<std::string> piece = from_symbols(symbols);
        if (!piece || piece->empty()) fail_damaged(where, "token " + shown(id) + " is not of the byte-level alphabet");
        pieces[take(id)] = *piece;
    }
    return pieces;
}

std::vector<Merge> read_merges(const json& merges, const json& vocab, const std::string& where) {
    std::vector<Merge> ranked;
    std::set<std::pair<int, int>> known;
    const auto id_of = [&](const std::string& symbols) {
        const auto found = vocab.find(symbols);
        return found == vocab.end() || symbols == end_of_text_name ? -1 : found->get<int>();
    };
    if (!merges.is_array()) fail_damaged(where, "model.merges is not a list");
    for (const json& merge : merges) {                 // "a b", as all versions read it, or ["a", "b"], as newer ones
        const std::string both = merge.is_string() ? merge.get<std::string>() : "";
        const size_t space = both.find(' ');
        const json pair = space == both.npos ? merge : json::array({both.substr(0, space), both.substr(space + 1)});
        const bool two = pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
        const std::string left = two ? pair[0].get<std::string>() : "", right = two ? pair[1].get<std::string>() : "";
        const Merge m{id_of(left), id_of(right), id_of(left + right)};
        if (m.left < 0 || m.right < 0 || m.result < 0 || !known.insert({m.left, m.right}).second)
            fail_damaged(where, concat("merge ", ranked.size(),
                                       " is not two tokens that joined are a third, or stands twice"));
        ranked.push_back(m);
    }
    return ranked;
}

// How long the character that `lead` opens is, and what its second byte may be (Unicode, table 3-7); 0: opens none.
struct Form { size_t length; unsigned char low, high; };
Form form_of(unsigned char lead) {
    if (lead < 0x80) return {1, 0, 0};
    if (lead < 0xC2 || lead > 0xF4) return {0, 0, 0};
    if (lead < 0xE0) return {2, 0x80, 0xBF};
    if (lead < 0xF0) return {3, uint8_t(lead == 0xE0 ? 0xA0 : 0x80), uint8_t(lead == 0xED ? 0x9F : 0xBF)};
    return {4, uint8_t(lead == 0xF0 ? 0x90 : 0x80), uint8_t(lead == 0xF4 ? 0x8F : 0xBF)};
}

}  // namespace

Tokenizer::Tokenizer(Splitter splitter, std::vector<Merge> merges)
    : splitter_(std::move(splitter)), merges_(std::move(merges)), pieces_(256) {
    for (size_t byte = 0; byte < 256; ++byte) pieces_[byte] = {char(byte)}, byte_id_[byte] = int(byte);
    const auto known = [this](int id) { return id >= 0 && size_t(id) < pieces_.size(); };
    for (const Merge& m : merges_.ranked()) {
        require(known(m.left) && known(m.right) && known(m.result - 1), "tokenizer: merges number results in order");
        if (!known(m.result)) pieces_.push_back(pieces_[size_t(m.left)] + pieces_[size_t(m.right)]);
    }
    end_of_text_ = int(pieces_.size());
    pieces_.emplace_back();
}

Tokenizer Tokenizer::none(long vocab) {
    Tokenizer t = bytes();
    t.pieces_.assign(size_t(vocab), ""), t.end_of_text_ = -1;
    return t;
}

Tokenizer Tokenizer::from_json(const std::string& text, const std::string& where) {
    const json file = json::parse(text, shallow, false);
    if (file.is_discarded()) fail(where, ": is not JSON", advice);
    const json& model = field(file, "model");
    if (field(model, "type") != "BPE") refuse(where, "model", model, "type BPE");
    for (const char* part : {"normalizer", "post_processor", "truncation", "padding"})
        if (!field(file, part).is_null()) refuse(where, part, field(file, part), "none");
    for (const char* option : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                               "byte_fallback", "ignore_merges"})
        if (!is_off(field(model, option))) refuse(where, option, field(model, option), "none");
    if (field(field(file, "decoder"), "type") != "ByteLevel")
        refuse(where, "decoder", field(file, "decoder"), "ByteLevel");

    Tokenizer t(read_splitter(field(file, "pre_tokenizer"), where), {});
    const size_t end = read_end_of_text(field(file, "added_tokens"), where);
    t.pieces_ = read_pieces(field(model, "vocab"), end, where);
    t.end_of_text_ = int(end);
    t.merges_ = Merges(read_merges(field(model, "merges"), field(model, "vocab"), where));
    t.byte_id_.fill(-1);
    for (size_t id = 0; id < t.pieces_.size(); ++id)
        if (t.pieces_[id].size() == 1) t.byte_id_[static_cast<unsigned char>(t.pieces_[id][0])] = int(id);
    if (std::count(t.byte_id_.begin(), t.byte_id_.end(), -1)) fail_damaged(where, "a byte has no token");
    return t;
}

std::vector<int> Tokenizer::encode(std::string_view text, Parse parse) const {
    if (!has_text()) fail("--tokenizer none has ids and no texts: give token shards (.bin), or another tokenizer");
    constexpr size_t most_words = 1 << 18;             // a word that came before is copied; this bounds the memory
    std::unordered_map<std::string_view, std::pair<size_t, size_t>> seen;   // where its ids stand
    std::vector<int> ids;
    const auto plain = [&](std::string_view part) {
        while (!part.empty()) {
            const std::string_view word = part.substr(0, splitter_.first_word(part));
            part.remove_prefix(word.size());
            if (const auto found = seen.find(word); found != seen.end()) {
                for (size_t i = found->second.first; i < found->second.second; ++i) ids.push_back(ids[i]);
                continue;
            }
            const size_t from = ids.size();
            for (char c : word) ids.push_back(byte_id_[static_cast<unsigned char>(c)]);
            merges_.apply(ids, from);
            if (seen.size() < most_words) seen.emplace(word, std::pair(from, ids.size()));
        }
    };
    const std::string_view name = end_of_text_name;
    size_t at = 0, found;
    while (parse == Parse::special && (found = text.find(name, at)) != text.npos) {
        plain(text.substr(at, found - at));
        ids.push_back(end_of_text_);
        at = found + name.size();
    }
    plain(text.substr(at));
    return ids;
}

const std::string& Tokenizer::bytes_of(int id) const {
    if (id < 0 || id >= vocab()) fail("decode: token id ", id, " is outside the tokenizer's 0 to ", vocab() - 1);
    return pieces_[size_t(id)];
}

std::string Tokenizer::decode(const std::vector<int>& ids, Special special) const {
    std::string text;
    for (int id : ids) {
        text += bytes_of(id);
        if (id == end_of_text_ && special == Special::show) text += end_of_text_name;
    }
    return text;
}

// A text without merges is the same ids however it is cut.
uint64_t Tokenizer::hash() const {
    if (!has_text()) return 0;
    Hash hash;
    const auto add_text = [&](const std::string& text) {
        hash.add(text.size());
        for (char c : text) hash.add(static_cast<unsigned char>(c));
    };
    add_text(merges_.ranked().empty() ? "" : splitter_.regex);
    hash.add(uint64_t(end_of_text_));
    for (const std::string& piece : pieces_) add_text(piece);
    for (const Merge& m : merges_.ranked()) hash.add(uint64_t(m.left)), hash.add(uint64_t(m.right));
    return hash.value;
}

std::map<std::string, std::string> Tokenizer::files() const {
    if (!has_text()) return {};
    ordered::object_t vocab;                           // filled as a list: setting a key would search all others
    ordered merges = ordered::array();
    for (size_t id = 0; id < pieces_.size(); ++id)
        if (int(id) != end_of_text_) vocab.emplace_back(to_symbols(pieces_[id]), id);
    for (const Merge& m : merges_.ranked())
        merges.push_back(to_symbols(pieces_[size_t(m.left)]) + " " + to_symbols(pieces_[size_t(m.right)]));
    ordered file = ordered::parse(tokenizer_json), config = ordered::parse(tokenizer_config_json);
    ordered end = file["added_tokens"][0];
    end.erase("id");
    config["added_tokens_decoder"][std::to_string(end_of_text_)] = end;
    file["added_tokens"][0]["id"] = end_of_text_;
    file["model"].update({{"vocab", std::move(vocab)}, {"merges", std::move(merges)}});
    if (ordered& words = file["pre_tokenizer"]; !splitter_.regex.empty())
        words = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Split"}, {"pattern", {{"Regex", splitter_.regex}}},
                                                           {"behavior", "Isolated"}, {"invert", false}}, words}}};
    return {{"tokenizer.json", file.dump(2) + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
}

Tokenizer load_tokenizer(const std::string& what, long ids_of_none) {
    if (what == "byte") return Tokenizer::bytes();
    if (what == "none" && ids_of_none == 0) fail("--tokenizer none: how many ids are there? Give --vocab or --model");
    if (what == "none") return Tokenizer::none(ids_of_none);
    std::error_code ignored;
    const std::string path = std::filesystem::is_directory(what, ignored) ? what + "/tokenizer.json" : what;
    return Tokenizer::from_json(read_text(path, std::string("can't open it") + advice), path);
}

Tokenizer train_bpe(const WordCounts& words, long vocab) {
    if (vocab < 257)
        fail("a vocabulary of ", vocab, " tokens: 256 bytes and <|endoftext|> alone are 257");
    return {plain_words(), learn_merges(words, vocab - 257)};
}

std::string Utf8Stream::push(std::string_view bytes) {
    const std::string all = pending_ + std::string(bytes);
    std::string out;
    size_t i = 0;
    while (i < all.size()) {
        const Form form = form_of(static_cast<unsigned char>(all[i]));
        size_t good = 1;                               // bytes that belong together
        while (good < form.length && i + good < all.size()) {
            const auto next = static_cast<unsigned char>(all[i + good]);
            if (good == 1 ? next < form.low || next > form.high : next < 0x80 || next > 0xBF) break;
            ++good;
        }
        if (good < form.length && i + good == all.size()) break;
        if (good == form.length) out.append(all, i, good);
        else out += "\xEF\xBF\xBD";
        i += good;
    }
    pending_ = all.substr(i);
    return out;
}

std::string Utf8Stream::finish() {
    const bool cut = !pending_.empty();
    pending_.clear();
    return cut ? "\xEF\xBF\xBD" : "";
}

}  // namespace baretrain
