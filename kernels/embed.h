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

// Of a table of embeddings (rows, C): those of the ids from `first` on.
template <class T> struct IdRows { T* w; long rows, first; };

// Bytes: rows of wpe come again, from L2, for each sequence.
template <class T>
__global__ void embed_forward_kernel(T* x, const int* tokens, IdRows<const T> wte, const int* positions,
                                     const T* wpe, long C) {
    using R = Real<T>;
    const long row = long(tokens[blockIdx.x]) - wte.first;
    const bool here = row >= 0 && row < wte.rows;
    const T *const token = wte.w + row * C, *const position = wpe ? wpe + long(positions[blockIdx.x]) * C : nullptr;
    x += blockIdx.x * C;
    if (here && position) for_each_element(C, [](T& xc, T t, T p) { xc = T(R(t) + R(p)); }, out(x), token, position);
    else if (here || position) for_each_element(C, [](T& xc, T v) { xc = v; }, out(x), here ? token : position);
    else for_each_element(C, [](T& xc) { xc = T(R(0)); }, out(x));
}

template <class T>
__global__ void embed_backward_kernel(IdRows<Real<T>> g, const T* dx, const int* rows, const int* starts,
                                      const int* keys, long C) {
    const long begin = starts[blockIdx.x], end = starts[blockIdx.x + 1], key = long(keys[blockIdx.x]) - g.first;
    if (key < 0 || key >= g.rows) return;
    constexpr long width = pack_width<const T*>;
    const bool packed = in_packs(dx, C) && in_packs(g.w, C) && C % width == 0;
    sum_columns<width>({g.w + key * C}, C, packed, Write::add, [=](auto&& add) {
        for (long i = begin; i < end; ++i) add([](Real<T>& sum, T v) { sum += Real<T>(v); }, dx + long(rows[i]) * C);
    });
}

// x: (N, C), overwritten. tokens, positions: (1, N), checked by whoever made them. wte: (V, C), or the ids from `first`
// on. wpe empty: no learned positions.
template <class T>
void embed_forward(Device& d, View<T> x, View<const int> tokens, View<const T> wte, View<const int> positions,
                   View<const T> wpe, long first = 0) {
    require_equal(wte.cols, x.cols, "embed: channels of wte and x");
    require(wpe.empty() || wpe.cols == x.cols, "embed: as many channels in wpe as in x");
    require_equal(tokens.cols, x.rows, "embed: one token a row");
    launch(d, Grid::rows<T>(x.rows, x.cols).moves(x, x, wpe), embed_forward_kernel<T>, x.data, tokens.data,
           IdRows<const T>{wte.data, wte.rows, first}, positions.data, wpe.data, x.cols);
}

// dw (V or T, C, or rows of it from `first` on) is added to. dx: (N, C). runs: the rows of dx by token (for wte) or by
// position (for wpe).
template <class T>
void embed_backward(Device& d, View<Real<T>> dw, View<const T> dx, const RunViews& runs, long first = 0) {
    require_equal(dw.cols, dx.cols, "embed: channels of dw and dx");
    require(dw.dense() && dx.dense(), "embed: rows without gaps");
    const View<Real<T>> rows(dw.data, runs.keys.cols, dw.cols);
    launch(d, Grid::rows<T>(rows.rows, rows.cols).moves(dx, rows, rows), embed_backward_kernel<T>,
           IdRows<Real<T>>{dw.data, dw.rows, first}, dx.data, runs.rows.data, runs.starts.data, runs.keys.data,
           dx.cols);
}

}  // namespace baretrain
