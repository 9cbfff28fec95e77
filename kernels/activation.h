// activation.h - what stands between the two matrices of the feed-forward layer, and the residual sum.
// Copy with: device.h and what it names
//   GELU (Hendrycks, Gimpel 2016)  y = x/2 * (1 + tanh(u)) = x * sigmoid(2u),  u = sqrt(2/pi) (x + 0.044715 x^3)
//   SwiGLU (Shazeer 2020)          y = gate * sigmoid(gate) * up
// Which one follows from the widths: `in` as wide as y is GELU; twice as wide is SwiGLU, gate in the left half, up in
// the right.
#pragma once
#include "device.h"

namespace baretrain {

template <class R> struct ValueSlope { R value, slope; };

// GELU and its derivative at x: y' = s + 2 x u' s (1 - s), s = sigmoid(2u).
template <class R> __device__ __forceinline__ ValueSlope<R> gelu_at(R x) {
    const R k = R(0.7978845608028654), a = R(0.044715);
    const R s = sigmoid(R(2) * k * x * (R(1) + a * x * x));
    return {x * s, s + R(2) * x * k * (R(1) + R(3) * a * x * x) * s * (R(1) - s)};
}
// SiLU x * sigmoid(x) and its derivative.
template <class R> __device__ __forceinline__ ValueSlope<R> silu_at(R x) {
    const R s = sigmoid(x);
    return {x * s, s + x * s * (R(1) - s)};
}

// One block a row of F results, from a row of `width`.
template <class T> __global__ void activation_forward_kernel(T* y, const T* in, long F, long width) {
    using R = Real<T>;
    const T *gate = in + blockIdx.x * width, *up = gate + F;
    y += blockIdx.x * F;
    if (width == F) for_each_element(F, [](T& yf, T x) { yf = T(gelu_at(R(x)).value); }, out(y), gate);
    else for_each_element(F, [](T& yf, T gf, T uf) { yf = T(silu_at(R(gf)).value * R(uf)); }, out(y), gate, up);
}
template <class T> __global__ void activation_backward_kernel(T* din, const T* dy, const T* in, long F, long width) {
    using R = Real<T>;
    const T *gate = in + blockIdx.x * width, *up = gate + F;
    T *dgate = din + blockIdx.x * width, *dup = dgate + F;
    dy += blockIdx.x * F;
    if (width == F)
        for_each_element(F, [](T& dx, T dyf, T x) { dx = T(R(dyf) * gelu_at(R(x)).slope); }, out(dgate), dy, gate);
    else for_each_element(F, [](T& dgf, T& duf, T dyf, T gf, T uf) {
        const auto [value, slope] = silu_at(R(gf));
        const R g = R(dyf), u = R(uf);
        dgf = T(g * u * slope);
        duf = T(g * value);
    }, out(dgate), out(dup), dy, gate, up);
}

template <class T> __global__ void residual_kernel(T* y, const T* a, const T* b, long n) {
    for_each_element(block_span(n), [](T& yi, T ai, T bi) { yi = T(Real<T>(ai) + Real<T>(bi)); }, out(y), a, b);
}

// y: (N, F), overwritten. in: (N, F) for GELU, (N, 2F) for SwiGLU.
template <class T> void activation_forward(Device& d, View<T> y, View<const T> in) {
    require(in.cols == y.cols || in.cols == 2 * y.cols, "activation: in is as wide as y, or twice as wide");
    require(in.dense() && y.dense() && in.rows == y.rows, "activation: the same rows, without gaps");
    const Grid grid = Grid::rows<T>(y.rows, y.cols).moves(y, in);
    launch(d, grid, activation_forward_kernel<T>, y.data, in.data, y.cols, in.cols);
}

// din: like in, overwritten; it may be the memory of in.
template <class T> void activation_backward(Device& d, View<T> din, View<const T> dy, View<const T> in) {
    require(in.cols == dy.cols || in.cols == 2 * dy.cols, "activation: in is as wide as dy, or twice as wide");
    require_equal(din.count(), in.count(), "activation: sizes of din and in");
    require(din.dense() && dy.dense() && in.dense() && in.rows == dy.rows, "activation: the same rows, without gaps");
    const Grid grid = Grid::rows<T>(dy.rows, dy.cols).moves(din, dy, in);
    launch(d, grid, activation_backward_kernel<T>, din.data, dy.data, in.data, dy.cols, in.cols);
}

// y = a + b, all (N, C); y may be a or b.
template <class T> void residual(Device& d, View<T> y, View<const T> a, View<const T> b) {
    require(y.count() == a.count() && y.count() == b.count(), "residual: y, a and b of one size");
    require(y.dense() && a.dense() && b.dense(), "residual: rows without gaps");
    launch(d, Grid::spans(y.count()).moves(y, a, b), residual_kernel<T>, y.data, a.data, b.data, y.count());
}

}  // namespace baretrain
