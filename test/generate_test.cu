// generate_test.cu - text with cached keys and values is the text without, and the sampler picks as its numbers say.
#include "generate.h"
#include "comm/threads.h"
#include "test/harness.h"
#include "test/host.h"
#include "test/reference.h"
#include <filesystem>
#include <fstream>
#include <set>
#include <unistd.h>

using namespace baretrain;
using namespace baretrain::test;

namespace {

ModelShape shape_of(const std::string& family, long vocab = 19) {
    if (family == "gpt2")
        return {.family = "gpt2", .layers = 2, .dim = 12, .heads = 3, .kv_heads = 3, .head_dim = 4, .ffn = 20,
                .vocab = vocab, .seq = 80, .tied = false};
    return {.family = family, .layers = 2, .dim = 12, .heads = 6, .kv_heads = 2, .head_dim = 4, .ffn = 14,
            .vocab = vocab, .seq = 80, .tied = true, .rope_theta = 50.0, .window = family == "mistral" ? 4 : 0};
}

// A model with noise for weights that the reference has too.
template <class T> struct Model {
    ModelShape shape;
    Params params;
    Arena arena{size_t(8) << 20};
    Device device{.team = 1};                          // models this small are slower with more
    Matmul matmul{device};
    Comm alone{device};
    WholeWeights<T> weights{arena, params, alone};
    View<Real<T>> rope;
    Context<T> context;
    Reference truth;

    explicit Model(const ModelShape& s)
        : shape(s), params(shape), rope(arena.take<Real<T>>(shape.rotary() ? shape.seq : 0, shape.head_dim)),
          context{device, matmul, arena, shape, rope, alone}, truth{shape, {}} {
        fill_rope(device, rope, rope_frequencies(shape));
        int which = 0;
        for (const Param& p : params.rows()) {
            Numbers values = noise<float>(p.count(), which++);
            for (double& v : values) v = double(float(p.mean + v * (p.dims().size() == 1 ? 0.25 : 0.7)));
            set(p.name, values);
        }
    }
    void set(const std::string& name, const Numbers& values) {
        for (const Param& p : params.rows())
            if (p.name == name) {
                REQUIRE(long(values.size()) == p.count());
                std::transform(values.begin(), values.end(), weights.owned(p.unit).data + p.offset,
                               [](double v) { return T(float(v)); });
            }
        truth.w[name] = values;
    }
    std::vector<int> generate(long longest, const std::vector<int>& prompt, long tokens, const Sampling& how) {
        Generator<T> generator(context, weights, longest);
        std::vector<int> text;
        generator.generate(prompt, tokens, how, [&](int id) { return text.push_back(id), true; });
        return text;
    }
};

double random_of(const Sampling& how, long i) {
    return uniform(philox(how.seed, Stream::sample, how.step, uint64_t(i)).v[0]);
}

// The same text without a cache: the whole context goes through the model for each token; logits() gives its last row.
template <class Logits>
std::vector<int> uncached(Logits logits, size_t longest, std::vector<int> context, long tokens, const Sampling& how) {
    std::vector<int> text;
    const auto crop = [&] {
        if (context.size() > longest) context.erase(context.begin(), context.end() - std::max(1L, long(longest / 2)));
    };
    crop();
    for (long i = 0; i < tokens; ++i) {
        text.push_back(pick(logits(context), how, random_of(how, i)));
        context.push_back(text.back());
        crop();
    }
    return text;
}

const std::vector<int> prompt = {3, 1, 4, 1, 5};
const Sampling greedy{.temperature = 0}, sampled{.temperature = 0.9, .top_k = 12, .top_p = 0.95, .seed = 5, .step = 2};

template <class T> void check_cached(long longest, long tokens, const std::vector<int>& from = prompt) {
    for (const std::string& family : model_families)
        for (const Sampling& how : {greedy, sampled}) {
            CAPTURE(family);
            CAPTURE(how.temperature);
            Model<T> m(shape_of(family));
            const std::vector<int> text = m.generate(longest, from, tokens, how);
            CHECK(long(text.size()) == tokens);
            Generator<T> generator(m.context, m.weights, longest);
            const auto ours = [&](const std::vector<int>& ids) { return generator.feed(ids, 0); };
            const auto others = [&](const std::vector<int>& ids) { return m.truth.logits(ids).back(); };
            CHECK(text == uncached(ours, size_t(longest), from, tokens, how));
            if (std::is_same_v<T, double>) CHECK(text == uncached(others, size_t(longest), from, tokens, how));
            if (how.temperature > 0) CHECK(std::set<int>(text.begin(), text.end()).size() > 4);   // a text that varies
        }
}

// The logarithms of probabilities, as logits: whatever is added to all of them.
std::vector<double> logs(const std::vector<double>& p, double shift = 0) {
    std::vector<double> z;
    for (double x : p) z.push_back(std::log(x) + shift);
    return z;
}

}  // namespace

