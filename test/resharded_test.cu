// resharded_test.cu - a run that was saved in one layout goes on in any other, or to the same bits in its own.
#include "test/ranks.h"
#include "test/host.h"
#include <set>

using namespace baretrain;
using namespace baretrain::test;

namespace {

namespace fs = std::filesystem;

// 24 windows a step: 1, 2, 3, 4 and 8 ranks can share them.
constexpr long step_windows = 24;

Corpus corpus_of(long windows) {
    std::vector<int> ids;
    for (long i = 0; i < windows * window_length + 3; ++i)
        ids.push_back(int(philox(3, Stream::test, 9, uint64_t(i)).v[0] % 33));
    Corpus c;
    c.train = {{Tokens(33, ids)}};
    c.hash = "0123";
    return c;
}
const Corpus& words() {                                // 40 windows: the second step begins in one epoch and ends in the next
    static const Corpus c = corpus_of(40);
    return c;
}

// Heads, hidden units and ids that four ranks of tp can share; the ids unevenly.
ModelShape cut_shape(const std::string& family, bool tied, long vocab = 33) {
    ModelShape s = small_shape(family, tied);
    s.heads = 8, s.kv_heads = family == "gpt2" ? 8 : 4, s.ffn = 20, s.vocab = vocab;
    if (family == "gpt2") s.dim = 8 * s.head_dim;
    return s;
}

Config config_of(const Layout& l, const std::string& dtype = "fp64", const ModelShape& shape = cut_shape("llama", true)) {
    Config c = test::config_of(shape, l, dtype);
    c.batch = 1, c.tokens_per_step = step_windows * window_length, c.keep = 0;
    return c;
}

// A run up to step `last`, from the beginning or a checkpoint; it saves in `run` after `save_after` and at its end.
// look(trainer, rank) comes last; see(rank, micro-batches) before each step.
struct Going {
    std::string from, run;
    long save_after = 0, last = 6;
    const Corpus* corpus = &words();
    std::function<void(int, const std::vector<Rows>&)> see = [](int, const std::vector<Rows>&) {};
};
template <class T, class Look> std::vector<StepResult> go(const Config& c, const Going& g, Look look) {
    const Plan plan = plan_of<T>(c, params_of(c));
    std::vector<StepResult> results;
    ThreadWorld world;
    run_threads(world, int(c.ranks), [&](int rank) {
        const Mesh mesh = mesh_of(c, rank);
        const Params params = params_of(c, mesh);
        ThreadEngine engine(world, mesh, Device{.team = 1});
        Arena arena(plan.peak);
        Trainer<T> t(c, params, arena, {mesh, &engine, 1});
        if (g.from.empty()) t.optimizer.initialise(t.device, 5);
        else resume(t, *g.corpus, g.from);
        const Loader data(g.corpus->train, c.seq, uint64_t(c.seed));
        while (t.step < g.last) {
            const std::vector<Rows> micros = next_rows(t, data);
            g.see(rank, micros);
            const StepResult r = train_step(t, micros);
            if (rank == 0) results.push_back(r);
            if (!g.run.empty() && (t.step == g.save_after || t.step == g.last))
                save(t, *g.corpus, Tokenizer::bytes(), g.run);
        }
        look(t, rank);
    });
    return results;
}
template <class T> std::vector<StepResult> go(const Config& c, const Going& g) {
    return go<T>(c, g, [](auto&, int) {});
}

std::string step_of(const std::string& run, long step) { return run + "/step-00000" + std::to_string(step); }

// All that a checkpoint holds, whole: weights under "", moments under "m." and "v.", a master under "master.".
template <class T> std::map<std::string, Tensors> content_of(const std::string& checkpoint, const Config& c) {
    using R = Real<T>;
    std::map<std::string, Tensors> all;
    std::vector<TensorTarget> weights, state;
    const auto target = [&](auto type, const std::string& kind, const Param& p) -> TensorTarget {
        using E = decltype(type);
        return {kind + p.name, safetensors_dtype<E>(), p.dims(), [&all, kind, name = p.name, n = p.count()](const void* from) {
            const E* const e = static_cast<const E*>(from);
            all[kind][name] = Numbers(e, e + n);
        }};
    };
    const Params params(c.shape);
    for (const Param& p : params.rows()) {
        weights.push_back(target(T(), "", p));
        for (const char* kind : {"m.", "v.", "master."})
            if (kind[1] == '.' || (!std::is_same_v<T, R> && c.master != "none")) state.push_back(target(R(), kind, p));
    }
    load_model_tensors(checkpoint, weights);
    load_tensors(state_files(checkpoint), state);
    return all;
}

// Every file but the mark, which holds nothing more.
std::map<std::string, std::string> files_of(const std::string& folder) {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file() && entry.path().filename() != "complete")
            all[entry.path().lexically_relative(folder).string()] = get(entry.path());
    return all;
}

