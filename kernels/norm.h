// norm.h - LayerNorm (Ba et al. 2016) and RMSNorm (Zhang, Sennrich 2019) over the channels of each row.
// Copy with: kernels/reduce.h, device.h and what they name
//   RMSNorm    y = x * rstd * w                  rstd = 1 / sqrt(mean(x^2) + eps)
//   LayerNorm  y = (x - mean) * rstd * w + b     rstd = 1 / sqrt(mean((x - mean)^2) + eps)
// A norm without a bias is an RMSNorm. N rows (tokens), C columns (channels); a row may hold several groups of C, each
// normalised on its own (norms of q and k). Statistics are Real<T>: float, or double for double. A row is read from
// memory once, though its elements are needed two or three times. Weight gradients go in two ordered stages: parts of
// 32 rows, then the parts; no atomics, the same bits every time.
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

// What is normalised: x; or what is made of it on the way, in `sum`: x + branch, or a copy.
template <class T> struct NormInput {
    View<const T> x, branch = {};
    View<T> sum = {};
    template <class U> NormInput(View<U> x) : x(x) {}
    NormInput(View<T> sum, View<const T> x, View<const T> branch = {}) : x(x), branch(branch), sum(sum) {}
};
template <class T> __device__ const T* norm_input_row(const NormInput<T>& in, long r, long C) {
    using R = Real<T>;
    const T* const x = norm_row(in.x, r, C);
    if (!in.sum.data) return keep(x, C);
    T* const sum = norm_row(in.sum, r, C);
    if (!in.branch.data) return keep_new(sum, C, [](T xc) { return xc; }, x);
    return keep_new(sum, C, [](T xc, T bc) { return T(R(xc) + R(bc)); }, x, norm_row(in.branch, r, C));
}

// stats: mean and rstd of each row. One block a row. y may be x.
// Bytes: w and b, as long as a row, come again, from L2, for each.
template <class T>
__global__ void norm_forward_kernel(View<T> all_y, Real<T>* stats, NormInput<T> in, NormWeights<T> n) {
    using R = Real<T>;
    const long C = n.w.cols;
    T* const y = norm_row(all_y, blockIdx.x, C);
    const T *const x = norm_input_row(in, blockIdx.x, C), *const w = n.w.data, *const b = n.b.data;
    R mean = 0, squares = 0;
    if (b) {
        const R first = R(x[0]);                       // around it, a large mean costs no digits
        for_each_element(C, [&](T xc) { mean += R(xc) - first; }, x);
        mean = first + block_sum(mean) / R(C);
    }
    for_each_element(C, [&](T xc) { squares += (R(xc) - mean) * (R(xc) - mean); }, x);
    const R rstd = R(1) / sqrt(block_sum(squares) / R(C) + n.eps);
    if (b) for_each_element(C, [=](T& yc, T xc, T wc, T bc) {
        yc = T((R(xc) - mean) * rstd * R(wc) + R(bc));
    }, out(y), x, w, b);
    else for_each_element(C, [=](T& yc, T xc, T wc) { yc = T(R(xc) * rstd * R(wc)); }, out(y), x, w);
    if (threadIdx.x == 0) stats[blockIdx.x * 2] = mean, stats[blockIdx.x * 2 + 1] = rstd;
}

// Where the gradient of x goes: added to, since the residual gradient is already there, or overwritten (dx may be dy).
template <class T> struct NormInputGrad {
    View<T> dx;
    Write write;
    NormInputGrad(View<T> dx, Write write = Write::add) : dx(dx), write(write) {}
};

// With xhat = (x - mean) * rstd and g = w * dy:  dx = rstd * (g - xhat * mean(g * xhat) - mean(g)); RMSNorm has no
// mean(g).
// Bytes: w comes again, from L2, for each row.
template <class T>
__global__ void norm_backward_kernel(NormInputGrad<T> to, View<const T> all_dy, View<const T> all_x,
                                     const Real<T>* stats, NormWeights<T> n) {
    using R = Real<T>;
    const long C = n.w.cols;
    T* const dx = norm_row(to.dx, blockIdx.x, C);
    const T *const dy = keep(norm_row(all_dy, blockIdx.x, C), C), *const x = keep(norm_row(all_x, blockIdx.x, C), C, 1);
    const T* const w = n.w.data;
    const R mean = stats[blockIdx.x * 2], rstd = stats[blockIdx.x * 2 + 1];
    R dot = 0, sum = 0;
    for_each_element(C, [&](T wc, T dyc, T xc) {
        const R g = R(wc) * R(dyc);
        dot += g * (R(xc) - mean) * rstd;
        sum += g;
    }, w, dy, x);
    dot = block_sum(dot) / R(C);
    sum = n.b.data ? block_sum(sum) / R(C) : R(0);
    const auto slope = [=](T wc, T dyc, T xc) { return rstd * (R(wc) * R(dyc) - (R(xc) - mean) * rstd * dot - sum); };
    if (to.write == Write::add)
        for_each_element(C, [=](T& dxc, T wc, T dyc, T xc) { dxc = T(R(dxc) + slope(wc, dyc, xc)); }, dx, w, dy, x);
    else for_each_element(C, [=](T& dxc, T wc, T dyc, T xc) { dxc = T(slope(wc, dyc, xc)); }, out(dx), w, dy, x);
}

