#include "tokenizer.h"
#include "host.h"
#include "device/random.h"
#include <ctime>
#include <nlohmann/json.hpp>
#include <pthread.h>
#include <set>

using namespace baretrain;
using namespace baretrain::test;

using nlohmann::json;

static std::string error_of(const std::string& what) {
    return test::error_of([&] { load_tokenizer(what); });
}

static const std::string sample_text =
    "The cat sat on the mat; the cats' mats aren't the cat's. In 1995 12345 cats sat, \n\n  that's all.\tété été!\n"
    "Thirteen other cats sat elsewhere, on other mats, and that was that; there they sat all the other day.\n";

static Tokenizer trained() {
    WordCounts words;
    count_words(words, sample_text);
    return train_bpe(words, 300);
}

static json ours() { return json::parse(Tokenizer::bytes().files().at("tokenizer.json")); }

static std::string refusal(const json& file) {
    return test::error_of([&] { Tokenizer::from_json(file.dump(), "t.json"); });
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
    for (const Tokenizer& t : {Tokenizer::bytes(), trained()})
        for (uint64_t round = 0; round < 20; ++round) {
            std::string text;
            for (uint64_t i = 0; i < round * 50; ++i) text += char(philox(1, Stream::test, round, i).v[0]);
            text += sample_text.substr(0, 5 * round) + text;
            CHECK(t.decode(t.encode(text)) == text);
        }
}

TEST_CASE("a trained tokenizer has the bytes, the merged tokens and <|endoftext|>, and says what they stand for") {
    const Tokenizer t = trained();
    CHECK(t.vocab() == 300);
    CHECK(t.end_of_text() == 299);
    for (int b = 0; b < 256; ++b) CHECK(t.bytes_of(b) == std::string(1, char(b)));
    CHECK(t.bytes_of(299) == "");
    CHECK_THROWS_AS(t.bytes_of(300), Error);
    const std::vector<int> ids = t.encode(sample_text);
    CHECK(ids.size() < sample_text.size() * 2 / 3);
    std::string text;
    for (int id : ids) text += t.bytes_of(id);
    CHECK(text == sample_text);
    CHECK(t.encode(" the") == std::vector<int>{t.encode("x the")[1]});
    CHECK_THROWS_WITH_AS(train_bpe({}, 256), "a vocabulary of 256 tokens: 256 bytes and <|endoftext|> alone are 257",
                         Error);
    CHECK(train_bpe({}, 257).hash() == Tokenizer::bytes().hash());   // without merges the cut does not matter
}

// On a stack of 256 KB: nothing in it may call itself once a character. Seconds of the processor, which others share.
static double encoding_time(const Tokenizer& t, std::string_view text) {
    struct Task { const Tokenizer& t; std::string_view text; double seconds; size_t ids; } task{t, text, 0, 0};
    const auto body = [](void* argument) -> void* {
        Task& own = *static_cast<Task*>(argument);
        const std::clock_t start = std::clock();
        own.ids = own.t.encode(own.text).size();
        own.seconds = double(std::clock() - start) / CLOCKS_PER_SEC;
        return nullptr;
    };
    pthread_attr_t small;
    pthread_t thread;
    REQUIRE(pthread_attr_init(&small) == 0);
    REQUIRE(pthread_attr_setstacksize(&small, 256 << 10) == 0);
    REQUIRE(pthread_create(&thread, &small, body, &task) == 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&small);
    CHECK(task.ids < text.size() * 9 / 10);
    return task.seconds;
}

TEST_CASE("F1: a million times one character, or random letters, takes time in proportion and little stack") {
    std::vector<std::string> texts;
    WordCounts words;
    for (const char c : {'a', '^', ' ', '\n'}) {
        words[std::string(64, c)] = 1000000;
        texts.emplace_back(1000000, c);
    }
    texts.emplace_back();
    for (uint64_t i = 0; i < 1000000; ++i) texts.back() += char('a' + philox(4, Stream::test, i, 0).v[0] % 26);
    for (size_t i = 0; i < 1000; ++i) words[texts.back().substr(20 * i, 20)] += 1;
    const Tokenizer t = train_bpe(words, 557);
    for (const std::string& text : texts) {
        const double quarter = encoding_time(t, std::string_view(text).substr(0, text.size() / 4));
        const double whole = encoding_time(t, text);
        CAPTURE(text[0]);
        CHECK(whole < 2);
        CHECK(whole < 3 * 3 * quarter + 0.05);         // two doublings; with the square of the length it were 16
    }
}

