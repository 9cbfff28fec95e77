// linear_test.cu - the linear layer, both orientations, against a plain fp64 loop.
#include "linear.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

enum class Stored { out_in, in_out };
enum class Bias { no, yes };
struct Case {
    Stored stored;
    Bias bias;
    long N, I, O;
    // Where the weight from input i to output o stands.
    size_t at(long i, long o) const { return size_t(stored == Stored::in_out ? i * O + o : o * I + i); }
};

// What the formulas give.
struct Truth {
    Numbers y, dx, dw, db;
    Truth(const Case& c, const Numbers& x, const Numbers& w, const Numbers& b, const Numbers& dy)
        : y(size_t(c.N * c.O)), dx(size_t(c.N * c.I)), dw(w.size()), db(b.size()) {
        for (long n = 0; n < c.N; ++n)
            for (long o = 0; o < c.O; ++o) {
                double sum = c.bias == Bias::yes ? b[size_t(o)] : 0;
                const double slope = dy[size_t(n * c.O + o)];
                for (long i = 0; i < c.I; ++i) {
                    sum += x[size_t(n * c.I + i)] * w[c.at(i, o)];
                    dx[size_t(n * c.I + i)] += slope * w[c.at(i, o)];
                    dw[c.at(i, o)] += slope * x[size_t(n * c.I + i)];
                }
                y[size_t(n * c.O + o)] = sum;
                db[size_t(o)] += slope;
            }
    }
};

template <class T> void check(const Case& k, Write write) {
    using R = Real<T>;
    CAPTURE(k.N);
    CAPTURE(int(k.stored));
    CAPTURE(int(k.bias));
    CAPTURE(int(write));
    const bool turned = k.stored == Stored::in_out, biased = k.bias == Bias::yes;
    const long rows = turned ? k.I : k.O, cols = turned ? k.O : k.I;
    const Numbers x = noise<T>(k.N * k.I, 1), w = noise<T>(rows * cols, 2), b = noise<T>(k.O, 3);
    const Numbers dy = noise<T>(k.N * k.O, 4);
    Truth truth(k, x, w, b, dy);
    Numbers dw0(w.size(), NAN), db0(b.size(), NAN);    // what is overwritten may be anything
    if (write == Write::add) {
        dw0 = noise<R>(rows * cols, 5), db0 = noise<R>(k.O, 6);
        for (size_t i = 0; i < dw0.size(); ++i) truth.dw[i] += dw0[i];
        for (size_t i = 0; i < db0.size(); ++i) truth.db[i] += db0[i];
    }

    Device d;
    Matmul matmul(d);
    Arena arena(size_t(1) << 20);
    const ModelShape shape{};
    Comm comm(d);
    Context<T> c{d, matmul, arena, shape, {}, comm};
    const Tensor<T> X(k.N, k.I, x), W(rows, cols, w), B(1, k.O, b), DY(k.N, k.O, dy);
    const Tensor<T> Y(k.N, k.O, Numbers(size_t(k.N * k.O), NAN)), DX(k.N, k.I, Numbers(size_t(k.N * k.I), NAN));
    const Tensor<R> DW(rows, cols, dw0), DB(1, k.O, db0);
    const Linear<T> layer{W, biased ? B.v : View<T>(), turned};
    const Linear<R> slopes{DW, biased ? DB.v : View<R>(), turned};

    linear_forward<T>(c, Y, X.in(), layer);
    linear_backward_input<T>(c, DX, DY.in(), layer);
    linear_backward_weight<T>(c, slopes, DY.in(), X.in(), write);
    CHECK(relative_error(truth.y, Y.get()) < tolerance<T>());
    CHECK(relative_error(truth.dx, DX.get()) < tolerance<T>());
    CHECK(relative_error(truth.dw, DW.get()) < tolerance<R>());
    if (biased) CHECK(relative_error(truth.db, DB.get()) < tolerance<R>());
    Y.check_guard(), DX.check_guard(), DW.check_guard(), DB.check_guard();
}

template <class T> void check_all() {
    for (Stored stored : {Stored::out_in, Stored::in_out})
        for (Bias bias : {Bias::no, Bias::yes})
            for (Write write : {Write::over, Write::add})
                for (const auto& [N, I, O] : {std::tuple{1L, 7L, 5L}, std::tuple{70L, 24L, 33L}})
                    check<T>({stored, bias, N, I, O}, write);
}

}  // namespace

TEST_SUITE("linear") {

TEST_CASE("forward and both halves of backward are the plain loop, stored either way: double") { check_all<double>(); }
TEST_CASE("forward and both halves of backward are the plain loop, stored either way: float") { check_all<float>(); }
TEST_CASE("forward and both halves of backward are the plain loop, stored either way: bf16") { check_all<bf16>(); }

TEST_CASE("a layer whose shapes do not fit is refused") {
    Device d;
    Matmul matmul(d);
    Arena arena(size_t(1) << 16);
    const ModelShape shape{};
    Comm comm(d);
    Context<float> c{d, matmul, arena, shape, {}, comm};
    const Tensor<float> x(3, 5), w(4, 6), y(3, 4);
    CHECK_THROWS_AS(linear_forward<float>(c, y, x.in(), {w, {}, false}), Error);
    CHECK_THROWS_AS(linear_forward<float>(c, y, x.in(), {w, {}, true}), Error);
}

}  // TEST_SUITE
