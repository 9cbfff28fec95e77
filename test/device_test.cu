// The device layer against independent arithmetic: launches, spans, block sums, exp and tanh, bf16, Philox.
#include "test/harness.h"
#include <cmath>
#include <limits>

using namespace baretrain;
using namespace baretrain::test;

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

__global__ void count_kernel(float* y) {
    if (threadIdx.x == 0) y[blockIdx.x] += float(blockDim.x) / float(gridDim.x);
}
__global__ void span_kernel(double* ends, long n) {
    const auto [begin, end] = block_span(n);
    if (threadIdx.x == 0) ends[2 * blockIdx.x] = double(begin), ends[2 * blockIdx.x + 1] = double(end);
}
// One row a block: the sum and the maximum as every thread sees them. Two sums in a row share their shared memory.
template <class V> __global__ void block_kernel(V* sums, V* tops, const V* x, long C) {
    V sum = 0, top = V(-INFINITY);
    for (long c = threadIdx.x; c < C; c += blockDim.x) {
        const V v = x[blockIdx.x * C + c];
        sum += v;
        top = Max()(v, top);
    }
    const V once = block_sum(sum), twice = block_sum(sum + sum);
    sums[blockIdx.x * blockDim.x + threadIdx.x] = twice == once + once ? once : V(NAN);
    tops[blockIdx.x * blockDim.x + threadIdx.x] = block_max(top);
}
__global__ void exp_kernel(float* y, const float* x, long n) {
    const auto [begin, end] = block_span(n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) y[i] = fast_exp(x[i]);
}
__global__ void tanh_kernel(float* y, const float* x, long n) {
    const auto [begin, end] = block_span(n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) y[i] = fast_tanh(x[i]);
}
__global__ void sigmoid_kernel(float* y, const float* x, long n) {
    const auto [begin, end] = block_span(n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) y[i] = sigmoid(x[i]);
}
__global__ void reverse_rows_kernel(float* y, const float* x, long C) {
    float* s = shared_memory<float>();
    for (long c = threadIdx.x; c < C; c += blockDim.x) s[c] = x[blockIdx.x * C + c];
    __syncthreads();
    for (long c = threadIdx.x; c < C; c += blockDim.x) y[blockIdx.x * C + c] = s[C - 1 - c];
}

// y = 2 x + y, and who did it, element by element of types of different sizes.
__global__ void pack_kernel(double* y, const float* x, int* who, const bf16* small, Span s, uint64_t first) {
    for_each_element(s, [=](long i, double& yi, float xi, int& w, bf16 b) {
        yi += 2 * double(xi) + 1000 * double(float(b)) + 1e6 * double(first + uint64_t(i)), w = int(threadIdx.x);
    }, y, x, out(who), small);
}
__global__ void largest_kernel(float* y, const float* x, Span s) {
    const float most = block_max(largest(-1.f, s, [](float v) { return v < 0 ? -v : v; }, x));
    if (threadIdx.x == 0) *y = most;
}
// Row by row, backwards by columns: each thread reads what others brought.
__global__ void keep_kernel(float* y, const float* x, long C) {
    const float *const a = keep(x, C), *const b = keep(x + C, C, 1);
    for (long c = threadIdx.x; c < C; c += blockDim.x) y[c] = a[C - 1 - c] - b[C - 1 - c];
}

using Elementwise = void (*)(float*, const float*, long);
Numbers map(Elementwise kernel, const Numbers& x) {
    const long n = long(x.size());
    Tensor<float> y(1, n), in(1, n, x);
    Device d;
    launch(d, Grid::spans(n), kernel, y.v.data, in.v.data, n);
    y.check_guard();
    return y.get();
}
// The worst relative error over n points of [first, last], each rounded to float.
double worst_error(Elementwise kernel, double (*truth)(double), double first, double last, long n = 300000) {
    Numbers x;
    for (long i = 0; i <= n; ++i) x.push_back(double(float(first + (last - first) * double(i) / double(n))));
    const Numbers y = map(kernel, x);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const double right = truth(x[i]), error = y[i] == right ? 0 : std::fabs(y[i] - right) / std::fabs(right);
        if (!(error <= worst)) worst = error;          // a NaN stays
    }
    return worst;
}

std::string launch_error(long blocks) {
    try { Grid g(blocks); } catch (const Error& e) { return e.what(); }
    return "no error";
}

