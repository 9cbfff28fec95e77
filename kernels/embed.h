// embed.h - token and position embedding: x[n] = wte[token[n]] + wpe[position[n]], and its gradient.
// Copy with: device.h and what it names
// The gradient of a row of wte is the sum over the places where its token stands. The host lists those places token by
// token (Runs); a block owns one token and adds in the order of the rows: no atomics, the same bits every time.
#pragma once
#include "device.h"
#include <vector>

namespace baretrain {

// Rows 0 .. N-1 grouped by key: run r is rows[starts[r]] .. rows[starts[r+1] - 1], all with key keys[r], ascending.
struct Runs {
    std::vector<int> rows, starts, keys;
    Runs() = default;
    Runs(const std::vector<int>& key_of_row, long num_keys) : rows(key_of_row.size()) {
        std::vector<int> place(size_t(num_keys) + 1, 0);
        for (int k : key_of_row) ++place[size_t(k) + 1];
        for (long k = 0; k < num_keys; ++k) {
            if (place[size_t(k) + 1]) starts.push_back(place[size_t(k)]), keys.push_back(int(k));
            place[size_t(k) + 1] += place[size_t(k)];
        }
        starts.push_back(int(key_of_row.size()));
        for (size_t n = 0; n < key_of_row.size(); ++n) rows[size_t(place[size_t(key_of_row[n])]++)] = int(n);
    }
};
struct RunViews { View<const int> rows, starts, keys; };   // the same on the device; starts: (1, runs + 1)

template <class T>
__global__ void embed_forward_kernel(T* x, const int* tokens, const T* wte, const int* positions, const T* wpe,
                                     long C) {
    using R = Real<T>;
    const T* const token = wte + long(tokens[blockIdx.x]) * C;
    x += blockIdx.x * C;
    if (!wpe) {
        for (long c = threadIdx.x; c < C; c += blockDim.x) x[c] = token[c];
        return;
    }
    const T* const position = wpe + long(positions[blockIdx.x]) * C;
    for (long c = threadIdx.x; c < C; c += blockDim.x) x[c] = T(R(token[c]) + R(position[c]));
}

template <class T>
__global__ void embed_backward_kernel(Real<T>* dw, const T* dx, const int* rows, const int* starts, const int* keys,
                                      long C) {
    const long begin = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    dw += long(keys[blockIdx.x]) * C;
    for (long i = begin; i < end; ++i) {
        const T* const row = dx + long(rows[i]) * C;
        for (long c = threadIdx.x; c < C; c += blockDim.x) dw[c] += Real<T>(row[c]);
    }
}

// x: (N, C), overwritten. tokens, positions: (1, N), checked by whoever made them. wpe empty: no learned positions.
template <class T>
void embed_forward(Device& d, View<T> x, View<const int> tokens, View<const T> wte, View<const int> positions,
                   View<const T> wpe) {
    require_equal(wte.cols, x.cols, "embed: channels of wte and x");
    require(wpe.empty() || wpe.cols == x.cols, "embed: as many channels in wpe as in x");
    require_equal(tokens.cols, x.rows, "embed: one token a row");
    launch(d, Grid(x.rows).moves(x, x), embed_forward_kernel<T>, x.data, tokens.data, wte.data, positions.data,
           wpe.data, x.cols);
}

// dw (V or T, C) is added to. dx: (N, C). runs: the rows of dx by token (for wte) or by position (for wpe).
template <class T> void embed_backward(Device& d, View<Real<T>> dw, View<const T> dx, const RunViews& runs) {
    require_equal(dw.cols, dx.cols, "embed: channels of dw and dx");
    require(dw.dense() && dx.dense(), "embed: rows without gaps");
    launch(d, Grid(runs.keys.cols).moves(dx, dx), embed_backward_kernel<T>, dw.data, dx.data, runs.rows.data,
           runs.starts.data, runs.keys.data, dx.cols);
}

}  // namespace baretrain
