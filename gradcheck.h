// gradcheck.h - every hand-written backward pass against central differences in fp64, element by element.
// Copy with: gpt.h and what it names
// An operation maps inputs to y; with a fixed upstream u the loss is <u, y>. For every element of every input the slope
// (loss(x + h) - loss(x - h)) / 2h must equal the gradient that the backward pass gives. Error = the worst difference
// of a tensor over its largest gradient. Whole models are checked the same way, by the gradients that the training step
// takes.
#pragma once
#include "gpt.h"
#include "lease.h"
#include <functional>

namespace baretrain {

struct GradcheckRow { std::string what; double error; };
inline constexpr double gradcheck_bound = 1e-6;

namespace gradient {

using V = View<double>;
inline constexpr double h = 1e-5;

inline std::vector<double> read(Device& d, V v) {
    std::vector<double> host(size_t(v.count()));
    copy_bytes(d, host.data(), v.data, host.size() * sizeof(double));
    return host;
}
inline void write(Device& d, V v, const std::vector<double>& host) {
    copy_bytes(d, v.data, host.data(), host.size() * sizeof(double));
}
inline void fill(Device& d, V v, uint64_t which, double mean = 0) {
    std::vector<double> host(size_t(v.count()));
    for (size_t i = 0; i < host.size(); ++i) host[i] = mean + 0.5 * normal(1, Stream::test, which, i);
    write(d, v, host);
}

// Worst error of `gradient` against the slopes of loss() in the elements of x; x is as before when it returns.
inline double worst_error(Device& d, V x, const std::vector<double>& gradient, const std::function<double()>& loss) {
    double worst = 0, top = 1e-12;
    for (long i = 0; i < x.count(); ++i) {
        const V element(x.data + i, 1, 1);
        const double at = read(d, element)[0];
        write(d, element, {at + h});
        const double up = loss();
        write(d, element, {at - h});
        const double slope = (up - loss()) / (2 * h);
        write(d, element, {at});
        const double error = std::fabs(slope - gradient[size_t(i)]);
        if (!(error < INFINITY)) return INFINITY;      // NaN on either side: max() would lose it
        worst = std::max(worst, error);
        top = std::max(top, std::fabs(gradient[size_t(i)]));
    }
    return worst / top;
}

// One operation: a bench with memory for its inputs, its result and their gradients.
struct Bench {
    Device d;
    Matmul matmul{d};
    Comm comm{d};
    Arena arena{size_t(8) << 20};
    std::vector<GradcheckRow> rows;
    uint64_t filled = 0;

