// activation_test.cu - kernels/activation.h against fp64 formulas that use tanh and exp.
#include "kernels/activation.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

struct Pair { double value, slope; };

Pair gelu(double x) {
    const double k = std::sqrt(2 / 3.14159265358979323846), t = std::tanh(k * (x + 0.044715 * x * x * x));
    return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x)};
}
Pair silu(double x) {
    const double e = std::exp(-x);
    return {x / (1 + e), (1 + e + x * e) / ((1 + e) * (1 + e))};
}

// Noise stretched to (-scale, scale), as T stores it.
template <class T> Numbers stretched(long n, int which, double scale) {
    Numbers v = noise<T>(n, which);
    for (double& x : v) x = double(T(float(scale * x)));
    return v;
}

}  // namespace

TEST_SUITE("activation") {

// 5000 is more than the 4096 elements of a block; the small scale shows a slope or a value that is wrong near 0.
TEST_CASE_TEMPLATE("GELU and its gradient equal the tanh formula", T, float, bf16, double) {
    struct { long rows, cols; double scale; } const sizes[] = {{7, 33, 6}, {1, 1, 1}, {7, 33, 0.02}, {10, 500, 3}};
    for (const auto& [rows, cols, scale] : sizes)
        for_each_block_size([&, rows = rows, cols = cols, scale = scale](Device& d) {
            CAPTURE(rows); CAPTURE(scale);
            const long n = rows * cols;
            const Numbers in = stretched<T>(n, 1, scale), dy = noise<T>(n, 2);
            Numbers want, want_d;
            for (size_t i = 0; i < in.size(); ++i) {
                want.push_back(gelu(in[i]).value);
                want_d.push_back(dy[i] * gelu(in[i]).slope);
            }
            Tensor<T> x(rows, cols, in), y(rows, cols), dx(rows, cols);
            const Tensor<T> tdy(rows, cols, dy);
            activation_forward<T>(d, y, x.in());
            activation_backward<T>(d, dx, tdy.in(), x.in());
            CHECK(relative_error(want, y.get()) <= tolerance<T>());
            CHECK(relative_error(want_d, dx.get()) <= tolerance<T>());
            activation_backward<T>(d, x, tdy.in(), x.in());           // in place
            CHECK(relative_error(want_d, x.get()) <= tolerance<T>());
            x.check_guard(), y.check_guard(), dx.check_guard();
        });
}

TEST_CASE_TEMPLATE("SwiGLU and its gradients equal the formula; gate is the left half", T, float, bf16, double) {
    struct { long N, F; double scale; } const sizes[] = {{7, 33, 6}, {1, 1, 1}, {3, 300, 0.1}, {5, 72, 3}};
    for (const auto& [N, F, scale] : sizes)
        for_each_block_size([&, N = N, F = F, scale = scale](Device& d) {
            CAPTURE(N); CAPTURE(F);
            const Numbers in = stretched<T>(N * 2 * F, 1, scale), dy = noise<T>(N * F, 2);
            Numbers want(size_t(N * F)), want_d(size_t(N * 2 * F));
            for (long n = 0; n < N; ++n)
                for (long f = 0; f < F; ++f) {
                    const size_t left = size_t(n * 2 * F + f), right = left + size_t(F), out = size_t(n * F + f);
                    want[out] = silu(in[left]).value * in[right];
                    want_d[left] = dy[out] * in[right] * silu(in[left]).slope;
                    want_d[right] = dy[out] * silu(in[left]).value;
                }
            Tensor<T> x(N, 2 * F, in), y(N, F), dx(N, 2 * F);
            const Tensor<T> tdy(N, F, dy);
            activation_forward<T>(d, y, x.in());
            activation_backward<T>(d, dx, tdy.in(), x.in());
            CHECK(relative_error(want, y.get()) <= tolerance<T>());
            CHECK(relative_error(want_d, dx.get()) <= tolerance<T>());
            const Numbers apart = dx.get();
            activation_backward<T>(d, x, tdy.in(), x.in());
            CHECK(x.get() == apart);
            x.check_guard(), y.check_guard(), dx.check_guard();
        });
}

TEST_CASE_TEMPLATE("far out GELU is x or 0, its slope 1 or 0; NaN and infinity stay visible", T, float, bf16, double) {
    const double far = double(T(1e4f));
    for_each_block_size([&](Device& d) {
        const Tensor<T> x(1, 6, {far, -far, INFINITY, -INFINITY, NAN, 1}), one(1, 6, Numbers(6, 1));
        Tensor<T> y(1, 6), dx(1, 6);
        activation_forward<T>(d, y, x.in());
        activation_backward<T>(d, dx, one.in(), x.in());
        const Numbers value = y.get(), slope = dx.get();
        CHECK(value[0] == far);
        CHECK(value[1] == 0);
        CHECK(value[2] == INFINITY);
        CHECK(std::isnan(value[3]));                                  // -infinity * 0
        CHECK(std::isnan(value[4]));
        CHECK(value[5] == doctest::Approx(0.8411920).epsilon(4e-3));
        CHECK(slope[0] == 1);
        CHECK(slope[1] == 0);
        for (int i : {2, 3, 4}) CHECK_FALSE(std::isfinite(slope[size_t(i)]));
        CHECK(slope[5] == doctest::Approx(1.0829641).epsilon(4e-3));
    });
}

TEST_CASE_TEMPLATE("far out SwiGLU is gate * up or 0; NaN and infinity stay visible", T, float, bf16, double) {
    const double far = double(T(1e4f));
    for_each_block_size([&](Device& d) {
        const Tensor<T> in(1, 10, {far, -far, INFINITY, NAN, 1, 1, 1, 1, 1, NAN}), one(1, 5, Numbers(5, 1));
        Tensor<T> y(1, 5), din(1, 10);
        activation_forward<T>(d, y, in.in());
        activation_backward<T>(d, din, one.in(), in.in());
        const Numbers value = y.get(), slope = din.get();
        CHECK(value[0] == far);
        CHECK(value[1] == 0);
        CHECK(value[2] == INFINITY);
        CHECK(std::isnan(value[3]));
        CHECK(std::isnan(value[4]));
        CHECK(slope[0] == 1);
        CHECK(slope[1] == 0);
        CHECK_FALSE(std::isfinite(slope[2]));
        CHECK(std::isnan(slope[3]));
        CHECK(std::isnan(slope[4]));                                  // through up
        CHECK(slope[5] == far);
        CHECK(slope[6] == 0);
        CHECK(slope[9] == doctest::Approx(0.7310586).epsilon(4e-3)); // silu(1): up's own NaN does not reach it
    });
}

TEST_CASE_TEMPLATE("the residual sum may overwrite either operand", T, float, bf16, double) {
    for (const long n : {1, 33, 5000})
        for_each_block_size([&](Device& d) {
            CAPTURE(n);
            const Numbers left = noise<T>(n, 1), right = noise<T>(n, 2);
            Numbers want;
            for (size_t i = 0; i < left.size(); ++i) want.push_back(left[i] + right[i]);
            Tensor<T> a(1, n, left), b(1, n, right), y(1, n);
            residual<T>(d, y, a.in(), b.in());
            CHECK(relative_error(want, y.get()) <= tolerance<T>());
            const Numbers apart = y.get();
            residual<T>(d, a, a.in(), b.in());
            CHECK(a.get() == apart);
            a.set(left);
            residual<T>(d, b, a.in(), b.in());
            CHECK(b.get() == apart);
            y.check_guard(), a.check_guard(), b.check_guard();
        });
}

TEST_CASE("widths that are neither GELU nor SwiGLU, and other sizes, are refused") {
    Device d;
    Tensor<float> y(2, 4), three(2, 12), one_row(1, 4), padded(2, 4, 6);
    CHECK_THROWS_AS(activation_forward<float>(d, y, three.in()), Error);
    CHECK_THROWS_AS(activation_forward<float>(d, y, one_row.in()), Error);
    CHECK_THROWS_AS(activation_forward<float>(d, padded, y.in()), Error);
    CHECK_THROWS_AS(activation_backward<float>(d, one_row, y.in(), y.in()), Error);
    CHECK_THROWS_AS(activation_backward<float>(d, padded, y.in(), y.in()), Error);
    CHECK_THROWS_AS(residual<float>(d, one_row, y.in(), y.in()), Error);
    CHECK_THROWS_AS(residual<float>(d, y, one_row.in(), y.in()), Error);
    CHECK_THROWS_AS(residual<float>(d, y, y.in(), padded.in()), Error);
}

}
