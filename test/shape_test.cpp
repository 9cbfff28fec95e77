// shape_test.cpp - parameter counts against published numbers, every rule, and config.json both ways.
#include "shape.h"
#include "device/error.h"
#include <doctest/doctest.h>
#include <map>

using namespace baretrain;

namespace {

ModelShape gpt2(long layers, long dim, long heads) {
    return with_defaults({.family = "gpt2", .layers = layers, .dim = dim, .heads = heads, .vocab = 257, .seq = 64});
}

ModelShape llama(long layers, long dim, long heads, long kv_heads = 0, long head_dim = 0) {
    return with_defaults({.family = "llama", .layers = layers, .dim = dim, .heads = heads, .kv_heads = kv_heads,
                          .head_dim = head_dim, .vocab = 257, .seq = 64});
}

std::string refusal(const ModelShape& s) {
    try {
        check_shape(s);
    } catch (const Error& e) {
        return e.what();
    }
    return "accepted";
}

std::string refusal(const std::string& json) {
    try {
        from_hf_config(json, "c.json");
    } catch (const Error& e) {
        return e.what();
    }
    return "accepted";
}

const std::string gpt2_json = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2,
    "n_embd": 64, "n_head": 4, "n_positions": 32, "n_ctx": 32, "vocab_size": 257, "attn_pdrop": 0.1,
    "summary_type": "cls_index", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05,
    "task_specific_params": {"a": 1}, "eos_token_id": 256)";
const std::string llama_json = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 172, "max_position_embeddings": 512,
    "vocab_size": 512, "rms_norm_eps": 1e-05, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false)";

}  // namespace

