// train_test.cu - the training step as a whole: what it learns, what it must not depend on, and what it leaves alone.
#include "test/instances.h"
#include <doctest/doctest.h>
#include <fstream>
#include <random>
#include <set>

using namespace baretrain;

namespace {

using Words = std::vector<std::string>;
using Bytes = std::map<std::string, std::string>;      // tensor -> its bytes
using Numbers = std::vector<double>;

Config config_of(const Words& more) {
    std::vector<const char*> argv = {"test"};
    const Words base = {"--family=gpt2", "--layers=2", "--dim=32", "--heads=2", "--seq=16", "--warmup=3", "--steps=60",
                        "--lr=0.01"};
    Words words = base;
    for (const std::string& w : more) {                // a flag given again replaces the one of the base
        const std::string flag = w.substr(0, w.find('=') + 1);
        std::erase_if(words, [&](const std::string& b) { return b.starts_with(flag); });
        words.push_back(w);
    }
    for (const std::string& w : words) argv.push_back(w.c_str());
    return parse(int(argv.size()), argv.data()).config;
}

Corpus corpus_of(const std::string& text) {
    Corpus c;
    c.train = {{Tokens(257, Tokenizer::bytes().encode(text))}};
    c.hash = "0123";
    return c;
}

// A sentence again and again: 65 windows of 16 and a rest, so that epochs have an offset and no window equals the next.
Corpus sentence() {
    std::string text;
    while (text.size() < 1048) text += "A small model learns this line by heart; ";
    return corpus_of(text.substr(0, 1048));
}

// A trainer with everything that it refers to.
template <class T> struct Bench {
    Config config;
    Corpus corpus;
    Params params;
    Arena arena;
    Trainer<T> t;
    Loader data;

    explicit Bench(const Words& flags, Corpus text = sentence())
        : config(config_of(flags)), corpus(std::move(text)), params(config.shape),
          arena(plan_of<T>(config, params).peak), t(config, params, arena),
          data(corpus.train, config.seq, uint64_t(config.seed)) {
        t.device.team = 1;                             // so small that a team would wait more than it works
        t.optimizer.initialise(t.device, uint64_t(config.seed));
    }
    Bench(const Bench&) = delete;
    StepResult step() { return train_step(t, next_rows(t, data)); }
    double steps(long n) {                             // the last loss
        double loss = 0;
        while (n-- > 0) loss = step().loss;
        return loss;
    }
    static Bytes bytes_of(const std::vector<TensorSource>& sources) {
        Bytes all;
        for (const TensorSource& s : sources) {
            long bytes = s.dtype == "BF16" ? 2 : s.dtype == "F32" ? 4 : 8;
            for (long n : s.shape) bytes *= n;
            s.fetch((all[s.name] = std::string(size_t(bytes), '\0')).data());
        }
        return all;
    }
    Bytes weights() { return bytes_of(tensor_sources<T>(t.device, params, owned_units(params, t.weights), "")); }
    Bytes state() { return bytes_of(t.optimizer.sources(t.device)); }
    std::map<std::string, Numbers> numbers() {
        std::map<std::string, Numbers> all;
        for (const auto& [name, bytes] : weights()) {
            const T* from = reinterpret_cast<const T*>(bytes.data());
            for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) all[name].push_back(double(from[i]));
        }
        return all;
    }
};

double worst_difference(const std::map<std::string, Numbers>& a, const std::map<std::string, Numbers>& b) {
    double worst = 0;
    for (const auto& [name, x] : a)
        for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(x[i] - b.at(name).at(i)));
    return worst;
}

const Words families[] = {{"--family=gpt2"}, {"--family=llama", "--kv-heads=1", "--tied=false"}};
Words operator+(Words a, const Words& b) { return a.insert(a.end(), b.begin(), b.end()), a; }

namespace fs = std::filesystem;
struct TempFolder {
    fs::path path = fs::temp_directory_path() / ("train_test_" + std::to_string(std::random_device()()));
    TempFolder() { fs::create_directories(path); }
    ~TempFolder() { fs::remove_all(path); }
};

}  // namespace