TEST_CASE("F3: decoding is exact for any ids, and a stream of them holds back what is not yet a character") {
    const Tokenizer t = trained();
    std::vector<int> ids;
    std::string singly;
    for (uint64_t i = 0; i < 2000; ++i) ids.push_back(int(philox(2, Stream::test, i, 0).v[0] % 300));
    Utf8Stream stream, whole;
    std::string streamed;
    for (int id : ids) singly += t.decode({id}, Special::show), streamed += stream.push(t.decode({id}, Special::show));
    CHECK(t.decode(ids, Special::show) == singly);
    const std::string at_once = whole.push(singly);
    CHECK(streamed + stream.finish() == at_once + whole.finish());
    Utf8Stream emoji;
    for (int byte : {0xF0, 0x9F, 0x98}) CHECK(emoji.push(t.decode({byte})) == "");
    CHECK(emoji.push(t.decode({0x80})) == "😀");
    CHECK(emoji.push(t.decode({' '})) == " ");
    CHECK(emoji.push(t.decode({0xFF})) == "\xEF\xBF\xBD");
    CHECK(emoji.push(t.decode({'a'})) == "a");
}

TEST_CASE("F5: the text <0x40> is not the byte @, and a newline is a token") {
    for (const Tokenizer& t : {Tokenizer::bytes(), trained()}) {
        CHECK(t.encode("<0x40>") != t.encode("@"));
        for (const std::string text : {"<0x40>", "@", "<0x0A>", "\n", "@<0x40>\n<0x0A>"})
            CHECK(t.decode(t.encode(text)) == text);
        CHECK(t.encode("\n") == std::vector<int>{'\n'});
    }
}

TEST_CASE("<|endoftext|> in a text becomes the token where that is asked for, and nothing around it changes") {
    const Tokenizer t = trained();
    const std::string name = "<|endoftext|>";
    CHECK(t.encode(name, Parse::special) == std::vector<int>{299});
    CHECK(t.encode("<|endoftext|", Parse::special) == t.encode("<|endoftext|"));
    std::vector<int> expected = t.encode("the cat ");
    expected.insert(expected.end(), {299, 299});
    for (int id : t.encode(" the cat")) expected.push_back(id);
    CHECK(t.encode("the cat " + name + name + " the cat", Parse::special) == expected);
    CHECK(t.decode(expected, Special::show) == "the cat " + name + name + " the cat");
    for (int id : t.encode(name)) CHECK(id != 299);
}

TEST_CASE("a trained tokenizer is the same after saving and loading, whoever wrote the merges") {
    const Tokenizer t = trained();
    const TempFolder folder;
    for (const auto& [name, text] : t.files()) folder.put(name, text);
    json again = json::parse(t.files().at("tokenizer.json"));
    for (json& merge : again["model"]["merges"]) {     // the newer form
        const std::string both = merge;
        merge = {both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1)};
    }
    again["model"]["vocab"]["<|endoftext|>"] = 299;
    for (const Tokenizer& loaded : {load_tokenizer(folder.path.string()), Tokenizer::from_json(again.dump(), "")}) {
        CHECK(loaded.hash() == t.hash());
        CHECK(loaded.files() == t.files());
        CHECK(loaded.encode(sample_text) == t.encode(sample_text));
        CHECK(loaded.end_of_text() == 299);
        CHECK(loaded.bytes_of(299) == "");
    }
}

TEST_CASE("ids may stand for the bytes in any order, as in GPT-2's file") {
    json file = ours();
    for (auto& [symbol, id] : file["model"]["vocab"].items()) id = 256 - id.get<int>();
    file["added_tokens"][0]["id"] = 0;
    const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
    CHECK(t.encode("A<|endoftext|>", Parse::special) == std::vector<int>{191, 0});
    CHECK(t.decode({191, 0, 190}) == "AB");
    CHECK(t.hash() != Tokenizer::bytes().hash());
}

