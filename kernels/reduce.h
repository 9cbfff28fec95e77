// reduce.h - sums over many elements, in fixed order: column sums (bias gradients), squares (norms), and statistics.
// Copy with: device.h and what it names
// Two stages: parts of a fixed size, never one per thread, then the parts in order. So the bits depend on sizes alone.
#pragma once
#include "device.h"
#include <vector>

namespace baretrain {

inline constexpr long column_sum_rows = 32, square_span = 16384;
inline long column_sum_parts(long N) { return (N + column_sum_rows - 1) / column_sum_rows; }
inline long square_parts(long n) { return (n + square_span - 1) / square_span; }

template <class T> __global__ void column_sum_parts_kernel(Real<T>* parts, const T* x, long N, long C, long stride) {
    const long first = blockIdx.x * column_sum_rows, end = first + column_sum_rows < N ? first + column_sum_rows : N;
    constexpr long width = pack_width<const T*>;
    const bool packed = in_packs(x, stride) && C % width == 0;
    sum_columns<width>({parts + blockIdx.x * C}, C, packed, Write::over, [=](auto&& add) {
        for (long n = first; n < end; ++n) add([](Real<T>& sum, T xc) { sum += Real<T>(xc); }, x + n * stride);
    });
}

// Second stage of every column sum: sum = or += the P parts (P, C): each 32nd part, then these 32 sums, in order. A
// block has as few columns as a GPU fetches at once.
inline constexpr long part_lanes = 32, part_columns = max_threads > 1 ? 8 : 64;
// Blocks: a block has a few columns and 32 lanes for each; there is nothing else to share out.
// Width: of each row of the parts it reads one sector.
template <class R> __global__ void add_parts_kernel(R* sum, const R* parts, long P, long C, Write write) {
    constexpr unsigned across = max_threads > 1 ? part_columns : 1;   // threads beside each other
    const long first = blockIdx.x * part_columns, here = part_columns < C - first ? part_columns : C - first;
    const long lanes = P < part_lanes ? P : part_lanes;
    __shared__ R sums[part_lanes][part_columns];
    sum += first, parts += first;
    for (long l = threadIdx.x / across; l < part_lanes; l += blockDim.x / across) {
        const bool add = l == 0 && write == Write::add;
        for (long c = threadIdx.x % across; c < here; c += across) sums[l][c] = add ? sum[c] : R(0);
        for (long p = l; p < P; p += part_lanes)
            for (long c = threadIdx.x % across; c < here; c += across) sums[l][c] += parts[p * C + c];
    }
    __syncthreads();
    for (long l = 1; l < lanes; ++l)
        for (long c = threadIdx.x; c < here; c += blockDim.x) sums[0][c] += sums[l][c];
    for (long c = threadIdx.x; c < here; c += blockDim.x) sum[c] = sums[0][c];
}
template <class R> void add_parts(Device& d, View<R> sum, View<const R> parts, Write write) {
    require_equal(sum.count(), parts.cols, "add_parts: columns of sum and parts");
    const Grid grid = Grid((parts.cols + part_columns - 1) / part_columns).moves(sum, parts);
    launch(d, grid, add_parts_kernel<R>, sum.data, parts.data, parts.rows, parts.cols, write);
}

// ---- many tensors in one launch -------------------------------------------------------------------------------------
// A table on the device: each S has n elements and `block`, its first one: a block has 16,384 elements of a span.
template <class S> struct SpanTable {
    View<const S> spans;
    long blocks = 0;
    double bytes = 0;                                  // that a launch moves

    SpanTable(Device& d, View<S> memory, std::vector<S> all) : spans(memory) {
        require_equal(memory.cols, long(all.size()), "span table: memory for each");
        for (S& s : all) s.block = blocks, blocks += square_parts(s.n), bytes += s.bytes();
        copy_bytes(d, memory.data, all.data(), all.size() * sizeof(S));
    }
};
// The span that this block works on: the last one that does not begin behind it.
template <class S> __device__ S find_span(const S* spans, long count) {
    while (const long half = count / 2)
        if (spans[half].block <= blockIdx.x) spans += half, count -= half;
        else count = half;
    return *spans;
}
// Which of its elements.
template <class S> __device__ Span elements_here(const S& s) {
    const long begin = (blockIdx.x - s.block) * square_span, end = begin + square_span;
    return {begin, end < s.n ? end : s.n};
}

template <class R> struct SquareSpan {
    const R* x;
    long n, block = 0;
    double bytes() const { return double(n) * double(sizeof(R)); }
};
// Squares of floats are added in float within a block's elements and in double between blocks.
template <class R> __global__ void square_parts_kernel(double* parts, const SquareSpan<R>* spans, long count) {
    const SquareSpan<R> s = find_span(spans, count);
    R sum = 0;
    for_each_element(elements_here(s), [&](R v) { sum += v * v; }, s.x);
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = double(sum);
}

// The same without the squares, in double.
// Blocks: of the log-probabilities of a step, once.
template <class R> __global__ void element_parts_kernel(double* parts, const R* x, long n) {
    const long begin = blockIdx.x * square_span, end = begin + square_span < n ? begin + square_span : n;
    double sum = 0;
    for_each_element(Span{begin, end}, [&](R v) { sum += double(v); }, x);
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
// parts: (1, square_parts(n)), overwritten; their sum, taken in order, is that of the n elements of x, without gaps.
template <class R> void add_elements(Device& d, View<double> parts, View<const R> x) {
    require_equal(parts.count(), square_parts(x.count()), "add_elements: one part a span");
    launch(d, Grid(parts.count()).moves(x), element_parts_kernel<R>, parts.data, x.data, x.count());
}

// Squares, zeros and the largest magnitude of a span, in double: the squares of second moments are below all floats.
inline constexpr long magnitude_sums = 2, magnitudes = 3;
template <class T> __global__ void magnitude_parts_kernel(double* parts, const T* x, long n) {
    using R = Real<T>;
    const long begin = blockIdx.x * square_span, end = begin + square_span < n ? begin + square_span : n;
    double squares = 0, zeros = 0;
    for_each_element(Span{begin, end}, [&](T xi) {
        const double v = double(R(xi));
        squares += v * v, zeros += v == 0 ? 1 : 0;
    }, x);
    const auto size = [](T xi) { return R(xi) < 0 ? -R(xi) : R(xi); };
    R top = largest(R(0), Span{begin, end}, size, x);   // a NaN shows in the squares
    squares = block_sum(squares), zeros = block_sum(zeros), top = block_max(top);
    if (threadIdx.x) return;
    double* const part = parts + blockIdx.x * magnitudes;
    part[0] = squares, part[1] = zeros, part[2] = squares != squares ? squares : double(top);
}

// Second stage of statistics: column c of total += those of the parts (P, C), in order; from `sums` on: the largest.
// Blocks: up to five columns, each in order, in steps that show statistics.
// Threads: one a column.
template <class V> __global__ void add_statistics_kernel(V* total, const V* parts, long P, long C, long sums) {
    for (long c = threadIdx.x; c < C; c += blockDim.x)
        for (long p = 0; p < P; ++p)
            total[c] = c < sums ? total[c] + parts[p * C + c] : Max()(total[c], parts[p * C + c]);
}
inline void add_statistics(Device& d, View<double> total, View<const double> parts, long sums) {
    require_equal(total.count(), parts.cols, "add_statistics: columns of total and parts");
    launch(d, Grid(1, 32).moves(parts), add_statistics_kernel<double>, total.data, parts.data, parts.rows, parts.cols,
           sums);
}

// total: (1, magnitudes), added to: sum of squares, number of zeros, largest magnitude. x: rows without gaps. parts:
// scratch of at least square_parts(count of x) rows.
template <class T> void add_magnitudes(Device& d, View<double> total, View<const T> x, View<double> parts) {
    require(x.dense(), "add_magnitudes: rows without gaps");
    const View<double> used = {parts.row_range(0, square_parts(x.count())).data, square_parts(x.count()), magnitudes};
    launch(d, Grid(used.rows).moves(x), magnitude_parts_kernel<T>, used.data, x.data, x.count());
    add_statistics(d, total, used, magnitude_sums);
}

// sum: (1, C) = or += the sums over the rows of x (N, C). parts: (column_sum_parts(N), C) scratch.
template <class T>
void column_sums(Device& d, View<Real<T>> sum, View<const T> x, View<Real<T>> parts, Write write) {
    require_equal(parts.rows, column_sum_parts(x.rows), "column_sums: scratch for the parts");
    const Grid grid = Grid::rows<T>(parts.rows, x.cols).moves(parts, x);
    launch(d, grid, column_sum_parts_kernel<T>, parts.data, x.data, x.rows, x.cols, x.stride);
    add_parts(d, sum, View<const Real<T>>(parts), write);
}

// parts: (1, blocks of the table), overwritten; their sum is that of the squares of all elements of the table.
template <class R> void sum_squares(Device& d, View<double> parts, const SpanTable<SquareSpan<R>>& table) {
    require_equal(parts.count(), table.blocks, "sum_squares: one part a block");
    Grid grid = Grid(table.blocks).moves(parts);
    grid.work.bytes += table.bytes;
    launch(d, grid, square_parts_kernel<R>, parts.data, table.spans.data, table.spans.cols);
}

}  // namespace baretrain
