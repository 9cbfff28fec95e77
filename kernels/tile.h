// tile.h - the product of two small matrices in fast memory: what attention and the plain matrix product are made of.
// Copy with: device.h and what it names
#pragma once
#include "device.h"

namespace baretrain {

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
