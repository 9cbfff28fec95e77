// cli_test.cpp - the program as its user meets it: exit codes, one line for whatever is wrong, and nothing left behind.
#include "program.h"
#include <doctest/doctest.h>
#include <map>
#include <nlohmann/json.hpp>

using namespace baretrain::test;

namespace {

using nlohmann::json;

struct Lab : TempFolder {
    Lab() { put(path / "text.txt", prose(1200)); }
    Words tiny() const {
        return {"--family", "gpt2", "--layers", "1", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "2",
                "--steps", "4", "--data", "text.txt", "--out", "run"};
    }
    // A trained model; returns its checkpoint.
    std::string trained(const Words& more = {}) const {
        const Result r = run(path, tiny() + more);
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        CHECK(r.err.empty());
        return *this / "run/step-000004";
    }
};

// One line on stderr that says all of `names`, nothing written below `lab`.
void check_refused(const Lab& lab, int code, const Words& words, const Words& names) {
    std::string command;
    for (const std::string& w : words) command += w + " ";
    CAPTURE(command);
    const Result r = run(lab.path, words);
    CAPTURE(r.err);
    CHECK(r.code == code);
    CHECK(r.err.starts_with("train_gpt: "));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
    CHECK(r.err.ends_with("\n"));
    for (const std::string& name : names) {
        CAPTURE(name);
        CHECK(contains(r.err, name));
    }
    CHECK(!fs::exists(lab.path / "run"));
    CHECK(!fs::exists(lab.path / "out"));
    CHECK(r.seconds < 10);
}

std::map<std::string, std::string> values_of(const std::string& toml) {
    std::map<std::string, std::string> values;
    for (size_t begin = 0, end; begin < toml.size(); begin = end + 1) {
        end = std::min(toml.find('\n', begin), toml.size());
        const std::string line = toml.substr(begin, end - begin);
        const size_t equal = line.find(" = ");
        if (line[0] == '#' || equal == std::string::npos) continue;
        std::string value = line.substr(equal + 3, line.rfind(" # ") - equal - 3);   // without its origin
        value.erase(value.find_last_not_of(' ') + 1);
        values[line.substr(0, equal)] = value;
    }
    return values;
}

}  // namespace