// First stage: part p of dw (and db) sums dy * xhat (and dy) over its rows, in row order. dw and db: (P, C) each.
template <class T>
__global__ void norm_weight_parts_kernel(View<Real<T>> dw_parts, View<Real<T>> db_parts, View<const T> dy,
                                         View<const T> x, const Real<T>* stats) {
    using R = Real<T>;
    const long C = dw_parts.cols, N = x.rows * (x.cols / C);
    const long first = blockIdx.x * column_sum_rows, next = first + column_sum_rows, end = next < N ? next : N;
    R *const dw = dw_parts.data + blockIdx.x * C, *const db = db_parts.data + blockIdx.x * C;
    constexpr long width = pack_width<const T*>;
    const bool packed = in_packs(x.data, x.stride) && in_packs(dy.data, dy.stride) && C % width == 0;
    sum_columns<width>({dw, db}, C, packed, Write::over, [=](auto&& add) {
        for (long n = first; n < end; ++n) {
            const R mean = stats[n * 2], rstd = stats[n * 2 + 1];
            add([=](R& dwc, R& dbc, T dyc, T xc) {
                dwc += R(dyc) * (R(xc) - mean) * rstd;
                dbc += R(dyc);
            }, norm_row(dy, n, C), norm_row(x, n, C));
        }
    });
}

template <class T> long norm_rows(View<const T> x, const NormWeights<T>& n) {
    require(n.w.cols > 0 && x.cols % n.w.cols == 0, "norm: the channels of w divide those of x");
    return x.rows * (x.cols / n.w.cols);
}

// y (N, G*C) and stats (N*G, 2) are overwritten. in: (N, G*C), G groups of the C channels of w.
template <class T>
void norm_forward(Device& d, View<T> y, View<Real<T>> stats, const std::type_identity_t<NormInput<T>>& in,
                  const NormWeights<T>& n) {
    const View<const T>& x = in.x;
    require_equal(y.cols, x.cols, "norm: columns of y and x");
    require_equal(stats.count(), 2 * norm_rows(x, n), "norm: two statistics a row");
    const View<const T> beside[] = {in.branch, in.sum};
    for (const View<const T>& v : beside)
        require(v.empty() || (v.rows == x.rows && v.cols == x.cols), "norm: what is added or made is as large as x");
    const Grid grid = Grid::rows<T>(norm_rows(x, n), n.w.cols, 1).moves(y, stats, x, in.branch, in.sum);
    launch(d, grid, norm_forward_kernel<T>, y, stats.data, in, n);
}

// dx, dy, x: (N, G*C).
template <class T>
void norm_backward_input(Device& d, NormInputGrad<T> dx, View<const T> dy, View<const T> x, View<const Real<T>> stats,
                         const NormWeights<T>& n) {
    require_equal(dx.dx.cols, x.cols, "norm: columns of dx and x");
    require_equal(dy.cols, x.cols, "norm: columns of dy and x");
    const View<T> added = dx.write == Write::add ? dx.dx : View<T>();
    const Grid grid = Grid::rows<T>(norm_rows(x, n), n.w.cols, 2).moves(dx.dx, added, dy, x, stats);
    launch(d, grid, norm_backward_kernel<T>, dx, dy, x, stats.data, n);
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
    const Grid grid = Grid::rows<T>(P, g.w.cols).moves(dy, x, stats, parts);
    launch(d, grid, norm_weight_parts_kernel<T>, dw, db, dy, x, stats.data);
    add_parts(d, g.w, View<const Real<T>>(dw), g.write);
    if (!g.b.empty()) add_parts(d, g.b, View<const Real<T>>(db), g.write);
}

}  // namespace baretrain
