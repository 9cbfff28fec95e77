// shape.h - the numbers that define a model, the presets, and the Hugging Face config.json that says the same.
// Copy with: shape.cpp, device/error.h, nlohmann-json
// C = dim, H = heads, D = head_dim, F = ffn, V = vocab, L = layers. A number that is 0 is not chosen yet: the defaults
// are kv_heads = H, D = C / H, F = 4C (gpt2) or 8C / 3 rounded up to a multiple of 64 (the others, our choice). But for
// gpt2, D is a number of its own: H * D may differ from C. Everything wrong throws Error with one line.
// What sets the families apart is written here and in the table of params.h; the model itself only sees empty views.
#pragma once
#include <string>
#include <vector>

namespace baretrain {

inline const std::vector<std::string> model_families = {"gpt2", "llama", "qwen2", "qwen3", "mistral"};

// Rotary frequencies of Llama 3.1 and later: long wavelengths are stretched by `factor`, short ones stay, with a ramp
// between original / high and original / low. factor 0: no scaling.
struct RopeScaling {
    double factor = 0, low = 1, high = 4;
    long original = 0;                                 // positions that the model saw before it was stretched
    bool operator==(const RopeScaling&) const = default;
};

struct ModelShape {
    std::string family = "gpt2";
    long layers = 0, dim = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
    long seq = 0;                                      // the longest sequence: rows of the position table (gpt2)
    bool tied = true;                                  // the head is the embedding
    double rope_theta = 10000.0;                       // not gpt2
    double norm_eps = 1e-5;
    bool attention_bias = false;                       // llama, qwen3: on q, k, v and the output
    bool mlp_bias = false;                             // llama
    long window = 0;                                   // mistral: keys that a query sees, itself included; 0: all
    RopeScaling scaling = {};                          // not gpt2

    bool learned_positions() const { return family == "gpt2"; }
    bool rotary() const { return !learned_positions(); }
    bool layernorm() const { return family == "gpt2"; }      // else RMSNorm
    bool qkv_bias() const { return family == "gpt2" || family == "qwen2" || attention_bias; }
    bool out_bias() const { return family == "gpt2" || attention_bias; }
    bool ffn_bias() const { return family == "gpt2" || mlp_bias; }
    bool qk_norm() const { return family == "qwen3"; }       // RMSNorm of each head of q and k, before the rotation
    bool gated() const { return family != "gpt2"; }          // SwiGLU, else GELU
    bool transposed() const { return family == "gpt2"; }     // linear weights lie as (in, out)
    long parameters() const;                                 // closed form; a tied head counts once
    bool operator==(const ModelShape&) const = default;
};

std::vector<double> rope_frequencies(const ModelShape&);     // D / 2 angles between neighbouring positions; gpt2: none
std::vector<std::string> preset_names();
ModelShape preset(const std::string& name);
ModelShape with_defaults(ModelShape);
void check_shape(const ModelShape&);                   // call it on what with_defaults() returns

// The text of a config.json that transformers opens as it is. eos: the id that ends a document, -1 when unknown.
std::string to_hf_config(const ModelShape&, const std::string& torch_dtype, long eos = -1);
// Strict: a field that changes the model in a way that is not implemented, or that is unknown here, is refused by name.
ModelShape from_hf_config(const std::string& json_text, const std::string& where);

// The candidate with the smallest edit distance to a misspelt word; "" when there are none.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace baretrain
