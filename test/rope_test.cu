// rope_test.cu - kernels/rope.h against complex rotations in fp64.
#include "kernels/rope.h"
#include "test/harness.h"
#include <complex>

using namespace baretrain;
using namespace baretrain::test;

namespace {

// Channels i and i + D/2 of a head are the parts of one complex number, which is multiplied by exp(i angle).
Numbers rotated(Numbers x, const std::vector<int>& positions, size_t D, double theta) {
    const size_t N = positions.size(), columns = x.size() / N;
    for (size_t n = 0; n < N; ++n)
        for (size_t head = 0; head < columns; head += D)
            for (size_t i = 0; i < D / 2; ++i) {
                double &re = x[n * columns + head + i], &im = x[n * columns + head + i + D / 2];
                const double angle = positions[n] / std::pow(theta, 2 * double(i) / double(D));
                const auto z = std::complex<double>(re, im) * std::polar(1.0, angle);
                re = z.real(), im = z.imag();
            }
    return x;
}

std::vector<double> plain_frequencies(long D, double theta) {
    std::vector<double> f;
    for (long i = 0; i < D / 2; ++i) f.push_back(std::pow(theta, -2.0 * double(i) / double(D)));
    return f;
}
template <class T> Tensor<Real<T>> table_of(long rows, long D, double theta) {
    return Tensor<Real<T>>(rows, D, rope_table(rows, plain_frequencies(D, theta)));
}

const std::vector<int> some_positions{0, 1, 7, 63, 7};

}  // namespace

TEST_SUITE("rope") {

TEST_CASE_TEMPLATE("the halves of every head turn by position * theta^(-2i/D)", T, float, bf16, double) {
    struct { long heads, D; } const sizes[] = {{3, 10}, {1, 2}, {2, 80}};
    for (const auto& [heads, D] : sizes)
        for_each_block_size([&, heads = heads, D = D](Device& d) {
            CAPTURE(heads); CAPTURE(D);
            const long N = long(some_positions.size());
            const Numbers start = noise<T>(N * heads * D, 1);
            const auto table = table_of<T>(64, D, 10000);
            const Tensor<int> positions(1, N, Numbers(some_positions.begin(), some_positions.end()));
            Tensor<T> x(N, heads * D, start);
            rope<T>(d, x, positions.in(), table.in(), Turn::forward);
            const Numbers want = rotated(start, some_positions, size_t(D), 10000);
            CHECK(relative_error(want, x.get()) <= tolerance<T>());
            for (long c = 0; c < heads * D; ++c) CHECK(x.get()[size_t(c)] == start[size_t(c)]);   // position 0: no turn
            rope<T>(d, x, positions.in(), table.in(), Turn::backward);
            CHECK(relative_error(start, x.get()) <= 2 * tolerance<T>());
            x.check_guard();
        });
}

// y = R x with R orthogonal, so <dy, R x> = <R^T dy, x>: the backward pass is the transposed map.
TEST_CASE("backward is the transpose of forward") {
    Device d;
    const long N = long(some_positions.size()), C = 30;
    const Numbers a = noise<double>(N * C, 1), b = noise<double>(N * C, 2);
    const auto table = table_of<double>(64, 10, 500000);
    const Tensor<int> positions(1, N, Numbers(some_positions.begin(), some_positions.end()));
    Tensor<double> x(N, C, a), dy(N, C, b);
    rope<double>(d, x, positions.in(), table.in(), Turn::forward);
    rope<double>(d, dy, positions.in(), table.in(), Turn::backward);
    const Numbers y = x.get(), dx = dy.get();
    double left = 0, right = 0;
    for (size_t i = 0; i < a.size(); ++i) left += b[i] * y[i], right += dx[i] * a[i];
    CHECK(left == doctest::Approx(right).epsilon(1e-12));
}

TEST_CASE_TEMPLATE("in packed qkv only the q and k columns change", T, float, bf16, double) {
    const long N = 3, D = 6, q_and_k = 5 * D, all = 7 * D;
    const std::vector<int> at{5, 9, 1};
    for_each_block_size([&](Device& d) {
        const Numbers start = noise<T>(N * all, 1);
        const auto table = table_of<T>(10, D, 10000);
        const Tensor<int> positions(1, N, Numbers(at.begin(), at.end()));
        Tensor<T> qkv(N, all, start);
        rope<T>(d, qkv.v.col_range(0, q_and_k), positions.in(), table.in(), Turn::forward);
        const Numbers want = rotated(start, at, size_t(D), 10000), got = qkv.get();
        Numbers want_qk, got_qk, v_before, v_after;
        for (long i = 0; i < N * all; ++i) {
            (i % all < q_and_k ? want_qk : v_before).push_back(i % all < q_and_k ? want[size_t(i)] : start[size_t(i)]);
            (i % all < q_and_k ? got_qk : v_after).push_back(got[size_t(i)]);
        }
        CHECK(relative_error(want_qk, got_qk) <= tolerance<T>());
        CHECK(v_before == v_after);
        qkv.check_guard();
    });
}

// bf16 holds 8 bits: a position or an angle that passes through it is wrong from 257 on.
TEST_CASE("B15: the table of a bf16 model is right to 1e-6 up to position 131071") {
    static_assert(std::is_same_v<Real<bf16>, float>);
    const long D = 4, last = 131071;
    const auto table = table_of<bf16>(last + 1, D, 500000);
    const Numbers stored = table.get();
    for (const long t : {0l, 255l, 256l, 257l, 4095l, last})
        for (const long i : {0l, 1l}) {
            const double angle = double(t) / std::pow(500000.0, 2.0 * double(i) / double(D));
            CHECK(std::fabs(stored[size_t(t * D + i)] - std::cos(angle)) < 1e-6);
            CHECK(std::fabs(stored[size_t(t * D + 2 + i)] - std::sin(angle)) < 1e-6);
        }
    Device d;
    const std::vector<int> at{255, 256, 257, 258, 4095, int(last)};
    const Tensor<int> positions(1, 6, Numbers(at.begin(), at.end()));
    Numbers ones;
    for (int n = 0; n < 6; ++n) ones.insert(ones.end(), {1, 1, 0, 0});
    Tensor<bf16> x(6, D, ones);
    rope<bf16>(d, x, positions.in(), table.in(), Turn::forward);
    const Numbers y = x.get();
    CHECK(relative_error(rotated(ones, at, size_t(D), 500000), y) <= tolerance<bf16>());
    for (size_t n = 0; n + 1 < at.size(); ++n) CHECK(y[n * 4] != y[n * 4 + 4]);
}

TEST_CASE("a head size that is odd or does not divide the columns is refused") {
    Device d;
    Tensor<float> x(2, 12), odd(4, 3), wide(4, 8), good(4, 6);
    const Tensor<int> two(1, 2, {0, 1}), three(1, 3, {0, 1, 2});
    CHECK_THROWS_AS(rope<float>(d, x, two.in(), odd.in(), Turn::forward), Error);
    CHECK_THROWS_AS(rope<float>(d, x, two.in(), wide.in(), Turn::forward), Error);
    CHECK_THROWS_AS(rope<float>(d, x, three.in(), good.in(), Turn::forward), Error);
}

}
