// plain.h - the matrix product as an ordinary kernel: no library, every type, every stride, on every device.
// Copy with: kernels/tile.h, device.h and what they name
//   y = op(a) op(b) + bias, or y += op(a) op(b)     y: (M, N)   op(a): (M, K)   op(b): (K, N)   bias: (1, N) or empty
// A block owns a tile of y and walks K in steps through tiles of a and b in shared memory, as Real<In>. The terms
// of an element are added in an order that depends on K alone: the bits depend neither on the team nor on the grid.
// Width: one element a lane. A warp moves whole sectors, but takes more instructions than with packs.
#pragma once
#include "kernels/tile.h"

namespace baretrain {

struct MatmulOptions {
    bool transpose_a = false, transpose_b = false;     // multiply by the transpose of the stored matrix
    Write write = Write::over;                         // y = or y +=
};

// One call after its checks: what an engine gets. M, N, K > 0; rows of a, b and y do not overlap.
template <class Out, class In> struct Product {
    View<Out> y;
    View<const In> a, b, bias;                         // as stored
    MatmulOptions o;
    long M, N, K;
    View<Real<In>> sums = {};                          // (1, M) or (1, N), overwritten: of the rows of a, or of b
    bool sums_of_b = false;
    bool add() const { return o.write == Write::add; }
    std::string shape() const {                        // for messages
        return std::to_string(M) + " x " + std::to_string(K) + " x " + std::to_string(N);
    }
};

// Rounded to FP8: rows of codes, along which is summed; unit: what the code of 1 stands for, of all or of each row.
// wide: the codes are E5M2, else E4M3.
struct Fp8Rows { View<const uint8_t> codes; View<const float> unit; bool wide; };
// y = or += a b^T + bias. y: (M, N), a: (M, K), b: (N, K).
template <class Out> struct Fp8Product {
    View<Out> y;
    Fp8Rows a, b;
    View<const bf16> bias;
    Write write;
};

// Stands for a library that this build does not have.
struct NoEngine {
    static constexpr bool found = false;
    explicit NoEngine(bool = false) {}
    static std::string name() { return {}; }
    static bool fast_bf16() { return false; }
    template <class Out, class In> bool multiply(Device&, const Product<Out, In>&) { return false; }
};

// Element (r, c) of op(m) is data[r * down + c * right].
template <class In> struct Strided {
    const In* data;
    long rows, cols, down, right;
    Strided(View<const In> v, bool transposed)
        : data(v.data), rows(transposed ? v.cols : v.rows), cols(transposed ? v.rows : v.cols),
          down(transposed ? 1 : v.stride), right(transposed ? v.stride : 1) {}
};

inline constexpr long matmul_tile_rows = max_threads == 1 ? 64 : 32, matmul_tile_cols = 2 * matmul_tile_rows;
inline constexpr long matmul_tile_depth = matmul_tile_rows;

// tile = the part of m that begins at (r0, c0), zero beyond the edges; neighbouring threads read neighbouring elements.
template <class In, long rows, long cols>
__device__ void load_tile(Real<In> (&tile)[rows][cols], const Strided<In>& m, long r0, long c0) {
    const In* const from = m.data + r0 * m.down + c0 * m.right;
    const long R = m.rows - r0, C = m.cols - c0;
    if (m.right == 1) stage_rows<Keep::all>(tile[0], TileRows<In>{from, m.down, R, C}, rows, cols, Real<In>(1));
    else stage_columns(tile[0], TileRows<In>{from, m.right, C, R}, cols, rows, Real<In>(1));
}

// Bytes: each tile of a and of b comes again, from L2, for each tile of y beside or below.
template <class Out, class In>
__global__ void matmul_kernel(Out* y, long y_stride, Strided<In> a, Strided<In> b, const In* bias, Write write) {
    using R = Real<In>;
    constexpr long TM = matmul_tile_rows, TN = matmul_tile_cols, TK = matmul_tile_depth;
    __shared__ R A[TM][TK];
    __shared__ R B[TK][TN];
    __shared__ R sum[TM][TN];
    const long across = (b.cols + TN - 1) / TN, r0 = blockIdx.x / across * TM, c0 = blockIdx.x % across * TN;
    const long rows = a.rows - r0 < TM ? a.rows - r0 : TM, cols = b.cols - c0 < TN ? b.cols - c0 : TN;
    for (long r = 0; r < TM; ++r)
        for (long c = threadIdx.x; c < TN; c += blockDim.x) sum[r][c] = 0;
    for (long k0 = 0; k0 < a.cols; k0 += TK) {
        __syncthreads();                               // the last step's tiles may still be in use
        load_tile<In>(A, a, r0, k0);
        load_tile<In>(B, b, k0, c0);
        __syncthreads();
        tile_product<tile_cols<R>>(TileA<R>{A[0], TK, 1}, TileB<R>{B[0], TN, TN}, rows,
            [&](long, long) { return Span{0, TK}; },
            [&](long r, long c, const R* x) {
                for (long l = 0; l < tile_cols<R>; ++l) sum[r][c + l] += x[l];
            });
    }
    __syncthreads();
    for (long r = 0; r < rows; ++r)
        for (long c = threadIdx.x; c < cols; c += blockDim.x) {
            Out& to = y[(r0 + r) * y_stride + c0 + c];
            const R before = write == Write::add ? R(to) : bias ? R(bias[c0 + c]) : R(0);
            to = Out(before + sum[r][c]);
        }
}

template <class Out, class In> void plain_matmul(Device& d, const Product<Out, In>& p) {
    const long down = (p.M + matmul_tile_rows - 1) / matmul_tile_rows;
    const long across = (p.N + matmul_tile_cols - 1) / matmul_tile_cols;
    const Grid grid = Grid(down * across, unsigned(matmul_tile_cols)).moves(p.y, p.a, p.b, p.bias);
    launch(d, grid, matmul_kernel<Out, In>, p.y.data, p.y.stride, Strided<In>(p.a, p.o.transpose_a),
           Strided<In>(p.b, p.o.transpose_b), p.bias.data, p.o.write);
}

// y = x, or y += x, from one type to another; one block a row.
// Bytes: a bias comes again, from L2, for each row.
template <class To, class From>
__global__ void copy_rows_kernel(To* y, long y_stride, const From* x, long x_stride, long C, Write write) {
    using R = Real<To>;
    y += blockIdx.x * y_stride, x += blockIdx.x * x_stride;
    if (write == Write::over)
        for (long c = threadIdx.x; c < C; c += blockDim.x) y[c] = To(R(x[c]));
    else
        for (long c = threadIdx.x; c < C; c += blockDim.x) y[c] = To(R(y[c]) + R(x[c]));
}
template <class To, class From> void copy_rows(Device& d, View<To> y, View<const From> x, Write write) {
    const View<const From> read = x.row_range(0, x.stride ? x.rows : std::min(x.rows, 1L));   // a bias: one for all
    const Grid grid = Grid(y.rows).moves(y, read);
    launch(d, grid, copy_rows_kernel<To, From>, y.data, y.stride, x.data, x.stride, y.cols, write);
}
template <class To> __global__ void zero_rows_kernel(To* y, long y_stride, long C) {
    for (long c = threadIdx.x; c < C; c += blockDim.x) y[blockIdx.x * y_stride + c] = To(0);
}

// y = the bias on every row, or zeros: where a sum over nothing ends, and where a library that only adds begins.
template <class Out, class In> void start_rows(Device& d, View<Out> y, View<const In> bias) {
    if (bias.empty()) launch(d, Grid(y.rows).moves(y), zero_rows_kernel<Out>, y.data, y.stride, y.cols);
    else copy_rows(d, y, View<const In>(bias.data, y.rows, y.cols, 0), Write::over);
}

}  // namespace baretrain
