// fp8_test.cu - kernels/fp8.h and fp8.h: scales, rounded factors and their products against loops in double, on parts too.
#include "comm/threads.h"
#include "fp8.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

// What fp8.h takes of a context.
struct Bench {
    Device& device;
    Matmul& matmul;
    Arena& scratch;
    Comm& comm;
};

template <class Body> void on_bench(Device& d, Body body) {
    Matmul matmul(d);
    Comm alone(d);
    Arena arena(size_t(4) << 20);
    Bench bench{d, matmul, arena, alone};
    body(bench);
}

Numbers sized(long n, int which, double size) {
    Numbers x = noise<bf16>(n, which);
    for (double& v : x) v = double(bf16(float(v * size)));
    return x;
}
double at(const Numbers& x, long cols, long row, long col) { return x[size_t(row * cols + col)]; }

// The scale of element (i, j), from the numbers themselves.
template <class F> double scale_at(const Numbers& x, long cols, Along along, Fp8 recipe, long i, long j) {
    double most = 0;
    for (long r = 0; r < long(x.size()) / cols; ++r)
        for (long c = 0; c < cols; ++c)
            if (recipe == Fp8::tensorwise || (along == Along::rows ? r == i : c == j))
                most = std::max(most, std::fabs(at(x, cols, r, c)));
    return double(F::most / float(std::max(most, 1e-12)));
}

// op(a) op(b), each element rounded to its format under its scale: sums in double.
template <class FA, class FB>
Numbers product(const Numbers& a, long a_cols, const Numbers& b, long b_cols, const MatmulOptions& o, Fp8 recipe) {
    const long a_rows = long(a.size()) / a_cols, b_rows = long(b.size()) / b_cols;
    const long M = o.transpose_a ? a_cols : a_rows, K = o.transpose_a ? a_rows : a_cols, N = o.transpose_b ? b_rows : b_cols;
    const Along along_a = o.transpose_a ? Along::columns : Along::rows, along_b = o.transpose_b ? Along::rows : Along::columns;
    const auto value = [&]<class F>(F, const Numbers& x, long cols, Along along, long i, long j) {
        const double scale = scale_at<F>(x, cols, along, recipe, i, j);
        return double(decode<F>(encode<F>(float(at(x, cols, i, j)) * float(scale)))) / scale;
    };
    Numbers qa, qb, y;
    for (long i = 0; i < a_rows; ++i)
        for (long j = 0; j < a_cols; ++j) qa.push_back(value(FA(), a, a_cols, along_a, i, j));
    for (long i = 0; i < b_rows; ++i)
        for (long j = 0; j < b_cols; ++j) qb.push_back(value(FB(), b, b_cols, along_b, i, j));
    for (long m = 0; m < M; ++m)
        for (long n = 0; n < N; ++n) {
            double sum = 0;
            for (long k = 0; k < K; ++k)
                sum += (o.transpose_a ? at(qa, a_cols, k, m) : at(qa, a_cols, m, k)) *
                       (o.transpose_b ? at(qb, b_cols, n, k) : at(qb, b_cols, k, n));
            y.push_back(sum);
        }
    return y;
}

}  // namespace

