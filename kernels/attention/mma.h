// mma.h - attention on tensor cores: bf16, head sizes of 64, 96 and 128, compute capability 8.0 and up.
// Copy with: kernels/attention/input.h, kernels/tile.h, device/warp.h, device.h and what they name
// The same contracts as plain.h, which keeps the rest. Scores, softmax and sums are fp32; what a product multiplies is
// bf16. While a tile is worked on, the next one is copied to shared memory in the background.
//   Q, K  queries and keys of a tile     D  columns of a head     a strip: 16 rows, which one warp keeps in registers
//   strips[i], then i = 0, 1, ... 16 rows apart;   j: 8 columns apart;   e: the 4 numbers of a lane (device/warp.h):
//
//            columns 8j + 0 1   2 3   4 5   6 7           lane = 4g + t holds of this C
//     row g        lane 4g+0  4g+1  4g+2  4g+3              e = 0, 1:  row g,      columns 8j + 2t, 8j + 2t + 1
//     row g + 8    lane 4g+0  4g+1  4g+2  4g+3              e = 2, 3:  row g + 8,  the same columns
//
//     A (16 x 16), registers   | 0 | 2 |  of which each 8 x 8 lies in the lanes like the upper half of a C;
//                              | 1 | 3 |  so the Cs of j and j + 1, rounded to bf16, are registers 0 1 and 2 3 of an A.
//     B (16 x 8),  registers   | 0 | 1 |  of the transpose: row g of it is the column g of B.
//
// Forward: a warp has 32 queries; s = q k^T, softmax, o += p v, all in registers. Backward: the queries' kernel makes
// delta and dq += ds k, walking over keys; then the keys' kernel walks over the queries that see its keys, and makes
// s^T = k q^T, so that p^T and ds^T already are the left factors of dv += p^T dout and dk += ds^T q. Scores are made
// twice: the price of one fixed order without atomics or sums across blocks.
// What is not finite: a masked p is exactly 0, and where a warp's tile has a mask (all others are seen by all of its
// rows) values that are not finite are left out of products and reach the rows that see them in another way.
#pragma once
#include "device/warp.h"
#include "kernels/attention/input.h"
#include "kernels/tile.h"

