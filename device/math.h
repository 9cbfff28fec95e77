// math.h - exp and tanh that vectorise and let NaN and infinity through, for float and double.
// Copy with: device.h
// g++ calls no vector expf unless finite-math-only is on, which would hide NaN; so CPU builds bring their own exp:
// exp(x) = 2^n * p(r), n = round(x / ln 2), r = x - n ln 2, p of degree 6; relative error below 4e-7 between -87.33 and
// 88.37. Below it is 0, above infinity.
#pragma once

namespace baretrain {

__device__ __forceinline__ double fast_exp(double x) { return ::exp(x); }
__device__ __forceinline__ float fast_exp(float x) {
    if constexpr (on_gpu) return ::expf(x);
    const float above = x < -88.f ? -88.f : x;         // so that n fits into the exponent
    float n = std::nearbyint(above * 1.44269504f);
    n = n < 128.f ? n : 128.f;                         // also what NaN becomes; r stays NaN
    const float r = std::fma(n, 2.12194440e-4f, std::fma(n, -0.693359375f, above));   // fma: sums may be re-associated
    float p = 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.f;
    p = p * r + 1.f;
    const int bits = (int(n) + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return x < -87.33f ? 0.f : p * scale;              // below the smallest normal number
}

// 1 / (1 + exp(-x)): exp overflows to infinity, which gives 0.
template <class V> __device__ __forceinline__ V sigmoid(V x) { return V(1) / (V(1) + fast_exp(-x)); }

__device__ __forceinline__ double fast_tanh(double x) { return ::tanh(x); }
__device__ __forceinline__ float fast_tanh(float x) {
    if constexpr (on_gpu) return ::tanhf(x);
    const float s = x * x;                             // near 0 the quotient below cancels: use the odd series
    const float near = x * (1.f + s * (-0.333333333f + s * (0.133333333f + s * (-0.053968254f + s * 0.021869489f))));
    const float far = 1.f - 2.f / (fast_exp(2.f * x) + 1.f);
    return s < 0.09f ? near : far;
}

}  // namespace baretrain
