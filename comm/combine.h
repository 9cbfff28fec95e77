// combine.h - what CPU engines do to numbers: add them up, or find the largest, in the order of ranks; and copies.
// Copy with: comm.h and what it names
// One kernel for all engines: so the same layout gives the same bits, however its ranks are connected.
// Width: one element a lane. A warp moves whole sectors, but takes more instructions than with packs.
#pragma once
#include "comm.h"

namespace baretrain {

inline constexpr int most_combined = 256;              // ranks of one axis
template <class T> struct Sources { const T* of[most_combined]; };

// to = sum or maximum of n sources, in their order; a NaN stays. to may be one of them. A block a span, in strips of
// sums: one number a thread, or as many as a CPU's inner loops like.
template <class T> __global__ void combine_kernel(T* to, Sources<T> from, int n, long count, bool sum) {
    using R = Real<T>;
    constexpr long strip = max_threads > 1 ? 1 : 512;
    const auto [begin, end] = block_span(count);
    for (long i = begin + threadIdx.x * strip; i < end; i += blockDim.x * strip) {
        const long here = strip < end - i ? strip : end - i;
        R x[strip];
        x[0] = R(0);                                   // or g++ imagines that a strip may be empty
        for (long j = 0; j < here; ++j) x[j] = R(from.of[0][i + j]);
        for (int k = 1; k < n; ++k) {
            const T* y = from.of[k] + i;
            if (sum) for (long j = 0; j < here; ++j) x[j] += R(y[j]);
            else for (long j = 0; j < here; ++j) x[j] = R(y[j]) > x[j] || R(y[j]) != R(y[j]) ? R(y[j]) : x[j];
        }
        for (long j = 0; j < here; ++j) to[i + j] = T(x[j]);
    }
}
template <class T> void combine(Device& d, T* to, const Sources<T>& from, int n, long count, bool sum) {
    Grid grid = Grid::spans(count);
    grid.work.bytes = double(n + 1) * double(count) * double(sizeof(T));
    if constexpr (sizeof(T) > 1) launch(d, grid, combine_kernel<T>, to, from, n, count, sum);
}

template <class T> __global__ void copy_part_kernel(T* to, const T* from, long count) {
    for_each_element(block_span(count), [](T& there, T here) { there = here; }, out(to), from);
}
// Nothing where it is there already.
template <class T> void copy_part(Device& d, T* to, const T* from, long count) {
    const View<const T> part(from, 1, count);
    if (to != from) launch(d, Grid::spans(count).moves(part, part), copy_part_kernel<T>, to, from, count);
}

// Elements [begin, begin + count) of a whole that is cut into n parts.
struct Piece { long begin, count; };
inline Piece piece_of(long whole, int n, int rank) {
    const long each = part_of(whole, n), begin = std::min(rank * each, whole);
    return {begin, std::min(each, whole - begin)};
}

}  // namespace baretrain
