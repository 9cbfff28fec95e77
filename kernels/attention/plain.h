// plain.h - attention as ordinary kernels: every type, head size and stride, on every device.
// Copy with: kernels/attention/input.h, kernels/tile.h, device.h and what they name
// The lanes of a tile product are queries in the forward pass, keys in the backward pass: so the maximum, the sum and
// the rescaling of a row need no reduction across threads or vector lanes.
#pragma once
#include "kernels/attention/input.h"
#include "kernels/tile.h"

namespace baretrain {

// Tiles: rows and columns of what one block has in its fast memory.
inline constexpr bool attention_one_thread = max_threads == 1;
inline constexpr long attention_keys = attention_one_thread ? 64 : 32;
inline constexpr long attention_queries = attention_one_thread ? 64 : 32, attention_few_queries = 8;
inline constexpr long attention_backward_queries = attention_one_thread ? 64 : 8;     // D = 128 fits in 99 KB of a GPU
inline constexpr long attention_max_head = 256;

// Rows of a tile are padded with zeros to whole patches of tile_product.
template <class R> BT_HD constexpr long attention_padded(long D) {
    constexpr long unit = tile_cols<R> > tile_rows ? tile_cols<R> : tile_rows;
    return (D + unit - 1) / unit * unit;
}

template <class R> constexpr size_t attention_forward_bytes(long Q, long D) {
    const long K = attention_keys, P = attention_padded<R>(D);
    return size_t(2 * Q * P + K * P + K * Q + 3 * Q) * sizeof(R) + size_t(2 * Q) * sizeof(int);
}

// Scores s of a tile, a column a query, become exp(s - top). top and sum: of all tiles so far; rescale: by how much
// what has been summed up before must shrink, since the maximum has grown (Milakov, Gimelshein 2018). Of column c there
// are made(c) scores.
template <long Q, long cols, class R, class Made>
__device__ void online_softmax(R* s, R* top, R* sum, R* rescale, Made made) {
    for (long c = threadIdx.x * cols; c < Q; c += blockDim.x * cols) {
        R before[cols], now[cols];
        for (long l = 0; l < cols; ++l) before[l] = now[l] = top[c + l];
        for (long r = 0; r < made(c); ++r)
            for (long l = 0; l < cols; ++l) now[l] = s[r * Q + c + l] > now[l] ? s[r * Q + c + l] : now[l];
        for (long l = 0; l < cols; ++l) top[c + l] = now[l], rescale[c + l] = fast_exp(before[l] - now[l]);
    }
    __syncthreads();
    for (long i = threadIdx.x; i < attention_keys * (Q / cols); i += blockDim.x) {
        const long r = i / (Q / cols), c = i % (Q / cols) * cols;
        if (r < made(c))
            for (long l = c; l < c + cols; ++l) s[r * Q + l] = fast_exp(s[r * Q + l] - top[l]);
    }
    __syncthreads();
    for (long c = threadIdx.x * cols; c < Q; c += blockDim.x * cols) {
        R now[cols];
        for (long l = 0; l < cols; ++l) now[l] = sum[c + l] * rescale[c + l];
        for (long r = 0; r < made(c); ++r)
            for (long l = 0; l < cols; ++l) now[l] += s[r * Q + c + l];
        for (long l = 0; l < cols; ++l) sum[c + l] = now[l];
    }
}

// One block a tile of Q queries of one head. A masked score is -infinity, which exp turns into exactly 0.
// Blocks: a single new token has no more tiles than heads.
// Bytes: keys and values come again, from L2, for each tile of queries.
// Width: arithmetic takes longer: these are the types and head sizes that tensor cores do not take.
template <class T, long Q>
__global__ void attention_forward_kernel(View<T> out, Real<T>* lse, AttentionInput<T> in) {
    using R = Real<T>;
    constexpr long K = attention_keys, cols = Q < tile_cols<R> ? Q : tile_cols<R>;
    constexpr long patch = cols > tile_rows ? cols : tile_rows;
    const long D = in.head_dim, P = attention_padded<R>(D), H = in.q.cols / D, N = in.q.rows, tiles = (N + Q - 1) / Q;
    const long h = blockIdx.x / tiles, kv_head = h / (in.q.cols / in.k.cols), n0 = blockIdx.x % tiles * Q;
    const long count = N - n0 < Q ? N - n0 : Q, own0 = in.k.rows - N + n0, end = own0 + count;
    R *qt = shared_memory<R>(), *kv = qt + P * Q, *s = kv + K * P, *o = s + K * Q;
    R *top = o + P * Q, *sum = top + Q, *rescale = sum + Q;
    int* first = reinterpret_cast<int*>(rescale + Q);  // key rows first .. own are seen by a query
    int* own = first + Q;

    stage_columns(qt, TileRows<T>{in.q.data + n0 * in.q.stride + h * D, in.q.stride, count, D}, Q, D, in.scale);
    for (long i = threadIdx.x; i < P * Q; i += blockDim.x) o[i] = R(0);
    for (long l = threadIdx.x; l < Q; l += blockDim.x) {
        top[l] = lowest<R>, sum[l] = R(0);
        own[l] = l < count ? int(own0 + l) : -1;
        const long back = l < count ? in.positions.data[n0 + l] : 0;
        first[l] = l < count ? int(own0 + l - (back < in.reach() ? back : in.reach() - 1)) : 0;
    }
    __syncthreads();
    for (long k0 = first[0]; k0 < end; k0 += K) {
        const long at = kv_head * D, left = end - k0;
        const TileRows<T> keys{in.k.data + k0 * in.k.stride + at, in.k.stride, left, D};
        const TileRows<T> values{in.v.data + k0 * in.v.stride + at, in.v.stride, left, D};
        // So many of these keys does one of n queries see, the c-th among them. Scores behind them are never read.
        const auto visible = [&](long c, long n) {
            const long last = own0 + c / n * n + n - k0;
            return last < K ? last : K;
        };
        const auto made = [&](long c) { return visible(c, patch); };
        stage_rows<Keep::all>(kv, keys, K, P, R(1));
        __syncthreads();
        tile_product<cols>(TileA<R>{kv, P, 1}, TileB<R>{qt, Q, Q}, K,
            [&](long r, long c) { return Span{0, r < made(c) ? D : 0}; },
            [&](long r, long c, const R* x) {
                const int key = int(k0 + r);
                for (long l = 0; l < cols; ++l)
                    s[r * Q + c + l] = key >= first[c + l] && key <= own[c + l] ? x[l] : R(-INFINITY);
            });
        __syncthreads();
        const bool wild = block_max(float(stage_rows<Keep::finite>(kv, values, K, P, R(1)))) > 0.f;
        online_softmax<Q, cols>(s, top, sum, rescale, made);
        tile_product<tile_cols<R>>(TileA<R>{s, 1, Q}, TileB<R>{kv, P, P}, count,
            [&](long r, long) { return Span{0, visible(r, tile_rows)}; },
            [&](long r, long c, const R* x) {
                for (long l = 0; l < tile_cols<R>; ++l) o[r * P + c + l] = o[r * P + c + l] * rescale[r] + x[l];
            });
        __syncthreads();
        if (wild)                                      // values that are not finite: only to the queries that see them
            for (long i = threadIdx.x; i < count * D; i += blockDim.x)
                for (long r = 0; r < K && r < left; ++r) {
                    const R value = R(values.data[r * values.stride + i % D]);
                    const bool seen = k0 + r >= first[i / D] && k0 + r <= own[i / D];
                    if (seen && !is_finite(value)) o[i / D * P + i % D] += s[r * Q + i / D] * value;
                }
        __syncthreads();
    }
    for (long r = threadIdx.x / warpSize; r < count; r += blockDim.x / warpSize) {
        T* const to = out.data + (n0 + r) * out.stride + h * D;
        for (long d = threadIdx.x % warpSize; d < D; d += warpSize) to[d] = T(o[r * P + d] / sum[r]);
    }
    for (long r = threadIdx.x; r < count; r += blockDim.x) lse[(n0 + r) * H + h] = top[r] + log(sum[r]);
}

template <class R> constexpr size_t attention_backward_bytes(long D) {
    const long Q = attention_backward_queries, K = attention_keys, P = attention_padded<R>(D);
    return size_t(5 * K * P + 2 * Q * P + 2 * Q * K + 2 * Q) * sizeof(R);
}

// One block a document and KV head: a tile of keys at a time, all queries after it, five products a pair of tiles.
// dk and dv of the tile stay in shared memory; dq is added up in `sums` and leaves it with its last tile of keys.
// Blocks: dq is summed up over tiles of keys in one order; tensor cores have a kernel for it (mma.h).
// Bytes: queries, and dq so far, come again for each tile of keys.
// Width: as in the forward pass.
template <class T> __global__ void attention_backward_kernel(AttentionBackward<T> b, AttentionInput<T> in) {
    using R = Real<T>;
    constexpr long Q = attention_backward_queries, K = attention_keys, cols = tile_cols<R>;
    const long D = in.head_dim, P = attention_padded<R>(D), H = in.q.cols / D, group = in.q.cols / in.k.cols;
    const long N = in.q.rows, docs = in.documents.cols - 1, kv_head = blockIdx.x / docs, at = kv_head * D;
    const long begin = in.documents.data[blockIdx.x % docs], end = in.documents.data[blockIdx.x % docs + 1];
    const int reach = int(in.reach());
    R *kt = shared_memory<R>(), *vt = kt + K * P, *k = vt + K * P, *dk = k + K * P, *dv = dk + K * P;
    R *q = dv + K * P, *dout = q + Q * P, *p = dout + Q * P, *ds = p + Q * K, *lse = ds + Q * K, *delta = lse + Q;

    for (long k0 = begin; k0 < end; k0 += K) {
        const TileRows<T> keys{in.k.data + k0 * in.k.stride + at, in.k.stride, end - k0, D};
        stage_columns(kt, keys, K, D, R(1));
        stage_rows<Keep::finite>(k, keys, K, P, R(1));
        stage_columns(vt, TileRows<T>{in.v.data + k0 * in.v.stride + at, in.v.stride, end - k0, D}, K, D, R(1));
        for (long i = threadIdx.x; i < K * P; i += blockDim.x) dk[i] = dv[i] = R(0);
        const long beyond = k0 + K - 1 + reach, stop = beyond < end ? beyond : end;   // no query from here sees a key
        for (long h = kv_head * group; h < (kv_head + 1) * group; ++h)
            for (long q0 = k0; q0 < stop; q0 += Q) {
                const long count = end - q0 < Q ? end - q0 : Q;
                // A row that is not finite must not reach keys that it does not see through 0 * NaN: so it is staged
                // as 0 and arrives through its lse, which is NaN then (of q: already; of dout: set here).
                const TileRows<T> rows{in.q.data + q0 * in.q.stride + h * D, in.q.stride, count, D};
                const TileRows<T> drows{b.dout.data + q0 * b.dout.stride + h * D, b.dout.stride, count, D};
                stage_rows<Keep::finite>(q, rows, Q, P, in.scale);
                stage_rows<Keep::finite>(dout, drows, Q, P, R(1));
                for (long r = threadIdx.x; r < count; r += blockDim.x) {
                    delta[r] = b.delta[(q0 + r) * H + h];
                    lse[r] = is_finite(delta[r]) ? b.lse[(q0 + r) * H + h] : R(NAN);
                }
                __syncthreads();
                const auto visible = [&](long r, long c) { return Span{0, k0 + c < q0 + r + tile_rows ? D : 0}; };
                tile_product<cols>(TileA<R>{q, P, 1}, TileB<R>{kt, K, K}, Q, visible, [&](long r, long c, const R* x) {
                    const int last = r < count ? int(q0 + r - k0 - c) : -1;
                    const R shift = r < count ? lse[r] : R(0);
                    for (int l = 0; l < cols; ++l)
                        p[r * K + c + l] = l <= last && last - l < reach ? fast_exp(x[l] - shift) : R(0);
                });
                tile_product<cols>(TileA<R>{dout, P, 1}, TileB<R>{vt, K, K}, Q, visible, [&](long r, long c, auto x) {
                    const int last = r < count ? int(q0 + r - k0 - c) : -1;
                    const R shift = r < count ? delta[r] : R(0);
                    for (int l = 0; l < cols; ++l)
                        ds[r * K + c + l] = l <= last && last - l < reach ? p[r * K + c + l] * (x[l] - shift) : R(0);
                });
                __syncthreads();
                const auto seers = [&](long r, long) { return Span{k0 + r > q0 ? k0 + r - q0 : 0, count}; };
                tile_product<cols>(TileA<R>{p, 1, K}, TileB<R>{dout, P, P}, K, seers, [&](long r, long c, auto x) {
                    for (long l = 0; l < cols; ++l) dv[r * P + c + l] += x[l];
                });
                tile_product<cols>(TileA<R>{ds, 1, K}, TileB<R>{q, P, P}, K, seers, [&](long r, long c, auto x) {
                    for (long l = 0; l < cols; ++l) dk[r * P + c + l] += x[l];
                });
                const bool fresh = k0 == begin || q0 >= k0 + reach - 1, complete = k0 + K >= q0 + count;
                tile_product<cols>(TileA<R>{ds, K, 1}, TileB<R>{k, P, P}, count,
                    [&](long r, long) { return Span{0, q0 + r + tile_rows < k0 + K ? q0 + r + tile_rows - k0 : K}; },
                    [&](long r, long c, R* x) {
                        if (r >= count) return;
                        R* const sums = b.sums + (h * N + q0 + r) * D + c;
                        T* const dq = b.g.dq.data + (q0 + r) * b.g.dq.stride + h * D + c;
                        const long n = D - c < cols ? D - c : cols;
                        if (!fresh) for (long l = 0; l < n; ++l) x[l] += sums[l];
                        if (complete) for (long l = 0; l < n; ++l) dq[l] = T(in.scale * x[l]);
                        else for (long l = 0; l < n; ++l) sums[l] = x[l];
                    });
                __syncthreads();
            }
        const long left = end - k0 < K ? end - k0 : K;
        for (long r = threadIdx.x / warpSize; r < left; r += blockDim.x / warpSize)
            for (long d = threadIdx.x % warpSize; d < D; d += warpSize) {
                b.g.dk.data[(k0 + r) * b.g.dk.stride + at + d] = T(dk[r * P + d]);
                b.g.dv.data[(k0 + r) * b.g.dv.stride + at + d] = T(dv[r * P + d]);
            }
        __syncthreads();
    }
}

}  // namespace baretrain
