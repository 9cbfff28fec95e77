// adamw_test.cu - kernels/adamw.h against a plain fp64 loop, and the ways in which training silently stands still.
#include "kernels/adamw.h"
#include "test/harness.h"
#include <numeric>
#include <set>

using namespace baretrain;
using namespace baretrain::test;

namespace {

// State of step t (from 1), before decide(): correct is 1 - beta^t as the header says.
StepState state_of(int t, double lr, double decay, double max_norm = 0) {
    StepState s{};
    s.lr = lr, s.beta1 = 0.9, s.beta2 = 0.999, s.eps = 1e-8, s.decay = decay, s.max_norm = max_norm;
    s.correct1 = 1 - std::pow(s.beta1, t), s.correct2 = 1 - std::pow(s.beta2, t);
    s.norm = NAN, s.scale = NAN, s.skip = 1, s.trained = 1;   // whatever decide() does not fill shows
    return s;
}

// A StepState on the device, as decide() leaves it for these parts of the sum of squares.
struct State {
    Tensor<StepState> on_device{1, 1};
    Device& d;
    State(Device& device, StepState s, const Numbers& parts) : d(device) {
        copy_bytes(d, on_device.v.data, &s, sizeof s);
        const Tensor<double> squares(1, 1, Numbers{std::accumulate(parts.begin(), parts.end(), 0.0)});
        decide(d, on_device, squares.in());
    }
    StepState get() {
        StepState s;
        copy_bytes(d, &s, on_device.v.data, sizeof s);
        on_device.check_guard();
        return s;
    }
};

// One launch over these spans.
template <class T> void update_spans(Device& d, const std::vector<AdamSpan<T>>& spans, State& s) {
    const Tensor<AdamSpan<T>> memory(1, long(spans.size()));
    adamw<T>(d, SpanTable<AdamSpan<T>>(d, memory.v, spans), s.on_device.in());
    memory.check_guard();
}

// The tensors of one span. Without a copy of its own, w is the master.
template <class T> struct Weights {
    using R = Real<T>;
    Tensor<R> master, m, v, g;
    Tensor<T> w;
    R decay = 1, lr_factor = 1;
    Weights(const Numbers& start, const Numbers& gradient)
        : master(1, long(start.size()), start), m(1, master.v.cols, zeros()), v(1, master.v.cols, zeros()),
          g(1, master.v.cols, gradient), w(1, master.v.cols, start) {}
    Numbers zeros() const { return Numbers(size_t(master.v.cols), 0); }
    void update(Device& d, State& s) {
        update_spans<T>(d, {span()}, s);
    }
    AdamSpan<T> span() const {
        return {w.v.data, master.v.data, m.v.data, v.v.data, g.v.data, master.v.cols, decay, lr_factor};
    }
    Numbers all() const {
        Numbers everything;
        for (const Numbers& part : {master.get(), m.get(), v.get(), Numbers(w.get())})
            everything.insert(everything.end(), part.begin(), part.end());
        return everything;
    }
    void check_guards() const { master.check_guard(), m.check_guard(), v.check_guard(), w.check_guard(); }
};

double squares_of(const Numbers& g) {
    double sum = 0;
    for (double x : g) sum += x * x;
    return sum;
}

}  // namespace