namespace baretrain {

inline constexpr unsigned mma_threads = 128;           // four warps a block, always
#if !defined(__CUDACC__) && !defined(BT_SIMT)
inline constexpr bool attention_has_mma = false;       // blocks of one thread have no tensor cores
#else
inline constexpr bool attention_has_mma = true;
inline constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;

// Rows of a tile are D + 8 apart: eight of them, 16 bytes each, lie in all 32 banks once, so ldmatrix has no conflicts.
template <long D> inline constexpr long mma_stride = D + 8;

// Starts to copy rows of x; those behind x.count are zeros.
template <long D, int rows> __device__ void copy_rows(bf16* tile, TileRows<bf16> x) {
    for (int i = threadIdx.x; i < rows * int(D / 8); i += mma_threads) {
        const int r = i / int(D / 8), c = i % int(D / 8) * 8;
        const bool there = r < x.count;
        copy_async<16>(tile + r * mma_stride<D> + c, x.data + (there ? r * x.stride : 0) + c, there);
    }
}

// The tile that was started last is there, and nobody reads the one before any more: its place may be filled.
__device__ __forceinline__ void await_tile() {
    wait_copies<0>();
    __syncthreads();
}

// Where this lane's row of a 16 x 16 block begins, for ldmatrix. down: the 8 x 8 matrices one below the other, then the
// right half (A; B from rows, turned). across: side by side, then the lower half (B from columns).
template <long D> __device__ const bf16* down(const bf16* x) {
    return x + threadIdx.x % 16 * mma_stride<D> + threadIdx.x % 32 / 16 * 8;
}
template <long D> __device__ const bf16* across(const bf16* x) {
    return x + (threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8) * mma_stride<D> + threadIdx.x % 16 / 8 * 8;
}

// s = a b^T: this warp's strips of a by `rows` rows of b, D columns each, both in shared memory.
template <long D, int strips, int rows>
__device__ __forceinline__ void multiply_rows(float (&s)[strips][rows / 8][4], const bf16* a, const bf16* b) {
    BT_UNROLL
    for (int i = 0; i < strips * rows / 2; ++i) s[i / (rows / 2)][i % (rows / 2) / 4][i % 4] = 0;
    BT_UNROLL
    for (int d = 0; d < D; d += 16) {
        uint32_t left[strips][4], right[4];
        BT_UNROLL
        for (int i = 0; i < strips; ++i) ldmatrix(left[i], down<D>(a + 16 * i * mma_stride<D> + d));
        BT_UNROLL
        for (int r = 0; r < rows; r += 16) {
            ldmatrix(right, across<D>(b + r * mma_stride<D> + d));
            BT_UNROLL
            for (int i = 0; i < strips; ++i) {
                mma(s[i][r / 8], left[i], right[0], right[1]);
                mma(s[i][r / 8 + 1], left[i], right[2], right[3]);
            }
        }
    }
}

// o += p v: p lies in the registers of multiply_rows and is rounded to bf16; v: `rows` rows of D columns in shared
// memory. drop: what is not finite in v counts as 0. Says whether this lane has met such.
template <long D, int strips, int rows>
__device__ __forceinline__ bool add_product(float (&o)[strips][D / 8][4], const float (&p)[strips][rows / 8][4],
                                            const bf16* v, bool drop) {
    bool wild = false;
    BT_UNROLL
    for (int r = 0; r < rows; r += 16) {
        uint32_t left[strips][4], right[4];
        BT_UNROLL
        for (int i = 0; i < strips; ++i)
            BT_UNROLL
            for (int x = 0; x < 4; ++x) {
                const float(&two)[4] = p[i][r / 8 + x / 2];
                left[i][x] = pack(two[x % 2 * 2], two[x % 2 * 2 + 1]);
            }
        BT_UNROLL
        for (int d = 0; d < D; d += 16) {
            ldmatrix_trans(right, down<D>(v + r * mma_stride<D> + d));
            if (drop) {
                BT_UNROLL
                for (int x = 0; x < 4; ++x) wild |= drop_wild(right[x]);
            }
            BT_UNROLL
            for (int i = 0; i < strips; ++i) {
                mma(o[i][d / 8], left[i], right[0], right[1]);
                mma(o[i][d / 8 + 1], left[i], right[2], right[3]);
            }
        }
    }
    return wild;
}

// This warp's strips of results, rounded, to rows of global memory, through its own rows of a tile: 16 bytes a lane.
template <long D, int strips>
__device__ void store_rows(bf16* tile, const float (&o)[strips][D / 8][4], bf16* to, long stride, long count) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
    BT_UNROLL
    for (int i = 0; i < strips; ++i)
        BT_UNROLL
        for (int j = 0; j < D / 8; ++j)
            BT_UNROLL
            for (int e = 0; e < 4; e += 2)
                *reinterpret_cast<uint32_t*>(tile + (16 * i + 4 * e + g) * mma_stride<D> + 8 * j + 2 * t) =
                    pack(o[i][j][e], o[i][j][e + 1]);
    __syncwarp();                                      // all lanes have written
    for (int i = lane; i < 16 * strips * int(D / 8); i += 32) {
        const int r = i / int(D / 8), c = i % int(D / 8) * 8;
        const Wide x = *reinterpret_cast<const Wide*>(tile + r * mma_stride<D> + c);
        if (r < count) store(reinterpret_cast<Wide*>(to + r * stride + c), x);
    }
}

// Key rows begin .. end - 1.
struct Keys {
    int begin, end;
    __device__ bool has(int key) const { return key >= begin && key < end; }
};

// What the queries from n on see, of which this warp has `count`, in strips; a row that is not there sees nothing.
template <int strips> struct Seen {
    Keys of[strips][2], any, all;                      // of rows 16i + g and 16i + 8 + g; of one of the rows; of all

    __device__ Seen(const AttentionInput<bf16>& in, long n, long count) {
        const auto keys = [&](long r) {
            return r < count ? Keys{int(in.first_key(n + r)), int(in.k.rows - in.q.rows + n + r + 1)} : Keys{0, 0};
        };
        BT_UNROLL
        for (int i = 0; i < 2 * strips; ++i) of[i / 2][i % 2] = keys(8 * i + threadIdx.x % 32 / 4);
        const Keys first = keys(0), last = keys(count < 16 * strips ? count - 1 : 16 * strips - 1);
        any = {first.begin, last.end}, all = {last.begin, first.end};
        if (count <= 0) any = all = {0, 0};
    }
    __device__ bool none(long k0, int rows) const { return k0 + rows <= any.begin || k0 >= any.end; }
    __device__ bool whole(long k0, int rows) const { return k0 >= all.begin && k0 + rows <= all.end; }
};

