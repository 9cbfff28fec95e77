// stats_test.cu - a line of stats.jsonl against norms and magnitudes that plain loops take of weights, gradients, moments
// and activations before and after the step.
#include "test/model.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

using Line = std::map<std::string, std::map<std::string, double>>;
Line by_name(const std::vector<StatsLog::Row>& rows) {
    Line all;
    for (const auto& [name, numbers] : rows) all[name] = {numbers.begin(), numbers.end()};
    return all;
}

// A model that takes statistics of every step: after three steps, so that moments and weights have a history.
template <class T> struct Measured {
    Config config;
    Params params;
    size_t planned;
    Arena arena;
    Trainer<T> t;
    Measured(const ModelShape& shape, const std::string& recompute, const std::string& master, long every = 1)
        : config(config_of(shape, recompute, master, every)), params(shape), planned(plan_of<T>(config, params).peak),
          arena(planned), t(config, params, arena) {
        t.device.team = 1;
        t.optimizer.initialise(t.device, 5);
        for (int i = 0; i < 3; ++i) train_step(t, micros(i));
    }
    static Config config_of(const ModelShape& shape, const std::string& recompute, const std::string& master, long every) {
        Config c = Model<T>::config_of(shape, {7, 2, 2}, recompute);
        c.master = master, c.stats = every;
        return c;
    }
    static std::vector<Rows> micros(int which) { return {make_rows({7, 7}, 50 + 2 * which), make_rows({7, 7}, 51 + 2 * which)}; }
    // Master weights (where there are any, else the weights), and m. and v. of each tensor.
    Tensors state() {
        Tensors all;
        std::vector<TensorSource> sources = t.optimizer.sources(t.device);
        for (TensorSource& s : tensor_sources<T>(t.device, params, owned_units(params, t.weights), ""))
            if (!master()) sources.push_back(std::move(s));
        for (const TensorSource& s : sources) {
            long count = 1;
            for (long n : s.shape) count *= n;
            const std::string name = s.name.starts_with("master.") ? s.name.substr(7) : s.name;
            const auto read = [&](auto type) {
                std::vector<decltype(type)> host(static_cast<size_t>(count));
                s.fetch(host.data());
                all[name] = Numbers(host.begin(), host.end());
            };
            s.dtype == "BF16" ? read(bf16{}) : s.dtype == "F64" ? read(double{}) : read(float{});
        }
        return all;
    }
    bool master() const { return !std::is_same_v<T, Real<T>> && config.master != "none"; }
    Line tensors() { return by_name(t.stats.log(t.device, t.step).tensors); }
    Line activations() { return by_name(t.stats.log(t.device, t.step).activations); }
};

double norm(const Numbers& x) {
    double squares = 0;
    for (double v : x) squares += v * v;
    return std::sqrt(squares);
}
Numbers minus(Numbers a, const Numbers& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
    return a;
}
// Updates of 1e-2 to weights of 1: in double the tenth of 1e-12 is lost when one is subtracted from the other.
template <class T> double bound() { return std::is_same_v<T, double> ? 1e-12 : 1e-5; }

template <class T> void check_tensors(const ModelShape& shape, const std::string& recompute, const std::string& master) {
    CAPTURE(shape.family); CAPTURE(shape.tied); CAPTURE(recompute); CAPTURE(master);
    Measured<T> m(shape, recompute, master);
    const Tensors before = m.state();
    train_step(m.t, m.micros(3));
    const Tensors after = m.state();
    const Line line = m.tensors();
    CHECK(line.size() == m.params.rows().size());
    for (const Param& p : m.params.rows()) {
        CAPTURE(p.name);
        const auto* g = m.t.grads.owned(p.unit).data + p.offset;
        const std::map<std::string, double> want = {
            {"weight", norm(after.at(p.name))}, {"grad", norm(Numbers(g, g + p.count()))},
            {"update", norm(minus(after.at(p.name), before.at(p.name)))},
            {"m", norm(after.at("m." + p.name))}, {"v", norm(after.at("v." + p.name))}};
        CHECK(line.at(p.name).size() == want.size());
        for (const auto& [what, truth] : want) {
            CAPTURE(what);
            CHECK(truth > 0);
            CHECK(std::fabs(line.at(p.name).at(what) - truth) <= bound<T>() * truth);
        }
    }
}

