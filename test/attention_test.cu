// attention_test.cu - kernels/attention.h against plain fp64 loops; who must not see whom; NaN; shapes refused.
#include "kernels/attention.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

struct Shape {
    std::vector<long> documents;                       // lengths, of the queries
    long H, Hkv, D, cached = 0;                        // cached: rows of one earlier document's beginning, keys only
    long window = 0;
    long N() const { long n = 0; for (long d : documents) n += d; return n; }
    long M() const { return N() + cached; }
    long width() const { return (H + 2 * Hkv) * D; }
    std::vector<int> positions() const {               // a cache continues in the first document
        std::vector<int> p;
        for (size_t d = 0; d < documents.size(); ++d)
            for (long i = 0; i < documents[d]; ++i) p.push_back(int(i + (d == 0 ? cached : 0)));
        return p;
    }
    long first_key(long own, int position) const {
        return window > 0 && window <= position ? own - window + 1 : own - position;
    }
    std::vector<int> starts() const {
        std::vector<int> s{0};
        for (long d : documents) s.push_back(s.back() + int(d));
        return s;
    }
};

struct Result { Numbers out, lse, dqkv; };

// The truth: every query walks all the keys that it sees, in double. qkv: (M, width). dout and out: (N, H*D).
Result plain_forward(const Shape& s, const Numbers& qkv, double scale) {
    Result r{Numbers(size_t(s.N() * s.H * s.D)), Numbers(size_t(s.N() * s.H)), {}};
    const auto at = [&](long row, long col) { return qkv[size_t(row * s.width() + col)]; };
    const std::vector<int> positions = s.positions();
    for (long n = 0; n < s.N(); ++n)
        for (long h = 0; h < s.H; ++h) {
            const long own = s.cached + n, kv = s.H * s.D + h / (s.H / s.Hkv) * s.D;
            Numbers score;
            double top = -INFINITY, sum = 0;
            const long first = s.first_key(own, positions[size_t(n)]);
            for (long m = first; m <= own; ++m) {
                double dot = 0;
                for (long d = 0; d < s.D; ++d) dot += at(own, h * s.D + d) * at(m, kv + d);
                score.push_back(dot * scale), top = std::max(top, score.back());
            }
            for (double x : score) sum += std::exp(x - top);
            r.lse[size_t(n * s.H + h)] = top + std::log(sum);
            for (size_t j = 0; j < score.size(); ++j)
                for (long d = 0; d < s.D; ++d)
                    r.out[size_t((n * s.H + h) * s.D + d)] += std::exp(score[j] - top) / sum *
                        at(first + long(j), kv + s.Hkv * s.D + d);
        }
    return r;
}

// r.out and r.lse are what the forward pass gave.
void plain_backward(const Shape& s, Result& r, const Numbers& qkv, const Numbers& dout, double scale) {
    r.dqkv = Numbers(qkv.size());
    const auto at = [&](long row, long col) { return size_t(row * s.width() + col); };
    const std::vector<int> positions = s.positions();
    for (long n = 0; n < s.N(); ++n)
        for (long h = 0; h < s.H; ++h) {
            const long kv = s.H * s.D + h / (s.H / s.Hkv) * s.D, vv = kv + s.Hkv * s.D;
            double delta = 0;
            const size_t head = size_t((n * s.H + h) * s.D);
            for (long d = 0; d < s.D; ++d) delta += dout[head + size_t(d)] * r.out[head + size_t(d)];
            for (long m = s.first_key(n, positions[size_t(n)]); m <= n; ++m) {
                double score = 0, dp = 0;
                for (long d = 0; d < s.D; ++d) {
                    score += qkv[at(n, h * s.D + d)] * qkv[at(m, kv + d)] * scale;
                    dp += dout[head + size_t(d)] * qkv[at(m, vv + d)];
                }
                const double p = std::exp(score - r.lse[size_t(n * s.H + h)]), ds = p * (dp - delta) * scale;
                for (long d = 0; d < s.D; ++d) {
                    r.dqkv[at(n, h * s.D + d)] += ds * qkv[at(m, kv + d)];
                    r.dqkv[at(m, kv + d)] += ds * qkv[at(n, h * s.D + d)];
                    r.dqkv[at(m, vv + d)] += p * dout[head + size_t(d)];
                }
            }
        }
}

