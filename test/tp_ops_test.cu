// tp_ops_test.cu - tp.h, function by function: what all ranks do together is what one rank would, and each backward
// pass is the adjoint of its forward pass: <A x, y> = <x, A* y>.
#include "comm/threads.h"
#include "tp.h"
#include "test/harness.h"
#include <numeric>

using namespace baretrain;
using namespace baretrain::test;

namespace {

using Row = std::vector<int>;
constexpr long N = 12, C = 24, F = 36, V = 101;        // rows, channels, hidden units, ids

// Matrices of F outputs or inputs; ids don't divide.
ModelShape shape_of(bool gpt2) {
    return {.family = gpt2 ? "gpt2" : "llama", .layers = 1, .dim = C, .heads = 12, .kv_heads = 12, .head_dim = gpt2 ? 2 : 4,
            .ffn = F, .vocab = V, .seq = N, .tied = false};
}

// A rank of t, with what it says of both products.
struct Member {
    Context<double>& c;
    const Params& params;
    int rank;
    double &left, &right;

    // Of rows (N, cols): those of the residual stream that are mine.
    Numbers my(const Numbers& rows, long cols) const {
        const long n = c.sp ? N / c.comm.size(Axis::tp) : N, first = c.sp ? rank * n : 0;
        return {rows.begin() + first * cols, rows.begin() + (first + n) * cols};
    }
    long my_rows() const { return c.sp ? N / c.comm.size(Axis::tp) : N; }
    // What my rows of the residual stream are worth in a product: without --sp all ranks have the same.
    double once(double product) const { return c.sp || rank == 0 ? product : 0; }
    Numbers own(long n, int which) const { return noise<double>(n, 100 * (rank + 1) + which); }
};

double dot(const Numbers& u, const Numbers& v) {
    REQUIRE(u.size() == v.size());
    return std::inner_product(u.begin(), u.end(), v.begin(), 0.0);
}
Numbers numbers(View<const double> v) {
    Numbers all;
    for (long r = 0; r < v.rows; ++r) all.insert(all.end(), v.row(r), v.row(r) + v.cols);
    return all;
}

// body(slice) on 1, 2, 3 and 4 ranks, with and without --sp. Both products, of all ranks, have to be the same; a body
// that gives none checks by itself.
template <class Body> void on_slices(Body body, bool gpt2 = false, bool products = true) {
    for (const int t : {1, 2, 3, 4})
        for (const bool sp : {false, true}) {
            CAPTURE(t); CAPTURE(sp); CAPTURE(gpt2);
            std::vector<double> left(4), right(4);
            const ModelShape shape = shape_of(gpt2);
            ThreadWorld world;
            run_threads(world, t, [&](int rank) {
                const Mesh mesh{{1, 1, 1, 1, t}, rank};
                Device d{.team = 1};
                ThreadEngine engine(world, mesh, d);
                Comm comm(d, mesh, &engine);
                Matmul matmul(d);
                Arena scratch(size_t(1) << 20);
                const Params params(shape, 1, {t, rank});
                Context<double> c{d, matmul, scratch, params.local(), {}, comm, sp};
                body(Member{c, params, rank, left[size_t(rank)], right[size_t(rank)]});
            });
            if (!products) continue;
            const double a = std::accumulate(left.begin(), left.end(), 0.0);
            const double b = std::accumulate(right.begin(), right.end(), 0.0);
            CHECK(std::fabs(a) > 1e-3);
            CHECK(std::fabs(a - b) < 1e-12 * (1 + std::fabs(a)));
        }
}

// A unit of this rank, of which the element e of each whole tensor is number e of a noise of the tensor's own.
struct Unit {
    Buffer buffer;
    Weights<double> w;
    Unit(const Params& params, int unit, bool zero = false) : buffer(size_t(params.unit_size(unit)) * sizeof(double)) {
        const View<double> flat(static_cast<double*>(buffer.data()), 1, params.unit_size(unit));
        int which = 50;
        for (const Param& p : params.rows()) {
            const Numbers whole = noise<double>(p.whole_rows * p.whole_cols, which++);
            if (p.unit != unit || zero) continue;
            p.for_each_run({0, p.count()}, [&](long mine, long at, long n) {
                std::copy_n(whole.begin() + at, n, flat.data + p.offset + mine);
            });
        }
        w = params.bind(unit, flat);
    }
};

// The rows of a micro-batch: tokens, some of them twice, and positions.
struct Tokens {
    Row tokens, positions;
    Tensor<int> t, p;
    struct Grouped {
        Tensor<int> rows, starts, keys;
        static Tensor<int> put(const Row& v) { return Tensor<int>(1, long(v.size()), Numbers(v.begin(), v.end())); }
        explicit Grouped(const Runs& r) : rows(put(r.rows)), starts(put(r.starts)), keys(put(r.keys)) {}
        RunViews views() const { return {rows.in(), starts.in(), keys.in()}; }
    } by_token, by_position;
    Tokens(Row tokens, Row positions)
        : tokens(tokens), positions(positions), t(Grouped::put(tokens)), p(Grouped::put(positions)),
          by_token(Runs(tokens, V)), by_position(Runs(positions, N)) {}
};
Tokens some_tokens() { return {{0, 100, 25, 26, 33, 34, 51, 50, 100, 77, 67, 26}, {0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 0}}; }

}  // namespace