TEST_SUITE("adamw") {

// 20000 is more than one block's 16384. The change is compared, not the weight: an error of 1e-5 in it stays visible.
TEST_CASE_TEMPLATE("ten steps with decay, clipping and bias correction equal the fp64 loop", T, float, bf16, double) {
    using R = Real<T>;
    for (const long n : {1, 33, 20000})
        for_each_block_size([&](Device& d) {
            CAPTURE(n);
            if (max_threads > 1 && n == 20000 && d.threads != 64) return;      // fibers are slow
            const Numbers start = noise<T>(n, 1);
            Weights<T> p(start, noise<R>(n, 2));
            p.lr_factor = R(0.5);
            Numbers w = start, m(size_t(n), 0), v(size_t(n), 0);
            for (int t = 1; t <= 10; ++t) {
                const Numbers g = noise<R>(n, 10 + t);
                const double norm = std::sqrt(squares_of(g)), max_norm = t % 2 ? 0.5 * norm : 2 * norm;
                const double scale = t % 2 ? 0.5 : 1, lr = 0.1 / t;
                p.g.set(g);
                State s(d, state_of(t, lr, 0.1, max_norm), {norm * norm});
                p.update(d, s);
                for (size_t i = 0; i < w.size(); ++i) {
                    const double gi = g[i] * scale;
                    m[i] = 0.9 * m[i] + 0.1 * gi;
                    v[i] = 0.999 * v[i] + 0.001 * gi * gi;
                    const double mean = m[i] / (1 - std::pow(0.9, t)), square = v[i] / (1 - std::pow(0.999, t));
                    w[i] -= 0.5 * lr * (mean / (std::sqrt(square) + 1e-8) + 0.1 * w[i]);
                }
            }
            Numbers change, got_change = p.master.get();
            for (size_t i = 0; i < w.size(); ++i) change.push_back(w[i] - start[i]), got_change[i] -= start[i];
            CHECK(relative_error(change, got_change) <= 4 * tolerance<R>());   // a sum of ten steps that may cancel
            CHECK(relative_error(m, p.m.get()) <= tolerance<R>());
            CHECK(relative_error(v, p.v.get()) <= tolerance<R>());
            if constexpr (std::is_same_v<T, bf16>) {          // what the model multiplies by is the rounded master
                Numbers rounded = p.master.get();
                for (double& x : rounded) x = double(bf16(float(x)));
                CHECK(p.w.get() == rounded);
            } else {
                CHECK(p.w.get() == start);
            }
            p.check_guards();
        });
}

// Of 1, 2 and 3 blocks, some empty, one after the other: each as if it were alone.
TEST_CASE_TEMPLATE("one launch updates every span of a table as a launch for each does", T, float, bf16, double) {
    using R = Real<T>;
    for_each_block_size([&](Device& d) {
        if (max_threads > 1 && d.threads != 64) return;            // fibers are slow
        std::vector<Weights<T>> alone, together;
        for (auto* list : {&alone, &together})
            for (const long n : {0, 33, 16384, 16385, 0, 0, 1, 40000, 7, 0}) {
                const int which = int(list->size());
                list->emplace_back(noise<T>(n, which), noise<R>(n, 20 + which));
                list->back().decay = R(which % 2), list->back().lr_factor = R(1 + which);
            }
        State s(d, state_of(1, 0.1, 0.5), {1});
        std::vector<AdamSpan<T>> spans;
        for (Weights<T>& p : alone) p.update(d, s);
        for (const Weights<T>& p : together) spans.push_back(p.span());
        const long before = d.launches;
        update_spans(d, spans, s);
        CHECK(d.launches == before + 1);
        for (size_t i = 0; i < alone.size(); ++i) {
            CAPTURE(i);
            CHECK(together[i].all() == alone[i].all());
            together[i].check_guards();
        }
    });
}

TEST_CASE_TEMPLATE("eps stands outside the square root", T, float, bf16, double) {
    Device d;
    d.threads = 64;
    StepState state = state_of(1, 0.5, 0);
    state.eps = 3;
    Weights<T> p({1}, {1});
    State s(d, state, {1});
    p.update(d, s);
    CHECK(p.master.get()[0] == doctest::Approx(1 - 0.5 * 1 / (1 + 3.0)).epsilon(1e-6));
}

// 16385 are two spans of sums. Tiny gradients: squares of second moments below all floats.
TEST_CASE_TEMPLATE("sums of squares taken before an update are those of what it does", T, float, bf16, double) {
    using R = Real<T>;
    const auto square = [](const Numbers& a, const Numbers& b) {
        double sum = 0;
        for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
        return sum;
    };
    for (const long n : {1, 33, 16385})
        for (const double size : {1.0, 1e-12})
            for (const char* kind : {"master", "none", "skipped"})
                for_each_block_size([&](Device& d) {
                    CAPTURE(n); CAPTURE(size); CAPTURE(kind);
                    if (max_threads > 1 && n == 16385 && d.threads != 64) return;   // fibers are slow
                    if (!std::is_same_v<T, bf16> && kind == std::string("none")) return;   // their own master
                    const bool master = kind != std::string("none"), skip = kind == std::string("skipped");
                    Numbers g = noise<R>(n, 2);
                    for (double& x : g) x = double(R(x * size));
                    Weights<T> p(noise<T>(n, 1), g);
                    StepState first = state_of(1, 0.1, 0.1), now = state_of(2, 0.05, 0.1, 0.5 * std::sqrt(squares_of(g)));
                    first.eps = now.eps = 1e-8 * size;
                    now.seed = 3, now.step = 2, now.trained = skip ? 0 : 1;
                    State s(d, first, {squares_of(g)});
                    p.update(d, s);
                    State s2(d, now, {squares_of(g)});
                    const AdamSpan<T> span{p.w.v.data, master ? p.master.v.data : nullptr, p.m.v.data, p.v.v.data,
                                           p.g.v.data, n, 1, 1, 77};
                    const auto weights = [&] { return master ? p.master.get() : Numbers(p.w.get()); };
                    Tensor<double> total(1, adamw_squares, {1, 0, 0, 0, 0}), parts(3, adamw_squares);
                    const Numbers before = weights(), zeros = p.zeros();
                    add_adamw_squares<T>(d, total, span, s2.on_device.in(), parts);
                    CHECK(weights() == before);
                    update_spans<T>(d, {span}, s2);
                    const Numbers got = total.get(), m = p.m.get(), v = p.v.get(), after = weights();
                    const Numbers want = {1 + square(after, zeros), square(g, zeros), square(after, before),
                                          square(m, zeros), square(v, zeros)};
                    CHECK((want[2] > 0) == !skip);
                    for (size_t k = 0; k < want.size(); ++k) {
                        CAPTURE(k);
                        CHECK(std::fabs(got[k] - want[k]) <= (std::is_same_v<R, float> ? 1e-6 : 1e-12) * want[k]);
                    }
                    total.check_guard(), parts.check_guard();
                });
}

// bf16 weights alone, 10,000 of them, all 1 with a constant gradient g, after `steps` steps of AdamW with lr 1e-3.
Numbers without_master(Device& d, double g, double decay, int steps, uint64_t seed = 1) {
    const long n = 10000;
    Tensor<bf16> w(1, n, Numbers(size_t(n), 1));
    Tensor<float> m(1, n, Numbers(size_t(n), 0)), v(1, n, Numbers(size_t(n), 0)), gradient(1, n, Numbers(size_t(n), g));
    for (int t = 1; t <= steps; ++t) {
        StepState now = state_of(t, 1e-3, decay);
        now.seed = seed, now.step = uint64_t(t);
        State s(d, now, {1});
        update_spans<bf16>(d, {{w.v.data, nullptr, m.v.data, v.v.data, gradient.v.data, n, 1, 1}}, s);
    }
    w.check_guard();
    return w.get();
}
double mean_of(const Numbers& x) { return std::accumulate(x.begin(), x.end(), 0.0) / double(x.size()); }

TEST_CASE("B5: without a master bf16 weights move by the mean: 100 updates of -1e-3 take 1 to 0.900") {
    Device d;
    d.threads = 64;
    const Numbers w = without_master(d, 0.37, 0, 100);
    CHECK(std::fabs(mean_of(w) - 0.9) < 0.005);
    CHECK(std::set<double>(w.begin(), w.end()).size() > 10);   // each weight has a random number of its own
    CHECK(without_master(d, 0.37, 0, 100) == w);
    CHECK(without_master(d, 0.37, 0, 100, 2) != w);
    CHECK(double(bf16(1.0f - 1e-3f)) == 1.0);          // to the nearest: not one update would arrive
}

TEST_CASE("B6: without a master decay alone takes 1e-4 of a weight of 1 a step, in the mean") {
    Device d;
    d.threads = 64;
    // The standard error of the mean of 10,000 roundings between 1 and 1 - 2^-8 is 6e-6 a step.
    CHECK(std::fabs(mean_of(without_master(d, 0, 0.1, 1)) - (1 - 1e-4)) < 3e-5);
    CHECK(std::fabs(mean_of(without_master(d, 0, 0.1, 50)) - std::pow(1 - 1e-4, 50)) < 3e-4);
}

TEST_CASE("rounding at random gives one of the two neighbours, as often as it lies near; what is exact stays") {
    int up = 0;
    for (uint32_t r = 0; r < 65536; ++r) {
        const double x = double(round_stochastically(1.0f + 0.25f / 128, r * 2654435761u));   // a quarter of the way
        CHECK((x == 1.0 || x == 1.0 + 1.0 / 128));
        up += x > 1;
    }
    CHECK(up == 16384);
    for (uint32_t r : {0u, 1u, 65535u, 0xFFFFFFFFu}) {
        CHECK(double(round_stochastically(-3.5f, r)) == -3.5);
        CHECK(double(round_stochastically(INFINITY, r)) == INFINITY);
        CHECK(std::isnan(double(round_stochastically(NAN, r))));
        CHECK(double(round_stochastically(0, r)) == 0);
    }
}

TEST_CASE_TEMPLATE("B5: a hundred updates of -1e-3 move a weight of 1 to 0.9, also in bf16", T, float, bf16, double) {
    for_each_block_size([&](Device& d) {
        const Numbers ones(300, 1);
        Weights<T> p(ones, Numbers(300, 0.37));                       // a constant gradient: update = lr
        for (int t = 1; t <= 100; ++t) {
            State s(d, state_of(t, 1e-3, 0), {1});
            p.update(d, s);
        }
        for (double w : p.master.get()) CHECK(std::fabs(w - 0.9) < 1e-3);
        if constexpr (std::is_same_v<T, bf16>)
            for (double w : p.w.get()) CHECK(std::fabs(w - 0.9) < 3e-3);
    });
}

TEST_CASE_TEMPLATE("B6: without a gradient a weight falls by lr * decay a step, also in bf16", T, float, bf16, double) {
    Device d;
    d.threads = 64;
    Weights<T> p({1, 1, -1}, {0, 0, 0});
    for (int t = 1; t <= 100; ++t) {
        State s(d, state_of(t, 1e-3, 0.1), {0});
        p.update(d, s);
        if (t > 1) continue;
        CHECK(p.master.get()[0] == doctest::Approx(1 - 1e-4).epsilon(1e-7));
    }
    const double left = std::pow(1 - 1e-4, 100);
    CHECK(relative_error({left, left, -left}, p.master.get()) < 1e-5);
    if constexpr (std::is_same_v<T, bf16>) CHECK(p.w.get()[0] == double(bf16(float(left))));
}

TEST_CASE_TEMPLATE("B4: a span without decay and without a gradient stays where it is", T, float, bf16, double) {
    Device d;
    d.threads = 64;
    const Numbers start = noise<T>(33, 1);
    Weights<T> p(start, Numbers(33, 0));
    p.decay = 0;
    for (int t = 1; t <= 5; ++t) {
        State s(d, state_of(t, 0.1, 0.1, 1), {0});
        p.update(d, s);
    }
    CHECK(p.master.get() == start);
    CHECK(p.w.get() == start);
}

TEST_CASE_TEMPLATE("a step whose norm is not finite changes no bit", T, float, bf16, double) {
    for (const double bad : {double(NAN), double(INFINITY)})
        for_each_block_size([&](Device& d) {
            CAPTURE(bad);
            Weights<T> p(noise<T>(33, 1), noise<Real<T>>(33, 2));
            State good(d, state_of(1, 0.1, 0.1, 1), {4});
            p.update(d, good);
            const Numbers before = p.all();
            Numbers g = noise<Real<T>>(33, 3);
            g[5] = bad;
            p.g.set(g);
            State s(d, state_of(2, 0.1, 0.1, 1), {1, bad, 1});
            CHECK(s.get().skip == 1);
            p.update(d, s);
            CHECK(p.all() == before);
        });
}

TEST_CASE_TEMPLATE("clipped to a norm of 1e-9 a gradient moves hardly anything", T, float, bf16, double) {
    Device d;
    d.threads = 64;
    const Numbers start = noise<T>(300, 1), g = noise<Real<T>>(300, 2);
    Weights<T> free(start, g), clipped(start, g);
    State loose(d, state_of(1, 1, 0), {squares_of(g)}), tight(d, state_of(1, 1, 0, 1e-9), {squares_of(g)});
    free.update(d, loose), clipped.update(d, tight);
    const Numbers a = free.master.get(), b = clipped.master.get();
    for (size_t i = 0; i < start.size(); ++i) {
        CHECK(std::fabs(a[i] - start[i]) > 0.9);                      // the first step of Adam is lr long
        CHECK(std::fabs(b[i] - start[i]) < 0.02);                     // 1e-9 / sqrt(300) against eps = 1e-8
    }
}

TEST_CASE("the norm is the root of all parts, and the gradient is scaled to max_norm only above it") {
    struct { Numbers parts; double max_norm, norm, scale; } const cases[] = {
        {{9, 16}, 10, 5, 1},        // below the limit
        {{9, 16}, 5, 5, 1},         // at the limit
        {{9, 16}, 4, 5, 0.8},       // above it
        {{9, 16}, 0, 5, 1},         // no limit
        {{25}, 1, 5, 0.2},
        {{0, 0, 0}, 1, 0, 1},       // no gradient: no 0 / 0
        {{1, 2, 3, 4, 5, 6, 7, 8, 9, 4}, 0, 7, 1},
    };
    for (const auto& [parts, max_norm, norm, scale] : cases)
        for_each_block_size([&, parts = parts, max_norm = max_norm, norm = norm, scale = scale](Device& d) {
            CAPTURE(norm); CAPTURE(max_norm);
            State state(d, state_of(3, 0.1, 0.2, max_norm), parts);
            const StepState s = state.get();
            CHECK(s.norm == norm);
            CHECK(s.scale == scale);
            CHECK(s.skip == 0);
            CHECK(s.lr == 0.1);
            CHECK(s.decay == 0.2);
            CHECK(s.max_norm == max_norm);
        });
}

TEST_CASE("a loss that is NaN or infinite skips the step, whatever the norm") {
    Device d;
    d.threads = 64;
    for (const double bad : {double(NAN), double(INFINITY)}) {
        State s(d, state_of(1, 0.1, 0), {1});
        CHECK(s.get().skip == 0);
        StepState state = state_of(1, 0.1, 0);
        state.loss = bad;
        const StepState after = State(d, state, {1, 3}).get();
        CHECK(after.skip == 1);
        CHECK(after.norm == 2);
    }
}

TEST_CASE("B10: a norm that is NaN or infinite skips the step, with and without a limit") {
    Device d;
    for (const double max_norm : {0.0, 1.0}) {
        CHECK(State(d, state_of(1, 0.1, 0, max_norm), {1, INFINITY}).get().skip == 1);
        CHECK(State(d, state_of(1, 0.1, 0, max_norm), {1, INFINITY}).get().norm == INFINITY);
        CHECK(State(d, state_of(1, 0.1, 0, max_norm), {NAN, 1}).get().skip == 1);
        CHECK(std::isnan(State(d, state_of(1, 0.1, 0, max_norm), {NAN, 1}).get().norm));
        CHECK(State(d, state_of(1, 0.1, 0, max_norm), {1e300}).get().skip == 0);      // large is not infinite
    }
}

TEST_CASE("a step that trained no token changes no bit, decay or not") {
    Device d;
    d.threads = 64;
    StepState state = state_of(1, 0.1, 0.1, 1);
    state.trained = 0, state.skip = 0;
    State s(d, state, {0});
    CHECK(s.get().skip == 1);
    Weights<float> p(noise<float>(33, 1), noise<float>(33, 2));
    const Numbers before = p.all();
    p.update(d, s);
    CHECK(p.all() == before);
}

TEST_CASE("an empty span is not an error") {
    Device d;
    Weights<float> p({}, {});
    State s(d, state_of(1, 0.1, 0.1), {0});
    p.update(d, s);
    CHECK(p.master.get().empty());
}

}
