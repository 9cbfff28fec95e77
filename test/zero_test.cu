// zero_test.cu - DDP, ZeRO-1, ZeRO-2: the same run in every layout, with the bytes and the memory of the closed forms.
#include "test/layouts.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

const std::vector<Layout> two_ranks = {{.shard = "none", .ranks = 2}, {.shard = "zero1", .ranks = 2},
                                       {.shard = "zero2", .ranks = 2}, {.shard = "fsdp", .ranks = 2}};

// One sequence a rank and step, of which rank r trains trained[r] tokens.
Rows sequence(long rank, const std::vector<long>& trained) {
    Rows m = make_rows({int(window_length)}, 70 + int(rank), 0, 33);
    for (long i = trained[size_t(rank)]; i < window_length; ++i) m.targets[size_t(5 * i % window_length)] = ignored;
    return m;
}
// The sequences of `ranks`, on as many of the layout's ranks.
Taken run_sequences(const ModelShape& shape, Layout l, const std::vector<long>& trained, std::vector<long> of, long steps) {
    Config c = config_of(shape, l, "fp64");
    c.batch = long(of.size()) / l.ranks, c.tokens_per_step = long(of.size()) * window_length;
    return run_ranks<double>(c, steps, [&](long, long rank) {
        std::vector<Rows> mine;
        for (long b = 0; b < c.batch; ++b) mine.push_back(sequence(of[size_t(rank * c.batch + b)], trained));
        return joined(mine, size_t(c.batch));
    });
}

}  // namespace

