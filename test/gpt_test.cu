// gpt_test.cu - the model and the training step against an independent fp64 model, and the equalities they promise.
#include "test/model.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

struct Truth { Numbers logits, logprobs; };            // of all rows
Truth truth_of(const Reference& model, const Rows& m) {
    Truth all;
    for (size_t d = 0; d + 1 < m.documents.size(); ++d) {
        const auto at = m.tokens.begin();
        const auto logits = model.logits({at + m.documents[d], at + m.documents[d + 1]});
        for (size_t i = 0; i < logits.size(); ++i) {
            const int target = m.targets[size_t(m.documents[d]) + i];
            all.logits.insert(all.logits.end(), logits[i].begin(), logits[i].end());
            all.logprobs.push_back(target == ignored ? 0 : Reference::logprob(logits[i], target));
        }
    }
    return all;
}
double true_loss(const Reference& model, const std::vector<Rows>& micros) {
    double sum = 0;
    for (const Rows& m : micros)
        for (double l : truth_of(model, m).logprobs) sum += l;
    return -sum / double(trained(micros));
}

void check_same(const Tensors& a, const Tensors& b, double bound) {
    REQUIRE(a.size() == b.size());
    for (const auto& [name, numbers] : a) {
        CAPTURE(name);
        CHECK(relative_error(numbers, b.at(name)) <= bound);
    }
}
double dot(const Numbers& a, const Numbers& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace

TEST_SUITE("gpt") {

template <class T> void check_forward(double bound) {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        CAPTURE(shape.tied);
        Model<T> m(shape, {16, 1, 2});
        const std::vector<Rows> micros = {make_rows({9, 7}, 1, 3), make_rows({7, 1, 8}, 2, 5)};
        const StepResult r = train_step(m.t, micros);
        m.set(m.truth.w);                              // back to where they were
        gradients(m.t, micros, trained(micros));
        const Truth first = truth_of(m.truth, micros[0]), second = truth_of(m.truth, micros[1]);
        CHECK(relative_error(first.logprobs, m.logprobs(0)) < bound);
        CHECK(relative_error(second.logprobs, m.logprobs(1)) < bound);
        CHECK(relative_error(second.logits, m.logits()) < bound);
        CHECK(r.loss == doctest::Approx(true_loss(m.truth, micros)).epsilon(bound));
        CHECK(r.trained == trained(micros));
        const double sum = evaluate_rows(m.t.context, m.t.weights, m.t.rows, micros[1]);
        CHECK(sum == doctest::Approx(dot(second.logprobs, Numbers(16, 1))).epsilon(bound));
    }
}
TEST_CASE("loss, log-probabilities and logits are those of the other model: double") { check_forward<double>(1e-12); }
// A10 asks for 1e-5 at every optimisation: `make` builds this at -O3, `make DEBUG=1` and the mutants at -O1.
TEST_CASE("A10: loss, log-probabilities and logits are those of the other model: float") { check_forward<float>(1e-5); }
TEST_CASE("loss, log-probabilities and logits are those of the other model: bf16") { check_forward<bf16>(3e-2); }

// Along two directions in each tensor, with differences of fourth order of the independent model.
TEST_CASE("the gradient of every tensor is the slope of the independent model's loss") {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        CAPTURE(shape.tied);
        Model<double> m(shape, {16, 1, 2});
        const std::vector<Rows> micros = {make_rows({9, 7}, 1, 3), make_rows({7, 1, 8}, 2, 5)};
        gradients(m.t, micros, trained(micros));
        const Tensors grads = m.grads();
        for (const auto& [name, g] : grads)
            for (int which : {50, 51}) {
                CAPTURE(name);
                const Numbers direction = noise<double>(long(g.size()), which);
                const auto loss_at = [&](double h) {
                    Reference moved = m.truth;
                    for (size_t i = 0; i < g.size(); ++i) moved.w[name][i] += h * direction[i];
                    return true_loss(moved, micros);
                };
                const double h = 3e-4;
                const double slope = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
                CHECK(std::fabs(slope - dot(g, direction)) < 1e-8 * std::sqrt(dot(g, g) * dot(direction, direction)));
                CHECK(dot(g, g) > 0);
            }
    }
}

