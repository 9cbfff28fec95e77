// quantize.h - E4M3, E5M2, E2M1 and E8M0: small numbers, encoded and decoded bit by bit, on host and device.
// Copy with: device/types.h
//        sign  exponent  mantissa  bias  largest  smallest   infinity     NaN
//   E4M3  1       4         3        7     448      2^-9      none        S.1111.111
//   E5M2  1       5         2       15   57344      2^-16     S.11111.00  S.11111.01 to S.11111.11
//   E2M1  1       2         1        1       6      1/2       none        none: encoded as the largest
//   E8M0  0       8         0      127   2^127      2^-127    none        255; there is no 0
// (OCP 8-bit Floating Point 2023; OCP Microscaling Formats 2023.) Encoding saturates: what is beyond the largest, an
// infinity too, becomes the largest with its sign; a NaN becomes the NaN without sign. Zeros keep their sign. The codes
// are those of cvt.rn.satfinite.
#pragma once
#include "device/types.h"
#include <cmath>

namespace baretrain {

struct E4m3 {
    static constexpr int exponent = 4, mantissa = 3, bias = 7, largest = 0x7E, inf = -1, nan = 0x7F;
    static constexpr float most = 448;                 // what `largest` stands for
};
struct E5m2 {
    static constexpr int exponent = 5, mantissa = 2, bias = 15, largest = 0x7B, inf = 0x7C, nan = 0x7F;
    static constexpr float most = 57344;
};
struct E2m1 {
    static constexpr int exponent = 2, mantissa = 1, bias = 1, largest = 0x7, inf = -1, nan = 0x7;
    static constexpr float most = 6;
};

BT_HD inline uint32_t bits_of(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
// 2^e of a normal float: -126 <= e <= 127.
BT_HD inline float power_of_two(int e) {
    const uint32_t u = uint32_t(e + 127) << 23;
    float v;
    memcpy(&v, &u, 4);
    return v;
}

template <class F> BT_HD float decode(uint8_t code) {
    constexpr int bits = F::exponent + F::mantissa;
    const int size = code & ((1 << bits) - 1), e = size >> F::mantissa, m = size & ((1 << F::mantissa) - 1);
    float v = e ? float((1 << F::mantissa) + m) * power_of_two(e - F::bias - F::mantissa)
                : float(m) * power_of_two(1 - F::bias - F::mantissa);
    if (size > F::largest) v = size == F::inf ? INFINITY : NAN;
    return code >> bits & 1 ? -v : v;
}

// Of |x|, but not below that of the smallest normal number of F.
template <class F> BT_HD int exponent_of(float x) {
    const int e = int(bits_of(x) >> 23 & 255) - 127;
    return e < 1 - F::bias ? 1 - F::bias : e;
}
// |x| as a number of steps, of the width that F has there, and the code that no step would have. A number rounded to
// whole steps is code + steps: where it reaches the next power of two, so does the code.
struct Steps { float count; int code; };
template <class F> BT_HD Steps steps_of(float x) {
    const int exponent = exponent_of<F>(x);
    const float count = fabsf(x) * power_of_two(F::mantissa - exponent), most = float(2 << F::mantissa);
    return {count < most ? count : most, (exponent + F::bias - 1) << F::mantissa};
}
template <class F> BT_HD uint8_t with_sign_of(float x, int size) {
    if (x != x) return uint8_t(F::nan);
    return uint8_t((size < F::largest ? size : F::largest) | int(bits_of(x) >> 31) << (F::exponent + F::mantissa));
}

// To the nearest, ties to the even code.
template <class F> BT_HD uint8_t encode(float x) {
    const Steps s = steps_of<F>(x);
    return with_sign_of<F>(x, x == x ? s.code + int(rintf(s.count)) : 0);
}
// Up or down with the chance that makes the mean x. random: 32 even bits.
template <class F> BT_HD uint8_t encode_stochastic(float x, uint32_t random) {
    const Steps s = steps_of<F>(x);
    const float below = floorf(s.count), chance = float(random >> 8) * power_of_two(-24);
    return with_sign_of<F>(x, x == x ? s.code + int(below) + (chance < s.count - below) : 0);
}

// What to multiply numbers of at most `amax` with, so that they fill the range of F; 1 / scale is finite too.
template <class F> BT_HD float scale_of(float amax) {
    BT_AS_WRITTEN                                      // clang would make x * (most / amax) into x * most / amax
    return F::most / (amax > 1e-12f ? amax : 1e-12f);
}
// decode(encode(x)) without the code between them, which vectors of floats do faster; a NaN stays what it is.
template <class F> BT_HD float nearest(float x) {
    const int exponent = exponent_of<F>(x);
    const float rounded = rintf(fabsf(x) * power_of_two(F::mantissa - exponent)) * power_of_two(exponent - F::mantissa);
    const float size = rounded < F::most ? rounded : F::most;
    return x != x ? x : x < 0 ? -size : size;
}

// ---- powers of two --------------------------------------------------------------------------------------------------
BT_HD inline float decode_e8m0(uint8_t code) {
    const uint32_t u = code == 0 ? 1u << 22 : code == 255 ? 0x7FC00000u : uint32_t(code) << 23;   // 2^-127 is subnormal
    float v;
    memcpy(&v, &u, 4);
    return v;
}
// The largest power of two up to |x|, or the smallest from |x| on; the nearest end where there is none.
BT_HD inline uint8_t encode_e8m0_down(float x) {
    const uint32_t u = bits_of(x) & 0x7FFFFFFF, e = u >> 23;
    return uint8_t(u > 0x7F800000 ? 255 : e < 254 ? e : 254);
}
BT_HD inline uint8_t encode_e8m0_up(float x) {
    const uint32_t u = bits_of(x) & 0x7FFFFFFF, e = u >> 23, rest = u & 0x7FFFFF;
    const uint32_t up = e + (e ? rest > 0 : rest > 1u << 22);
    return uint8_t(u > 0x7F800000 ? 255 : up < 254 ? up : 254);
}

}  // namespace baretrain
