// attention_test.cu - kernels/attention.h against plain fp64 loops; what must not see what; NaN; shapes that are refused.
#include "kernels/attention.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

struct Shape {
    std::vector<long> documents;                       // lengths, of the queries
    long H, Hkv, D, cached = 0;                        // cached: rows of one earlier document's beginning, keys only
    long N() const { long n = 0; for (long d : documents) n += d; return n; }
    long M() const { return N() + cached; }
    long width() const { return (H + 2 * Hkv) * D; }
    std::vector<int> positions() const {               // a cache continues in the first document
        std::vector<int> p;
        for (size_t d = 0; d < documents.size(); ++d)
            for (long i = 0; i < documents[d]; ++i) p.push_back(int(i + (d == 0 ? cached : 0)));
        return p;
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
            for (long m = own - positions[size_t(n)]; m <= own; ++m) {
                double dot = 0;
                for (long d = 0; d < s.D; ++d) dot += at(own, h * s.D + d) * at(m, kv + d);
                score.push_back(dot * scale), top = std::max(top, score.back());
            }
            for (double x : score) sum += std::exp(x - top);
            r.lse[size_t(n * s.H + h)] = top + std::log(sum);
            for (size_t j = 0; j < score.size(); ++j)
                for (long d = 0; d < s.D; ++d)
                    r.out[size_t((n * s.H + h) * s.D + d)] += std::exp(score[j] - top) / sum *
                        at(own - positions[size_t(n)] + long(j), kv + s.Hkv * s.D + d);
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
            for (long d = 0; d < s.D; ++d) delta += dout[size_t((n * s.H + h) * s.D + d)] * r.out[size_t((n * s.H + h) * s.D + d)];
            for (long m = n - positions[size_t(n)]; m <= n; ++m) {
                double score = 0, dp = 0;
                for (long d = 0; d < s.D; ++d) {
                    score += qkv[at(n, h * s.D + d)] * qkv[at(m, kv + d)] * scale;
                    dp += dout[size_t((n * s.H + h) * s.D + d)] * qkv[at(m, vv + d)];
                }
                const double p = std::exp(score - r.lse[size_t(n * s.H + h)]), ds = p * (dp - delta) * scale;
                for (long d = 0; d < s.D; ++d) {
                    r.dqkv[at(n, h * s.D + d)] += ds * qkv[at(m, kv + d)];
                    r.dqkv[at(m, kv + d)] += ds * qkv[at(n, h * s.D + d)];
                    r.dqkv[at(m, vv + d)] += p * dout[size_t((n * s.H + h) * s.D + d)];
                }
            }
        }
}

// The kernels on a packed qkv, with guard words behind every result and wide rows.
template <class T> Result run(Device& d, const Shape& s, const Numbers& qkv, const Numbers& dout, double scale) {
    const long N = s.N(), M = s.M(), qd = s.H * s.D, kd = s.Hkv * s.D, stride = s.width() + 3;
    const Tensor<T> x(M, s.width(), qkv, stride), dy(N, qd, dout), out(N, qd), dx(M, s.width(), stride);
    const Tensor<Real<T>> lse(N, s.H), scratch(1, attention_scratch<T>(N, s.H, s.Hkv, s.D));
    const std::vector<int> p = s.positions(), starts = s.starts();
    const Tensor<int> positions(1, N, Numbers(p.begin(), p.end()));
    const Tensor<int> documents(1, long(starts.size()), Numbers(starts.begin(), starts.end()));
    const View<const T> in = x.in();
    const AttentionInput<T> input{in.col_range(0, qd).row_range(s.cached, N), in.col_range(qd, kd), in.col_range(qd + kd, kd),
                                  positions.in(), documents.in(), s.D, Real<T>(scale)};
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
[[maybe_unused]] Numbers rows(const Numbers& x, long width, long first, long n) {
    return Numbers(x.begin() + first * width, x.begin() + (first + n) * width);
}

template <class T> void compare(Device& d, const Shape& s) {
    INFO("N ", s.N(), ", cached ", s.cached, ", H ", s.H, ", Hkv ", s.Hkv, ", D ", s.D);
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
    if (s.N() == 1) return;                            // one key: dq and dk are 0 but for rounding
    CHECK(relative_error(columns(truth.dqkv, s.width(), 0, qd), columns(got.dqkv, s.width(), 0, qd)) < 2 * tol);
    CHECK(relative_error(columns(truth.dqkv, s.width(), qd, kd), columns(got.dqkv, s.width(), qd, kd)) < 2 * tol);
    CHECK(relative_error(columns(truth.dqkv, s.width(), qd + kd, kd), columns(got.dqkv, s.width(), qd + kd, kd)) < 2 * tol);
}

const bool fibers = max_threads > 1;                   // every CUDA thread is a fiber: keep it small

}  // namespace

TEST_SUITE("attention") {

TEST_CASE_TEMPLATE("outputs, lse and gradients agree with a plain loop over the keys that a query sees", T, float, bf16, double) {
    for_each_block_size([](Device& d) {
        for (long N : {1, 2, 7, 31, 33, 64, 65, 130}) compare<T>(d, {{N}, 2, 1, fibers ? 8 : 20});
        for (long D : {1, 2, 8, 20, 33, 64, 72}) compare<T>(d, {{fibers ? 34 : 70}, 2, 1, D});
        compare<T>(d, {{37}, 1, 1, 8});
        compare<T>(d, {{37}, 4, 2, 8});
        compare<T>(d, {{37}, 6, 1, 8});
        compare<T>(d, {{37}, 3, 3, 8});
        compare<T>(d, {{3, 5, 1, 40, 67}, 4, 2, 8});
        compare<T>(d, {{64, 1, 64, 0, 2}, 2, 2, 8});
    });
}

}  // TEST_SUITE
