// shape.cpp - body of shape.h: presets, rules, parameter count, config.json.
// Copy with: shape.h, device/error.h, nlohmann-json
#include "shape.h"
#include "device/error.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

namespace baretrain {

using Json = nlohmann::json;

namespace {

struct Preset {
    const char* name;
    ModelShape shape;
};

const std::vector<Preset>& presets() {                 // family, L, C, H, key heads, D, F, V, T
    static const std::vector<Preset> all = {
        {"gpt2-tiny", {"gpt2", 4, 128, 4, 0, 0, 0, 257, 128}},
        {"gpt2-mini", {"gpt2", 6, 384, 6, 0, 0, 0, 257, 256}},
        {"gpt2-124m", {"gpt2", 12, 768, 12, 0, 0, 0, 50257, 1024}},
        {"gpt2-355m", {"gpt2", 24, 1024, 16, 0, 0, 0, 50257, 1024}},
        {"gpt2-774m", {"gpt2", 36, 1280, 20, 0, 0, 0, 50257, 1024}},
        {"gpt2-1558m", {"gpt2", 48, 1600, 25, 0, 0, 0, 50257, 1024}},
        {"llama-tiny", {"llama", 4, 128, 4, 2, 0, 0, 257, 128}},
        {"llama-mini", {"llama", 6, 384, 6, 2, 0, 0, 257, 256}},
    };
    return all;
}

// Known names that need something the model does not have yet.
const std::vector<std::pair<std::string, std::string>> not_built = {
    {"llama3-1b", "the llama3 scaling of rotary positions"},
    {"qwen2.5-0.5b", "biases on q, k and v"},
    {"qwen3-0.6b", "norms on q and k"},
};

long ceil_to(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

std::string text(const std::string& name, long n) { return name + " " + std::to_string(n); }

void check_size(const char* name, long value, long least, long most, const char* why = "") {
    if (value < least || value > most)
        fail(text(name, value) + ": expected " + std::to_string(least) + " to " + std::to_string(most) + why);
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
    for (const Preset& p : presets()) names.push_back(p.name);
    return names;
}

ModelShape preset(const std::string& name) {
    for (const Preset& p : presets())
        if (p.name == name) return with_defaults(p.shape);
    std::vector<std::string> names = preset_names();
    for (const auto& [known, needs] : not_built) {
        if (known == name) fail(name + ": not built yet: it needs " + needs);
        names.push_back(known);
    }
    fail(name + ": no such preset; the nearest is " + nearest(name, names));
}

ModelShape with_defaults(ModelShape s) {
    check_size("dim", s.dim, 2, most_dim);
    check_size("heads", s.heads, 1, most_heads);
    if (s.kv_heads == 0) s.kv_heads = s.heads;
    if (s.head_dim == 0) {
        if (s.dim % s.heads != 0) fail(text("heads", s.heads) + " must divide " + text("dim", s.dim));
        s.head_dim = s.dim / s.heads;
    }
    if (s.ffn == 0) s.ffn = s.gated() ? ceil_to((8 * s.dim + 2) / 3, 64) : 4 * s.dim;
    return s;
}

void check_shape(const ModelShape& s) {
    if (std::count(later_families.begin(), later_families.end(), s.family))
        fail("family " + s.family + ": not built yet; gpt2 and llama are");
    if (!std::count(built_families.begin(), built_families.end(), s.family))
        fail("family " + s.family + ": unknown; the nearest is " + nearest(s.family, built_families));

    // No matrix may have one row: in the table of parameters that is what a vector looks like.
    check_size("layers", s.layers, 1, most_layers);
    check_size("dim", s.dim, 2, most_dim);
    check_size("heads", s.heads, 1, most_heads);
    check_size("kv-heads", s.kv_heads, 1, most_heads);
    check_size("head-dim", s.head_dim, 1, most_head_dim, ", which is what the attention kernel can hold");
    check_size("ffn", s.ffn, 2, most_ffn);
    check_size("vocab", s.vocab, 2, most_rows);
    check_size("seq", s.seq, s.learned_positions() ? 2 : 1, most_rows);

    if (s.heads % s.kv_heads != 0) fail(text("kv-heads", s.kv_heads) + " must divide " + text("heads", s.heads));
    if (s.family == "gpt2" && s.kv_heads != s.heads)
        fail(text("kv-heads", s.kv_heads) + ": gpt2 has as many as heads, " + std::to_string(s.heads));
    if (s.family == "gpt2" && s.heads * s.head_dim != s.dim)
        fail(text("head-dim", s.head_dim) + ": gpt2 needs dim / heads, but " + text("heads", s.heads) +
             " of it do not make " + text("dim", s.dim));
    if (s.rotary() && s.head_dim % 2 != 0)
        fail(text("head-dim", s.head_dim) + ": rotary positions need an even number");
    if (!(s.rope_theta > 0 && s.rope_theta < 1e18)) fail("rope_theta must be positive");
    if (!(s.norm_eps > 0 && s.norm_eps < 1)) fail("the epsilon of the norms must lie between 0 and 1");
}

long ModelShape::parameters() const {
    const long norm = layernorm() ? 2 * dim : dim, up = gated() ? 2 * ffn : ffn;
    const long q = heads * head_dim, kv = kv_heads * head_dim;
    const long bias = biases() ? q + 2 * kv + dim + up + dim : 0;
    const long block = 2 * norm + dim * (q + 2 * kv) + q * dim + dim * up + ffn * dim + bias;
    return (tied ? 1 : 2) * vocab * dim + (learned_positions() ? seq * dim : 0) + layers * block + norm;
}

std::string to_hf_config(const ModelShape& s, const std::string& torch_dtype, long eos) {
    Json j = {{"vocab_size", s.vocab}, {"tie_word_embeddings", s.tied}, {"torch_dtype", torch_dtype},
              {"initializer_range", 0.02}, {"use_cache", true}};
    j["bos_token_id"] = j["eos_token_id"] = eos < 0 ? Json() : Json(eos);
    if (s.family == "gpt2") {
        j.update({{"architectures", Json::array({"GPT2LMHeadModel"})}, {"model_type", "gpt2"},
                  {"activation_function", "gelu_new"}, {"n_layer", s.layers}, {"n_embd", s.dim},
                  {"n_head", s.heads}, {"n_positions", s.seq},
                  {"layer_norm_epsilon", s.norm_eps}, {"attn_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"resid_pdrop", 0.0}});
        j["n_inner"] = s.ffn == 4 * s.dim ? Json() : Json(s.ffn);
    } else {
        j.update({{"architectures", Json::array({"LlamaForCausalLM"})}, {"model_type", "llama"}, {"hidden_act", "silu"},
                  {"num_hidden_layers", s.layers}, {"hidden_size", s.dim}, {"num_attention_heads", s.heads},
                  {"num_key_value_heads", s.kv_heads}, {"head_dim", s.head_dim}, {"intermediate_size", s.ffn},
                  {"max_position_embeddings", s.seq}, {"rms_norm_eps", s.norm_eps}, {"rope_theta", s.rope_theta},
                  {"rope_scaling", nullptr}, {"attention_bias", false}, {"mlp_bias", false},
                  {"attention_dropout", 0.0}});
    }
    return j.dump(2) + "\n";
}

namespace {

// Reads fields and remembers which, so that what nobody read can be refused at the end.
class Fields {
public:
    Fields(Json object, std::string where) : object_(std::move(object)), where_(std::move(where)) {
        if (!object_.is_object()) refuse("found " + object_.dump().substr(0, 40) + ", expected an object");
    }
    // The value of a field, or `missing` when it is absent or null; without `missing` it has to be there.
    template <class T> T get(const std::string& name, std::optional<T> missing = {}) {
        read_.insert(name);
        const Json value = object_.value(name, Json());
        if (value.is_null() && missing) return *missing;
        const auto [fits, expected] = describe<T>(value);
        if (!fits)
            refuse(name + ": found " + (object_.contains(name) ? value.dump().substr(0, 40) : "nothing") +
                   ", expected a " + expected);
        return value.get<T>();
    }
    // A field that changes the model: only one of these values (or its absence) is implemented.
    void only(const std::string& name, const std::vector<Json>& implemented) {
        read_.insert(name);
        if (!object_.contains(name) || std::count(implemented.begin(), implemented.end(), object_[name])) return;
        std::string values;
        for (const Json& v : implemented) values += (values.empty() ? "" : " or ") + v.dump();
        refuse(name + " is " + object_[name].dump().substr(0, 80) + "; only " + values + " is implemented");
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
                refuse(name + " is unknown here and may change the model; remove it from the file if it does not");
        }
    }
    const Json& json() const { return object_; }
    [[noreturn]] void refuse(const std::string& message) const { fail(where_ + ": " + message); }

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

ModelShape llama_shape(Fields& f) {
    f.only("hidden_act", {"silu", "swish"});
    f.only("attention_bias", {false});
    f.only("mlp_bias", {false});
    f.only("rope_scaling", {nullptr});
    ModelShape s{.family = "llama", .layers = f.get<long>("num_hidden_layers"), .dim = f.get<long>("hidden_size"),
                 .heads = f.get<long>("num_attention_heads"), .ffn = f.get<long>("intermediate_size"),
                 .vocab = f.get<long>("vocab_size"), .seq = f.get<long>("max_position_embeddings")};
    s.kv_heads = f.get<long>("num_key_value_heads", 0L);
    s.head_dim = f.get<long>("head_dim", 0L);
    s.tied = f.get<bool>("tie_word_embeddings", false);
    s.norm_eps = f.get<double>("rms_norm_eps", 1e-6);
    // Newer files keep theta in an object; anything in it but theta and the plain type is a scaling.
    const double theta = f.json().value("/rope_parameters/rope_theta"_json_pointer, 1e4);
    f.only("rope_parameters", {nullptr, Json::object({{"rope_type", "default"}, {"rope_theta", theta}})});
    s.rope_theta = f.get<double>("rope_theta", theta);
    return s;
}

}  // namespace

ModelShape from_hf_config(const std::string& json_text, const std::string& where) {
    Json parsed;
    try {
        parsed = Json::parse(json_text, [](int depth, auto, auto&) { return depth < 64; });   // dump() recurses
    } catch (const Json::exception& e) {
        fail(where + ": not JSON: " + e.what());
    }
    Fields f(parsed, where);
    const std::string type = f.get<std::string>("model_type");
    if (type != "gpt2" && type != "llama") f.refuse("model_type " + type + ": not built; gpt2 and llama are");
    f.only("architectures", {nullptr, Json::array({type == "gpt2" ? "GPT2LMHeadModel" : "LlamaForCausalLM"})});
    ModelShape s;
    try {
        s = type == "gpt2" ? gpt2_shape(f) : llama_shape(f);
    } catch (const Json::exception& e) {
        f.refuse(e.what());
    }
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