TEST_CASE("the hash is that of vocabulary, merges and pattern") {
    WordCounts words;
    count_words(words, sample_text);
    const std::vector<Merge> merges = learn_merges(words, 43);
    const uint64_t h = trained().hash();
    CHECK(Tokenizer(plain_words(), merges).hash() == h);
    CHECK(Tokenizer(whole_text(), merges).hash() != h);
    CHECK(Tokenizer(plain_words(), {merges.begin(), merges.end() - 1}).hash() != h);
    CHECK(Tokenizer(plain_words(), {{'a', 'b', 256}, {'c', 'd', 257}}).hash() !=
          Tokenizer(plain_words(), {{'c', 'd', 256}, {'a', 'b', 257}}).hash());
    CHECK_THROWS_AS(Tokenizer(plain_words(), {{'a', 'b', 257}}), Error);
}

TEST_CASE("end of text is hidden unless it is asked for, and plain text never becomes it") {
    const Tokenizer t = Tokenizer::bytes();
    CHECK(t.decode({'a', 256, 'b'}) == "ab");
    CHECK(t.decode({'a', 256, 'b'}, Special::show) == "a<|endoftext|>b");
    CHECK(t.encode("<|endoftext|>").size() == 13);
    CHECK_THROWS_WITH_AS(t.decode({257}), "decode: token id 257 is outside the tokenizer's 0 to 256", Error);
    CHECK_THROWS_AS(t.decode({-1}), Error);
}

TEST_CASE("tokenizer.json is a ByteLevel BPE without merges") {
    const auto files = Tokenizer::bytes().files();
    REQUIRE(files.size() == 2);
    const auto j = json::parse(files.at("tokenizer.json"));
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
    const auto config = json::parse(files.at("tokenizer_config.json"));
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

TEST_CASE("what is not built yet is refused in one line that names the part") {
    const TempFolder folder;
    const std::string file = folder / "tokenizer.json";
    CHECK(error_of(file) == file + ": can't open it; --tokenizer is byte, or a folder or tokenizer.json");
    CHECK(contains(error_of(folder.path.string()), "can't open it"));
    folder.put("tokenizer.json", "{ not json");
    CHECK(error_of(file) == file + ": is not JSON; --tokenizer is byte, or a folder or tokenizer.json");
    CHECK(refusal(ours()) == "");
    CHECK(refusal(json::object()) == "t.json: not built yet: model null; byte-level BPE is read with type BPE");
    const std::pair<const char*, const char*> cases[] = {
        {R"({"model":{"type":"Unigram"}})", "model \"Unigram\""},
        {R"({"model":{"byte_fallback":true}})", "byte_fallback true"},
        {R"({"model":{"ignore_merges":true}})", "ignore_merges true"},
        {R"({"model":{"unk_token":"<unk>"}})", "unk_token \"<unk>\""},
        {R"({"model":{"dropout":0.1}})", "dropout 0.1"},
        {R"({"normalizer":{"type":"NFC"}})", "normalizer \"NFC\""},
        {R"({"post_processor":{"type":"TemplateProcessing"}})", "post_processor \"TemplateProcessing\""},
        {R"({"truncation":{"max_length":8}})", "truncation object"},
        {R"({"decoder":{"type":"Metaspace"}})", "decoder \"Metaspace\""},
        {R"({"pre_tokenizer":null})", "pre_tokenizer null"},
        {R"({"pre_tokenizer":{"type":"White\nspace"}})", "pre_tokenizer \"White\\nspace\""},
        {R"({"pre_tokenizer":{"add_prefix_space":true}})", "pre_tokenizer's add_prefix_space true"},
        {R"({"pre_tokenizer":{"use_regex":true}})", "pre_tokenizer's use_regex true"},
        {R"({"added_tokens":[]})", "added_tokens array"}};
    for (const auto& [patch, named] : cases) {
        CAPTURE(patch);
        json other = ours();
        other.update(json::parse(patch), true);
        const std::string line = refusal(other);
        CHECK(contains(line, std::string("t.json: not built yet: ") + named + "; byte-level BPE is read with "));
    }
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
        json other = ours();
        other["added_tokens"][0][flag] = true;
        CHECK(contains(refusal(other), std::string("an added token with ") + flag + " true"));
    }
    json other = json::parse(trained().files().at("tokenizer.json"));
    CHECK(refusal(other) == "");
    json& split = other["pre_tokenizer"]["pretokenizers"][0];
    for (const char* patch : {R"({"pattern":{"Regex":"\\s+"}})", R"({"behavior":"Removed"})", R"({"type":"Digits"})"}) {
        const json before = split;
        split.update(json::parse(patch));
        CHECK(contains(refusal(other), "not built yet: pre_tokenizer"));
        split = before;
    }
    const fs::path gpt2 = "../shared/tokenizers/gpt2/tokenizer.json";
    if (!fs::exists(gpt2)) MESSAGE("skipped: there is no ", gpt2.string());
    else CHECK(contains(error_of(gpt2.string()), "not built yet"));
}

