// norm_test.cu - kernels/norm.h against plain fp64 loops and finite differences.
#include "kernels/norm.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

enum class Kind { layernorm, rmsnorm };
constexpr Kind both_kinds[] = {Kind::layernorm, Kind::rmsnorm};

struct Truth { Numbers y, stats, dx, dw, db; };

// Everything the header promises, written down once more from the formulas. dx and dw, db are the bare gradients.
Truth norm_truth(Kind kind, const Numbers& x, const Numbers& w, const Numbers& b, const Numbers& dy, double eps) {
    const size_t C = w.size(), N = x.size() / C;
    Truth t{Numbers(N * C), Numbers(N * 2), Numbers(N * C), Numbers(C), Numbers(C)};
    for (size_t n = 0; n < N; ++n) {
        double mean = 0, variance = 0, mean_g = 0, mean_gx = 0;
        if (kind == Kind::layernorm)
            for (size_t c = 0; c < C; ++c) mean += x[n * C + c] / double(C);
        for (size_t c = 0; c < C; ++c) variance += (x[n * C + c] - mean) * (x[n * C + c] - mean) / double(C);
        const double rstd = 1 / std::sqrt(variance + eps);
        t.stats[n * 2] = mean, t.stats[n * 2 + 1] = rstd;
        for (size_t c = 0; c < C; ++c) {
            const double xhat = (x[n * C + c] - mean) * rstd, g = dy[n * C + c] * w[c];
            t.y[n * C + c] = xhat * w[c] + (kind == Kind::layernorm ? b[c] : 0);
            t.dw[c] += dy[n * C + c] * xhat;
            t.db[c] += dy[n * C + c];
            mean_gx += g * xhat / double(C);
            if (kind == Kind::layernorm) mean_g += g / double(C);
        }
        for (size_t c = 0; c < C; ++c) {
            const double xhat = (x[n * C + c] - mean) * rstd;
            t.dx[n * C + c] = rstd * (dy[n * C + c] * w[c] - mean_g - xhat * mean_gx);
        }
    }
    return t;
}

template <class T> NormWeights<T> weights(Kind kind, const Tensor<T>& w, const Tensor<T>& b, double eps) {
    return {w.in(), kind == Kind::layernorm ? b.in() : View<const T>(), Real<T>(eps)};
}

Numbers sum(Numbers a, const Numbers& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
}

}  // namespace