template <class T> void check_gradients_of(double bound) {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        CAPTURE(shape.tied);
        Model<double> exact(shape, {16, 1, 2});
        Model<T> m(shape, {16, 1, 2});
        const std::vector<Rows> micros = {make_rows({9, 7}, 1, 3), make_rows({7, 1, 8}, 2, 5)};
        gradients(exact.t, micros, trained(micros)), gradients(m.t, micros, trained(micros));
        check_same(exact.grads(), m.grads(), shape.qk_norm() ? 1.5 * bound : bound);   // q and k are rounded once more
    }
}
TEST_CASE("the gradients in float are those in double, rounded") { check_gradients_of<float>(3e-5); }
TEST_CASE("the gradients in bf16 are those in double, rounded") { check_gradients_of<bf16>(6e-2); }

TEST_CASE("two documents in one micro-batch are the two alone, weighted by their tokens") {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        Model<double> both(shape, {16, 1, 1}), first(shape, {9, 1, 1}), second(shape, {7, 1, 1});
        const Rows m = make_rows({9, 7}, 3, 5);
        const auto part = [&](size_t begin, size_t end) {
            const auto cut = [&](const std::vector<int>& v) {
                return std::vector<int>(v.begin() + long(begin), v.begin() + long(end));
            };
            return Rows{cut(m.tokens), cut(m.targets), cut(m.positions), {0, int(end - begin)}};
        };
        const Rows a = part(0, 9), b = part(9, 16);
        const StepResult r = train_step(both.t, {m}), ra = train_step(first.t, {a}), rb = train_step(second.t, {b});
        const double na = double(ra.trained), nb = double(rb.trained), n = double(r.trained);
        CHECK(r.trained == ra.trained + rb.trained);
        CHECK(ra.trained != rb.trained);
        CHECK(r.loss == doctest::Approx((na * ra.loss + nb * rb.loss) / n).epsilon(1e-12));
        Tensors sum = first.grads();
        const Tensors other = second.grads();
        for (auto& [name, g] : sum)
            for (size_t i = 0; i < g.size(); ++i) g[i] = (na * g[i] + nb * other.at(name)[i]) / n;
        check_same(sum, both.grads(), 1e-12);
    }
}

