// vector.h - n neighbouring numbers as one value: a CPU's vector register; a thread of a bigger block has one number.
// Copy with: nothing
#pragma once
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
// Lanes from, from + 1, ... of a and b by turns.
template <long from, class V, size_t... i> V zip(const V& a, const V& b, std::index_sequence<i...>) {
#if __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, (i % 2 * sizeof...(i) + i / 2 + from)...);
#else
    return V{(i % 2 ? b : a)[i / 2 + from]...};
#endif
}
// Rows become columns. Zipping the upper half of the rows with the lower one moves each bit of a row's number one place
// up, the top one into the lane's: after log2(n) times row and lane have changed places.
template <class R, long n> void transpose(Vector<R, n> (&rows)[n]) {
    constexpr auto lanes = std::make_index_sequence<n>();
    for (long done = 1; done < n; done *= 2) {
        Vector<R, n> next[n];
        for (long i = 0; i < n / 2; ++i) {
            next[2 * i] = zip<0>(rows[i], rows[i + n / 2], lanes);
            next[2 * i + 1] = zip<n / 2>(rows[i], rows[i + n / 2], lanes);
        }
        for (long i = 0; i < n; ++i) rows[i] = next[i];
    }
}
#endif

}  // namespace baretrain
