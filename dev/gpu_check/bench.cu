// bench.cu - what kernels, products and attention reach on this device, next to a copy and to one big product.
//   gpu_check [--self-test] [GROUP...]     a line of JSON a case; groups: rate memory product attention; none: all
//   gpu_check --shard FILE VOCAB IDS       random ids as a token shard, for whole steps
// Shapes are those of GPT-2 124M, Qwen2.5-0.5B and 1.5B with 16,384 rows. Without tensor cores for bf16: in float.
// --self-test takes tiny ones. Called by dev/gpu_check/check.sh; the CPU build of it by the tests.
#include "dev/gpu_check/bench.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/embed.h"
#include "kernels/loss.h"
#include "kernels/rope.h"
#include "shards.h"

namespace baretrain::gpu_check {

struct Sizes {
    long N, seq, rows;                                 // rows of a micro-batch, of a sequence, of logits at a time
    long parameters, copied;                           // of the optimizer; bytes of the copy
    long big;                                          // sides of the one big product
    long part;                                         // sizes of a model are divided by it
};
constexpr Sizes full{16384, 1024, 256, 128l << 20, 1l << 30, 8192, 1}, tiny{32, 16, 8, 4096, 1 << 16, 32, 64};

std::string by(long rows, long cols) { return std::to_string(rows) + " x " + std::to_string(cols); }
std::vector<int> positions_of(long N, long seq) {
    std::vector<int> p;
    for (long i = 0; i < N; ++i) p.push_back(int(i % seq));
    return p;
}

// ---- the two rates --------------------------------------------------------------------------------------------------
template <class T> void rates(Table& t, const Sizes& s, const std::string& type) {
    t.add({"rate", "copy", concat(s.copied, " bytes"), "byte"}, [&](Bench& b) -> Body {
        const auto to = b.take<float>(1, s.copied / 4), from = b.random<float>(1, s.copied / 4);
        return [&b, to, from] {
            const Watched counted(b.d, {.where = Where::current(), .bytes = 2.0 * double(to.count()) * 4});
            plain_copy(b.d, to.data, from.data, size_t(to.count()) * 4);
        };
    });
    t.add({"rate", "product", by(s.big, s.big) + " x " + std::to_string(s.big), type}, [&](Bench& b) -> Body {
        const auto y = b.take<T>(s.big, s.big), x = b.random<T>(s.big, s.big), w = b.random<T>(s.big, s.big);
        return [&b, y, x, w] { matmul<T, T>(b.matmul, b.d, y, x, w, {}, {.transpose_b = true}); };
    });
    if (!on_gpu) return;
    const Case fp8{"rate", "product in FP8", by(s.big, s.big) + " x " + std::to_string(s.big), "fp8"};
    if (!Matmul::has_fp8(Device(), false)) return t.skip(fp8, "no FP8 tensor cores before compute capability 8.9");
    t.add(fp8, [&](Bench& b) -> Body {
        const auto x = b.random<bf16>(s.big, s.big), y = b.take<bf16>(s.big, s.big);
        const auto codes = b.take<uint8_t>(s.big, s.big);
        const auto most = b.filled(std::vector<float>{1}), unit = b.take<float>(1, 1);
        encode<E4m3, bf16>(b.d, codes, View<const bf16>(x), View<const float>(most), Along::rows, Turned::no);
        units<E4m3>(b.d, unit, View<const float>(most));
        const Fp8Rows rows{codes, unit, false};
        return [&b, y, rows] {
            const double n = double(y.rows);
            const Watched counted(b.d, {.where = Where::current(), .bytes = 4 * n * n, .flops = 2 * n * n * n});
            if (!b.d.dry && !b.matmul.multiply(b.d, Fp8Product<bf16>{y, rows, rows, {}, Write::over}))
                fail("cuBLASLt declines it");
        };
    });
}

// ---- kernels that move memory ---------------------------------------------------------------------------------------
template <class T> void norms(Table& t, const Sizes& s, long C, const std::string& type) {
    using R = Real<T>;
    for (const bool layer : {false, true}) {
        const auto c = [&, shape = by(s.N, C)](const char* what) {
            return Case{"memory", std::string(layer ? "LayerNorm " : "RMSNorm ") + what, shape, type};
        };
        const auto weights = [=](Bench& b) {
            return NormWeights<T>{b.random<T>(1, C), layer ? b.random<T>(1, C) : View<T>(), R(1e-5)};
        };
        t.add(c("forward"), [&](Bench& b) -> Body {
            const auto x = b.random<T>(s.N, C), y = b.take<T>(s.N, C);
            return [&b, x, y, stats = b.take<R>(s.N, 2), n = weights(b)] { norm_forward<T>(b.d, y, stats, x, n); };
        });
        t.add(c("backward, input"), [&](Bench& b) -> Body {
            const auto x = b.random<T>(s.N, C), dy = b.random<T>(s.N, C), dx = b.take<T>(s.N, C);
            return [&b, x, dy, dx, stats = b.random<R>(s.N, 2), n = weights(b)] {
                norm_backward_input<T>(b.d, NormInputGrad<T>(dx), dy, x, View<const R>(stats), n);
            };
        });
        t.add(c("backward, weights"), [&](Bench& b) -> Body {
            const auto x = b.random<T>(s.N, C), dy = b.random<T>(s.N, C);
            const auto stats = b.random<R>(s.N, 2), dw = b.take<R>(1, C), db = layer ? b.take<R>(1, C) : View<R>();
            return [&b, x, dy, stats, dw, db, parts = b.take<R>(2 * column_sum_parts(s.N), C)] {
                norm_backward_weight<T>(b.d, NormGrads<T>{dw, db, Write::over}, dy, x, View<const R>(stats), parts);
            };
        });
    }
}

template <class T> void between_products(Table& t, const Sizes& s, const ModelShape& m, const std::string& type) {
    using R = Real<T>;
    const long F = m.ffn, C = m.dim, D = m.head_dim, Q = (m.heads + m.kv_heads) * D;
    for (const bool gated : {false, true}) {
        const long W = gated ? 2 * F : F;
        const std::string name = gated ? "SwiGLU " : "GELU ";
        t.add({"memory", name + "forward", by(s.N, F), type}, [&](Bench& b) -> Body {
            return [&b, y = b.take<T>(s.N, F), x = b.random<T>(s.N, W)] { activation_forward<T>(b.d, y, x); };
        });
        t.add({"memory", name + "backward", by(s.N, F), type}, [&](Bench& b) -> Body {
            return [&b, dx = b.take<T>(s.N, W), dy = b.random<T>(s.N, F), x = b.random<T>(s.N, W)] {
                activation_backward<T>(b.d, dx, dy, x);
            };
        });
    }
    t.add({"memory", "residual", by(s.N, C), type}, [&](Bench& b) -> Body {
        return [&b, y = b.take<T>(s.N, C), x = b.random<T>(s.N, C), z = b.random<T>(s.N, C)] {
            residual<T>(b.d, y, x, z);
        };
    });
    t.add({"memory", "RoPE", by(s.N, Q), type}, [&](Bench& b) -> Body {
        const auto x = b.random<T>(s.N, Q + m.kv_heads * D).col_range(0, Q);
        const auto table = b.random<R>(s.seq, D);
        return [&b, x, table, rows = b.filled(positions_of(s.N, s.seq))] {
            rope<T>(b.d, x, rows, View<const R>(table), Turn::forward);
        };
    });
    t.add({"memory", "column sums (bias gradient)", by(s.N, C), type}, [&](Bench& b) -> Body {
        const auto sum = b.take<R>(1, C), parts = b.take<R>(column_sum_parts(s.N), C);
        return [&b, sum, parts, x = b.random<T>(s.N, C)] { column_sums<T>(b.d, sum, x, parts, Write::over); };
    });
    t.add({"memory", "copy", by(s.N, C), type}, [&](Bench& b) -> Body {
        return [&b, y = b.take<T>(s.N, C), x = b.random<T>(s.N, C)] { copy<T, T>(b.d, y, View<const T>(x)); };
    });
}

template <class T> void two_ends(Table& t, const Sizes& s, const ModelShape& m, const std::string& type) {
    using R = Real<T>;
    const long C = m.dim, V = m.vocab;
    std::vector<int> ids;
    for (long i = 0; i < s.N; ++i) ids.push_back(int(philox(7, Stream::test, 0, uint64_t(i)).v[0] % uint32_t(V)));
    t.add({"memory", "embedding forward", by(s.N, C), type}, [&](Bench& b) -> Body {
        const auto wte = b.random<T>(V, C), x = b.take<T>(s.N, C);
        return [&b, wte, x, tokens = b.filled(ids)] { embed_forward<T>(b.d, x, tokens, wte, tokens, {}); };
    });
    t.add({"memory", "embedding backward", by(s.N, C), type}, [&](Bench& b) -> Body {
        const Runs runs(ids, V);
        const auto dw = b.take<R>(V, C);
        const auto dx = b.random<T>(s.N, C);
        const RunViews by_token{b.filled(runs.rows), b.filled(runs.starts), b.filled(runs.keys)};
        return [&b, dw, dx, by_token] { embed_backward<T>(b.d, dw, dx, by_token); };
    });
    const std::vector<int> targets(ids.begin(), ids.begin() + s.rows);
    t.add({"memory", "cross-entropy", by(s.rows, V), type}, [&](Bench& b) -> Body {
        const auto logits = b.random<R>(s.rows, V), logprob = b.take<R>(1, s.rows);
        const View<const R> weight = b.filled(std::vector<R>{R(-1)});
        return [&b, logits, logprob, weight, dz = b.take<T>(s.rows, V), want = b.filled(targets)] {
            cross_entropy<T>(b.d, dz, logprob, View<const R>(logits), want, weight);
        };
    });
    t.add({"memory", "log-probabilities", by(s.rows, V), type}, [&](Bench& b) -> Body {
        const auto logits = b.random<R>(s.rows, V), logprob = b.take<R>(1, s.rows), lse = b.take<R>(1, s.rows);
        return [&b, logits, logprob, lse, want = b.filled(targets)] {
            logprobs_forward<R>(b.d, logprob, lse, View<const R>(logits), want);
        };
    });
}

template <class T> void optimizer(Table& t, const Sizes& s, const std::string& type) {
    using R = Real<T>;
    const long n = s.parameters;
    const std::string shape = concat(n);
    const StepState state{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .correct1 = 0.1,
                          .correct2 = 0.05, .max_norm = 1, .loss = 1, .norm = 1, .scale = 1, .skip = 0, .trained = 1,
                          .seed = 1, .step = 1, .stop = 0};
    for (const bool master : {true, false}) {
        if (!master && std::is_same_v<T, R>) continue;
        t.add({"memory", master ? "AdamW" : "AdamW without a master", shape, type}, [&](Bench& b) -> Body {
            const auto w = b.random<T>(1, n);
            const View<R> own = std::is_same_v<T, R> || !master ? View<R>() : b.random<R>(1, n);
            R* const first = std::is_same_v<T, R> ? reinterpret_cast<R*>(w.data) : own.data;
            const auto m = b.random<R>(1, n), v = b.take<R>(1, n), g = b.random<R>(1, n);
            const AdamSpan<T> span{w.data, first, m.data, v.data, g.data, n, R(1), R(1)};
            const SpanTable<AdamSpan<T>> table(b.d, b.take<AdamSpan<T>>(1, 1), {span});
            return [&b, table, now = b.filled(std::vector<StepState>{state})] { adamw<T>(b.d, table, now); };
        });
    }
    t.add({"memory", "sum of squares", shape, "fp32"}, [&](Bench& b) -> Body {
        const SpanTable<SquareSpan<R>> table(b.d, b.take<SquareSpan<R>>(1, 1), {{b.random<R>(1, n).data, n}});
        return [&b, table, parts = b.take<double>(1, square_parts(n))] { sum_squares(b.d, parts, table); };
    });
}

template <class F> void rounding(Table& t, const Sizes& s, long C, const char* format) {
    const std::string what = std::string(", ") + format;
    for (const Along along : {Along::rows, Along::columns}) {
        const std::string way = along == Along::rows ? " of rows" : " of columns";
        t.add({"memory", "largest" + way + what, by(s.N, C), "bf16"}, [&](Bench& b) -> Body {
            const auto x = b.random<bf16>(s.N, C);
            return [&b, along, x, most = b.take<float>(1, along == Along::rows ? s.N : C)] {
                amax<bf16>(b.d, most, View<const bf16>(x), along);
            };
        });
    }
}

// ---- products and attention -----------------------------------------------------------------------------------------
// y = x w^T, and its two gradients, as the model takes them: with the rounding around them in FP8.
template <class T>
void linear(Table& t, const ModelShape& m, const std::string& name, std::array<long, 3> sizes, Fp8 fp8) {
    using R = Real<T>;
    const auto [N, I, O] = sizes;
    const bool turned = m.transposed() && !name.ends_with("head");
    const std::string shape = concat(N, " x ", I, " x ", O);
    const std::string type = fp8 != Fp8::off ? "fp8" : std::is_same_v<T, bf16> ? "bf16" : "fp32";
    const auto add = [&](const char* pass, auto body) {
        t.add({"product", name + pass, shape, type}, [&, N = N, I = I, O = O](Bench& b) -> Body {
            const Linear<T> w{turned ? b.random<T>(I, O) : b.random<T>(O, I), {}, turned, 0, Share::all, fp8};
            return [&b, body, w, &m, x = b.random<T>(N, I), dy = b.random<T>(N, O), y = b.take<T>(N, O),
                    dx = b.take<T>(N, I), dw = b.take<R>(w.w.rows, w.w.cols)] {
                Context<T> c{b.d, b.matmul, b.arena, m, {}, b.comm};
                body(c, w, View<const T>(x), View<const T>(dy), y, dx, dw);
            };
        });
    };
    add(" forward", [](auto& c, auto& w, auto x, auto, auto y, auto, auto) { linear_forward<T>(c, y, x, w); });
    add(" backward, input", [](auto& c, auto& w, auto, auto dy, auto, auto dx, auto) {
        linear_backward_input<T>(c, dx, dy, w);
    });
    add(" backward, weight", [](auto& c, auto& w, auto x, auto dy, auto, auto, auto dw) {
        linear_backward_weight<T>(c, Linear<R>{dw, {}, w.transposed, 0, Share::all, w.fp8}, dy, x, Write::add);
    });
}
template <class T> void products(Table& t, const Sizes& s, const ModelShape& m, const std::string& model, Fp8 fp8) {
    const long A = m.heads * m.head_dim, K = m.kv_heads * m.head_dim, W = m.gated() ? 2 * m.ffn : m.ffn;
    linear<T>(t, m, model + " qkv", {s.N, m.dim, A + 2 * K}, fp8);
    linear<T>(t, m, model + " out", {s.N, A, m.dim}, fp8);
    linear<T>(t, m, model + " up", {s.N, m.dim, W}, fp8);
    linear<T>(t, m, model + " down", {s.N, m.ffn, m.dim}, fp8);
    if (fp8 == Fp8::off) linear<T>(t, m, model + " head", {s.rows, m.dim, m.vocab}, fp8);
}

template <class T> void attention(Table& t, const Sizes& s, std::array<long, 4> sizes, const std::string& type) {
    using R = Real<T>;
    const auto [seq, H, Hkv, D] = sizes;
    const long N = std::max(s.N, seq), Q = H * D, K = Hkv * D;
    const std::string shape = concat("T ", seq, ", D ", D, ", ", H, " heads on ", Hkv);
    struct Given { AttentionInput<T> in; View<T> out, dout, grads; View<R> lse; };
    const auto given = [=, seq = seq, D = D, H = H](Bench& b) {
        const auto qkv = b.random<T>(N, Q + 2 * K), grads = b.take<T>(N, Q + 2 * K);
        std::vector<int> documents;
        for (long first = 0; first <= N; first += seq) documents.push_back(int(first));
        const AttentionInput<T> in{qkv.col_range(0, Q), qkv.col_range(Q, K), qkv.col_range(Q + K, K),
                                   b.filled(positions_of(N, seq)), b.filled(documents), D, R(1 / std::sqrt(double(D)))};
        return Given{in, b.take<T>(N, Q), b.random<T>(N, Q), grads, b.take<R>(N, H)};
    };
    t.add({"attention", "attention forward", shape, type}, [&](Bench& b) -> Body {
        return [&b, g = given(b)] { attention_forward<T>(b.d, g.out, g.lse, g.in); };
    });
    t.add({"attention", "attention backward", shape, type}, [&, H = H, Hkv = Hkv, D = D](Bench& b) -> Body {
        const Given g = given(b);
        attention_forward<T>(b.d, g.out, g.lse, g.in);
        const AttentionGrad<T> grad{g.grads.col_range(0, Q), g.grads.col_range(Q, K), g.grads.col_range(Q + K, K)};
        return [&b, g, grad, scratch = b.take<R>(1, attention_scratch<T>(N, H, Hkv, D))] {
            attention_backward<T>(b.d, grad, View<const T>(g.dout), View<const T>(g.out), View<const R>(g.lse), g.in, scratch);
        };
    });
}

// ---- all of it ------------------------------------------------------------------------------------------------------
ModelShape model(const std::string& name, const Sizes& s) {
    ModelShape m = with_defaults(preset(name));
    m.dim = m.dim / s.part, m.ffn /= s.part, m.vocab = m.vocab / s.part;
    if (s.part > 1) m.heads = m.kv_heads = 2, m.head_dim = 16, m.dim = 32, m.ffn = 64;   // FP8 wants multiples of 16
    return m;
}
template <class T> void run(Table& t, const std::string& type) {
    const Sizes& s = t.small ? tiny : full;
    const ModelShape largest = model("qwen2.5-1.5b", s);
    rates<T>(t, s, type);
    if (t.wants("memory")) {
        norms<T>(t, s, largest.dim, type), between_products<T>(t, s, largest, type), two_ends<T>(t, s, largest, type);
        optimizer<T>(t, s, type), rounding<E4m3>(t, s, largest.dim, "E4M3");
    }
    for (const std::string name : {"gpt2-124m", "qwen2.5-0.5b", "qwen2.5-1.5b"}) {
        if (!t.wants("product")) break;
        products<T>(t, s, model(name, s), name, Fp8::off);
        if (std::is_same_v<T, bf16> && name == "qwen2.5-1.5b") products<bf16>(t, s, model(name, s), name, Fp8::tensorwise);
    }
    if (!t.wants("attention")) return;
    for (const std::array<long, 3>& heads : {std::array<long, 3>{14, 2, 64}, {12, 2, 128}})
        for (long seq : {1024, 2048, 4096})
            attention<T>(t, s, {t.small ? seq / 64 : seq, t.small ? heads[1] : heads[0], heads[1], heads[2]}, type);
}

void write_shard(const std::string& path, long vocab, long ids) {
    ShardWriter shard(path, {vocab});
    std::vector<int> some;
    for (long i = 0; i < ids; ++i) {
        some.push_back(int(philox(11, Stream::test, 0, uint64_t(i)).v[0] % uint32_t(vocab)));
        if (some.size() == 1 << 20 || i + 1 == ids) shard.append(some), some.clear();
    }
    shard.close();
}

}  // namespace baretrain::gpu_check

int main(int argc, char** argv) {
    using namespace baretrain;
    try {
        std::set<std::string> groups;
        bool small = false;
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i];
            if (word == "--shard" && i + 3 < argc)
                return gpu_check::write_shard(argv[i + 1], std::stol(argv[i + 2]), std::stol(argv[i + 3])), 0;
            if (word == "--self-test") small = true;
            else groups.insert(word);
        }
        device_name(0);
        gpu_check::Table table(small, groups);
        if (gpu_check::tensor_cores_for_bf16()) return gpu_check::run<bf16>(table, "bf16"), 0;
        table.skip({"product", "bf16", "", "bf16"}, "no tensor cores for bf16 before compute capability 8.0: all in float");
        return gpu_check::run<float>(table, "fp32"), 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "gpu_check: %s\n", e.what());
        return 1;
    }
}
