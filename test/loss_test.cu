// loss_test.cu - kernels/loss.h against fp64 log-sum-exp and finite differences.
#include "kernels/loss.h"
#include "test/harness.h"
#if defined(__linux__)
#include <sys/mman.h>
#endif

using namespace baretrain;
using namespace baretrain::test;

namespace {

struct Truth { Numbers logprob, lse, softmax; };

Truth loss_truth(const Numbers& z, const std::vector<int>& targets) {
    const size_t N = targets.size(), V = z.size() / N;
    Truth t{Numbers(N), Numbers(N), Numbers(N * V)};
    for (size_t n = 0; n < N; ++n) {
        double top = -INFINITY, sum = 0;
        for (size_t v = 0; v < V; ++v) top = std::max(top, z[n * V + v]);
        for (size_t v = 0; v < V; ++v) sum += std::exp(z[n * V + v] - top);
        t.lse[n] = top + std::log(sum);
        t.logprob[n] = targets[n] == ignored ? 0 : z[n * V + size_t(targets[n])] - t.lse[n];
        for (size_t v = 0; v < V; ++v) t.softmax[n * V + v] = std::exp(z[n * V + v] - t.lse[n]);
    }
    return t;
}

// weight[n] * d logprob[n] / dz
Numbers gradient(const Truth& t, const std::vector<int>& targets, const Numbers& weight) {
    const size_t N = targets.size(), V = t.softmax.size() / N;
    Numbers dz(N * V);
    for (size_t n = 0; n < N; ++n)
        for (size_t v = 0; v < V; ++v)
            if (targets[n] != ignored)
                dz[n * V + v] = weight[n] * ((int(v) == targets[n] ? 1.0 : 0.0) - t.softmax[n * V + v]);
    return dz;
}

Tensor<int> on_device(const std::vector<int>& v) {
    return Tensor<int>(1, long(v.size()), Numbers(v.begin(), v.end()));
}

// Targets at both ends, in the middle, and two that are ignored.
std::vector<int> some_targets(long N, long V) {
    std::vector<int> t{0, int(V - 1), int(V / 2), ignored, int(V / 3), ignored, 1};
    t.resize(size_t(N));
    for (int& k : t) k = std::min(k, int(V - 1));
    return t;
}

template <class R> Numbers logits(long n, double scale) {
    Numbers z = noise<R>(n, 1);
    for (double& v : z) v = double(R(scale * v));
    return z;
}

struct Size { long N, V; double scale; };
const Size sizes[] = {{7, 101, 5}, {1, 1, 1}, {3, 300, 5}, {7, 33, 40}};

}  // namespace

