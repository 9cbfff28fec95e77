// attention.h - what the tests of attention share: shapes, plain fp64 loops, one run of the kernels, who may notice what.
// Copy with: kernels/attention.h, test/harness.h and what they name
#pragma once
#include "kernels/attention.h"
#include "test/harness.h"

namespace baretrain::test {

struct Shape {
    std::vector<long> documents;                       // lengths, of the queries
    long H, Hkv, D, cached = 0;                        // cached: rows of one earlier document's beginning, keys only
    long window = 0, gap = 3;                          // gap: elements between the rows of qkv
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
inline Result plain_forward(const Shape& s, const Numbers& qkv, double scale) {
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
inline void plain_backward(const Shape& s, Result& r, const Numbers& qkv, const Numbers& dout, double scale) {
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
    const long N = s.N(), M = s.M(), qd = s.H * s.D, kd = s.Hkv * s.D, stride = s.width() + s.gap;
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

inline Numbers columns(const Numbers& x, long width, long first, long n) {
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
// What is touched has another value: an element of q, k or v in their rows, or of dout.
inline void touch(const Touched& t, double value, Numbers& qkv, Numbers& dout) {
    const Shape& s = t.s;
    const long column = t.place == Place::q ? s.D : t.place == Place::k ? s.H * s.D : (s.H + s.Hkv) * s.D;
    if (t.place == Place::dout) dout[size_t(t.row * s.H * s.D + s.D + 2)] = value;
    else qkv[size_t(t.row * s.width() + column + 2)] = value;
}

// Elements outside the reach of the change that are not the same, and NaNs that should have arrived and did not.
struct Count { long leaks = 0, hidden = 0; };

inline Count count_changes(const Touched& t, const Result& a, const Result& b) {
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

}  // namespace baretrain::test
