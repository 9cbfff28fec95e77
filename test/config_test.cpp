// config_test.cpp - defaults, precedence with origins, refusals word for word, and the way through config.toml.
#include "config.h"
#include "host.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

ParseResult run(std::vector<std::string> words) {
    words.insert(words.begin(), "train_gpt");
    std::vector<const char*> argv;
    for (const std::string& w : words) argv.push_back(w.c_str());
    return parse(int(argv.size()), argv.data());
}

Config config(const std::vector<std::string>& words) { return run(words).config; }

std::string refusal(const std::vector<std::string>& words) {
    try {
        run(words);
    } catch (const Usage& e) {
        return e.what();
    }
    return "accepted";
}

}  // namespace

TEST_SUITE("config") {

TEST_CASE("without flags it trains a small byte-level Llama") {
    const Config c = config({});
    CHECK(c.command == "train");
    CHECK(c.shape == preset("llama-tiny"));
    CHECK(c.shape.parameters() == 257 * 128 + 4 * (3 * 128 * 128 + 3 * 128 * 384 + 2 * 128) + 128);
    CHECK(c.seq == 128);
    CHECK(c.tokens_per_step == c.batch * 128);
    CHECK(c.min_lr == c.lr / 10);
    CHECK(c.origin.at("lr") == "default");
    CHECK(!c.given("lr"));
    CHECK(c.val == "0.1");
    CHECK(config({"train"}).shape == c.shape);
}

TEST_CASE("flags win over the recipe, the recipe over the defaults, and each value knows its origin") {
    const TempFolder folder;
    const std::string recipe = folder.put("r.toml", "lr = 0.5\n\nsteps = 70\nval = 0.25\n");
    const Config c = config({"--config", recipe, "--lr", "0.25"});
    CHECK(c.lr == 0.25);
    CHECK(c.steps == 70);
    CHECK(c.batch == 8);
    CHECK(c.val == "0.25");
    CHECK(c.origin.at("lr") == "flag");
    CHECK(c.origin.at("steps") == recipe + ":3");
    CHECK(c.origin.at("batch") == "default");
    CHECK(c.given("lr"));
    CHECK(c.given("steps"));
    CHECK(!c.given("batch"));
}

TEST_CASE("names that are unknown name the nearest") {
    const TempFolder folder;
    const std::string recipe = folder.put("r.toml", "\nwarm-up = 3\n");
    CHECK(refusal({"--stps", "3"}) == "--stps: unknown; the nearest is --steps");
    CHECK(refusal({"--weight_decay=3"}) == "--weight_decay: unknown; the nearest is --weight-decay");
    CHECK(refusal({"--hel"}) == "--hel: unknown; the nearest is --help");
    CHECK(refusal({"generat"}) == "generat: no such command; the nearest is generate");
    CHECK(refusal({"--config", recipe}) == recipe + ":2: warm-up: unknown; the nearest is warmup");
    CHECK(refusal({"--schedule", "cosin"}) == "--schedule cosin: expected one of cosine, linear, wsd, constant");
    CHECK(refusal({"--model", "gpt2-350m"}) == "gpt2-350m: no such preset; the nearest is gpt2-355m");
    CHECK(refusal({"--model", "./nowhere"}) == "--model ./nowhere: no such folder");
    CHECK(refusal({"--lr", "1", "train"}) == "train: expected a flag, which starts with --");
}

TEST_CASE("FP8 is for bf16 alone") {
    CHECK(refusal({"--fp8", "rowwise"}) == "--fp8 rowwise: for --dtype bf16; what is not in FP8 is in bf16");
    CHECK(refusal({"--fp8", "rowwise", "--dtype", "bf16", "--fp8-skip-ends"}) == "accepted");
    CHECK(refusal({"--fp8", "e4m3"}) == "--fp8 e4m3: expected one of off, tensorwise, rowwise");
}

TEST_CASE("keys without code behind them are refused as not built") {
    CHECK(refusal({"--cp", "2"}) == "--cp 2: not built yet; only 1 works so far");
    CHECK(refusal({"--cp", "1"}) == "accepted");
    CHECK(refusal({"--show-batch"}) == "--show-batch true: not built yet; only false works so far");
    CHECK(refusal({"--show-batch", "false"}) == "accepted");
    CHECK(refusal({"--chat", "llama3"}) == "--chat llama3: not built yet");
    const TempFolder folder;
    const std::string four = folder.put("a.toml", "pp = 4");
    CHECK(refusal({"--config", four}) == four + ":1: pp = 4: not built yet; only 1 works so far");
    CHECK(refusal({"--config", folder.put("b.toml", "cp = 1\nfp8 = \"off\"\nsp = false")}) == "accepted");
}

TEST_CASE("each command takes its own flags, says what it cannot do without, and shows both in its help") {
    const TempFolder folder;
    const std::string dir = folder / "model";
    put(dir + "/config.json", to_hf_config(preset("gpt2-tiny"), "float32"));
    CHECK(refusal({"eval"}) == "eval: needs trained weights; give --model DIR");
    CHECK(refusal({"eval", "--model", "gpt2-tiny"}) == "eval: needs trained weights; give --model DIR");
    CHECK(refusal({"eval", "--model", dir}) == "eval: needs a text; give --data F");
    CHECK(refusal({"dump", "--model", dir}) == "dump: needs a batch; give --ids F");
    CHECK(refusal({"dump", "--model", dir, "--ids", "i"}) == "dump: needs a place for the result; give -o F");
    CHECK(refusal({"export", "--model", dir}) == "export: needs a place for the result; give -o F");
    CHECK(refusal({"report"}) == "report: needs runs; name their folders");
    CHECK(refusal({"report", "a"}) == "accepted");
    CHECK(refusal({"report", "a", "b"}) == "report: needs a place for the page of several runs; give -o F");
    CHECK(refusal({"report", "a", "b", "-o", "f"}) == "accepted");
    CHECK(refusal({"report", "a", "--lr", "3"}) == "--lr: report does not use it");
    CHECK(refusal({"tokenize"}) == "tokenize: needs a tokenizer; give --tokenizer T");
    CHECK(refusal({"tokenize", "--tokenizer", "t"}) == "tokenize: needs texts; name files or folders");
    CHECK(refusal({"tokenize", "--train-vocab", "300", "a"}) == "tokenize: needs a place for the result; give -o F");
    CHECK(refusal({"dump", "--lr", "1"}) == "--lr: dump does not use it");
    CHECK(refusal({"--json"}) == "--json: train does not use it");

    CHECK(config({"plan", "--json", "--layers", "3"}).json);
    CHECK(config({"plan", "--layers", "3"}).shape == config({"--layers", "3"}).shape);
    const Config e = config({"eval", "--model", dir, "--data", "t", "--seq", "16", "--batch", "3", "--dtype", "bf16"});
    CHECK((e.tokenizer == dir && e.data == "t" && e.seq == 16 && e.batch == 3 && e.dtype == "bf16"));
    CHECK(config({"dump", "--model", dir, "--ids", "i", "-o", "o"}).output == "o");
    CHECK(config({"export", "--model", dir, "--output", "o"}).output == "o");
    const Config t = config({"tokenize", "a", "--tokenizer", "t.json", "--add-special-tokens", "b", "-o", "o"});
    CHECK(t.inputs == std::vector<std::string>{"a", "b"});
    CHECK((t.add_special_tokens && !t.lines && t.special == "ordinary" && t.tokenizer == "t.json"));
    CHECK(config({"tokenize", "--tokenizer", "t", "--lines", "--special", "parse"}).lines);

    const std::string help = run({"dump", "--help"}).text;
    for (const char* flag : {"--model", "--ids", "--output", "--dtype"}) CHECK(contains(help, flag));
    CHECK(!contains(help, "--lr"));
    CHECK(contains(run({"plan", "--help"}).text, "--json"));
    CHECK(contains(run({"tokenize", "--help"}).text, "--train-vocab"));
}

TEST_CASE("tokenize reads files or standard input, and does one thing at a time") {
    using Words = std::vector<std::string>;
    const auto with = [](Words more) {
        more.insert(more.begin(), {"tokenize", "--tokenizer", "byte"});
        return refusal(more);
    };
    CHECK(with({"--lines"}) == "accepted");
    for (const Words& more : {Words{"--lines", "a.txt"}, Words{"--decode", "-o", "f"}})
        CHECK(with(more).starts_with("tokenize: needs neither files nor -o"));
    for (const Words& more : {Words{"--lines", "--decode"}, Words{"--train-vocab", "300", "--lines"}})
        CHECK(with(more).starts_with("tokenize: needs one of --lines, --decode and --train-vocab"));
    CHECK(refusal({"tokenize", "--train-vocab", "300"}).starts_with("tokenize: needs texts"));
}

TEST_CASE("only bf16 weights can do without a master") {
    CHECK(refusal({"--master", "none"}) == "--master none: for --dtype bf16; fp32 weights are their own master");
    CHECK(refusal({"--master", "none", "--dtype", "bf16"}) == "accepted");
}

TEST_CASE("a layout that contradicts itself is refused: copies, and types on the wire") {
    CHECK(refusal({"--ranks", "4", "--replicate", "2"}).starts_with("--replicate 2: without --shard each of the 4 ranks"));
    CHECK(refusal({"--ranks", "4", "--replicate", "4"}) == "accepted");
    CHECK(refusal({"--ranks", "4", "--shard", "zero1", "--replicate", "3"}) == "--replicate 3: does not divide --ranks 4");
    CHECK(refusal({"--ranks", "4", "--shard", "fsdp", "--replicate", "2", "--gather-dtype", "bf16"}) == "accepted");
    for (const char* shard : {"none", "zero1", "zero2"}) {
        CHECK(refusal({"--ranks", "2", "--shard", shard, "--gather-dtype", "bf16"})
                  .starts_with("--gather-dtype bf16: only --shard fsdp"));
        CHECK(refusal({"--ranks", "2", "--shard", shard, "--gather-dtype", "fp32"}) == "accepted");   // as they are
    }
    const auto narrow = [](const char* flag, const char* type) {
        return refusal({"--dtype", "bf16", "--shard", "fsdp", "--ranks", "2", flag, type});
    };
    CHECK(refusal({"--ranks", "2", "--shard", "fsdp", "--dtype", "bf16", "--fp8", "tensorwise", "--gather-dtype", "fp8"}) == "accepted");
    CHECK(refusal({"--ranks", "2", "--shard", "fsdp", "--dtype", "bf16", "--fp8", "rowwise", "--gather-dtype", "fp8"})
              == "--gather-dtype fp8: --fp8 is rowwise; it needs tensorwise");
    CHECK(refusal({"--ranks", "2", "--shard", "zero2", "--dtype", "bf16", "--fp8", "tensorwise", "--gather-dtype", "fp8"})
              .starts_with("--gather-dtype fp8: only --shard fsdp"));
    CHECK(narrow("--gather-dtype", "fp32") == "--gather-dtype fp32: wider than weights of --dtype bf16");
    for (const char* flag : {"--gather-dtype", "--reduce-dtype"}) {
        CHECK(narrow(flag, "bf16") == "accepted");
        CHECK(narrow(flag, "fp64").starts_with(flag + std::string(" fp64: expected one of same, fp32, bf16")));
    }
}

TEST_CASE("every flag of the design is known") {
    for (const char* name :
         {"model", "family", "layers", "dim", "heads", "kv-heads", "head-dim", "ffn", "vocab", "seq", "tied", "data",
          "val", "tokenizer", "batch", "tokens-per-step", "steps", "epochs", "lr", "min-lr", "warmup", "schedule",
          "beta1", "beta2", "eps", "weight-decay", "clip", "nonfinite", "dtype", "fp8", "recompute", "master",
          "moments", "fp8-skip-ends", "seed", "ranks", "shard", "replicate", "tp", "sp", "cp", "pp", "ep",
          "prefetch", "reshard-after-forward", "gather-dtype", "reduce-dtype", "check-collectives", "lora-rank",
          "lora-alpha", "lora-targets", "lora-dropout", "lora-variant", "lora-plus-ratio", "lora-base", "train-on",
          "chat", "chat-date", "out", "save-every", "keep", "resume", "eval-every", "sample-every", "log-every",
          "show-batch", "ledger", "trace", "clock", "explain", "stats", "spike-z", "replay", "compare", "prompt",
          "tokens", "temperature", "top-k", "top-p"})
        CHECK_MESSAGE(!contains(refusal({"--" + std::string(name), "?"}), "unknown"), name);
}

TEST_CASE("a value out of range is refused with what was expected, and the bound itself is not") {
    CHECK(refusal({"--lr", "0"}) == "--lr 0: expected a number above 0");
    CHECK(refusal({"--lr", "nan"}).starts_with("--lr nan"));
    CHECK(refusal({"--lr", "inf"}).starts_with("--lr inf"));
    for (const char* text : {"1e-3x", "", " 1e-3", "1e-3 ", "+1e-3", "0x1p-9", "1,5"})
        CHECK(refusal({"--lr", text}).starts_with("--lr " + std::string(text) + ": expected"));
    CHECK(config({"--lr", "0.1"}).lr == 0.1);
    CHECK(config({"--eps", "2.2250738585072014e-308"}).eps == 2.2250738585072014e-308);
    CHECK(refusal({"--beta1", "1"}) == "--beta1 1: expected a number from 0 to below 1");
    CHECK(refusal({"--beta1", "0"}) == "accepted");
    CHECK(refusal({"--top-p", "0"}) == "--top-p 0: expected a number above 0 to 1");
    CHECK(refusal({"--top-p", "1"}) == "accepted");
    CHECK(refusal({"--temperature", "-0.5"}) == "--temperature -0.5: expected a number from 0");
    CHECK(refusal({"--batch", "0"}) == "--batch 0: expected a whole number from 1 to 16777216");
    CHECK(refusal({"--batch", "99999999999999999999"}).starts_with("--batch 9"));
    CHECK(refusal({"--steps", "-1"}) == "--steps -1: expected a whole number from 0");
    CHECK(refusal({"--steps", "1.5"}) == "--steps 1.5: expected a whole number from 0");
    CHECK(refusal({"--steps", "0"}) == "accepted");
    CHECK(refusal({"--steps"}) == "--steps: expected exactly one value");
    CHECK(refusal({"--lr", "1", "--lr", "2"}) == "--lr: expected exactly one value");
    CHECK(refusal({"--val", "1"}) == "--val 1: expected a path, a fraction between 0 and 1, or 0 for no validation");
    CHECK(refusal({"--val", "-0.1"}).starts_with("--val -0.1: expected"));
    CHECK(refusal({"--val", "0"}) == "accepted");
    CHECK(refusal({"--vocab", "256"}) == "--vocab 256: --tokenizer byte has 257 ids");
    CHECK(refusal({"--vocab", "257"}) == "accepted");
}

TEST_CASE("values that contradict each other are refused") {
    CHECK(refusal({"--warmup", "11", "--steps", "10"}) == "--warmup 11 is longer than the run: 10 steps");
    CHECK(refusal({"--warmup", "10", "--steps", "10"}) == "accepted");
    CHECK(config({"--steps", "10"}).warmup == 1);
    CHECK(refusal({"--min-lr", "0.1", "--lr", "0.01"}) == "--min-lr 0.1 is larger than --lr 0.01");
    CHECK(refusal({"--tokens-per-step", "1500"}) ==
          "--tokens-per-step 1500 is not a multiple of --batch 8 x --seq 128; the next is 2048");
    CHECK(config({"--tokens-per-step", "2048"}).tokens_per_step == 2048);
    const std::string many = "--batch 16777216 x --seq 128: 2147483648 tokens at once, at most 2147483647; ";
    CHECK(refusal({"--batch", "16777216"}) == many + "take a smaller --batch");
    CHECK(refusal({"--batch", "16777215"}) == "accepted");
    CHECK(refusal({"--tokens-per-step", "2147483648"}).ends_with(": expected a whole number from 1 to 2147483647"));
    CHECK(refusal({"--tokens-per-step", "2147482624"}) == "accepted");
    CHECK(refusal({"--heads", "5"}) == "heads 5 must divide dim 128");
    CHECK(refusal({"--steps", "5", "--epochs", "2"}).starts_with("--steps 5 and --epochs 2"));
    CHECK(refusal({"--model", "gpt2-124m", "--family", "llama"}) == "--family llama: gpt2-124m is gpt2");
    CHECK(refusal({"generate"}) == "generate: needs trained weights; give --model DIR");
    CHECK(refusal({"generate", "--lr", "1"}) == "--lr: generate does not use it");
    CHECK(refusal({"doctor", "--steps", "1"}) == "--steps: doctor does not use it");
}

TEST_CASE("a boolean stands alone or takes true or false") {
    CHECK(config({"--tied"}).shape.tied);
    CHECK(config({"--tied", "true"}).shape.tied);
    CHECK(!config({"--tied", "false"}).shape.tied);
    CHECK(!config({"--tied=false"}).shape.tied);
    const Config c = config({"--tied", "--steps", "60"});
    CHECK(c.shape.tied);
    CHECK(c.steps == 60);
    CHECK(refusal({"--tied", "no"}) == "--tied no: expected true or false");
}

TEST_CASE("a prompt is taken as it is") {
    for (const char* text : {"", "--steps", "[a,b]", "a = \"b\"\n# c", "-1", "caf\xc3\xa9 'x' \\n"})
        CHECK(config({"--prompt", text}).prompt == text);
}

TEST_CASE("a recipe that is broken is refused with its file and line") {
    const TempFolder folder;
    const auto refused = [&](const std::string& text) {
        const std::string file = folder.put("r.toml", text), message = refusal({"--config", file});
        return message.starts_with(file) ? message.substr(file.size()) : message;
    };
    CHECK(refused("lr = 1e-3\nsteps = = 3\n").starts_with(":2: "));
    CHECK(refused("steps = \"ten\"") == ":1: steps = \"ten\": expected a whole number from 0");
    CHECK(refused("steps = 1.5") == ":1: steps = 1.5: expected a whole number from 0");
    CHECK(refused("\nlr = true") == ":2: lr = true: expected a number above 0");
    CHECK(refused("tied = \"true\"") == ":1: tied = \"true\": expected true or false");
    CHECK(refused("data = 3") == ":1: data = 3: expected a string");
    CHECK(refused("[model]\nlayers = 2").starts_with(":1: model = a table"));
    CHECK(refused("lr = 1\nlr = 2").starts_with(":2: "));
    CHECK(refused("lr = 1") == "accepted");            // a whole number is a number
    CHECK(refusal({"--config", "/nowhere.toml"}) == "--config /nowhere.toml: no such file");
}

TEST_CASE("characters beyond ASCII stand in strings and comments of a recipe, and nowhere else") {
    const TempFolder folder;
    const auto tried = [&](const std::string& text) {
        const std::string file = folder.put("r.toml", text), message = refusal({"--config", file});
        return message.starts_with(file) ? message.substr(file.size()) : message;
    };
    for (const char* good : {"prompt = \"ü世\" # é\n", "  prompt='ü'\t# \" é\r\n", "# é", "\xEF\xBB\xBFlr = 1",
                             "prompt = \"a\\\"ü\\\\\"", "prompt = \"\" # é", "prompt = '''\n# é\n'''"})
        CHECK_MESSAGE(tried(good) == "accepted", good);
    const std::string outside = ": a character beyond ASCII stands outside of name = \"text\" and # comments";
    for (const char* open : {"prompt = \"é", "prompt = 'é\\", "prompt = \"é\\"}) CHECK(tried(open).starts_with(":1: "));
    CHECK(tried("# é\nlr = 1\n¡ = 2") == ":3" + outside);
    for (const char* bad : {"lr = é", "prompt = \"a\" é", "x = 9\"é\"",
                            "prompt = \"\"\"a\\\n  é\"\"\"", "prompt = '''\nx = 'a' # ''' é"}) {
        const std::string found = tried(bad);
        CHECK_MESSAGE(found.ends_with(outside), bad, found);
    }
}

TEST_CASE("config.toml reads back to an equal configuration, with origins as comments") {
    const TempFolder folder;
    const std::vector<std::vector<std::string>> lines = {
        {},
        {"--family", "llama", "--dim", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--tied", "false"},
        {"--model", "gpt2-124m", "--seq", "64", "--lr", "6e-4", "--prompt", "say \"hi\"\n\ttwice", "--val", "v.txt"},
        {"--epochs", "1.5", "--tokenizer", "t.json", "--schedule", "wsd"}};
    for (const auto& words : lines) {
        const Config c = config(words);
        const Config again = config({"--config", folder.put("c.toml", to_toml(c))});
        CHECK(key_values(again) == key_values(c));
        CHECK(again.shape == c.shape);
        CHECK(to_toml(again).size() > 100);
    }
    const std::string text = to_toml(config({"--lr", "0.5", "--model", "gpt2-124m"}));
    CHECK(contains(text, "\nlr = 0.5                        # flag\n"));
    CHECK(contains(text, "\nlayers = 12                     # default (gpt2-124m)\n"));
    CHECK(contains(text, "\nclip = 1                        # default\n"));
    const std::string placed = to_toml(config({"--out", "here", "--resume", "auto"}));
    CHECK(!contains(placed, "\nout = "));              // where a run lies is not of the recipe
    CHECK(!contains(placed, "\nresume = "));
}

TEST_CASE("shape flags change a preset, and what follows from them follows") {
    const Config c = config({"--model", "gpt2-124m", "--dim", "384", "--heads", "6", "--layers", "2"});
    CHECK(c.shape.head_dim == 64);
    CHECK(c.shape.ffn == 1536);
    CHECK(c.shape.vocab == 50257);
    CHECK(c.shape.seq == 1024);
    CHECK(config({"--model", "gpt2-124m", "--seq", "64"}).shape.seq == 64);
    const Config l = config({"--family", "llama", "--dim", "64"});
    CHECK(l.shape.ffn == 192);
    CHECK(l.shape.head_dim == 16);
    CHECK(config({"--tokenizer", "t.json"}).shape.vocab == 0);
    CHECK(config({"--tokenizer", "t.json", "--vocab", "300"}).shape.vocab == 300);
}

TEST_CASE("a model folder decides the shape; flags may repeat it, not contradict it") {
    const TempFolder folder;
    ModelShape s = preset("llama-tiny");
    s.tied = false;
    folder.put("m/config.json", to_hf_config(s, "float32", 256));
    const std::string dir = (folder.path / "m").string();
    const Config c = config({"generate", "--model", dir});
    CHECK(c.model_is_folder);
    CHECK(c.shape == s);
    const Config t = config({"--model", dir, "--seq", "64", "--layers", "4"});
    CHECK(t.seq == 64);
    CHECK(t.shape.seq == 128);
    CHECK(refusal({"--model", dir, "--layers", "5"}) == "--layers 5: " + dir + "/config.json says 4");
    CHECK(refusal({"--model", dir, "--tied"}) == "--tied true: " + dir + "/config.json says false");
    CHECK(refusal({"--model", dir, "--seq", "129"}) == "--seq 129: " + dir + " holds at most 128");
    CHECK(refusal({"--model", folder.path.string()}).starts_with(folder.path.string() + "/config.json: not found"));
    const Config again = config({"--config", folder.put("c.toml", to_toml(t))});
    CHECK(again.shape == t.shape);
    CHECK(key_values(again) == key_values(t));
}

TEST_CASE("a model folder brings its tokenizer; ids that the model has no row for are refused, whatever the tokenizer") {
    const TempFolder folder;
    folder.put("m/config.json", to_hf_config(preset("llama-tiny"), "float32", 256));
    const std::string dir = (folder.path / "m").string();
    const Config own = config({"--model", dir});
    CHECK(own.tokenizer == dir);
    CHECK(own.origin.at("tokenizer") == "default (" + dir + ")");
    CHECK(config({"--model", dir, "--tokenizer", "byte"}).tokenizer == "byte");
    CHECK(config({"--model", "gpt2-tiny"}).tokenizer == "byte");
    Config c = config({"--tokenizer", "t.json", "--vocab", "300"});
    set_vocab(c, 300);
    CHECK(c.shape.vocab == 300);
    CHECK_THROWS_WITH_AS(set_vocab(c, 301), "--vocab 300: --tokenizer t.json has 301 ids", Usage);
    c = config({"--tokenizer", "t.json"});
    set_vocab(c, 301);
    CHECK(c.shape.vocab == 301);
}

TEST_CASE("a recipe serves several commands: each takes the keys it uses") {
    const TempFolder folder;
    folder.put("m/config.json", to_hf_config(preset("gpt2-tiny"), "float32"));
    const std::string recipe = folder.put("r.toml", "layers = 9\nlr = 1\nseed = 5\n");
    const Config c = config({"generate", "--model", (folder.path / "m").string(), "--config", recipe});
    CHECK(c.seed == 5);
    CHECK(c.shape.layers == 4);
    CHECK(config({"--config", recipe}).shape.layers == 9);
}

TEST_CASE("epochs leave the steps open until the data is known") {
    Config c = config({"--epochs", "2"});
    CHECK(c.steps == 0);
    set_steps(c, 1000);
    CHECK(c.warmup == 50);
    CHECK(learning_rate(schedule_of(c), 999) == c.min_lr);
    c = config({"--epochs", "2", "--warmup", "30"});
    CHECK_THROWS_WITH_AS(set_steps(c, 20), "--warmup 30 is longer than the run: 20 steps", Usage);
}

TEST_CASE("the learning rate follows the width unless it is given") {
    CHECK(run({"--dim", "768", "--heads", "12"}).config.lr == 0.5 / 768);
    CHECK(run({"--dim", "768", "--heads", "12"}).config.min_lr == 0.05 / 768);
    CHECK(run({"--dim", "768", "--heads", "12", "--lr", "1e-3"}).config.lr == 1e-3);
}

TEST_CASE("--help shows thirty-one flags, --help-all every one, each with its default") {
    const std::string help = run({"--help"}).text, all = run({"--help-all"}).text;
    CHECK(count(help, "\n  --") == 31 + 4);                   // and --config, --help, --help-all, --version
    CHECK(count(all, "\n  --") > 75);
    CHECK(contains(help, "\n  --lr 0.00390625 "));
    CHECK(contains(help, "\n  --tp 1 "));
    CHECK(!contains(help, "--sp "));
    CHECK(contains(all, "\n  --sp false "));
    CHECK(contains(run({"generate", "--help"}).text, "\n  --tp 1 "));
    CHECK(!contains(run({"generate", "--help-all"}).text, "\n  --ranks"));
    CHECK(contains(all, "\n  --beta2 0.95 "));
    CHECK(run({"-h"}).text == help);
    CHECK(contains(run({"generate", "--help"}).text, "--top-k"));
    CHECK(!contains(run({"generate", "--help"}).text, "--lr"));
    CHECK(!run({"doctor", "--help"}).text.empty());
    CHECK(run({"--version"}).text.starts_with("baretrain "));
    CHECK(run({}).text.empty());
}

}