// Both micro-batches, as block_forward leaves them when nothing is rebuilt.
template <class T> Line brute_activations(const ModelShape& shape) {
    Measured<T> m(shape, "none", "fp32");
    std::map<std::string, Numbers> values;
    Context<T>& c = m.t.context;
    for (const Rows& rows : m.micros(3)) {
        const RowViews views = m.t.rows.upload(m.t.device, rows.tokens, rows.targets, rows.positions, rows.documents);
        auto ends = m.t.weights.gather(ends_unit);
        embed_forward(c, m.t.embedded, *ends, views);
        View<T> x = m.t.embedded;
        for (long block = 0; block < shape.layers; ++block) {
            auto w = m.t.weights.gather(block_unit(block));
            const BlockActs<T>& a = m.t.acts[size_t(block)];
            x = block_forward(c, *w, a, x, views);
            m.t.weights.release(w);
            const std::pair<const char*, View<T>> all[] = {{"norm1", a.norm1}, {"qkv", a.qkv}, {"att", a.att},
                {"mid", a.mid}, {"norm2", a.norm2}, {"up", a.up}, {"act", a.act}, {"out", a.out}};
            for (const auto& [name, view] : all) {
                Numbers& to = values[std::to_string(block) + "." + name];
                for (long i = 0; i < view.count(); ++i) to.push_back(double(view.data[i]));
            }
        }
        m.t.weights.release(ends);
    }
    Line line;
    for (const auto& [name, x] : values) {
        double top = 0, zeros = 0;
        for (double v : x) top = std::max(top, std::fabs(v)), zeros += v == 0;
        line[name] = {{"rms", norm(x) / std::sqrt(double(x.size()))}, {"abs_max", top}, {"zeros", zeros / double(x.size())}};
    }
    return line;
}

}  // namespace

