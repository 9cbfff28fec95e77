// attention_test.cu - kernels/attention.h against plain fp64 loops; who must not see whom; NaN; shapes refused.
#include "test/attention.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

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
                touch(t, value, qkv, dout);
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
