// quantize_test.cu - kernels/quantize.h: all codes, all bf16 inputs, against tables made another way.
#include "kernels/quantize.h"
#include "test/harness.h"
#include <cmath>
#include <map>

using namespace baretrain;
using namespace baretrain::test;

namespace {

// What the code of a format means, from its text in the standard: sign, exponent, mantissa, in double.
struct Format { int exponent, mantissa, bias; double largest; bool infinite, nan; };
template <class F> constexpr Format format_of = {};
template <> constexpr Format format_of<E4m3> = {4, 3, 7, 448, false, true};
template <> constexpr Format format_of<E5m2> = {5, 2, 15, 57344, true, true};
template <> constexpr Format format_of<E2m1> = {2, 1, 1, 6, false, false};

double meaning(const Format& f, int code) {
    const int bits = f.exponent + f.mantissa, sign = code >> bits & 1;
    const int e = code >> f.mantissa & ((1 << f.exponent) - 1), m = code & ((1 << f.mantissa) - 1);
    const double v = e == 0 ? std::ldexp(m, 1 - f.bias - f.mantissa)
                            : std::ldexp(1 + double(m) / (1 << f.mantissa), e - f.bias);
    if (v > f.largest) return f.infinite && m == 0 ? (sign ? -INFINITY : INFINITY) : NAN;
    return sign ? -v : v;
}

// The finite numbers from 0 up, with their codes: codes grow with them.
std::map<double, int> sizes_of(const Format& f) {
    std::map<double, int> all;
    for (int code = 0; code < 1 << (f.exponent + f.mantissa); ++code)
        if (std::isfinite(meaning(f, code))) all[meaning(f, code)] = code;
    return all;
}

// Of a size, by looking for its two neighbours.
int nearest_code(const std::map<double, int>& sizes, double size) {
    const auto above = sizes.lower_bound(size);
    int code = sizes.rbegin()->second;
    if (above != sizes.end()) {
        code = above->second;
        if (above != sizes.begin()) {
            const auto below = std::prev(above);
            const double up = above->first - size, down = size - below->first;
            if (down < up || (down == up && below->second % 2 == 0)) code = below->second;
        }
    }
    return code;
}

float from_bits(uint16_t bits) {
    bf16 x;
    x.bits = bits;
    return float(x);
}

template <class F> __global__ void round_trip_kernel(float* y, const float* x, long n) {
    const auto [begin, end] = block_span(n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) y[i] = decode<F>(encode<F>(x[i]));
}

}  // namespace