TEST_SUITE("shape") {

TEST_CASE("parameters are the sum of the tensors, with each width a number of its own") {
    // Embedding, then per block two norms, q, k, v, o, gate, up, down, then the last norm.
    const ModelShape s = llama(3, 64, 4, 2, 32);
    CHECK(s.ffn == 192);
    const long block = 64 + 64 + 64 * 128 + 64 * 64 + 64 * 64 + 128 * 64 + 3 * 64 * 192;
    CHECK(s.parameters() == 257 * 64 + 3 * block + 64);
    ModelShape untied = s;
    untied.tied = false;
    CHECK(untied.parameters() - s.parameters() == 257 * 64);

    // A 7B model of this family: 32 blocks of 4096 with 11008, untied, 32000 ids.
    ModelShape big{.family = "llama", .layers = 32, .dim = 4096, .heads = 32, .ffn = 11008, .vocab = 32000,
                   .seq = 4096};
    big.tied = false;
    CHECK(with_defaults(big).parameters() == 6'738'415'616);
}

TEST_CASE("numbers that are not chosen follow from the others") {
    CHECK(gpt2(2, 64, 4).head_dim == 16);
    CHECK(gpt2(2, 64, 4).kv_heads == 4);
    CHECK(gpt2(2, 64, 4).ffn == 256);
    CHECK(llama(2, 96, 4).ffn == 256);                 // 8/3 of 96 is 256 already
    CHECK(llama(2, 97, 1).ffn == 320);                 // 258.7: the next multiple of 64
    CHECK(llama(2, 64, 4, 0, 32).head_dim == 32);
    CHECK_THROWS_WITH(gpt2(2, 64, 5), "heads 5 must divide dim 64");
    CHECK_THROWS_WITH(gpt2(2, 0, 4), "dim 0: expected 2 to 1048576");
}

TEST_CASE("each rule is refused in one line, and the shape beside it is not") {
    CHECK(refusal(gpt2(2, 64, 4)) == "accepted");
    CHECK(refusal(llama(2, 64, 4, 2, 32)) == "accepted");
    CHECK(refusal(llama(2, 64, 4, 3)) == "kv-heads 3 must divide heads 4");
    CHECK(refusal(llama(2, 60, 4)).starts_with("head-dim 15: rotary"));
    CHECK(refusal(gpt2(2, 60, 4)) == "accepted");
    ModelShape s = gpt2(2, 64, 4);
    s.head_dim = 32;
    CHECK(refusal(s) == "head-dim 32: gpt2 needs dim / heads, but heads 4 of it do not make dim 64");
    s = gpt2(2, 64, 4);
    s.kv_heads = 2;
    CHECK(refusal(s) == "kv-heads 2: gpt2 has as many as heads, 4");
    s = gpt2(0, 64, 4);
    CHECK(refusal(s) == "layers 0: expected 1 to 16384");
    s.layers = 16385;
    CHECK(refusal(s).starts_with("layers 16385:"));
    s.layers = 16384;
    CHECK(refusal(s) == "accepted");
    s.vocab = -1;
    CHECK(refusal(s).starts_with("vocab -1:"));
    s.family = "lama";
    CHECK(refusal(s) == "family lama: unknown; the nearest is llama");
    s = llama(2, 64, 4);
    s.norm_eps = 0;
    CHECK(refusal(s).starts_with("the epsilon"));
    s = llama(2, 64, 4);
    s.rope_theta = 0.0 / s.norm_eps;
    CHECK(refusal(s).starts_with("rope_theta"));
    s = llama(2, 64, 4);
    s.window = 8;
    CHECK(refusal(s) == "window 8: only mistral has a sliding window");
    s.family = "mistral";
    CHECK(refusal(s) == "accepted");
    s.attention_bias = true;
    CHECK(refusal(s) == "attention_bias: an option of llama and qwen3, not of mistral");
    s = llama(2, 64, 4);
    s.scaling = {8, 4, 4, 8192};
    CHECK(refusal(s).starts_with("rope scaling: expected"));
}

TEST_CASE("a head fits the attention kernel, and no matrix has one row, which would be a vector") {
    ModelShape s = llama(2, 1024, 4, 4, 256);
    CHECK(refusal(s) == "accepted");
    s.head_dim = 258;
    CHECK(refusal(s) == "head-dim 258: expected 1 to 256, which is what the attention kernel can hold");
    CHECK(refusal(gpt2(1, 514, 2)).starts_with("head-dim 257: expected 1 to 256"));
    for (long ModelShape::*size : {&ModelShape::dim, &ModelShape::ffn, &ModelShape::vocab, &ModelShape::seq})
        for (const std::string& family : model_families) {
            s = {.family = family, .layers = 1, .dim = 2, .heads = 1, .kv_heads = 1, .head_dim = 2, .ffn = 2,
                 .vocab = 2, .seq = 2};
            CHECK(refusal(s) == "accepted");
            s.*size = 1;
            CHECK((refusal(s) == "accepted") == (family != "gpt2" && size == &ModelShape::seq));
        }
}

TEST_CASE("the largest shape that is accepted has a parameter count that fits in 63 bits") {
    ModelShape s{.family = "llama", .layers = 1 << 14, .dim = 1 << 20, .heads = 1 << 12, .kv_heads = 1 << 12,
                 .head_dim = 256, .ffn = 1 << 22, .vocab = 1 << 24, .seq = 1 << 24};
    CHECK(refusal(s) == "accepted");
    const long double block = 4.0L * s.dim * s.heads * s.head_dim + 3.0L * s.dim * s.ffn + 2.0L * s.dim;
    CHECK(double(s.parameters()) == doctest::Approx(double(s.layers * block + 1.0L * s.vocab * s.dim + s.dim)));
}

TEST_CASE("every preset obeys the rules, and an unknown one names its neighbour") {
    for (const std::string& name : preset_names()) CHECK(refusal(preset(name)) == "accepted");
    CHECK_THROWS_WITH(preset("gpt2-124"), "gpt2-124: no such preset; the nearest is gpt2-124m");
    CHECK(nearest("stes", {"seed", "steps", "tests"}) == "steps");
    CHECK(nearest("x", {}) == "");
}

TEST_CASE("a shape survives the way through config.json") {
    ModelShape wide = gpt2(3, 64, 4);
    wide.ffn = 100;
    wide.tied = false;
    wide.norm_eps = 1e-6;
    ModelShape grouped = llama(2, 64, 4, 2, 32);
    grouped.rope_theta = 500000;
    grouped.tied = false;
    std::vector<ModelShape> shapes = {gpt2(2, 64, 4), wide, llama(2, 64, 4), grouped};
    grouped.attention_bias = grouped.mlp_bias = true;
    shapes.push_back(grouped);
    for (const std::string& name : preset_names()) shapes.push_back(preset(name));
    for (const ModelShape& s : shapes) CHECK(from_hf_config(to_hf_config(s, "float32", 256), "here") == s);
}

// Parameter counts as published with the models.
TEST_CASE("presets have the published number of parameters") {
    const std::map<std::string, long> published = {
        {"gpt2-124m", 124439808}, {"gpt2-355m", 354823168}, {"gpt2-774m", 774030080}, {"gpt2-1558m", 1557611200},
        {"llama3-1b", 1235814400}, {"llama3-3b", 3212749824}, {"llama3-8b", 8030261248},
        {"qwen2.5-0.5b", 494032768}, {"qwen2.5-1.5b", 1543714304}, {"qwen2.5-7b", 7615616512},
        {"qwen3-0.6b", 596049920}, {"qwen3-1.7b", 1720574976}, {"qwen3-8b", 8190735360}, {"mistral-7b", 7241732096}};
    for (const auto& [name, count] : published) CHECK_MESSAGE(preset(name).parameters() == count, name);
}

TEST_CASE("E3: llama3 scaling follows the published rule in all three bands, survives export, other types are errors") {
    ModelShape s = llama(2, 64, 1, 1, 64);
    s.rope_theta = 5e5, s.seq = 131072;
    const std::vector<double> plain = rope_frequencies(s);
    s.scaling = {8, 1, 4, 8192};
    const std::vector<double> scaled = rope_frequencies(s);
    REQUIRE(scaled.size() == 32);
    CHECK(scaled[8] / plain[8] == 1.0);
    CHECK(scaled[16] / plain[16] == doctest::Approx(0.3711).epsilon(1e-4));
    CHECK(scaled[17] / plain[17] == doctest::Approx(0.1902).epsilon(3e-4));
    for (size_t i = 18; i < 32; ++i) CHECK(scaled[i] / plain[i] == 0.125);
    const std::string config = to_hf_config(s, "float32");
    CHECK(from_hf_config(config, "here") == s);
    for (const char* part : {"\"rope_type\": \"llama3\"", "\"factor\": 8.0", "\"low_freq_factor\": 1.0",
                             "\"high_freq_factor\": 4.0", "\"original_max_position_embeddings\": 8192"})
        CHECK_MESSAGE(config.find(part) != std::string::npos, part);
}

TEST_CASE("a mistral without sliding_window has that of transformers, 4096; null is none") {
    const std::string mistral = "{\"model_type\": \"mistral\"" + llama_json.substr(llama_json.find(','));
    const auto window = [&](const std::string& field) { return from_hf_config(mistral + field + "}", "c.json").window; };
    CHECK(window("") == 4096);
    CHECK(window(R"(, "sliding_window": null)") == 0);
    CHECK(window(R"(, "sliding_window": 7)") == 7);
}

TEST_CASE("E4: a head size in config.json is taken as it is, never derived") {
    ModelShape s = from_hf_config(llama_json + R"(, "head_dim": 32})", "c.json");
    CHECK(s.head_dim == 32);
    CHECK(from_hf_config(to_hf_config(s, "float32"), "here").head_dim == 32);
}

TEST_CASE("config.json says what transformers looks for") {
    const std::string g = to_hf_config(gpt2(2, 64, 4), "bfloat16", 256), l = to_hf_config(llama(2, 64, 4), "float32");
    for (const char* part : {"\"GPT2LMHeadModel\"\n", "\"n_embd\": 64", "\"n_layer\": 2", "\"n_head\": 4",
                             "\"gelu_new\"", "\"n_positions\": 64", "\"torch_dtype\": \"bfloat16\"",
                             "\"eos_token_id\": 256", "\"n_inner\": null"})
        CHECK_MESSAGE(g.find(part) != std::string::npos, part);
    for (const char* part : {"\"LlamaForCausalLM\"\n", "\"hidden_size\": 64", "\"num_hidden_layers\": 2",
                             "\"intermediate_size\": 192", "\"silu\"", "\"attention_bias\": false",
                             "\"mlp_bias\": false", "\"head_dim\": 16",
                             "\"eos_token_id\": null", "\"rope_theta\": 10000.0", "\"max_position_embeddings\": 64"})
        CHECK_MESSAGE(l.find(part) != std::string::npos, part);
}

TEST_CASE("published configurations are read, with the defaults of their family") {
    const ModelShape g = from_hf_config(gpt2_json + "}", "c.json");
    CHECK(g.tied);
    CHECK(g.ffn == 256);
    CHECK(g.seq == 32);
    const ModelShape l = from_hf_config(llama_json + "}", "c.json");
    CHECK(!l.tied);
    CHECK(l.head_dim == 8);
    CHECK(l.rope_theta == 10000);
    CHECK(from_hf_config(llama_json + R"(, "rope_theta": 5e5})", "c.json").rope_theta == 5e5);
    const std::string newer = R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})";
    CHECK(from_hf_config(llama_json + newer, "c.json").rope_theta == 5e5);
}