// Scores of keys that their query does not see become `hidden`.
template <int strips, int K>
__device__ __forceinline__ void mask(float (&s)[strips][K / 8][4], const Seen<strips>& seen, int k0, float hidden) {
    BT_UNROLL
    for (int i = 0; i < strips; ++i)
        BT_UNROLL
        for (int j = 0; j < K / 8; ++j)
            BT_UNROLL
            for (int e = 0; e < 4; ++e)
                if (!seen.of[i][e / 2].has(k0 + 8 * j + threadIdx.x % 4 * 2 + e % 2)) s[i][j][e] = hidden;
}

// The four lanes of a row.
__device__ __forceinline__ float quad_max(float x) {
    for (int d = 1; d < 4; d *= 2) {
        const float y = __shfl_xor_sync(0xFFFFFFFFu, x, d);
        x = y > x ? y : x;
    }
    return x;
}
__device__ __forceinline__ float quad_sum(float x) {
    for (int d = 1; d < 4; d *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, d);
    return x;
}

// Tiles of a forward block: what fits in 99 KiB and 255 registers.
template <long D> struct MmaForward {
    static constexpr int strips = 2, Q = 64 * strips, K = D == 64 ? 64 : 32;
    static constexpr size_t bytes = size_t(Q + 4 * K) * mma_stride<D> * sizeof(bf16);
};

// Scores s (of base 2) become exp2(s - top); top and sum: of all tiles so far, sum of this lane's columns only; o
// shrinks with what has been summed up before (Milakov, Gimelshein 2018).
template <long D, int strips, int K>
__device__ __forceinline__ void online_softmax(float (&s)[strips][K / 8][4], float (&o)[strips][D / 8][4],
                                               float (&top)[strips][2], float (&sum)[strips][2]) {
    BT_UNROLL
    for (int i = 0; i < strips; ++i)
        BT_UNROLL
        for (int half = 0; half < 2; ++half) {
            float now = top[i][half], added = 0;
            BT_UNROLL
            for (int x = 0; x < K / 4; ++x) {
                const float score = s[i][x / 2][2 * half + x % 2];
                now = score > now ? score : now;
            }
            now = quad_max(now);
            const float shrink = fast_exp2(top[i][half] - now);
            BT_UNROLL
            for (int x = 0; x < K / 4; ++x) {
                float& score = s[i][x / 2][2 * half + x % 2];
                score = fast_exp2(score - now), added += score;
            }
            top[i][half] = now, sum[i][half] = sum[i][half] * shrink + added;
            BT_UNROLL
            for (int x = 0; x < D / 4; ++x) o[i][x / 2][2 * half + x % 2] *= shrink;
        }
}

// Values that add_product left out, to the queries that see them: infinity and NaN stay what they are under any weight.
template <long D, int strips, int K>
__device__ void add_wild(float (&o)[strips][D / 8][4], const bf16* v, long k0, const Seen<strips>& seen) {
    for (int r = 0; r < K; ++r)
        BT_UNROLL
        for (int i = 0; i < strips; ++i)
            BT_UNROLL
            for (int j = 0; j < D / 8; ++j)
                BT_UNROLL
                for (int e = 0; e < 4; ++e) {
                    const float value = float(v[r * mma_stride<D> + 8 * j + threadIdx.x % 4 * 2 + e % 2]);
                    if (seen.of[i][e / 2].has(int(k0) + r) && !is_finite(value)) o[i][j][e] += value;
                }
}

// A tile of keys from row k0 on, and behind it that of their values; zeros from `end` on. at: the head's first column.
template <long D, int K>
__device__ __forceinline__ void copy_keys_and_values(bf16* to, const AttentionInput<bf16>& in, long k0, long end,
                                                     long at) {
    copy_rows<D, K>(to, {in.k.data + k0 * in.k.stride + at, in.k.stride, end - k0, D});
    copy_rows<D, K>(to + K * mma_stride<D>, {in.v.data + k0 * in.v.stride + at, in.v.stride, end - k0, D});
}