TEST_SUITE("quantize") {

TEST_CASE_TEMPLATE("every code means what the standard says", F, E4m3, E5m2, E2m1) {
    const Format f = format_of<F>;
    for (int code = 0; code < 2 << (f.exponent + f.mantissa); ++code) {
        CAPTURE(code);
        const double want = meaning(f, code), got = decode<F>(uint8_t(code));
        CHECK((std::isnan(want) ? std::isnan(got) : want == got));
        CHECK((std::isnan(want) || std::signbit(want) == std::signbit(got)));
    }
    CHECK(sizes_of(f).rbegin()->first == f.largest);
    CHECK(decode<F>(uint8_t(F::largest)) == f.largest);
}

TEST_CASE("landmarks of the formats") {
    CHECK(decode<E4m3>(0x01) == std::ldexp(1, -9));
    CHECK(decode<E4m3>(0x08) == std::ldexp(1, -6));
    CHECK(decode<E5m2>(0x01) == std::ldexp(1, -16));
    CHECK(decode<E5m2>(0x04) == std::ldexp(1, -14));
    Numbers four;
    for (uint8_t code = 0; code < 8; ++code) four.push_back(decode<E2m1>(code));
    CHECK(four == Numbers{0, 0.5, 1, 1.5, 2, 3, 4, 6});
}

TEST_CASE_TEMPLATE("all 65,536 bf16 inputs are encoded as their nearest neighbour, ties to the even code", F, E4m3, E5m2, E2m1) {
    const Format f = format_of<F>;
    const std::map<double, int> sizes = sizes_of(f);
    long wrong = 0;
    for (int bits = 0; bits < 1 << 16; ++bits) {
        const float x = from_bits(uint16_t(bits));
        const int got = encode<F>(x), sign = (bits >> 15) << (f.exponent + f.mantissa);   // of zeros too
        const int want = std::isnan(x) ? F::nan : nearest_code(sizes, std::fabs(double(x))) | sign;
        const float number = nearest<F>(x), meant = decode<F>(uint8_t(got));
        const bool same = std::isnan(x) ? std::isnan(number) : number == meant;
        if ((got != want || !same) && ++wrong < 5) MESSAGE("x ", x, ": ", got, ", expected ", want, "; as ", number);
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("floats around every tie are rounded to the right side", F, E4m3, E5m2, E2m1) {
    const Format f = format_of<F>;
    const std::map<double, int> sizes = sizes_of(f);
    for (auto above = std::next(sizes.begin()); above != sizes.end(); ++above) {
        const float tie = float((above->first + std::prev(above)->first) / 2);   // exact: one bit more than a code has
        for (float x : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, 1e9f)}) {
            CHECK(encode<F>(x) == nearest_code(sizes, double(x)));
            CHECK(decode<F>(encode<F>(-x)) == -decode<F>(encode<F>(x)));
        }
    }
}

TEST_CASE("B12: what is too large becomes the largest, and a NaN stays one") {
    for (float x : {448.0f, 464.0f, 465.0f, 480.0f, 1e6f, 3e38f, INFINITY}) {
        CHECK(decode<E4m3>(encode<E4m3>(x)) == 448);
        CHECK(decode<E4m3>(encode<E4m3>(-x)) == -448);
        CHECK(decode<E4m3>(encode_stochastic<E4m3>(x, 0)) == 448);
    }
    for (float x : {57344.0f, 61440.0f, 65536.0f, 1e6f, 3e38f, INFINITY}) CHECK(decode<E5m2>(encode<E5m2>(x)) == 57344);
    for (float x : {6.0f, 7.0f, 8.0f, INFINITY}) CHECK(decode<E2m1>(encode<E2m1>(-x)) == -6);
    CHECK(std::isnan(decode<E4m3>(encode<E4m3>(NAN))));
    CHECK(std::isnan(decode<E5m2>(encode<E5m2>(-NAN))));
    CHECK(std::isnan(decode<E4m3>(encode_stochastic<E4m3>(NAN, 7))));
    CHECK(decode<E2m1>(encode<E2m1>(NAN)) == 6);
}

TEST_CASE_TEMPLATE("B11: scales of tiny and huge numbers are finite, and zeros stay zeros", F, E4m3, E5m2, E2m1) {
    for (float amax : {0.0f, 1e-45f, 1e-38f, 1e-12f, 1.0f, 3e38f}) {
        const float scale = scale_of<F>(amax);
        CHECK(std::isfinite(scale));
        CHECK(std::isfinite(1 / scale));
        CHECK(decode<F>(encode<F>(0.0f * scale)) == 0);
        if (amax >= 1e-12f) CHECK(decode<F>(encode<F>(amax * scale)) == decode<F>(uint8_t(F::largest)));
    }
}

TEST_CASE_TEMPLATE("stochastic rounding goes up as often as the number lies far up, in every interval", F, E4m3, E5m2, E2m1) {
    const std::map<double, int> sizes = sizes_of(format_of<F>);
    for (auto above = std::next(sizes.begin()); above != sizes.end(); ++above) {
        const double low = std::prev(above)->first, width = above->first - low;
        for (double part : {0.0, 0.25, 0.40625, 0.75}) {   // exact in float, and no rounding in the counts
            long up = 0;
            for (uint32_t i = 0; i < 1024; ++i) {
                const float got = decode<F>(encode_stochastic<F>(-float(low + part * width), i << 22));
                CHECK((got == -float(low) || got == -float(above->first)));
                up += got == -float(above->first);
            }
            CHECK(up == long(1024 * part));
        }
    }
}

TEST_CASE("powers of two: all codes, and all bf16 inputs rounded down and up") {
    for (int code = 0; code < 255; ++code) CHECK(double(decode_e8m0(uint8_t(code))) == std::ldexp(1, code - 127));
    CHECK(std::isnan(decode_e8m0(255)));
    long wrong = 0;
    for (int bits = 0; bits < 1 << 16; ++bits) {
        const double x = std::fabs(double(from_bits(uint16_t(bits))));
        int down = 255, up = 255;
        if (!std::isnan(x)) {
            const auto clamped = [](double e) { return int(std::min(254.0, std::max(0.0, e + 127))); };
            down = x == 0 ? 0 : std::isinf(x) ? 254 : clamped(std::floor(std::log2(x)));
            up = x == 0 ? 0 : std::isinf(x) ? 254 : clamped(std::ceil(std::log2(x)));
        }
        const float given = from_bits(uint16_t(bits));
        wrong += encode_e8m0_down(given) != down || encode_e8m0_up(given) != up;
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("a kernel encodes and decodes as the host does", F, E4m3, E5m2, E2m1) {
    const long n = 777;
    Numbers x = noise<float>(n, 1), want;
    for (size_t i = 0; i < x.size(); ++i) x[i] = double(float(x[i] * std::ldexp(1, int(i % 40) - 20)));
    for (double v : x) want.push_back(decode<F>(encode<F>(float(v))));
    for_each_block_size([&](Device& d) {
        Tensor<float> y(1, n), in(1, n, x);
        launch(d, Grid::spans(n), round_trip_kernel<F>, y.v.data, in.v.data, n);
        CHECK(y.get() == want);
        y.check_guard();
    });
}

}  // TEST_SUITE
