// linear.h - the linear layer y = x w^T + b, and what every operation of the model needs: the context of its rank.
// Copy with: params.h, kernels/matmul.h, kernels/reduce.h and what they name
// Weights are (out, in) as in Llama, or (in, out) as in GPT-2: matmul reads either, nothing is turned in memory.
// The two halves of the backward pass are two functions: frozen weights need only the first, pipelines reorder them.
#pragma once
#include "kernels/matmul.h"
#include "kernels/reduce.h"
#include "params.h"

namespace baretrain {

template <class T> struct Context {
    Device& device;
    Matmul& matmul;
    Arena& scratch;
    const ModelShape& shape;
    View<const Real<T>> rope;                          // (seq, D) cosines and sines; empty for learned positions
};

// y: (N, O), overwritten. x: (N, I).
template <class T> void linear_forward(Context<T>& c, View<T> y, Input<T> x, const Linear<T>& w) {
    matmul<T, T>(c.matmul, c.device, y, x, w.w, w.b, {.transpose_b = !w.transposed});
}

// dx: (N, I), overwritten. dy: (N, O).
template <class T> void linear_backward_input(Context<T>& c, View<T> dx, Input<T> dy, const Linear<T>& w) {
    matmul<T, T>(c.matmul, c.device, dx, dy, w.w, {}, {.transpose_b = w.transposed});
}

// g: overwritten or added to, as `write` says. dy: (N, O), x: (N, I).
template <class T>
void linear_backward_weight(Context<T>& c, const Linear<Real<T>>& g, Input<T> dy, Input<T> x, Write write) {
    const View<const T> a = g.transposed ? x : dy, b = g.transposed ? dy : x;
    matmul<Real<T>, T>(c.matmul, c.device, g.w, a, b, {}, {.transpose_a = true, .write = write});
    if (g.b.empty()) return;
    Scratch s(c.scratch);
    column_sums<T>(c.device, g.b, dy, s.take<Real<T>>(column_sum_parts(dy.rows), dy.cols), write);
}

}  // namespace baretrain
