#include "tokenizer.h"
#include "device/error.h"
#include "files.h"
#include <filesystem>
#include <nlohmann/json.hpp>

namespace baretrain {

namespace {

using json = nlohmann::ordered_json;                   // the vocabulary reads best in the order of its ids
const char* const end_of_text_name = "<|endoftext|>";

std::string utf8(int code) {                           // code < 0x800 is all that ByteLevel needs
    if (code < 0x80) return {char(code)};
    return {char(0xC0 | code >> 6), char(0x80 | (code & 63))};
}

// GPT-2's printable alphabet: a printable Latin-1 byte is its own symbol, the other 68 follow from U+0100 on.
json byte_symbols() {
    json vocab = json::object();
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        vocab[utf8(printable ? byte : next++)] = byte;
    }
    return vocab;
}

json added_token() {
    return {{"content", end_of_text_name}, {"single_word", false}, {"lstrip", false}, {"rstrip", false},
            {"normalized", false}, {"special", true}};
}

json byte_level(bool regex) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", regex}};
}

json tokenizer_json() {
    json end = {{"id", 256}};
    end.update(added_token());
    const json model = {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr}, {"end_of_word_suffix", nullptr}, {"fuse_unk", false},
                        {"byte_fallback", false}, {"vocab", byte_symbols()}, {"merges", json::array()}};
    return {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", json::array({end})},
            {"normalizer", nullptr}, {"pre_tokenizer", byte_level(false)}, {"post_processor", nullptr},
            {"decoder", byte_level(true)}, {"model", model}};
}

// Others may have saved the file again with more fields: only what decides the ids is compared.
bool is_byte_tokenizer(const json& file) {
    const json ours = tokenizer_json(), none = json::array();
    try {
        const json &model = file.at("model"), &added = file.at("added_tokens");
        return model.at("type") == "BPE" && model.at("merges") == none && file.value("normalizer", json()).is_null() &&
               file.value("post_processor", json()).is_null() && file.at("pre_tokenizer").at("type") == "ByteLevel" &&
               !file.at("pre_tokenizer").at("add_prefix_space").get<bool>() &&
               nlohmann::json(model.at("vocab")) == nlohmann::json(ours["model"]["vocab"]) && added.size() == 1 &&
               added[0].at("id") == 256 && added[0].at("content") == end_of_text_name;
    } catch (const json::exception&) {
        return false;
    }
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

std::vector<int> Tokenizer::encode(std::string_view text) const {
    std::vector<int> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
}

std::string Tokenizer::decode(const std::vector<int>& ids, Special special) const {
    std::string text;
    for (int id : ids) {
        if (id < 0 || id > end_of_text())
            fail("decode: token id " + std::to_string(id) + " is outside the byte tokenizer's 0 to 256");
        if (id < 256) text += char(id);
        else if (special == Special::show) text += end_of_text_name;
    }
    return text;
}

std::map<std::string, std::string> Tokenizer::files() const {
    const json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"added_tokens_decoder", {{"256", added_token()}}},
                         {"bos_token", end_of_text_name},
                         {"eos_token", end_of_text_name},
                         {"clean_up_tokenization_spaces", false}};
    return {{"tokenizer.json", tokenizer_json().dump(2) + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
}

Tokenizer load_tokenizer(const std::string& what) {
    if (what == "byte") return Tokenizer::bytes();
    namespace fs = std::filesystem;
    std::error_code ignored;
    const std::string path = fs::is_directory(what, ignored) ? what + "/tokenizer.json" : what;
    const std::string advice = "; --tokenizer is byte, or a folder or tokenizer.json";
    const json file = json::parse(read_text(path, "can't open it" + advice), shallow, false);
    if (file.is_discarded()) fail(path + ": is not JSON" + advice);
    if (!is_byte_tokenizer(file))
        fail(path + ": not built yet: only the byte tokenizer (256 bytes and <|endoftext|>) can be read");
    return Tokenizer::bytes();
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
