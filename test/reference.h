// reference.h - every family once more, in plain fp64 loops straight from the formulas: the truth for model tests.
// Copy with: shape.h and what it names
// One document at a time, forward only, no batches, no caches, no code of the model. Weights by Hugging Face's names.
#pragma once
#include "shape.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace baretrain::test {

struct Reference {
    using Row = std::vector<double>;
    ModelShape s;
    std::map<std::string, Row> w;                      // as stored
    bool gpt2() const { return s.family == "gpt2"; }

    // y = x W^T + b where there is a b; GPT-2 stores W as (in, out), the others as (out, in).
    Row linear(const std::string& name, const Row& x) const {
        const Row& m = w.at(name + ".weight");
        const size_t I = x.size(), O = m.size() / I;
        Row y = w.count(name + ".bias") ? w.at(name + ".bias") : Row(O);
        for (size_t o = 0; o < O; ++o)
            for (size_t i = 0; i < I; ++i) y[o] += x[i] * (gpt2() ? m[i * O + o] : m[o * I + i]);
        return y;
    }
    Row norm(const std::string& name, const Row& x) const {
        const Row& gain = w.at(name + ".weight");
        double mean = 0, variance = 0;
        if (gpt2())
            for (double v : x) mean += v / double(x.size());
        for (double v : x) variance += (v - mean) * (v - mean) / double(x.size());
        Row y(x.size());
        for (size_t i = 0; i < x.size(); ++i) {
            y[i] = gain[i] * (x[i] - mean) / std::sqrt(variance + s.norm_eps);
            if (gpt2()) y[i] += w.at(name + ".bias")[i];
        }
        return y;
    }
    // Each head of a row through a norm of its own.
    void norm_heads(const std::string& name, Row& x) const {
        const long D = s.head_dim;
        for (auto h = x.begin(); h != x.end(); h += D) std::ranges::copy(norm(name, Row(h, h + D)), h);
    }
    // The llama3 rule, by wavelengths, as published.
    double frequency(double f) const {
        const RopeScaling& r = s.scaling;
        if (r.factor == 0) return f;
        const double wavelength = 2 * M_PI / f, longest = double(r.original) / r.low;
        const double shortest = double(r.original) / r.high;
        if (wavelength < shortest) return f;
        if (wavelength > longest) return f / r.factor;
        const double smooth = (double(r.original) / wavelength - r.low) / (r.high - r.low);
        return (1 - smooth) * f / r.factor + smooth * f;
    }
    // Half-split rotation of each head of a row: channel i pairs with i + D/2.
    void rotate(Row& x, long position) const {
        const size_t D = size_t(s.head_dim), half = D / 2;
        for (size_t h = 0; h < x.size() / D; ++h)
            for (size_t i = 0; i < half; ++i) {
                const double angle = double(position) * frequency(std::pow(s.rope_theta, -2.0 * double(i) / double(D)));
                double &a = x[h * D + i], &b = x[h * D + i + half];
                const double u = a * std::cos(angle) - b * std::sin(angle);
                b = b * std::cos(angle) + a * std::sin(angle);
                a = u;
            }
    }
    static double gelu(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
    static double silu(double x) { return x / (1 + std::exp(-x)); }

    // The outputs of all heads for row n, side by side.
    Row attend(const Row& q, const std::vector<Row>& k, const std::vector<Row>& v, size_t n) const {
        const size_t D = size_t(s.head_dim), share = size_t(s.heads / s.kv_heads);
        Row out(q.size());
        for (size_t h = 0; h < size_t(s.heads); ++h) {
            const size_t mine = h * D, theirs = h / share * D;
            Row p(n + 1);
            double sum = 0;
            const size_t from = s.window > 0 && n + 1 > size_t(s.window) ? n + 1 - size_t(s.window) : 0;
            for (size_t j = from; j <= n; ++j) {
                double score = 0;
                for (size_t d = 0; d < D; ++d) score += q[mine + d] * k[j][theirs + d];
                sum += p[j] = std::exp(score / std::sqrt(double(D)));
            }
            for (size_t j = from; j <= n; ++j)
                for (size_t d = 0; d < D; ++d) out[mine + d] += p[j] / sum * v[j][theirs + d];
        }
        return out;
    }
    static void add(Row& x, const Row& y) {
        for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    }
    Row feed_forward(const std::string& block, const Row& x) const {
        if (gpt2()) {
            Row hidden = linear(block + "mlp.c_fc", x);
            for (double& v : hidden) v = gelu(v);
            return linear(block + "mlp.c_proj", hidden);
        }
        Row hidden = linear(block + "mlp.gate_proj", x);
        const Row up = linear(block + "mlp.up_proj", x);
        for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = silu(hidden[i]) * up[i];
        return linear(block + "mlp.down_proj", hidden);
    }
    void run_block(const std::string& block, std::vector<Row>& x) const {
        std::vector<Row> q, k, v;
        for (size_t n = 0; n < x.size(); ++n) {
            const Row y = norm(block + (gpt2() ? "ln_1" : "input_layernorm"), x[n]);
            if (gpt2()) {
                const Row all = linear(block + "attn.c_attn", y);
                const auto third = [&](long i) { return Row(all.begin() + i * s.dim, all.begin() + (i + 1) * s.dim); };
                q.push_back(third(0)), k.push_back(third(1)), v.push_back(third(2));
            } else {
                q.push_back(linear(block + "self_attn.q_proj", y)), k.push_back(linear(block + "self_attn.k_proj", y));
                v.push_back(linear(block + "self_attn.v_proj", y));
                if (s.family == "qwen3")
                    norm_heads(block + "self_attn.q_norm", q[n]), norm_heads(block + "self_attn.k_norm", k[n]);
                rotate(q[n], long(n)), rotate(k[n], long(n));
            }
        }
        for (size_t n = 0; n < x.size(); ++n) {
            add(x[n], linear(block + (gpt2() ? "attn.c_proj" : "self_attn.o_proj"), attend(q[n], k, v, n)));
            const Row y = norm(block + (gpt2() ? "ln_2" : "post_attention_layernorm"), x[n]);
            add(x[n], feed_forward(block, y));
        }
    }

    // Logits of each row of one document.
    std::vector<Row> logits(const std::vector<int>& tokens) const {
        const Row& wte = w.at(gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight");
        const Row& head = s.tied ? wte : w.at("lm_head.weight");
        const size_t C = size_t(s.dim);
        std::vector<Row> x;
        for (size_t n = 0; n < tokens.size(); ++n) {
            const auto at = wte.begin() + tokens[n] * s.dim;
            x.emplace_back(at, at + s.dim);
            if (gpt2())
                for (size_t c = 0; c < C; ++c) x[n][c] += w.at("transformer.wpe.weight")[n * C + c];
        }
        for (long l = 0; l < s.layers; ++l)
            run_block((gpt2() ? "transformer.h." : "model.layers.") + std::to_string(l) + ".", x);
        for (Row& row : x) {
            const Row last = norm(gpt2() ? "transformer.ln_f" : "model.norm", row);
            row.assign(size_t(s.vocab), 0);
            for (size_t v = 0; v < row.size(); ++v)
                for (size_t c = 0; c < C; ++c) row[v] += last[c] * head[v * C + c];
        }
        return x;
    }
    static double logprob(const Row& logits, int target) {
        double sum = 0;
        for (double z : logits) sum += std::exp(z);
        return logits[size_t(target)] - std::log(sum);
    }
};

}  // namespace baretrain::test
