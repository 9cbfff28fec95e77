// rope.h - rotary position embedding (Su et al. 2021), half-split as in Hugging Face's Llama.
// Copy with: device.h and what it names
// Channels i and i + D/2 of a head, as a point in the plane, turn by position * f_i; f_i = theta^(-2i/D), or scaled for
// long contexts. In place on (N, heads * D); the backward pass turns by the opposite angle. The table is made in double
// and stored as Real<T>, so that position 257 differs from 256 whatever the type of the model.
// Width: one element a lane. A warp moves whole sectors, but takes more instructions than with packs.
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
    for (long h = 0; h < heads; ++h) {
        T *a = x + h * D, *b = a + half;
        for (long i = threadIdx.x; i < half; i += blockDim.x) {
            const R u = R(a[i]), v = R(b[i]), c = angles[i], s = sign * angles[half + i];
            a[i] = T(u * c - v * s);
            b[i] = T(v * c + u * s);
        }
    }
}

// x: (N, heads * D), usually the q and k columns of qkv. positions: (1, N), each below the rows of the table (T, D).
template <class T>
void rope(Device& d, View<T> x, View<const int> positions, View<const Real<T>> table, Turn turn) {
    const long D = table.cols;
    require(D > 0 && D % 2 == 0 && x.cols % D == 0, "rope: an even head size that divides the columns");
    require_equal(positions.cols, x.rows, "rope: one position a row");
    launch(d, Grid(x.rows, 32).moves(x, x, table), rope_kernel<T>, x.data, table.data, positions.data, x.cols / D, D,
           x.stride, turn);
}

}  // namespace baretrain
