// tile.h - small matrices in fast memory: staged, and multiplied. What attention and the plain product are made of.
// Copy with: device.h and what it names
#pragma once
#include "device.h"

namespace baretrain {

// Rows of a matrix in global memory. What lies beyond them reads as zero.
template <class T> struct TileRows { const T* data; long stride, count, width; };

enum class Keep { all, finite };                       // finite: other values become 0
template <class R> __device__ bool is_finite(R x) { return x > R(-INFINITY) && x < R(INFINITY); }

// tile[r * width + c] = scale * x[r][c] for r < rows. Says whether this thread has met a value that is not finite.
template <Keep keep, class R, class T>
__device__ bool stage_rows(R* __restrict__ tile, TileRows<T> x, long rows, long width, R scale) {
    int wild = 0;
    for (long r = threadIdx.x / warpSize; r < rows; r += blockDim.x / warpSize) {
        const T* const from = x.data + r * x.stride;
        R* const to = tile + r * width;
        const long have = r >= x.count ? 0 : x.width < width ? x.width : width;
        for (long c = threadIdx.x % warpSize; c < have; c += warpSize) {
            const R value = R(from[c]);
            wild |= !is_finite(value);
            to[c] = keep == Keep::all || is_finite(value) ? scale * value : R(0);
        }
        for (long c = have + threadIdx.x % warpSize; c < width; c += warpSize) to[c] = R(0);
    }
    return wild;
}

// tile[c * rows + r] = scale * x[r][c] for c < width: the transposed tile. A CPU turns what it can patch by patch in
// registers.
template <class R, class T>
__device__ void stage_columns(R* __restrict__ tile, TileRows<T> x, long rows, long width, R scale) {
    long turned_rows = 0, turned_columns = 0;
    if constexpr (max_threads == 1) {
        constexpr long n = vector_lanes<R>;
        turned_rows = (x.count < rows ? x.count : rows) / n * n;
        turned_columns = (x.width < width ? x.width : width) / n * n;
        for (long r = 0; r < turned_rows; r += n)
            for (long c = 0; c < turned_columns; c += n) {
                R in[n][n];
                Vector<R, n> patch[n];
                for (long i = 0; i < n; ++i)
                    for (long l = 0; l < n; ++l) in[i][l] = scale * R(x.data[(r + i) * x.stride + c + l]);
                memcpy(patch, in, sizeof in);
                transpose<R, n>(patch, std::make_index_sequence<n>());
                for (long i = 0; i < n; ++i) memcpy(tile + (c + i) * rows + r, &patch[i], sizeof patch[i]);
            }
    }
    for (long r = threadIdx.x / warpSize; r < rows; r += blockDim.x / warpSize)
        for (long c = threadIdx.x % warpSize + (r < turned_rows ? turned_columns : 0); c < width; c += warpSize)
            tile[c * rows + r] = r < x.count && c < x.width ? scale * R(x.data[r * x.stride + c]) : R(0);
}

template <class R> struct TileA { const R* data; long row, step; };    // element (r, k) at data[r * row + k * step]
template <class R> struct TileB { const R* data; long cols, stride; }; // element (k, c) at data[k * stride + c]

// A thread makes a patch of the result at a time: sums enough that their additions do not wait for each other, few
// enough that registers hold them.
inline constexpr long tile_rows = max_threads > 1 || vector_registers < 32 ? 4 : 8;
template <class R> inline constexpr long tile_cols = max_threads > 1 ? 1 : 2 * vector_lanes<R>;

// sum over k of a(r, k) * b(k, c) for all r < rows (rounded up to whole patches) and c < b.cols (a multiple of `cols`).
// limits(r, c) says which k matter to the patch that begins there; without any it is left out. emit(r, c, sums) gets
// the results of each of its rows.
template <long cols, class R, class Limits, class Emit>
__device__ void tile_product(TileA<R> a, TileB<R> b, long rows, Limits limits, Emit emit) {
    constexpr long lanes = cols < vector_lanes<R> ? cols : vector_lanes<R>, strips = cols / lanes;
    const long across = b.cols / cols, items = (rows + tile_rows - 1) / tile_rows * across;
    for (long i = threadIdx.x; i < items; i += blockDim.x) {
        const long r0 = i / across * tile_rows, c = i % across * cols;
        const Span k = limits(r0, c);
        if (k.begin >= k.end) continue;
        Vector<R, lanes> sums[tile_rows][strips] = {}, bk[strips];
        for (long j = k.begin; j < k.end; ++j) {
            const R* const aj = a.data + r0 * a.row + j * a.step;
            for (long s = 0; s < strips; ++s) memcpy(&bk[s], b.data + j * b.stride + c + s * lanes, sizeof bk[s]);
            for (long r = 0; r < tile_rows; ++r)
                for (long s = 0; s < strips; ++s) sums[r][s] += aj[r * a.row] * bk[s];
        }
        R x[tile_rows][cols];                          // emit may index them: registers have no index
        for (long r = 0; r < tile_rows; ++r)
            for (long s = 0; s < strips; ++s) memcpy(&x[r][s * lanes], &sums[r][s], sizeof sums[r][s]);
        for (long r = 0; r < tile_rows; ++r) emit(r0 + r, c, x[r]);
    }
}

}  // namespace baretrain
