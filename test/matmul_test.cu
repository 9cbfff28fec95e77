#include "kernels/matmul.h"
#include "test/harness.h"
#include <fstream>
#include <functional>
#if defined(_OPENMP)
#include <omp.h>
#endif

using namespace baretrain;
using namespace baretrain::test;

namespace {

template <class Out, class In>
using Multiply = std::function<void(Device&, View<Out>, View<const In>, View<const In>, View<const In>, MatmulOptions)>;

template <class Out, class In>
Product<Out, In> product(View<Out> y, View<const In> a, View<const In> b, View<const In> bias, MatmulOptions o) {
    return {y, a, b, bias, o, y.rows, y.cols, o.transpose_a ? a.rows : a.cols};
}

// Runs body(name, multiply) for the front door, for the plain kernel, and for each library that this build has.
template <class Out, class In, class Body> void for_each_engine(Body body) {
    const auto direct = [&](const char* name, auto& engine) {
        CAPTURE(name);
        body([&](Device& d, View<Out> y, View<const In> a, View<const In> b, View<const In> bias, MatmulOptions o) {
            REQUIRE(engine.multiply(d, product<Out, In>(y, a, b, bias, o)));
        });
    };
    Device device;
    for (bool fast_bf16 : {false, true}) {             // both ways of bf16, whatever this CPU is best at
        if (fast_bf16 && !std::is_same_v<In, bf16>) continue;
        Matmul m(device, fast_bf16);
        INFO("through matmul(): ", Matmul::engine(), ", bf16 as it is: ", fast_bf16);
        body([&](Device& d, View<Out> y, View<const In> a, View<const In> b, View<const In> bias, MatmulOptions o) {
            matmul(m, d, y, a, b, bias, o);
        });
    }
    struct Plain {
        bool multiply(Device& d, const Product<Out, In>& p) { return plain_matmul(d, p), true; }
    } plain;
    direct("plain loops", plain);
    if constexpr (OneDnn::found && std::is_same_v<In, float>) {
        OneDnn engine;
        direct("oneDNN", engine);
    }
    if constexpr (Cblas::found && std::is_same_v<Out, In> && !std::is_same_v<In, bf16>) {
        Cblas engine;
        direct("CBLAS", engine);
    }
}

// A tensor whose rows are three elements apart; the gaps hold `gap`.
template <class T> struct Gapped : Tensor<T> {
    Gapped(long rows, long cols, const Numbers& numbers, float gap) : Tensor<T>(rows, cols, cols + 3) {
        std::vector<T> host(size_t(rows * (cols + 3)), T(gap));
        for (long r = 0; r < rows; ++r)
            for (long c = 0; c < cols; ++c) host[size_t(r * (cols + 3) + c)] = T(float(numbers[size_t(r * cols + c)]));
        if constexpr (std::is_same_v<T, double>)
            for (long i = 0; i < rows * cols; ++i) host[size_t(i / cols * (cols + 3) + i % cols)] = numbers[size_t(i)];
        copy_bytes(this->d, this->v.data, host.data(), host.size() * sizeof(T));
    }
    void check_gaps(float gap) {
        std::vector<T> host(size_t(this->v.rows * this->v.stride));
        copy_bytes(this->d, host.data(), this->v.data, host.size() * sizeof(T));
        long changed = 0;
        for (long r = 0; r < this->v.rows; ++r)
            for (long c = this->v.cols; c < this->v.stride; ++c)
                changed += float(host[size_t(r * this->v.stride + c)]) != gap;
        CHECK(changed == 0);
        this->check_guard();
    }
};

// op(a) op(b) in doubles; a and b as stored.
Numbers truth(const Numbers& a, const Numbers& b, long M, long N, long K, MatmulOptions o) {
    Numbers y(size_t(M * N), 0.0);
    for (long m = 0; m < M; ++m)
        for (long n = 0; n < N; ++n)
            for (long k = 0; k < K; ++k) {
                const long at_a = o.transpose_a ? k * M + m : m * K + k, at_b = o.transpose_b ? n * K + k : k * N + n;
                y[size_t(m * N + n)] += a[size_t(at_a)] * b[size_t(at_b)];
            }
    return y;
}

// One rounding of a bf16 result is at most 2^-8 of it, element by element: sums are kept in float.
template <class Out> void check_close(const Numbers& want, const Numbers& got, double slack = 1e-5) {
    CHECK(relative_error(want, got) < tolerance<Out>());
    if constexpr (std::is_same_v<Out, bf16>) {
        long far = 0;
        for (size_t i = 0; i < want.size(); ++i) far += std::fabs(want[i] - got[i]) > std::fabs(want[i]) / 256 + slack;
        CHECK(far == 0);
    }
}

// Every pair of sizes in every position, each with one third size.
template <class Body> void for_each_shape(Body body) {
    const std::vector<long> sizes{1, 2, 7, 33, 64, 101};
    for (size_t i = 0; i < sizes.size(); ++i)
        for (size_t j = 0; j < sizes.size(); ++j) body(sizes[i], sizes[j], sizes[(i + j) % sizes.size()]);
}

// NaN between the input's rows would spoil a result that reads them; 5 between the output's rows must stay.
template <class Out, class In> void compare_with_truth() {
    for_each_engine<Out, In>([](Multiply<Out, In> multiply) {
        for_each_block_size([&](Device& d) {
            d.team = 1;                                // thousands of tiny products: waking a team would take the time
            for_each_shape([&](long M, long N, long K) {
                const Numbers an = noise<In>(M * K, 1), bn = noise<In>(K * N, 2);
                const Numbers bias = noise<In>(N, 3), before = noise<Out>(M * N, 4);
                for (int which = 0; which < 4; ++which) {
                    MatmulOptions o{.transpose_a = which % 2 == 1, .transpose_b = which / 2 == 1};
                    INFO("M ", M, " N ", N, " K ", K, " transposed: a ", o.transpose_a, " b ", o.transpose_b);
                    const Gapped<In> a(o.transpose_a ? K : M, o.transpose_a ? M : K, an, NAN);
                    const Gapped<In> b(o.transpose_b ? N : K, o.transpose_b ? K : N, bn, NAN);
                    const Tensor<In> bias_row(1, N, bias);
                    const Numbers ab = truth(an, bn, M, N, K, o);
                    for (int mode = 0; mode < 3; ++mode) {          // overwrite, overwrite with bias, add
                        CAPTURE(mode);
                        Gapped<Out> y(M, N, mode == 2 ? before : Numbers(before.size(), NAN), 5);
                        o.write = mode == 2 ? Write::add : Write::over;
                        multiply(d, y.v, a.in(), b.in(), mode == 1 ? bias_row.in() : View<const In>(), o);
                        Numbers want = ab;
                        for (size_t i = 0; i < want.size(); ++i)
                            want[i] += mode == 1 ? bias[i % size_t(N)] : mode == 2 ? before[i] : 0;
                        check_close<Out>(want, y.get());
                        y.check_gaps(5);
                    }
                }
            });
        });
    });
}

template <class T> std::vector<unsigned char> bytes_of(const Tensor<T>& t) {
    Device d;
    std::vector<unsigned char> bytes(size_t(t.v.count()) * sizeof(T));
    copy_bytes(d, bytes.data(), t.v.data, bytes.size());
    return bytes;
}

}  // namespace