TEST_SUITE("generate") {

TEST_CASE("J3: 64 tokens with a cache are the 64 tokens without, and those of the independent model") {
    check_cached<double>(80, 64);
    check_cached<float>(80, 64);
    check_cached<bf16>(80, 64);
}

TEST_CASE("a context that is full goes on from its later half") {
    check_cached<double>(16, 64);
    check_cached<double>(7, 20);
    check_cached<float>(16, 64);
}

TEST_CASE("a prompt longer than the cache is cut to its later half, and a cache of one token works") {
    check_cached<double>(8, 20, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
    check_cached<double>(8, 20, {1, 2, 3, 4, 5, 6, 7, 8});
    Model<double> m(shape_of("llama"));
    CHECK(m.generate(1, prompt, 9, greedy) ==
          uncached([&](const auto& ids) { return m.truth.logits(ids).back(); }, 1, prompt, 9, greedy));
}

TEST_CASE("however a context is fed, piece by piece or whole, its logits are those of the independent model") {
    for (const std::string& family : model_families) {
        CAPTURE(family);
        Model<double> m(shape_of(family));
        std::vector<int> ids;
        for (int i = 0; i < 70; ++i) ids.push_back(i * i % 19);
        const auto truth = m.truth.logits(ids);
        Generator<double> generator(m.context, m.weights, 80);
        long fed = 0;
        for (long piece : {1L, 5L, 1L, 33L, 1L, 29L}) {
            const std::vector<int> part(ids.begin() + fed, ids.begin() + fed + piece);
            const std::vector<double> logits = generator.feed(part, fed);
            fed += piece;
            CHECK(relative_error(truth[size_t(fed - 1)], logits) < 1e-12);
        }
        const std::vector<int> again(ids.begin() + 40, ids.begin() + 42);   // a cache may go back
        CHECK(relative_error(truth[41], generator.feed(again, 40)) < 1e-12);
        CHECK(relative_error(truth[69], generator.feed(ids, 0)) < 1e-12);
    }
}

TEST_CASE("the same seed gives the same text; another seed or step another one") {
    Model<float> m(shape_of("gpt2"));
    Sampling how = sampled;
    const std::vector<int> text = m.generate(80, prompt, 40, how);
    CHECK(m.generate(80, prompt, 40, how) == text);
    CHECK(m.generate(80, prompt, 20, how) == std::vector<int>(text.begin(), text.begin() + 20));
    how.seed += 1;
    CHECK(m.generate(80, prompt, 40, how) != text);
    how.seed -= 1, how.step += 1;
    CHECK(m.generate(80, prompt, 40, how) != text);
}

TEST_CASE("generation stops when it is told to, needs a prompt, and gives its memory back") {
    Model<float> m(shape_of("llama"));
    const auto* const before = Scratch(m.arena).take<float>(1, 1).data;
    {
        Generator<float> generator(m.context, m.weights, 80);
        int calls = 0;
        generator.generate(prompt, 64, greedy, [&](int) { return ++calls < 3; });
        CHECK(calls == 3);
        generator.generate(prompt, 0, greedy, [&](int) { return ++calls, true; });
        CHECK(calls == 3);
        CHECK_THROWS_AS(generator.generate({}, 1, greedy, [](int) { return true; }), Error);
    }
    CHECK(Scratch(m.arena).take<float>(1, 1).data == before);
}

TEST_CASE("temperature 0 is the likeliest token, and equal logits go by id, whatever the random number") {
    for (double u : {1e-9, 0.5, 1 - 1e-9}) {
        CHECK(pick({1, 3, 2}, {.temperature = 0}, u) == 1);
        CHECK(pick({1, 3, 3, 2, 3}, {.temperature = 0}, u) == 1);
        CHECK(pick({7, 7, 7}, {.temperature = 0}, u) == 0);
        CHECK(pick({-1e30, -2, -INFINITY}, {.temperature = 0}, u) == 1);
        CHECK(pick({2, 1, 0}, {.temperature = 1, .top_k = 1}, u) == 0);
        CHECK(pick({0, 1, 2}, {.temperature = 1, .top_p = 0}, u) == 2);
        CHECK(pick({5}, {}, u) == 0);
        CHECK(pick({NAN, 1, NAN, 2, 0}, {.temperature = 0}, u) == 3);
        CHECK_THROWS_AS(pick(std::vector<double>(100, NAN), {}, u), Error);
        CHECK(pick({NAN, 1, NAN, 1}, {}, u) == (u < 0.5 ? 1 : 3));
    }
    CHECK(pick({1, 2, 9, 9}, {.temperature = 0, .vocab = 2}, 0.5) == 1);   // the rest is padding of the vocabulary
    CHECK(pick({7, 7, 7}, {.top_k = 2}, 0.999) == 1);  // of three equal ones the first two are kept
    CHECK(pick({7, 7, 7}, {.top_k = 2}, 0.001) == 0);
}

// With random numbers spread evenly, a token comes n * p times, give or take one.
TEST_CASE("each token comes as often as its probability says, after temperature, top-k and top-p") {
    const auto check = [](const std::vector<double>& logits, const Sampling& how, const std::vector<double>& p) {
        const int n = 20000;
        std::vector<double> counts(p.size());
        for (int i = 0; i < n; ++i) counts[size_t(pick(logits, how, (i + 0.5) / n))] += 1;
        for (size_t t = 0; t < p.size(); ++t) {
            CAPTURE(t);
            CHECK(std::fabs(counts[t] - n * p[t]) < 1.5);
            CHECK((counts[t] == 0) == (p[t] == 0));
        }
    };
    const std::vector<double> p = {0.1, 0.4, 0.2, 0.3}, z = logs(p);
    check(z, {}, p);
    check(logs(p, 1000), {}, p);                       // no overflow
    check(logs(p, -1000), {}, p);
    const std::vector<double> squares = {0.01, 0.16, 0.04, 0.09};
    check(logs(squares), {.temperature = 2}, p);
    check(z, {.temperature = 0.5}, {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3});
    check(z, {.top_k = 4}, p);
    check(z, {.top_k = 99}, p);
    check(z, {.top_k = 2}, {0, 4. / 7, 0, 3. / 7});
    check(z, {.top_p = 0.39}, {0, 1, 0, 0});
    check(z, {.top_p = 0.41}, {0, 4. / 7, 0, 3. / 7});   // the token that reaches the sum is kept
    check(z, {.top_p = 0.69}, {0, 4. / 7, 0, 3. / 7});
    check(z, {.top_p = 0.71}, {0, 4. / 9, 2. / 9, 3. / 9});
    check(z, {.top_p = 0.99}, p);
    check(z, {.top_p = 1}, p);
    check(z, {.top_k = 2, .top_p = 0.5}, {0, 1, 0, 0});   // top-p counts in what top-k has left: 4/7 is enough
    check(z, {.temperature = 0.5, .top_p = 0.5}, {0, 1, 0, 0});   // and after the temperature: 16/30
}

TEST_CASE("A8: a mean loss is total over count, not a mean of means") {
    LossSum loss;
    CHECK(loss.mean() == 0);
    loss.add(6, 2), loss.add(5, 10);
    CHECK(loss.mean() == doctest::Approx(11. / 12).epsilon(1e-15));
}

TEST_CASE("A8: evaluation is the mean over all windows, whatever the batch, and the independent model's") {
    Model<double> m(shape_of("gpt2"));
    std::vector<int> tokens;
    for (int i = 0; i < 60; ++i) tokens.push_back(i * i % 17);
    const Loader data({{Tokens(17, tokens)}}, 8, 1);
    REQUIRE(data.windows() == 7);
    double sum = 0;
    for (long w = 0; w < 7; ++w) {
        const Rows r = data.in_order(w, 1);
        const auto logits = m.truth.logits(r.tokens);
        for (size_t i = 0; i < 8; ++i) sum -= Reference::logprob(logits[i], r.targets[i]);
    }
    for (long batch : {1L, 3L, 7L, 50L}) {
        Scratch s(m.arena);
        RowBuffers rows(m.arena, m.params.shape(), batch * 8, 8);
        long calls = 0;
        const auto count = [&](long, long total) { calls += total == 7; };
        const LossSum loss = evaluate(m.context, m.weights, rows, data, {batch}, count);
        CHECK(loss.mean() == doctest::Approx(sum / 56).epsilon(1e-12));
        CHECK(loss.count == 56);
        CHECK(calls == (6 + batch) / batch);
        LossSum shares;                                // three ranks: each window once, each rank as many batches
        for (long rank = 0; rank < 3; ++rank) {
            const LossSum share = evaluate(m.context, m.weights, rows, data, {batch, rank, 3}, count);
            shares.total += share.total, shares.count += share.count;
        }
        CHECK(shares.mean() == doctest::Approx(sum / 56).epsilon(1e-12));
        CHECK(shares.count == 56);
        CHECK(calls == (6 + batch) / batch + 3 * ((6 + 3 * batch) / (3 * batch)));
    }
}

// Hidden rows are all ones, so that a logit is the sum of a row of the head: any token can be made the likeliest.
struct Parrot : Model<float> {
    explicit Parrot(int token) : Model(shape_of("gpt2", 257)) {
        set("transformer.ln_f.weight", Numbers(12, 0));
        set("transformer.ln_f.bias", Numbers(12, 1));
        Numbers head(257 * 12, 0);
        std::fill_n(head.begin() + token * 12, 12, 5.0);
        set("lm_head.weight", head);
    }
    std::string say(const std::string& prompt, std::string& shown) {
        Generator<float> generator(context, weights, 80);
        return sample(generator, Tokenizer::bytes(), prompt, 5, greedy, [&](const std::string& s) { shown += s; });
    }
};

TEST_CASE("a sample is shown as it grows, ends at the end of text, and needs no prompt") {
    std::string shown, nothing, broken;
    CHECK(Parrot('A').say("x", shown) == "AAAAA");
    CHECK(shown == "AAAAA");
    CHECK(Parrot('A').say("", shown) == "AAAAA");
    CHECK(Parrot(256).say("x", nothing) == "");
    CHECK(nothing == "");
    CHECK(Parrot(0xE2).say("x", broken) == broken);    // the beginnings of characters that never come
    std::string replaced;
    for (int i = 0; i < 5; ++i) replaced += "\xEF\xBF\xBD";
    CHECK(broken == replaced);
}

TEST_CASE("ranks of tp write and evaluate as one does, each with its part of weights and caches") {
    for (const std::string family : {"gpt2", "mistral", "qwen3"}) {
        ModelShape shape = shape_of(family, 101);
        shape.dim = 32, shape.heads = 8, shape.kv_heads = family == "gpt2" ? 8 : 4, shape.ffn = 20;
        const TempFolder folder;
        Model<double> m(shape);
        write_safetensors(folder / "model.safetensors",
                          tensor_sources<double>(m.device, m.params, owned_units(m.params, m.weights), ""), {});
        std::vector<int> one;
        double loss = 0, bytes = 0;
        for (const int tp : {1, 2, 4}) {
            CAPTURE(family); CAPTURE(tp);
            ThreadWorld world;
            run_threads(world, tp, [&](int rank) {
                const Mesh mesh{{1, 1, 1, 1, tp}, rank};
                ThreadEngine engine(world, mesh, Device{.team = 1});
                Arena arena(size_t(8) << 20);
                Inference<double> model(arena, shape, 16, {mesh, &engine, 1});
                model.load(folder.path);
                std::vector<int> text;
                Generator<double> generator(model.context, model.weights, 16);
                const double held = double(arena.peak());
                for (const Sampling& how : {greedy, sampled})   // beyond the caches
                    generator.generate({3, 1, 4, 1, 5}, 24, how, [&](int id) { return text.push_back(id), true; });
                RowBuffers buffers(arena, shape, 16, 16);
                Rows rows;
                rows.append(std::vector<int>(text.begin(), text.begin() + 9));
                rows.append(std::vector<int>(text.begin() + 9, text.begin() + 17));
                const double sum = evaluate_rows(model.context, model.weights, buffers, rows);
                if (tp == 1) one = text, loss = sum, bytes = held;
                CHECK(text == one);
                CHECK(std::fabs(sum - loss) <= 1e-12 * std::fabs(loss));
                if (family != "gpt2") CHECK(held < bytes * (1.0 / tp + 0.06));   // every rank has all positions of gpt2
                for (const auto& [key, row] : model.comm.ledger) CHECK((key.what == "activations" || key.what == "vocabulary"));
            });
        }
    }
}

TEST_CASE("a model that is read from a folder into memory that a dry run has measured says the same") {
    const auto folder = std::filesystem::temp_directory_path() / ("baretrain-generate-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    Model<float> m(shape_of("llama", 257));
    write_safetensors((folder / "model.safetensors").string(),
                      tensor_sources<float>(m.device, m.params, owned_units(m.params, m.weights), ""), {});
    for (const auto& [name, text] : Tokenizer::bytes().files()) std::ofstream(folder / name) << text;
    for (const Sampling& how : {greedy, sampled}) {
        std::string direct, command;
        {
            Generator<float> generator(m.context, m.weights, 80);
            sample(generator, Tokenizer::bytes(), "To be", 12, how, [&](const std::string& s) { direct += s; });
        }
        const auto run = [&](Arena arena) {
            Inference<float> model(arena, m.shape, 64);
            Generator<float> generator(model.context, model.weights, 64);
            if (arena.dry()) return generator.feed(std::vector<int>(64), 0), arena.peak();
            model.load(folder.string());
            sample(generator, Tokenizer::bytes(), "To be", 12, how, [&](const std::string& s) { command += s; });
            return arena.peak();
        };
        run(Arena(run(Arena())));
        CHECK(command == direct);
        CHECK(command != "");
    }
    std::filesystem::remove_all(folder);
}

}  // TEST_SUITE