// The tokens of the second document differ from those of the first: its rows of the embedding have a gradient alone.
TEST_CASE("another first document changes not one bit of the second: its rows, and the gradient that reaches them") {
    for (const char* family : {"gpt2", "llama"}) {
        CAPTURE(family);
        Model<double> m(shape_of(family, false), {16, 1, 1});
        Rows rows = make_rows({9, 7}, 3);
        for (size_t i = 0; i < 16; ++i) rows.tokens[i] = i < 9 ? rows.tokens[i] % 8 : 8 + rows.tokens[i] % 8;
        const auto second = [&] {
            gradients(m.t, {rows}, 16);
            Numbers seen(m.t.final.row(9), m.t.final.row(9) + 7 * 12);
            seen.insert(seen.end(), m.t.logprobs.data + 9, m.t.logprobs.data + 16);
            const Numbers wte = m.grads().at(m.truth.gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight");
            seen.insert(seen.end(), wte.begin() + 8 * 12, wte.begin() + 16 * 12);
            return seen;
        };
        const Numbers before = second(), first(m.t.final.row(0), m.t.final.row(9));
        for (size_t i = 0; i < 9; ++i) rows.tokens[i] = (rows.tokens[i] + 3) % 8, rows.targets[i] = 2;
        CHECK(second() == before);
        CHECK(Numbers(m.t.final.row(0), m.t.final.row(9)) != first);
    }
}

TEST_CASE("A1: how a step is cut into micro-batches changes nothing, whatever each of them trains") {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        CAPTURE(shape.tied);
        const std::vector<Rows> sequences = four_sequences();
        REQUIRE(trained(sequences) == 16);
        Model<double> whole(shape, {7, 4, 1});
        const StepResult r = train_step(whole.t, joined(sequences, 4));
        CHECK(r.loss == doctest::Approx(true_loss(whole.truth, sequences)).epsilon(1e-12));
        double squares = 0;
        for (const auto& [name, g] : whole.grads()) squares += dot(g, g);
        CHECK(r.grad_norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
        for (long batch : {2L, 1L}) {
            Model<double> cut(shape, {7, batch, 4 / batch});
            const StepResult c = train_step(cut.t, joined(sequences, size_t(batch)));
            CHECK(c.loss == doctest::Approx(r.loss).epsilon(1e-12));
            CHECK(c.grad_norm == doctest::Approx(r.grad_norm).epsilon(1e-12));
            CHECK(c.trained == 16);
            check_same(whole.grads(), cut.grads(), 1e-12);
            check_same(whole.weights(), cut.weights(), 1e-8);   // the slope of a key bias is 0 up to rounding
        }
    }
}

// Every row sees the logits that the last norm's bias picks: log-probability -4 for token 0, -1 for token 1.
TEST_CASE("A1: three tokens of loss 4 in one micro-batch and one of loss 1 in another are a loss of 3.25") {
    Model<double> m(shape_of("gpt2", false), {7, 1, 2});
    Tensors w = m.weights();
    for (auto& [name, values] : w) std::fill(values.begin(), values.end(), 0.0);
    w["transformer.ln_f.bias"][0] = 1;
    const size_t C = w["transformer.ln_f.bias"].size(), V = w["lm_head.weight"].size() / C;
    const double rest = std::log((1 - std::exp(-4.0) - std::exp(-1.0)) / double(V - 2));
    for (size_t v = 0; v < V; ++v) w["lm_head.weight"][v * C] = v == 0 ? -4 : v == 1 ? -1 : rest;
    m.set(w);
    Rows three = make_rows({7}, 1), one = make_rows({7}, 2);
    three.targets = {0, 0, ignored, 0, ignored, ignored, ignored};
    one.targets = {ignored, ignored, ignored, ignored, ignored, ignored, 1};
    CHECK(train_step(m.t, {three, one}).loss == doctest::Approx(3.25).epsilon(1e-12));
}

TEST_CASE("A3: the same micro-batch once, twice or eight times in a step: the same loss, gradient and norm") {
    const Rows rows = make_rows({7}, 1, 3);
    Model<double> once(shape_of("llama", true), {7, 1, 1});
    const StepResult want = train_step(once.t, {rows});
    for (const long K : {2L, 8L}) {
        Model<double> more(shape_of("llama", true), {7, 1, K});
        const StepResult r = train_step(more.t, std::vector<Rows>(size_t(K), rows));
        CHECK(r.loss == doctest::Approx(want.loss).epsilon(1e-12));
        CHECK(r.grad_norm == doctest::Approx(want.grad_norm).epsilon(1e-12));
        check_same(once.grads(), more.grads(), 1e-12);
    }
}

template <class T> void check_nothing_trained() {
    for (const char* family : {"gpt2", "llama"}) {
        CAPTURE(family);
        Model<T> m(shape_of(family, true), {7, 1, 4});
        std::vector<Rows> micros = four_sequences();
        train_step(m.t, micros);                       // so that moments are not zero
        const auto before = m.bytes();
        for (Rows& r : micros) r.targets.assign(7, ignored);
        const StepResult r = train_step(m.t, micros);
        CHECK(r.loss == 0);
        CHECK(r.grad_norm == 0);
        CHECK(r.trained == 0);
        CHECK(r.skipped);
        for (const auto& [name, g] : m.grads())
            for (double x : g) REQUIRE(x == 0);
        CHECK(m.bytes() == before);
        CHECK(train_step(m.t, four_sequences()).loss > 0);
        CHECK(m.bytes() != before);
    }
}
TEST_CASE("A5: a step without a trained token: loss 0, gradients 0, weights and moments as they were") {
    check_nothing_trained<double>();
    check_nothing_trained<bf16>();
}

TEST_CASE("A5: a micro-batch that trains nothing changes nothing, wherever it stands") {
    for (const ModelShape& shape : all_shapes()) {
        const std::vector<Rows> four = four_sequences();
        Rows nothing = make_rows({7}, 20);
        nothing.targets.assign(7, ignored);
        Model<double> plain(shape, {7, 1, 2}), more(shape, {7, 1, 3});
        gradients(plain.t, {four[0], four[1]}, 10);
        for (const auto& micros : {std::vector{nothing, four[0], four[1]}, {four[0], nothing, four[1]},
                                   {four[0], four[1], nothing}}) {
            gradients(more.t, micros, 10);
            CHECK(more.grads() == plain.grads());
        }
    }
}

TEST_CASE("the first micro-batch overwrites: what lay in the gradients before does not matter") {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        Model<double> m(shape, {7, 2, 2});
        const auto micros = joined(four_sequences(), 2);
        gradients(m.t, micros, 16);
        const Tensors clean = m.grads();
        for (const Param& p : m.params.rows()) {
            double* const g = m.t.grads.owned(p.unit).data + p.offset;
            std::fill(g, g + p.count(), NAN);
        }
        gradients(m.t, micros, 16);
        CHECK(m.grads() == clean);
    }
}