    V take(long r, long c, double mean = 0) {
        const V v = arena.take<double>(r, c);
        fill(d, v, filled++, mean);
        return v;
    }
    View<const int> ints(const std::vector<int>& host) {
        const View<int> v = arena.take<int>(1, long(host.size()));
        copy_bytes(d, v.data, host.data(), host.size() * sizeof(int));
        return v;
    }
    struct Pair { const char* name; V x, dx; };        // an input and where the backward pass leaves its gradient
    void check(const std::string& what, V y, V u, const std::vector<Pair>& inputs, const std::function<void()>& forward,
               const std::function<void()>& backward) {
        const auto loss = [&] {
            forward();
            const std::vector<double> a = read(d, y), b = read(d, u);
            double sum = 0;
            for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
            return sum;
        };
        for (const Pair& p : inputs) zero(d, p.dx);
        loss();
        backward();
        std::vector<std::vector<double>> gradients;
        for (const Pair& p : inputs) gradients.push_back(read(d, p.dx));
        for (size_t i = 0; i < inputs.size(); ++i)
            rows.push_back({what + ": " + inputs[i].name, worst_error(d, inputs[i].x, gradients[i], loss)});
    }
};

inline void linear(Bench& b, bool transposed) {
    const long N = 5, I = 6, O = 7;
    const ModelShape shape{};
    Context<double> c{b.d, b.matmul, b.arena, shape, {}, b.comm};
    const V x = b.take(N, I), dx = b.take(N, I), y = b.take(N, O), u = b.take(N, O), bias = b.take(1, O),
            dbias = b.take(1, O);
    const V w = transposed ? b.take(I, O) : b.take(O, I), dw = transposed ? b.take(I, O) : b.take(O, I);
    const Linear<double> l{w, bias, transposed}, g{dw, dbias, transposed};
    b.check(
        transposed ? "linear (in, out)" : "linear (out, in)", y, u,
        {{"x", x, dx}, {"weight", w, dw}, {"bias", bias, dbias}}, [=, &c] { linear_forward(c, y, x, l); },
        [=, &c] { linear_backward(c, dx, u, x, {l, g, Write::over}); });
}

inline void norm(Bench& b, bool layernorm) {
    const long N = 5, C = 9;
    const ModelShape shape{};
    Context<double> c{b.d, b.matmul, b.arena, shape, {}, b.comm};
    const V x = b.take(N, C), dx = b.take(N, C), y = b.take(N, C), u = b.take(N, C), stats = b.take(N, 2);
    const V w = b.take(1, C, 1), dw = b.take(1, C), bias = b.take(1, C), dbias = b.take(1, C);
    const Norm<double> n{w, layernorm ? bias : V()}, g{dw, layernorm ? dbias : V()};
    std::vector<Bench::Pair> inputs = {{"x", x, dx}, {"weight", w, dw}};
    if (layernorm) inputs.push_back({"bias", bias, dbias});
    b.check(layernorm ? "LayerNorm" : "RMSNorm", y, u, inputs, [=, &c] { norm_forward(c, y, stats, x, n); },
            [=, &c] { norm_backward(c, dx, u, x, stats, {n, g, Write::over}); });
}

// The gradient takes the place of the one that came in.
inline void head_norm(Bench& b) {
    const long N = 3, D = 4, H = 2;
    const ModelShape shape{};
    Context<double> c{b.d, b.matmul, b.arena, shape, {}, b.comm};
    const V x = b.take(N, H * D), dx = b.take(N, H * D), y = b.take(N, H * D), u = b.take(N, H * D);
    const V stats = b.take(N, 2 * H), w = b.take(1, D, 1), dw = b.take(1, D);
    const Norm<double> n{w, {}}, g{dw, {}};
    b.check("RMSNorm of each head, in place", y, u, {{"x", x, dx}, {"weight", w, dw}},
            [=, &c] { norm_forward(c, y, stats, x, n); },
            [=, &b, &c] {
                copy<double, double>(b.d, dx, u);
                norm_backward(c, {dx, Write::over}, dx, x, stats, {n, g, Write::over});
            });
}

inline void rotation(Bench& b) {
    const long N = 4, D = 6;
    const V x = b.take(N, 2 * D), dx = b.take(N, 2 * D), y = b.take(N, 2 * D), u = b.take(N, 2 * D),
            table = b.take(8, D);
    fill_rope(b.d, table, {1.0, 0.2, 0.05});
    const View<const int> positions = b.ints({0, 1, 5, 7});
    b.check("RoPE", y, u, {{"x", x, dx}},
            [=, &b] { copy<double, double>(b.d, y, x), rope<double>(b.d, y, positions, table, Turn::forward); },
            [=, &b] { copy<double, double>(b.d, dx, u), rope<double>(b.d, dx, positions, table, Turn::backward); });
}

inline void attention(Bench& b, long window) {
    const long N = 9, H = 4, K = 2, D = 3;
    const V q = b.take(N, H * D), k = b.take(N, K * D), v = b.take(N, K * D), y = b.take(N, H * D),
            u = b.take(N, H * D);
    const V dq = b.take(N, H * D), dk = b.take(N, K * D), dv = b.take(N, K * D), lse = b.take(N, H);
    const V scratch = b.take(1, attention_scratch<double>(N, H, K, D));
    const AttentionInput<double> in{q, k, v, b.ints({0, 1, 2, 3, 4, 0, 1, 2, 3}), b.ints({0, 5, 9}), D, 0.6, window};
    const std::string seen = window ? ", window of " + std::to_string(window) : "";
    b.check("attention, 4 heads on 2, two documents" + seen, y, u, {{"q", q, dq}, {"k", k, dk}, {"v", v, dv}},
            [=, &b] { attention_forward<double>(b.d, y, lse, in); },
            [=, &b] { attention_backward<double>(b.d, {dq, dk, dv}, u, y, lse, in, scratch); });
}

inline void activation(Bench& b, bool gated) {
    const long N = 4, F = 5, W = gated ? 2 * F : F;
    const V x = b.take(N, W), dx = b.take(N, W), y = b.take(N, F), u = b.take(N, F);
    b.check(gated ? "SwiGLU" : "GELU", y, u, {{"x", x, dx}}, [=, &b] { activation_forward<double>(b.d, y, x); },
            [=, &b] { activation_backward<double>(b.d, dx, u, x); });
}

inline void embedding(Bench& b) {
    const long N = 6, V_ = 5, T = 4, C = 3;
    const std::vector<int> tokens = {1, 4, 1, 0, 1, 4}, positions = {0, 1, 2, 0, 1, 2};
    const V wte = b.take(V_, C), dwte = b.take(V_, C), wpe = b.take(T, C), dwpe = b.take(T, C), y = b.take(N, C),
            u = b.take(N, C);
    const auto views = [&](const Runs& r) { return RunViews{b.ints(r.rows), b.ints(r.starts), b.ints(r.keys)}; };
    const RunViews by_token = views(Runs(tokens, V_)), by_position = views(Runs(positions, T));
    const View<const int> t = b.ints(tokens), p = b.ints(positions);
    b.check(
        "embedding", y, u, {{"tokens", wte, dwte}, {"positions", wpe, dwpe}},
        [=, &b] { embed_forward<double>(b.d, y, t, wte, p, wpe); },
        [=, &b] { embed_backward<double>(b.d, dwte, u, by_token), embed_backward<double>(b.d, dwpe, u, by_position); });
}

inline void loss(Bench& b) {
    const long N = 5, V_ = 7;
    const V z = b.take(N, V_), dz = b.take(N, V_), logprob = b.take(1, N), lse = b.take(1, N), u = b.take(1, N);
    const View<const int> targets = b.ints({3, -1, 0, 6, 6});
    b.check("log-probabilities, one target ignored", logprob, u, {{"logits", z, dz}},
            [=, &b] { logprobs_forward<double>(b.d, logprob, lse, z, targets); },
            [=, &b] { logprobs_backward<double>(b.d, dz, z, lse, targets, u); });
    const V equal = b.take(1, N);
    write(b.d, equal, std::vector<double>(size_t(N), -0.25));   // its first is the weight of all
    b.check("cross-entropy, fused", logprob, equal, {{"logits", z, dz}},
            [=, &b] { logprobs_forward<double>(b.d, logprob, lse, z, targets); },
            [=, &b] { cross_entropy<double>(b.d, dz, logprob, z, targets, equal.col_range(0, 1)); });
}

}  // namespace gradient

// Each operation on its own.
inline std::vector<GradcheckRow> gradcheck_operations() {
    gradient::Bench b;
    for (bool transposed : {false, true}) gradient::linear(b, transposed);
    for (bool layernorm : {true, false}) gradient::norm(b, layernorm);
    gradient::head_norm(b);
    gradient::rotation(b);
    for (long window : {0, 2}) gradient::attention(b, window);
    for (bool gated : {false, true}) gradient::activation(b, gated);
    gradient::embedding(b);
    gradient::loss(b);
    return b.rows;
}

// The small models that gradcheck runs whole: each family, tied and not, and each of its options.
inline std::vector<ModelShape> gradcheck_models() {
    const ModelShape gpt2{.family = "gpt2", .layers = 2, .dim = 8, .heads = 2, .vocab = 11, .seq = 6};
    ModelShape llama{.family = "llama", .layers = 2, .dim = 8, .heads = 4, .kv_heads = 2, .head_dim = 6, .ffn = 10,
                     .vocab = 11, .seq = 6, .rope_theta = 50};
    std::vector<ModelShape> all = {gpt2};
    for (const char* family : {"llama", "qwen2", "qwen3", "mistral"}) {
        llama.family = family, llama.window = llama.family == "mistral" ? 3 : 0;
        all.push_back(llama);
    }
    ModelShape options = llama;
    options.family = "llama", options.window = 0, options.attention_bias = options.mlp_bias = true;
    options.scaling = {4, 1, 2, 16};
    all.push_back(options);
    for (size_t i = 0, n = all.size(); i < n; ++i) {
        all[i] = with_defaults(all[i]);
        all.push_back(all[i]), all.back().tied = false;
    }
    return all;
}

// The parameter of the model that is worst: backward() fills the gradients, loss() reads the weights. Weights are set
// to noise first: as small as they begin, q and k have gradients so small that rounding of the loss would drown them.
inline GradcheckRow gradcheck_parameters(Device& d, const Params& params, WeightStore<double>& weights,
                                                      GradStore<double>& grads, const std::function<void()>& backward,
                                                      const std::function<double()>& loss) {
    uint64_t row = 1000;
    for (const Param& p : params.rows())
        gradient::fill(d, {weights.owned(p.unit).data + p.offset, 1, p.count()}, row++, p.mean);
    backward();
    std::vector<std::vector<double>> units;
    for (int u = 0; u < params.units(); ++u) units.push_back(gradient::read(d, grads.owned(u)));
    double worst = 0;
    std::string where;
    for (const Param& p : params.rows()) {
        const auto first = units[size_t(p.unit)].begin() + p.offset;
        const View<double> w(weights.owned(p.unit).data + p.offset, 1, p.count());
        const double error = gradient::worst_error(d, w, {first, first + p.count()}, loss);
        if (error >= worst) worst = error, where = p.name;
    }
    const ModelShape& s = params.shape();
    const std::string kind = s.family + (s.mlp_bias ? " with biases" : "") + (s.tied ? ", tied" : ", untied");
    return {kind + ", worst: " + where, worst};
}

}  // namespace baretrain
