// commands_test.cpp - dump, eval and export as users run them, against a model in plain loops and another reader.
#include "files.h"
#include "parsed.h"
#include "program.h"
#include "reference.h"
#include "tokenizer.h"
#include <doctest/doctest.h>
#include <set>

using namespace baretrain;
using namespace baretrain::test;

namespace {

using nlohmann::json;
using Row = Reference::Row;
using Dims = std::vector<long>;

// Every tensor of a family under its Hugging Face name, as transformers stores it.
std::vector<std::pair<std::string, Dims>> tensors_of(const ModelShape& s) {
    const long C = s.dim, A = s.heads * s.head_dim, K = s.kv_heads * s.head_dim, F = s.ffn, V = s.vocab;
    std::vector<std::pair<std::string, Dims>> all;
    for (long l = 0; l < s.layers; ++l) {
        const auto add = [&](const std::string& name, const Dims& dims) {
            const std::string blocks = s.family == "gpt2" ? "transformer.h." : "model.layers.";
            all.push_back({blocks + std::to_string(l) + "." + name, dims});
        };
        if (s.family == "gpt2") {
            for (const char* name : {"ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias", "attn.c_proj.bias"})
                add(name, {C});
            add("attn.c_attn.weight", {C, 3 * C}), add("attn.c_attn.bias", {3 * C}), add("attn.c_proj.weight", {C, C});
            add("mlp.c_fc.weight", {C, F}), add("mlp.c_fc.bias", {F});
            add("mlp.c_proj.weight", {F, C}), add("mlp.c_proj.bias", {C});
            continue;
        }
        add("input_layernorm.weight", {C}), add("post_attention_layernorm.weight", {C});
        add("self_attn.q_proj.weight", {A, C}), add("self_attn.k_proj.weight", {K, C});
        add("self_attn.v_proj.weight", {K, C}), add("self_attn.o_proj.weight", {C, A});
        add("mlp.gate_proj.weight", {F, C}), add("mlp.up_proj.weight", {F, C}), add("mlp.down_proj.weight", {C, F});
        if (s.family == "qwen2")
            add("self_attn.q_proj.bias", {A}), add("self_attn.k_proj.bias", {K}), add("self_attn.v_proj.bias", {K});
        if (s.family == "qwen3")
            add("self_attn.q_norm.weight", {s.head_dim}), add("self_attn.k_norm.weight", {s.head_dim});
    }
    if (s.family == "gpt2") {
        all.push_back({"transformer.wte.weight", {V, C}}), all.push_back({"transformer.wpe.weight", {s.seq, C}});
        all.push_back({"transformer.ln_f.weight", {C}}), all.push_back({"transformer.ln_f.bias", {C}});
    } else {
        all.push_back({"model.embed_tokens.weight", {V, C}}), all.push_back({"model.norm.weight", {C}});
    }
    if (!s.tied) all.push_back({"lm_head.weight", {V, C}});
    return all;
}

// k / 128 with whole k below 128: every type has it.
template <class T> std::string put_bits(T value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
std::string encoded(const std::string& dtype, double v) {
    if (dtype == "F64") return put_bits(v);
    const float f = float(v);
    if (dtype == "F32") return put_bits(f);
    if (dtype == "BF16") return put_bits(f).substr(2);
    int exponent = 0;
    const double m = std::frexp(std::fabs(v), &exponent);
    return put_bits(uint16_t((v < 0 ? 0x8000 : 0) | (v == 0 ? 0 : (exponent + 14) << 10 | int((2 * m - 1) * 1024))));
}

// A folder of random weights in two shards and four types, which the reference knows too.
struct Folder : TempFolder {
    Reference truth;
    const std::string dir = *this / "hf";
    explicit Folder(const ModelShape& s, const std::string& all_in = "") : truth{s, {}} {
        put("hf/config.json", to_hf_config(s, "float32"));
        for (const auto& [name, text] : Tokenizer::bytes().files()) put("hf/" + name, text);
        json headers[2] = {json::object(), json::object()}, map;
        std::string data[2];
        const char* const types[] = {"F64", "F32", "BF16", "F16"};
        unsigned n = 1, t = 0;
        for (const auto& [name, dims] : tensors_of(s)) {
            const std::string dtype = all_in.empty() ? types[t % 4] : all_in;
            const unsigned shard = t++ / 4 % 2;
            long count = 1;
            for (long d : dims) count *= d;
            const size_t begin = data[shard].size();
            for (long i = 0; i < count; ++i) {
                n = n * 1103515245 + 12345;
                const bool gain = dims.size() == 1 && name.ends_with("weight");
                truth.w[name].push_back((gain ? 64 + double(n / 65536 % 64) : double(n / 65536 % 128) - 64) / 128);
                data[shard] += encoded(dtype, truth.w[name].back());
            }
            headers[shard][name] = {{"dtype", dtype}, {"shape", dims}, {"data_offsets", {begin, data[shard].size()}}};
            map[name] = "model-" + std::to_string(shard) + ".safetensors";
        }
        for (int shard = 0; shard < 2; ++shard) {
            const std::string header = headers[shard].dump();
            put("hf/model-" + std::to_string(shard) + ".safetensors",
                put_bits(uint64_t(header.size())) + header + data[shard]);
        }
        put("hf/model.safetensors.index.json", json({{"weight_map", map}}).dump());
    }
    // Mean loss of documents whose ids are inputs and, but the first, targets.
    double loss(const std::vector<std::vector<int>>& lists) const {
        double sum = 0, count = 0;
        for (const auto& ids : lists) {
            const auto logits = truth.logits({ids.begin(), ids.end() - 1});
            for (size_t i = 0; i < logits.size(); ++i) sum -= Reference::logprob(logits[i], ids[i + 1]), ++count;
        }
        return sum / count;
    }
    std::map<std::string, ParsedTensor> all(const fs::path& folder) const {
        std::map<std::string, ParsedTensor> both = parsed(folder / "model-0.safetensors");
        both.merge(parsed(folder / "model-1.safetensors"));
        return both;
    }
};

ModelShape shape_of(const std::string& family, bool tied) {
    ModelShape s{.family = family, .layers = 2, .dim = 12, .heads = 6, .kv_heads = 2, .head_dim = 4, .ffn = 14,
                 .vocab = 17, .seq = 16, .tied = tied, .rope_theta = 50.0};
    if (family == "gpt2") s.heads = s.kv_heads = 3, s.rope_theta = 10000, s.ffn = 20;
    return s;
}
const std::vector<ModelShape> shapes = {shape_of("gpt2", true), shape_of("gpt2", false), shape_of("llama", true),
                                        shape_of("llama", false), shape_of("qwen2", false), shape_of("qwen3", true)};
const std::vector<std::vector<int>> lists = {{1, 2, 3, 4, 16, 0}, {5, 5, 9, 11}};

Result program_in(const TempFolder& folder, const Words& words) {
    const Result r = run(folder.path, words);
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(r.err == "");
    return r;
}
void check_refused(const TempFolder& folder, int code, const Words& words, const Words& says) {
    const Result r = run(folder.path, words);
    CAPTURE(r.err);
    CHECK(r.code == code);
    CHECK(count(r.err, "\n") == 1);
    for (const std::string& part : says) CHECK(contains(r.err, part));
}
double number_after(const std::string& text, const std::string& word) {
    REQUIRE(contains(text, word));
    return std::stod(text.substr(text.find(word) + word.size()));
}

}  // namespace

TEST_SUITE("commands") {

TEST_CASE("E6: a folder in four types and two shards has the logits, loss and gradients of the plain model") {
    for (const ModelShape& shape : shapes) {
        CAPTURE(shape.family);
        CAPTURE(shape.tied);
        Folder hf(shape);
        hf.put("ids.json", json(lists).dump());
        program_in(hf, {"dump", "--model", "hf", "--ids", "ids.json", "-o", "s", "--dtype", "fp64"});
        const auto found = parsed(hf.path / "s");
        Row expected;
        for (const auto& ids : lists)
            for (const Row& row : hf.truth.logits({ids.begin(), ids.end() - 1}))
                expected.insert(expected.end(), row.begin(), row.end());
        const Row logits = found.at("logits").numbers();
        CHECK(found.at("logits").shape == Dims{8, 17});
        REQUIRE(logits.size() == expected.size());
        for (size_t i = 0; i < logits.size(); ++i) CHECK(logits[i] == doctest::Approx(expected[i]).epsilon(1e-10));
        CHECK(found.at("loss").shape.empty());
        CHECK(found.at("loss").numbers()[0] == doctest::Approx(hf.loss(lists)).epsilon(1e-12));

        CHECK(found.size() == hf.truth.w.size() + 2);
        for (const auto& [name, dims] : tensors_of(shape)) {
            CAPTURE(name);
            REQUIRE(found.count(name) == 1);
            CHECK(found.at(name).shape == dims);
            const Row gradient = found.at(name).numbers();
            const size_t at = size_t(std::max_element(gradient.begin(), gradient.end()) - gradient.begin());
            double& element = hf.truth.w[name][at];
            const double before = element, h = 1e-5;
            element = before + h;
            const double up = hf.loss(lists);
            element = before - h;
            CHECK(gradient[at] == doctest::Approx((up - hf.loss(lists)) / (2 * h)).epsilon(1e-5));
            element = before;
        }
        program_in(hf, {"dump", "--model", "hf", "--ids", "ids.json", "-o", "s32"});
        CHECK(parsed(hf.path / "s32").at("logits").dtype == "F32");
        CHECK(parsed(hf.path / "s32").at("loss").numbers()[0] == doctest::Approx(hf.loss(lists)).epsilon(1e-5));
    }
}

TEST_CASE("E6: what export writes is what it read, byte for byte, and dumps the same") {
    for (const ModelShape& shape : shapes) {
        CAPTURE(shape.family);
        const Folder hf(shape);
        const Result r = program_in(hf, {"export", "--model", "hf", "-o", "copy"});
        CHECK(contains(r.out, "copy: " + std::to_string(hf.truth.w.size()) + " tensors, "));
        CHECK((hf.all(hf.path / "copy") == hf.all(hf.dir)));
        CHECK(get(hf.path / "copy/config.json") == get(hf.dir + "/config.json"));
        CHECK(get(hf.path / "copy/tokenizer.json") == get(hf.dir + "/tokenizer.json"));
    }
    Folder hf(shapes[2]);
    check_refused(hf, 1, {"export", "--model", "hf", "-o", "hf"}, {"hf: is there already"});
    hf.put("hf/config.json", to_hf_config(shapes[3], "float32"));
    check_refused(hf, 1, {"export", "--model", "hf", "-o", "copy"}, {"missing: lm_head.weight"});
    CHECK(!fs::exists(hf.path / "copy"));
}

TEST_CASE("E9: a checkpoint is exported as a model alone: what others read, its dtype that of its config.json") {
    const TempFolder lab;
    lab.put("text.txt", prose(1200));
    program_in(lab, {"--layers", "1", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "2", "--steps", "1",
                     "--data", "text.txt", "--out", "run", "--dtype", "bf16", "--sample-every", "0"});
    program_in(lab, {"export", "--model", "run/step-000001", "-o", "model"});
    const fs::path from = lab.path / "run/step-000001", to = lab.path / "model";
    const std::set<std::string> expected = {"config.json", "model.safetensors", "tokenizer.json",
                                            "tokenizer_config.json"};
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(to)) names.insert(entry.path().filename().string());
    CHECK(names == expected);
    for (const std::string& name : names) CHECK((name == "model.safetensors" || get(to / name) == get(from / name)));
    CHECK(json::parse(get(to / "config.json")).at("torch_dtype") == "bfloat16");
    for (const auto& [name, tensor] : parsed(to / "model.safetensors")) CHECK(tensor.dtype == "BF16");
    CHECK((parsed(to / "model.safetensors") == parsed(from / "model.safetensors")));
}

TEST_CASE("A8: eval is total over count of every token, whatever the batch, with the bytes of its targets") {
    ModelShape shape = shape_of("llama", false);
    shape.vocab = 257;
    const Folder hf(shape);
    const std::string text = prose(75);                // 74 targets: four windows of 16 and one of 10
    hf.put("text.txt", text);
    std::vector<std::vector<int>> windows;
    const std::vector<int> ids = Tokenizer::bytes().encode(text);
    for (size_t at = 0; at + 1 < ids.size(); at += 16)
        windows.push_back({ids.begin() + long(at), ids.begin() + long(std::min(ids.size(), at + 17))});
    const double loss = hf.loss(windows);
    for (const char* batch : {"1", "2", "3", "50"}) {
        const Result r = program_in(hf, {"eval", "--model", "hf", "--data", "text.txt", "--batch", batch, "--dtype",
                                         "fp64"});
        CHECK(std::fabs(number_after(r.out, "loss") - loss) < 1e-6);
        CHECK(number_after(r.out, "perplexity") == doctest::Approx(std::exp(loss)).epsilon(1e-4));
        CHECK(std::fabs(number_after(r.out, "bits per byte") - loss / std::log(2.0)) < 1e-6);
        CHECK(number_after(r.out, "tokens") == 74);
        CHECK(number_after(r.out, "\nbytes") == 74);
        CHECK(count(r.out, "\n") == 5);
    }
    const Result other = program_in(hf, {"eval", "--model", "hf", "--data", "text.txt", "--seq", "7"});
    CHECK(number_after(other.out, "tokens") == 74);
}

TEST_CASE("dump, eval and generate come to the same on any number of ranks of tp") {
    for (ModelShape shape : {shape_of("gpt2", false), shape_of("qwen3", true)}) {
        CAPTURE(shape.family);
        shape.heads = 8, shape.kv_heads = shape.family == "gpt2" ? 8 : 4, shape.dim = 32, shape.ffn = 20, shape.vocab = 257;
        Folder hf(shape, "F64");
        hf.put("text.txt", prose(75));
        json many = json::array();                     // more rows than a chunk of the head has
        for (int i = 0; i < 24; ++i) many.push_back({i, 5, 256 - i, 7, 0, 200 + i, 64, 65, 66, 3 * i, 1, 2, 3, 4});
        hf.put("ids.json", many.dump());
        std::map<std::string, ParsedTensor> one;
        std::string loss, text;
        for (const std::string tp : {"1", "2", "4"}) {
            CAPTURE(tp);
            const Words on = {"--tp", tp}, exact = {"--dtype", "fp64"};
            const Result dump = program_in(hf, Words{"dump", "--model", "hf", "--ids", "ids.json", "-o", "s"} + exact + on);
            CHECK(count(dump.out, "\n") == 1);         // one rank speaks
            const auto found = parsed(hf.path / "s");
            if (one.empty()) one = found;
            CHECK(found.size() == tensors_of(shape).size() + 2);
            for (const auto& [name, tensor] : one) {
                CAPTURE(name);
                REQUIRE(found.count(name) == 1);
                CHECK(found.at(name).shape == tensor.shape);
                const Row want = tensor.numbers(), got = found.at(name).numbers();
                double top = 1e-3, apart = 0;
                for (size_t i = 0; i < want.size(); ++i)
                    top = std::max(top, std::fabs(want[i])), apart = std::max(apart, std::fabs(want[i] - got[i]));
                CHECK(apart <= 1e-12 * top);
            }
            const Words data = {"--data", "text.txt", "--batch", "2"};
            const std::string said = program_in(hf, Words{"eval", "--model", "hf"} + data + exact + on).out;
            if (loss.empty()) loss = said;
            CHECK(said == loss);
            const Words how = {"--prompt", "the sun", "--tokens", "20", "--top-k", "40"};
            const std::string written = program_in(hf, Words{"generate", "--model", "hf"} + how + on).out;
            if (text.empty()) text = written;
            CHECK(written == text);
            CHECK(count(written, "the sun") == 1);
        }
        check_refused(hf, 2, {"generate", "--model", "hf", "--tp", "16"}, {"--tp 16: does not divide 8 heads", "these do: 1, 2, 4"});
        check_refused(hf, 2, {"eval", "--model", "hf", "--data", "text.txt", "--tp", "3"}, {"--tp 3: does not divide 8 heads"});
        check_refused(hf, 2, {"generate", "--model", "hf", "--ranks", "2"}, {"--ranks: generate does not use it"});
    }
}

TEST_CASE("validation losses and samples of a run are the same at any tp") {
    const TempFolder lab;
    lab.put("text.txt", prose(3000));
    std::vector<double> one;
    std::string samples;
    for (const Words& layout : {Words{}, {"--ranks", "4", "--tp", "4"}, {"--ranks", "4", "--tp", "2", "--sp", "--shard", "fsdp"}}) {
        const Words all = {"--family", "gpt2", "--layers", "1", "--dim", "16", "--heads", "4", "--seq", "16", "--batch", "2",
                           "--tokens-per-step", "64", "--steps", "4", "--eval-every", "2", "--sample-every", "4", "--tokens", "20",
                           "--dtype", "fp64", "--lr", "1e-2", "--data", "text.txt", "--out", concat("run", layout.size())};
        program_in(lab, all + layout);
        std::vector<double> losses;
        std::ifstream log(lab.path / concat("run", layout.size()) / "log.jsonl");
        for (std::string line; std::getline(log, line);)
            if (const json l = json::parse(line); l.contains("val_loss")) losses.push_back(l["val_loss"]);
        const std::string written = get(lab.path / concat("run", layout.size()) / "samples.jsonl");
        if (one.empty()) one = losses, samples = written;
        REQUIRE(losses.size() == 2);
        for (size_t i = 0; i < 2; ++i) CHECK(std::fabs(losses[i] - one[i]) <= 1e-11 * one[i]);
        CHECK(count(written, "\n") == 1);
        CHECK(written == samples);
    }
}

TEST_CASE("with --tokenizer none ids alone, in a shard as llm.c writes it, are evaluated and trained on") {
    const Folder hf(shape_of("gpt2", true));
    std::vector<int> header(256), ids(40);
    header[0] = 20240520, header[1] = 1, header[2] = 40;
    std::string shard;
    for (int field : header) shard += put_bits(field);
    for (int i = 0; i < 40; ++i) shard += put_bits(uint16_t(ids[size_t(i)] = i * i % 17));
    hf.put("ids.bin", shard);
    std::vector<std::vector<int>> windows;
    for (long at = 0; at < 39; at += 16)
        windows.push_back({ids.begin() + at, ids.begin() + std::min(40L, at + 17)});
    const Words with = {"--model", "hf", "--data", "ids.bin", "--tokenizer", "none", "--batch", "1", "--dtype", "fp64"};
    const Result r = program_in(hf, Words{"eval"} + with);
    CHECK(std::fabs(number_after(r.out, "loss") - hf.loss(windows)) < 1e-6);
    CHECK(number_after(r.out, "tokens") == 39);
    CHECK(r.out.find("bits per byte") == std::string::npos);   // nobody knows the bytes
    CHECK(program_in(hf, with + Words{"--steps", "2", "--val", "0", "--seq", "8", "--out", "run"}).code == 0);
    hf.put("text.txt", "no ids");
    check_refused(hf, 1, {"eval", "--model", "hf", "--data", "text.txt", "--tokenizer", "none"}, {"none", ".bin"});
}

TEST_CASE("plan --ranks says what each rank holds and sends, in every layout, under names that stay") {
    const TempFolder lab;
    const Words words = {"plan", "--ranks", "64", "--shard", "fsdp", "--replicate", "4", "--model", "gpt2-124m", "--tokenizer", "none"};
    const Result r = run(lab.path, words + Words{"--json"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    const json plan = json::parse(r.out);
    for (const std::string of : {"none", "zero1", "zero2", "fsdp", "hsdp"})
        for (const std::string what : {"memory.weights", "memory.gradients", "memory.optimizer", "memory.activations",
                                       "memory.step", "memory.scratch", "memory.all", "sent.dp_shard", "sent.dp_replicate"}) {
            const std::string name = "alternatives." + of + "." + what;
            CAPTURE(name);
            REQUIRE(plan.contains(name));
            if (of == "hsdp") CHECK(plan[name] == plan[what]);   // that is the layout of this plan
        }
    CHECK(plan["sent.dp_shard"].get<long>() ==
          plan["sent.dp_shard.gather.weights"].get<long>() + plan["sent.dp_shard.scatter.gradients"].get<long>() +
              plan["sent.dp_shard.sum.norm"].get<long>() + plan["sent.dp_shard.sum.loss"].get<long>() +
              plan["sent.dp_shard.sum.control"].get<long>());
    CHECK(plan["alternatives.none.sent.dp_shard"] == 0);
    CHECK(plan["alternatives.fsdp.sent.dp_replicate"] == 0);
    CHECK(plan["alternatives.fsdp.memory.optimizer"].get<double>() ==
          doctest::Approx(plan["alternatives.none.memory.optimizer"].get<double>() / 64).epsilon(1e-3));
    const std::string text = run(lab.path, words).out;
    CHECK(contains(text, "MB, each of 64 ranks            none       zero1       zero2        fsdp        hsdp\n"));
    CHECK(contains(text, format("sent dp_replicate a step %11.1f", plan["alternatives.none.sent.dp_replicate"].get<double>() / 1e6)));
    CHECK(!contains(run(lab.path, {"plan"}).out, "ranks"));
}

TEST_CASE("a run whose weights travel as the codes of FP8 has the losses of one where they don't, and saves the same weights") {
    const TempFolder lab;
    put(lab.path / "text.txt", prose(3000));
    const Words base = {"--layers", "2", "--dim", "32", "--heads", "2", "--seq", "16", "--batch", "1", "--tokens-per-step", "64",
                        "--steps", "4", "--eval-every", "2", "--data", "text.txt", "--ranks", "2", "--shard", "fsdp", "--dtype", "bf16",
                        "--fp8", "tensorwise", "--out"};
    REQUIRE(run(lab.path, base + Words{"bf16"}).code == 0);
    REQUIRE(run(lab.path, base + Words{"codes", "--gather-dtype", "fp8"}).code == 0);
    const std::string weights = get(lab.path / "bf16/step-000004/model.safetensors");
    CHECK(weights.size() > 1000);
    CHECK(weights == get(lab.path / "codes/step-000004/model.safetensors"));
    std::ifstream a(lab.path / "bf16/log.jsonl"), b(lab.path / "codes/log.jsonl");
    for (std::string x, y; std::getline(a, x) && std::getline(b, y);) {
        CHECK(json::parse(x)["loss"] == json::parse(y)["loss"]);
        CHECK(json::parse(x).value("val_loss", 0.0) == json::parse(y).value("val_loss", 0.0));
    }
}

TEST_CASE("a run of ranks logs what it sent in each step, equal to the formulas, and --ledger prints it") {
    const TempFolder lab;
    put(lab.path / "text.txt", prose(3000));
    for (const Words& layout : {Words{"--ranks", "2"}, Words{"--ranks", "4", "--shard", "fsdp", "--replicate", "2"},
                                Words{"--ranks", "3", "--shard", "zero2", "--dtype", "bf16"},
                                Words{"--ranks", "4", "--tp", "2", "--dtype", "bf16", "--fp8", "tensorwise"},
                                Words{"--ranks", "4", "--shard", "fsdp", "--tp", "2", "--dtype", "bf16", "--fp8", "tensorwise", "--gather-dtype", "fp8"},
                                Words{"--ranks", "2", "--tp", "2", "--sp", "--dtype", "bf16", "--fp8", "rowwise", "--recompute", "full"}}) {
        const Words base = {"--layers", "2", "--dim", "32", "--heads", "2", "--seq", "16", "--batch", "1", "--tokens-per-step", "192",
                            "--steps", "6", "--eval-every", "3", "--stats", "2", "--data", "text.txt", "--out", "run", "--ledger"};
        const Result r = run(lab.path, base + layout);
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        CHECK(contains(r.out, "by formula"));
        CHECK(!contains(r.out, "DIFFERENT"));
        CHECK(contains(r.out, "besides the steps, in all: "));
        const json facts = json::parse(get(lab.path / "run/run.json"));
        std::ifstream in(lab.path / "run/log.jsonl");
        long steps = 0;
        for (std::string line; std::getline(in, line); ++steps) {
            const json log = json::parse(line);
            for (const auto& [name, bytes] : log["bytes"].items()) {
                CHECK(facts["sent." + name] == bytes);
                CHECK(log["ms"][name].get<double>() > 0);
            }
            for (const auto& [name, bytes] : facts.items())
                if (name.starts_with("sent.") && !contains(name, "max.search") && (steps % 2 || !contains(name, "statistics")))
                    CHECK(log["bytes"].contains(name.substr(5)));
        }
        CHECK(steps == 6);
        const std::string page = get(lab.path / "run/run.html");
        CHECK(contains(page, "Sent between ranks"));
        CHECK(!contains(page, "by formula"));
        fs::remove_all(lab.path / "run");
    }
}

TEST_CASE("--compare trains with each value of a key, once more with another seed, and says how far apart they are") {
    const TempFolder lab;
    put(lab.path / "text.txt", prose(3000));
    const Words base = {"--layers", "1", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "1", "--steps", "10",
                        "--eval-every", "0", "--data", "text.txt", "--lr", "1", "--seed=5", "--out", "all"};
    const Result r = run(lab.path, base + Words{"--compare", "lr=1e-3,1e-2"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    const auto value = [&](const std::string& name, const std::string& key) {
        const json facts = json::parse(get(lab.path / "all" / name / "run.json"));
        return facts.at("config." + key).get<std::string>();
    };
    for (const auto& [name, lr, seed] : {std::tuple("lr-1e-3", "0.001", "5"), {"lr-1e-2", "0.01", "5"}, {"lr-1e-3-again", "0.001", "6"}}) {
        CHECK(value(name, "lr") == lr);
        CHECK(value(name, "seed") == seed);
        CHECK(value(name, "steps") == "10");
    }
    CHECK(contains(r.out, "lr-1e-3 "));
    CHECK(contains(r.out, "+0.00 %\n"));
    CHECK(contains(get(lab.path / "all/compare.html"), "Loss above that of lr-1e-3, %"));
    Words elsewhere = base;
    elsewhere.back() = "pairs";
    const Result pairs = run(lab.path, elsewhere + Words{"--compare", "lr=1e+0,1e-3,1e-3+warmup=1+clip=0.5"});
    CAPTURE(pairs.err);
    REQUIRE(pairs.code == 0);
    const std::string resolved = get(lab.path / "pairs/lr-1e-3+warmup=1+clip=0.5/config.toml");
    CHECK(contains(resolved, "clip = 0.5")); CHECK(contains(resolved, "warmup = 1"));
    CHECK(contains(get(lab.path / "pairs/lr-1e+0/config.toml"), "lr = 1"));
    for (const std::string wrong : {"lr=1e-3", "lr", "out=a,b", "lrr=1,2", "compare=a,b", "ids=a,b"}) {
        CAPTURE(wrong);
        const Result refused = run(lab.path, base + Words{"--compare", wrong});
        CHECK(refused.code == 2);
        CHECK(contains(refused.err, "--compare " + wrong + ": expected KEY=a,b,..."));
    }
    put(lab.path / "recipe.toml", "compare = \"lr=1e-3,1e-2\"\n");
    for (const auto& [words, what] : {std::pair(Words{"--config", "recipe.toml"}, "lr=1e-3,1e-2: of the command line alone"),
                                      {{"--compare", "lr=1,2", "--resume", "all/lr-1e-3"}, "lr=1,2: of the command line alone"},
                                      {{"--compare", "lr=1,2,1"}, "lr=1,2,1: 1 stands there twice"}}) {
        const Result refused = run(lab.path, Words{"--data", "text.txt"} + words);
        CHECK(refused.code > 0);
        CHECK(contains(refused.err, what));
    }
    const Result bools = run(lab.path, {"--layers", "1", "--dim", "16", "--heads", "2", "--seq", "16", "--steps", "2", "--ranks", "2", "--data",
                                        "text.txt", "--tp", "2", "--sp", "--ledger", "--compare", "sp=true,false", "--out", "bools"});
    CHECK(bools.code == 0);
    CHECK(contains(bools.out, "by formula"));          // the flag behind the one that is dropped stays
    const Result second = run(lab.path, {"--layers", "1", "--data", "text.txt", "--out", "none", "--compare", "lr=1e-3,x"});
    CHECK(second.code == 2);
    CHECK(contains(second.err, "--lr x: expected"));
    CHECK(!fs::exists(lab.path / "none"));             // nothing ran before all of it was read
}

TEST_CASE("what dump and eval cannot use is refused in one line") {
    const Folder hf(shape_of("gpt2", true));
    hf.put("text.txt", prose(75));
    check_refused(hf, 2, {"eval", "--model", "hf", "--data", "text.txt"}, {"17", "257", "hf"});
    const auto dump = [&](const std::string& ids, const Words& says) {
        hf.put("ids.json", ids);
        check_refused(hf, 1, {"dump", "--model", "hf", "--ids", "ids.json", "-o", "s"}, says);
    };
    dump("[[1, 2], [3, 17]]", {"ids.json: list 2", "17", "0 to 16"});
    dump("[[1, -1]]", {"ids.json: list 1", "-1", "0 to 16"});
    dump("[[1, 2], [3]]", {"ids.json: list 2 has 1 ids; expected 2 to 17"});
    dump(json(std::vector<std::vector<int>>(1, std::vector<int>(18))).dump(), {"has 18 ids"});
    for (const char* text : {"[]", "[1, 2]", "{}", "[[1.5, 2]", "[[1.5, 2]]", "[[\"a\", 1]]", ""}) dump(text, {"ids.json: "});
    hf.put("ids.json", "[[1, 2, 3]]");
    for (const char* onto : {"ids.json", "hf/model.safetensors", "hf/new.safetensors"})
        check_refused(hf, 1, {"dump", "--model", "hf", "--ids", "ids.json", "-o", onto}, {onto, "over what it is made from"});
    CHECK(get(hf / "ids.json") == "[[1, 2, 3]]");
    check_refused(hf, 1, {"dump", "--model", "hf", "--ids", "absent", "-o", "s"}, {"absent"});
    CHECK(!fs::exists(hf.path / "s"));
}

}