Numbers losses(const std::vector<StepResult>& steps) {
    Numbers all;
    for (const StepResult& s : steps) all.push_back(s.loss), all.push_back(s.grad_norm);
    return all;
}
Numbers tail(const Numbers& all, size_t n) { return {all.end() - long(std::min(n, all.size())), all.end()}; }

const std::vector<Layout> layouts = {
    {.ranks = 1}, {.ranks = 2}, {.ranks = 3}, {.ranks = 4},
    {.shard = "zero1", .ranks = 2}, {.shard = "zero1", .ranks = 4, .replicate = 2},
    {.shard = "zero2", .ranks = 3}, {.shard = "zero2", .ranks = 4}, {.shard = "fsdp", .ranks = 2},
    {.shard = "fsdp", .ranks = 3}, {.shard = "fsdp", .ranks = 4}, {.shard = "fsdp", .ranks = 4, .replicate = 2},
    {.shard = "fsdp", .ranks = 8}, {.ranks = 2, .tp = 2}, {.shard = "fsdp", .ranks = 8, .tp = 4},
    {.shard = "zero1", .ranks = 4, .tp = 2, .sp = true}, {.shard = "fsdp", .ranks = 8, .replicate = 2, .tp = 2},
    {.shard = "zero2", .ranks = 8, .tp = 4, .sp = true}};

}  // namespace

