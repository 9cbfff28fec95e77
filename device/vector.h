// vector.h - n neighbouring numbers as one value: a CPU's vector register; a thread of a bigger block has one number.
// Copy with: nothing
#pragma once
#include <cstddef>
#include <utility>

namespace baretrain {

#if defined(__CUDACC__) || defined(BT_SIMT)
inline constexpr long vector_bytes = 0, vector_registers = 0;
template <class R, long> struct VectorOf { using type = R; };
#else
#if defined(__AVX512F__)
inline constexpr long vector_bytes = 64, vector_registers = 32;
#elif defined(__AVX__)
inline constexpr long vector_bytes = 32, vector_registers = 16;
#elif defined(__aarch64__)
inline constexpr long vector_bytes = 16, vector_registers = 32;
#else
inline constexpr long vector_bytes = 16, vector_registers = 16;
#endif
template <class R, long n> struct VectorOf { typedef R type __attribute__((vector_size(n * sizeof(R)))); };
#endif
template <class R, long n> using Vector = typename VectorOf<R, n>::type;
template <class R> inline constexpr long vector_lanes = vector_bytes ? vector_bytes / long(sizeof(R)) : 1;

#if !defined(__CUDACC__) && !defined(BT_SIMT)
#if defined(__clang__)
#define BT_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define BT_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype(a < b){__VA_ARGS__})
#endif
// Rows become columns. Taking lanes of a row of the upper half and of one of the lower half by turns moves each bit of
// a row's number one place up, the top one into the lane's: after log2(n) times row and lane have changed places.
template <class R, long n, std::size_t... i> void transpose(Vector<R, n> (&rows)[n], std::index_sequence<i...>) {
    for (long done = 1; done < n; done *= 2) {
        Vector<R, n> next[n];
        for (long r = 0; r < n / 2; ++r) {
            next[2 * r] = BT_SHUFFLE(rows[r], rows[r + n / 2], (i % 2 * n + i / 2)...);
            next[2 * r + 1] = BT_SHUFFLE(rows[r], rows[r + n / 2], (i % 2 * n + i / 2 + n / 2)...);
        }
        for (long r = 0; r < n; ++r) rows[r] = next[r];
    }
}
#endif

}  // namespace baretrain