// One block a tile of Q queries of one head; its last tiles, which see most keys, begin first.
// Blocks: a single new token has no more tiles than heads.
// Bytes: keys and values come again, from L2, for each tile of queries.
template <long D>
__global__ void __launch_bounds__(mma_threads)
attention_mma_forward_kernel(View<bf16> out, float* lse, AttentionInput<bf16> in) {
    using Tile = MmaForward<D>;
    constexpr int strips = Tile::strips, Q = Tile::Q, K = Tile::K;
    constexpr long stride = mma_stride<D>;
    const long N = in.q.rows, H = in.q.cols / D, h = blockIdx.x % H, n0 = (gridDim.x / H - 1 - blockIdx.x / H) * Q;
    const long at = h / (in.q.cols / in.k.cols) * D, count = N - n0 < Q ? N - n0 : Q;
    const long start = in.first_key(n0), end = in.k.rows - N + n0 + count;
    const int row = threadIdx.x / 32 * 16 * strips, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    bf16 *q = shared_memory<bf16>(), *tiles = q + Q * stride;       // then two times a tile of keys, one of values
    const Seen<strips> seen(in, n0 + row, count - row);
    const float scale = in.scale * log2_e;
    const auto tile_of = [&](long k0) { return tiles + (k0 - start) / K % 2 * (2 * K * stride); };
    const auto copy_keys = [&](long k0) { copy_keys_and_values<D, K>(tile_of(k0), in, k0, end, at); };
    float o[strips][D / 8][4] = {}, top[strips][2], sum[strips][2] = {};
    BT_UNROLL
    for (int i = 0; i < 2 * strips; ++i) top[i / 2][i % 2] = lowest<float>;

    copy_rows<D, Q>(q, {in.q.data + n0 * in.q.stride + h * D, in.q.stride, count, D});
    copy_keys(start);
    commit_copies();
    for (long k0 = start; k0 < end; k0 += K) {
        await_tile();
        if (k0 + K < end) copy_keys(k0 + K);
        commit_copies();
        if (seen.none(k0, K)) continue;
        const bf16 *keys = tile_of(k0), *values = keys + K * stride;
        const bool whole = seen.whole(k0, K);
        float s[strips][K / 8][4];
        multiply_rows<D, strips, K>(s, q + row * stride, keys);
        BT_UNROLL
        for (int i = 0; i < strips * K / 2; ++i) s[i / (K / 2)][i % (K / 2) / 4][i % 4] *= scale;
        if (!whole) mask<strips, K>(s, seen, int(k0), -INFINITY);
        online_softmax<D, strips, K>(s, o, top, sum);
        const bool wild = add_product<D, strips, K>(o, s, values, !whole);
        if (!whole && __any_sync(0xFFFFFFFFu, wild)) add_wild<D, strips, K>(o, values, k0, seen);
    }
    BT_UNROLL
    for (int i = 0; i < strips; ++i)
        BT_UNROLL
        for (int half = 0; half < 2; ++half) {
            const float all = quad_sum(sum[i][half]);
            const int r = row + 16 * i + 8 * half + g;
            if (t == 0 && r < count) lse[(n0 + r) * H + h] = top[i][half] * ln_2 + log(all);
            BT_UNROLL
            for (int x = 0; x < D / 4; ++x) o[i][x / 2][2 * half + x % 2] *= 1 / all;
        }
    store_rows<D, strips>(q + row * stride, o, out.data + (n0 + row) * out.stride + h * D, out.stride, count - row);
}

// Tiles of a backward block: its own rows of two matrices, rows of two others that pass by, and of passing queries two
// times lse, delta and position. Larger ones need more than 255 registers, or more than 168: three blocks on an SM.
template <long D, int strips_, int passing_> struct MmaBackward {
    static constexpr int strips = strips_, own = 64 * strips, passing = passing_;
    static constexpr size_t elements = size_t(2 * own + 4 * passing) * mma_stride<D>;
    static constexpr size_t bytes = elements * sizeof(bf16) + 2 * 3 * passing * sizeof(float);
};
template <long D> using MmaQueries = MmaBackward<D, D == 64 ? 2 : 1, 32>;
template <long D> using MmaKeys = MmaBackward<D, 1, D == 64 ? 48 : 32>;