// The kernels on a packed qkv, with guard words behind every result and wide rows.
template <class T> Result run(Device& d, const Shape& s, const Numbers& qkv, const Numbers& dout, double scale) {
    const long N = s.N(), M = s.M(), qd = s.H * s.D, kd = s.Hkv * s.D, stride = s.width() + 3;
    const Numbers garbage(size_t(M * s.width()), NAN);  // results and scratch are overwritten, whatever was there
    const Tensor<T> x(M, s.width(), qkv, stride), dy(N, qd, dout), out(N, qd, Numbers(size_t(N * qd), NAN));
    const Tensor<T> dx(M, s.width(), garbage, stride);
    Tensor<Real<T>> lse(N, s.H), scratch(1, attention_scratch<T>(N, s.H, s.Hkv, s.D));
    lse.set(Numbers(size_t(lse.v.count()), NAN)), scratch.set(Numbers(size_t(scratch.v.count()), NAN));
    const std::vector<int> p = s.positions(), starts = s.starts();
    const Tensor<int> positions(1, N, Numbers(p.begin(), p.end()));
    const Tensor<int> documents(1, long(starts.size()), Numbers(starts.begin(), starts.end()));
    const View<const T> in = x.in();
    const AttentionInput<T> input{in.col_range(0, qd).row_range(s.cached, N), in.col_range(qd, kd),
                                  in.col_range(qd + kd, kd), positions.in(), documents.in(), s.D, Real<T>(scale), s.window};
    attention_forward<T>(d, out, lse, input);
    Result r{out.get(), lse.get(), {}};
    if (s.cached == 0) {
        const AttentionGrad<T> g{dx.v.col_range(0, qd), dx.v.col_range(qd, kd), dx.v.col_range(qd + kd, kd)};
        attention_backward<T>(d, g, dy.in(), out.in(), lse.in(), input, scratch);
        r.dqkv = dx.get();
    }
    out.check_guard(), lse.check_guard(), dx.check_guard(), scratch.check_guard();
    return r;
}

Numbers columns(const Numbers& x, long width, long first, long n) {
    Numbers y;
    for (size_t row = 0; row < x.size(); row += size_t(width))
        y.insert(y.end(), x.begin() + long(row) + first, x.begin() + long(row) + first + n);
    return y;
}
template <class T> void compare(Device& d, const Shape& s) {
    INFO("N ", s.N(), ", cached ", s.cached, ", H ", s.H, ", Hkv ", s.Hkv, ", D ", s.D, ", window ", s.window);
    const double scale = double(Real<T>(1.7 / std::sqrt(double(s.D)))), tol = tolerance<T>();
    const Numbers qkv = noise<T>(s.M() * s.width(), 1), dout = noise<T>(s.N() * s.H * s.D, 2);
    const Result got = run<T>(d, s, qkv, dout, scale);
    Result truth = plain_forward(s, qkv, scale);
    CHECK(relative_error(truth.out, got.out) < tol);
    CHECK(relative_error(truth.lse, got.lse) < tolerance<Real<T>>());
    if (s.cached) return;
    truth.out = got.out;                               // bf16 rounds it; delta is defined by what is stored
    plain_backward(s, truth, qkv, dout, scale);
    const long qd = s.H * s.D, kd = s.Hkv * s.D;
    CHECK(relative_error(truth.dqkv, got.dqkv) < 2 * tol);
    if (s.N() == 1 || s.window == 1) return;           // one key: dq and dk are 0 but for rounding
    const auto agree = [&](long first, long n) {
        const Numbers a = columns(truth.dqkv, s.width(), first, n), b = columns(got.dqkv, s.width(), first, n);
        CHECK(relative_error(a, b) < 2 * tol);
    };
    agree(0, qd), agree(qd, kd), agree(qd + kd, kd);
}

