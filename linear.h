// linear.h - the linear layer y = x w^T + b, the norms, and the context of a rank that every operation needs.
// Copy with: fp8.h, kernels/norm.h, kernels/reduce.h and what they name
// Weights are (out, in) as in Llama, or (in, out) as in GPT-2: matmul reads either, nothing is turned in memory.
// The two halves of the backward pass are two functions: frozen weights need only the first, pipelines reorder them.
#pragma once
#include "fp8.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"

namespace baretrain {

template <class T> struct Context {
    Device& device;
    Matmul& matmul;
    Arena& scratch;
    const ModelShape& shape;                           // with the heads and hidden units of this rank
    View<const Real<T>> rope;                          // (seq, D) cosines and sines; empty for learned positions
    Comm& comm;
    bool sp = false;                                   // the residual stream is split between the ranks of tp
};

// The weights of a layer, their gradients, and whether those are overwritten or added to.
template <template <class> class Layer, class T> struct Learned {
    const Layer<T>& w;
    const Layer<Real<T>>& g;
    Write write;
};

// y: (N, O), overwritten. x: (N, I).
template <class T> void linear_forward(Context<T>& c, View<T> y, Input<T> x, const Linear<T>& w) {
    if constexpr (std::is_same_v<T, bf16>)
        if (w.fp8 != Fp8::off) return fp8_forward(c, y, x, w);
    matmul<T, T>(c.matmul, c.device, y, x, w.w, w.b, {.transpose_b = !w.transposed});
}

// dx: (N, I), overwritten. dy: (N, O).
template <class T> void linear_backward_input(Context<T>& c, View<T> dx, Input<T> dy, const Linear<T>& w) {
    if constexpr (std::is_same_v<T, bf16>)
        if (w.fp8 != Fp8::off) return fp8_backward_input(c, dx, dy, w);
    matmul<T, T>(c.matmul, c.device, dx, dy, w.w, {}, {.transpose_b = w.transposed});
}

// g: overwritten or added to, as `write` says. dy: (N, O), x: (N, I).
template <class T>
void linear_backward_weight(Context<T>& c, const Linear<Real<T>>& g, Input<T> dy, Input<T> x, Write write) {
    const View<const T> a = g.transposed ? x : dy, b = g.transposed ? dy : x;
    Scratch s(c.scratch);
    const auto parts = s.take<Real<T>>(g.b.empty() ? 0 : column_sum_parts(dy.rows), dy.cols);
    const View<Real<T>> sums = g.b.empty() || write == Write::over ? g.b : parts.row_range(0, 1);
    bool summed = false;
    if (g.fp8 == Fp8::off) summed = matmul_and_sums<T>(c.matmul, c.device, g.w, a, b, {sums, g.transposed}, write);
    else if constexpr (std::is_same_v<T, bf16>) fp8_backward_weight(c, g, dy, x, write);
    if (g.b.empty()) return;
    if (!summed) column_sums<T>(c.device, g.b, dy, parts, write);
    else if (write == Write::add) add_parts(c.device, g.b, View<const Real<T>>(sums), write);
}

// dx: (N, I) is overwritten. dy: (N, O), x: (N, I).
template <class T> void linear_backward(Context<T>& c, View<T> dx, Input<T> dy, Input<T> x, Learned<Linear, T> l) {
    linear_backward_weight(c, l.g, dy, x, l.write);
    linear_backward_input(c, dx, dy, l.w);
}

// ---- the norms ------------------------------------------------------------------------------------------------------
template <class T> using NormedInput = const std::type_identity_t<NormInput<T>>&;   // as a parameter: like Input<T>
// y: (N, C) and stats: (N, 2) are overwritten.
template <class T>
void norm_forward(Context<T>& c, View<T> y, View<Real<T>> stats, NormedInput<T> x, const Norm<T>& n) {
    norm_forward<T>(c.device, y, stats, x, NormWeights<T>{n.w, n.b, Real<T>(c.shape.norm_eps)});
}

// dx: (N, G*C) is added to, unless it says otherwise; dy, x: (N, G*C). dx may be dy: the weights come first.
template <class T>
void norm_backward(Context<T>& c, std::type_identity_t<NormInputGrad<T>> dx, Input<T> dy, Input<T> x,
                   Input<Real<T>> stats, Learned<Norm, T> n) {
    Scratch s(c.scratch);
    const auto parts = s.take<Real<T>>(2 * column_sum_parts(x.rows * (x.cols / n.w.w.cols)), n.w.w.cols);
    norm_backward_weight<T>(c.device, NormGrads<T>{n.g.w, n.g.b, n.write}, dy, x, stats, parts);
    norm_backward_input<T>(c.device, dx, dy, x, stats, NormWeights<T>{n.w.w, n.w.b, Real<T>(c.shape.norm_eps)});
}

}  // namespace baretrain