// The end of the document that row n lies in: the first start behind it.
__device__ inline long document_end(View<const int> documents, long n) {
    long low = 0, high = documents.cols - 1;
    while (low < high) {
        const long middle = (low + high) / 2;
        if (documents.data[middle] > n) high = middle;
        else low = middle + 1;
    }
    return documents.data[low];
}

// ds; where p is 0, also because of a mask, it is 0 whatever dp is.
__device__ __forceinline__ float score_gradient(float p, float dp, float delta) {
    return p != 0 ? p * (dp - delta) : 0.f;
}

// dk and dv. One block a tile of keys of one KV head; all the queries that see one of them pass by, head after head.
// Bytes: queries and their gradients come again, from L2, for each tile of keys.
template <long D>
__global__ void __launch_bounds__(mma_threads)
attention_mma_keys_kernel(AttentionBackward<bf16> b, AttentionInput<bf16> in) {
    using Tile = MmaKeys<D>;
    constexpr int strips = Tile::strips, K = Tile::own, Q = Tile::passing;
    constexpr long stride = mma_stride<D>;
    const long N = in.q.rows, H = in.q.cols / D, heads = in.k.cols / D, kv_head = blockIdx.x % heads, at = kv_head * D;
    const long k0 = blockIdx.x / heads * K, count = N - k0 < K ? N - k0 : K;
    const int row = threadIdx.x / 32 * 16 * strips, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int first = int(k0) + row, last = first + 16 * strips - 1, reach = int(in.reach());   // this warp's keys
    bf16 *k = shared_memory<bf16>(), *v = k + K * stride, *tiles = v + K * stride;   // then two times q and dout
    float* const numbers = reinterpret_cast<float*>(k + Tile::elements);   // two times lse, delta, position of Q rows
    const long beyond = k0 + count - 1 + reach, end = document_end(in.documents, k0 + count - 1);
    const long stop = beyond < end ? beyond : end;
    const int across = int(stop - k0 + Q - 1) / Q, steps = int(H / heads) * across;   // tiles of a head, and of all
    const auto copy_queries = [&](int step) {
        const long h = kv_head * (H / heads) + step / across, q0 = k0 + step % across * Q;
        bf16* const to = tiles + step % 2 * (2 * Q * stride);
        float* const row_of = numbers + step % 2 * (3 * Q);
        copy_rows<D, Q>(to, {in.q.data + q0 * in.q.stride + h * D, in.q.stride, stop - q0, D});
        copy_rows<D, Q>(to + Q * stride, {b.dout.data + q0 * b.dout.stride + h * D, b.dout.stride, stop - q0, D});
        for (int r = threadIdx.x; r < Q; r += blockDim.x) {
            const bool there = q0 + r < stop;          // else it is at position 0, and sees no key of ours
            const long n = there ? q0 + r : q0;
            copy_async<4>(row_of + r, b.lse + n * H + h, there);
            copy_async<4>(row_of + Q + r, b.delta + n * H + h, there);
            copy_async<4>(row_of + 2 * Q + r, in.positions.data + n, there);
        }
    };
    float dk[strips][D / 8][4] = {}, dv[strips][D / 8][4] = {};

    copy_rows<D, K>(k, {in.k.data + k0 * in.k.stride + at, in.k.stride, count, D});
    copy_rows<D, K>(v, {in.v.data + k0 * in.v.stride + at, in.v.stride, count, D});
    copy_queries(0);
    commit_copies();
    for (int step = 0; step < steps; ++step) {
        await_tile();
        if (step + 1 < steps) copy_queries(step + 1);
        commit_copies();
        const int q0 = int(k0) + step % across * Q;
        const bf16 *q = tiles + step % 2 * (2 * Q * stride), *dout = q + Q * stride;
        const float *lse = numbers + step % 2 * (3 * Q), *delta = lse + Q;
        const int* const position = reinterpret_cast<const int*>(delta + Q);
        const auto first_key = [&](int c) { return q0 + c - (position[c] < reach - 1 ? position[c] : reach - 1); };
        if (q0 + Q <= first || first_key(0) > last) continue;
        const bool whole = q0 >= last && first_key(Q - 1) <= first;   // every query sees every key
        float p[strips][Q / 8][4], ds[strips][Q / 8][4];
        multiply_rows<D, strips, Q>(p, k + row * stride, q);
        multiply_rows<D, strips, Q>(ds, v + row * stride, dout);
        BT_UNROLL
        for (int j = 0; j < Q / 8; ++j)
            BT_UNROLL
            for (int odd = 0; odd < 2; ++odd) {
                const int c = 8 * j + 2 * t + odd;
                // A row of dout that is not finite arrives through p, like one of q, whose lse is not a number already.
                const float shift = (is_finite(delta[c]) ? lse[c] : NAN) * log2_e;
                BT_UNROLL
                for (int i = 0; i < 2 * strips; ++i) {
                    const int e = i % 2 * 2 + odd, key = first + 8 * i + g;
                    float &pe = p[i / 2][j][e], &dse = ds[i / 2][j][e];
                    pe = fast_exp2(pe * (in.scale * log2_e) - shift);
                    if (!whole && (key < first_key(c) || key > q0 + c)) pe = 0;
                    dse = score_gradient(pe, dse, delta[c]);
                }
            }
        add_product<D, strips, Q>(dv, p, dout, !whole);
        add_product<D, strips, Q>(dk, ds, q, !whole);
    }
    BT_UNROLL
    for (int i = 0; i < strips * D / 2; ++i) dk[i / (D / 2)][i % (D / 2) / 4][i % 4] *= in.scale;
    const AttentionGrad<bf16>& to = b.g;
    store_rows<D, strips>(k + row * stride, dk, to.dk.data + first * to.dk.stride + at, to.dk.stride, count - row);
    store_rows<D, strips>(v + row * stride, dv, to.dv.data + first * to.dv.stride + at, to.dv.stride, count - row);
}

