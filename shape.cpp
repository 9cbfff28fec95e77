// shape.cpp - body of shape.h: presets, rules, parameter count, config.json.
// Copy with: shape.h, device/error.h, nlohmann-json
#include "shape.h"
#include "device/error.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

namespace baretrain {

using Json = nlohmann::json;

namespace {

ModelShape llama3(ModelShape s, double factor) {
    s.rope_theta = 5e5, s.scaling = {factor, 1, 4, 8192};
    return s;
}

const std::pair<const char*, ModelShape> presets[] = { // family, L, C, H, key heads, D, F, V, T, tied, theta, epsilon
    {"gpt2-tiny", {"gpt2", 4, 128, 4, 0, 0, 0, 257, 128}},
    {"gpt2-mini", {"gpt2", 6, 384, 6, 0, 0, 0, 257, 256}},
    {"gpt2-124m", {"gpt2", 12, 768, 12, 0, 0, 0, 50257, 1024}},
    {"gpt2-355m", {"gpt2", 24, 1024, 16, 0, 0, 0, 50257, 1024}},
    {"gpt2-774m", {"gpt2", 36, 1280, 20, 0, 0, 0, 50257, 1024}},
    {"gpt2-1558m", {"gpt2", 48, 1600, 25, 0, 0, 0, 50257, 1024}},
    {"llama-tiny", {"llama", 4, 128, 4, 2, 0, 0, 257, 128}},
    {"llama-mini", {"llama", 6, 384, 6, 2, 0, 0, 257, 256}},
    {"llama3-1b", llama3({"llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, true}, 32)},
    {"llama3-3b", llama3({"llama", 28, 3072, 24, 8, 128, 8192, 128256, 131072, true}, 32)},
    {"llama3-8b", llama3({"llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072, false}, 8)},
    {"qwen2.5-0.5b", {"qwen2", 24, 896, 14, 2, 0, 4864, 151936, 32768, true, 1e6, 1e-6}},
    {"qwen2.5-1.5b", {"qwen2", 28, 1536, 12, 2, 0, 8960, 151936, 131072, true, 1e6, 1e-6}},
    {"qwen2.5-7b", {"qwen2", 28, 3584, 28, 4, 0, 18944, 152064, 131072, false, 1e6, 1e-6}},
    {"qwen3-0.6b", {"qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, true, 1e6, 1e-6}},
    {"qwen3-1.7b", {"qwen3", 28, 2048, 16, 8, 128, 6144, 151936, 40960, true, 1e6, 1e-6}},
    {"qwen3-8b", {"qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, false, 1e6, 1e-6}},
    {"mistral-7b", {"mistral", 32, 4096, 32, 8, 128, 14336, 32000, 32768, false, 1e4, 1e-5, false, false, 4096}},
};

const std::map<std::string, const char*> architectures = {
    {"gpt2", "GPT2LMHeadModel"}, {"llama", "LlamaForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"}, {"mistral", "MistralForCausalLM"}};

long ceil_to(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

void check_size(const char* name, long value, long least, long most, const char* why = "") {
    if (value < least || value > most) fail(name, " ", value, ": expected ", least, " to ", most, why);
}

Json scaling_json(const RopeScaling& r) {
    if (r.factor == 0) return nullptr;
    return {{"rope_type", "llama3"}, {"factor", r.factor}, {"low_freq_factor", r.low}, {"high_freq_factor", r.high},
            {"original_max_position_embeddings", r.original}};
}

// Far beyond any model, and low enough that every product of sizes fits in 63 bits.
constexpr long most_dim = 1 << 20, most_heads = 1 << 12, most_ffn = 1 << 22, most_layers = 1 << 14, most_rows = 1 << 24;
constexpr long most_head_dim = 256;                    // attention_max_head of kernels/attention.h

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
    std::string best;
    size_t fewest = size_t(-1);
    for (const std::string& c : candidates) {
        std::vector<size_t> row(c.size() + 1);         // distances to the prefixes of c, letter after letter of word
        std::iota(row.begin(), row.end(), size_t(0));
        for (size_t i = 1; i <= word.size(); ++i) {
            size_t diagonal = row[0]++;
            for (size_t j = 1; j <= c.size(); ++j) {
                const size_t replaced = diagonal + (word[i - 1] != c[j - 1]);
                diagonal = row[j];
                row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
            }
        }
        if (row.back() < fewest) fewest = row.back(), best = c;
    }
    return best;
}

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const auto& [name, shape] : presets) names.push_back(name);
    return names;
}

ModelShape preset(const std::string& name) {
    for (const auto& [known, shape] : presets)
        if (known == name) return with_defaults(shape);
    fail(name, ": no such preset; the nearest is ", nearest(name, preset_names()));
}

ModelShape with_defaults(ModelShape s) {
    check_size("dim", s.dim, 2, most_dim);
    check_size("heads", s.heads, 1, most_heads);
    if (s.kv_heads == 0) s.kv_heads = s.heads;
    if (s.head_dim == 0) {
        if (s.dim % s.heads != 0) fail("heads ", s.heads, " must divide dim ", s.dim);
        s.head_dim = s.dim / s.heads;
    }
    if (s.ffn == 0) s.ffn = s.gated() ? ceil_to((8 * s.dim + 2) / 3, 64) : 4 * s.dim;
    return s;
}

void check_shape(const ModelShape& s) {
    if (!std::count(model_families.begin(), model_families.end(), s.family))
        fail("family ", s.family, ": unknown; the nearest is ", nearest(s.family, model_families));

    // No matrix may have one row: in the table of parameters that is what a vector looks like.
    check_size("layers", s.layers, 1, most_layers);
    check_size("dim", s.dim, 2, most_dim);
    check_size("heads", s.heads, 1, most_heads);
    check_size("kv-heads", s.kv_heads, 1, most_heads);
    check_size("head-dim", s.head_dim, 1, most_head_dim, ", which is what the attention kernel can hold");
    check_size("ffn", s.ffn, 2, most_ffn);
    check_size("vocab", s.vocab, 2, most_rows);
    check_size("seq", s.seq, s.learned_positions() ? 2 : 1, most_rows);

    if (s.heads % s.kv_heads != 0) fail("kv-heads ", s.kv_heads, " must divide heads ", s.heads);
    if (s.family == "gpt2" && s.kv_heads != s.heads)
        fail("kv-heads ", s.kv_heads, ": gpt2 has as many as heads, ", s.heads);
    if (s.family == "gpt2" && s.heads * s.head_dim != s.dim)
        fail("head-dim ", s.head_dim, ": gpt2 needs dim / heads, but heads ", s.heads, " of it do not make dim ",
             s.dim);
    if (s.rotary() && s.head_dim % 2 != 0) fail("head-dim ", s.head_dim, ": rotary positions need an even number");
    check_size("window", s.window, 0, most_rows);
    if (s.window > 0 && s.family != "mistral") fail("window ", s.window, ": only mistral has a sliding window");
    if (s.attention_bias && s.family != "llama" && s.family != "qwen3")
        fail("attention_bias: an option of llama and qwen3, not of ", s.family);
    if (s.mlp_bias && s.family != "llama") fail("mlp_bias: an option of llama, not of ", s.family);
    const RopeScaling& r = s.scaling;
    if (r.factor != 0 && !(s.rotary() && r.factor >= 1 && r.factor < 1e6 && 0 < r.low && r.low < r.high &&
                           r.high < 1e6 && r.original > 0))
        fail("rope scaling: expected a factor of at least 1, 0 < low < high and an original length");
    if (!(s.rope_theta > 0 && s.rope_theta < 1e18)) fail("rope_theta must be positive");
    if (!(s.norm_eps > 0 && s.norm_eps < 1)) fail("the epsilon of the norms must lie between 0 and 1");
}

long ModelShape::parameters() const {
    const long norm = layernorm() ? 2 * dim : dim, up = gated() ? 2 * ffn : ffn;
    const long q = heads * head_dim, kv = kv_heads * head_dim;
    const long bias = (qkv_bias() ? q + 2 * kv : 0) + (out_bias() ? dim : 0) + (ffn_bias() ? up + dim : 0);
    const long block = 2 * norm + dim * (q + 2 * kv) + q * dim + dim * up + ffn * dim + bias +
                       (qk_norm() ? 2 * head_dim : 0);
    return (tied ? 1 : 2) * vocab * dim + (learned_positions() ? seq * dim : 0) + layers * block + norm;
}

std::vector<double> rope_frequencies(const ModelShape& s) {
    std::vector<double> all;
    const RopeScaling& r = s.scaling;
    for (long i = 0; s.rotary() && i < s.head_dim / 2; ++i) {
        const double plain = std::pow(s.rope_theta, -2.0 * double(i) / double(s.head_dim));
        const double turns = double(r.original) * plain / (2 * M_PI);   // within the original length
        const double kept = std::clamp((turns - r.low) / (r.high - r.low), 0.0, 1.0);
        all.push_back(r.factor == 0 ? plain : kept * plain + (1 - kept) * plain / r.factor);
    }
    return all;
}

std::string to_hf_config(const ModelShape& s, const std::string& torch_dtype, long eos) {
    Json j = {{"architectures", Json::array({architectures.at(s.family)})}, {"model_type", s.family},
              {"vocab_size", s.vocab}, {"tie_word_embeddings", s.tied}, {"torch_dtype", torch_dtype},
              {"initializer_range", 0.02}, {"use_cache", true}};
    j["bos_token_id"] = j["eos_token_id"] = eos < 0 ? Json() : Json(eos);
    if (s.family == "gpt2") {
        j.update({{"activation_function", "gelu_new"}, {"n_layer", s.layers}, {"n_embd", s.dim},
                  {"n_head", s.heads}, {"n_positions", s.seq},
                  {"layer_norm_epsilon", s.norm_eps}, {"attn_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"resid_pdrop", 0.0}});
        j["n_inner"] = s.ffn == 4 * s.dim ? Json() : Json(s.ffn);
        return j.dump(2) + "\n";
    }
    j.update({{"hidden_act", "silu"}, {"num_hidden_layers", s.layers}, {"hidden_size", s.dim},
              {"num_attention_heads", s.heads}, {"num_key_value_heads", s.kv_heads}, {"head_dim", s.head_dim},
              {"intermediate_size", s.ffn}, {"max_position_embeddings", s.seq}, {"rms_norm_eps", s.norm_eps},
              {"rope_theta", s.rope_theta}, {"rope_scaling", scaling_json(s.scaling)}, {"attention_dropout", 0.0}});
    if (s.family == "llama" || s.family == "qwen3") j["attention_bias"] = s.attention_bias;
    if (s.family == "llama") j["mlp_bias"] = s.mlp_bias;
    if (s.family == "mistral") j["sliding_window"] = s.window ? Json(s.window) : Json();
    if (s.family == "qwen2" || s.family == "qwen3") j["use_sliding_window"] = false;
    return j.dump(2) + "\n";
}

namespace {

// Reads fields and remembers which, so that what nobody read can be refused at the end.
class Fields {
public:
    Fields(Json object, std::string where) : object_(std::move(object)), where_(std::move(where)) {
        if (!object_.is_object()) refuse("found ", object_.dump().substr(0, 40), ", expected an object");
    }
    // The value of a field, or `missing` when it is absent or null; without `missing` it has to be there.
    template <class T> T get(const std::string& name, std::optional<T> missing = {}) {
        read_.insert(name);
        const Json value = object_.value(name, Json());
        if (value.is_null() && missing) return *missing;
        const auto [fits, expected] = describe<T>(value);
        if (!fits)
            refuse(name, ": found ", object_.contains(name) ? value.dump().substr(0, 40) : "nothing", ", expected a ",
                   expected);
        return value.get<T>();
    }
    // A field that changes the model: only one of these values (or its absence) is implemented.
    void only(const std::string& name, const std::vector<Json>& implemented) {
        read_.insert(name);
        if (!object_.contains(name) || std::count(implemented.begin(), implemented.end(), object_[name])) return;
        std::string values;
        for (const Json& v : implemented) values += (values.empty() ? "" : " or ") + v.dump();
        refuse(name, " is ", object_[name].dump().substr(0, 80), "; only ", values, " is implemented");
    }
    void refuse_the_rest() const {
        // Fields of transformers that do not change what the weights compute. Dropout is not applied by this program.
        static const std::vector<std::string> harmless = {
            "transformers_version", "torch_dtype", "dtype", "use_cache", "initializer_range", "n_ctx", "pretraining_tp",
            "task_specific_params", "reorder_and_upcast_attn", "id2label", "label2id", "return_dict", "name_or_path",
            "bos_token_id", "eos_token_id", "pad_token_id", "attn_pdrop", "embd_pdrop", "resid_pdrop",
            "attention_dropout"};
        for (const auto& [name, value] : object_.items()) {
            const bool neutral = value.is_null() || value == false || name[0] == '_' || name.starts_with("summary_") ||
                                 std::count(harmless.begin(), harmless.end(), name);
            if (!neutral && !read_.count(name))
                refuse(name, " is unknown here and may change the model; remove it from the file if it does not");
        }
    }
    Json take(const std::string& name) {               // as it is; null when absent
        read_.insert(name);
        return object_.value(name, Json());
    }
    bool has(const std::string& name) const { return object_.contains(name); }
    const std::string& where() const { return where_; }
    template <class... Parts> [[noreturn]] void refuse(const Parts&... parts) const { fail(where_, ": ", parts...); }

private:
    template <class T> static std::pair<bool, const char*> describe(const Json& v) {
        if constexpr (std::is_same_v<T, bool>) return {v.is_boolean(), "boolean"};
        else if constexpr (std::is_same_v<T, long>) return {v.is_number_integer(), "whole number"};
        else if constexpr (std::is_same_v<T, double>) return {v.is_number(), "number"};
        else return {v.is_string(), "string"};
    }
    Json object_;
    std::string where_;
    std::set<std::string> read_;
};

ModelShape gpt2_shape(Fields& f) {
    f.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
    f.only("scale_attn_weights", {true});
    f.only("scale_attn_by_inverse_layer_idx", {false});
    f.only("add_cross_attention", {false});
    ModelShape s{.family = "gpt2", .layers = f.get<long>("n_layer"), .dim = f.get<long>("n_embd"),
                 .heads = f.get<long>("n_head"), .vocab = f.get<long>("vocab_size"), .seq = f.get<long>("n_positions")};
    s.ffn = f.get<long>("n_inner", 0L);
    s.tied = f.get<bool>("tie_word_embeddings", true);
    s.norm_eps = f.get<double>("layer_norm_epsilon", 1e-5);
    return s;
}

// The rotation of every family but gpt2. Newer files keep theta and the scaling in one object, rope_parameters.
void read_rope(Fields& f, ModelShape& s) {
    s.rope_theta = f.get<double>("rope_theta", 1e4);
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        const Json object = f.take(name);
        if (object.is_null()) continue;
        Fields r(object, f.where() + ": " + name);
        s.rope_theta = r.get<double>("rope_theta", s.rope_theta);
        const std::string type = r.get<std::string>("rope_type", r.get<std::string>("type", "default"));
        if (type == "llama3")
            s.scaling = {r.get<double>("factor"), r.get<double>("low_freq_factor"), r.get<double>("high_freq_factor"),
                         r.get<long>("original_max_position_embeddings")};
        else if (type != "default")
            r.refuse("rope_type is \"", type, "\"; only \"default\" or \"llama3\" is implemented");
        r.refuse_the_rest();
    }
}

ModelShape llama_shape(Fields& f, const std::string& family) {
    f.only("hidden_act", {"silu", "swish"});
    ModelShape s{.family = family, .layers = f.get<long>("num_hidden_layers"), .dim = f.get<long>("hidden_size"),
                 .heads = f.get<long>("num_attention_heads"), .ffn = f.get<long>("intermediate_size"),
                 .vocab = f.get<long>("vocab_size"), .seq = f.get<long>("max_position_embeddings")};
    // Where the classes of transformers have a number of their own for an absent field, it has to be there.
    const bool llama = family == "llama";
    s.kv_heads = llama ? f.get<long>("num_key_value_heads", 0L) : f.get<long>("num_key_value_heads");
    s.head_dim = family == "qwen3" ? f.get<long>("head_dim") : f.get<long>("head_dim", 0L);
    s.tied = f.get<bool>("tie_word_embeddings", false);
    s.norm_eps = f.get<double>("rms_norm_eps", 1e-6);
    if (llama || family == "qwen3") s.attention_bias = f.get<bool>("attention_bias", false);
    if (llama) s.mlp_bias = f.get<bool>("mlp_bias", false);
    if (family == "mistral") s.window = f.has("sliding_window") ? f.get<long>("sliding_window", 0L) : 4096;
    else f.only("use_sliding_window", {false});
    if (family.starts_with("qwen")) f.take("sliding_window"), f.take("max_window_layers");   // of a window not in use
    const size_t layers = size_t(std::clamp(s.layers, 0L, most_layers));
    f.only("layer_types", {nullptr, Json(layers, s.window ? "sliding_attention" : "full_attention")});
    read_rope(f, s);
    return s;
}

}  // namespace

ModelShape from_hf_config(const std::string& json_text, const std::string& where) {
    Json parsed;
    try {
        parsed = Json::parse(json_text, [](int depth, auto, auto&) { return depth < 64; });   // dump() recurses
    } catch (const Json::exception& e) {
        fail(where, ": not JSON: ", e.what());
    }
    Fields f(parsed, where);
    const std::string type = f.get<std::string>("model_type");
    if (!architectures.count(type)) f.refuse("model_type ", type, ": not one of gpt2, llama, qwen2, qwen3, mistral");
    f.only("architectures", {nullptr, Json::array({architectures.at(type)})});
    ModelShape s = type == "gpt2" ? gpt2_shape(f) : llama_shape(f, type);
    f.refuse_the_rest();
    try {
        s = with_defaults(s);
        check_shape(s);
    } catch (const Error& e) {
        f.refuse(e.what());
    }
    return s;
}

}  // namespace baretrain
