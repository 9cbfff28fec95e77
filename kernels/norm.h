// norm.h - LayerNorm (Ba et al. 2016) and RMSNorm (Zhang, Sennrich 2019) over the channels of each row.
// Copy with: kernels/reduce.h, device.h and what they name
//   RMSNorm    y = x * rstd * w                  rstd = 1 / sqrt(mean(x^2) + eps)
//   LayerNorm  y = (x - mean) * rstd * w + b     rstd = 1 / sqrt(mean((x - mean)^2) + eps)
// A norm without a bias is an RMSNorm. N rows (tokens), C columns (channels). Statistics are Real<T>: float, or double
// for double. Weight gradients go in two ordered stages: parts of 32 rows, then the parts; no atomics, the same bits
// every time.
#pragma once
#include "kernels/reduce.h"

namespace baretrain {

template <class T> struct NormWeights {
    View<const T> w, b;                                // (1, C); b empty: RMSNorm
    Real<T> eps;
};
inline constexpr long norm_rows_per_part = 32;
inline long norm_parts(long N) { return (N + norm_rows_per_part - 1) / norm_rows_per_part; }

// stats: (N, 2) holds mean and rstd of each row. One block a row.
template <class T>
__global__ void norm_forward_kernel(T* y, Real<T>* stats, const T* x, const T* w, const T* b, long C, Real<T> eps) {
    using R = Real<T>;
    y += blockIdx.x * C, x += blockIdx.x * C, stats += blockIdx.x * 2;
    R mean = 0, squares = 0;
    if (b) {
        const R first = R(x[0]);                       // around it, a large mean costs no digits
        for (long c = threadIdx.x; c < C; c += blockDim.x) mean += R(x[c]) - first;
        mean = first + block_sum(mean) / R(C);
    }
    for (long c = threadIdx.x; c < C; c += blockDim.x) squares += (R(x[c]) - mean) * (R(x[c]) - mean);
    const R rstd = R(1) / sqrt(block_sum(squares) / R(C) + eps);
    if (b)
        for (long c = threadIdx.x; c < C; c += blockDim.x) y[c] = T((R(x[c]) - mean) * rstd * R(w[c]) + R(b[c]));
    else
        for (long c = threadIdx.x; c < C; c += blockDim.x) y[c] = T(R(x[c]) * rstd * R(w[c]));
    if (threadIdx.x == 0) stats[0] = mean, stats[1] = rstd;
}

// With xhat = (x - mean) * rstd and g = w * dy:  dx += rstd * (g - xhat * mean(g * xhat) - mean(g)); RMSNorm has no
// mean(g).
template <class T>
__global__ void norm_backward_kernel(T* dx, const T* dy, const T* x, const T* w, const Real<T>* stats, long C,
                                     bool layernorm) {
    using R = Real<T>;
    dx += blockIdx.x * C, dy += blockIdx.x * C, x += blockIdx.x * C;
    const R mean = stats[blockIdx.x * 2], rstd = stats[blockIdx.x * 2 + 1];
    R dot = 0, sum = 0;
    for (long c = threadIdx.x; c < C; c += blockDim.x) {
        const R g = R(w[c]) * R(dy[c]);
        dot += g * (R(x[c]) - mean) * rstd;
        sum += g;
    }
    dot = block_sum(dot) / R(C);
    sum = layernorm ? block_sum(sum) / R(C) : R(0);
    for (long c = threadIdx.x; c < C; c += blockDim.x)
        dx[c] = T(R(dx[c]) + rstd * (R(w[c]) * R(dy[c]) - (R(x[c]) - mean) * rstd * dot - sum));
}

// First stage: part p of dw (and db) sums dy * xhat (and dy) over its rows, in row order. dw and db: (P, C) each.
template <class T>
__global__ void norm_weight_parts_kernel(Real<T>* dw, Real<T>* db, const T* dy, const T* x, const Real<T>* stats,
                                         long N, long C) {
    using R = Real<T>;
    const long first = blockIdx.x * norm_rows_per_part, next = first + norm_rows_per_part, end = next < N ? next : N;
    dw += blockIdx.x * C, db += blockIdx.x * C;
    for (long c = threadIdx.x; c < C; c += blockDim.x) dw[c] = 0, db[c] = 0;
    for (long n = first; n < end; ++n) {
        const R mean = stats[n * 2], rstd = stats[n * 2 + 1];
        const T *xn = x + n * C, *dyn = dy + n * C;
        for (long c = threadIdx.x; c < C; c += blockDim.x) {
            dw[c] += R(dyn[c]) * (R(xn[c]) - mean) * rstd;
            db[c] += R(dyn[c]);
        }
    }
}

// y (N, C) and stats (N, 2) are overwritten.
template <class T>
void norm_forward(Device& d, View<T> y, View<Real<T>> stats, View<const T> x, const NormWeights<T>& n) {
    require_equal(x.cols, n.w.cols, "norm: channels of x and w");
    require_equal(stats.count(), 2 * x.rows, "norm: two statistics a row");
    require(x.dense() && y.dense(), "norm: rows without gaps");
    launch(d, {x.rows}, norm_forward_kernel<T>, y.data, stats.data, x.data, n.w.data, n.b.data, x.cols, n.eps);
}

// dx (N, C) is added to: the residual gradient is already there.
template <class T>
void norm_backward_input(Device& d, View<T> dx, View<const T> dy, View<const T> x, View<const Real<T>> stats,
                         const NormWeights<T>& n) {
    require_equal(dx.count(), dy.count(), "norm: sizes of dx and dy");
    require(dx.dense() && dy.dense() && x.dense(), "norm: rows without gaps");
    launch(d, {x.rows}, norm_backward_kernel<T>, dx.data, dy.data, x.data, n.w.data, stats.data, x.cols, !n.b.empty());
}

template <class T> struct NormGrads {
    View<Real<T>> w, b;                                // (1, C); b empty: RMSNorm
    Write write;
};

// dw and db are overwritten or added to, as g says. parts: (2 * norm_parts(N), C) scratch.
template <class T>
void norm_backward_weight(Device& d, const NormGrads<T>& g, View<const T> dy, View<const T> x,
                          View<const Real<T>> stats, View<Real<T>> parts) {
    const long P = norm_parts(x.rows);
    require_equal(parts.rows, 2 * P, "norm: scratch for the parts");
    const View<Real<T>> dw = parts.row_range(0, P), db = parts.row_range(P, P);
    launch(d, {P}, norm_weight_parts_kernel<T>, dw.data, db.data, dy.data, x.data, stats.data, x.rows, x.cols);
    add_parts(d, g.w, View<const Real<T>>(dw), g.write);
    if (!g.b.empty()) add_parts(d, g.b, View<const Real<T>>(db), g.write);
}

}  // namespace baretrain
