// types.h - the number types: float, double and bf16, their names, and what each one accumulates in.
// Copy with: nothing
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#define BT_HD __host__ __device__
#else
#define BT_HD
#endif
// First in a function's body: its arithmetic is not re-associated with what stands around it.
#if defined(__clang__)
#define BT_AS_WRITTEN _Pragma("clang fp reassociate(off)")
#else
#define BT_AS_WRITTEN
#endif

namespace baretrain {

// Brain float: the upper half of a float. Arithmetic happens in float; storing rounds to nearest, ties to even.
struct bf16 {
    uint16_t bits = 0;
    bf16() = default;
    BT_HD bf16(float v) {
        uint32_t u;
        memcpy(&u, &v, 4);
        const uint32_t rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16, quiet = (u >> 16) | 0x40;
        bits = uint16_t((u & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);   // a NaN must not round to infinity
    }
    BT_HD operator float() const {
        const uint32_t u = uint32_t(bits) << 16;
        float v;
        memcpy(&v, &u, 4);
        return v;
    }
};
static_assert(sizeof(bf16) == 2 && std::is_trivially_copyable_v<bf16>);

// Statistics, sums, gradients and optimizer state of a tensor of T are kept in Real<T>.
template <class T> using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace baretrain