TEST_SUITE("cli") {

TEST_CASE("data that is missing, empty or too short is named, with what was found and what is needed") {
    const Lab lab;
    put(lab.path / "empty.txt", "");
    put(lab.path / "short.txt", prose(16));
    fs::create_directories(lab.path / "hollow");
    const auto data = [&](const std::string& d, const std::string& val) {
        return lab.tiny() + Words{"--data", d, "--val", val};
    };
    check_refused(lab, 1, data("nowhere.txt", "0.1"), {"--data nowhere.txt", "no such file"});
    check_refused(lab, 1, data("text.txt,nowhere.txt", "0.1"), {"nowhere.txt", "no such file"});
    check_refused(lab, 1, data("empty.txt", "0.1"), {"empty.txt", "empty"});
    check_refused(lab, 1, data("hollow", "0.1"), {"hollow", "no text file"});
    check_refused(lab, 1, data("text.txt", "short.txt"), {"short.txt", "16 tokens", "17", "--seq"});
    check_refused(lab, 1, data("short.txt", "text.txt"), {"short.txt", "16 tokens", "17", "--seq"});
    check_refused(lab, 1, data("text.txt", "nowhere.txt"), {"--val nowhere.txt", "no such file"});
    check_refused(lab, 1, data("text.txt", "0.01"), {"text.txt", "12 tokens", "17"});   // of 1200: a tail of 12
    put(lab.path / "enough.txt", prose(17));
    CHECK(run(lab.path, data("enough.txt", "enough.txt") + Words{"--data", "text.txt", "--steps", "1"}).code == 0);
}

TEST_CASE("a name that is not known is answered with the nearest one") {
    const Lab lab;
    check_refused(lab, 2, {"--model", "gpt2-125m", "--out", "run"}, {"gpt2-125m", "gpt2-124m"});
    check_refused(lab, 2, lab.tiny() + Words{"--layer", "2"}, {"--layer", "--layers"});
    check_refused(lab, 2, lab.tiny() + Words{"--weight_decay", "2"}, {"--weight-decay"});
    check_refused(lab, 2, lab.tiny() + Words{"--schedule", "cosin"}, {"cosin", "cosine", "linear", "wsd", "constant"});
    check_refused(lab, 2, {"generat"}, {"generat", "generate"});
    put(lab.path / "recipe.toml", "# mine\nsteps = 3\nstep-size = 1\n");
    check_refused(lab, 2, {"--config", "recipe.toml", "--out", "run"}, {"recipe.toml:3", "step-size", "nearest"});
    put(lab.path / "recipe.toml", "steps = 3\nlr = = 1\n");
    check_refused(lab, 2, {"--config", "recipe.toml", "--out", "run"}, {"recipe.toml:2"});
    check_refused(lab, 2, {"--config", "nowhere.toml", "--out", "run"}, {"nowhere.toml", "no such file"});
}

TEST_CASE("numbers that make no model or no run are refused with the numbers") {
    const Lab lab;
    const Words run = {"--data", "text.txt", "--out", "run"};
    check_refused(lab, 2, run + Words{"--dim", "64", "--heads", "3"}, {"heads 3", "dim 64"});
    check_refused(lab, 2, run + Words{"--model", "llama-tiny", "--kv-heads", "3"}, {"kv-heads 3", "heads 4"});
    check_refused(lab, 2, run + Words{"--val", "1.5"}, {"--val 1.5", "between 0 and 1"});
    check_refused(lab, 2, run + Words{"--val", "-0.1"}, {"--val -0.1", "between 0 and 1"});
    check_refused(lab, 2, run + Words{"--batch", "2", "--seq", "16", "--tokens-per-step", "70"}, {"70", "96"});
    check_refused(lab, 2, run + Words{"--batch", "0"}, {"--batch 0"});
    check_refused(lab, 2, run + Words{"--steps", "-1"}, {"--steps -1"});
    check_refused(lab, 2, run + Words{"--steps", "ten"}, {"--steps ten", "whole number"});
    check_refused(lab, 2, run + Words{"--lr", "0"}, {"--lr 0"});
    check_refused(lab, 2, run + Words{"--lr", "nan"}, {"--lr nan"});
    check_refused(lab, 2, run + Words{"--warmup", "9", "--steps", "5"}, {"--warmup 9", "5"});
    check_refused(lab, 2, run + Words{"--vocab", "100"}, {"--vocab 100", "257"});
    check_refused(lab, 2, run + Words{"--steps"}, {"--steps", "value"});
    check_refused(lab, 2, {"--steps", "3", "--steps", "4", "--out", "run"}, {"--steps", "one value"});
    check_refused(lab, 2, {"--data", "nowhere", "--out", "run", "--ranks", "300"},   // before anything is read
                  {"--ranks 300: 300 of them on the axis dp_replicate", "at most 256"});
    check_refused(lab, 2, run + Words{"--ranks", "600", "--shard", "zero1", "--replicate", "2"}, {"300 of them on the axis dp_shard"});
}

TEST_CASE("what is not built yet is said to be so") {
    const Lab lab;
    check_refused(lab, 2, lab.tiny() + Words{"--cp", "2"}, {"--cp 2", "not built"});
    CHECK(run(lab.path, lab.tiny() + Words{"--cp", "1"}).code == 0);   // what changes nothing is no error
}

TEST_CASE("a run that does not fit is refused at once, with the megabytes needed and those there are") {
    const Lab lab;
    const Words words = {"--model", "gpt2-1558m", "--batch", "512", "--data", "text.txt", "--out", "run"};
    check_refused(lab, 1, words, {"not enough memory", " MB needed", " MB available"});
    rusage used;
    getrusage(RUSAGE_CHILDREN, &used);                 // the largest child so far; kilobytes, on a Mac bytes
    CHECK(used.ru_maxrss < 2000000 * (sizeof(void*) == 8 && fs::exists("/proc") ? 1L : 1024L));
}

TEST_CASE("a run folder that cannot be made is refused") {
    const Lab lab;
    put(lab.path / "file", "mine");
    check_refused(lab, 1, lab.tiny() + Words{"--out", "file/run"}, {"--out file/run"});
    check_refused(lab, 1, lab.tiny() + Words{"--out", "file"}, {"--out file"});
    CHECK(get(lab.path / "file") == "mine");
}

TEST_CASE("generate refuses what is no model, by name") {
    const Lab lab;
    fs::rename(fs::path(lab.trained()), lab.path / "model");
    fs::remove_all(lab.path / "run");
    fs::create_directories(lab.path / "hollow");
    check_refused(lab, 2, {"generate"}, {"--model"});
    check_refused(lab, 2, {"generate", "--model", "gpt2-tiny"}, {"--model"});
    check_refused(lab, 2, {"generate", "--model", "no/where"}, {"no/where"});
    check_refused(lab, 2, {"generate", "--model", "hollow"}, {"hollow/config.json"});
    const Words model = {"generate", "--model", "model"};
    check_refused(lab, 2, model + Words{"--tokens", "0"}, {"--tokens 0"});
    check_refused(lab, 2, model + Words{"--temperature", "-1"}, {"--temperature -1"});
    check_refused(lab, 2, model + Words{"--top-p", "0"}, {"--top-p 0"});
    check_refused(lab, 2, model + Words{"--lr", "1"}, {"--lr", "generate does not use it"});
    check_refused(lab, 2, model + Words{"--dtype", "bf16"}, {"--dtype", "generate does not use it"});
    check_refused(lab, 1, model + Words{"--prompt", prose(17)}, {"--prompt", "17", "16"});
    CHECK(run(lab.path, model + Words{"--prompt", prose(16), "--tokens", "2"}).code == 0);

    const std::string weights = lab / "model/model.safetensors", whole = get(weights);
    put(weights, whole.substr(0, whole.size() - 1));
    check_refused(lab, 1, model, {"model.safetensors"});
    put(weights, whole.substr(0, 5));
    check_refused(lab, 1, model, {"model.safetensors"});
    put(weights, "");
    check_refused(lab, 1, model, {"model.safetensors"});
    put(weights, std::string(8, '\xff') + whole.substr(8));
    check_refused(lab, 1, model, {"model.safetensors"});
    fs::remove(weights);
    check_refused(lab, 1, model, {"model: ", "safetensors"});
}

TEST_CASE("generate writes from a fresh checkpoint: the same for a seed, another for another, any bytes as a prompt") {
    for (const std::string family : {"gpt2", "llama"}) {
        CAPTURE(family);
        const Lab lab;
        const std::string folder = lab.trained({"--family", family});
        const Words model = {"generate", "--model", folder, "--tokens", "40", "--prompt", "it"};
        const Result first = run(lab.path, model);
        CAPTURE(first.err);
        REQUIRE(first.code == 0);
        CHECK(first.err.empty());
        CHECK(first.out.starts_with("it"));
        CHECK(first.out.size() > 10);
        CHECK(run(lab.path, model).out == first.out);
        CHECK(run(lab.path, model + Words{"--seed", "1337"}).out == first.out);
        CHECK(run(lab.path, model + Words{"--seed", "2"}).out != first.out);
        CHECK(run(lab.path, model + Words{"--top-k", "100000"}).out == first.out);   // more than there are: all
        const Words coldest = model + Words{"--temperature", "0"};
        CHECK(run(lab.path, coldest).out == run(lab.path, coldest + Words{"--seed", "2"}).out);
        CHECK(run(lab.path, coldest).out == run(lab.path, model + Words{"--top-k", "1"}).out);
        for (const std::string prompt : {"\xff\xfe", "\xe2\x82", "caf\xc3\xa9", "<|endoftext|>", ""}) {
            const Result r = run(lab.path, model + Words{"--prompt", prompt});
            CHECK(r.code == 0);
            CHECK(r.err.empty());
            CHECK(r.out.starts_with(prompt));
        }
    }
}

TEST_CASE("--val 0 trains on all of the text and never validates") {
    const Lab lab;
    lab.trained({"--val", "0", "--eval-every", "2"});
    CHECK(contains(get(lab / "stdout"), "no validation"));
    CHECK(!contains(get(lab / "run/log.jsonl"), "val_loss"));
    CHECK(count(get(lab / "run/log.jsonl"), "\n") == 4);
    CHECK(run(lab.path, {"--config", "run/config.toml", "--out", "again"}).code == 0);
}

TEST_CASE("help lists about thirty flags, --help-all all of them; neither makes a run") {
    const Lab lab;
    const Result help = run(lab.path, {"--help"}), all = run(lab.path, {"--help-all"});
    const Result version = run(lab.path, {"--version"});
    CHECK(help.code == 0);
    CHECK(help.err.empty());
    CHECK(count(help.out, "\n  --") >= 25);
    CHECK(count(help.out, "\n  --") <= 40);
    CHECK(all.code == 0);
    CHECK(count(all.out, "\n  --") > count(help.out, "\n  --") + 20);
    for (const char* flag : {"--lr ", "--data ", "--resume ", "--batch "}) CHECK(contains(help.out, flag));
    for (const char* flag : {"--beta2 ", "--sp ", "--eps "}) {
        CHECK(!contains(help.out, flag));
        CHECK(contains(all.out, flag));
    }
    CHECK(version.code == 0);
    CHECK(version.out.starts_with("baretrain "));
    CHECK(!fs::exists(lab.path / "out"));
}

TEST_CASE("a run's own config.toml gives the same run") {
    const Lab lab;
    const Words llama = {"--family", "llama", "--kv-heads", "1", "--tied", "false"};
    lab.trained(llama + Words{"--lr", "0.0123", "--clip", "0.5", "--prompt", "a \"b\" \\ #c"});
    const Result r = run(lab.path, {"--config", "run/config.toml", "--out", "again"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    auto first = values_of(get(lab / "run/config.toml")), second = values_of(get(lab / "again/config.toml"));
    CHECK(first.size() > 30);
    CHECK(first["lr"] == "0.0123");
    first.erase("out"), second.erase("out");
    CHECK(first == second);
    CHECK((get(lab / "run/step-000004/model.safetensors") == get(lab / "again/step-000004/model.safetensors")));
}

TEST_CASE("a run leaves a folder that others can read: configuration, facts, log, page, and a Hugging Face model") {
    const Lab lab;
    const std::string model = lab.trained({"--eval-every", "2", "--sample-every", "4", "--tokens", "5"});
    const json config = json::parse(get(model + "/config.json")), facts = json::parse(get(lab / "run/run.json"));
    CHECK(config.at("architectures") == json::array({"GPT2LMHeadModel"}));
    CHECK(config.at("n_layer") == 1);
    CHECK(config.at("vocab_size") == 257);
    CHECK(json::parse(get(model + "/tokenizer.json")).is_object());
    CHECK(fs::file_size(model + "/model.safetensors") > 4 * 257 * 16);
    for (const char* key : {"commit", "compiler", "flags", "device", "matmul", "team", "data_hash", "seed"})
        CHECK(facts.contains(key));
    CHECK(contains(get(lab / "run/run.html"), "</html>"));
    CHECK(contains(get(lab / "run/samples.jsonl"), "\"step\":4"));

    std::ifstream log(lab / "run/log.jsonl");
    long step = 0;
    for (std::string line; std::getline(log, line);) {
        const json l = json::parse(line);
        CHECK(l.at("step") == ++step);
        CHECK(l.at("tokens") == 32 * step);
        CHECK(l.at("ms").is_object());
        CHECK(l.contains("val_loss") == (step % 2 == 0));
    }
    CHECK(step == 4);
}

TEST_CASE("training can begin from a folder's weights, and refuses another shape than theirs") {
    const Lab lab;
    fs::rename(fs::path(lab.trained()), lab.path / "model");
    fs::remove_all(lab.path / "run");
    const Words from = {"--model", "model", "--data", "text.txt", "--out", "run", "--batch", "2"};
    check_refused(lab, 2, from + Words{"--layers", "2"}, {"--layers 2", "config.json says 1"});
    check_refused(lab, 2, from + Words{"--seq", "32"}, {"--seq 32", "16"});
    const std::string own = get(lab.path / "model/tokenizer.json");
    put(lab.path / "model/tokenizer.json", "{}");
    check_refused(lab, 1, from, {"model/tokenizer.json", "not built yet", "byte"});
    put(lab.path / "model/tokenizer.json", own);
    check_refused(lab, 2, lab.tiny() + Words{"--tokenizer", "model", "--vocab", "100"}, {"--vocab 100", "257"});
    put(lab.path / "model/generation_config.json", "{ \"temperature\":0.5}");
    put(lab.path / "model/tokenizer_config.json", get(lab.path / "model/tokenizer_config.json") + "\n\n");
    json config = json::parse(get(lab.path / "model/config.json"));
    config["_kept"] = {1, 1e-05};
    put(lab.path / "model/config.json", config.dump());
    for (const std::string dtype : {"fp64", "bf16", "fp32"}) {   // whatever it is in the file
        CAPTURE(dtype);
        const Result r = run(lab.path, from + Words{"--steps", "1", "--lr", "1e-30", "--dtype", dtype, "--out", dtype});
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        const fs::path step = lab.path / dtype / "step-000001";
        for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
            CHECK(get(step / name) == get(lab.path / "model" / name));
        config["torch_dtype"] = dtype == "fp64" ? "float64" : dtype == "bf16" ? "bfloat16" : "float32";
        CHECK(json::parse(get(step / "config.json")) == config);
        if (dtype == "fp32") CHECK((get(step / "config.json") == get(lab.path / "model/config.json")));
    }
}

TEST_CASE("gradcheck and doctor end well and say what they found") {
    const Lab lab;
    const Result gradients = run(lab.path, {"gradcheck"}), doctor = run(lab.path, {"doctor"});
    CHECK(gradients.code == 0);
    CHECK(contains(gradients.out, "cross-entropy"));
    CHECK(!contains(gradients.out, "WRONG"));
    CHECK(doctor.code == 0);
    const size_t line = doctor.out.find("matrix products");
    REQUIRE(line != std::string::npos);
    const std::string engine = doctor.out.substr(line, doctor.out.find('\n', line) - line);
    CHECK((contains(engine, "oneDNN") || contains(engine, "BLAS") || contains(engine, "plain")));
    CHECK(!fs::exists(lab.path / "out"));
}

TEST_CASE("tokenize learns a BPE, writes shards with it, and they train as the text does") {
    const Lab lab;
    const auto out = [&](const Words& words) {
        const Result r = run(lab.path, words);
        CHECK(r.err == "");
        CHECK(r.code == 0);
        return r.out;
    };
    put(lab.path / "more.jsonl", "{\"text\": \"the sun rose\"}\n{\"text\": \"<|endoftext|>\"}\n");
    CHECK(out({"tokenize", "--train-vocab", "280", "text.txt", "more.jsonl", "-o", "bpe"}) ==
          "bpe: 280 ids, learned from 2 files\n");
    const Words tokenize = {"tokenize", "--tokenizer", "bpe"};
    CHECK(contains(out(tokenize + Words{"text.txt", "more.jsonl", "-o", "t.bin"}), " ids of 2 bytes from 2 files\n"));

    const Words two = lab.tiny() + Words{"--steps", "2", "--tokenizer", "bpe"};
    out(two + Words{"--data", "text.txt,more.jsonl", "--out", "a"});
    out(two + Words{"--data", "t.bin", "--out", "b"});
    CHECK(get(lab.path / "a/step-000002/model.safetensors") == get(lab.path / "b/step-000002/model.safetensors"));
    check_refused(lab, 1, lab.tiny() + Words{"--data", "t.bin"}, {"t.bin: made with tokenizer", "of 280 ids", "of 257"});

    put(lab.path / "stdin", get(lab.path / "more.jsonl"));
    const std::string plain = out(tokenize + Words{"--lines"}), parsed = out({"tokenize", "--tokenizer", "bpe/tokenizer.json",
        "--lines", "--special", "parse", "--add-special-tokens"});
    CHECK(contains(parsed, "\n[279]\n"));
    CHECK(!contains(plain, "279"));
    for (const std::string& lines : {plain, parsed}) {
        put(lab.path / "stdin", lines);
        CHECK(out(tokenize + Words{"--decode"}) == "{\"text\":\"the sun rose\"}\n{\"text\":\"<|endoftext|>\"}\n");
    }
    check_refused(lab, 1, tokenize + Words{"text.txt", "-o", "t.dat"}, {"t.dat", ".bin"});
    check_refused(lab, 1, tokenize + Words{"none.txt", "-o", "t.bin"}, {"tokenize none.txt: no such file"});
}

// The whole records of the work in a trace.json.
std::vector<json> work_of(const fs::path& trace) {
    std::vector<json> work;
    const json all = json::parse(get(trace));
    for (const json& e : all["traceEvents"])
        if (e["ph"] == "X") work.push_back(e);
    return work;
}

TEST_CASE("--trace records steps 2 to N + 1 of each process, with its data and checkpoint, and changes no number") {
    const Lab lab;
    const Words traced = {"--trace", "3", "--clock", "virtual", "--clock-bytes", "2e9", "--eval-every", "1"};
    for (const char* out : {"a", "b"}) REQUIRE(run(lab.path, lab.tiny() + traced + Words{"--out", out}).code == 0);
    REQUIRE(run(lab.path, lab.tiny() + Words{"--out", "plain"}).code == 0);
    CHECK(get(lab.path / "a/trace.json") == get(lab.path / "b/trace.json"));
    CHECK(get(lab.path / "a/step-000004/model.safetensors") == get(lab.path / "plain/step-000004/model.safetensors"));
    CHECK(!fs::exists(lab.path / "plain/trace.json"));
    CHECK(contains(get(lab.path / "a/run.html"), "<figure class=\"trace\">"));
    CHECK(!contains(get(lab.path / "plain/run.html"), "<figure class=\"trace\">"));

    std::map<int, long> pieces;
    std::map<std::string, long> named;
    for (const json& e : work_of(lab.path / "a/trace.json")) {
        ++pieces[e["args"]["step"]], ++named[e["name"]];
        if (e["name"] == "next_rows") CHECK(e["dur"] == 2 * 16 * 3 * 4 / 2e9 * 1e6);   // tokens, targets, positions
        if (e["name"] == "save")                       // weights and two moments
            CHECK(e["args"]["bytes"].get<double>() / 12 == 257 * 16 + 16 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16);
    }
    CHECK((pieces.size() == 3 && pieces[2] == pieces[3] && pieces[4] == pieces[3] + 1));   // the last is saved
    CHECK((named["next_rows"] == 3 && named["upload"] == 3 && named["save"] == 1));

    REQUIRE(run(lab.path, {"--resume", "a", "--steps", "7", "--trace", "1"}).code == 0);
    const std::vector<json> resumed = work_of(lab.path / "a/trace.json");
    CHECK(long(resumed.size()) == pieces[3]);
    for (const json& e : resumed) CHECK(e["args"]["step"] == 6);
}

TEST_CASE("--explain says what a step does, and trains nothing") {
    const Lab lab;
    for (const Words& command : {Words{}, Words{"plan"}}) {
        Words words = command;
        for (const std::string& w : lab.tiny() + Words{"--explain", "true"}) words.push_back(w);
        const Result r = run(lab.path, words);
        CHECK(r.code == 0);
        CHECK(r.err.empty());
        CHECK(contains(r.out, "(32 x 16) (16 x 48)"));
        CHECK(contains(r.out, "\nupdate\n"));
        CHECK(!fs::exists(lab.path / "run"));
    }
}

TEST_CASE("report makes one page of several runs, and that of one again as the run left it") {
    const Lab lab;
    for (const std::string out : {"one", "two"}) REQUIRE(run(lab.path, lab.tiny() + Words{"--out", out}).code == 0);
    const Result several = run(lab.path, {"report", "one", "two", "-o", "compare.html"});
    CHECK(several.code == 0);
    CHECK(several.out == "compare.html: the page of 2 runs\n");
    CHECK(contains(get(lab.path / "compare.html"), "<title>2 runs</title>"));
    const std::string page = get(lab.path / "one/run.html");
    fs::remove(lab.path / "one/run.html");
    CHECK(run(lab.path, {"report", "one"}).code == 0);
    CHECK((get(lab.path / "one/run.html") == page));
    CHECK(!page.empty());
    check_refused(lab, 1, {"report", "one", "nowhere", "-o", "x.html"}, {"nowhere", "no run"});
}

}
