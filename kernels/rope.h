// rope.h - rotary position embedding (Su et al. 2021), half-split as in Hugging Face's Llama.
// Copy with: device.h and what it names
// Channels i and i + D/2 of a head, as a point in the plane, turn by position * f_i; f_i = theta^(-2i/D), or scaled for
// long contexts. In place on (N, heads * D); the backward pass turns by the opposite angle. The table is made in double
// and stored as Real<T>, so that position 257 differs from 256 whatever the type of the model.
// A pass of its own: it reads and writes q and k once. Attention would turn the keys again for each block of queries
// that loads them, forward and backward; the product has no place for it, and only one family has norms before it.
#pragma once
#include "device.h"
#include <vector>

namespace baretrain {

// (T, D) on the host: row t holds cos(t * f_i), i < D/2, then sin(t * f_i). frequencies: f_i, D/2 of them.
inline std::vector<double> rope_table(long T, const std::vector<double>& frequencies) {
    const size_t half = frequencies.size();
    std::vector<double> table(size_t(T) * 2 * half);
    for (size_t t = 0; t < size_t(T); ++t)
        for (size_t i = 0; i < half; ++i) {
            table[t * 2 * half + i] = std::cos(double(t) * frequencies[i]);
            table[t * 2 * half + half + i] = std::sin(double(t) * frequencies[i]);
        }
    return table;
}

enum class Turn { forward, backward };

// One block a row: all heads of a token share its angles.
// Bytes: angles come again, from L2, for each sequence.
template <class T>
__global__ void rope_kernel(T* x, const Real<T>* table, const int* positions, long heads, long D, long stride,
                            Turn turn) {
    using R = Real<T>;
    const R* const angles = table + long(positions[blockIdx.x]) * D;
    const R sign = turn == Turn::forward ? R(1) : R(-1);
    const long half = D / 2;
    x += blockIdx.x * stride;
    auto turn_point = [=](T& a, T& b, R c, R sine) {
        const R u = R(a), v = R(b), s = sign * sine;
        a = T(u * c - v * s);
        b = T(v * c + u * s);
    };
    constexpr long width = pack_width<T*, const R*>;
    if constexpr (width > 1)
        if (half % width == 0 && in_packs(x, D) && in_packs(angles, D)) {   // a thread has points of any head
            for (long i = threadIdx.x * width; i < heads * half; i += blockDim.x * width) {
                T* const a = x + i / half * D;
                each_of_pack<width>(turn_point, i % half, a, a + half, angles, angles + half);
            }
            return;
        }
    for (long h = 0; h < heads; ++h) {
        T *a = x + h * D, *b = a + half;
        for_each_element(half, turn_point, a, b, angles, angles + half);
    }
}

// x: (N, heads * D), usually the q and k columns of qkv. positions: (1, N), each below the rows of the table (T, D).
template <class T>
void rope(Device& d, View<T> x, View<const int> positions, View<const Real<T>> table, Turn turn) {
    const long D = table.cols;
    require(D > 0 && D % 2 == 0 && x.cols % D == 0, "rope: an even head size that divides the columns");
    require_equal(positions.cols, x.rows, "rope: one position a row");
    const Grid grid = Grid::rows<T>(x.rows, x.cols / 2).moves(x, x, table);
    launch(d, grid, rope_kernel<T>, x.data, table.data, positions.data, x.cols / D, D, x.stride, turn);
}

}  // namespace baretrain