template <class T> void check_chunks(double bound) {
    for (ModelShape shape : all_shapes()) {
        CAPTURE(shape.family);
        shape.layers = 1, shape.vocab = 5, shape.seq = 100;
        std::vector<Rows> sequences;
        for (int i = 0; i < 3; ++i) sequences.push_back(make_rows({100}, 30 + i, 7 + i, 5));
        Model<T> one(shape, {100, 3, 1}), three(shape, {100, 1, 3});
        static_assert(head_chunk < 300);
        const StepResult a = train_step(one.t, joined(sequences, 3)), b = train_step(three.t, sequences);
        CHECK(a.loss == doctest::Approx(true_loss(one.truth, sequences)).epsilon(bound));
        CHECK(a.loss == doctest::Approx(b.loss).epsilon(bound));
        CHECK(a.grad_norm == doctest::Approx(b.grad_norm).epsilon(bound));
        check_same(one.grads(), three.grads(), bound);
    }
}
TEST_CASE("a head that walks 300 rows in chunks gives what it gives for 100 rows at a time") {
    check_chunks<double>(1e-12);
    check_chunks<bf16>(3e-2);
}

template <class T> void check_nan() {
    for (const char* name : {"transformer.h.1.mlp.c_fc.weight", "transformer.ln_f.bias", "transformer.wte.weight"}) {
        CAPTURE(name);
        Model<T> m(shape_of("gpt2", true), {7, 1, 4});
        train_step(m.t, four_sequences());
        Tensors weights = m.weights();
        for (double& x : weights[name]) x = NAN;
        m.set(weights);
        const auto before = m.bytes();
        const StepResult r = train_step(m.t, four_sequences());
        CHECK(std::isnan(r.loss));
        CHECK(std::isnan(r.grad_norm));
        CHECK(r.skipped);
        CHECK(m.bytes() == before);
        CHECK(first_not_finite(m.t) == name);
    }
}
TEST_CASE("B10: a NaN in a weight reaches loss and norm; the step is skipped, weights and moments are as they were") {
    check_nan<double>();
    check_nan<bf16>();
}