TEST_SUITE("resharded") {

TEST_CASE("C15: a run goes on in any layout from a checkpoint of any other, and to the same bits in its own") {
    const TempFolder temp;
    const Numbers straight = losses(go<double>(config_of({}), {.from = "", .run = temp / "one"}));
    const auto whole = content_of<double>(step_of(temp / "one", 6), config_of({}));
    const bool all = std::getenv("BT_MATRIX");         // make test-long PART=matrix: every pair
    for (size_t i = 0; i < layouts.size(); ++i) {
        const Layout& saved = layouts[i];
        if (!all && saved.shard != "none" && saved.ranks % 2) continue;
        CAPTURE(saved.text());
        const std::string run = temp / std::to_string(i);
        const Numbers own = losses(go<double>(config_of(saved), {.from = "", .run = run, .save_after = 3}));
        for (size_t j = 0; j < layouts.size(); ++j) {
            const Layout& next = layouts[j];
            if (!all && i != j && (i + j) % 3) continue;
            CAPTURE(next.text());
            const std::string out = temp / "next";
            fs::remove_all(out);
            const Numbers then = losses(go<double>(config_of(next), {.from = step_of(run, 3), .run = out}));
            Apart apart;
            compare(apart, {{"losses", tail(straight, 6)}}, {{"losses", then}}, "");
            for (const auto& [kind, tensors] : content_of<double>(step_of(out, 6), config_of(next)))
                compare(apart, whole.at(kind), tensors, kind);
            CAPTURE(apart.where);
            CHECK(apart.worst < 1e-11);
            if (i != j) continue;
            CHECK(then == tail(own, 6));
            CHECK((files_of(step_of(out, 6)) == files_of(step_of(run, 6))));
        }
    }
}

TEST_CASE("what tp=4 x fsdp=2 saved is saved again at tp=1, or tp=2 x zero1, byte for byte, with as many ids as there are") {
    for (const std::string family : {"gpt2", "llama", "qwen3"})
        for (const auto& [dtype, vocab] : {std::pair{"fp64", 33L}, {"bf16", 101L}}) {
            CAPTURE(family); CAPTURE(dtype);
            const TempFolder temp;
            const ModelShape shape = cut_shape(family, family == "llama", vocab);
            const auto again = [&](auto type, const Layout& l, const std::string& from, const std::string& run) {
                using T = decltype(type);
                CAPTURE(l.text());
                const Config c = config_of(l, dtype, shape);
                go<T>(c, {.from = from, .run = "", .last = from.empty() ? 2 : 0}, [&](auto& t, int) {
                    save(t, words(), Tokenizer::bytes(), run);
                });
                CHECK_NOTHROW(require_complete(step_of(run, 2)));   // the mark has the checksum of each rank's file
                const SafetensorsFile file(step_of(run, 2) + "/model.safetensors");
                const TensorInfo* const head = file.find(family == "gpt2"    ? "transformer.wte.weight"
                                                         : family == "llama" ? "model.embed_tokens.weight"
                                                                             : "lm_head.weight");
                REQUIRE(head);
                CHECK(head->shape == std::vector<long>{vocab, shape.dim});
                return content_of<T>(step_of(run, 2), c);
            };
            const auto all = [&](auto type) {
                const std::string first = step_of(temp / "first", 2);
                const auto saved = again(type, {.shard = "fsdp", .ranks = 8, .tp = 4}, "", temp / "first");
                for (const Layout& l : {Layout{}, {.shard = "zero1", .ranks = 4, .tp = 2}, {.ranks = 4, .tp = 4, .sp = true}}) {
                    const std::string run = temp / concat("again", l.ranks, l.tp);
                    CHECK((again(type, l, first, run) == saved));
                    for (const char* name : {"/config.json", "/model.safetensors"})
                        CHECK((get(first + name) == get(step_of(run, 2) + name)));
                    REQUIRE(state_files(step_of(run, 2)).size() == size_t(l.ranks));
                    const std::string back = temp / concat("back", l.ranks, l.tp);
                    again(type, {.shard = "fsdp", .ranks = 8, .tp = 4}, step_of(run, 2), back);
                    CHECK((files_of(step_of(back, 2)) == files_of(first)));
                }
            };
            if (dtype == std::string("fp64")) all(double{});
            else all(bf16{});
        }
}

TEST_CASE("C2: the windows of a run are the same, in the same order, whatever ranks, micro-batches and stops it has") {
    using Windows = std::vector<std::vector<int>>;     // of a run: step after step, as the position counts
    for (const long windows : {12, 13, 40}) {          // a step of 6, so epochs end between steps or within them
        CAPTURE(windows);
        const TempFolder temp;
        const Corpus corpus = corpus_of(windows);
        const auto seen = [&](long ranks, long batch, const std::string& from, const std::string& run, long last) {
            Config c = config_of({.shard = "zero1", .ranks = ranks});
            c.batch = batch, c.tokens_per_step = 6 * window_length;
            const long micros = 6 / (ranks * batch);
            std::vector<Windows> by_rank(static_cast<size_t>(ranks));
            go<float>(c, {from, run, 0, last, &corpus, [&](int rank, const std::vector<Rows>& step) {
                for (const Rows& m : step)
                    for (long b = 0; b < batch; ++b)
                        by_rank[size_t(rank)].emplace_back(m.tokens.begin() + b * window_length,
                                                           m.tokens.begin() + (b + 1) * window_length);
            }});
            Windows all;
            for (size_t i = 0; i < by_rank[0].size() / size_t(micros * batch) * size_t(micros); ++i)
                for (const Windows& w : by_rank)
                    all.insert(all.end(), w.begin() + long(i) * batch, w.begin() + long(i + 1) * batch);
            return all;
        };
        const Windows straight = seen(1, 1, "", "", 7);
        REQUIRE(straight.size() == 42);
        for (const auto& [ranks, batch] : {std::pair{1, 6}, {2, 1}, {2, 3}, {3, 2}, {3, 1}})
            for (const long stop : {1, 2, 3}) {
                CAPTURE(ranks);
                CAPTURE(stop);
                const std::string run = temp / concat(ranks, "-", batch, "-", stop);
                Windows both = seen(ranks, batch, "", run, stop);
                for (const Windows& rest : {seen(3 - ranks / 2, 1, step_of(run, stop), "", 7)})
                    both.insert(both.end(), rest.begin(), rest.end());
                CHECK((both == straight));
            }
    }
}

TEST_CASE("C4: with weights rounded at random a stop changes no bit, and each element has its own numbers in any layout") {
    for (const std::string master : {"none", "fp32"})
        for (const Layout& l : {Layout{}, {.shard = "fsdp", .ranks = 4, .replicate = 2},
                                {.shard = "zero1", .ranks = 4, .replicate = 2}, {.ranks = 4},
                                {.shard = "fsdp", .ranks = 4, .tp = 2, .sp = true}}) {
            CAPTURE(master);
            CAPTURE(l.text());
            const TempFolder temp;
            Config c = config_of(l, "bf16");
            c.master = master;
            const Numbers whole = losses(go<bf16>(c, {.from = "", .run = temp / "a", .save_after = 3}));
            const Numbers rest = losses(go<bf16>(c, {.from = step_of(temp / "a", 3), .run = temp / "b"}));
            CHECK(rest == tail(whole, 6));
            CHECK((files_of(step_of(temp / "a", 6)) == files_of(step_of(temp / "b", 6))));
        }
    const TempFolder temp;                             // the same sums, so the same bits, whoever owns an element
    std::map<std::string, Tensors> first;
    for (const std::string shard : {"none", "zero1", "fsdp"}) {
        Config c = config_of({.shard = shard, .ranks = 2}, "bf16");
        c.master = "none", c.clip = 0, c.batch = 12;   // one micro-batch; the norm is summed in other parts
        go<bf16>(c, {.from = "", .run = temp / shard});
        const auto content = content_of<bf16>(step_of(temp / shard, 6), c);
        if (first.empty()) first = content;
        CAPTURE(shard);
        CHECK((content == first));
    }
    std::map<uint64_t, std::set<std::string>> who;     // the first element of a tensor, or of a part: its number
    std::mutex mutex;
    const Config c = config_of({.ranks = 4, .tp = 4}, "bf16", cut_shape("gpt2", true));
    on_ranks<bf16>(c, [&](Trainer<bf16>& t) {
        for (int u = 0; u < t.params.units(); ++u)
            for (const OptimizerSpan& s : t.params.spans(u))
                for (const Param& p : t.params.rows()) {
                    if (p.unit != u || p.offset < s.offset || p.offset >= s.offset + s.count) continue;
                    const uint64_t number = t.optimizer.span(t.grads, u, s).first + uint64_t(p.offset - s.offset);
                    const std::lock_guard lock(mutex);
                    who[number].insert(concat(p.name, " at ", p.boxes({0, 1})[0].whole));
                }
    });
    size_t elements = 0;
    for (const auto& [number, names] : who) {
        CHECK(names.size() == 1);
        elements += names.size();
    }
    const Params whole(c.shape);
    for (const Param& p : whole.rows()) elements -= p.split() ? 4 : 1;
    CHECK(elements == 0);
}

TEST_CASE("C17: ranks that own a part of a row, or nothing but padding, train, save and resume as one rank does") {
    ModelShape shape = small_shape("gpt2", false);
    shape.dim = shape.heads = shape.kv_heads = 5, shape.head_dim = 1, shape.ffn = 7, shape.layers = 1;
    const TempFolder temp;
    const Numbers straight = losses(go<double>(config_of({}, "fp64", shape), {.from = "", .run = temp / "one"}));
    const auto whole = content_of<double>(step_of(temp / "one", 6), config_of({}, "fp64", shape));
    for (const char* shard : {"zero1", "fsdp"}) {
        CAPTURE(shard);
        const Config c = config_of({.shard = shard, .ranks = 8}, "fp64", shape);
        Numbers all = losses(go<double>(c, {.from = "", .run = temp / shard, .last = 3}));
        for (const std::string& path : state_files(step_of(temp / shard, 3)))
            for (const SafetensorsFile file(path); const TensorInfo& t : file.tensors()) CHECK(t.bytes() > 0);
        const Numbers rest = losses(go<double>(c, {.from = step_of(temp / shard, 3), .run = temp / shard}));
        all.insert(all.end(), rest.begin(), rest.end());
        Apart apart;
        compare(apart, {{"losses", straight}}, {{"losses", all}}, "");
        for (const auto& [kind, tensors] : content_of<double>(step_of(temp / shard, 6), c))
            compare(apart, whole.at(kind), tensors, kind);
        CAPTURE(apart.where);
        CHECK(apart.worst < 1e-11);
    }
}

TEST_CASE("C18: what ranks with shards of the weights save is a whole model, with the logits of the one that trains") {
    const std::vector<int> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
    const auto logits = [&](auto& t) { return Generator(t.context, t.weights, window_length).feed(prompt, 0); };
    for (const bool tied : {true, false})
        for (const Layout& l : {Layout{.shard = "fsdp", .ranks = 4}, {.shard = "fsdp", .ranks = 3},
                                {.shard = "fsdp", .ranks = 4, .replicate = 2}, {.shard = "zero1", .ranks = 4}}) {
            CAPTURE(tied);
            CAPTURE(l.text());
            const TempFolder temp;
            const ModelShape shape = small_shape("llama", tied);
            const Config c = config_of(l, "fp64", shape), alone = config_of({}, "fp64", shape);
            long padded = 0;
            const Params cut(shape, mesh_of(c).size(Axis::dp_shard));
            for (int u = 0; u < cut.units(); ++u) padded += cut.unit_size(u);
            REQUIRE(padded > shape.parameters());
            std::vector<double> live, loaded;
            go<double>(c, {.from = "", .run = temp / "run", .last = 2}, [&](auto& t, int rank) {
                const std::vector<double> mine = logits(t);
                if (rank == 0) live = mine;
            });
            const Params params(shape);
            const SafetensorsFile file(step_of(temp / "run", 2) + "/model.safetensors");
            CHECK(file.tensors().size() == params.rows().size());
            for (const Param& p : params.rows()) {
                const TensorInfo* const t = file.find(p.name);
                REQUIRE(t);
                CHECK(t->shape == p.dims());
                CHECK(t->bytes() == size_t(p.count()) * sizeof(double));
            }
            go<double>(alone, {.from = "", .run = "", .last = 0}, [&](auto& t, int) {
                t.optimizer.load(t.device, step_of(temp / "run", 2));
                loaded = logits(t);
            });
            CHECK(live.size() == size_t(shape.vocab));
            CHECK(live == loaded);
        }
}

}
