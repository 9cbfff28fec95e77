// attention.h - causal attention with grouped KV heads: tile by tile, never a T x T buffer.
// Copy with: kernels/attention/, kernels/tile.h, device.h and what they name
//   s = scale * q k^T,  p = softmax(s) over the keys that the query sees,  out = p v,  lse = log(sum exp(s))
//   delta = sum(dout * out),  ds = p * (dout v^T - delta),  dv = p^T dout,  dk = scale * ds^T q,  dq = scale * ds k
// N queries are the last N of M rows: query n is row own = M - N + n and sees key rows own - positions[n] .. own; with
// a window of w only the last w of them, itself included (Mistral).
// H query heads of D columns; KV head h / (H / Hkv) serves query head h. Arithmetic and sums are Real<T>, no atomics:
// the same bits every time, for every team. Other documents and the future have no effect at all, not even a NaN's.
// kernels/attention/mma.h has bf16 on tensor cores, plain.h all the rest; attention_on_tensor_cores() chooses.
#pragma once
#include "kernels/attention/mma.h"
#include "kernels/attention/plain.h"
#include <initializer_list>

namespace baretrain {

template <class T> void attention_check(const AttentionInput<T>& in, Where at = Where::current()) {
    const long D = in.head_dim;
    require(D > 0 && in.k.cols > 0, "attention: a head size and at least one KV head", at);
    require_equal(std::min(D, attention_max_head), D, "attention: largest head size", at);
    require_equal(in.q.cols / D * D, in.q.cols, "attention: columns of q in whole heads", at);
    require_equal(in.k.cols / D * D, in.k.cols, "attention: columns of k in whole heads", at);
    require_equal(in.q.cols / in.k.cols * in.k.cols, in.q.cols, "attention: columns of q in whole groups of k", at);
    require_equal(in.v.cols, in.k.cols, "attention: columns of v and k", at);
    require_equal(in.v.rows, in.k.rows, "attention: rows of v and k", at);
    require_equal(std::max(in.q.rows, in.k.rows), in.k.rows, "attention: at least as many keys as queries", at);
    require_equal(in.positions.cols, in.q.rows, "attention: one position a query", at);
    require(in.window >= 0, "attention: a window of no negative size", at);
}

template <class T>
void attention_check_same(View<const T> a, View<const T> b, const char* what, Where at = Where::current()) {
    require_equal(a.rows, b.rows, what, at);
    require_equal(a.cols, b.cols, what, at);
}

// A head that is too big for the card's shared memory is refused here, in words.
inline void attention_check_shared(const Device& d, long D, size_t bytes) {
    (void)d, (void)D, (void)bytes;
#if defined(__CUDACC__)
    int most = 0;
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d.index));
    if (bytes > size_t(most))
        fail("attention: head size " + std::to_string(D) + " needs " + std::to_string(bytes) +
             " bytes of shared memory a block, this GPU has " + std::to_string(most) + "; use a smaller head size");
#endif
}

// Rows move 16 bytes at a time: all, also those of the other views, must begin at a multiple.
template <class T>
bool attention_on_tensor_cores(const Device& d, const AttentionInput<T>& in, std::initializer_list<Input<T>> others) {
    if constexpr (attention_has_mma && std::is_same_v<T, bf16>) {
        const long D = in.head_dim;
        bool fits = d.capability >= 80 && d.threads >= mma_threads && (D == 64 || D == 96 || D == 128);
        const auto check = [&](View<const T> v) {
            fits = fits && reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.stride % 8 == 0;
        };
        check(in.q), check(in.k), check(in.v);
        for (const Input<T>& v : others) check(v);
        return fits;
    }
    return false;
}

// out: (N, H*D) and lse: (N, H) are overwritten.
template <class T> void attention_forward(Device& d, View<T> out, View<Real<T>> lse, const AttentionInput<T>& in) {
    attention_check(in);
    const long D = in.head_dim, N = in.q.rows, H = in.q.cols / D;
    attention_check_same(View<const T>(out), in.q, "attention: shapes of out and q");
    require_equal(lse.rows, N, "attention: rows of lse and q");
    require_equal(lse.cols, H, "attention: one column of lse a query head");
    require(lse.dense(), "attention: rows of lse without gaps");
    if constexpr (attention_has_mma && std::is_same_v<T, bf16>)
        if (attention_on_tensor_cores<T>(d, in, {out})) return attention_mma_forward(d, out, lse, in);
    const bool few = N <= attention_few_queries;       // decoding: no lanes for queries that do not exist
    const long Q = few ? attention_few_queries : attention_queries;
    const size_t shared = attention_forward_bytes<Real<T>>(Q, D);
    attention_check_shared(d, D, shared);
    Grid grid = Grid((N + Q - 1) / Q * H, 256, shared).moves(out, lse, in.q, in.k, in.v);
    grid.work.flops = 2 * 2 * in.products();
    if (few) launch(d, grid, attention_forward_kernel<T, attention_few_queries>, out, lse.data, in);
    else launch(d, grid, attention_forward_kernel<T, attention_queries>, out, lse.data, in);
}

// Elements of Real<T> that attention_backward needs: dq so far, and delta.
template <class T> long attention_scratch(long N, long H, [[maybe_unused]] long Hkv, long D) { return N * H * (D + 1); }

// Needs M == N. scratch: (1, attention_scratch<T>(N, H, Hkv, D)).
template <class T>
void attention_backward(Device& d, const AttentionGrad<T>& g, View<const T> dout, View<const T> out,
                        View<const Real<T>> lse, const AttentionInput<T>& in, View<Real<T>> scratch) {
    attention_check(in);
    const long D = in.head_dim, N = in.q.rows, H = in.q.cols / D, Hkv = in.k.cols / D;
    require_equal(in.k.rows, N, "attention: backward needs as many keys as queries");
    attention_check_same(View<const T>(g.dq), in.q, "attention: shapes of dq and q");
    attention_check_same(View<const T>(g.dk), in.k, "attention: shapes of dk and k");
    attention_check_same(View<const T>(g.dv), in.v, "attention: shapes of dv and v");
    attention_check_same(dout, in.q, "attention: shapes of dout and q");
    attention_check_same(out, in.q, "attention: shapes of out and q");
    require_equal(lse.rows, N, "attention: rows of lse and q");
    require_equal(lse.cols, H, "attention: one column of lse a query head");
    require_equal(scratch.count(), attention_scratch<T>(N, H, Hkv, D), "attention: elements of scratch");
    require(lse.dense() && scratch.dense(), "attention: rows of lse and scratch without gaps");
    require(in.documents.cols >= 1, "attention: documents ends with N");
    Real<T>*sums = scratch.data, *delta = sums + N * H * D;
    const AttentionBackward<T> b{g, dout, lse.data, delta, sums};
    if constexpr (attention_has_mma && std::is_same_v<T, bf16>)
        if (attention_on_tensor_cores<T>(d, in, {g.dq, g.dk, g.dv, dout, out}))
            return attention_mma_backward(d, b, out, in);
    launch(d, Grid(N).moves(dout, out), attention_delta_kernel<T>, delta, dout, out, D);
    const size_t shared = attention_backward_bytes<Real<T>>(D);
    attention_check_shared(d, D, shared);
    Grid grid = Grid((in.documents.cols - 1) * Hkv, 256, shared);
    grid = grid.moves(g.dq, g.dk, g.dv, dout, in.q, in.k, in.v, lse, scratch);
    grid.work.flops = 5 * 2 * in.products();
    launch(d, grid, attention_backward_kernel<T>, b, in);
}

}  // namespace baretrain
