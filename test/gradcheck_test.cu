// gradcheck_test.cu - every operation passes, and what is wrong is seen: a check that can't fail proves nothing.
#include "gradcheck.h"
#include "zero.h"
#include "test/harness.h"
#include <set>

using namespace baretrain;
using namespace baretrain::test;
using gradient::Bench;

namespace {

// y = x^2, whose gradient is 2 x u; wrong() may spoil it.
double error_of(const std::function<void(View<double> dx)>& wrong, double input = 0) {
    Bench b;
    const auto x = b.take(3, 4), dx = b.take(3, 4), y = b.take(3, 4), u = b.take(3, 4);
    if (input != 0) x.data[5] = input;
    const Numbers before(x.data, x.data + 12);
    b.check("square", y, u, {{"x", x, dx}},
            [=] { for (long i = 0; i < 12; ++i) y.data[i] = x.data[i] * x.data[i]; },
            [=, &wrong] {
                for (long i = 0; i < 12; ++i) dx.data[i] = 2 * x.data[i] * u.data[i];
                wrong(dx);
            });
    REQUIRE(b.rows.size() == 1);
    CHECK(b.rows[0].what == "square: x");
    for (size_t i = 0; i < 12; ++i)
        if (before[i] == before[i]) CHECK(x.data[i] == before[i]);   // as it was, to the bit
    return b.rows[0].error;
}

// A "model" whose loss is half the sum of squares of all parameters, so that the gradient is the weight itself.
struct Squares {
    Params params{gradcheck_models()[1]};
    Arena arena{size_t(1) << 20};
    Device d;
    Comm alone{d};
    WholeWeights<double> weights{arena, params, alone};
    SummedGrads<double> grads{arena, params, alone};
    GradcheckRow check(const std::function<void(const Param&, View<double> g)>& wrong) {
        return gradcheck_parameters(d, params, weights, grads, [&] {
            for (const Param& p : params.rows()) {
                const View<double> g(grads.owned(p.unit).data + p.offset, 1, p.count());
                for (long i = 0; i < p.count(); ++i) g.data[i] = weights.owned(p.unit).data[p.offset + i];
                wrong(p, g);
            }
        }, [&] {
            double sum = 0;
            for (const Param& p : params.rows())
                for (long i = 0; i < p.count(); ++i) {
                    const double w = weights.owned(p.unit).data[p.offset + i];
                    sum += w * w / 2;
                }
            return sum;
        });
    }
};

}  // namespace

TEST_SUITE("gradcheck") {

TEST_CASE("the gradient of every operation is its slope, for every one of its inputs") {
    std::set<std::string> what;
    for (const GradcheckRow& row : gradcheck_operations()) {
        CAPTURE(row.what);
        CHECK(row.error < gradcheck_bound);
        CHECK(row.error > 0);                          // exactly 0 would mean that nothing was compared
        what.insert(row.what);
    }
    const std::string attention = "attention, 4 heads on 2, two documents: ";
    const std::string sliding = "attention, 4 heads on 2, two documents, window of 2: ";
    const std::string heads = "RMSNorm of each head, in place: ";
    CHECK(what == std::set<std::string>{
        "linear (in, out): x", "linear (in, out): weight", "linear (in, out): bias",
        "linear (out, in): x", "linear (out, in): weight", "linear (out, in): bias",
        "LayerNorm: x", "LayerNorm: weight", "LayerNorm: bias", "RMSNorm: x", "RMSNorm: weight", "RoPE: x",
        attention + "q", attention + "k", attention + "v", sliding + "q", sliding + "k", sliding + "v", heads + "x",
        heads + "weight", "GELU: x", "SwiGLU: x", "embedding: tokens",
        "embedding: positions", "log-probabilities, one target ignored: logits", "cross-entropy, fused: logits"});
}

TEST_CASE("a right gradient passes, and a wrong one shows by how much it is wrong") {
    CHECK(error_of([](View<double>) {}) < 1e-8);
    CHECK(error_of([](View<double> dx) { for (long i = 0; i < 12; ++i) dx.data[i] /= 2; }) == doctest::Approx(1));
    CHECK(error_of([](View<double> dx) { for (long i = 0; i < 12; ++i) dx.data[i] *= -1; }) == doctest::Approx(2));
    CHECK(error_of([](View<double> dx) { for (long i = 0; i < 12; ++i) dx.data[i] = 0; }) > 1e6);
}

TEST_CASE("one wrong element among many is enough, the last as well as the first") {
    for (long i : {0L, 7L, 11L}) {
        CHECK(error_of([&](View<double> dx) { dx.data[i] += 1e-3; }) > 1e-4);
        CHECK(error_of([&](View<double> dx) { dx.data[i] += 1e-5; }) > gradcheck_bound);
    }
}

TEST_CASE("NaN and infinity, in the gradient or in the slope, are an infinite error") {
    for (long i : {0L, 7L, 11L}) {
        CHECK(error_of([&](View<double> dx) { dx.data[i] = NAN; }) == INFINITY);
        CHECK(error_of([&](View<double> dx) { dx.data[i] = INFINITY; }) == INFINITY);
    }
    CHECK(error_of([](View<double>) {}, NAN) == INFINITY);
    CHECK(error_of([](View<double>) {}, 1e200) == INFINITY);
}

TEST_CASE("a backward pass that adds instead of overwriting passes only because its gradient begins at zero") {
    Bench b;
    const auto x = b.take(1, 3), dx = b.take(1, 3), y = b.take(1, 3), u = b.take(1, 3);   // take() fills with noise
    b.check("copy", y, u, {{"x", x, dx}}, [=] { std::copy(x.data, x.data + 3, y.data); },
            [=] { for (long i = 0; i < 3; ++i) dx.data[i] += u.data[i]; });
    CHECK(b.rows[0].error < 1e-8);
}

TEST_CASE("of a whole model the worst tensor is named, with its error") {
    Squares s;
    const GradcheckRow right = s.check([](const Param&, View<double>) {});
    CHECK(right.error < gradcheck_bound);
    for (const char* name : {"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"}) {
        const auto spoil = [&](double by) {
            return s.check([&](const Param& p, View<double> g) { if (p.name == name) g.data[p.count() - 1] += by; });
        };
        const GradcheckRow wrong = spoil(0.1), lost = spoil(NAN);
        CHECK(wrong.error > 1e-3);
        CHECK(wrong.what == std::string("llama, tied, worst: ") + name);
        CHECK(lost.error == INFINITY);
        CHECK(lost.what == std::string("llama, tied, worst: ") + name);
    }
}

TEST_CASE("the whole models are all families, tied and not, with grouped heads of a size of their own and every option") {
    std::set<std::pair<std::string, bool>> kinds;
    int options = 0;
    for (const ModelShape& s : gradcheck_models()) {
        check_shape(s);
        kinds.insert({s.family, s.tied});
        CHECK(s.layers >= 2);
        if (s.family != "gpt2") CHECK(s.kv_heads < s.heads);
        if (s.family != "gpt2") CHECK(s.heads * s.head_dim != s.dim);
        if (s.family == "mistral") CHECK((s.window > 1 && s.window < s.seq));
        options += s.attention_bias + s.mlp_bias + (s.scaling.factor > 1);
    }
    CHECK(kinds.size() == 2 * model_families.size());
    CHECK(options == 6);
}

}  // TEST_SUITE