// sum of a[d] b[d] over a head's columns, by the four lanes of a row.
template <long D> __device__ float row_product(const bf16* a, const bf16* b) {
    float sum = 0;
    BT_UNROLL
    for (int d = threadIdx.x % 4 * 8; d < D; d += 32) {
        const Pack<bf16, 8> x = fetch<8>(a + d), y = fetch<8>(b + d);
        BT_UNROLL
        for (int i = 0; i < 8; ++i) sum += float(x.of[i]) * float(y.of[i]);
    }
    return quad_sum(sum);
}

// delta, for the keys' kernel too, and dq. One block a tile of queries of one head; the keys that they see pass by.
// Bytes: keys and values come again, from L2, for each tile of queries.
template <long D>
__global__ void __launch_bounds__(mma_threads)
attention_mma_queries_kernel(AttentionBackward<bf16> b, View<const bf16> out, AttentionInput<bf16> in) {
    using Tile = MmaQueries<D>;
    constexpr int strips = Tile::strips, Q = Tile::own, K = Tile::passing;
    constexpr long stride = mma_stride<D>;
    const long N = in.q.rows, H = in.q.cols / D, h = blockIdx.x % H, n0 = (gridDim.x / H - 1 - blockIdx.x / H) * Q;
    const long at = h / (in.q.cols / in.k.cols) * D, start = in.first_key(n0), count = N - n0 < Q ? N - n0 : Q;
    const long end = n0 + count;
    const int row = threadIdx.x / 32 * 16 * strips, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    bf16 *q = shared_memory<bf16>(), *dout = q + Q * stride, *tiles = dout + Q * stride;   // then two times k and v
    const Seen<strips> seen(in, n0 + row, count - row);
    const auto tile_of = [&](long k0) { return tiles + (k0 - start) / K % 2 * (2 * K * stride); };
    const auto copy_keys = [&](long k0) { copy_keys_and_values<D, K>(tile_of(k0), in, k0, end, at); };
    float dq[strips][D / 8][4] = {}, shift[strips][2], delta[strips][2];

    copy_rows<D, Q>(q, {in.q.data + n0 * in.q.stride + h * D, in.q.stride, count, D});
    copy_rows<D, Q>(dout, {b.dout.data + n0 * b.dout.stride + h * D, b.dout.stride, count, D});
    copy_keys(start);
    commit_copies();
    BT_UNROLL
    for (int i = 0; i < 2 * strips; ++i) {
        const long r = row + 8 * i + g, n = n0 + (r < count ? r : 0);
        const float dot = row_product<D>(b.dout.data + n * b.dout.stride + h * D, out.data + n * out.stride + h * D);
        shift[i / 2][i % 2] = b.lse[n * H + h] * log2_e, delta[i / 2][i % 2] = dot;
        if (t == 0 && r < count) b.delta[n * H + h] = dot;
    }
    for (long k0 = start; k0 < end; k0 += K) {
        await_tile();
        if (k0 + K < end) copy_keys(k0 + K);
        commit_copies();
        if (seen.none(k0, K)) continue;
        const bf16 *keys = tile_of(k0), *values = keys + K * stride;
        const bool whole = seen.whole(k0, K);
        float p[strips][K / 8][4], ds[strips][K / 8][4];
        multiply_rows<D, strips, K>(p, q + row * stride, keys);
        multiply_rows<D, strips, K>(ds, dout + row * stride, values);
        BT_UNROLL
        for (int i = 0; i < strips; ++i)
            BT_UNROLL
            for (int x = 0; x < K / 2; ++x)
                p[i][x / 4][x % 4] = fast_exp2(p[i][x / 4][x % 4] * (in.scale * log2_e) - shift[i][x % 4 / 2]);
        if (!whole) mask<strips, K>(p, seen, int(k0), 0);
        BT_UNROLL
        for (int i = 0; i < strips; ++i)
            BT_UNROLL
            for (int x = 0; x < K / 2; ++x)
                ds[i][x / 4][x % 4] = score_gradient(p[i][x / 4][x % 4], ds[i][x / 4][x % 4], delta[i][x % 4 / 2]);
        add_product<D, strips, K>(dq, ds, keys, !whole);
    }
    BT_UNROLL
    for (int i = 0; i < strips * D / 2; ++i) dq[i / (D / 2)][i % (D / 2) / 4][i % 4] *= in.scale;
    const View<bf16>& to = b.g.dq;
    store_rows<D, strips>(q + row * stride, dq, to.data + (n0 + row) * to.stride + h * D, to.stride, count - row);
}