TEST_SUITE("device") {
    TEST_CASE("a launch runs each block once; an empty one and a dry one run nothing") {
        for_each_block_size([](Device& d) {
            Tensor<float> y(1, 7);
            launch(d, Grid(0), count_kernel, y.v.data);
            CHECK(d.launches == 0);
            launch(d, Grid(7), count_kernel, y.v.data);
            CHECK(d.launches == 1);
            for (double v : y.get()) CHECK(float(v) == float(d.threads) / 7);
            d.dry = true;
            launch(d, Grid(7), count_kernel, y.v.data);
            CHECK(d.launches == 2);
            for (double v : y.get()) CHECK(float(v) == float(d.threads) / 7);
            y.check_guard();
        });
    }
    struct Listener : Watch {
        std::string heard;
        Spread spread{};
        void begin(const Work&) override { heard += "begin "; }
        void launched(const Spread& s) override { heard += "launched ", spread = s; }
        void end() override { heard += "end "; }
    };
    TEST_CASE("who watches is told which kernel is started, and how it is spread out, on dry devices too") {
        Tensor<float> y(1, 3);
        Listener listener;
        for (const bool dry : {false, true}) {
            Device d;
            d.watch = &listener, d.dry = dry, d.threads = std::min(64u, max_threads);
            launch(d, Grid(3, 128, 40), count_kernel, y.v.data);
            launch(d, Grid(0), count_kernel, y.v.data);    // nothing is started
            CHECK(listener.heard == "begin launched end ");
            CHECK(listener.spread.kernel == reinterpret_cast<const void*>(count_kernel));
            CHECK(listener.spread.blocks == 3);
            CHECK(listener.spread.threads == d.threads);   // what it gets, not what it wished
            CHECK(listener.spread.shared_bytes == 40);
            listener.heard.clear();
        }
    }

    TEST_CASE("a grid with a negative or too large number of blocks is an error with the caller's line") {
        CHECK(launch_error(-1).find("device_test.cu") != std::string::npos);
        CHECK(launch_error(0x80000000).find("2^31 - 1 blocks") != std::string::npos);
        CHECK(launch_error(0x7FFFFFFF) == "no error");
        CHECK(Grid::spans(0).blocks == 0);
        CHECK(Grid::spans(4096).blocks == 1);
        CHECK(Grid::spans(4097).blocks == 2);
    }
    TEST_CASE("the spans of the blocks cover n items once, in order") {
        Device d;
        d.threads = std::min(32u, max_threads);
        for (long blocks : {1, 2, 3, 7, 8, 33})
            for (long n : {0l, 1l, 2l, 6l, 7l, 8l, 9l, 32l, 33l, 64l, 65l, 1000l, 5000000000l}) {
                CAPTURE(blocks);
                CAPTURE(n);
                Tensor<double> ends(blocks, 2);
                launch(d, Grid(blocks), span_kernel, ends.v.data, n);
                const Numbers e = ends.get();
                double next = 0;
                for (size_t b = 0; b < size_t(blocks); ++b) {
                    CHECK(e[2 * b] == next);
                    CHECK(e[2 * b + 1] >= next);
                    next = e[2 * b + 1];
                }
                CHECK(next == double(n));
            }
    }

    TEST_CASE("a span is gone through once whatever its ends and the addresses of its rows, in packs where all allow it") {
        for_each_block_size([](Device& d) {
            for (long begin : {0, 1, 8, 15, 16})
                for (long n : {0, 1, 7, 8, 9, 33, 600})
                    for (long askew : {0, 1, 4, 8}) {
                        CAPTURE(begin); CAPTURE(n); CAPTURE(askew);
                        const long all = begin + n + 5;
                        const Numbers x = noise<float>(all, 1), before = noise<double>(all, 2);
                        Numbers small(size_t(all) + size_t(askew), 0), want = before;
                        for (long i = 0; i < all; ++i) small[size_t(i + askew)] = double(i % 7);
                        for (long i = begin; i < begin + n; ++i)
                            want[size_t(i)] += 2 * x[size_t(i)] + 1000 * double(i % 7) + 1e6 * double(3 + i);
                        const Tensor<float> tx(1, all, x);
                        const Tensor<bf16> ts(1, all + askew, small);
                        Tensor<double> y(1, all, before);
                        Tensor<int> who(1, all, Numbers(size_t(all), -1));
                        launch(d, Grid(1), pack_kernel, y.v.data, tx.v.data, who.v.data, ts.v.data + askew,
                               Span{begin, begin + n}, uint64_t(3));
                        CHECK(relative_error(want, y.get()) <= 1e-12);
                        const bool packed = max_threads > 1 && begin % 8 == 0 && askew % 8 == 0;
                        const long width = packed ? 8 : 1, last = packed ? n / 8 * 8 : n;
                        for (long i = 0; i < all; ++i)
                            CHECK(who.get()[size_t(i)] == (i < begin || i >= begin + n ? -1
                                                           : i - begin < last ? double((i - begin) / width % d.threads)
                                                                              : double((i - begin - last) % d.threads)));
                        y.check_guard(), who.check_guard();
                    }
        });
    }
    TEST_CASE("the largest of a span is found wherever it lies, and a NaN is not") {
        for_each_block_size([](Device& d) {
            for (long at : {3, 4, 17, 36, 39}) {
                Numbers x = noise<float>(41, 1);
                x[size_t(at)] = -7, x[2] = 9, x[40] = 9, x[20] = NAN;   // the nines lie outside
                const Tensor<float> tx(1, 41, x);
                Tensor<float> y(1, 1);
                launch(d, Grid(1), largest_kernel, y.v.data, tx.v.data, Span{3, 40});
                CHECK(y.get() == Numbers{7});
                launch(d, Grid(1), largest_kernel, y.v.data, tx.v.data, Span{0, 0});
                CHECK(y.get() == Numbers{-1});
            }
        });
    }
    TEST_CASE("rows that are kept are whole for every thread") {
        for_each_block_size([](Device& d) {
            for (long C : {1, 33, 300}) {
                const Numbers x = noise<float>(2 * C, 1);
                const Tensor<float> tx(2, C, x);
                Tensor<float> y(1, C);
                launch(d, Grid::rows<float>(1, C, 2), keep_kernel, y.v.data, tx.v.data, C);
                Numbers want;
                for (long c = C - 1; c >= 0; --c) want.push_back(double(float(x[size_t(c)]) - float(x[size_t(c + C)])));
                CHECK(y.get() == want);
            }
        });
    }
    TEST_CASE_TEMPLATE("block_sum and block_max give every thread the sum and the maximum", V, float, double) {
        const long N = 3, C = 1100;
        Numbers x = noise<float>(N * C, 1);
        for (double& v : x) v = std::nearbyint(v * 500);   // integers: every order of additions gives the same sum
        const Tensor<V> in(N, C, x);
        for (unsigned threads = std::min(32u, max_threads); threads <= max_threads; threads += 32) {
            CAPTURE(threads);
            Device d;
            Tensor<V> sums(N, threads), tops(N, threads);
            launch(d, Grid(N, threads), block_kernel<V>, sums.v.data, tops.v.data, in.in().data, C);
            const Numbers s = sums.get(), m = tops.get();
            int wrong = 0;
            for (long n = 0; n < N; ++n) {
                double sum = 0, top = -1e9;
                for (long c = 0; c < C; ++c) sum += x[size_t(n * C + c)], top = std::max(top, x[size_t(n * C + c)]);
                for (size_t t = 0; t < threads; ++t)
                    wrong += s[size_t(n) * threads + t] != sum || m[size_t(n) * threads + t] != top;
            }
            CHECK(wrong == 0);
        }
    }
    TEST_CASE("a block of a negative maximum, an infinity or a NaN anywhere keeps it") {
        for_each_block_size([](Device& d) {
            const long C = 256;
            const auto reduce = [&](const Numbers& x) {
                Tensor<float> in(1, C, x), sum(1, d.threads), top(1, d.threads);
                launch(d, Grid(1), block_kernel<float>, sum.v.data, top.v.data, in.v.data, C);
                return std::pair(sum.get().back(), top.get().back());
            };
            CHECK(reduce(Numbers(C, -3.)) == std::pair(-3. * C, -3.));
            for (size_t place : {0, 1, 31, 32, 63, 64, 200, 255}) {
                CAPTURE(place);
                Numbers x(C, 1.);
                x[place] = nan_value;
                CHECK(std::isnan(reduce(x).first));
                CHECK(std::isnan(reduce(x).second));
                x[place] = inf;
                CHECK(reduce(x) == std::pair(double(inf), double(inf)));
                x[place] = -inf;
                CHECK(reduce(x) == std::pair(double(-inf), 1.));
                x[(place + 100) % C] = inf;
                CHECK(std::isnan(reduce(x).first));
            }
        });
    }
    TEST_CASE("dynamic shared memory holds what the launch asked for, block by block") {
        const long N = 5, C = 3000;
        const Numbers x = noise<float>(N * C, 2);
        for_each_block_size([&](Device& d) {
            Tensor<float> in(N, C, x), out(N, C);
            launch(d, Grid(N, 256, C * sizeof(float)), reverse_rows_kernel, out.v.data, in.v.data, C);
            const Numbers y = out.get();
            int wrong = 0;
            for (long n = 0; n < N; ++n)
                for (long c = 0; c < C; ++c) wrong += y[size_t(n * C + c)] != x[size_t(n * C + C - 1 - c)];
            CHECK(wrong == 0);
            out.check_guard();
        });
    }
    TEST_CASE("the result of a launch has the same bits for every team") {
        const long n = 100000;
        const Numbers x = noise<float>(n, 3);
        Numbers first;
        for (int team : {1, 2, 3, 8}) {
            Tensor<float> in(1, n, x), out(1, n);
            Device d;
            d.team = team;
            launch(d, Grid::spans(n, 1000), tanh_kernel, out.v.data, in.v.data, n);
            if (team == 1) first = out.get();
            CHECK(out.get() == first);
        }
    }
    TEST_CASE("copies go both ways, zero() clears a view, and views with gaps are refused") {
        Device d;
        Tensor<float> t(4, 8, noise<float>(32, 4));
        zero(d, t.v.row_range(1, 2));
        const Numbers after = t.get(), before = noise<float>(32, 4);
        for (size_t i = 0; i < 32; ++i) CHECK(after[i] == (i >= 8 && i < 24 ? 0. : before[i]));
        CHECK_THROWS_AS(zero(d, t.v.col_range(0, 3)), Error);
        t.check_guard();
    }

    TEST_CASE("fast_exp is within 4e-7 of exp") {
        CHECK(worst_error(exp_kernel, std::exp, -87, 88) <= 4e-7);
        CHECK(worst_error(exp_kernel, std::exp, -1, 1) <= 4e-7);
        CHECK(worst_error(exp_kernel, std::exp, -87.3, -86) <= 4e-7);
    }
    TEST_CASE("fast_exp of 0 is 1, far below it is 0, far above infinite, and a NaN stays") {
        const Numbers y = map(exp_kernel, {0, -0., -110, -1e4, -1e30, -3e38, -inf, 89, 1e4, 1e30, 3e38, inf});
        for (size_t i : {0, 1}) CHECK(y[i] == 1);
        for (size_t i : {2, 3, 4, 5, 6}) CHECK(y[i] == 0);
        for (size_t i : {7, 8, 9, 10, 11}) CHECK(y[i] == inf);
        CHECK(std::isnan(map(exp_kernel, {nan_value})[0]));
        CHECK(std::isnan(map(exp_kernel, {-nan_value})[0]));
    }
    TEST_CASE("fast_exp beyond its ends is the truth, or 0 below and infinity above") {
        Numbers x;
        for (double v = -110; v < 100; v += v < -87 || v > 88 ? 0.001 : 1) x.push_back(double(float(v)));
        const Numbers y = map(exp_kernel, x);
        int wrong = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            const double right = std::exp(x[i]);
            if (x[i] < -87.33) wrong += y[i] != 0 && std::fabs(y[i] - right) > 1e-6 * right + 1.5e-45;
            else if (x[i] > 88.37) wrong += y[i] != inf && std::fabs(y[i] - right) > 4e-7 * right;
            else wrong += !(std::fabs(y[i] - right) <= 4e-7 * right);
        }
        CHECK(wrong == 0);
    }
    TEST_CASE("fast_tanh is within 5e-7 of tanh, 1 far away, and a NaN stays") {
        CHECK(worst_error(tanh_kernel, std::tanh, -0.31, 0.31) <= 5e-7);
        CHECK(worst_error(tanh_kernel, std::tanh, 0.29, 12) <= 5e-7);
        CHECK(worst_error(tanh_kernel, std::tanh, -12, -0.29) <= 5e-7);
        CHECK(map(tanh_kernel, {0, 50, -50, 1e30, -1e30, inf, -inf}) == Numbers{0, 1, -1, 1, -1, 1, -1});
        CHECK(std::isnan(map(tanh_kernel, {nan_value})[0]));
    }
    TEST_CASE("sigmoid is 1 / (1 + exp(-x)), exactly 0 and 1 far away, and a NaN stays") {
        CHECK(worst_error(sigmoid_kernel, [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80) <= 6e-7);
        CHECK(map(sigmoid_kernel, {0, 200, -200, inf, -inf}) == Numbers{0.5, 1, 0, 1, 0});
        CHECK(std::isnan(map(sigmoid_kernel, {nan_value})[0]));
    }

    // Values of the pattern by the definition of the format: sign, 8 exponent bits with bias 127, 7 fraction bits.
    double bf16_value(unsigned bits) {
        const int exponent = int(bits >> 7 & 255), fraction = int(bits & 127);
        const double size = std::ldexp((exponent ? 1 : 0) + fraction / 128., std::max(exponent, 1) - 127);
        return bits >> 15 ? -size : size;
    }
    TEST_CASE("every bf16 pattern survives the way to float and back; every NaN stays a NaN") {
        int wrong = 0;
        for (unsigned bits = 0; bits < 65536; ++bits) {
            bf16 b;
            b.bits = uint16_t(bits);
            const float v = b;
            const bool is_nan = (bits & 0x7FFF) > 0x7F80;
            wrong += std::isnan(v) != is_nan;
            wrong += is_nan ? !std::isnan(float(bf16(v))) : bf16(v).bits != bits;
            if ((bits & 0x7FFF) < 0x7F80) wrong += double(v) != bf16_value(bits);
        }
        CHECK(wrong == 0);
        CHECK(float(bf16(inf)) == inf);
        CHECK(float(bf16(-inf)) == -inf);
        const uint32_t quiet_part_below = 0x7F800001;  // a NaN whose upper half alone is an infinity
        float hidden;
        memcpy(&hidden, &quiet_part_below, 4);
        CHECK(std::isnan(float(bf16(hidden))));
    }
    TEST_CASE("a float between two bf16 goes to the nearer, and from the middle to the even one") {
        int wrong = 0;
        for (unsigned low = 0; low < 0x7F80; ++low)    // the last one lies between the largest number and infinity
            for (unsigned sign : {0u, 0x8000u}) {
                const auto rounded = [&](double v) { return unsigned(bf16(float(sign ? -v : v)).bits); };
                const double half = (bf16_value(low) + bf16_value(low + 1)) / 2;   // infinity counts as 2^128
                wrong += rounded(half) != sign + (low % 2 == 0 ? low : low + 1);
                wrong += rounded(double(std::nextafter(float(half), 0.f))) != sign + low;
                wrong += rounded(double(std::nextafter(float(half), inf))) != sign + low + 1;
            }
        CHECK(wrong == 0);
    }

    TEST_CASE("Philox gives the published words of Random123") {
        const auto words = [](Bits4 counter, uint64_t key) {
            const Bits4 r = philox4x32(counter, key);
            return std::vector<uint32_t>(r.v, r.v + 4);
        };
        using Words = std::vector<uint32_t>;
        CHECK(words({{0, 0, 0, 0}}, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
        CHECK(words({{~0u, ~0u, ~0u, ~0u}}, ~0ull) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
        CHECK(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822ull) ==
              Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
    }
    TEST_CASE("each of seed, stream, step and element, low and high half, gives other numbers") {
        const auto first = [](uint64_t seed, Stream stream, uint64_t step, uint64_t element) {
            return philox(seed, stream, step, element).v[0];
        };
        const uint64_t high = 1ull << 32;
        const std::vector<uint32_t> all = {
            first(1, Stream::init, 1, 1), first(2, Stream::init, 1, 1),    first(1 + high, Stream::init, 1, 1),
            first(1, Stream::init, 2, 1), first(1, Stream::init, 1 + high, 1), first(1, Stream::shuffle, 1, 1),
            first(1, Stream::init, 1, 2), first(1, Stream::init, 1, 1 + high)};
        for (size_t i = 0; i < all.size(); ++i)
            for (size_t j = 0; j < i; ++j) CHECK(all[i] != all[j]);
    }
    TEST_CASE("uniform is never 0 and never 1") {
        CHECK(uniform(0) > 0);
        CHECK(uniform(0xFFFFFFFF) < 1);
        CHECK(uniform(0x80000000) == doctest::Approx(0.5));
    }
    TEST_CASE("normal numbers have mean 0, variance 1, no skew, and the tails of a normal distribution") {
        const int n = 100000;
        double sum = 0, squares = 0, cubes = 0, neighbours = 0, last = 0;
        int beyond_two = 0;
        for (int i = 0; i < n; ++i) {
            const double v = normal(42, Stream::test, 0, uint64_t(i));
            sum += v, squares += v * v, cubes += v * v * v, neighbours += v * last;
            beyond_two += std::fabs(v) > 2;
            last = v;
        }
        CHECK(std::fabs(sum / n) < 0.013);             // four standard errors each
        CHECK(std::fabs(squares / n - 1) < 0.018);
        CHECK(std::fabs(cubes / n) < 0.05);
        CHECK(std::fabs(neighbours / n) < 0.013);
        CHECK(std::fabs(double(beyond_two) / n - 0.0455) < 0.0027);
    }
}
