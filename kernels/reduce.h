// reduce.h - sums over many rows or elements, in fixed order: column sums (bias gradients) and sums of squares (norms).
// Copy with: device.h and what it names
// Two stages: parts of a fixed size, never one per thread, then the parts in order. So the bits depend on sizes alone.
#pragma once
#include "device.h"

namespace baretrain {

inline constexpr long column_sum_rows = 32, square_span = 16384;
inline long column_sum_parts(long N) { return (N + column_sum_rows - 1) / column_sum_rows; }
inline long square_parts(long n) { return (n + square_span - 1) / square_span; }

template <class T> __global__ void column_sum_parts_kernel(Real<T>* parts, const T* x, long N, long C, long stride) {
    const long first = blockIdx.x * column_sum_rows, end = first + column_sum_rows < N ? first + column_sum_rows : N;
    parts += blockIdx.x * C;
    for (long c = threadIdx.x; c < C; c += blockDim.x) parts[c] = Real<T>(x[first * stride + c]);
    for (long n = first + 1; n < end; ++n)
        for (long c = threadIdx.x; c < C; c += blockDim.x) parts[c] += Real<T>(x[n * stride + c]);
}

// Second stage of every column sum: sum = or += the P parts (P, C), in order.
template <class R> __global__ void add_parts_kernel(R* sum, const R* parts, long P, long C, Write write) {
    const auto [begin, end] = block_span(C);
    for (long c = begin + threadIdx.x; c < end; c += blockDim.x) sum[c] = write == Write::add ? sum[c] : R(0);
    for (long p = 0; p < P; ++p)
        for (long c = begin + threadIdx.x; c < end; c += blockDim.x) sum[c] += parts[p * C + c];
}
template <class R> void add_parts(Device& d, View<R> sum, View<const R> parts, Write write) {
    require_equal(sum.count(), parts.cols, "add_parts: columns of sum and parts");
    const Grid grid = Grid::spans(parts.cols, 64, 64).moves(sum, parts);
    launch(d, grid, add_parts_kernel<R>, sum.data, parts.data, parts.rows, parts.cols, write);
}

// One block a span; squares of floats are added in float within a span of 16,384 and in double between spans.
template <class R> __global__ void square_parts_kernel(double* parts, const R* x, long n) {
    const long begin = blockIdx.x * square_span, end = begin + square_span < n ? begin + square_span : n;
    R sum = 0;
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) sum += x[i] * x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = double(sum);
}

// sum: (1, C) = or += the sums over the rows of x (N, C). parts: (column_sum_parts(N), C) scratch.
template <class T>
void column_sums(Device& d, View<Real<T>> sum, View<const T> x, View<Real<T>> parts, Write write) {
    require_equal(parts.rows, column_sum_parts(x.rows), "column_sums: scratch for the parts");
    launch(d, Grid(parts.rows).moves(parts, x), column_sum_parts_kernel<T>, parts.data, x.data, x.rows, x.cols,
           x.stride);
    add_parts(d, sum, View<const Real<T>>(parts), write);
}

// parts: (1, square_parts(n)), overwritten; their sum, taken in order, is the sum of squares of x (1, n).
template <class R> void sum_squares(Device& d, View<double> parts, View<const R> x) {
    require_equal(parts.count(), square_parts(x.count()), "sum_squares: one part a span");
    launch(d, Grid(parts.count()).moves(x), square_parts_kernel<R>, parts.data, x.data, x.count());
}

}  // namespace baretrain