// Calls f with D as a type.
template <class F> void with_head_size(long D, F f) {
    if (D == 64) f(std::integral_constant<long, 64>());
    else if (D == 96) f(std::integral_constant<long, 96>());
    else f(std::integral_constant<long, 128>());
}

inline void attention_mma_forward(Device& d, View<bf16> out, View<float> lse, const AttentionInput<bf16>& in) {
    with_head_size(in.head_dim, [&](auto D) {
        using Tile = MmaForward<D()>;
        static_assert(Tile::bytes <= 99 << 10);
        const long blocks = (in.q.rows + Tile::Q - 1) / Tile::Q * (in.q.cols / D());
        Grid grid = Grid(blocks, mma_threads, Tile::bytes).moves(out, lse, in.q, in.k, in.v);
        grid.work.flops = 2 * 2 * in.products();
        launch(d, grid, attention_mma_forward_kernel<D()>, out, lse.data, in);
    });
}

// Of the seven products two are made again: five are counted.
inline void attention_mma_backward(Device& d, const AttentionBackward<bf16>& b, View<const bf16> out,
                                   const AttentionInput<bf16>& in) {
    with_head_size(in.head_dim, [&](auto D) {
        using Q = MmaQueries<D()>;
        using K = MmaKeys<D()>;
        static_assert(Q::bytes <= 99 << 10 && K::bytes <= 99 << 10);
        const long N = in.q.rows, heads = in.q.cols / D(), kv_heads = in.k.cols / D();
        Grid queries((N + Q::own - 1) / Q::own * heads, mma_threads, Q::bytes);
        Grid keys((N + K::own - 1) / K::own * kv_heads, mma_threads, K::bytes);
        queries = queries.moves(b.g.dq, b.dout, out, in.q, in.k, in.v);
        keys = keys.moves(b.g.dk, b.g.dv, b.dout, in.q, in.k, in.v);
        queries.work.flops = 3 * 2 * in.products(), keys.work.flops = 2 * 2 * in.products();
        launch(d, queries, attention_mma_queries_kernel<D()>, b, out, in);
        launch(d, keys, attention_mma_keys_kernel<D()>, b, in);
    });
}

#endif

}  // namespace baretrain