TEST_SUITE("train") {

TEST_CASE("60 steps on a repeated sentence bring the loss from ln 257 to 2.2 (GPT-2) and 0.5 (Llama), in bf16 alike") {
    for (const Words& family : families) {
        CAPTURE(family[0]);
        const Words flags = family + Words{"--batch=8"};
        Bench<float> a(flags);
        Bench<bf16> b(flags + Words{"--dtype=bf16"});
        const double first = a.step().loss, first_bf16 = b.step().loss;
        CHECK(std::fabs(first - std::log(257.0)) < 0.05);
        CHECK(std::fabs(first_bf16 - first) < 0.01);
        const double last = a.steps(59), last_bf16 = b.steps(59);
        CAPTURE(last);
        CAPTURE(last_bf16);
        CHECK(last < (family[0] == "--family=gpt2" ? 2.2 : 0.5));
        CHECK(std::fabs(last_bf16 - last) < 0.15);
    }
}

TEST_CASE("loss is the mean over the trained tokens of a step before its update, grad_norm is taken before clipping") {
    Bench<double> b({"--batch=2", "--tokens-per-step=96", "--clip=0.01"});
    b.steps(3);
    std::vector<Rows> micros = next_rows(b.t, b.data);
    for (size_t i = 0; i < 20; ++i) micros[1].targets[i] = -1;   // unequal micro-batches: 32, 12, 32
    double sum = 0;
    for (const Rows& m : micros) sum += evaluate_rows(b.t.context, b.t.weights, b.t.rows, m);
    const long tokens = b.t.tokens;
    const StepResult r = train_step(b.t, micros);
    CHECK(r.trained == 76);
    CHECK(b.t.tokens == tokens + 76);
    CHECK(std::fabs(r.loss + sum / 76) < 1e-13);
    double squares = 0;
    for (int u = 0; u < b.params.units(); ++u) {
        const View<double> g = b.t.grads.owned(u);
        for (long i = 0; i < g.count(); ++i) squares += g.data[i] * g.data[i];
    }
    CHECK(r.grad_norm > 0.1);
    CHECK(std::fabs(r.grad_norm / std::sqrt(squares) - 1) < 1e-12);
    CHECK(b.t.state.data->scale == doctest::Approx(0.01 / r.grad_norm).epsilon(1e-12));
}

TEST_CASE("B3: batch and accumulation with the same tokens of a step give the same rates, losses and weights") {
    const Words shared = {"--tokens-per-step=96", "--steps=10"};
    Bench<double> whole(shared + Words{"--batch=6"});
    std::vector<StepResult> want;
    std::vector<double> rates;
    for (int i = 0; i < 10; ++i) want.push_back(whole.step()), rates.push_back(whole.t.state.data->lr);
    CHECK(rates[0] == doctest::Approx(0.01 / 3));
    CHECK(rates[2] == 0.01);
    CHECK(rates[9] == whole.config.min_lr);
    for (long batch : {1, 2, 3}) {
        CAPTURE(batch);
        Bench<double> parts(shared + Words{"--batch=" + std::to_string(batch)});
        REQUIRE(parts.t.micro_batches() == 6 / batch);
        for (size_t i = 0; i < 10; ++i) {
            CAPTURE(i);
            const StepResult r = parts.step();
            CHECK(parts.t.state.data->lr == rates[i]);
            CHECK(std::fabs(r.loss - want[i].loss) < 1e-11);
            CHECK(std::fabs(r.grad_norm / want[i].grad_norm - 1) < 1e-10);
        }
        CHECK(worst_difference(whole.numbers(), parts.numbers()) < 1e-9);
        CHECK(parts.t.tokens == 960);
    }
}

TEST_CASE("A4: of five windows, two a step, the third step has the last and the next epoch's first: none is lost") {
    Corpus text = sentence();
    text.train[0].tokens = text.train[0].tokens.range(0, 5 * 16 + 1);
    Bench<double> b({"--batch=1", "--tokens-per-step=32"}, text), hand({"--batch=2"}, text);
    std::multiset<long> starts;
    for (long k = 0; k < 5; ++k) {
        const StepResult r = b.step();
        const StepResult want = train_step(hand.t, {hand.data.rows(2 * k, 2)});   // one micro-batch: no accumulation
        CHECK(r.trained == 32);
        CHECK(std::fabs(r.loss - want.loss) < 1e-12);
        CHECK(std::fabs(r.grad_norm / want.grad_norm - 1) < 1e-10);
        for (long i = 0; i < 2; ++i) starts.insert(b.data.place(2 * k + i).start);
    }
    CHECK(b.t.step == 5);
    CHECK(b.t.position == 10);
    for (long w = 0; w < 5; ++w) CHECK(starts.count(16 * w) == 2);   // each window once in each of two epochs
}

TEST_CASE("after k steps the position is k times the windows of a step, and each window came once an epoch") {
    Bench<float> b({"--batch=5", "--tokens-per-step=160"});
    std::vector<long> starts;
    for (long k = 0; k <= 13; ++k) {
        CHECK(b.t.position == 10 * k);
        for (const Rows& m : next_rows(b.t, b.data)) {
            REQUIRE(m.tokens.size() == 80);
            CHECK(m.documents == std::vector<int>{0, 16, 32, 48, 64, 80});
        }
        for (long i = 0; i < 10; ++i) starts.push_back(b.data.place(10 * k + i).start);
    }
    REQUIRE(b.data.windows() == 65);
    const std::set<long> first(starts.begin(), starts.begin() + 65), second(starts.begin() + 65, starts.begin() + 130);
    CHECK(first.size() == 65);
    CHECK(second.size() == 65);
    CHECK(!std::equal(starts.begin(), starts.begin() + 65, starts.begin() + 65));
}

TEST_CASE("the same seed gives the same bits, another seed other ones") {
    const Words flags = {"--batch=2", "--tokens-per-step=64"};
    Bench<bf16> a(flags), b(flags), c(flags + Words{"--seed=2"});
    CHECK(a.weights() == b.weights());
    CHECK(a.weights() != c.weights());
    const double last = a.steps(4);
    CHECK(b.steps(4) == last);
    CHECK(c.steps(4) != last);
    CHECK(a.weights() == b.weights());
    CHECK(a.state() == b.state());
}

TEST_CASE_TEMPLATE("C4: a checkpoint gives back weights, moments, position; the next step has the same bits", T,
                   float, bf16) {
    const TempFolder temp;
    const std::string dtype = sizeof(T) == 2 ? "bf16" : "fp32";
    const Words flags = {"--family=llama", "--kv-heads=1", "--batch=2", "--tokens-per-step=96", "--dtype=" + dtype};
    const Tokenizer tokenizer = load_tokenizer("byte");
    Bench<T> a(flags), b(flags), model(flags + Words{"--seed=1338"});
    a.steps(5);
    const std::string folder = save(a.t, a.corpus, tokenizer, temp.path.string());
    CHECK(a.weights() != b.weights());
    resume(b.t, b.corpus, folder);
    CHECK(a.weights() == b.weights());
    CHECK(a.state() == b.state());
    CHECK(b.t.step == 5);
    CHECK(b.t.position == 30);
    CHECK(b.t.tokens == 480);

    model.t.optimizer.load(model.t.device, folder);    // without the state: the weights alone, and no moments
    CHECK(model.weights() == a.weights());
    for (const auto& [name, bytes] : model.state())
        if (!name.starts_with("master.")) CHECK(bytes.find_first_not_of('\0') == std::string::npos);

    for (int i = 0; i < 3; ++i) {
        const StepResult x = a.step(), y = b.step();
        CHECK(x.loss == y.loss);
        CHECK(x.grad_norm == y.grad_norm);
    }
    CHECK(a.weights() == b.weights());
    CHECK(a.state() == b.state());
}

TEST_CASE("the validation loss is total over count, whatever the batch") {
    Corpus text = sentence();
    Tokens& tokens = text.train[0].tokens;
    tokens = tokens.range(0, 6 * 16 + 1 + 5);          // six windows: a short last batch for 4 and 5, and a rest
    Bench<double> b({"--batch=6"}, text);
    b.steps(2);
    double sum = 0;
    for (long w = 0; w < 6; ++w) sum += evaluate_rows(b.t.context, b.t.weights, b.t.rows, b.data.in_order(w, 1));
    for (long batch = 1; batch <= 6; ++batch) {
        CAPTURE(batch);
        const double loss = evaluate(b.t.context, b.t.weights, b.t.rows, b.data, {batch}, [](long, long) {}).mean();
        CHECK(std::fabs(loss + sum / 96) < 1e-12);
    }
}

TEST_CASE("an evaluation and a sample between two steps change no bit of the run") {
    const Words flags = {"--batch=3"};
    Bench<bf16> a(flags), b(flags);
    for (int i = 0; i < 3; ++i) {
        CHECK(a.step().loss == b.step().loss);
        evaluate(b.t.context, b.t.weights, b.t.rows, b.data, {2}, [](long, long) {});
        Generator<bf16>(b.t.context, b.t.weights, 16).generate({65}, 20, {}, [](int) { return true; });
    }
    CHECK(a.state() == b.state());
}

TEST_CASE("B17: with a gradient clipped to 1e-9 the weights hardly move") {
    const Words flags = {"--batch=2", "--weight-decay=0"};
    Bench<double> clipped(flags + Words{"--clip=1e-9"}), free(flags + Words{"--clip=0"});
    const auto before = clipped.numbers();
    const double rate = 0.01 / 3;
    const StepResult a = clipped.step(), b = free.step();
    CHECK(a.grad_norm == b.grad_norm);
    CHECK(worst_difference(before, free.numbers()) > 0.9 * rate);
    CHECK(worst_difference(before, clipped.numbers()) < 0.05 * rate);
    CHECK(worst_difference(before, clipped.numbers()) > 0);
}

TEST_CASE("B4: weight decay reaches every matrix, by lr times decay times the weight, and no gain or bias") {
    for (const Words& family : families) {
        CAPTURE(family[0]);
        const Words flags = family + Words{"--batch=2"};
        Bench<double> with(flags + Words{"--weight-decay=0.5"}), without(flags + Words{"--weight-decay=0"});
        const auto before = with.numbers();
        with.step(), without.step();
        const auto a = with.numbers(), b = without.numbers();
        for (const Param& p : with.params.rows()) {
            CAPTURE(p.name);
            const bool matrix = p.dims().size() == 2;
            double worst = 0, largest = 0;
            for (size_t i = 0; i < a.at(p.name).size(); ++i) {
                const double decay = matrix ? 0.01 / 3 * 0.5 * before.at(p.name)[i] : 0;
                worst = std::max(worst, std::fabs(b.at(p.name)[i] - a.at(p.name)[i] - decay));
                largest = std::max(largest, std::fabs(decay));
            }
            CHECK(worst < 1e-15);
            CHECK((largest > 1e-5) == matrix);
        }
    }
}

// A head so far up that every target has probability 0.
TEST_CASE("B10: a step with an absurd loss is skipped, and what is not finite first is named") {
    Bench<float> b({"--batch=2", "--tied=false"});
    b.steps(2);
    const Param& head = b.params.rows()[4];
    REQUIRE(head.name == "lm_head.weight");
    float* const row = b.t.weights.owned(0).data + head.offset;   // of id 0, which no text has
    const std::vector<float> good(row, row + head.cols);
    for (long c = 0; c < head.cols; ++c) row[c] = 1e30f * (b.t.final.data[c] > 0 ? 1.f : -1.f);
    StepResult r = b.step();
    CHECK(r.skipped);
    CHECK(r.loss > 1e28);
    std::copy(good.begin(), good.end(), row);
    CHECK(!b.step().skipped);
    CHECK(first_not_finite(b.t) == "the loss");        // of a step that was fine: no tensor is to blame
    b.t.grads.owned(1).data[5] = INFINITY;
    CHECK(first_not_finite(b.t) == "the gradient of transformer.h.0.ln_1.weight");
    b.t.grads.owned(2).data[5] = NAN;                  // the last block is the first that the backward pass meets
    CHECK(first_not_finite(b.t) == "the gradient of transformer.h.1.ln_1.weight");
    b.t.weights.owned(2).data[0] = NAN;
    CHECK(first_not_finite(b.t) == "transformer.h.1.ln_1.weight");
}

TEST_CASE("without a master bf16 learns, keeps no copy of its weights, and resumes with the same bits") {
    const TempFolder temp;
    const Words flags = {"--family=llama", "--batch=2", "--dtype=bf16", "--master=none"};
    Bench<bf16> a(flags), b(flags), with(Words{"--family=llama", "--batch=2", "--dtype=bf16"});
    CHECK(a.state().size() == 2 * a.params.rows().size());
    CHECK(with.state().size() == 3 * a.params.rows().size());
    CHECK(a.arena.peak() + 4 * size_t(a.config.shape.parameters()) <= with.arena.peak());
    const double first = a.step().loss;
    CHECK(a.steps(59) < first - 2);
    const std::string folder = save(a.t, a.corpus, load_tokenizer("byte"), temp.path.string());
    resume(b.t, b.corpus, folder);
    CHECK(a.step().loss == b.step().loss);
    CHECK(a.weights() == b.weights());
    CHECK(a.state() == b.state());
}

TEST_CASE("B10: a gradient that is not finite, or no trained token, leaves weights and moments as they are") {
    Bench<float> b({"--batch=2"});
    b.steps(3);
    std::vector<Rows> none = next_rows(b.t, b.data);
    for (int& target : none[0].targets) target = -1;
    const Bytes weights = b.weights(), state = b.state();
    StepResult r = train_step(b.t, none);
    CHECK(r.skipped);
    CHECK(r.trained == 0);
    CHECK(r.loss == 0);
    CHECK(r.grad_norm == 0);
    CHECK(b.weights() == weights);
    CHECK(b.state() == state);

    float& w = b.t.weights.owned(1).data[3];           // a gain of a block
    const float good = w;
    for (float bad : {INFINITY, NAN}) {
        w = bad;
        r = b.step();
        CHECK(r.skipped);
        CHECK(!std::isfinite(r.grad_norm));
        w = good;
        CHECK(b.weights() == weights);
        CHECK(b.state() == state);
    }
    CHECK(!b.step().skipped);                          // and goes on
    CHECK(b.weights() != weights);
}

TEST_CASE("a step is logged with the speed of all ranks, their share of the measured peak, and the process's memory") {
    for (const long ranks : {1L, 2L}) {
        CAPTURE(ranks);
        const TempFolder folder;
        Bench<float> b({"--steps=3", "--eval-every=0", "--sample-every=0", "--save-every=0"});
        Config& c = b.config;
        c.ranks = ranks, c.tokens_per_step *= ranks, c.out = (folder.path / "run").string();
        const Plan plan = plan_of<float>(c, b.params);
        const World world;
        const Run<float> shared{c, {}, Tokenizer::bytes(), b.params, plan, b.corpus, Clock::now(), world};
        RunFolder run(c.out);
        ThreadWorld threads;
        run_threads(threads, int(ranks), [&](int rank) {
            const Mesh mesh = mesh_of(c, rank);
            ThreadEngine engine(threads, mesh, Device{.team = 1});
            Arena arena(plan.peak);
            Trainer<float> t(c, b.params, arena, {mesh, &engine, 1});
            t.optimizer.initialise(t.device, uint64_t(c.seed));
            t.peak = 1e12;
            if (rank == 0) run.write_run_json(run_facts(t, shared));
            loop(t, shared, rank == 0 ? &run : nullptr);
        });
        std::ifstream log(folder.path / "run" / "log.jsonl");
        long steps = 0;
        for (std::string line; std::getline(log, line); ++steps) {
            const auto number = [&](const std::string& key, size_t from = 0) {
                return std::stod(line.substr(line.find(key, from) + key.size()));
            };
            const double ms = number("\"step\":", line.find("\"ms\":"));
            CHECK(number("\"mfu\":") * ms == doctest::Approx(1e3 * double(ranks) * plan.flops() / 1e12));
            CHECK(number("\"tokens_per_s\":") * ms == doctest::Approx(1e3 * double(c.tokens_per_step)));
            if (resident_memory() > 0) CHECK(number("\"resident\":") > double(ranks) * double(plan.held()) / 2);
        }
        CHECK(steps == 3);
        const std::string facts = read_text((folder.path / "run" / "run.json").string());
        for (const auto& [name, value] : memory_facts(plan.parts, plan.peak))
            CHECK(facts.find(format("\"%s\": %ld,", name.c_str(), std::get<long>(value))) != std::string::npos);
        CHECK(facts.find("\"peak_flops\": 1000000000000.0,") != std::string::npos);
    }
}

}