TEST_SUITE("stats") {

TEST_CASE("ranks report together what one rank does of the whole step, in every layout") {
    ModelShape shape = shape_of("qwen3", false);
    shape.heads = 8, shape.kv_heads = 4, shape.ffn = 20;   // four ranks of tp can share them
    Config c = Model<double>::config_of(shape, {7, 1, 4}, "none");
    c.stats = 1, c.eps = 1e-6;
    const std::vector<Rows> all = four_sequences();    // of which unequal parts are trained
    const auto logs = [&](const Config& config) {
        std::vector<StatsLog> of_rank(static_cast<size_t>(config.ranks));
        on_ranks<double>(config, [&](Trainer<double>& t) {
            const long rank = t.comm.mesh.dp_rank(), n = long(all.size()) / config.dp();
            const std::vector<Rows> mine = joined({all.begin() + rank * n, all.begin() + (rank + 1) * n}, size_t(config.batch));
            for (int step = 0; step < 3; ++step) train_step(t, mine);
            of_rank[size_t(t.comm.mesh.rank)] = t.stats.log(t.device, t.step);
        });
        return of_rank;
    };
    const StatsLog one = logs(c)[0];
    struct Cut { const char* shard; long replicate = 1, tp = 1; bool sp = false; };
    for (const auto& [shard, replicate, tp, sp] : {Cut{"none"}, {"zero1"}, {"zero2", 2}, {"fsdp"}, {"fsdp", 2}, {"none", 1, 4},
                                                   {"zero1", 1, 2}, {"fsdp", 1, 2, true}}) {
        CAPTURE(shard); CAPTURE(replicate); CAPTURE(tp); CAPTURE(sp);
        Config four = c;
        four.ranks = 4, four.shard = shard, four.replicate = replicate, four.tp = tp, four.sp = sp;
        four.batch = sp ? 2 : 1;                       // an even number of rows
        for (const StatsLog& log : logs(four)) {
            CHECK(to_json(log).size() > 1000);
            for (const auto& [want, got] : {std::pair(by_name(one.tensors), by_name(log.tensors)),
                                            std::pair(by_name(one.activations), by_name(log.activations))}) {
                REQUIRE(got.size() == want.size());
                for (const auto& [name, numbers] : want)
                    for (const auto& [what, x] : numbers) {
                        CAPTURE(name); CAPTURE(what);
                        CHECK(std::fabs(got.at(name).at(what) - x) <= 1e-11 * std::fabs(x));
                    }
            }
        }
    }
}

TEST_CASE_TEMPLATE("norms of each tensor are those of the state before and after the step", T, double, float, bf16) {
    for (const std::string family : {"gpt2", "llama", "qwen3"})
        for (const bool tied : {true, false}) check_tensors<T>(shape_of(family, tied), "none", "fp32");
    check_tensors<T>(shape_of("llama", true), "selective", "fp32");
    check_tensors<T>(shape_of("gpt2", true), "full", "fp32");
}

TEST_CASE("without a master the update is what stochastic rounding made of it") {
    check_tensors<bf16>(shape_of("gpt2", true), "none", "none");
    check_tensors<bf16>(shape_of("llama", false), "full", "none");
}

TEST_CASE_TEMPLATE("sizes of activations are those of all micro-batches, whatever is rebuilt", T, double, float, bf16) {
    for (const ModelShape& shape : {shape_of("gpt2", true), shape_of("llama", false), shape_of("qwen3", true)}) {
        const Line want = brute_activations<T>(shape);
        CHECK(want.size() == 16);
        for (const std::string recompute : {"none", "selective", "full"}) {
            CAPTURE(shape.family); CAPTURE(recompute);
            Measured<T> m(shape, recompute, "fp32");
            train_step(m.t, m.micros(3));
            const Line line = m.activations();
            REQUIRE(line.size() == want.size());
            for (const auto& [name, numbers] : want)
                for (const auto& [what, truth] : numbers) {
                    CAPTURE(name); CAPTURE(what);
                    CHECK(std::fabs(line.at(name).at(what) - truth) <= bound<T>() * truth);
                }
        }
    }
}

TEST_CASE("the squares of all gradient norms add up to that of the step, before clipping") {
    Measured<double> m(shape_of("llama", true), "none", "fp32");
    const StepResult r = train_step(m.t, m.micros(3));
    double squares = 0;
    for (const auto& [name, numbers] : m.tensors()) squares += numbers.at("grad") * numbers.at("grad");
    CHECK(r.grad_norm > m.config.clip);
    CHECK(std::sqrt(squares) == doctest::Approx(r.grad_norm).epsilon(1e-13));
}

TEST_CASE("B10: what is not finite first has the same name on all ranks of tp, whoever of them has it") {
    Config c = Model<float>::config_of(shape_of("qwen3", false), {7, 2, 2}, "none");
    c.ranks = c.tp = 2, c.sp = true;
    const Params whole(c.shape);
    for (const std::string name : {"lm_head.weight", "model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.k_norm.weight"})
        on_ranks<float>(c, [&](Trainer<float>& t) {
            const auto p = std::find_if(t.params.rows().begin(), t.params.rows().end(), [&](const Param& r) { return r.name == name; });
            const auto sequences = four_sequences();
            CHECK(!train_step(t, joined(sequences, 2)).skipped);
            if (!p->split() || t.comm.mesh.rank == 1) t.weights.owned(p->unit).data[p->offset + 2] = NAN;
            CHECK(train_step(t, joined(sequences, 2)).skipped);
            CHECK(first_not_finite(t) == name);
        });
}

TEST_CASE("every K-th step is measured, and no other") {
    Measured<float> m(shape_of("gpt2", true), "none", "fp32", 2);
    CHECK(!m.t.stats.due());                           // after step 3
    for (const bool due : {true, false, true}) {
        train_step(m.t, m.micros(0));
        CHECK(m.t.stats.due() == due);
    }
}

TEST_CASE("measuring changes no bit of the run, and without it nothing is held or launched") {
    Measured<bf16> with(shape_of("llama", true), "selective", "fp32"), without(shape_of("llama", true), "selective", "fp32", 0);
    CHECK((with.state() == without.state()));
    for (const ArenaPart& part : without.arena.parts()) CHECK(part.name != std::string("statistics"));
    Model<bf16> plain(shape_of("llama", true), {7, 2, 2}, 1, "selective");
    CHECK(without.planned == plain.planned);
    const long launches = plain.t.device.launches, before = without.t.device.launches;
    train_step(plain.t, without.micros(3)), train_step(without.t, without.micros(3));
    CHECK(without.t.device.launches - before == plain.t.device.launches - launches);
    train_step(with.t, with.micros(3));
    const Plan plan = plan_of<bf16>(with.config, with.params);
    CHECK(plan.peak > without.planned);
    CHECK(memory_facts(with.arena.parts(), plan.peak) == memory_facts(plan.parts, plan.peak));
}

TEST_CASE("a NaN in a weight is a NaN of its tensor and of the activations that saw it; the step is skipped") {
    Measured<float> m(shape_of("gpt2", true), "none", "fp32");
    const Param& p = *std::find_if(m.params.rows().begin(), m.params.rows().end(),
                                   [](const Param& r) { return r.name == "transformer.h.1.mlp.c_fc.weight"; });
    m.t.weights.owned(p.unit).data[p.offset + 3] = NAN;
    const Tensors before = m.state();
    CHECK(train_step(m.t, m.micros(3)).skipped);
    const Line tensors = m.tensors(), acts = m.activations();
    for (const Param& r : m.params.rows()) {
        CAPTURE(r.name);
        CHECK(std::isnan(tensors.at(r.name).at("weight")) == (r.name == p.name));
        CHECK(std::isnan(tensors.at(r.name).at("update")) == (r.name == p.name));
        CHECK(std::fabs(tensors.at(r.name).at("m") - norm(before.at("m." + r.name))) <= 1e-6);
        if (r.name != p.name) CHECK(tensors.at(r.name).at("update") == 0);
    }
    CHECK(std::isnan(tensors.at("transformer.ln_f.weight").at("grad")));
    for (const char* name : {"1.up", "1.act", "1.out"})
        for (const char* what : {"rms", "abs_max"}) CHECK(std::isnan(acts.at(name).at(what)));
    for (const char* name : {"0.out", "1.norm1", "1.mid", "1.norm2"})
        for (const char* what : {"rms", "abs_max"}) CHECK(std::isfinite(acts.at(name).at(what)));
}

}  // TEST_SUITE
