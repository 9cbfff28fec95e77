// tokenize_test.cpp - which files and documents are read, ids that do not depend on threads, and JSON lines both ways.
#include "tokenize.h"
#include "host.h"
#include <sstream>

using namespace baretrain;
using namespace baretrain::test;

namespace {

const Tokenizer byte = Tokenizer::bytes();
const Encoder encode{byte};

std::vector<std::string> inputs_of(const std::string& path) {
    Inputs inputs;
    add_inputs(inputs, "--data", path);
    return inputs.files;
}

Ids ids_of(const std::vector<std::string>& files, const Tokenizer& tokenizer, int threads) {
    Ids all;
    encode_files(files, {tokenizer, Parse::special}, threads,
                 [&](const Ids& ids) { all.insert(all.end(), ids.begin(), ids.end()); });
    return all;
}
std::string text_of(const std::vector<std::string>& files, int threads = 1) {
    return byte.decode(ids_of(files, byte, threads), Special::show);
}

std::string lines(const std::string& in, bool decode = false) {
    std::istringstream from(in);
    std::ostringstream to;
    decode ? decode_lines(from, to, byte) : encode_lines(from, to, encode);
    return to.str();
}

}  // namespace

TEST_SUITE("tokenize") {

TEST_CASE("a pattern gives the files and folders that match, sorted; nothing is an error") {
    const TempFolder f;
    const std::string b = f.put("b.txt", "b"), a = f.put("a.txt", "a"), c = f.put("c.md", "c"), d = f.put("d/x/y", "y"),
                      odd = f.put("[o]*", "odd");
    CHECK(inputs_of(f / "*.txt") == std::vector<std::string>{a, b});
    CHECK(inputs_of(f / "[bc].*") == std::vector<std::string>{b, c});
    CHECK(inputs_of(f / "?") == std::vector<std::string>{d});
    CHECK(inputs_of(f / "[o]*") == std::vector<std::string>{odd});   // a file of that very name
    CHECK(error_of([&] { inputs_of(f / "*.csv"); }) == "--data " + (f / "*.csv") + ": no file matches");
    CHECK(error_of([&] { inputs_of(f / "none"); }) == "--data " + (f / "none") + ": no such file or folder");
}

TEST_CASE("a .jsonl file has a document in each line, and documents without text are left out") {
    const TempFolder f;
    const std::string path = f.put("a.jsonl", "{\"text\": \"one\"}\n"
                                              "{\"id\": 7, \"text\": \"t\\u00e9\\n\\ud83d\\ude00\"}\r\n"
                                              "{\"text\": \"\"}\n{\"text\": \"last\"}");
    CHECK(text_of({path}) == "one<|endoftext|>t\u00E9\n\U0001F600<|endoftext|>last");
    CHECK(text_of({f.put("b.txt", "B\n"), path, path}) ==
          "B\n<|endoftext|>" + text_of({path}) + "<|endoftext|>" + text_of({path}));
    CHECK(text_of({f.put("none.jsonl", "{\"text\": \"\"}\n")}).empty());
    CHECK(error_of([&] { text_of({f.put("empty.jsonl", "")}); }) ==
          (f / "empty.jsonl") + ": is empty; give a file with text");
    CHECK(error_of([&] { text_of({f.path.string()}); }) ==
          f.path.string() + ": is not a regular file; give text files or folders of them");
}

TEST_CASE("a bad line of a .jsonl file is named with its file and number") {
    const TempFolder f;
    const auto check = [&](const std::string& line, const std::string& says) {
        const std::string path = f.put("a.jsonl", "{\"text\": \"one\"}\n" + line + "\n{\"text\": \"three\"}\n");
        CHECK(error_of([&] { text_of({path}); }) == path + ": line 2 " + says + "; each line is {\"text\": \"...\"}");
    };
    check("{\"text\": \"two\"", "is not JSON in UTF-8");
    check("", "is not JSON in UTF-8");
    check("two", "is not JSON in UTF-8");
    check("{\"text\": \"tw\xC3\"}", "is not JSON in UTF-8");
    check(std::string("{\"text\": \"two\"}\0 more", 21), "is not JSON in UTF-8");
    check("[\"two\"]", "is JSON, but no object");
    check("{\"Text\": \"two\"}", "has no \"text\"");
    check("{\"text\": 2}", "has a \"text\" that is no string");
    check(std::string(100'000, '['), "is not JSON in UTF-8");
    const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    CHECK(text_of({f.put("deep.jsonl", "{\"text\": \"one\", \"more\": " + deep + "}")}) == "one");
    std::string whole = "{\"text\": \"one\"}\n{\"text\": \"two\", \"more\": [1, {\"a\": null}]}\n";
    for (size_t n = 0; n < whole.size(); ++n) {        // C13: every prefix is whole lines or one error
        const std::string path = f.put("cut.jsonl", whole.substr(0, n));
        const bool lines = n == 15 || n == 16 || n == whole.size() - 1;
        CHECK(error_of([&] { text_of({path}); }).empty() == lines);
    }
}

TEST_CASE("the ids do not depend on the number of threads or on where a long document is cut") {
    const TempFolder f;
    std::string many, prose;
    for (int i = 0; i < 300; ++i)
        many += "{\"text\": \"" + std::string(size_t(i * 37 % 101), char('a' + i % 26)) + "\"}\n";
    for (unsigned n = 7; prose.size() < 5 << 20; n = n * 1103515245 + 12345)
        prose += (n >> 16) % 50 ? std::string(1 + (n >> 20) % 3, ' ') + "ab,c'd" + std::to_string(n >> 28) : "<|endoftext|>\n";
    const std::string path = f.put("a.jsonl", many), large = f.put("b.txt", prose);
    WordCounts words;
    count_words(words, prose.substr(0, 10000));
    for (const Tokenizer& tokenizer : {byte, train_bpe(words, 270)}) {
        const std::vector<std::string> files = {path, large, path};
        const Ids one = ids_of(files, tokenizer, 1);
        for (int threads : {2, 3, 16}) CHECK((ids_of(files, tokenizer, threads) == one));
        CHECK((ids_of({large}, tokenizer, 2) == tokenizer.encode(prose, Parse::special)));
    }
}

TEST_CASE("tokenize writes one shard of all documents, that its tokenizer reads") {
    const TempFolder f;
    Inputs inputs;
    f.put("d/a.txt", "first"), f.put("d/b.jsonl", "{\"text\": \"second\"}\n{\"text\": \"third\"}\n");
    add_inputs(inputs, "tokenize", f / "d");
    CHECK(tokenize_files(inputs, encode, f / "t.bin", 2) == 18);
    Tokens tokens(byte.vocab());
    tokens.append(open_shard(f / "t.bin", vocabulary_of(byte)));
    CHECK(byte.decode(tokens.read(0, 18), Special::show) == "first<|endoftext|>second<|endoftext|>third");
    CHECK(!fs::exists(f / "t.bin.tmp"));
    const std::string before = get(f / "t.bin");
    add_inputs(inputs, "tokenize", f / "t.bin");
    CHECK(error_of([&] { tokenize_files(inputs, encode, f / "t.bin", 2); }) ==
          (f / "t.bin") + ": ends in .bin, as token shards do; give text files");
    CHECK(get(f / "t.bin") == before);
}

TEST_CASE("lines go in as JSON and out as lists of ids, and back") {
    CHECK(lines("{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"\xC3\xA9\"}") == "[97,98]\n[]\n[195,169]\n");
    CHECK(lines("[97,98]\n[]\n[195, 169, 256]\n[195]", true) ==
          "{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":\"\xC3\xA9<|endoftext|>\"}\n{\"text\":\"\xEF\xBF\xBD\"}\n");
    CHECK(lines("").empty());
    CHECK(error_of([] { lines("{\"text\": \"a\"}\nb"); }) ==
          "standard input: line 2 is not JSON in UTF-8; each line is {\"text\": \"...\"}");
    const char* const range = ", the tokenizer has the ids 0 to 256; each line is a list of ids";
    for (const char* id : {"257", "-1", "1.5", "\"a\"", "18446744073709551615", "[1]", "4294967297"})
        CHECK(error_of([&] { lines("[1]\n[1," + std::string(id) + "]", true); }) ==
              "standard input: line 2 holds " + std::string(id) + range);
    for (const char* line : {"", "1", "{}", "[1"})
        CHECK(error_of([&] { lines(std::string(line) + "\n", true); }) ==
              "standard input: line 1 is no JSON list; each line is a list of ids");
}

}  // TEST_SUITE
