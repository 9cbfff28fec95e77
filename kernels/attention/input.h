// input.h - what the kernels of attention are given: queries, keys, values, and who sees whom.
// Copy with: device.h and what it names
#pragma once
#include "device.h"
#include <limits>

namespace baretrain {

template <class T> struct AttentionInput {
    View<const T> q, k, v;                             // (N, H*D), (M, Hkv*D), (M, Hkv*D); rows may have strides
    View<const int> positions;                         // (1, N): of each query in its document, at most own
    View<const int> documents;                         // (1, documents + 1): their first rows, then N
    long head_dim;                                     // D
    Real<T> scale;                                     // usually 1 / sqrt(D)
    long window = 0;                                   // keys that a query sees at most, itself included; 0: all

    BT_HD long reach() const { return window > 0 ? window : k.rows; }
    // The first key row that query n sees; the last is its own, k.rows - q.rows + n. Both never fall as n grows.
    BT_HD long first_key(long n) const {
        const long back = positions.data[n], most = reach() - 1;
        return k.rows - q.rows + n - (back < most ? back : most);
    }
    // Multiplications and additions of one product of all queries and keys that see each other, as if documents were
    // equally long.
    double products() const {
        const double rows = double(k.rows) / double(std::max(1L, documents.cols - 1));
        const double seen = std::min(rows, double(reach()));
        return double(q.count()) * (seen * (seen + 1) / 2 + (rows - seen) * seen) / rows;
    }
};
template <class T> struct AttentionGrad { View<T> dq, dk, dv; };   // shapes like q, k, v; overwritten

// The maximum of no scores: finite, so that it can be subtracted from a masked score, which is -infinity.
template <class R> inline constexpr R lowest = std::numeric_limits<R>::lowest();

// What the backward kernel needs besides the input. sums: (H, N, D), dq so far.
template <class T> struct AttentionBackward {
    AttentionGrad<T> g;
    View<const T> dout;
    const Real<T>* lse;
    Real<T>*delta, *sums;
};

// delta: (N, H). One block a row.
// Threads: one a head: few rows are that short, and tensor cores make delta elsewhere (mma.h).
// Width: a thread reads its own head, sector by sector.
template <class T>
__global__ void attention_delta_kernel(Real<T>* delta, View<const T> dout, View<const T> out, long D) {
    using R = Real<T>;
    const long H = out.cols / D;
    for (long h = threadIdx.x; h < H; h += blockDim.x) {
        const T *a = dout.data + blockIdx.x * dout.stride + h * D, *b = out.data + blockIdx.x * out.stride + h * D;
        R sum = 0;
        for (long d = 0; d < D; ++d) sum += R(a[d]) * R(b[d]);
        delta[blockIdx.x * H + h] = sum;
    }
}

}  // namespace baretrain