TEST_SUITE("fp8") {

TEST_CASE_TEMPLATE("a product is that of the rounded factors, whichever way they lie", Out, float, bf16) {
    const long M = 5, N = 33, K = 48;
    for (Fp8 recipe : {Fp8::tensorwise, Fp8::rowwise})
        for (const auto& [turn_a, turn_b] : {std::pair(false, true), {false, false}, {true, false}})
            for_each_block_size([&, turn_a = turn_a, turn_b = turn_b](Device& d) {
                CAPTURE(turn_a); CAPTURE(turn_b);
                const MatmulOptions o{.transpose_a = turn_a, .transpose_b = turn_b};
                const long a_cols = turn_a ? M : K, b_cols = turn_b ? K : N;
                const Numbers a = sized(M * K, 1, 3e-3), b = sized(N * K, 2, 40), bias = sized(N, 3, 1);
                const Tensor<bf16> ta(M * K / a_cols, a_cols, a), tb(N * K / b_cols, b_cols, b), tbias(1, N, bias);
                Tensor<Out> y(M, N);
                on_bench(d, [&](Bench& c) {
                    fp8_matmul<E5m2, E4m3, Out>(c, y.v, {ta.in(), Cut::none}, {tb.in(), Cut::none}, tbias.in(), o, recipe);
                });
                Numbers want = product<E5m2, E4m3>(a, a_cols, b, b_cols, o, recipe);
                for (size_t i = 0; i < want.size(); ++i) want[i] += bias[i % size_t(N)];
                CHECK(relative_error(want, y.get()) <= (std::is_same_v<Out, bf16> ? tolerance<bf16>() : 1e-5));
                y.check_guard();
            });
}

TEST_CASE("the codes that an FP8 unit gets are those of the rounded factors, summed along their rows") {
    const long M = 5, N = 70, K = 67;
    for (const auto& [recipe, gathered] : {std::pair(Fp8::tensorwise, false), {Fp8::rowwise, false}, {Fp8::tensorwise, true}})
        for (const auto& [turn_a, turn_b] : {std::pair(false, true), {false, false}, {true, false}})
            for_each_block_size([&, turn_a = turn_a, turn_b = turn_b, recipe = recipe, gathered = gathered](Device& d) {
                CAPTURE(turn_a); CAPTURE(turn_b);
                const long a_cols = turn_a ? M : K, b_cols = turn_b ? K : N;
                const Numbers a = sized(M * K, 1, 3e-3), b = sized(N * K, 2, 40);
                const Tensor<bf16> ta(M * K / a_cols, a_cols, a), tb(N * K / b_cols, b_cols, b);
                Numbers got;
                on_bench(d, [&](Bench& c) {
                    Scratch s(c.scratch);
                    const Fp8Rows qa = encoded<E5m2>(c, s, {ta.in(), Cut::none}, turn_a, recipe);
                    Fp8Factor factor{tb.in(), Cut::none};
                    if (gathered) {                    // b as FSDP brings it: numbers of E4M3, and what was the largest
                        const auto came = rounded<E4m3>(c, s, factor, turn_b ? Along::rows : Along::columns, recipe);
                        factor.x = came.x, factor.amax = came.amax;
                    }
                    const Fp8Rows qb = encoded<E4m3>(c, s, factor, !turn_b, recipe);
                    REQUIRE(qa.codes.cols == K); REQUIRE(qb.codes.rows == N); REQUIRE((qa.wide && !qb.wide));
                    const auto host = [&](auto v) {
                        std::vector<std::remove_cvref_t<decltype(*v.data)>> x(size_t(v.count()));
                        copy_bytes(d, x.data(), v.data, x.size() * sizeof x[0]);
                        return x;
                    };
                    const auto ca = host(qa.codes), cb = host(qb.codes);
                    const auto ua = host(qa.unit), ub = host(qb.unit);
                    for (long m = 0; m < M; ++m)
                        for (long n = 0; n < N; ++n) {
                            double sum = 0;
                            for (long k = 0; k < K; ++k)
                                sum += double(decode<E5m2>(ca[size_t(m * K + k)])) * decode<E4m3>(cb[size_t(n * K + k)]);
                            got.push_back(sum * ua[ua.size() > 1 ? size_t(m) : 0] * ub[ub.size() > 1 ? size_t(n) : 0]);
                        }
                });
                const MatmulOptions o{.transpose_a = turn_a, .transpose_b = turn_b};
                CHECK(relative_error(product<E5m2, E4m3>(a, a_cols, b, b_cols, o, recipe), got) <= 1e-6);
            });
}

TEST_CASE("the gradient of the input is of E5M2 by E4M3: numbers 1e-7 times the largest are not lost") {
    Device d;
    Numbers dy = sized(4 * 32, 1, 1);
    for (size_t k = 1; k < 32; ++k) dy[k] = std::ldexp(dy[k], -22);   // of the first row all but one
    const Numbers w = sized(32 * 16, 2, 1);
    const Tensor<bf16> tdy(4, 32, dy), tw(32, 16, w);
    for (Fp8 recipe : {Fp8::tensorwise, Fp8::rowwise}) {
        Tensor<bf16> dx(4, 16);
        on_bench(d, [&](Bench& c) { fp8_backward_input(c, dx.v, tdy.in(), {tw.v, {}, false, 0, Share::all, recipe}); });
        CHECK(relative_error(product<E5m2, E4m3>(dy, 32, w, 16, {}, recipe), dx.get()) <= tolerance<bf16>());
    }
    CHECK(decode<E5m2>(encode<E5m2>(scale_of<E5m2>(1) * std::ldexp(1.0f, -22))) > 0);
    CHECK(decode<E4m3>(encode<E4m3>(scale_of<E4m3>(1) * std::ldexp(1.0f, -22))) == 0);
}

TEST_CASE("a gradient is added to where it is told so") {
    Device d;
    const Numbers dy = sized(32 * 16, 1, 1), x = sized(32 * 48, 2, 1), before = noise<float>(16 * 48, 3);
    const Tensor<bf16> tdy(32, 16, dy), tx(32, 48, x);
    Tensor<float> g(16, 48, before);
    const Linear<float> layer{g.v, {}, false, 0, Share::all, Fp8::rowwise};
    on_bench(d, [&](Bench& c) { fp8_backward_weight(c, layer, tdy.in(), tx.in(), Write::add); });
    Numbers want = product<E5m2, E4m3>(dy, 16, x, 48, {.transpose_a = true}, Fp8::rowwise);
    for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
    CHECK(relative_error(want, g.get()) <= 1e-5);
    const Tensor<float> turned(48, 16);                // (in, out): the same numbers, the other way round
    on_bench(d, [&](Bench& c) {
        fp8_backward_weight(c, {turned.v, {}, true, 0, Share::all, Fp8::rowwise}, tdy.in(), tx.in(), Write::over);
    });
    for (long o = 0; o < 16; ++o)
        for (long i = 0; i < 48; ++i)
            CHECK(std::fabs(turned.get()[size_t(i * 16 + o)] - (want[size_t(o * 48 + i)] - before[size_t(o * 48 + i)])) < 1e-4);
}

TEST_CASE("one huge row spoils every row of a tensorwise product, and of a rowwise one only itself") {
    Device d;
    const long N = 4, K = 64, O = 16;
    Numbers x = sized(N * K, 1, 1);
    for (long k = 0; k < K; ++k) x[size_t(3 * K + k)] *= 1048576;
    const Numbers w = sized(O * K, 2, 1);
    const Tensor<bf16> tx(N, K, x), tw(O, K, w);
    const auto error = [&](Fp8 recipe) {
        Tensor<bf16> y(N, O);
        on_bench(d, [&](Bench& c) { fp8_forward(c, y.v, tx.in(), {tw.v, {}, false, 0, Share::all, recipe}); });
        Numbers got, want;
        for (long n = 0; n < 3; ++n)
            for (long o = 0; o < O; ++o) {
                double sum = 0;
                for (long k = 0; k < K; ++k) sum += at(x, K, n, k) * at(w, K, o, k);
                want.push_back(sum), got.push_back(at(y.get(), O, n, o));
            }
        return relative_error(want, got);
    };
    CHECK(error(Fp8::rowwise) < 0.05);
    CHECK(error(Fp8::tensorwise) > 0.5);
}

TEST_CASE("B11: factors of zeros give zeros, and a product of the tiniest numbers is finite") {
    Device d;
    for (Fp8 recipe : {Fp8::tensorwise, Fp8::rowwise})
        for (float size : {0.0f, 1e-38f, 1e-20f}) {
            const Tensor<bf16> x(4, 16, Numbers(64, double(bf16(size)))), w(16, 16, sized(256, 1, 1));
            Tensor<bf16> y(4, 16, Numbers(64, 1));
            on_bench(d, [&](Bench& c) { fp8_forward(c, y.v, x.in(), {w.v, {}, false, 0, Share::all, recipe}); });
            for (double v : y.get()) CHECK((size == 0 ? v == 0 : std::isfinite(v)));
        }
}

TEST_CASE("a number that is not finite is still seen behind the product") {
    Device d;
    for (Fp8 recipe : {Fp8::tensorwise, Fp8::rowwise}) {
        Numbers x = sized(4 * 16, 1, 1);
        x[17] = NAN;
        const Tensor<bf16> tx(4, 16, x), w(16, 16, sized(256, 2, 1));
        Tensor<bf16> y(4, 16);
        on_bench(d, [&](Bench& c) { fp8_forward(c, y.v, tx.in(), {w.v, {}, false, 0, Share::all, recipe}); });
        CHECK(std::isnan(y.get()[16]));
        CHECK(std::isfinite(y.get()[0]));
    }
}

TEST_CASE("B14: a product takes the weights as they are now") {
    Device d;
    const Tensor<bf16> x(4, 16, sized(64, 1, 1));
    Tensor<bf16> w(16, 16, sized(256, 2, 1)), y(4, 16), doubled(4, 16);
    const Linear<bf16> layer{w.v, {}, false, 0, Share::all, Fp8::tensorwise};
    on_bench(d, [&](Bench& c) {
        fp8_forward(c, y.v, x.in(), layer);
        Numbers twice = w.get();
        for (double& v : twice) v *= 2;
        w.set(twice);
        fp8_forward(c, doubled.v, x.in(), layer);
    });
    Numbers want = y.get();
    for (double& v : want) v *= 2;
    CHECK(doubled.get() == want);                      // a power of two: the same codes
}

Numbers numbers_of(Device& d, View<const bf16> v) {
    std::vector<bf16> host(size_t(v.count()));
    copy_bytes(d, host.data(), v.data, host.size() * sizeof(bf16));
    return {host.begin(), host.end()};
}
// A tensor cut by rows or columns over n ranks: together their rounded numbers are those of the whole, bit for bit.
TEST_CASE("parts on the ranks of tp are rounded as the whole is, whatever part a scale is for") {
    const long rows = 8, cols = 16;
    const Numbers x = [] {
        Numbers all = sized(8 * 16, 1, 1);
        for (size_t i = 0; i < all.size(); ++i) all[i] *= std::ldexp(1, int(i % 7));   // no two parts have one amax
        return all;
    }();
    for (Fp8 recipe : {Fp8::tensorwise, Fp8::rowwise})
        for (Along along : {Along::rows, Along::columns})
            for (bool by_rows : {true, false})
                for (int n : {2, 4}) {
                    CAPTURE(int(recipe)); CAPTURE(int(along)); CAPTURE(by_rows);
                    Device d;
                    const Tensor<bf16> whole(rows, cols, x);
                    Numbers want, got(x.size());
                    on_bench(d, [&](Bench& c) {
                        Scratch s(c.scratch);
                        const View<const bf16> q = rounded<E4m3>(c, s, {whole.in(), Cut::none}, along, recipe).x;
                        want = numbers_of(d, q);
                    });
                    ThreadWorld world;
                    run_threads(world, n, [&](int rank) {
                        const Mesh mesh{{1, 1, 1, 1, n}, rank};
                        Device device{.team = 1};
                        ThreadEngine engine(world, mesh, device);
                        Comm comm(device, mesh, &engine);
                        Matmul matmul(device);
                        Arena arena(size_t(1) << 16);
                        Bench c{device, matmul, arena, comm};
                        Scratch s(arena);
                        const long part = (by_rows ? rows : cols) / n;
                        const View<const bf16> mine = by_rows ? whole.in().row_range(rank * part, part)
                                                              : whole.in().col_range(rank * part, part);
                        const Cut cut = by_rows == (along == Along::rows) ? Cut::kept : Cut::summed;
                        const View<const bf16> q = rounded<E4m3>(c, s, {mine, cut}, along, recipe).x;
                        const Numbers host = numbers_of(device, q);
                        for (long i = 0; i < q.rows; ++i)
                            for (long j = 0; j < q.cols; ++j)
                                got[size_t((by_rows ? rank * part + i : i) * cols + (by_rows ? j : rank * part + j))] =
                                    host[size_t(i * q.cols + j)];
                        const bool asked = comm.ledger.size() > 0;
                        REQUIRE(asked == (cut == Cut::summed || recipe == Fp8::tensorwise));
                    });
                    CHECK(got == want);
                }
}

TEST_CASE("only layers of the blocks are in FP8, and of them only those whose sizes divide by 16") {
    const ModelShape shape{.family = "llama", .layers = 3, .dim = 32, .heads = 2, .kv_heads = 2, .head_dim = 16, .ffn = 40,
                           .vocab = 64, .seq = 16, .tied = false};
    for (const bool skip : {false, true}) {
        const Params params(shape, 1, {}, {Fp8::rowwise, skip});
        for (const Param& p : params.rows()) {
            CAPTURE(p.name);
            const bool inside = p.unit != ends_unit && p.decay() && !(skip && (p.unit == 1 || p.unit == 3));
            if (p.decay()) CHECK((params.fp8(p) == Fp8::rowwise) == (inside && p.place != Place::up_w && p.place != Place::down_w));
        }
        const Weights<bf16> ends = params.bind<bf16>(ends_unit, {}), block = params.bind<bf16>(2, {});
        CHECK(ends.head.fp8 == Fp8::off);
        CHECK(block.qkv.fp8 == Fp8::rowwise);
        CHECK(block.up.fp8 == Fp8::off);
    }
    const Params halves(shape, 1, {2, 0}, {Fp8::tensorwise, false});   // 16 rows of q a rank, 20 of the gate
    CHECK(halves.bind<bf16>(1, {}).qkv.fp8 == Fp8::tensorwise);
    CHECK(halves.bind<bf16>(1, {}).down.fp8 == Fp8::off);
}

}  // TEST_SUITE