TEST_SUITE("loss") {

TEST_CASE_TEMPLATE("log-probabilities and their gradient equal the fp64 log-sum-exp", T, float, bf16, double) {
    using R = Real<T>;
    for (const auto& [N, V, scale] : sizes)
        for_each_block_size([&, N = N, V = V, scale = scale](Device& d) {
            CAPTURE(N); CAPTURE(V);
            const std::vector<int> targets = some_targets(N, V);
            const Numbers z = logits<R>(N * V, scale), weight = noise<R>(N, 2);
            const Truth truth = loss_truth(z, targets);
            const Tensor<R> tz(N, V, z), tw(1, N, weight);
            const Tensor<int> tt = on_device(targets);
            Tensor<R> logprob(1, N), lse(1, N);
            Tensor<T> dz(N, V, noise<T>(N * V, 3));
            logprobs_forward<R>(d, logprob, lse, tz.in(), tt.in());
            CHECK(relative_error(truth.logprob, logprob.get()) <= tolerance<R>());
            CHECK(relative_error(truth.lse, lse.get()) <= tolerance<R>());
            logprobs_backward<T>(d, dz, tz.in(), lse.in(), tt.in(), tw.in());
            CHECK(relative_error(gradient(truth, targets, weight), dz.get()) <= 3 * tolerance<T>());
            logprob.check_guard(), lse.check_guard(), dz.check_guard();
        });
}

TEST_CASE_TEMPLATE("cross-entropy equals the fp64 log-sum-exp; each gradient row sums to 0", T, float, bf16, double) {
    using R = Real<T>;
    for (const auto& [N, V, scale] : sizes)
        for_each_block_size([&, N = N, V = V, scale = scale](Device& d) {
            CAPTURE(N); CAPTURE(V);
            const std::vector<int> targets = some_targets(N, V);
            const Numbers z = logits<R>(N * V, scale);
            const Truth truth = loss_truth(z, targets);
            const double weight = -0.25;
            const Tensor<R> tz(N, V, z);
            const Tensor<int> tt = on_device(targets);
            Tensor<R> logprob(1, N);
            Tensor<T> dz(N, V, noise<T>(N * V, 3));
            cross_entropy<T>(d, dz, logprob, tz.in(), tt.in(), Tensor<R>(1, 1, Numbers{double(R(weight))}).in());
            CHECK(relative_error(truth.logprob, logprob.get()) <= tolerance<R>());
            const Numbers got = dz.get();
            CHECK(relative_error(gradient(truth, targets, Numbers(size_t(N), weight)), got) <= 3 * tolerance<T>());
            for (long n = 0; n < N; ++n) {
                double sum = 0;
                for (long v = 0; v < V; ++v) sum += got[size_t(n * V + v)];
                CHECK(std::fabs(sum) <= 0.25 * tolerance<T>());
            }
            logprob.check_guard(), dz.check_guard();
        });
}

// Parts of the columns, each as a rank would have it; their maxima and sums are put together on the host.
TEST_CASE_TEMPLATE("parts of a vocabulary give the log-probabilities and the gradient of the whole", T, float, bf16, double) {
    using R = Real<T>;
    for (const auto& [N, V, scale] : {Size{7, 101, 5}, {3, 7, 40}, {3, 300, 20}})
        for_each_block_size([&, N = N, V = V, scale = scale](Device& d) {
            CAPTURE(N); CAPTURE(V);
            const std::vector<int> targets = some_targets(N, V);
            const Tensor<int> tt = on_device(targets);
            const Numbers z = logits<R>(N * V, scale);
            const Truth truth = loss_truth(z, targets);
            const Numbers want = gradient(truth, targets, Numbers(size_t(N), -0.25));
            const std::vector<long> firsts{0, 3, V / 2, V};   // the first of a part: two ids near the begin, and so on
            const auto columns = [&](const Numbers& all, size_t part) {
                Numbers some;
                for (size_t n = 0; n < size_t(N); ++n)
                    some.insert(some.end(), all.begin() + long(n) * V + firsts[part],
                                all.begin() + long(n) * V + firsts[part + 1]);
                return some;
            };
            Numbers top(size_t(N), -INFINITY), exps(top.size(), 0), at(top.size(), 0);
            for (size_t part = 0; part < 3; ++part) {
                const Tensor<R> tz(N, firsts[part + 1] - firsts[part], columns(z, part));
                Tensor<R> most(1, N);
                row_max<R>(d, most, tz.in());
                for (size_t n = 0; n < top.size(); ++n) top[n] = std::max(top[n], most.get()[n]);
                most.check_guard();
            }
            Tensor<R> lse(1, N, top);
            for (size_t part = 0; part < 3; ++part) {
                const Tensor<R> tz(N, firsts[part + 1] - firsts[part], columns(z, part));
                Tensor<R> e(1, N), a(1, N);
                part_sums<R>(d, e, a, tz.in(), lse.in(), tt.in(), firsts[part]);
                for (size_t n = 0; n < top.size(); ++n) exps[n] += e.get()[n], at[n] += a.get()[n];
            }
            Tensor<R> logprob(1, N, at), sums(1, N, exps);
            join_parts<R>(d, lse, logprob, sums.in(), tt.in());
            CHECK(relative_error(truth.lse, lse.get()) <= tolerance<R>());
            CHECK(relative_error(truth.logprob, logprob.get()) <= tolerance<R>());
            for (size_t part = 0; part < 3; ++part) {
                const long width = firsts[part + 1] - firsts[part];
                const Tensor<R> tz(N, width, columns(z, part));
                Tensor<T> dz(N, width, noise<T>(N * width, 3));
                part_gradient<T>(d, dz, tz.in(), lse.in(), tt.in(), Tensor<R>(1, 1, Numbers{double(R(-0.25))}).in(), firsts[part]);
                CHECK(relative_error(columns(want, part), dz.get()) <= 3 * tolerance<T>());
                dz.check_guard();
            }
            lse.check_guard(), logprob.check_guard();
        });
}

TEST_CASE("the gradient equals finite differences of the weighted sum of log-probabilities") {
    Device d;
    d.threads = 64;
    const long N = 3, V = 7;
    const std::vector<int> targets{6, ignored, 2};
    const Tensor<int> tt = on_device(targets);
    const Numbers z = logits<double>(N * V, 2), weight{0.5, 3, -2};
    const Tensor<double> tw(1, N, weight);
    Tensor<double> tz(N, V, z), logprob(1, N), lse(1, N), dz(N, V);
    const auto loss = [&](size_t i, double h) {
        Numbers moved = z;
        moved[i] += h;
        tz.set(moved);
        logprobs_forward<double>(d, logprob, lse, tz.in(), tt.in());
        const Numbers l = logprob.get();
        return weight[0] * l[0] + weight[1] * l[1] + weight[2] * l[2];
    };
    Numbers want;
    for (size_t i = 0; i < z.size(); ++i) want.push_back((loss(i, 1e-5) - loss(i, -1e-5)) / 2e-5);
    loss(0, 0);
    logprobs_backward<double>(d, dz, tz.in(), lse.in(), tt.in(), tw.in());
    CHECK(relative_error(want, dz.get()) < 1e-9);
}

TEST_CASE_TEMPLATE("the gradient may overwrite the logits", T, float, double) {
    const long N = 7, V = 101;
    const Tensor<int> tt = on_device(some_targets(N, V));
    for_each_block_size([&](Device& d) {
        Tensor<T> z(N, V, logits<T>(N * V, 5)), dz(N, V), logprob(1, N), same_logprob(1, N), lse(1, N);
        const Tensor<T> weight(1, N, Numbers(N, -0.5));
        cross_entropy<T>(d, dz, logprob, z.in(), tt.in(), Tensor<T>(1, 1, Numbers{double(T(-0.5))}).in());
        cross_entropy<T>(d, z, same_logprob, z.in(), tt.in(), Tensor<T>(1, 1, Numbers{double(T(-0.5))}).in());
        CHECK(z.get() == dz.get());
        CHECK(logprob.get() == same_logprob.get());
        z.set(logits<T>(N * V, 5));
        logprobs_forward<T>(d, logprob, lse, z.in(), tt.in());
        logprobs_backward<T>(d, z, z.in(), lse.in(), tt.in(), weight.in());
        CHECK(relative_error(dz.get(), z.get()) <= tolerance<T>());
        z.check_guard();
    });
}

TEST_CASE_TEMPLATE("A5: an ignored row has logprob 0 and gradient 0, whatever its logits are", T, float, bf16, double) {
    using R = Real<T>;
    const long N = 3, V = 5;
    const Tensor<int> tt = on_device({ignored, ignored, ignored});
    Numbers z = logits<R>(N * V, 1e4);
    z[7] = INFINITY, z[12] = NAN;
    for_each_block_size([&](Device& d) {
        const Tensor<R> tz(N, V, z), weight(1, N, Numbers(N, 1));
        Tensor<R> logprob(1, N), lse(1, N);
        Tensor<T> dz(N, V, noise<T>(N * V, 3));
        cross_entropy<T>(d, dz, logprob, tz.in(), tt.in(), Tensor<R>(1, 1, Numbers{double(R(-1))}).in());
        CHECK(logprob.get() == Numbers(N, 0));
        CHECK(dz.get() == Numbers(N * V, 0));
        dz.set(noise<T>(N * V, 3));
        logprobs_forward<R>(d, logprob, lse, tz.in(), tt.in());
        logprobs_backward<T>(d, dz, tz.in(), lse.in(), tt.in(), weight.in());
        CHECK(logprob.get() == Numbers(N, 0));
        CHECK(dz.get() == Numbers(N * V, 0));
    });
}

TEST_CASE_TEMPLATE("A6: behind a prompt of five, exactly the three rows of the answer have a gradient", T, float, bf16,
                   double) {
    using R = Real<T>;
    const long N = 8, V = 5;
    const Tensor<int> targets = on_device({ignored, ignored, ignored, ignored, ignored, 0, 4, 0});   // 0 is a token too
    for_each_block_size([&](Device& d) {
        const Tensor<R> z(N, V, logits<R>(N * V, 1));
        Tensor<R> logprob(1, N);
        Tensor<T> dz(N, V, noise<T>(N * V, 3));
        cross_entropy<T>(d, dz, logprob, z.in(), targets.in(), Tensor<R>(1, 1, Numbers{double(R(-1))}).in());
        const Numbers g = dz.get();
        for (long i = 0; i < N * V; ++i) CHECK((g[size_t(i)] != 0) == (i / V >= 5));
    });
}

TEST_CASE_TEMPLATE("logits of ten thousand neither overflow nor vanish", T, float, bf16, double) {
    using R = Real<T>;
    const Numbers z{1e4, -1e4, 0, -1e4, 1e4, 1e4};
    const std::vector<int> targets{0, 0};
    const Truth truth = loss_truth(z, targets);
    CHECK(truth.logprob[1] < -2e4);
    for_each_block_size([&](Device& d) {
        const Tensor<R> tz(2, 3, z);
        Tensor<R> logprob(1, 2);
        Tensor<T> dz(2, 3);
        const Tensor<int> tt = on_device(targets);
        cross_entropy<T>(d, dz, logprob, tz.in(), tt.in(), Tensor<R>(1, 1, Numbers{double(R(-1))}).in());
        CHECK(relative_error(truth.logprob, logprob.get()) <= tolerance<R>());
        CHECK(logprob.get()[0] == 0);
        // lse is 10000.69, of which float keeps the third decimal
        CHECK(relative_error(gradient(truth, targets, {-1, -1}), dz.get()) <= 100 * tolerance<T>());
    });
}

TEST_CASE_TEMPLATE("A10: one infinite or NaN logit is noticed in its row and in no other", T, float, bf16, double) {
    using R = Real<T>;
    const long N = 3, V = 101;
    const std::vector<int> targets{3, 4, 5};
    for (const double bad : {double(INFINITY), double(NAN)})
        for (const long place : {0, 4, 100})
            for_each_block_size([&](Device& d) {
                CAPTURE(bad); CAPTURE(place);
                Numbers z = logits<R>(N * V, 5);
                const Tensor<int> tt = on_device(targets);
                const Tensor<R> clean(N, V, z);
                z[size_t(V + place)] = bad;
                const Tensor<R> spoiled(N, V, z);
                Tensor<R> want(1, N), logprob(1, N);
                Tensor<T> want_dz(N, V), dz(N, V);
                cross_entropy<T>(d, want_dz, want, clean.in(), tt.in(), Tensor<R>(1, 1, Numbers{double(R(-1))}).in());
                cross_entropy<T>(d, dz, logprob, spoiled.in(), tt.in(), Tensor<R>(1, 1, Numbers{double(R(-1))}).in());
                const Numbers a = want.get(), b = logprob.get(), da = want_dz.get(), db = dz.get();
                CHECK_FALSE(std::isfinite(b[1]));
                CHECK_FALSE(std::isfinite(db[size_t(V + 4)]));
                long wrong = 0;
                for (long n : {0, 2}) {
                    wrong += a[size_t(n)] != b[size_t(n)];
                    for (long v = 0; v < V; ++v) wrong += da[size_t(n * V + v)] != db[size_t(n * V + v)];
                }
                CHECK(wrong == 0);
            });
}

TEST_CASE_TEMPLATE("A10: a logit of minus infinity has probability 0 and gradient 0", T, float, bf16, double) {
    using R = Real<T>;
    Device d;
    d.threads = 64;
    const Tensor<R> z(1, 3, {1, -INFINITY, 1});
    Tensor<R> logprob(1, 1);
    Tensor<T> dz(1, 3);
    const Tensor<int> tt = on_device({2});
    cross_entropy<T>(d, dz, logprob, z.in(), tt.in(), Tensor<R>(1, 1, Numbers{double(R(-1))}).in());
    CHECK(logprob.get()[0] == doctest::Approx(-std::log(2.0)).epsilon(1e-6));
    CHECK(dz.get()[1] == 0);
    CHECK(dz.get()[2] == doctest::Approx(-0.5).epsilon(1e-6));
}

TEST_CASE_TEMPLATE("padded rows: the padding takes no probability and is not written", T, float, bf16, double) {
    using R = Real<T>;
    const long N = 7, V = 101, stride = 128, wide = 112;
    const std::vector<int> targets = some_targets(N, V);
    const Numbers z = logits<R>(N * V, 5);
    const Truth truth = loss_truth(z, targets);
    Numbers padded(size_t(N * stride), 50), old(size_t(N * wide), 7);     // a logit of 50 would win every row
    for (long n = 0; n < N; ++n)
        for (long v = 0; v < V; ++v) padded[size_t(n * stride + v)] = z[size_t(n * V + v)];
    for_each_block_size([&](Device& d) {
        const Tensor<int> tt = on_device(targets);
        const Tensor<R> tz(N, stride, padded), weight(1, N, Numbers(N, -0.5));
        const View<const R> narrow = tz.in().col_range(0, V);
        Tensor<R> logprob(1, N), lse(1, N);
        Tensor<T> dz(N, wide, old);
        const auto check_gradient = [&] {
            Numbers got;
            long written = 0;
            const Numbers all = dz.get();
            for (long i = 0; i < N * wide; ++i)
                if (i % wide < V) got.push_back(all[size_t(i)]);
                else written += all[size_t(i)] != 7;
            CHECK(written == 0);
            CHECK(relative_error(gradient(truth, targets, Numbers(N, -0.5)), got) <= 3 * tolerance<T>());
        };
        cross_entropy<T>(d, dz.v.col_range(0, V), logprob, narrow, tt.in(), Tensor<R>(1, 1, Numbers{double(R(-0.5))}).in());
        CHECK(relative_error(truth.logprob, logprob.get()) <= tolerance<R>());
        check_gradient();
        dz.set(old);
        logprobs_forward<R>(d, logprob, lse, narrow, tt.in());
        CHECK(relative_error(truth.logprob, logprob.get()) <= tolerance<R>());
        logprobs_backward<T>(d, dz.v.col_range(0, V), narrow, lse.in(), tt.in(), weight.in());
        check_gradient();
        dz.check_guard();
    });
}

#if defined(__linux__)
// Rows so far apart that their offset needs more than 32 bits; only the pages in use get memory.
TEST_CASE("rows more than 2^32 elements apart are found") {
    if (on_gpu) return;
    const long N = 6, V = 33, stride = (1l << 30) + 5;
    const auto reserve = [](long bytes) {
        const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* p = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, how, -1, 0);
        return p == MAP_FAILED ? nullptr : p;
    };
    const long z_bytes = N * stride * 4, dz_bytes = N * stride * 2;
    float* const z = static_cast<float*>(reserve(z_bytes));
    bf16* const dz = static_cast<bf16*>(reserve(dz_bytes));
    if (z && dz) {
        Device d;
        d.threads = 64;
        const std::vector<int> targets = some_targets(N, V);
        const Numbers values = logits<float>(N * V, 5), weights(N, -0.5);
        for (long n = 0; n < N; ++n)
            for (long v = 0; v < V; ++v) z[n * stride + v] = float(values[size_t(n * V + v)]);
        const Numbers want = gradient(loss_truth(values, targets), targets, weights);
        const View<const float> tz(z, N, V, stride);
        const Tensor<float> weight(1, N, weights);
        const Tensor<int> tt = on_device(targets);
        Tensor<float> logprob(1, N), lse(1, N);
        const auto got = [&] {
            Numbers numbers;
            for (long n = 0; n < N; ++n)
                for (long v = 0; v < V; ++v) {
                    numbers.push_back(double(dz[n * stride + v]));
                    dz[n * stride + v] = bf16(9.f);
                }
            return numbers;
        };
        cross_entropy<bf16>(d, {dz, N, V, stride}, logprob, tz, tt.in(), Tensor<float>(1, 1, Numbers{-0.5}).in());
        CHECK(relative_error(want, got()) <= 3 * tolerance<bf16>());
        logprobs_forward<float>(d, logprob, lse, tz, tt.in());
        logprobs_backward<bf16>(d, {dz, N, V, stride}, tz, lse.in(), tt.in(), weight.in());
        CHECK(relative_error(want, got()) <= 3 * tolerance<bf16>());
    } else {
        MESSAGE("not run: the system reserves no 39 GB of addresses");
    }
    if (z) munmap(z, size_t(z_bytes));
    if (dz) munmap(dz, size_t(dz_bytes));
}
#endif

TEST_CASE("sizes that do not fit are refused") {
    Device d;
    Tensor<float> z(2, 4), narrow(2, 3), logprob(1, 2), lse(1, 2), one(1, 1);
    const Tensor<int> two = on_device({0, 1}), three = on_device({0, 1, 2});
    CHECK_THROWS_AS(logprobs_forward<float>(d, logprob, lse, z.in(), three.in()), Error);
    CHECK_THROWS_AS(logprobs_backward<float>(d, narrow, z.in(), lse.in(), two.in(), lse.in()), Error);
    CHECK_THROWS_AS(logprobs_backward<float>(d, z, z.in(), lse.in(), two.in(), one.in()), Error);
    CHECK_THROWS_AS(cross_entropy<float>(d, narrow, logprob, z.in(), two.in(), one.in()), Error);
    CHECK_THROWS_AS(cross_entropy<float>(d, z, logprob, z.in(), three.in(), one.in()), Error);
}

}
