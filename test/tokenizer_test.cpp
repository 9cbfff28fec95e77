#include "tokenizer.h"
#include "host.h"
#include "device/random.h"
#include <nlohmann/json.hpp>
#include <set>

using namespace baretrain;
using namespace baretrain::test;

static std::string error_of(const std::string& what) {
    return test::error_of([&] { load_tokenizer(what); });
}

TEST_SUITE("tokenizer") {

TEST_CASE("every byte is its own id and comes back") {
    const Tokenizer t = Tokenizer::bytes();
    CHECK(t.vocab() == 257);
    CHECK(t.end_of_text() == 256);
    std::string all;
    for (int b = 0; b < 256; ++b) all += char(b);
    const std::vector<int> ids = t.encode(all);
    REQUIRE(ids.size() == 256);
    for (int b = 0; b < 256; ++b) CHECK(ids[size_t(b)] == b);
    CHECK(t.decode(ids) == all);
    CHECK(t.encode("").empty());
}

TEST_CASE("random bytes survive the round trip") {
    const Tokenizer t = Tokenizer::bytes();
    for (uint64_t round = 0; round < 20; ++round) {
        std::string text;
        for (uint64_t i = 0; i < round * 50; ++i) text += char(philox(1, Stream::test, round, i).v[0]);
        CHECK(t.decode(t.encode(text)) == text);
    }
}

TEST_CASE("end of text is hidden unless it is asked for, and plain text never becomes it") {
    const Tokenizer t = Tokenizer::bytes();
    CHECK(t.decode({'a', 256, 'b'}) == "ab");
    CHECK(t.decode({'a', 256, 'b'}, Special::show) == "a<|endoftext|>b");
    CHECK(t.encode("<|endoftext|>").size() == 13);
    CHECK_THROWS_WITH_AS(t.decode({257}), "decode: token id 257 is outside the byte tokenizer's 0 to 256", Error);
    CHECK_THROWS_AS(t.decode({-1}), Error);
}

TEST_CASE("tokenizer.json is a ByteLevel BPE without merges") {
    const auto files = Tokenizer::bytes().files();
    REQUIRE(files.size() == 2);
    const auto j = nlohmann::json::parse(files.at("tokenizer.json"));
    CHECK(j["model"]["type"] == "BPE");
    CHECK(j["model"]["merges"].empty());
    CHECK(j["pre_tokenizer"]["type"] == "ByteLevel");
    CHECK(j["pre_tokenizer"]["add_prefix_space"] == false);
    CHECK(j["decoder"]["type"] == "ByteLevel");
    CHECK(j["added_tokens"].size() == 1);
    CHECK(j["added_tokens"][0]["id"] == 256);
    CHECK(j["added_tokens"][0]["content"] == "<|endoftext|>");
    CHECK(j["added_tokens"][0]["special"] == true);
    const auto& vocab = j["model"]["vocab"];
    std::set<int> ids;
    for (const auto& [symbol, id] : vocab.items()) ids.insert(id.get<int>());
    CHECK(vocab.size() == 256);
    CHECK(ids.size() == 256);
    CHECK(*ids.begin() == 0);
    CHECK(*ids.rbegin() == 255);
    // GPT-2's published symbols at the borders of each range.
    const std::pair<const char*, int> known[] = {{"A", 65},   {"!", 33},   {"~", 126},  {"Ā", 0},    {"Ċ", 10},
                                                 {"Ġ", 32},   {"ġ", 127},  {"Ģ", 128},  {"ł", 160},  {"¡", 161},
                                                 {"¬", 172},  {"Ń", 173},  {"®", 174},  {"ÿ", 255}};
    for (const auto& [symbol, id] : known) {
        CAPTURE(symbol);
        CHECK(vocab[symbol] == id);
    }
    const auto config = nlohmann::json::parse(files.at("tokenizer_config.json"));
    CHECK(config["tokenizer_class"] == "PreTrainedTokenizerFast");
    CHECK(config["eos_token"] == "<|endoftext|>");
    CHECK(config["added_tokens_decoder"]["256"]["content"] == "<|endoftext|>");
}

TEST_CASE("the byte tokenizer is loaded by name, from its folder and from its file") {
    CHECK(load_tokenizer("byte").vocab() == 257);
    const TempFolder folder;
    for (const auto& [name, text] : Tokenizer::bytes().files()) std::ofstream(folder.path / name) << text;
    CHECK(load_tokenizer(folder.path.string()).vocab() == 257);
    CHECK(load_tokenizer((folder.path / "tokenizer.json").string()).vocab() == 257);
}

TEST_CASE("any other tokenizer is refused in one line") {
    const TempFolder folder;
    const fs::path file = folder.path / "tokenizer.json";
    CHECK(error_of(file.string()) ==
          file.string() + ": can't open it; --tokenizer is byte, or a folder or tokenizer.json");
    CHECK(error_of(folder.path.string()).find("can't open it") != std::string::npos);
    std::ofstream(file) << "{ not json";
    CHECK(error_of(file.string()).find(": is not JSON; ") != std::string::npos);
    const std::string refused =
        file.string() + ": not built yet: only the byte tokenizer (256 bytes and <|endoftext|>) can be read";
    const auto ours = nlohmann::json::parse(Tokenizer::bytes().files().at("tokenizer.json"));
    for (const char* patch : {R"({"model":{"merges":["a b"]}})", R"({"model":{"vocab":{"a":98,"b":97}}})",
                              R"({"model":{"type":"Unigram"}})", R"({"added_tokens":[]})",
                              R"({"normalizer":{"type":"NFC"}})", R"({"pre_tokenizer":null})"}) {
        CAPTURE(patch);
        auto other = ours;
        const auto changes = nlohmann::json::parse(patch);
        for (const auto& [key, value] : changes.items())
            if (value.is_object() && other[key].is_object()) other[key].update(value, true);
            else other[key] = value;
        std::ofstream(file) << other;
        CHECK(error_of(file.string()) == refused);
    }
    std::ofstream(file) << ours;
    CHECK(error_of(file.string()) == "");
}

TEST_CASE("a stream gives whole characters, whatever the pieces") {
    const std::string text = "aé€😀\n";
    for (size_t piece = 1; piece <= text.size(); ++piece) {
        Utf8Stream stream;
        std::string out;
        for (size_t i = 0; i < text.size(); i += piece) {
            const std::string part = stream.push(std::string_view(text).substr(i, piece));
            for (size_t n = 0; n < part.size();) {     // no character is cut
                const auto lead = static_cast<unsigned char>(part[n]);
                n += lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
                CHECK(n <= part.size());
            }
            out += part;
        }
        CHECK(out + stream.finish() == text);
    }
}

TEST_CASE("what is not UTF-8 becomes one replacement character a part") {
    const std::string bad = "\xEF\xBF\xBD";
    const std::pair<std::string, std::string> cases[] = {
        {"\xFF", bad},              {"\x80x", bad + "x"},             {"\xC0\xAF", bad + bad},
        {"\xE2\x82x", bad + "x"},   {"\xED\xA0\x80", bad + bad + bad}, {"\xF4\x90\x80\x80", bad + bad + bad + bad},
        {"\xF0\x9F\x98", bad},      {"\xE0\x80\x80", bad + bad + bad}, {"\xC3\xC3\xA9", bad + "é"}};
    for (const auto& [bytes, expected] : cases) {
        Utf8Stream whole, single;
        std::string out;
        for (char c : bytes) out += single.push({&c, 1});
        CHECK(out + single.finish() == expected);
        std::string at_once = whole.push(bytes);
        CHECK(at_once + whole.finish() == expected);
        CHECK(whole.finish().empty());
    }
}

}  // TEST_SUITE
