// random.h - Philox4x32-10 (Salmon et al. 2011): a random number is a function of (seed, stream, step, element).
// Copy with: device/types.h
// Never of a thread, a rank or a call order: so initialisation, data order and sampling are the same in every layout.
#pragma once
#include "device/types.h"
#include <cmath>

namespace baretrain {

// What a number is for. Each purpose has its own stream, so that adding one changes no other.
enum class Stream : uint32_t { init = 1, shuffle = 2, sample = 3, round = 4, test = 99 };

struct Bits4 { uint32_t v[4]; };

// The bijection itself: ten rounds on a counter of four words and a key of two.
BT_HD inline Bits4 philox4x32(Bits4 counter, uint64_t key) {
    auto [c0, c1, c2, c3] = counter.v;
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53) * c0, b = uint64_t(0xCD9E8D57) * c2;
        c0 = uint32_t(b >> 32) ^ c1 ^ k0;
        c2 = uint32_t(a >> 32) ^ c3 ^ k1;
        c1 = uint32_t(b);
        c3 = uint32_t(a);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return {{c0, c1, c2, c3}};
}
BT_HD inline Bits4 philox(uint64_t seed, Stream stream, uint64_t step, uint64_t element) {
    return philox4x32({{uint32_t(element), uint32_t(element >> 32), uint32_t(step),
                        uint32_t(step >> 32) ^ (uint32_t(stream) << 24)}}, seed);
}

// Uniform in (0, 1), never an end: its logarithm is finite.
BT_HD inline double uniform(uint32_t bits) { return (bits + 0.5) * (1.0 / 4294967296.0); }

// Standard normal number `element` of a stream (Box-Muller).
BT_HD inline double normal(uint64_t seed, Stream stream, uint64_t step, uint64_t element) {
    const Bits4 r = philox(seed, stream, step, element);
    return std::sqrt(-2.0 * std::log(uniform(r.v[0]))) * std::cos(6.283185307179586 * uniform(r.v[1]));
}

}  // namespace baretrain