TEST_SUITE("matmul") {

TEST_CASE("float products of every layout, with and without bias, over and added, match a plain fp64 loop") {
    compare_with_truth<float, float>();
}
TEST_CASE("double products match a plain fp64 loop") { compare_with_truth<double, double>(); }
TEST_CASE("bf16 products match a plain fp64 loop on the rounded inputs, rounded once") {
    compare_with_truth<bf16, bf16>();
}
TEST_CASE("bf16 products kept in float match a plain fp64 loop on the rounded inputs") {
    compare_with_truth<float, bf16>();
}

// Sides so long that float copies of bf16 are made in several parts: of rows, of columns, of the sum.
TEST_CASE_TEMPLATE("long bf16 products match a plain fp64 loop whichever side is long, rounded once", Out, float, bf16) {
    if (!OneDnn::found && !Cblas::found) return;       // plain loops make no copies
    const long sizes[3][3] = {{90001, 19, 33}, {21, 90001, 34}, {231, 180, 6001}};
    for (const auto& [M, N, K] : sizes) {
        const Numbers an = noise<bf16>(M * K, 1), bn = noise<bf16>(K * N, 2), bias = noise<bf16>(N, 3);
        for (int which = 0; which < 4; ++which)
            for (int mode = 0; mode < 3; ++mode) {     // overwrite, overwrite with bias, add
                if (mode != 1 && which != 1) continue;
                MatmulOptions o{.transpose_a = which % 2 == 1, .transpose_b = which / 2 == 1,
                                .write = mode == 2 ? Write::add : Write::over};
                CAPTURE(M); CAPTURE(N); CAPTURE(which); CAPTURE(mode);
                const Gapped<bf16> a(o.transpose_a ? K : M, o.transpose_a ? M : K, an, NAN);
                const Gapped<bf16> b(o.transpose_b ? N : K, o.transpose_b ? K : N, bn, NAN);
                const Tensor<bf16> bias_row(1, N, bias);
                Gapped<Out> y(M, N, Numbers(size_t(M * N), mode == 2 ? 1.5 : NAN), 5);
                Device d;
                Matmul m(d, false);
                matmul(m, d, y.v, a.v, b.v, mode == 1 ? bias_row.v : View<bf16>(), o);
                Numbers want = truth(an, bn, M, N, K, o);
                for (size_t i = 0; i < want.size(); ++i)
                    want[i] += mode == 1 ? bias[i % size_t(N)] : mode == 2 ? 1.5 : 0;
                check_close<Out>(want, y.get(), 1e-4);   // thousands of terms in float
                y.check_gaps(5);
            }
    }
}

TEST_CASE_TEMPLATE("a team of any size gives the right result", T, float, bf16, double) {
    const long M = 70, N = 130, K = 501;
    const Numbers an = noise<T>(M * K, 1), bn = noise<T>(K * N, 2), want = truth(an, bn, M, N, K, {});
    for_each_engine<T, T>([&](Multiply<T, T> multiply) {
        for (int team : {1, 2, 3}) {
            Device d;
            d.team = team;
            const Tensor<T> a(M, K, an), b(K, N, bn);
            Tensor<T> y(M, N);
            multiply(d, y, a.in(), b.in(), {}, {});
            check_close<T>(want, y.get());
        }
    });
}

TEST_CASE_TEMPLATE("NaN and infinity reach exactly the elements that they enter", T, float, bf16, double) {
    const long M = 7, N = 33, K = 40;
    for_each_engine<T, T>([&](Multiply<T, T> multiply) {
        Device d;
        Numbers an(size_t(M * K), 1.0), bn(size_t(K * N), 1.0);
        an[size_t(2 * K + 39)] = NAN;                  // row 2
        an[size_t(4 * K + 5)] = 0;                     // meets the infinity below: 0 * inf is NaN
        an[size_t(5 * K + 5)] = -1;
        bn[size_t(5 * N + 32)] = INFINITY;             // column 32
        Tensor<T> a(M, K, an), b(K, N, bn), y(M, N);
        multiply(d, y, a.in(), b.in(), {}, {});
        const Numbers got = y.get();
        for (long m = 0; m < M; ++m)
            for (long n = 0; n < N; ++n) {
                const double v = got[size_t(m * N + n)];
                INFO("row ", m, " column ", n);
                if (m == 2 || (m == 4 && n == 32)) CHECK(std::isnan(v));
                else if (n == 32) CHECK(v == (m == 5 ? -INFINITY : INFINITY));
                else CHECK(v == (m == 4 ? 39 : m == 5 ? 38 : 40));
            }
    });
}

TEST_CASE("a result that was NaN before is gone when overwritten and stays when added to") {
    for_each_engine<float, float>([&](Multiply<float, float> multiply) {
        Device d;
        const Tensor<float> a(1, 2, {3, 4}), b(2, 1, {5, 6});
        Tensor<float> y(1, 1, Numbers{NAN});
        multiply(d, y, a.in(), b.in(), {}, {});
        CHECK(y.get()[0] == 39);
        y.set(Numbers{NAN});
        multiply(d, y, a.in(), b.in(), {}, {.write = Write::add});
        CHECK(std::isnan(y.get()[0]));
    });
}

TEST_CASE_TEMPLATE("a sum over nothing is the bias, zero or no change; no result is no work", T, float, bf16, double) {
    Device d;
    Matmul m(d);
    const Tensor<T> bias(1, 3, {1, 2, 3});
    const View<T> a(nullptr, 2, 0), b(nullptr, 0, 3);
    Gapped<T> y(2, 3, {NAN, 9, 9, 9, 9, 9}, 5);
    matmul(m, d, y.v, a, b, bias.in());
    CHECK(y.get() == Numbers{1, 2, 3, 1, 2, 3});
    matmul(m, d, y.v, a, b, {}, {.write = Write::add});
    CHECK(y.get() == Numbers{1, 2, 3, 1, 2, 3});
    matmul(m, d, y.v, a, b);
    CHECK(y.get() == Numbers(6, 0.0));
    y.check_gaps(5);
    matmul(m, d, View<T>(nullptr, 0, 3), View<T>(nullptr, 0, 2), View<T>(nullptr, 2, 3));
    matmul(m, d, View<T>(nullptr, 2, 0), View<T>(nullptr, 2, 5), View<T>(nullptr, 5, 0));
    CHECK(m.flops() == 0);
}

TEST_CASE("shapes that do not fit are refused with both numbers, and nothing is counted") {
    Device d;
    d.dry = true;
    Matmul m(d);
    const auto v = [](long rows, long cols) { return View<float>(nullptr, rows, cols); };
    using V = View<float>;
    const auto refuses = [&](const char* what, V y, V a, V b, V bias, MatmulOptions o) {
        CHECK_THROWS_WITH_AS(matmul(m, d, y, a, b, bias, o), doctest::Contains(what), Error);
    };
    refuses("columns of op(a) and rows of op(b): 7 != 8", v(5, 6), v(5, 7), v(8, 6), {}, {});
    refuses("columns of op(a) and rows of op(b): 5 != 7", v(7, 6), v(5, 7), v(7, 6), {}, {.transpose_a = true});
    refuses("columns of op(a) and rows of op(b): 7 != 6", v(5, 6), v(5, 7), v(7, 6), {}, {.transpose_b = true});
    refuses("rows of y and op(a): 4 != 5", v(4, 6), v(5, 7), v(7, 6), {}, {});
    refuses("columns of y and op(b): 9 != 6", v(5, 9), v(5, 7), v(7, 6), {}, {});
    refuses("columns of bias and y: 5 != 6", v(5, 6), v(5, 7), v(7, 6), v(1, 5), {});
    refuses("rows of bias and 1: 2 != 1", v(5, 6), v(5, 7), v(7, 6), v(2, 6), {});
    refuses("no bias when adding", v(5, 6), v(5, 7), v(7, 6), v(1, 6), {.write = Write::add});
    refuses("rows do not overlap", View<float>(nullptr, 5, 6, 5), v(5, 7), v(7, 6), {}, {});
    CHECK(m.flops() == 0);
    matmul(m, d, v(5, 6), v(5, 7), v(7, 6));           // and this one fits
    CHECK(m.flops() == 2 * 5 * 6 * 7);
}

TEST_CASE("operations are counted exactly, and the same in a dry run, which touches nothing") {
    Device real, dry;
    dry.dry = true;
    Matmul counted(real), planned(dry);
    const Tensor<bf16> a(3, 5, noise<bf16>(15, 1)), b(5, 7, noise<bf16>(35, 2));
    Tensor<float> y(3, 7, Numbers(21, 2.0)), z(7, 3);
    matmul(planned, dry, y.v, a.v, b.v);
    CHECK(y.get() == Numbers(21, 2.0));
    CHECK(planned.flops() == 2 * 3 * 5 * 7);
    matmul(counted, real, y.v, a.v, b.v);
    matmul(counted, real, z.v, b.v, a.v, {}, {.transpose_a = true, .transpose_b = true});
    CHECK(counted.flops() == 2 * 2 * 3 * 5 * 7);
    const View<float> vast(nullptr, 100000, 100000);
    matmul(planned, dry, vast, vast, vast);
    CHECK(planned.flops() == 2 * 3 * 5 * 7 + 2'000'000'000'000'000);
}

TEST_CASE_TEMPLATE("the same product has the same bits on every call and from every Matmul", T, float, bf16, double) {
    const long M = 65, N = 40, K = 130;
    const Tensor<T> a(K, M, noise<T>(K * M, 1)), b(K, N, noise<T>(K * N, 2));
    const auto once = [&](Matmul& m, Device& d) {
        Tensor<Real<T>> y(M, N, noise<Real<T>>(M * N, 3));
        matmul(m, d, y.v, a.v, b.v, {}, {.transpose_a = true, .write = Write::add});
        return bytes_of(y);
    };
    Device d;
    Matmul one(d), two(d);
    const auto first = once(one, d);
    CHECK(once(one, d) == first);
    CHECK(once(two, d) == first);
}

TEST_CASE("plain loops give the same bits for every team and every block size") {
    const long M = 70, N = 130, K = 101;
    const Tensor<float> a(M, K, noise<float>(M * K, 1)), b(K, N, noise<float>(K * N, 2));
    std::vector<std::vector<unsigned char>> seen;
    for (int team : {1, 2, 3})
        for_each_block_size([&](Device& d) {
            d.team = team;
            Tensor<float> y(M, N);
            plain_matmul(d, product<float, float>(y, a.in(), b.in(), {}, {}));
            seen.push_back(bytes_of(y));
        });
    for (const auto& bytes : seen) CHECK(bytes == seen[0]);
}

TEST_CASE("one row of any stride is accepted") {
    Device d;
    Matmul m(d);
    const Tensor<float> a(1, 2, {3, 4}), b(1, 2, {5, 6});
    Tensor<float> y(1, 1);
    matmul(m, d, y.v, View<float>(a.v.data, 1, 2, 0), View<float>(b.v.data, 1, 2, 77), {}, {.transpose_b = true});
    CHECK(y.get()[0] == 39);
}

TEST_CASE("equal shapes with other strides are other products") {
    Device d;
    Matmul m(d);
    const Numbers numbers{1, 2, 3, 4};
    const Gapped<float> wide(2, 2, numbers, NAN);
    const Tensor<float> dense(2, 2, numbers);
    Gapped<float> y(2, 2, Numbers(4, 0.0), 5);
    Tensor<float> z(2, 2);
    for (const View<float>& a : {wide.v, dense.v})
        for (const View<float>& b : {wide.v, dense.v})
            for (const View<float>& to : {y.v, z.v}) matmul(m, d, to, a, b, {}, {.write = Write::add});
    CHECK(y.get() == Numbers{28, 40, 60, 88});         // four times the square of the matrix
    CHECK(z.get() == Numbers{28, 40, 60, 88});
    y.check_gaps(5);
}

#if defined(_OPENMP)
TEST_CASE("the caller's OpenMP team is what it was") {
    const int before = omp_get_max_threads();
    Device d;
    d.team = before + 1;
    Matmul m(d);
    const Tensor<float> a(3, 3, noise<float>(9, 1));
    Tensor<float> y(3, 3);
    matmul(m, d, y.v, a.v, a.v);
    CHECK(omp_get_max_threads() == before);
}
#endif

TEST_CASE("the engine has a name") { CHECK(!Matmul::engine().empty()); }

#if defined(__x86_64__) && defined(__linux__)
TEST_CASE("libraries are used for what this CPU is good at") {
    std::ifstream in("/proc/cpuinfo");
    const std::string cpu((std::istreambuf_iterator<char>(in)), {}), flags = cpu.substr(cpu.find("\nflags"));
    const auto has = [&](const char* flag) { return flags.substr(0, flags.find('\n', 1)).find(flag) != std::string::npos; };
    if (OneDnn::found && !has("amx_bf16"))
        CHECK(OneDnn::fast_bf16() == (has("avx512_bf16") && cpu.find("GenuineIntel") == std::string::npos));
    if (Cblas::found && has(" fma")) CHECK(Cblas::name().find("Prescott") == std::string::npos);
}
#endif

}