TEST_SUITE("tp_ops") {

TEST_CASE("rows: those of all ranks are gathered; what goes back is the sum of what each does with them") {
    on_slices([](const Member& s) {
        const Numbers x = noise<double>(N * C, 1), y = s.own(N * C, 2);
        Tensor<double> whole(N, C, Numbers(size_t(N * C), 7)), back(N, C, y);
        copy<double, double>(s.c.device, my_rows<double>(s.c, whole.v), Tensor<double>(s.my_rows(), C, s.my(x, C)).in());
        gather_rows<double>(s.c, whole.v);
        CHECK(whole.get() == x);
        sum_rows<double>(s.c, back.v);
        s.left = dot(whole.get(), y), s.right = s.once(dot(s.my(x, C), numbers(my_rows<double>(s.c, back.v))));
    });
    on_slices([](const Member& s) {                    // the same, from memory of its own
        const Numbers x = noise<double>(N * C, 1), y = s.own(N * C, 2);
        const Tensor<double> mine(s.my_rows(), C, s.my(x, C));
        Scratch memory(s.c.scratch);
        CHECK(numbers(all_rows<double>(s.c, memory, mine.in())) == x);
        Tensor<double> back(N, C, y);
        sum_rows<double>(s.c, back.v);
        s.left = dot(x, y), s.right = s.once(dot(mine.get(), numbers(my_rows<double>(s.c, back.v))));
    });
    on_slices([](const Member& s) {                    // and the other way round
        const Numbers x = s.own(N * C, 1), y = noise<double>(N * C, 2);
        Tensor<double> sums(N, C, x);
        sum_rows<double>(s.c, sums.v);
        Scratch memory(s.c.scratch);
        const Tensor<double> mine(s.my_rows(), C, s.my(y, C));
        s.left = s.once(dot(numbers(my_rows<double>(s.c, sums.v)), mine.get()));
        s.right = dot(x, numbers(all_rows<double>(s.c, memory, mine.in())));
    });
}

TEST_CASE("enter: the norm of all rows; back come the gradients of one rank that has all rows and the sum of all dy") {
    for (const bool layernorm : {true, false})
        on_slices([&](const Member& s) {
            const Numbers x = noise<double>(N * C, 1), dx0 = noise<double>(N * C, 3), dy = s.own(N * C, 2);
            Numbers sum(dy.size());
            for (int r = 0; r < s.c.comm.size(Axis::tp); ++r)
                for (size_t i = 0; i < sum.size(); ++i) sum[i] += noise<double>(N * C, 100 * (r + 1) + 2)[i];
            const Tensor<double> w(1, C, noise<double>(C, 4)), b(1, C, noise<double>(C, 5));
            Tensor<double> gw(1, C), gb(1, C), one_gw(1, C), one_gb(1, C);
            const View<double> bias = layernorm ? b.v : View<double>(), none;
            const Norm<double> norm{w.v, bias}, g{gw.v, layernorm ? gb.v : none}, one_g{one_gw.v, layernorm ? one_gb.v : none};

            const Tensor<double> all(N, C, x), mine(s.my_rows(), C, s.my(x, C));
            Tensor<double> one(N, C), one_stats(N, 2), y(N, C), stats(s.my_rows(), 2);
            norm_forward<double>(s.c, one.v, one_stats.v, all.in(), norm);
            enter<double>(s.c, y.v, stats.v, mine.in(), norm);
            CHECK(y.get() == one.get());

            Tensor<double> one_dx(N, C, dx0), one_dy(N, C, sum), dx(s.my_rows(), C, s.my(dx0, C)), part(N, C, dy);
            norm_backward<double>(s.c, one_dx.v, one_dy.in(), all.in(), one_stats.in(), {norm, one_g, Write::over});
            enter_backward<double>(s.c, dx.v, part.v, mine.in(), stats.in(), {norm, g, Write::over});
            CHECK(relative_error(s.my(one_dx.get(), C), dx.get()) < 1e-12);
            // The norm is linear in its weights: every rank does something of its own with all rows.
            s.left = dot(y.get(), dy);
            s.right = s.once(dot(w.get(), gw.get()) + (layernorm ? dot(b.get(), gb.get()) : 0));
        }, layernorm);
}

TEST_CASE("leave: a layer of all inputs, from each rank's part of them, with its bias once; and the way back") {
    for (const bool gpt2 : {false, true})
        on_slices([&](const Member& s) {
            Unit unit(s.params, block_unit(0)), grads(s.params, block_unit(0), true);
            const long part = F / s.c.comm.size(Axis::tp);
            const Numbers x = s.own(N * part, 1), dy = noise<double>(N * C, 2), bias = numbers(unit.w.down.b);
            const Tensor<double> tx(N, part, x), tdy(s.my_rows(), C, s.my(dy, C));
            Tensor<double> y(N, C), dx(N, part);
            const Numbers got = numbers(leave<double>(s.c, y.v, tx.in(), unit.w.down));
            leave_backward<double>(s.c, dx.v, tdy.in(), tx.in(), {unit.w.down, grads.w.down, Write::over});

            // By plain loops, from what all ranks have.
            const Params whole(shape_of(gpt2));
            const Unit all(whole, block_unit(0));
            Numbers truth(size_t(N * C), 0);
            for (int r = 0; r < s.c.comm.size(Axis::tp); ++r) {
                const Numbers theirs = noise<double>(N * part, 100 * (r + 1) + 1);
                for (long n = 0; n < N; ++n)
                    for (long c = 0; c < C; ++c) {
                        double& to = truth[size_t(n * C + c)];
                        if (r == 0 && gpt2) to += bias[size_t(c)];
                        for (long i = 0; i < part; ++i) {
                            const long in = r * part + i;
                            to += theirs[size_t(n * part + i)] * (gpt2 ? all.w.down.w.row(in)[c] : all.w.down.w.row(c)[in]);
                        }
                    }
            }
            CHECK(relative_error(s.my(truth, C), got) < 1e-12);
            // Linear in x, and in the weights with the bias.
            const double b_db = gpt2 ? dot(bias, numbers(grads.w.down.b)) : 0;
            s.left = s.once(dot(got, tdy.get())) - (s.rank == 0 ? b_db : 0), s.right = dot(x, dx.get());
            CHECK(std::fabs(dot(numbers(unit.w.down.w), numbers(grads.w.down.w)) - s.right) < 1e-12 * 100);
            if (!gpt2) return;
            for (long c = 0; c < C; ++c) {             // every rank has the whole gradient of the bias
                double sum = 0;
                for (long n = 0; n < N; ++n) sum += dy[size_t(n * C + c)];
                CHECK(std::fabs(grads.w.down.b.data[c] - sum) < 1e-12);
            }
        }, gpt2);
}

TEST_CASE("embedding: each id from the rank that has it, positions once; each gradient to the rank that has the row") {
    on_slices([](const Member& s) {
        const Unit unit(s.params, ends_unit), grads(s.params, ends_unit, true);
        const Params whole(shape_of(true));
        const Unit all(whole, ends_unit);
        const Tokens rows = some_tokens();
        const Numbers dx = noise<double>(N * C, 2);
        Tensor<double> x(s.my_rows(), C);
        const Tensor<double> tdx(s.my_rows(), C, s.my(dx, C));
        embed_forward<double>(s.c, x.v, unit.w, rows.t.in(), rows.p.in());
        embed_backward<double>(s.c, grads.w, tdx.in(), rows.by_token.views(), rows.by_position.views());
        Numbers truth, dwpe(size_t(N * C), 0);
        for (size_t n = 0; n < size_t(N); ++n)
            for (long c = 0; c < C; ++c) {
                truth.push_back(all.w.wte.row(rows.tokens[n])[c] + all.w.wpe.row(rows.positions[n])[c]);
                dwpe[size_t(rows.positions[n] * C + c)] += dx[n * size_t(C) + size_t(c)];
            }
        CHECK(x.get() == s.my(truth, C));
        CHECK(relative_error(dwpe, numbers(grads.w.wpe)) < 1e-12);   // every rank has all of it
        s.left = s.once(dot(x.get(), tdx.get()));
        s.right = dot(numbers(unit.w.wte), numbers(grads.w.wte)) + (s.rank ? 0 : dot(numbers(unit.w.wpe), dwpe));
    }, true);
}

TEST_CASE("cross-entropy of a vocabulary in parts is that of the whole, with ignored targets and logits of +-1e4") {
    for (const double scale : {1.0, 1e4})
        on_slices([&](const Member& s) {
            Numbers z = noise<double>(N * V, 6);
            for (double& v : z) v *= scale;
            z[3] = scale, z[size_t(V) + 100] = -scale, z[2 * size_t(V) + 60] = 2 * scale;
            const Row targets{3, 100, 60, ignored, 0, 25, 26, 50, ignored, 51, 75, 76};
            const Tensor<int> t(1, N, Numbers(targets.begin(), targets.end()));
            const long part = (V + s.c.comm.size(Axis::tp) - 1) / s.c.comm.size(Axis::tp), first = s.rank * part;
            const long mine = std::min(part, V - first);
            const double weight = -0.125;
            Numbers logprob, lse, dz, my_z;
            for (long n = 0; n < N; ++n) {
                const double* const row = z.data() + n * V;
                const double top = *std::max_element(row, row + V);
                const double sum = std::accumulate(row, row + V, 0.0, [&](double a, double v) { return a + std::exp(v - top); });
                lse.push_back(top + std::log(sum));
                const int target = targets[size_t(n)];
                logprob.push_back(target == ignored ? 0 : row[target] - top - std::log(sum));
                for (long v = first; v < first + mine; ++v) {
                    my_z.push_back(row[v]);
                    const double p = std::exp(row[v] - lse.back());
                    dz.push_back(target == ignored ? 0 : weight * ((v == target) - p));
                }
            }
            const Tensor<double> logits(N, mine, my_z, part + 3);   // rows with gaps
            const Tensor<double> scale(1, 1, Numbers{weight});
            Tensor<double> got_lse(1, N), got(1, N), again(1, N), grad(N, mine);
            vocabulary_logprobs<double>(s.c, got.v, got_lse.v, logits.in(), t.in(), first);
            vocabulary_cross_entropy<double>(s.c, grad.v, again.v, logits.v, t.in(), scale.in(), first);
            CHECK(relative_error(lse, got_lse.get()) < 1e-12);
            CHECK(relative_error(logprob, got.get()) < 1e-12);
            CHECK(again.get() == got.get());
            const Numbers d = grad.get();
            double worst = 0;
            for (size_t i = 0; i < d.size(); ++i) worst = std::max(worst, std::fabs(d[i] - dz[i]));
            CHECK(worst < 1e-12);
            logits.check_guard(), grad.check_guard();
            vocabulary_cross_entropy<double>(s.c, logits.v, again.v, logits.v, t.in(), scale.in(), first);   // in place
            CHECK(logits.get() == d);
        }, false, false);
}

TEST_CASE("logits are put together without what the last rank lacks; tensors, on the host of who asks") {
    on_slices([](const Member& s) {
        const Numbers z = noise<double>(3 * V, 8);
        const Param wte = s.params.rows()[0];
        Numbers mine, all(z.size(), NAN);
        for (long row : {0L, V, 2 * V})
            mine.insert(mine.end(), z.begin() + row + wte.first_row, z.begin() + row + wte.first_row + wte.rows);
        gather_logits<double>(s.c, Tensor<double>(3, wte.rows, mine, 104).in(), s.rank == 0 ? all.data() : nullptr);
        if (s.rank == 0) CHECK(all == z);
        for (const bool gpt2 : {false, true}) {
            const ModelShape shape = shape_of(gpt2);
            const Params whole(shape), params(shape, 1, s.params.slice());
            for (int u : {ends_unit, block_unit(0)}) {
                const Unit unit(params, u), all(whole, u);
                for (size_t i = 0; i < params.rows().size(); ++i) {
                    const Param &p = params.rows()[i], &w = whole.rows()[i];
                    if (p.unit != u) continue;
                    CAPTURE(p.name);
                    Numbers host(size_t(w.count()), NAN);
                    gather_tensor<double>(s.c, w, View<const double>(unit.w.flat.col_range(p.offset, p.count())),
                                          s.rank == 0 ? host.data() : nullptr);
                    if (s.rank == 0) CHECK(host == numbers(all.w.flat.col_range(w.offset, w.count())));
                }
            }
        }
    }, false, false);
}

}
