// cases.cu - every launcher once, at given sizes: planned on a dry device, or counted thread for thread.
// The report's SIMT build runs this file, and nvcc compiles it for registers and shared memory.
#include "dev/kernel_report/cases.h"
#include "comm/combine.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/embed.h"
#include "kernels/fp8.h"
#include "kernels/loss.h"
#include "kernels/matmul/plain.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "kernels/rope.h"

namespace baretrain::kernel_report {
namespace {

using T = bf16;
using R = Real<T>;

// Buffers one behind the other. Of a plan: addresses that nobody touches.
class Arena {
public:
    Arena(char* base, unsigned long bytes) : base_(base), bytes_(bytes) {}
    template <class V> View<V> make(long rows, long cols) {
        const unsigned long at = used_;
        used_ += (size_t(rows * cols) * sizeof(V) + 511) / 256 * 256;   // a gap, so that no two share a sector
        require(!base_ || used_ <= bytes_, "kernel report: the arena is too small");
        return {reinterpret_cast<V*>((base_ ? base_ : reinterpret_cast<char*>(256)) + at), rows, cols};
    }
    // at(i) for each of n.
    template <class V, class At> View<V> row(long n, At at) {
        const View<V> v = make<V>(1, n);
        for (long i = 0; base_ && i < n; ++i) v.data[i] = V(at(i));
        return v;
    }
    template <class V> View<const V> filled(long rows, long cols) {
        View<V> v = row<V>(rows * cols, [](long i) { return float(i % 7) * 0.25f - 0.5f; });
        return View<V>(v.data, rows, cols);
    }
private:
    char* base_;
    unsigned long bytes_, used_ = 0;
};

// Writes down each launch; on a device that is not dry, counts it too.
class Recorder : public Watch {
public:
    std::vector<Launch> launches;
    Recorder(char* arena, unsigned long bytes) : arena_(arena), bytes_(bytes) {}
    void begin(const Work& work) override { needs_ = work.bytes; }
    void launched(const Spread& s) override {
        launches.push_back({s.kernel, s.blocks, s.threads, s.shared_bytes, needs_, {}});
#if defined(BT_COUNTED)
        if (arena_) start_counting(arena_, bytes_, &blockIdx.x, &threadIdx.x, simt::yield);
#endif
    }
    void end() override {
#if defined(BT_COUNTED)
        if (arena_) launches.back().traffic = stop_counting();
#endif
    }
private:
    char* arena_;
    unsigned long bytes_;
    double needs_ = 0;
};

struct Context {
    Device& d;
    Arena& a;
    const Sizes& s;
};

void embeddings(Context c) {
    const auto& [d, a, s] = c;
    const auto token_of = [&](long i) { return int(i * (i + 7) % 2039 * 23); };   // of 8,192 an eighth differ
    const View<int> tokens = a.row<int>(s.N, token_of), positions = a.row<int>(s.N, [&](long i) { return i % s.T; });
    const View<const T> wte = a.make<T>(s.V, s.C), wpe = a.make<T>(s.T, s.C), dx = a.filled<T>(s.N, s.C);
    embed_forward<T>(d, a.make<T>(s.N, s.C), tokens, wte, positions, wpe);
    const auto add_gradient = [&](long rows, auto key) {
        std::vector<int> keys(static_cast<size_t>(s.N));
        for (size_t i = 0; i < keys.size(); ++i) keys[i] = int(key(long(i)));
        const Runs runs(keys, rows);
        const auto on_device = [&](const std::vector<int>& v) {
            return View<const int>(a.row<int>(long(v.size()), [&](long i) { return v[size_t(i)]; }));
        };
        embed_backward<T>(d, a.make<R>(rows, s.C), dx, {on_device(runs.rows), on_device(runs.starts), on_device(runs.keys)});
    };
    add_gradient(s.V, token_of);
    add_gradient(s.T, [&](long i) { return i % s.T; });
}

void norms(Context c) {
    const auto& [d, a, s] = c;
    const View<const T> x = a.filled<T>(s.N, s.C), dy = a.filled<T>(s.N, s.C);
    const NormWeights<T> n{a.filled<T>(1, s.C), a.filled<T>(1, s.C), 1e-5f};
    const View<R> stats = a.make<R>(s.N, 2);
    norm_forward<T>(d, a.make<T>(s.N, s.C), stats, x, n);
    norm_forward<T>(d, a.make<T>(s.N, s.C), stats, {a.make<T>(s.N, s.C), x, dy}, n);   // of x + dy, which is kept
    norm_backward_input<T>(d, NormInputGrad<T>(a.make<T>(s.N, s.C)), dy, x, stats, n);
    norm_backward_weight<T>(d, {a.make<R>(1, s.C), a.make<R>(1, s.C), Write::add}, dy, x, stats,
                            a.make<R>(2 * column_sum_parts(s.N), s.C));
}

// With tensor cores (compute capability 9.0), or without any.
template <int capability> void attention(Context c) {
    const auto& [d, a, s] = c;
    d.capability = capability;
    const long C = s.H * s.D, documents = s.N / s.T;
    const View<int> positions = a.row<int>(s.N, [&](long i) { return i % s.T; });
    const View<T> qkv = a.make<T>(s.N, 3 * C), dqkv = a.make<T>(s.N, 3 * C), out = a.make<T>(s.N, C);
    const View<R> lse = a.make<R>(s.N, s.H);
    const auto part = [&](View<T> v, long i) { return v.col_range(i * C, C); };
    AttentionInput<T> in{part(qkv, 0), part(qkv, 1), part(qkv, 2), positions,
                         a.row<int>(documents + 1, [&](long i) { return i * s.T; }), s.D, R(0.125)};
    attention_forward<T>(d, out, lse, in);
    const View<R> scratch = a.make<R>(1, attention_scratch<T>(s.N, s.H, s.H, s.D));
    const AttentionGrad<T> g{part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)};
    attention_backward<T>(d, g, a.make<T>(s.N, C), View<const T>(out), View<const R>(lse), in, scratch);
    // One new token of one sequence, which is in the middle of its context.
    in.q = in.q.row_range(0, 1), in.k = in.k.row_range(0, s.T / 2), in.v = in.v.row_range(0, s.T / 2);
    in.positions = a.row<int>(1, [&](long) { return s.T / 2 - 1; });
    in.documents = a.row<int>(2, [&](long i) { return i; });
    attention_forward<T>(d, out.row_range(0, 1), lse.row_range(0, 1), in);
}

void activations(Context c) {
    const auto& [d, a, s] = c;
    const View<const T> x = a.make<T>(s.N, s.F), gate_up = a.make<T>(s.N, 2 * s.F), dy = a.make<T>(s.N, s.F);
    activation_forward<T>(d, a.make<T>(s.N, s.F), x);
    activation_backward<T>(d, a.make<T>(s.N, s.F), dy, x);
    activation_forward<T>(d, a.make<T>(s.N, s.F), gate_up);
    activation_backward<T>(d, a.make<T>(s.N, 2 * s.F), dy, gate_up);
    residual<T>(d, a.make<T>(s.N, s.C), a.make<T>(s.N, s.C), a.make<T>(s.N, s.C));
    rope<T>(d, a.make<T>(s.N, 2 * s.H * s.D), a.row<int>(s.N, [&](long i) { return i % s.T; }), a.filled<R>(s.T, s.D),
            Turn::forward);
    column_sums<T>(d, a.make<R>(1, s.F), dy, a.make<R>(column_sum_parts(s.N), s.F), Write::add);
}

void losses(Context c) {
    const auto& [d, a, s] = c;
    const View<int> targets = a.row<int>(s.head, [&](long i) { return i * 997 % s.V; });
    const long stride = (s.V + 63) / 64 * 64;          // as in gpt.h
    const View<const R> logits = a.filled<R>(s.head, stride).col_range(0, s.V);
    const View<T> dlogits = a.make<T>(s.head, stride).col_range(0, s.V);
    const View<R> logprob = a.make<R>(1, s.head), lse = a.make<R>(1, s.head), exps = a.make<R>(1, s.head);
    loss_weight<R>(d, exps.col_range(0, 1), a.make<double>(1, 1));
    cross_entropy<T>(d, dlogits, logprob, logits, targets, a.make<R>(1, 1));
    logprobs_forward<R>(d, logprob, lse, logits, targets);
    logprobs_backward<T>(d, dlogits, logits, lse, targets, a.filled<R>(1, s.head));
    row_max<R>(d, lse, logits);
    part_sums<R>(d, exps, logprob, logits, lse, targets, 0);
    join_parts<R>(d, lse, logprob, exps, targets);
    part_gradient<T>(d, dlogits, logits, lse, targets, a.filled<R>(1, 1), 0);
    add_elements<R>(d, a.make<double>(1, square_parts(s.N)), a.filled<R>(1, s.N));
}

void optimizer(Context c) {
    const auto& [d, a, s] = c;
    const long n = s.parameters, parts = square_parts(n);
    const View<StepState> state = a.row<StepState>(1, [](long) {
        StepState state{};
        state.lr = 1e-3, state.beta1 = 0.9, state.beta2 = 0.999, state.eps = 1e-8, state.correct1 = 0.1;
        state.correct2 = 0.001, state.scale = 1, state.trained = 1;
        return state;
    });
    agreed(d, state, a.row<double>(2, [](long) { return 1; }), a.row<double>(1, [](long) { return 1; }));
    const View<const R> g = a.filled<R>(1, n);
    const View<double> squares = a.make<double>(1, parts);
    const View<T> w = a.make<T>(1, n);
    AdamSpan<T> span{w.data, a.make<R>(1, n).data, a.make<R>(1, n).data, a.make<R>(1, n).data, g.data, n, R(1), R(1)};
    const auto update = [&] {
        const View<AdamSpan<T>> spans = a.make<AdamSpan<T>>(1, 1);
        adamw<T>(d, SpanTable<AdamSpan<T>>(d, spans, {span}), View<const StepState>(state));
    };
    sum_squares(d, squares, SpanTable<SquareSpan<R>>(d, a.make<SquareSpan<R>>(1, 1), {{g.data, n}}));
    decide(d, state, a.row<double>(1, [](long) { return 1; }));
    update();
    add_adamw_squares(d, a.make<double>(1, adamw_squares), span, View<const StepState>(state),
                      a.make<double>(parts, adamw_squares));
    add_magnitudes<T>(d, a.make<double>(1, magnitudes), w, a.make<double>(parts, magnitudes));
    copy<T, R>(d, w, View<const R>(span.master, 1, n));
    span.master = nullptr;                             // rounded at random
    update();
}

void products(Context c) {
    const auto& [d, a, s] = c;
    const View<T> y = a.make<T>(s.rows, s.cols);
    const View<const T> x = a.filled<T>(s.rows, s.inner), w = a.filled<T>(s.inner, s.cols), bias = a.filled<T>(1, s.cols);
    plain_matmul<T, T>(d, {y, x, w, bias, {}, s.rows, s.cols, s.inner});
    start_rows<T, T>(d, y, {});
    start_rows<T, T>(d, y, bias);
    const View<float> amaxes = a.make<float>(1, s.N), columns = a.make<float>(1, s.C);
    const View<const T> in = a.filled<T>(s.N, s.C);
    amax<T>(d, amaxes, in, Along::rows);
    amax<T>(d, columns, in, Along::columns);
    quantize<E4m3, T>(d, a.make<T>(s.N, s.C), in, amaxes, Along::rows);
    const View<uint8_t> codes = a.make<uint8_t>(s.N, s.C), turned(codes.data, s.C, s.N);
    encode<E4m3, T>(d, codes, in, amaxes, Along::rows, Turned::no);
    encode<E4m3, T>(d, turned, in, columns, Along::columns, Turned::yes);
    units<E4m3>(d, a.make<float>(1, s.N), amaxes);
    const long n = s.N * s.C;
    amax_span<T>(d, amaxes.col_range(0, 1), {in.data, 1, n}, a.make<float>(1, amax_parts(n)));
    encode_span<E4m3, T>(d, {codes.data, 1, n}, {in.data, 1, n}, amaxes);
    decode_span<E4m3, T>(d, a.make<T>(1, n), View<const uint8_t>(codes.data, 1, n));
    unscale<E4m3, E4m3, T, T>(d, a.make<T>(s.N, s.C), a.make<float>(s.N, s.C), {amaxes, columns}, {}, Write::over);
}

void collectives(Context c) {
    const auto& [d, a, s] = c;
    const long count = s.parameters / s.ranks;
    const View<R> to = a.make<R>(1, count);
    Sources<R> from;
    for (int i = 0; i < s.ranks; ++i) from.of[i] = a.filled<R>(1, count).data;
    combine<R>(d, to.data, from, s.ranks, count, true);
    copy_part<R>(d, to.data, from.of[0], count);
}

}  // namespace

std::vector<Launch> run_cases(const Sizes& s, char* memory, unsigned long bytes) {
    Recorder recorder(memory, bytes);
    Device d;
    d.dry = !memory;
    d.watch = &recorder;
    for (const auto run : {embeddings, norms, attention<90>, attention<0>, activations, losses, optimizer, products,
                           collectives}) {
        Arena arena(memory, bytes);
        run({d, arena, s});
    }
    return recorder.launches;
}

}  // namespace baretrain::kernel_report
