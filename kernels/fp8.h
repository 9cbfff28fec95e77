// fp8.h - numbers scaled into the range of FP8 and rounded to it, and a product's numbers scaled back.
// Copy with: kernels/quantize.h, device.h and what they name
// A scale is that of the largest |x| of a row, of a column, or of all (scale_of). The rounded numbers are kept as bf16,
// which has every number of E4M3 and E5M2: products of them in bf16, with sums in float, are those of FP8.
// Width: one element a lane. A warp moves whole sectors, but takes more instructions than with packs.
#pragma once
#include "device.h"
#include "kernels/quantize.h"

namespace baretrain {

enum class Along { rows, columns };                    // what has a scale of its own

inline constexpr long amax_columns = 64;               // of a block

// Blocks: a row each; of a whole matrix the second stage has one row, the first one's numbers.
template <class T> __global__ void amax_rows_kernel(float* amax, const T* x, long C, long stride) {
    const auto size = [](T v) { return fabsf(float(v)); };
    const float most = block_max(largest(0.f, Span{0, C}, size, x + blockIdx.x * stride));
    if (threadIdx.x == 0) amax[blockIdx.x] = most;
}
// parts: the largest |x| of each block's span.
template <class T> __global__ void amax_parts_kernel(float* parts, const T* x, long n) {
    const auto size = [](T v) { return fabsf(float(v)); };
    const float most = block_max(largest(0.f, block_span(n), size, x));
    if (threadIdx.x == 0) parts[blockIdx.x] = most;
}
// Blocks: 64 columns each, for all rows: this needs a second stage to be fast.
// Bytes: a maximum goes out to L2 with each row.
template <class T> __global__ void amax_columns_kernel(float* amax, const T* x, long N, long C, long stride) {
    const long first = blockIdx.x * amax_columns, end = first + amax_columns < C ? first + amax_columns : C;
    for (long c = first + threadIdx.x; c < end; c += blockDim.x) amax[c] = 0;
    for (long n = 0; n < N; ++n)
        for (long c = first + threadIdx.x; c < end; c += blockDim.x) {
            const float size = fabsf(float(x[n * stride + c]));
            amax[c] = size > amax[c] ? size : amax[c];
        }
}
// A number's scale is that of amax[column], with by_column 1, else of amax[row * by_row].
template <class F, class T>
__global__ void quantize_kernel(T* q, const T* x, const float* amax, long C, long stride, long by_row, long by_column) {
    const long n = blockIdx.x;
    const float of_row = scale_of<F>(amax[n * by_row]);
    const auto round = [](float x, float scale) { return T(nearest<F>(x * scale)); };
    q += n * C, x += n * stride;
    if (by_column)
        for_each_element(C, [=](T& qc, T xc, float a) { qc = round(float(xc), scale_of<F>(a)); }, out(q), x, amax);
    else for_each_element(C, [=](T& qc, T xc) { qc = round(float(xc), of_row); }, out(q), x);
}
// The codes of what quantize_kernel rounds to.
template <class F, class T>
__global__ void encode_kernel(uint8_t* q, const T* x, const float* amax, long C, long stride, long by_row,
                              long by_column) {
    const long n = blockIdx.x;
    const float of_row = amax ? scale_of<F>(amax[n * by_row]) : 1;
    q += n * C, x += n * stride;
    if (by_column) for_each_element(C, [](uint8_t& qc, T xc, float a) {
        qc = encode<F>(float(xc) * scale_of<F>(a));
    }, out(q), x, amax);
    else for_each_element(C, [=](uint8_t& qc, T xc) { qc = encode<F>(float(xc) * of_row); }, out(q), x);
}
// The same with rows as columns. q: (C, N). A block a tile of x, turned in shared memory: neighbouring threads read and
// write neighbours.
inline constexpr long turned_tile = 64, turned_stride = turned_tile + 4;
template <class F, class T>
__global__ void encode_turned_kernel(uint8_t* q, View<const T> x, const float* amax, long by_row, long by_column) {
    const long tiles = (x.cols + turned_tile - 1) / turned_tile;
    const long n0 = blockIdx.x / tiles * turned_tile, c0 = blockIdx.x % tiles * turned_tile;
    uint8_t* const tile = shared_memory<uint8_t>();
    for (long i = threadIdx.x; i < turned_tile * turned_tile; i += blockDim.x) {
        const long r = i / turned_tile, k = i % turned_tile, n = n0 + r, c = c0 + k;
        if (n < x.rows && c < x.cols)
            tile[k * turned_stride + r] = encode<F>(float(x.data[n * x.stride + c]) *
                                                    (amax ? scale_of<F>(amax[n * by_row + c * by_column]) : 1));
    }
    __syncthreads();
    for (long i = threadIdx.x; i < turned_tile * turned_tile; i += blockDim.x) {
        const long k = i / turned_tile, r = i % turned_tile, n = n0 + r, c = c0 + k;
        if (n < x.rows && c < x.cols) q[c * x.rows + n] = tile[k * turned_stride + r];
    }
}
// Blocks: a number a row or column: there is little to do.
template <class F> __global__ void units_kernel(float* unit, const float* amax, long n) {
    const auto [begin, end] = block_span(n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) unit[i] = 1 / scale_of<F>(amax[i]);
}
// Of n neighbours under one scale.
template <class F, class T> __global__ void encode_span_kernel(uint8_t* q, const T* x, const float* amax, long n) {
    const float scale = scale_of<F>(*amax);
    for_each_element(block_span(n), [=](uint8_t& to, T from) { to = encode<F>(float(from) * scale); }, out(q), x);
}
template <class F, class T> __global__ void decode_span_kernel(T* x, const uint8_t* q, long n) {
    for_each_element(block_span(n), [](T& to, uint8_t from) { to = T(decode<F>(from)); }, out(x), q);
}
struct ProductScales { const float *a, *b; long by_row, by_column; };

// Bytes: the scales of columns come again, from L2, for each row.
template <class FA, class FB, class Out, class Bias>
__global__ void unscale_kernel(Out* y, const float* product, ProductScales m, const Bias* bias, long C, long stride,
                               Write write) {
    const long n = blockIdx.x;
    const float row = 1 / scale_of<FA>(m.a[n * m.by_row]);
    y += n * stride;
    for (long c = threadIdx.x; c < C; c += blockDim.x) {
        const float column = 1 / scale_of<FB>(m.b[c * m.by_column]);
        const float v = product[n * C + c] * row * column + (bias ? float(bias[c]) : 0);
        y[c] = Out(write == Write::add ? float(y[c]) + v : v);
    }
}

// amax: (1, rows) or (1, columns) of x, overwritten. NaN does not count.
template <class T> void amax(Device& d, View<float> amax, View<const T> x, Along along) {
    require_equal(amax.cols, along == Along::rows ? x.rows : x.cols, "amax: one a row or a column");
    if (along == Along::rows)
        return launch(d, Grid::rows<T>(x.rows, x.cols).moves(x), amax_rows_kernel<T>, amax.data, x.data, x.cols,
                      x.stride);
    const long blocks = (x.cols + amax_columns - 1) / amax_columns;
    launch(d, Grid(blocks, amax_columns).moves(x), amax_columns_kernel<T>, amax.data, x.data, x.rows, x.cols, x.stride);
}
// amax: (1, 1) of x (1, n), overwritten. parts: at least amax_parts(n), scratch.
inline long amax_parts(long n) { return (n + 4095) / 4096; }
template <class T> void amax_span(Device& d, View<float> most, View<const T> x, View<float> parts) {
    const View<float> used = parts.col_range(0, amax_parts(x.cols));
    launch(d, Grid(used.cols).moves(x, used), amax_parts_kernel<T>, used.data, x.data, x.cols);
    amax<float>(d, most, View<const float>(used), Along::rows);
}
// q: (N, C) without gaps, overwritten: x scaled and rounded to F. amax: one number, or one along rows or columns.
template <class F, class T>
void quantize(Device& d, View<T> q, View<const T> x, View<const float> amax, Along along) {
    const bool one = amax.cols == 1;
    launch(d, Grid::rows<T>(x.rows, x.cols).moves(q, x), quantize_kernel<F, T>, q.data, x.data, amax.data, x.cols,
           x.stride, long(!one && along == Along::rows), long(!one && along == Along::columns));
}
// q: (N, C), or turned (C, N), overwritten: the codes of x (N, C), scaled and rounded to F. No amax: x is scaled.
enum class Turned { no, yes };
template <class F, class T>
void encode(Device& d, View<uint8_t> q, View<const T> x, View<const float> amax, Along along, Turned turned) {
    const long by_row = amax.cols > 1 && along == Along::rows, by_column = amax.cols > 1 && along == Along::columns;
    require_equal(q.cols, turned == Turned::yes ? x.rows : x.cols, "encode: columns of the codes");
    if (turned == Turned::no)
        return launch(d, Grid::rows<T>(x.rows, x.cols).moves(q, x), encode_kernel<F, T>, q.data, x.data, amax.data,
                      x.cols, x.stride, by_row, by_column);
    const auto tiles = [](long n) { return (n + turned_tile - 1) / turned_tile; };
    launch(d, Grid(tiles(x.rows) * tiles(x.cols), 256, size_t(turned_tile * turned_stride)).moves(q, x),
           encode_turned_kernel<F, T>, q.data, x, amax.data, by_row, by_column);
}
// q: (1, n), overwritten: the codes of x (1, n) under one scale.
template <class F, class T> void encode_span(Device& d, View<uint8_t> q, View<const T> x, View<const float> amax) {
    require_equal(q.cols, x.cols, "encode: as many codes as numbers");
    launch(d, Grid::spans(x.cols).moves(q, x), encode_span_kernel<F, T>, q.data, x.data, amax.data, x.cols);
}
// x: (1, n), overwritten: the numbers of F, still scaled.
template <class F, class T> void decode_span(Device& d, View<T> x, View<const uint8_t> q) {
    require_equal(q.cols, x.cols, "decode: as many codes as numbers");
    launch(d, Grid::spans(x.cols).moves(q, x), decode_span_kernel<F, T>, x.data, q.data, x.cols);
}
// unit: like amax, overwritten: what the code of 1 stands for.
template <class F> void units(Device& d, View<float> unit, View<const float> amax) {
    require_equal(unit.cols, amax.cols, "units: one for each scale");
    launch(d, Grid::spans(amax.cols).moves(unit, amax), units_kernel<F>, unit.data, amax.data, amax.cols);
}
struct Amaxes { View<const float> a, b; };             // of the factors: one number, or one a row and one a column
// y: (N, C) = or += product (N, C), without gaps, over the scales of its factors, + bias (1, C), if there is one.
template <class FA, class FB, class Out, class Bias>
void unscale(Device& d, View<Out> y, View<const float> product, const Amaxes& m, View<const Bias> bias, Write write) {
    const ProductScales scales{m.a.data, m.b.data, long(m.a.cols > 1), long(m.b.cols > 1)};
    launch(d, Grid(y.rows).moves(y, product), unscale_kernel<FA, FB, Out, Bias>, y.data, product.data, scales,
           bias.data, y.cols, y.stride, write);
}

}  // namespace baretrain