const bool fibers = max_threads > 1;                   // every CUDA thread is a fiber: keep it small

}  // namespace

TEST_SUITE("attention") {

TEST_CASE_TEMPLATE("outputs, lse and gradients agree with a plain loop over all keys seen", T, float, bf16, double) {
    for_each_block_size([](Device& d) {
        for (long N : {1, 2, 7, 31, 33, 64, 65, 130}) compare<T>(d, {{N}, 2, 1, fibers ? 8 : 20});
        for (long D : {1, 2, 8, 20, 33, 64, 72}) compare<T>(d, {{fibers ? 34 : 70}, 2, 1, D});
        compare<T>(d, {{37}, 1, 1, 8});
        compare<T>(d, {{37}, 4, 2, 8});
        compare<T>(d, {{37}, 6, 1, 8});
        compare<T>(d, {{37}, 3, 3, 8});
        compare<T>(d, {{3, 5, 1, 40, 67}, 4, 2, 8});
        compare<T>(d, {{64, 1, 64, 0, 2}, 2, 2, 8});
        compare<T>(d, {{0}, 2, 1, 8});
    });
}

TEST_CASE_TEMPLATE("the last queries of a longer row of keys see all of it: decoding", T, float, bf16, double) {
    for_each_block_size([](Device& d) {
        for (long cached : {1, 63, 64, 129})
            for (long N : {1, 8, 9, 40}) compare<T>(d, {{N}, 4, 2, 8, cached});
        compare<T>(d, {{2, 7}, 2, 1, 8, 70});          // the second document begins behind the cache
        compare<T>(d, {{1}, 2, 1, 256, 5});
    });
}

TEST_CASE_TEMPLATE("with a sliding window outputs and gradients agree with a plain loop", T, float, bf16, double) {
    for_each_block_size([](Device& d) {
        for (long window : {1, 2, 7, 31, 32, 33, 64, 65, 66, 129, 200}) {
            compare<T>(d, {{fibers ? 70 : 140}, 2, 1, 8, 0, window});
            compare<T>(d, {{3, 5, 40, 37}, 4, 2, 4, 0, window});
            for (long N : {1, 9}) compare<T>(d, {{N}, 2, 1, 4, 70, window});
        }
    });
}

// Values are one-hot by key row, scores are equal: out[n] lists the keys that n sees, each with the same weight.
TEST_CASE("E10: a window of w attends to exactly w keys, itself included") {
    for_each_block_size([](Device& d) {
        for (const long window : {1, 2, 5, 6, 7}) {
            const Shape s{{6}, 1, 1, 6, 0, window};
            Numbers qkv(size_t(6 * s.width()));
            for (long n = 0; n < 6; ++n) qkv[size_t(n * s.width() + 12 + n)] = 1;
            const Numbers out = run<double>(d, s, qkv, Numbers(36), 1).out;
            for (long n = 0; n < 6; ++n)
                for (long m = 0; m < 6; ++m) {
                    CAPTURE(window); CAPTURE(n); CAPTURE(m);
                    const bool seen = m <= n && m > n - window;
                    CHECK(out[size_t(n * 6 + m)] == doctest::Approx(seen ? 1.0 / double(std::min(n + 1, window)) : 0));
                }
        }
    });
}

TEST_CASE("gradients are the slopes of sum(dout * out)") {
    Device d;
    const Shape s{{3, 4}, 2, 1, 3};
    const Numbers qkv = noise<double>(s.N() * s.width(), 1), dout = noise<double>(s.N() * s.H * s.D, 2);
    const Result r = run<double>(d, s, qkv, dout, 0.6);
    const double step = 1e-5;
    Numbers slopes;
    for (size_t i = 0; i < qkv.size(); ++i) {
        double value[2] = {0, 0};
        for (int side : {0, 1}) {
            Numbers moved = qkv;
            moved[i] += side ? step : -step;
            const Numbers out = run<double>(d, s, moved, dout, 0.6).out;
            for (size_t j = 0; j < out.size(); ++j) value[side] += dout[j] * out[j];
        }
        slopes.push_back((value[1] - value[0]) / (2 * step));
    }
    CHECK(relative_error(slopes, r.dqkv) < 1e-8);
}

TEST_CASE("scores of 10,000 and more stay finite and right") {
    for_each_block_size([](Device& d) {
        const Shape s{{70}, 2, 1, 8};
        const Numbers qkv = noise<float>(s.N() * s.width(), 1), dout = noise<float>(s.N() * s.H * s.D, 2);
        const Result got = run<float>(d, s, qkv, dout, 16384), truth = plain_forward(s, qkv, 16384);
        CHECK(*std::max_element(truth.lse.begin(), truth.lse.end()) > 1e4);
        CHECK(*std::min_element(truth.lse.begin(), truth.lse.end()) < -1e4);   // the first query sees one key
        CHECK(relative_error(truth.lse, got.lse) < 1e-6);
        CHECK(relative_error(truth.out, got.out) < 2e-2);      // an ulp of a score is 1e-3
        for (double x : got.dqkv) CHECK(std::isfinite(x));
    });
}

TEST_CASE_TEMPLATE("another team or another run gives the same bits", T, float, bf16) {
    const Shape s{{40, 65, 25}, 4, 2, 8};
    const Numbers qkv = noise<T>(s.N() * s.width(), 1), dout = noise<T>(s.N() * s.H * s.D, 2);
    for_each_block_size([&](Device& d) {
        d.team = 1;
        const Result once = run<T>(d, s, qkv, dout, 0.4), again = run<T>(d, s, qkv, dout, 0.4);
        d.team = 2;
        const Result two = run<T>(d, s, qkv, dout, 0.4);
        CHECK((once.out == again.out && once.lse == again.lse && once.dqkv == again.dqkv));
        CHECK((once.out == two.out && once.lse == two.lse && once.dqkv == two.dqkv));
    });
}

// What changes when one element of row `row` of the middle document does: who may notice, who must, who must not.
// Query head 1 and KV head 0 are touched (H = 4, Hkv = 2), always in column 2 of the head.
enum class Place { q, k, v, dout };

struct Touched {
    Shape s{{37, 50, 41}, 4, 2, 8};
    long begin = 37, end = 87, row = 66;
    Place place;
    bool query(long n, long h) const {                 // out of this row and head may change
        if (place == Place::q) return n == row && h == 1;
        return (place == Place::k || place == Place::v) && n >= row && n < end && h < 2;
    }
    bool dq(long n, long h) const { return place == Place::dout ? n == row && h == 1 : query(n, h); }
    bool dkv(long m, long kv) const {                  // the keys that an affected query sees
        const bool one_query = place == Place::q || place == Place::dout;
        return kv == 0 && m >= begin && m < (one_query ? row + 1 : end);
    }
};

// Elements outside the reach of the change that are not the same, and NaNs that should have arrived and did not.
struct Count { long leaks = 0, hidden = 0; };

Count count_changes(const Touched& t, const Result& a, const Result& b) {
    Count c;
    const auto look = [&](double before, double after, bool may, bool must) {
        c.leaks += !may && before != after;
        c.hidden += must && std::isfinite(after);
    };
    const Shape& s = t.s;
    for (long n = 0; n < s.N(); ++n) {
        for (long h = 0; h < s.H; ++h) {
            const bool may = t.query(n, h), lse_may = may && t.place != Place::v;
            look(a.lse[size_t(n * s.H + h)], b.lse[size_t(n * s.H + h)], lse_may, lse_may);
            for (long d = 0; d < s.D; ++d) {
                const size_t i = size_t((n * s.H + h) * s.D + d), j = size_t(n * s.width() + h * s.D + d);
                const bool column = may && (t.place != Place::v || d == 2);
                look(a.out[i], b.out[i], column, column);
                look(a.dqkv[j], b.dqkv[j], t.dq(n, h), t.dq(n, h));
            }
        }
        for (long kv = 0; kv < s.Hkv; ++kv)
            for (long d = 0; d < s.D; ++d) {
                const size_t k = size_t(n * s.width() + (s.H + kv) * s.D + d), v = k + size_t(s.Hkv * s.D);
                look(a.dqkv[k], b.dqkv[k], t.dkv(n, kv), t.dkv(n, kv));
                look(a.dqkv[v], b.dqkv[v], t.dkv(n, kv), t.dkv(n, kv) && t.place != Place::v && d == 2);
            }
    }
    return c;
}

TEST_CASE_TEMPLATE("a change, a NaN, an infinity reach those who see them and nobody else", T, float, bf16, double) {
    for_each_block_size([](Device& d) {
        for (Place place : {Place::q, Place::k, Place::v, Place::dout})
            for (double value : {3.0, double(NAN), double(INFINITY), -double(INFINITY)}) {
                INFO("place ", int(place), ", value ", value);
                Touched t{};
                t.place = place;
                const Shape& s = t.s;
                Numbers qkv = noise<T>(s.N() * s.width(), 1), dout = noise<T>(s.N() * s.H * s.D, 2);
                const Result before = run<T>(d, s, qkv, dout, 0.4);
                const long column = place == Place::q ? s.D : place == Place::k ? s.H * s.D : (s.H + s.Hkv) * s.D;
                if (place == Place::dout) dout[size_t(t.row * s.H * s.D + s.D + 2)] = value;
                else qkv[size_t(t.row * s.width() + column + 2)] = value;
                const Result after = run<T>(d, s, qkv, dout, 0.4);
                const Count c = count_changes(t, before, after);
                CHECK(c.leaks == 0);
                CHECK((before.out != after.out || place == Place::dout));
                CHECK(before.dqkv != after.dqkv);
                if (std::isnan(value)) CHECK(c.hidden == 0);
            }
    });
}

TEST_CASE("values that are not finite arrive in the decoding kernel, and only at those who see them") {
    for_each_block_size([](Device& d) {
        const Shape s{{4, 4}, 2, 1, 8};                // eight queries: the kernel for few of them
        Numbers qkv = noise<float>(s.N() * s.width(), 1), dout = noise<float>(s.N() * s.H * s.D, 2);
        const Result before = run<float>(d, s, qkv, dout, 0.4);
        qkv[size_t(2 * s.width() + 3 * s.D + 5)] = INFINITY;   // v of row 2, column 5
        const Result after = run<float>(d, s, qkv, dout, 0.4);
        for (size_t i = 0; i < after.out.size(); ++i) {
            const size_t n = i / size_t(s.H * s.D), column = i % size_t(s.D);
            if ((n == 2 || n == 3) && column == 5) CHECK(after.out[i] == INFINITY);
            else CHECK(after.out[i] == before.out[i]);
        }
    });
}

TEST_CASE("a key whose score is minus infinity has no weight; a query that has no other is not a number") {
    for_each_block_size([](Device& d) {
        const Shape s{{12}, 1, 1, 8};
        Numbers qkv = noise<float>(s.N() * s.width(), 1), dout = noise<float>(s.N() * s.D, 2);
        for (long n = 0; n < 12; ++n) qkv[size_t(n * s.width())] = 0.5;        // q column 0 is positive
        qkv[size_t(s.D)] = -INFINITY;                                          // k of row 0, column 0
        const Result got = run<float>(d, s, qkv, dout, 0.4), truth = plain_forward(s, qkv, 0.4);
        CHECK(std::isnan(got.out[0]));
        const auto tail = [&](const Numbers& x) { return Numbers(x.begin() + s.D, x.end()); };
        CHECK(relative_error(tail(truth.out), tail(got.out)) < 4e-6);
    });
}

// The message of what f throws.
template <class F> std::string refusal(F f) {
    try { f(); } catch (const Error& e) { return e.what(); }
    return "nothing was thrown";
}
bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_CASE("shapes that do not fit are refused with both numbers, and nothing runs") {
    Device d;
    d.dry = true;
    float* const p = nullptr;
    const auto view = [&](long rows, long cols) { return View<float>(p, rows, cols); };
    const AttentionInput<float> good{view(5, 16), view(5, 8), view(5, 8), View<const int>(nullptr, 1, 5),
                                     View<const int>(nullptr, 1, 2), 4, 0.5f};
    const auto forward = [&](auto change) {
        AttentionInput<float> in = good;
        change(in);
        return refusal([&] { attention_forward<float>(d, view(5, 16), view(5, 4), in); });
    };
    const auto is = [&](const std::string& message, const char* words, const char* numbers) {
        INFO(message);
        CHECK(contains(message, words));
        CHECK(contains(message, numbers));
    };
    CHECK(forward([](auto&) {}) == "nothing was thrown");
    is(forward([&](auto& in) { in.q = view(5, 18); }), "columns of q", "16 != 18");
    is(forward([&](auto& in) { in.k = view(5, 9); }), "columns of k", "8 != 9");
    is(forward([&](auto& in) { in.k = in.v = view(5, 12); }), "groups", "12 != 16");
    is(forward([&](auto& in) { in.v = view(5, 4); }), "columns of v and k", "4 != 8");
    is(forward([&](auto& in) { in.v = view(6, 8); }), "rows of v and k", "6 != 5");
    is(forward([&](auto& in) { in.k = in.v = view(4, 8); }), "as many keys", "5 != 4");
    is(forward([&](auto& in) { in.positions.cols = 4; }), "position", "4 != 5");
    is(forward([&](auto& in) { in.head_dim = 0; }), "head size", "");
    is(forward([&](auto& in) { in.q = in.k = in.v = view(5, 257), in.head_dim = 257; }), "largest head", "256 != 257");
    is(refusal([&] { attention_forward<float>(d, view(4, 16), view(5, 4), good); }), "out and q", "4 != 5");
    is(refusal([&] { attention_forward<float>(d, view(5, 12), view(5, 4), good); }), "out and q", "12 != 16");
    is(refusal([&] { attention_forward<float>(d, view(5, 16), view(5, 2), good); }), "lse", "2 != 4");
    is(refusal([&] { attention_forward<float>(d, view(5, 16), view(3, 4), good); }), "lse", "3 != 5");

    const long need = attention_scratch<float>(5, 4, 2, 4);
    CHECK(need == 5 * 4 * 4 + 5 * 4);                  // dq so far, and delta: nothing that grows with the square of N
    const auto backward = [&](AttentionGrad<float> g, View<float> dout, long elements, AttentionInput<float> in) {
        return refusal([&] {
            attention_backward<float>(d, g, dout, view(5, 16), view(5, 4), in, view(1, elements));
        });
    };
    const AttentionGrad<float> g{view(5, 16), view(5, 8), view(5, 8)};
    CHECK(backward(g, view(5, 16), need, good) == "nothing was thrown");
    is(backward(g, view(5, 16), need - 1, good), "scratch", "99 != 100");
    is(backward(g, view(5, 8), need, good), "dout", "8 != 16");
    is(backward({view(4, 16), g.dk, g.dv}, view(5, 16), need, good), "dq", "4 != 5");
    is(backward({g.dq, view(5, 4), g.dv}, view(5, 16), need, good), "dk", "4 != 8");
    is(backward({g.dq, g.dk, view(6, 8)}, view(5, 16), need, good), "dv", "6 != 5");
    AttentionInput<float> decoding = good;
    decoding.k = decoding.v = view(7, 8);
    is(backward(g, view(5, 16), need, decoding), "backward", "7 != 5");
}

}  // TEST_SUITE