// AdamW as its authors write it, on the gradients that the cases above have checked.
TEST_CASE("three steps are three updates of AdamW: clipped, warmed up, decay on matrices alone") {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        CAPTURE(shape.tied);
        Model<double> m(shape, {7, 1, 4});
        Tensors w = m.weights(), m1, m2;
        for (int step = 1; step <= 3; ++step) {
            const StepResult r = train_step(m.t, four_sequences());
            const Config& c = m.config;
            REQUIRE(r.grad_norm > c.clip);
            const double lr = learning_rate(schedule_of(c), step - 1);
            for (const auto& [name, g] : m.grads()) {
                m1[name].resize(g.size()), m2[name].resize(g.size());
                const bool vector = name.find("bias") != std::string::npos || name.find("ln_") != std::string::npos ||
                                    name.find("norm") != std::string::npos;
                for (size_t i = 0; i < g.size(); ++i) {
                    const double x = g[i] * c.clip / r.grad_norm;
                    double &a = m1[name][i], &b = m2[name][i];
                    a = c.beta1 * a + (1 - c.beta1) * x, b = c.beta2 * b + (1 - c.beta2) * x * x;
                    const double up = a / (1 - std::pow(c.beta1, step)), down = b / (1 - std::pow(c.beta2, step));
                    w[name][i] -= lr * (up / (std::sqrt(down) + c.eps) + (vector ? 0 : c.weight_decay) * w[name][i]);
                }
            }
            check_same(w, m.weights(), 1e-12);
        }
        CHECK(m.t.step == 3);
        CHECK(m.t.tokens == 48);
    }
}

TEST_CASE("the dry run asks for exactly what the step, an evaluation and a sample take") {
    for (const ModelShape& shape : all_shapes())
        for (const Sizes z : {Sizes{9, 1, 1}, Sizes{7, 4, 2}, Sizes{3, 120, 1}}) {
            Model<float> m(shape, z);
            std::vector<Rows> micros;
            for (int i = 0; i < int(z.micros); ++i)
                micros.push_back(make_rows(std::vector<int>(size_t(z.batch), int(z.seq)), 40 + i));
            train_step(m.t, micros);
            evaluate_rows(m.t.context, m.t.weights, m.t.rows, micros[0]);
            Generator<float>(m.t.context, m.t.weights, z.seq).feed(std::vector<int>(size_t(z.seq), 1), 0);
            CHECK(m.arena.peak() == m.planned);
        }
}

// The kernels that rebuild get the inputs of those that first built, so not one bit may differ.
template <class T> void check_recompute() {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        const std::vector<Rows> micros = {make_rows({9, 7}, 1, 3), make_rows({7, 1, 8}, 2, 5)};
        Model<T> none(shape, {16, 1, 2});
        const StepResult plain = train_step(none.t, micros);
        size_t planned = none.planned;
        for (const char* how : {"selective", "full"}) {
            CAPTURE(how);
            Model<T> m(shape, {16, 1, 2}, 1, how);
            const StepResult r = train_step(m.t, micros);
            CHECK(r.loss == plain.loss);
            CHECK(r.grad_norm == plain.grad_norm);
            CHECK(m.grads() == none.grads());
            CHECK(m.bytes() == none.bytes());
            CHECK(m.planned < planned);
            planned = m.planned;
        }
    }
}
TEST_CASE("gradients are the same bits whatever is recomputed, and memory shrinks: float") { check_recompute<float>(); }
TEST_CASE("gradients are the same bits whatever is recomputed, and memory shrinks: bf16") { check_recompute<bf16>(); }

// One step, small: threads that wait for each other are slow on a busy machine.
TEST_CASE("the same command gives the same bits, and a team of two those of one") {
    const auto run = [&](auto type, const char* family, int team) {
        Model<decltype(type)> m(shape_of(family, false), {7, 4, 1}, team);
        train_step(m.t, joined(four_sequences(), 4));
        return m.bytes();
    };
    CHECK(run(double(), "gpt2", 1) == run(double(), "gpt2", 2));
    CHECK(run(double(), "llama", 1) == run(double(), "llama", 2));
    CHECK(run(float(), "gpt2", 2) == run(float(), "gpt2", 2));
    CHECK(run(bf16(), "llama", 2) == run(bf16(), "llama", 2));
}

// The other two are left to the command: they differ in what the slopes above have checked.
TEST_CASE("gradcheck: every parameter of a tied GPT-2 and an untied Llama, element by element, below its bound") {
    for (const ModelShape& shape : gradcheck_models()) {
        if (shape.tied != (shape.family == "gpt2")) continue;
        const GradcheckRow row = gradcheck_model(shape, take_gradients);
        CAPTURE(row.what);
        CHECK(row.error < gradcheck_bound);
        CHECK(row.error > 0);                          // compared at all
    }
}

}  // TEST_SUITE
