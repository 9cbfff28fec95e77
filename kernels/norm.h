// norm.h - LayerNorm (Ba et al. 2016) and RMSNorm (Zhang, Sennrich 2019) over the channels of each row.
// Copy with: kernels/reduce.h, device.h and what they name
//   RMSNorm    y = x * rstd * w                  rstd = 1 / sqrt(mean(x^2) + eps)
//   LayerNorm  y = (x - mean) * rstd * w + b     rstd = 1 / sqrt(mean((x - mean)^2) + eps)
// A norm without a bias is an RMSNorm. N rows (tokens), C columns (channels); a row may hold several groups of C, each
// normalised on its own (norms of q and k). Statistics are Real<T>: float, or double for double. Weight gradients go in
// two ordered stages: parts of 32 rows, then the parts; no atomics, the same bits every time.
#pragma once
#include "kernels/reduce.h"

namespace baretrain {

template <class T> struct NormWeights {
    View<const T> w, b;                                // (1, C); b empty: RMSNorm
    Real<T> eps;
};

// Row r of x, where a row of the view holds x.cols / C groups of C channels that are normalised on their own: one in
// the residual stream, one a head in norms of q and k.
template <class T> BT_HD T* norm_row(View<T> x, long r, long C) {
    const long groups = x.cols / C;
    return x.data + r / groups * x.stride + r % groups * C;
}

// stats: mean and rstd of each row. One block a row. y may be x.
template <class T>
__global__ void norm_forward_kernel(View<T> all_y, Real<T>* stats, View<const T> all_x, NormWeights<T> n) {
    using R = Real<T>;
    const long C = n.w.cols;
    T* const y = norm_row(all_y, blockIdx.x, C);
    const T *const x = norm_row(all_x, blockIdx.x, C), *const w = n.w.data, *const b = n.b.data;
    stats += blockIdx.x * 2;
    R mean = 0, squares = 0;
    if (b) {
        const R first = R(x[0]);                       // around it, a large mean costs no digits
        for (long c = threadIdx.x; c < C; c += blockDim.x) mean += R(x[c]) - first;
        mean = first + block_sum(mean) / R(C);
    }
    for (long c = threadIdx.x; c < C; c += blockDim.x) squares += (R(x[c]) - mean) * (R(x[c]) - mean);
    const R rstd = R(1) / sqrt(block_sum(squares) / R(C) + n.eps);
    if (b)
        for (long c = threadIdx.x; c < C; c += blockDim.x) y[c] = T((R(x[c]) - mean) * rstd * R(w[c]) + R(b[c]));
    else
        for (long c = threadIdx.x; c < C; c += blockDim.x) y[c] = T(R(x[c]) * rstd * R(w[c]));
    if (threadIdx.x == 0) stats[0] = mean, stats[1] = rstd;
}

// Where the gradient of x goes: added to, since the residual gradient is already there, or overwritten (dx may be dy).
template <class T> struct NormInputGrad {
    View<T> dx;
    Write write;
    NormInputGrad(View<T> dx, Write write = Write::add) : dx(dx), write(write) {}
};

// With xhat = (x - mean) * rstd and g = w * dy:  dx = rstd * (g - xhat * mean(g * xhat) - mean(g)); RMSNorm has no
// mean(g).
template <class T>
__global__ void norm_backward_kernel(NormInputGrad<T> to, View<const T> all_dy, View<const T> all_x,
                                     const Real<T>* stats, NormWeights<T> n) {
    using R = Real<T>;
    const long C = n.w.cols;
    T* const dx = norm_row(to.dx, blockIdx.x, C);
    const T *const dy = norm_row(all_dy, blockIdx.x, C), *const x = norm_row(all_x, blockIdx.x, C);
    const T* const w = n.w.data;
    const R mean = stats[blockIdx.x * 2], rstd = stats[blockIdx.x * 2 + 1];
    R dot = 0, sum = 0;
    for (long c = threadIdx.x; c < C; c += blockDim.x) {
        const R g = R(w[c]) * R(dy[c]);
        dot += g * (R(x[c]) - mean) * rstd;
        sum += g;
    }
    dot = block_sum(dot) / R(C);
    sum = n.b.data ? block_sum(sum) / R(C) : R(0);
    const bool add = to.write == Write::add;
    for (long c = threadIdx.x; c < C; c += blockDim.x)
        dx[c] = T((add ? R(dx[c]) : R(0)) + rstd * (R(w[c]) * R(dy[c]) - (R(x[c]) - mean) * rstd * dot - sum));
}

// First stage: part p of dw (and db) sums dy * xhat (and dy) over its rows, in row order. dw and db: (P, C) each.
template <class T>
__global__ void norm_weight_parts_kernel(View<Real<T>> dw_parts, View<Real<T>> db_parts, View<const T> dy,
                                         View<const T> x, const Real<T>* stats) {
    using R = Real<T>;
    const long C = dw_parts.cols, N = x.rows * (x.cols / C);
    const long first = blockIdx.x * column_sum_rows, next = first + column_sum_rows, end = next < N ? next : N;
    R *const dw = dw_parts.data + blockIdx.x * C, *const db = db_parts.data + blockIdx.x * C;
    for (long c = threadIdx.x; c < C; c += blockDim.x) dw[c] = 0, db[c] = 0;
    for (long n = first; n < end; ++n) {
        const R mean = stats[n * 2], rstd = stats[n * 2 + 1];
        const T *const xn = norm_row(x, n, C), *const dyn = norm_row(dy, n, C);
        for (long c = threadIdx.x; c < C; c += blockDim.x) {
            dw[c] += R(dyn[c]) * (R(xn[c]) - mean) * rstd;
            db[c] += R(dyn[c]);
        }
    }
}

template <class T> long norm_rows(View<const T> x, const NormWeights<T>& n) {
    require(n.w.cols > 0 && x.cols % n.w.cols == 0, "norm: the channels of w divide those of x");
    return x.rows * (x.cols / n.w.cols);
}

// y (N, G*C) and stats (N*G, 2) are overwritten. x: (N, G*C), G groups of the C channels of w.
template <class T>
void norm_forward(Device& d, View<T> y, View<Real<T>> stats, View<const T> x, const NormWeights<T>& n) {
    require_equal(y.cols, x.cols, "norm: columns of y and x");
    require_equal(stats.count(), 2 * norm_rows(x, n), "norm: two statistics a row");
    launch(d, Grid(norm_rows(x, n)).moves(y, stats, x), norm_forward_kernel<T>, y, stats.data, x, n);
}

// dx, dy, x: (N, G*C).
template <class T>
void norm_backward_input(Device& d, NormInputGrad<T> dx, View<const T> dy, View<const T> x, View<const Real<T>> stats,
                         const NormWeights<T>& n) {
    require_equal(dx.dx.cols, x.cols, "norm: columns of dx and x");
    require_equal(dy.cols, x.cols, "norm: columns of dy and x");
    launch(d, Grid(norm_rows(x, n)).moves(dx.dx, dy, x, stats), norm_backward_kernel<T>, dx, dy, x, stats.data, n);
}

template <class T> struct NormGrads {
    View<Real<T>> w, b;                                // (1, C); b empty: RMSNorm
    Write write;
};

// dw and db are overwritten or added to, as g says. parts: (2 * column_sum_parts(N*G), C) scratch.
template <class T>
void norm_backward_weight(Device& d, const NormGrads<T>& g, View<const T> dy, View<const T> x,
                          View<const Real<T>> stats, View<Real<T>> parts) {
    const long P = parts.rows / 2;
    require_equal(P, column_sum_parts(x.rows * (x.cols / g.w.cols)), "norm: scratch for the parts");
    const View<Real<T>> dw = parts.row_range(0, P), db = parts.row_range(P, P);
    launch(d, Grid(P).moves(dy, x, stats, parts), norm_weight_parts_kernel<T>, dw, db, dy, x, stats.data);
    add_parts(d, g.w, View<const Real<T>>(dw), g.write);
    if (!g.b.empty()) add_parts(d, g.b, View<const Real<T>>(db), g.write);
}

}  // namespace baretrain