TEST_SUITE("zero") {

TEST_CASE("A2: DDP, ZeRO-1 and ZeRO-2 are the run of one rank, whatever each rank has to train") {
    check_matrix(with_ranks({.shard = "none"}) + with_ranks({.shard = "zero1"}) + with_ranks({.shard = "zero2"}) +
                 with_ranks({.shard = "zero1", .replicate = 2}, {4}) +
                 with_ranks({.shard = "zero2", .replicate = 2}, {4}));
}

TEST_CASE("A2: three trained tokens on one rank and one on another: the loss is the mean of the four") {
    const ModelShape shape = small_shape("gpt2", true);
    const std::vector<long> trained = {3, 1};
    const double a = run_sequences(shape, {}, trained, {0}, 1).steps[0].result.loss;
    const double b = run_sequences(shape, {}, trained, {1}, 1).steps[0].result.loss;
    const Taken one = run_sequences(shape, {}, trained, {0, 1}, 4);
    CHECK(std::fabs(one.steps[0].result.loss - (3 * a + b) / 4) < 1e-12);
    CHECK(std::fabs((3 * a + b) / 4 - (a + b) / 2) > 1e-4);
    for (const Layout& l : two_ranks) {
        CAPTURE(l.text());
        const Taken t = run_sequences(shape, l, trained, {0, 1}, 4);
        CHECK(apart(one, t).worst < 1e-11);
        CHECK(t.steps[3].result.trained == 4);
    }
}

TEST_CASE("A5: a rank with nothing to train changes nothing; a step with nothing to train moves nothing") {
    const ModelShape shape = small_shape("llama", true);
    const Taken alone = run_sequences(shape, {}, {0, 2}, {1}, 4);
    const Tensors initial = run_sequences(shape, {}, {0, 0}, {0}, 0).weights;
    for (const Layout& l : two_ranks) {
        CAPTURE(l.text());
        CHECK(apart(alone, run_sequences(shape, l, {0, 2}, {0, 1}, 4)).worst < 1e-11);
        const Taken nothing = run_sequences(shape, l, {0, 0}, {0, 1}, 2);
        CHECK(nothing.weights == initial);
        for (const StepTaken& s : nothing.steps) {
            CHECK((s.result.loss == 0 && s.result.grad_norm == 0 && s.result.trained == 0 && s.result.skipped));
            for (const auto& [name, values] : s.grads)
                CHECK(std::ranges::count(values, 0.0) == long(values.size()));
        }
    }
}

TEST_CASE("the loss of the first step is that of the plain reference") {
    for (const char* family : {"gpt2", "llama"}) {
        const ModelShape shape = small_shape(family, false);
        const Layout l{.shard = "zero2", .ranks = 3, .micros = 3};
        const Reference truth{shape, run_layout<double>(shape, {}, 0).weights};
        double sum = 0, trained = 0;
        for (long w = 0; w < windows_a_step; ++w) {
            const Rows m = window_of(0, w);
            const auto logits = truth.logits(m.tokens);
            for (size_t i = 0; i < m.tokens.size(); ++i)
                if (m.targets[i] != ignored) sum += Reference::logprob(logits[i], m.targets[i]), ++trained;
        }
        CHECK(std::fabs(run_layout<double>(shape, l, 1).steps[0].result.loss + sum / trained) < 1e-12);
    }
}

TEST_CASE("in fp32 the first step of DDP and ZeRO-2 is that of one rank") {
    check_fp32({.shard = "none", .ranks = 4, .micros = 3});
    check_fp32({.shard = "zero2", .ranks = 3});
}

TEST_CASE("the same layout gives the same bits") {
    const ModelShape shape = small_shape("gpt2", false);
    for (const char* shard : {"none", "zero1", "zero2"}) {
        const Layout l{.shard = shard, .ranks = 4, .replicate = shard == std::string("zero1") ? 2 : 1, .micros = 3};
        check_same_bits(run_layout<float>(shape, l, 3), run_layout<float>(shape, l, 3));
    }
}

TEST_CASE("C17: on eight ranks, some of which own nothing but padding, nothing but the tensors counts") {
    ModelShape shape{.family = "gpt2", .layers = 1, .dim = 5, .heads = 1, .kv_heads = 1, .head_dim = 5, .ffn = 17,
                     .vocab = 33, .seq = window_length, .tied = true};
    const Taken one = run_layout<double>(shape, {}, 4);
    for (const char* shard : {"none", "zero1", "zero2", "fsdp"})
        for (long ranks : {2, 4, 8}) {
            const Layout l{.shard = shard, .ranks = ranks};
            CAPTURE(l.text());
            const Taken t = run_layout<double>(shape, l, 4);
            CHECK(apart(one, t).worst < 1e-11);
            CHECK(t.faults == std::vector<std::string>());   // so padding is 0
            Apart weights;
            compare(weights, one.weights, t.weights, "weights: ");
            CHECK(weights.worst < 1e-11);
        }
    Config c = config_of(shape, {.shard = "zero1", .ranks = 8}, "fp64");
    std::mutex mutex;
    long written = 0, empty = 0;
    on_ranks<double>(c, [&](Trainer<double>& t) {
        const auto sources = tensor_sources<double>(t.device, t.params, owned_units(t.params, t.weights), "");
        const std::lock_guard lock(mutex);
        for (int u = 0; u < t.params.units(); ++u)
            empty += std::ranges::none_of(t.params.rows(), [&](const Param& p) {
                return p.unit == u && p.range().both(t.weights.owns(u)).count > 0;
            });
        for (const TensorSource& s : sources) written += std::accumulate(s.shape.begin(), s.shape.end(), 1L, std::multiplies());
    });
    CHECK(written == shape.parameters());
    CHECK(empty > 0);                                  // shards of padding
}

TEST_CASE("D1: the norm is that of all shards, and every rank clips by it") {
    for (const char* shard : {"zero1", "zero2", "fsdp"}) {
        Config c = config_of(small_shape("llama", false), {.shard = shard, .ranks = 4, .replicate = 2}, "fp64");
        c.clip = 0.01;
        const Layout l{.shard = shard, .ranks = 4, .replicate = 2};
        double all[4] = {}, norms[4], scales[4];
        on_ranks<double>(c, [&](Trainer<double>& t) {
            const int rank = t.comm.mesh.rank;
            norms[rank] = train_step(t, micros_of(l, 0, rank)).grad_norm;
            scales[rank] = t.state.data->scale;
            for (int u = 0; u < t.params.units(); ++u) {
                const View<double> g = t.grads.owned(u);
                for (long i = 0; i < g.count(); ++i) all[rank] += g.data[i] * g.data[i];
            }
        });
        for (int rank = 0; rank < 4; ++rank) {
            CHECK(std::fabs(norms[rank] / std::sqrt(all[0] + all[1]) - 1) < 1e-12);   // ranks 2 and 3 have copies
            CHECK(scales[rank] == doctest::Approx(0.01 / norms[rank]).epsilon(1e-12));
            CHECK(all[rank] < 0.999 * norms[rank] * norms[rank]);
        }
        CHECK(all[0] == all[2]);
    }
}

TEST_CASE("C9: ranks of every mesh read each window of an epoch once, and all ranks together the next ones") {
    Corpus text;
    text.train = {{Tokens(257, std::vector<int>(24 * window_length + 1, 65))}};
    const Loader data(text.train, window_length, 3);
    for (const auto& [shard, replicate] : {std::pair("none", 4L), {"zero1", 1L}, {"fsdp", 2L}}) {
        Config c = config_of(small_shape("gpt2", true), {.shard = shard, .ranks = 4, .replicate = replicate}, "fp32");
        c.batch = 1, c.tokens_per_step = 4 * 3 * window_length;
        std::multiset<long> read;
        for (int rank = 0; rank < 4; ++rank) {
            const Params params = params_of(c);
            Arena dry;
            Trainer<float> t(c, params, dry, {mesh_of(c, rank)});
            for (long step = 0; step < 2; ++step) {
                for (long i = 0; i < 3; ++i) read.insert(t.share().first(t.position, i));
                CHECK(next_rows(t, data).size() == 3);
            }
            CHECK(t.position == 24);
        }
        for (long p = 0; p < 24; ++p) CHECK(read.count(p) == 1);
    }
}

TEST_CASE("C14: at the end of a shard every rank still reads whole windows, and all go on together") {
    for (long tokens : {8, 9, 10, 12}) {               // 2 ranks of 1 x 4: the shard holds 1 or 2 windows
        std::vector<int> ids;
        for (long i = 0; i < tokens; ++i) ids.push_back(int(i));
        const Loader data({{Tokens(257, ids)}}, 4, 3);
        CHECK(data.windows() == (tokens - 1) / 4);
        for (long position = 0; position < 12; position += 2)
            for (long rank : {0, 1}) {
                const Rows m = data.rows(RankShare{1, rank, 2}.first(position, 0), 1);
                REQUIRE(m.tokens.size() == 4);
                for (size_t i = 0; i < 4; ++i) CHECK(m.targets[i] == m.tokens[i] + 1);
                CHECK(m.targets[3] < tokens);
            }
    }
}

TEST_CASE("mixed precision holds 4 + 4 bytes a parameter with DDP, 4/N more or less, and 12/N of them for the optimizer") {
    const ModelShape shape = preset("gpt2-124m");
    for (const char* shard : {"none", "zero1", "zero2", "fsdp"})
        for (long ranks : {1, 8, 64}) {
            const Layout l{.shard = shard, .ranks = ranks, .micros = 2};
            CAPTURE(l.text());
            const Config c = config_of(shape, l, "bf16");
            const Plan plan = plan_of<bf16>(c, params_of(c));
            check_memory(closed_memory(shape, l, 2, 4), plan.parts);
            CHECK(sent(plan.ledger) == closed_ledger(shape, l, 2, 4));
            const double P = double(shape.parameters()), N = double(ranks), S = shard == std::string("none") ? 1 : N;
            const auto all = held(plan.parts);
            CHECK(double(all.at("optimizer")) == doctest::Approx(12 * P / S).epsilon(2e-3));
            if (shard == std::string("zero1") || S == 1) CHECK(double(all.at("gradients")) >= 4 * P);
            if (shard != std::string("fsdp")) CHECK(double(all.at("weights")) == doctest::Approx(2 * P).epsilon(2e-3));
        }
}

TEST_CASE("gradients that travel as bf16 are half the bytes, and nearly the same run") {
    check_narrow({.shard = "none", .ranks = 2, .micros = 3}, "", "bf16");
    check_narrow({.shard = "zero1", .ranks = 4, .replicate = 2, .micros = 1}, "", "bf16");
    check_narrow({.shard = "zero2", .ranks = 4, .replicate = 2, .micros = 3}, "", "bf16");
}

TEST_CASE("DDP sums the gradients of a block while the backward pass goes on") {
    Config c = config_of(small_shape("gpt2", true), {.ranks = 2, .micros = 2}, "fp32");
    const Events events = trace_of(c, {false, 4e9, 1e9, 2e9});
    long first = LONG_MAX, sums = 0, last_backward = 0;
    for (const Event& e : events) {
        const std::string name = e.name;
        if (name == "sum gradients on dp_replicate") first = std::min(first, e.begin), ++sums;
        if (name == "embed_backward") last_backward = e.begin;
    }
    CHECK(sums == 4);
    CHECK(first < last_backward);
}

}