TEST_CASE("a file whose vocabulary and merges do not fit together is not loaded") {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"merges":["a b"]})", "merge 0 "},           {R"({"merges":["ab"]})", "merge 0 "},
        {R"({"merges":[["a"]]})", "merge 0 "},           {R"({"merges":[7]})", "merge 0 "},
        {R"({"merges":{}})", "merges is not a list"},    {R"({"vocab":[]})", "vocab is not an object"},
        {R"({"vocab":{"a":98}})", "each once: 98"},      {R"({"vocab":{"a":-1}})", "each once: -1"},
        {R"({"vocab":{"a":"x"}})", "each once: \"x\""},  {R"({"vocab":{"ab":258}})", "each once: 258"},
        {R"({"vocab":{"€":257}})", "byte-level alphabet"}, {R"({"vocab":{"":257}})", "byte-level alphabet"}};
    for (const auto& [patch, named] : cases) {
        CAPTURE(patch);
        json other = ours();
        const json changes = json::parse(patch);
        for (const auto& [key, value] : changes.items()) {
            json& part = other["model"][key];
            if (part.is_object() && value.is_object()) part.update(value);
            else part = value;
        }
        CHECK(contains(refusal(other), std::string("t.json: not a sound tokenizer.json: ")));
        CHECK(contains(refusal(other), named));
    }
    json other = ours();
    other["model"]["vocab"]["aa"] = other["model"]["vocab"]["a"], other["model"]["vocab"].erase("a");
    CHECK(contains(refusal(other), "a byte has no token"));
    other = json::parse(trained().files().at("tokenizer.json"));
    other["model"]["merges"].push_back(other["model"]["merges"][0]);
    CHECK(contains(refusal(other), "stands twice"));
}

TEST_CASE("a truncated or damaged tokenizer.json gives one line or a working tokenizer, never a crash") {
    const Tokenizer t = train_bpe({{"hello", 3}, {" hello", 2}}, 260);
    const std::string whole = json::parse(t.files().at("tokenizer.json")).dump();
    for (size_t n = 0; n < whole.size(); ++n) {
        const std::string line = test::error_of([&] { Tokenizer::from_json(whole.substr(0, n), "t.json"); });
        if (!contains(line, "t.json: is not JSON")) CHECK(line == "");   // one failure a length is enough
        if (line.empty()) FAIL("a prefix was loaded");
    }
    for (uint64_t round = 0; round < 1000; ++round) {
        std::string damaged = whole;
        const auto random = philox(5, Stream::test, round, 0);
        damaged[random.v[0] % whole.size()] = char(random.v[1] % 127);
        test::error_of([&] {
            const Tokenizer other = Tokenizer::from_json(damaged, "t.json");
            CHECK(other.decode(other.encode("hello \n")) == "hello \n");
        });
    }
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

TEST_CASE("none has ids and no texts: nothing is encoded, nothing written, any shard's hash fits") {
    const Tokenizer t = load_tokenizer("none", 50257);
    CHECK(t.vocab() == 50257);
    CHECK(!t.has_text());
    CHECK(t.end_of_text() == -1);
    CHECK(t.files().empty());
    CHECK(t.hash() == 0);
    CHECK(t.decode({1, 50256}).empty());
    CHECK(test::error_of([&] { t.encode("a"); }).starts_with("--tokenizer none has ids and no texts"));
    CHECK(test::error_of([] { load_tokenizer("none"); }).starts_with("--tokenizer none: how many ids are there?"));
}

}  // TEST_SUITE
