// lease_test.cu - leases: who writes first, and what happens when one is not handed back.
#include "zero.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

ModelShape shape() {
    return {.family = "llama", .layers = 2, .dim = 8, .heads = 2, .kv_heads = 1, .head_dim = 4, .ffn = 10, .vocab = 11,
            .seq = 6, .tied = false};
}

struct Stores {
    Params params{shape()};
    Arena arena{size_t(1) << 20};
    Device device;
    Comm alone{device};
    WholeWeights<float> weights{arena, params, alone};
    SummedGrads<double> grads{arena, params, alone};
};

// The message of the Error that body throws; "" when it throws none.
template <class Body> std::string error_of(Body body) {
    try {
        body();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
std::string here(unsigned line) { return "lease_test.cu:" + std::to_string(line) + ": "; }

// Counts what reaches the store.
struct Counting final : WeightStore<float> {
    std::vector<View<float>> units;
    std::vector<int> let_go_of;
    Counting(Arena& arena, const Params& params)
        : WeightStore<float>(params), units(take_units<float>(arena, params)) {}
    Range owns(int unit) const override { return {0, units[size_t(unit)].count()}; }
    View<float> owned(int unit) override { return units[size_t(unit)]; }
    void publish(int) override {}
    void finish() override {}
    View<float> whole(int unit) override { return units[size_t(unit)]; }
    void let_go(int unit) override { let_go_of.push_back(unit); }
};

}  // namespace

TEST_SUITE("lease") {

TEST_CASE("weights that were not released are an error that names the unit and the line that gathered them") {
    Stores s;
    unsigned line = 0;
    const std::string error = error_of([&] { line = __LINE__; auto w = s.weights.gather(2); });
    CHECK(contains(error, here(line)));
    CHECK(contains(error, "unit 2"));
    CHECK(contains(error, "never handed back"));
}

TEST_CASE("gradients that were not handed over are an error that names the unit and the line that opened them") {
    Stores s;
    unsigned line = 0;
    const std::string error = error_of([&] { line = __LINE__; auto g = s.grads.open(1); });
    CHECK(contains(error, here(line)));
    CHECK(contains(error, "unit 1"));
    CHECK(contains(error, "never handed back"));
}

TEST_CASE("handing back twice is an error that names the second line, and the store hears of it once") {
    Stores s;
    Counting store(s.arena, s.params);
    unsigned line = 0;
    const std::string error = error_of([&] {
        auto w = store.gather(1);
        store.release(w);
        line = __LINE__; store.release(w);
    });
    CHECK(contains(error, here(line)));
    CHECK(contains(error, "unit 1 was handed back twice"));
    CHECK(store.let_go_of == std::vector<int>{1});
    CHECK(contains(error_of([&] {
        auto g = s.grads.open(0);
        s.grads.hand_over(g);
        s.grads.hand_over(g);
    }), "unit 0 was handed back twice"));
}

TEST_CASE("a lease that is handed back says nothing") {
    Stores s;
    CHECK(error_of([&] {
        auto w = s.weights.gather(1);
        auto g = s.grads.open(1);
        s.grads.hand_over(g);
        s.weights.release(w);
    }) == "");
}

TEST_CASE("while another error is under way, an open lease does not add a second one") {
    Stores s;
    CHECK(error_of([&] {
        auto w = s.weights.gather(1);
        auto g = s.grads.open(1);
        fail("the first error");
    }) == "the first error");
}

// A lease taken and lost inside a handler: an error is in flight, but not through this lease.
TEST_CASE("a lease that is lost during clean-up after another error is still an error") {
    struct CleanUp {
        Stores& s;
        std::string& found;
        ~CleanUp() { found = error_of([&] { auto w = s.weights.gather(1); }); }
    };
    Stores s;
    std::string found;
    CHECK(error_of([&] {
        const CleanUp clean_up{s, found};
        fail("the first error");
    }) == "the first error");
    CHECK(contains(found, "never handed back"));
}

TEST_CASE("in each step the first writer of a unit overwrites and all later ones add, unit by unit") {
    Stores s;
    const auto next = [&](int unit) {
        auto g = s.grads.open(unit);
        const Write write = g.write;
        s.grads.hand_over(g);
        return write;
    };
    for (int step = 0; step < 3; ++step) {
        s.grads.begin_step(4);
        CHECK(next(1) == Write::over);
        CHECK(next(1) == Write::add);
        CHECK(next(0) == Write::over);                 // opened later than unit 1, but for the first time
        CHECK(next(1) == Write::add);
        CHECK(next(2) == Write::over);
        CHECK(next(0) == Write::add);
        CHECK(next(2) == Write::add);
    }
}

TEST_CASE("a lease shows the memory of its unit, and no two units or stores share any") {
    Stores s;
    std::vector<std::pair<const char*, const char*>> taken;
    for (int unit = 0; unit < s.params.units(); ++unit) {
        const View<float> w = s.weights.owned(unit);
        const View<double> g = s.grads.owned(unit);
        CHECK(w.count() == s.params.unit_size(unit));
        CHECK(g.count() == s.params.unit_size(unit));
        taken.push_back({reinterpret_cast<const char*>(w.data), reinterpret_cast<const char*>(w.data + w.count())});
        taken.push_back({reinterpret_cast<const char*>(g.data), reinterpret_cast<const char*>(g.data + g.count())});
        auto lease = s.weights.gather(unit);
        auto opened = s.grads.open(unit);
        for (const Param& p : s.params.rows()) {
            if (p.unit != unit || p.joined) continue;
            Weights<float> views = *lease;
            Weights<double> slopes = *opened;
            CHECK(views.at(p.place).data == w.data + p.offset);
            CHECK(slopes.at(p.place).data == g.data + p.offset);
        }
        s.grads.hand_over(opened);
        s.weights.release(lease);
    }
    for (size_t i = 0; i < taken.size(); ++i)
        for (size_t j = 0; j < i; ++j) CHECK((taken[i].second <= taken[j].first || taken[j].second <= taken[i].first));
}

}  // TEST_SUITE
