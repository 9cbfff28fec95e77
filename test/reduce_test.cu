// reduce_test.cu - kernels/reduce.h against plain fp64 sums.
#include "kernels/reduce.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

// parts: as many as the blocks of these tensors.
template <class R> void squares_of(Device& d, const Tensor<double>& parts, const std::vector<View<const R>>& all) {
    std::vector<SquareSpan<R>> spans;
    for (const View<const R>& x : all) spans.push_back({x.data, x.count()});
    const Tensor<SquareSpan<R>> memory(1, long(spans.size()));
    sum_squares(d, parts.v, SpanTable<SquareSpan<R>>(d, memory.v, spans));
}

template <class R> double total(Device& d, const Tensor<R>& x) {
    Tensor<double> parts(1, square_parts(x.v.count()));
    squares_of<R>(d, parts, {x.in()});
    parts.check_guard();
    double sum = 0;
    for (double p : parts.get()) sum += p;
    return sum;
}

}  // namespace

TEST_SUITE("reduce") {

TEST_CASE_TEMPLATE("column sums equal the fp64 loop, over and added, around 32 rows", T, float, bf16, double) {
    using R = Real<T>;
    struct { long N, C, gap; } sizes[] = {{1, 1, 5}, {7, 33, 5}, {31, 300, 5}, {32, 32, 8}, {33, 300, 4}, {33, 1, 0},
                                          {64, 33, 5}, {65, 300, 0}, {65, 24, 1}, {1057, 9, 7}, {1057, 16, 0}, {2049, 8, 8}};
    for (const auto& [N, C, gap] : sizes)              // 1024 rows are 32 parts; 16 bytes are 2, 4 or 8 columns
        for_each_block_size([&, N = N, C = C, gap = gap](Device& d) {
            CAPTURE(N); CAPTURE(C); CAPTURE(gap);
            const long stride = C + gap, P = column_sum_parts(N);
            const Numbers x = noise<T>(N * C, 1), before = noise<R>(C, 2);
            Numbers want(size_t(C), 0), added = before;
            for (size_t i = 0; i < x.size(); ++i) want[i % size_t(C)] += x[i], added[i % size_t(C)] += x[i];
            Numbers wide(size_t(N * stride), 1000);               // a column too many would show
            for (long i = 0; i < N * C; ++i) wide[size_t(i / C * stride + i % C)] = x[size_t(i)];
            const Tensor<T> tx(N, stride, wide);
            Tensor<R> sum(1, C, before), parts(P, C, noise<R>(P * C, 3));
            column_sums<T>(d, sum, tx.in().col_range(0, C), parts, Write::add);
            CHECK(relative_error(added, sum.get()) <= tolerance<R>());
            column_sums<T>(d, sum, tx.in().col_range(0, C), parts, Write::over);
            CHECK(relative_error(want, sum.get()) <= tolerance<R>());
            sum.check_guard(), parts.check_guard();
        });
}

// A bf16 sum stops at 256: what accumulates is Real<T>, float.
TEST_CASE("B9: a thousand gradients of 1 add up to 1000 in a model of bf16") {
    static_assert(std::is_same_v<Real<bf16>, float>);
    Device d;
    d.threads = 64;
    const Tensor<bf16> ones(1, 3, {1, 1, 1});
    Tensor<float> sum(1, 3, {0, 0, 0}), parts(column_sum_parts(1), 3);
    for (int i = 0; i < 1000; ++i) column_sums<bf16>(d, sum, ones.in(), parts, Write::add);
    CHECK(sum.get() == Numbers{1000, 1000, 1000});
}

TEST_CASE("the column sum of no rows is 0, and adding it changes nothing") {
    Device d;
    Tensor<float> x(0, 3), parts(0, 3), sum(1, 3, {1, 2, 3});
    column_sums<float>(d, sum, x.in(), parts, Write::add);
    CHECK(sum.get() == Numbers{1, 2, 3});
    column_sums<float>(d, sum, x.in(), parts, Write::over);
    CHECK(sum.get() == Numbers{0, 0, 0});
}

TEST_CASE("parts are of 32 rows and of 16384 elements, the last one shorter") {
    CHECK(column_sum_parts(0) == 0);
    CHECK(column_sum_parts(1) == 1);
    CHECK(column_sum_parts(32) == 1);
    CHECK(column_sum_parts(33) == 2);
    CHECK(square_parts(0) == 0);
    CHECK(square_parts(16384) == 1);
    CHECK(square_parts(16385) == 2);
    CHECK(square_parts(1l << 40) == 1l << 26);
}

TEST_CASE_TEMPLATE("the sum of squares equals the fp64 loop on both sides of a span", R, float, double) {
    for (const long n : {1, 33, 300, 5000, 16383, 16384, 16385, 40000})
        for_each_block_size([&](Device& d) {
            CAPTURE(n);
            const Numbers x = noise<R>(n, 1);
            double want = 0;
            for (double v : x) want += v * v;
            const Tensor<R> tx(1, n, x);
            CHECK(total(d, tx) == doctest::Approx(want).epsilon(std::is_same_v<R, float> ? 1e-5 : 1e-13));
        });
}

TEST_CASE("a table of tensors has a part for each block of each, in order, and none for what is empty") {
    for_each_block_size([](Device& d) {
        const Tensor<double> a(1, 3, {1, 2, 3}), b(1, square_span + 1, Numbers(size_t(square_span + 1), 1)), c(1, 2, {5, 0});
        const View<const double> none;
        Tensor<double> parts(1, 4);
        squares_of<double>(d, parts, {none, a.in(), none, none, b.in(), c.in(), none});
        CHECK(parts.get() == Numbers{14, double(square_span), 1, 25});
        parts.check_guard();
    });
}

// In float, 2^24 + 1 is 2^24: sums over many spans must be kept in something wider.
TEST_CASE("spans are added in double") {
    Device d;
    Numbers x(size_t(2 * square_span), 0);
    x[0] = 4096, x[size_t(square_span)] = 1;
    CHECK(total(d, Tensor<float>(1, 2 * square_span, x)) == 16777217.0);
}

TEST_CASE_TEMPLATE("one NaN or infinity anywhere is noticed", R, float, double) {
    for (const long place : {0, 16383, 16384, 19999})
        for_each_block_size([&](Device& d) {
            CAPTURE(place);
            Numbers x = noise<R>(20000, 1);
            x[size_t(place)] = NAN;
            CHECK(std::isnan(total(d, Tensor<R>(1, 20000, x))));
            x[size_t(place)] = -INFINITY;
            CHECK(total(d, Tensor<R>(1, 20000, x)) == INFINITY);
        });
}

TEST_CASE("one NaN spoils its column sum and no other") {
    Numbers x = noise<float>(33 * 5, 1);
    x[32 * 5 + 3] = NAN;
    for_each_block_size([&](Device& d) {
        const Tensor<float> tx(33, 5, x);
        Tensor<float> sum(1, 5), parts(2, 5);
        column_sums<float>(d, sum, tx.in(), parts, Write::over);
        for (int c = 0; c < 5; ++c) CHECK(std::isnan(sum.get()[size_t(c)]) == (c == 3));
    });
}

TEST_CASE("one and two threads give the same bits") {
    const long n = 5 * square_span + 7, N = 130, C = 300;
    const Tensor<float> x(1, n, noise<float>(n, 1)), rows(N, C, noise<float>(N * C, 2));
    Numbers squares[2], sums[2];
    for (int team : {1, 2}) {
        Device d;
        d.team = team;
        d.threads = 64;
        Tensor<double> parts(1, square_parts(n));
        Tensor<float> sum(1, C), scratch(column_sum_parts(N), C);
        squares_of<float>(d, parts, {x.in()});
        column_sums<float>(d, sum, rows.in(), scratch, Write::over);
        squares[team - 1] = parts.get(), sums[team - 1] = sum.get();
    }
    CHECK(squares[0] == squares[1]);
    CHECK(sums[0] == sums[1]);
}

TEST_CASE_TEMPLATE("elements are added up in double, span after span", T, float, double) {
    for (const long n : {1, 33, 16383, 16385, 40000})
        for_each_block_size([&](Device& d) {
            CAPTURE(n);
            if (max_threads > 1 && n > 5000 && d.threads != 64) return;        // fibers are slow
            const Numbers x = noise<T>(n, 4);
            const Tensor<T> tx(1, n, x);
            Tensor<double> parts(1, square_parts(n));
            add_elements<T>(d, parts, tx.in());
            parts.check_guard();
            double want = 0, got = 0;
            for (double v : x) want += v;
            for (double p : parts.get()) got += p;
            CHECK(std::fabs(want - got) < 1e-12 * double(n));
        });
}

TEST_CASE_TEMPLATE("squares, zeros and the largest magnitude equal the fp64 loop, added to what was there", T, float, bf16,
                   double) {
    for (const long n : {1, 33, 5000, 16383, 16385, 40000})
        for_each_block_size([&](Device& d) {
            CAPTURE(n);
            if (max_threads > 1 && n == 40000 && d.threads != 64) return;      // fibers are slow
            Numbers x = noise<T>(n, 1);
            for (size_t i = 0; i < x.size(); i += 7) x[i] = i % 2 ? 0 : -0.0;
            x[size_t(n - 1)] = -3;                     // the largest is negative
            double squares = 0, zeros = 0;
            for (double v : x) squares += v * v, zeros += v == 0;
            const Tensor<T> tx(1, n, x);
            const long P = square_parts(n) + 1;        // more scratch than is needed
            Tensor<double> total(1, magnitudes, {1, 10, 2}), parts(P, magnitudes, Numbers(size_t(P * magnitudes), 1e6));
            add_magnitudes<T>(d, total, tx.in(), parts);
            CHECK(relative_error({squares + 1, zeros + 10, 3}, total.get()) <= 1e-12);
            add_magnitudes<T>(d, total, tx.in(), parts);
            CHECK(relative_error({2 * squares + 1, 2 * zeros + 10, 3}, total.get()) <= 1e-12);
            total.check_guard(), parts.check_guard();
        });
}

TEST_CASE_TEMPLATE("a NaN anywhere makes the largest magnitude NaN, an infinity makes it infinite", T, float, bf16, double) {
    for (const long place : {0, 16383, 16384, 19999})
        for_each_block_size([&](Device& d) {
            if (max_threads > 1 && d.threads != 64) return;
            CAPTURE(place);
            Numbers x = noise<T>(20000, 1);
            x[size_t(place)] = -INFINITY;
            Tensor<double> total(1, magnitudes, {0, 0, 0}), parts(2, magnitudes);
            add_magnitudes<T>(d, total, Tensor<T>(1, 20000, x).in(), parts);
            CHECK(total.get()[0] == INFINITY);
            CHECK(total.get()[2] == INFINITY);
            x[size_t(place)] = NAN;
            add_magnitudes<T>(d, total, Tensor<T>(1, 20000, x).in(), parts);
            CHECK(std::isnan(total.get()[0]));
            CHECK(std::isnan(total.get()[2]));
            x[size_t(place)] = 0;
            add_magnitudes<T>(d, total, Tensor<T>(1, 20000, x).in(), parts);
            CHECK(std::isnan(total.get()[2]));         // it stays
        });
}

TEST_CASE("scratch of another size is refused") {
    Device d;
    Tensor<float> x(33, 4), one_part(1, 4), sum(1, 4), narrow(1, 3), parts(2, 4);
    Tensor<double> two(1, 2);
    CHECK_THROWS_AS(column_sums<float>(d, sum, x.in(), one_part, Write::over), Error);
    CHECK_THROWS_AS(column_sums<float>(d, narrow, x.in(), parts, Write::over), Error);
    CHECK_THROWS_AS(squares_of<float>(d, two, {x.in()}), Error);
    Tensor<double> none(0, magnitudes), total(1, magnitudes), short_total(1, 2), part(1, magnitudes);
    CHECK_THROWS_AS(add_magnitudes<float>(d, total, x.in(), none), Error);
    CHECK_THROWS_AS(add_magnitudes<float>(d, short_total, x.in(), part), Error);
    CHECK_THROWS_AS(add_magnitudes<float>(d, total, x.in().col_range(0, 3), part), Error);   // rows with gaps
}

}