TEST_SUITE("norm") {

TEST_CASE_TEMPLATE("forward, statistics and dx equal the fp64 loop; dx is added to", T, float, bf16, double) {
    struct { long N, C; double eps; } const sizes[] = {
        {7, 33, 1e-5}, {1, 300, 1e-5}, {3, 1, 0.5}, {2, 64, 0.25}, {2, 2056, 1e-5}};
    for (const Kind kind : both_kinds)
        for (const auto [N, C, eps] : sizes)
            for_each_block_size([&, N = N, C = C, eps = eps](Device& d) {
                CAPTURE(N); CAPTURE(C); CAPTURE(kind == Kind::layernorm);
                const Numbers x = noise<T>(N * C, 1), w = noise<T>(C, 2), b = noise<T>(C, 3), dy = noise<T>(N * C, 4);
                const Numbers before = noise<T>(N * C, 5);
                const Truth truth = norm_truth(kind, x, w, b, dy, eps);
                const Tensor<T> tx(N, C, x), tw(1, C, w), tb(1, C, b), tdy(N, C, dy);
                Tensor<T> y(N, C), dx(N, C, before);
                Tensor<Real<T>> stats(N, 2);
                norm_forward<T>(d, y, stats, tx.in(), weights(kind, tw, tb, eps));
                CHECK(relative_error(truth.y, y.get()) <= tolerance<T>());
                CHECK(relative_error(truth.stats, stats.get()) <= tolerance<Real<T>>());
                norm_backward_input<T>(d, {dx}, tdy.in(), tx.in(), stats.in(), weights(kind, tw, tb, eps));
                CHECK(relative_error(sum(before, truth.dx), dx.get()) <= tolerance<T>());
                y.check_guard(), stats.check_guard(), dx.check_guard();
            });
}

TEST_CASE_TEMPLATE("weight gradients equal the fp64 loop on both sides of a part of 32 rows", T, float, bf16, double) {
    using R = Real<T>;
    for (const Kind kind : both_kinds)
        for (const long N : {1, 7, 31, 32, 33, 65})
            for (const long C : {33, 300, 72})
                for_each_block_size([&](Device& d) {
                    CAPTURE(N); CAPTURE(C); CAPTURE(kind == Kind::layernorm);
                    const Numbers x = noise<T>(N * C, 1), w = noise<T>(C, 2), dy = noise<T>(N * C, 4);
                    const Truth truth = norm_truth(kind, x, w, w, dy, 1e-5);
                    const Tensor<T> tx(N, C, x), tdy(N, C, dy);
                    const Tensor<R> stats(N, 2, truth.stats);
                    const Numbers old_w = noise<R>(C, 6), old_b = noise<R>(C, 7);
                    const long P = 2 * column_sum_parts(N);
                    Tensor<R> dw(1, C, old_w), db(1, C, old_b), parts(P, C, noise<R>(P * C, 8));
                    const View<R> bias = kind == Kind::layernorm ? db.v : View<R>();
                    norm_backward_weight<T>(d, {dw, bias, Write::add}, tdy.in(), tx.in(), stats.in(), parts);
                    CHECK(relative_error(sum(old_w, truth.dw), dw.get()) <= 2 * tolerance<R>());
                    norm_backward_weight<T>(d, {dw, bias, Write::over}, tdy.in(), tx.in(), stats.in(), parts);
                    CHECK(relative_error(truth.dw, dw.get()) <= 2 * tolerance<R>());
                    if (kind == Kind::layernorm) CHECK(relative_error(truth.db, db.get()) <= 2 * tolerance<R>());
                    else CHECK(db.get() == old_b);
                    dw.check_guard(), db.check_guard(), parts.check_guard();
                });
}

// Three heads a row, with gaps behind the rows: as if each head were a row of its own; dx takes the place of dy.
TEST_CASE_TEMPLATE("the heads of a row are normalised on their own, in place, and share the weights", T, float, bf16, double) {
    using R = Real<T>;
    struct { long D, gap_x, gap_y, gap_dx; } const sizes[] = {{12, 5, 7, 2}, {16, 8, 0, 24}, {16, 8, 3, 0}};
    for (const auto& [width, gap_x, gap_y, gap_dx] : sizes) for_each_block_size([&, D = width, gap_x = gap_x, gap_y = gap_y, gap_dx = gap_dx](Device& d) {
        const long N = 13, H = 3;
        CAPTURE(D); CAPTURE(gap_x);
        const Numbers x = noise<T>(N * H * D, 1), w = noise<T>(D, 2), dy = noise<T>(N * H * D, 4);
        const Truth truth = norm_truth(Kind::rmsnorm, x, w, w, dy, 1e-5);
        const Tensor<T> tx(N, H * D, x, H * D + gap_x), tw(1, D, w);
        Tensor<T> y(N, H * D, x, H * D + gap_y), dx(N, H * D, dy, H * D + gap_dx);
        Tensor<R> stats(N, 2 * H), dw(1, D), parts(2 * column_sum_parts(N * H), D);
        const NormWeights<T> n{tw.in(), {}, R(1e-5)};
        norm_forward<T>(d, y, stats, y.in(), n);
        CHECK(relative_error(truth.y, y.get()) <= tolerance<T>());
        norm_backward_weight<T>(d, {dw, {}, Write::over}, dx.in(), tx.in(), stats.in(), parts);
        CHECK(relative_error(truth.dw, dw.get()) <= 2 * tolerance<R>());
        norm_backward_input<T>(d, {dx, Write::over}, dx.in(), tx.in(), stats.in(), n);
        CHECK(relative_error(truth.dx, dx.get()) <= tolerance<T>());
        y.check_guard(), stats.check_guard(), dx.check_guard();
    });
}

// mid = x + branch and its norm; q = norm(q), with a copy of what it was. In rows of any strides, three heads each.
TEST_CASE_TEMPLATE("a sum or a copy that is normalised on the way has the bits of both steps", T, float, bf16, double) {
    using R = Real<T>;
    struct { long C, gap, gap_kept; } const sizes[] = {{33, 0, 0}, {64, 0, 0}, {16, 5, 8}, {16, 8, 16}, {40, 8, 3}};
    for (const Kind kind : both_kinds)
        for (const auto& [width, gap, gap_kept] : sizes)
            for_each_block_size([&, C = width, gap = gap, gap_kept = gap_kept](Device& d) {
                const long N = 5, H = 3, all = H * C;
                CAPTURE(C); CAPTURE(gap);
                const Numbers x = noise<T>(N * all, 1), branch = noise<T>(N * all, 2), w = noise<T>(C, 3), b = noise<T>(C, 4);
                Numbers sum;
                for (size_t i = 0; i < x.size(); ++i) sum.push_back(double(T(R(x[i]) + R(branch[i]))));
                const Tensor<T> tx(N, all, x, all + gap), tbranch(N, all, branch, all + gap), tw(1, C, w), tb(1, C, b);
                const Tensor<T> tsum(N, all, sum);
                const NormWeights<T> n = weights(kind, tw, tb, 1e-5);
                Tensor<T> y(N, all), kept(N, all, branch, all + gap_kept), want(N, all);
                Tensor<R> stats(N, 2 * H), want_stats(N, 2 * H);
                norm_forward<T>(d, want, want_stats, tsum.in(), n);
                norm_forward<T>(d, y, stats, {kept.v, tx.in(), tbranch.in()}, n);
                CHECK(kept.get() == sum);
                CHECK(y.get() == want.get());
                CHECK(stats.get() == want_stats.get());
                kept.check_guard(), y.check_guard(), stats.check_guard();
                norm_forward<T>(d, want, want_stats, tx.in(), n);
                Tensor<T> in_place(N, all, x, all + gap);
                norm_forward<T>(d, in_place, stats, {kept.v, in_place.in()}, n);
                CHECK(kept.get() == x);
                CHECK(in_place.get() == want.get());
                CHECK(stats.get() == want_stats.get());
                kept.check_guard(), in_place.check_guard();
            });
}

TEST_CASE("db is added to when asked") {
    Device d;
    d.threads = 64;
    const Tensor<double> x(33, 3, noise<double>(99, 1)), dy(33, 3, Numbers(99, 2)), stats(33, 2, Numbers(66, 1));
    Tensor<double> dw(1, 3), db(1, 3, {10, 20, 30}), parts(4, 3);
    norm_backward_weight<double>(d, {dw, db, Write::add}, dy.in(), x.in(), stats.in(), parts);
    CHECK(db.get() == Numbers{76, 86, 96});
}

TEST_CASE("no rows: a gradient that is overwritten is zero, one that is added to stays") {
    Device d;
    Tensor<float> none(0, 3), stats(0, 2), dw(1, 3, {1, 2, 3}), parts(0, 3);
    norm_backward_weight<float>(d, {dw, {}, Write::add}, none.in(), none.in(), stats.in(), parts);
    CHECK(dw.get() == Numbers{1, 2, 3});
    norm_backward_weight<float>(d, {dw, {}, Write::over}, none.in(), none.in(), stats.in(), parts);
    CHECK(dw.get() == Numbers{0, 0, 0});
}

void check_slopes(const long N, const Numbers& w) {
    Device d;
    d.threads = 64;
    const long C = long(w.size());
    CAPTURE(N); CAPTURE(C);
    const Numbers x = noise<double>(N * C, 1), b = noise<double>(C, 3), dy = noise<double>(N * C, 4);
    for (const Kind kind : both_kinds) {
        CAPTURE(kind == Kind::layernorm);
        const Tensor<double> tdy(N, C, dy);
        Tensor<double> tx(N, C, x), tw(1, C, w), tb(1, C, b), y(N, C), stats(N, 2);
        const auto n = weights(kind, tw, tb, 1e-5);
        const auto loss = [&] {
            norm_forward<double>(d, y, stats, tx.in(), n);
            const Numbers out = y.get();
            double total = 0;
            for (size_t i = 0; i < out.size(); ++i) total += out[i] * dy[i];
            return total;
        };
        const auto slope = [&](Tensor<double>& t, const Numbers& at) {
            Numbers slopes;
            for (size_t i = 0; i < at.size(); ++i) {
                Numbers p = at;
                p[i] = at[i] + 1e-5, t.set(p);
                const double above = loss();
                p[i] = at[i] - 1e-5, t.set(p);
                slopes.push_back((above - loss()) / 2e-5);
            }
            t.set(at);
            return slopes;
        };
        const Numbers want_x = slope(tx, x), want_w = slope(tw, w), want_b = slope(tb, b);
        loss();
        Tensor<double> dx(N, C, Numbers(size_t(N * C), 0)), dw(1, C), db(1, C), parts(2 * column_sum_parts(N), C);
        norm_backward_input<double>(d, {dx}, tdy.in(), tx.in(), stats.in(), n);
        const View<double> bias = kind == Kind::layernorm ? db.v : View<double>();
        norm_backward_weight<double>(d, {dw, bias, Write::over}, tdy.in(), tx.in(), stats.in(), parts);
        CHECK(relative_error(want_x, dx.get()) < 1e-8);
        CHECK(relative_error(want_w, dw.get()) < 1e-8);
        if (kind == Kind::layernorm) CHECK(relative_error(want_b, db.get()) < 1e-8);
        y.check_guard(), dx.check_guard(), dw.check_guard(), db.check_guard();
    }
}
TEST_CASE("B16: gradients equal finite differences for any number of rows and an odd width, and no guard is touched") {
    for (const long N : {1, 7, 15, 14})                // 1 x 1, 1 x 7, 3 x 5 and 2 x 7 rows of a batch
        for (const long C : {5, 33}) check_slopes(N, noise<double>(C, 2));
    check_slopes(65, noise<double>(3, 2));
}
// Whoever rebuilds xhat as y / w divides by 0.
TEST_CASE("E11: gradients equal finite differences where a gain is exactly 0") { check_slopes(3, {1, 0, 1, 1}); }


TEST_CASE("LayerNorm is accurate in float where the mean is a thousand times the spread") {
    const long N = 2, C = 300;
    Numbers x = noise<float>(N * C, 1);
    for (double& v : x) v = double(float(1000 + v));
    const Numbers w(size_t(C), 1), b(size_t(C), 0);
    const Truth truth = norm_truth(Kind::layernorm, x, w, b, x, 1e-5);
    for_each_block_size([&](Device& d) {
        const Tensor<float> tx(N, C, x), tw(1, C, w), tb(1, C, b);
        Tensor<float> y(N, C), stats(N, 2);
        norm_forward<float>(d, y, stats, tx.in(), weights(Kind::layernorm, tw, tb, 1e-5));
        CHECK(relative_error(truth.y, y.get()) < 3e-4);           // half a unit in the last place of 1000 is 3e-5
    });
}

TEST_CASE_TEMPLATE("a NaN stays in its row, and fills it", T, float, bf16, double) {
    const long N = 3, C = 33;
    Numbers x = noise<T>(N * C, 1);
    const Numbers w = noise<T>(C, 2);
    for (const Kind kind : both_kinds)
        for_each_block_size([&](Device& d) {
            const Tensor<T> clean(N, C, x), tw(1, C, w);
            Numbers spoiled = x;
            spoiled[size_t(C + 20)] = NAN;
            const Tensor<T> tx(N, C, spoiled);
            Tensor<T> want(N, C), y(N, C), want_dx(N, C, x), dx(N, C, x);
            Tensor<Real<T>> want_stats(N, 2), stats(N, 2);
            norm_forward<T>(d, want, want_stats, clean.in(), weights(kind, tw, tw, 1e-5));
            norm_forward<T>(d, y, stats, tx.in(), weights(kind, tw, tw, 1e-5));
            norm_backward_input<T>(d, {want_dx}, clean.in(), clean.in(), want_stats.in(), weights(kind, tw, tw, 1e-5));
            norm_backward_input<T>(d, {dx}, clean.in(), tx.in(), stats.in(), weights(kind, tw, tw, 1e-5));
            const Numbers a = want.get(), b = y.get(), da = want_dx.get(), db = dx.get();
            long wrong = 0;
            for (long i = 0; i < N * C; ++i)
                if (i / C == 1) wrong += b[size_t(i)] == b[size_t(i)] || db[size_t(i)] == db[size_t(i)];
                else wrong += a[size_t(i)] != b[size_t(i)] || da[size_t(i)] != db[size_t(i)];
            CHECK(wrong == 0);
        });
}

TEST_CASE("sizes that do not fit are refused") {
    Device d;
    Tensor<float> x(3, 4), w(1, 5), good(1, 4), stats(3, 2), few(2, 2), one_part(1, 4), dw(1, 4);
    CHECK_THROWS_AS(norm_forward<float>(d, x, stats, x.in(), {w.in(), {}, 1e-5f}), Error);
    CHECK_THROWS_AS(norm_forward<float>(d, x, few, x.in(), {good.in(), {}, 1e-5f}), Error);
    CHECK_THROWS_AS(norm_forward<float>(d, x, stats, {few.v, x.in(), x.in()}, {good.in(), {}, 1e-5f}), Error);
    CHECK_THROWS_AS(norm_forward<float>(d, x, stats, {x.v, x.in(), few.in()}, {good.in(), {}, 1e-5f}), Error);
    CHECK_THROWS_AS(norm_backward_weight<float>(d, {dw, {}, Write::over}, x.in(), x.in(), stats.in(), one_part), Error);
}

}