TEST_CASE("a field that changes the model in a way that is not built is refused by name") {
    const auto with = [](const std::string& json, const std::string& field) {
        return refusal(json + ", " + field + "}");
    };
    CHECK(with(llama_json, R"("rope_scaling": {"rope_type": "llama3"})") ==
          "c.json: rope_scaling: factor: found nothing, expected a number");
    CHECK(with(llama_json, R"("rope_scaling": {"type": "linear", "factor": 2})") ==
          "c.json: rope_scaling: rope_type is \"linear\"; only \"default\" or \"llama3\" is implemented");
    const std::string yarn = R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4})";
    CHECK(with(llama_json, yarn).starts_with("c.json: rope_parameters: rope_type is \"yarn\";"));
    CHECK(with(llama_json, R"("rope_parameters": {"rope_theta": 1e4, "mrope": 2})").starts_with(
        "c.json: rope_parameters: mrope is unknown here"));
    CHECK(with(llama_json, R"("attention_bias": true, "mlp_bias": true)") == "accepted");
    CHECK(with(llama_json, R"("mlp_bias": 1)").starts_with("c.json: mlp_bias"));
    CHECK(with(llama_json, R"("layer_types": ["full_attention", "sliding_attention"])").starts_with("c.json: layer_"));
    CHECK(with(llama_json, R"("hidden_act": "gelu")").starts_with("c.json: hidden_act is \"gelu\""));
    CHECK(with(llama_json, R"("sliding_window": 4096)").starts_with("c.json: sliding_window is unknown"));
    CHECK(with(llama_json, R"("sliding_window": null)") == "accepted");
    CHECK(with(gpt2_json, R"("scale_attn_by_inverse_layer_idx": true)").starts_with("c.json: scale_attn_by_inv"));
    CHECK(with(gpt2_json, R"("scale_attn_weights": false)").starts_with("c.json: scale_attn_weights"));
    CHECK(with(gpt2_json, R"("activation_function": "relu")").starts_with("c.json: activation_function"));
    CHECK(with(gpt2_json, R"("architectures": ["GPT2ForTokenClassification"])").starts_with("c.json: archi"));
    CHECK(with(gpt2_json, R"("quantization_config": {"bits": 4})").starts_with("c.json: quantization_config"));
}

TEST_CASE("a broken config.json is refused in one line") {
    CHECK(refusal("{").starts_with("c.json: not JSON"));
    CHECK(refusal("[1]") == "c.json: found [1], expected an object");
    CHECK(refusal("{}") == "c.json: model_type: found nothing, expected a string");
    CHECK(refusal(R"({"model_type": "mamba"})") == "c.json: model_type mamba: not one of gpt2, llama, qwen2, qwen3, mistral");
    CHECK(refusal(R"({"model_type": "gpt2"})") == "c.json: n_layer: found nothing, expected a whole number");
    CHECK(refusal(gpt2_json + R"(, "n_embd": "64"})") == "c.json: n_embd: found \"64\", expected a whole number");
    CHECK(refusal(gpt2_json + R"(, "n_head": 5})") == "c.json: heads 5 must divide dim 64");
    CHECK(refusal(gpt2_json + R"(, "n_embd": 9223372036854775807})").starts_with("c.json: dim 9223372036854775807"));
    CHECK(refusal(llama_json + R"(, "rope_parameters": {"rope_theta": "x"}})").find('\n') == std::string::npos);
    CHECK(refusal(llama_json + R"(, "rope_parameters": 3})").starts_with("c.json: rope_parameters"));
}

}
