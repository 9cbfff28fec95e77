// embed_test.cu - kernels/embed.h against plain fp64 loops.
#include "kernels/embed.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

Tensor<int> on_device(const std::vector<int>& v) {
    return Tensor<int>(1, long(v.size()), Numbers(v.begin(), v.end()));
}

struct DeviceRuns {
    Tensor<int> rows, starts, keys;
    explicit DeviceRuns(const Runs& r)
        : rows(on_device(r.rows)), starts(on_device(r.starts)), keys(on_device(r.keys)) {}
    RunViews views() const { return {rows.in(), starts.in(), keys.in()}; }
};

const std::vector<int> tokens{4, 0, 4, 8, 4, 0, 2}, positions{0, 1, 2, 0, 1, 2, 3};
constexpr long N = 7, V = 9, T_max = 4;

}  // namespace

TEST_SUITE("embed") {

TEST_CASE_TEMPLATE("a row is its token's embedding, plus its position's where there is one", T, float, bf16, double) {
    for (const long C : {1, 33, 300, 72})
        for_each_block_size([&](Device& d) {
            CAPTURE(C);
            const Numbers wte = noise<T>(V * C, 1), wpe = noise<T>(T_max * C, 2);
            const Tensor<T> te(V, C, wte), pe(T_max, C, wpe);
            const Tensor<int> t = on_device(tokens), p = on_device(positions);
            Numbers with, without;
            for (size_t n = 0; n < size_t(N); ++n)
                for (size_t c = 0; c < size_t(C); ++c) {
                    without.push_back(wte[size_t(tokens[n]) * size_t(C) + c]);
                    with.push_back(without.back() + wpe[size_t(positions[n]) * size_t(C) + c]);
                }
            Tensor<T> x(N, C);
            embed_forward<T>(d, x, t.in(), te.in(), p.in(), pe.in());
            CHECK(relative_error(with, x.get()) <= tolerance<T>());
            embed_forward<T>(d, x, t.in(), te.in(), p.in(), {});
            CHECK(x.get() == without);
            x.check_guard();
        });
}

TEST_CASE_TEMPLATE("the gradient sums a token's places, adds, and repeats bit for bit", T, float, bf16, double) {
    using R = Real<T>;
    for (const auto& [keys, num_keys] : {std::pair(tokens, V), std::pair(positions, T_max)})
        for (const long C : {1, 33, 300, 72})
            for_each_block_size([&, keys = keys, num_keys = num_keys](Device& d) {
                CAPTURE(C);
                const Numbers dx = noise<T>(N * C, 3), before = noise<R>(num_keys * C, 4);
                Numbers once = before, twice;
                for (size_t n = 0; n < size_t(N); ++n)
                    for (size_t c = 0; c < size_t(C); ++c)
                        once[size_t(keys[n]) * size_t(C) + c] += dx[n * size_t(C) + c];
                for (size_t i = 0; i < once.size(); ++i) twice.push_back(2 * once[i] - before[i]);
                const DeviceRuns runs{Runs(keys, num_keys)};
                const Tensor<T> tdx(N, C, dx);
                Tensor<R> dw(num_keys, C, before), again(num_keys, C, before);
                embed_backward<T>(d, dw, tdx.in(), runs.views());
                CHECK(relative_error(once, dw.get()) <= tolerance<R>());
                embed_backward<T>(d, again, tdx.in(), runs.views());
                CHECK(dw.get() == again.get());
                embed_backward<T>(d, dw, tdx.in(), runs.views());
                CHECK(relative_error(twice, dw.get()) <= tolerance<R>());
                dw.check_guard();
            });
}

TEST_CASE_TEMPLATE("parts of a vocabulary add up to its embeddings, and have their rows of its gradient", T, float, double) {
    const long C = 33;
    for_each_block_size([&](Device& d) {
        const Numbers wte = noise<T>(V * C, 1), dx = noise<T>(N * C, 3);
        const Tensor<int> t = on_device(tokens);
        const DeviceRuns runs{Runs(tokens, V)};
        const Tensor<T> te(V, C, wte), tdx(N, C, dx);
        Tensor<T> x(N, C), dw(V, C, Numbers(size_t(V * C), 0));
        embed_forward<T>(d, x, t.in(), te.in(), {}, {});
        embed_backward<T>(d, dw, tdx.in(), runs.views());
        Numbers sum(size_t(N * C), 0), rows;
        for (const auto& [first, end] : {std::pair(0L, 2L), {2L, 5L}, {5L, V}}) {
            const Tensor<T> part((end - first), C, Numbers(wte.begin() + first * C, wte.begin() + end * C));
            Tensor<T> y(N, C), g(end - first, C, Numbers(size_t((end - first) * C), 0));
            embed_forward<T>(d, y, t.in(), part.in(), {}, {}, first);
            embed_backward<T>(d, g, tdx.in(), runs.views(), first);
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += y.get()[i];
            const Numbers here = g.get();
            rows.insert(rows.end(), here.begin(), here.end());
            y.check_guard(), g.check_guard();
        }
        CHECK(sum == x.get());
        CHECK(rows == dw.get());
    });
}

TEST_CASE("a token that does not occur keeps its gradient bit for bit") {
    Device d;
    const DeviceRuns runs{Runs(tokens, V)};
    const Numbers before = noise<float>(V * 3, 1);
    const Tensor<float> dx(N, 3, noise<float>(N * 3, 2));
    Tensor<float> dw(V, 3, before);
    embed_backward<float>(d, dw, dx.in(), runs.views());
    const Numbers after = dw.get();
    for (const long key : {1, 3, 5, 6, 7})
        for (long c = 0; c < 3; ++c) CHECK(after[size_t(key * 3 + c)] == before[size_t(key * 3 + c)]);
}

TEST_CASE("runs group the rows by key, rows ascending within a key") {
    const Runs r({4, 0, 4, 8, 4, 0, 2}, 9);
    CHECK(r.keys == std::vector<int>{0, 2, 4, 8});
    CHECK(r.starts == std::vector<int>{0, 2, 3, 6, 7});
    CHECK(r.rows == std::vector<int>{1, 5, 6, 0, 2, 4, 3});
}

TEST_CASE("runs of no rows, of one key, of one key many times, and of distinct keys") {
    const Runs none({}, 5), no_keys({}, 0), one({0}, 1), same({3, 3, 3}, 4), distinct({2, 0, 1}, 3);
    for (const Runs* r : {&none, &no_keys}) {
        CHECK(r->rows.empty());
        CHECK(r->keys.empty());
        CHECK(r->starts == std::vector<int>{0});
    }
    CHECK(one.rows == std::vector<int>{0});
    CHECK(one.keys == std::vector<int>{0});
    CHECK(one.starts == std::vector<int>{0, 1});
    CHECK(same.rows == std::vector<int>{0, 1, 2});
    CHECK(same.keys == std::vector<int>{3});
    CHECK(same.starts == std::vector<int>{0, 3});
    CHECK(distinct.rows == std::vector<int>{1, 2, 0});
    CHECK(distinct.keys == std::vector<int>{0, 1, 2});
    CHECK(distinct.starts == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("no rows: nothing is launched and the gradient stays") {
    Device d;
    const DeviceRuns runs{Runs({}, 2)};
    Tensor<float> dw(2, 3, {1, 2, 3, 4, 5, 6}), none(0, 3);
    embed_backward<float>(d, dw, none.in(), runs.views());
    CHECK(dw.get() == Numbers{1, 2, 3, 4, 5, 6});
    CHECK(d.launches == 0);
}

TEST_CASE("sizes that do not fit are refused") {
    Device d;
    Tensor<float> x(2, 4), wte(3, 5), good(3, 4);
    const Tensor<int> two = on_device({0, 1}), three = on_device({0, 1, 2});
    const DeviceRuns runs{Runs({0, 1}, 3)};
    CHECK_THROWS_AS(embed_forward<float>(d, x, two.in(), wte.in(), two.in(), {}), Error);
    CHECK_THROWS_AS(embed_forward<float>(d, x, three.in(), good.in(), three.in(), {}), Error);
    CHECK_THROWS_AS(embed_forward<float>(d, x, two.in(), good.in(), two.in(), wte.in()), Error);
    CHECK_THROWS_AS(embed_backward<float>(d, wte, x.in(), runs.views()), Error);
}

}
