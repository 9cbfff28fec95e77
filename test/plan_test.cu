// plan_test.cu - what a dry run says a run will cost, against closed forms and against what is then allocated.
#include "commands/costs.h"
#include "test/host.h"
#include "test/model.h"
#include "test/ranks.h"
#include "dev/bench/bench.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

struct Sizes2 { long N, C, A, K, F, up, V, L; };
Sizes2 sizes_of(const Config& c) {
    const ModelShape& s = c.shape;
    return {c.batch * c.seq, s.dim, s.heads * s.head_dim, s.kv_heads * s.head_dim, s.ffn, s.gated() ? 2 * s.ffn : s.ffn,
            s.vocab, s.layers};
}
size_t bytes_of(const Plan& p, const std::string& name) {
    for (const ArenaPart& part : p.parts)
        if (part.name == name) return part.bytes;
    return 0;
}
size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

TEST_SUITE("plan") {

TEST_CASE_TEMPLATE("bytes by class are those of the closed forms", T, float, bf16, double) {
    const size_t R = sizeof(Real<T>), S = sizeof(T);
    for (const ModelShape& shape : all_shapes())
        for (const char* how : {"none", "selective", "full"})
            for (const char* master : {"fp32", "none"}) {
                CAPTURE(shape.family); CAPTURE(how); CAPTURE(master);
                Config c = Model<T>::config_of(shape, {16, 2, 1}, how);
                c.master = master;
                const Params params(shape);
                const Plan plan = plan_of<T>(c, params);
                size_t elements = 0, weights = 0;      // each unit is a multiple of 64 elements
                for (int u = 0; u < params.units(); ++u)
                    elements += size_t(params.unit_size(u)), weights += padded(size_t(params.unit_size(u)) * S);
                CHECK(elements - size_t(shape.parameters()) < 64 * (params.rows().size() + size_t(params.units())));
                const bool copy = S != R && c.master != "none";
                CHECK(bytes_of(plan, "weights") == weights);
                CHECK(bytes_of(plan, "gradients") == elements * R);
                CHECK(bytes_of(plan, "optimizer") == elements * R * (copy ? 3 : 2));

                const Sizes2 z = sizes_of(c);
                const auto t = [&](long columns) { return padded(size_t(z.N * columns) * S); };
                const auto r = [&](long columns) { return padded(size_t(z.N * columns) * R); };
                const size_t cheap = 2 * t(z.C) + t(z.F);
                size_t dear = t(z.A + 2 * z.K) + t(z.A) + t(z.C) + t(z.up) + 2 * r(2) + r(shape.heads);
                if (shape.qk_norm()) dear += t(z.A) + t(z.K) + r(2 * shape.heads) + r(2 * shape.kv_heads);
                const size_t L = size_t(z.L), rebuilt = cheap * (how == std::string("none") ? L : 1);
                const size_t kept = dear * (how == std::string("full") ? 1 : L);
                CHECK(bytes_of(plan, "activations") == r(2) + 2 * t(z.C) + L * t(z.C) + rebuilt + kept);
            }
}

TEST_CASE("operations are the counted products: three a weight and token, one more in each block that is rebuilt") {
    for (const ModelShape& shape : all_shapes())
        for (const bool full : {false, true}) {
            CAPTURE(shape.family); CAPTURE(full);
            const Config c = Model<float>::config_of(shape, {16, 2, 3}, full ? "full" : "none");
            const Sizes2 z = sizes_of(c);
            const long block = z.C * (z.A + 2 * z.K) + z.A * z.C + z.C * z.up + z.F * z.C;
            const long tokens = c.tokens_per_step, products = 3 * (z.L * block + z.V * z.C) + (full ? z.L * block : 0);
            CHECK(plan_of<float>(c, Params(shape)).matmul_flops == double(2 * tokens * products));
        }
}

TEST_CASE("attention's operations are counted by the pairs of query and key that see each other") {
    for (const std::string& family : model_families) {
        Config c = Model<float>::config_of(shape_of(family, true), {16, 2, 3}, "none");
        const ModelShape& s = c.shape;
        double pairs = 0;
        for (long q = 0; q < 16; ++q) pairs += double(s.window > 0 ? std::min(q + 1, s.window) : q + 1);
        const double per_pair = 2 * double(s.head_dim * s.heads * s.layers) * 6;   // six sequences
        CHECK(attention_flops(c) == 7 * per_pair * pairs);
        c.recompute = "full";
        CHECK(attention_flops(c) == 9 * per_pair * pairs);
    }
}

TEST_CASE("a run allocates, class by class, what its plan says") {
    for (const ModelShape& shape : all_shapes()) {
        Model<bf16> m(shape, {7, 4, 2});
        const Plan plan = plan_of<bf16>(m.config, m.params);
        std::vector<Rows> micros;
        for (int i = 0; i < 2; ++i) micros.push_back(make_rows({7, 7, 7, 7}, 40 + i));
        train_step(m.t, micros);
        CHECK(memory_facts(m.arena.parts(), plan.peak) == memory_facts(plan.parts, plan.peak));
        CHECK(plan.held() < plan.peak);
        CHECK(m.t.matmul.flops() == plan.matmul_flops);
    }
}

// What its plan says = what each rank holds, class by class, and sends in a step = what the formulas say.
template <class T> void check_ranks(const Config& config, long micros) {
    const Plan plan = plan_of<T>(config, params_of(config));
    const auto bytes = [](const Ledger& ledger) {
        std::map<std::string, long> all;
        for (const auto& [key, row] : ledger) all[key.text()] = row.bytes;
        return all;
    };
    std::mutex mutex;
    on_ranks<T>(config, [&](Trainer<T>& t) {
        t.comm.ledger.clear();
        train_step(t, std::vector<Rows>(size_t(micros), make_rows({7, 7}, t.comm.mesh.dp_rank())));
        const std::lock_guard lock(mutex);
        if (config.tp == 1 || t.comm.first()) {        // else they are those of rank 0
            CHECK(bytes(t.comm.ledger) == bytes(plan.ledger));
            CHECK(bytes(t.comm.ledger) == bytes(sent_by_formula<T>(config, t.params, config.stats > 0)));
            CHECK(t.matmul.flops() == plan.matmul_flops);
        }
        CHECK(memory_facts(t.arena.parts(), plan.peak) == memory_facts(plan.parts, plan.peak));
        CHECK(t.arena.peak() == plan.step);
    });
}

TEST_CASE_TEMPLATE("every layout: its plan is what each rank holds and sends, and the formulas say the same", T, float,
                   bf16) {
    for (const long ranks : {2, 4})
        for (const long micros : {1, 3}) {
            Config c = Model<T>::config_of(shape_of("gpt2", false), {7, 2, micros * ranks}, "none");
            c.ranks = ranks, c.stats = micros == 3;
            CHECK(alternatives(c).size() == 5);
            for (const auto& [name, config] : alternatives(c)) {
                CAPTURE(ranks); CAPTURE(micros); CAPTURE(name);
                check_ranks<T>(config, micros);
            }
        }
}

TEST_CASE("plan names the rows or columns of each matrix that each rank has: of stacked ones some of each part") {
    Config c = Model<float>::config_of(split_shape("gpt2", true), {7, 2, 2}, "none");
    c.ranks = c.tp = 2;
    const std::string text = split_text(c);
    CAPTURE(text);
    for (const char* line : {"transformer.wte.weight                       33 x 20: rows 0-16 | 17-32\n",
                             "h.0.attn.c_attn.weight           20 x 60: columns 0-9 20-29 40-49 | 10-19 30-39 50-59\n",
                             "h.0.attn.c_attn.bias             1 x 60: columns 0-9 20-29 40-49 | 10-19 30-39 50-59\n",
                             "h.0.attn.c_proj.weight           20 x 20: rows 0-9 | 10-19\n"})
        CHECK_MESSAGE(text.find(line) != std::string::npos, line);
    CHECK(text.find("ln_") == std::string::npos);
    CHECK(text.find(".h.1.") == std::string::npos);
}

TEST_CASE("tensor and sequence parallelism: the plan and the formulas say what is sent, in each recompute mode") {
    for (const bool sp : {false, true})
        for (const char* how : {"none", "selective", "full"})
            for (const char* shard : {"none", "fsdp"}) {
                CAPTURE(sp); CAPTURE(how); CAPTURE(shard);
                Config c = Model<bf16>::config_of(split_shape("qwen3", false), {7, 2, 4}, how);
                c.ranks = 4, c.tp = 2, c.sp = sp, c.shard = shard, c.stats = sp;
                check_ranks<bf16>(c, 2);
            }
}

TEST_CASE("plan costs the alternatives that a number of ranks has: hsdp in two copies, or in as many as are given") {
    Config c = Model<float>::config_of(shape_of("gpt2", false), {7, 2, 12}, "none");
    const auto replicas = [&](long ranks, const std::string& shard, long replicate) {
        c.ranks = ranks, c.shard = shard, c.replicate = replicate;
        std::map<std::string, std::pair<int, int>> all;   // dp_replicate, dp_shard
        for (const auto& [name, config] : alternatives(c))
            all[name] = {mesh_of(config).size(Axis::dp_replicate), mesh_of(config).size(Axis::dp_shard)};
        return all;
    };
    using All = std::map<std::string, std::pair<int, int>>;
    CHECK(replicas(1, "none", 1).size() == 4);
    CHECK(replicas(3, "fsdp", 1) == All{{"none", {3, 1}}, {"zero1", {1, 3}}, {"zero2", {1, 3}}, {"fsdp", {1, 3}}});
    CHECK(replicas(12, "none", 12).at("hsdp") == std::pair(2, 6));
    CHECK(replicas(12, "zero1", 4).at("hsdp") == std::pair(4, 3));
    CHECK(replicas(12, "zero1", 4).at("zero1") == std::pair(1, 12));
}

TEST_CASE("the table of what was sent marks every row that is not as its formula, and what is missing") {
    Config c = Model<float>::config_of(shape_of("gpt2", false), {7, 2, 2}, "none");
    c.ranks = 2, c.shard = "zero1";
    on_ranks<float>(c, [&](Trainer<float>& t) {
        Traffic traffic;
        t.meet();
        traffic.add_besides(t.comm);
        for (int i = 0; i < 3; ++i) train_step(t, {make_rows({7, 7}, i)}), traffic.add_step(t, false);
        if (!t.comm.first()) return;
        const std::string text = to_text(traffic);
        CAPTURE(text);
        CHECK(!contains(text, "DIFFERENT"));
        CHECK(count(text, "\n") == 1 + 5 + 3);         // head; gather, scatter, three sums; besides: first weights, meeting
        long elements = 0;
        for (int u = 0; u < t.params.units(); ++u) elements += t.params.unit_size(u);
        CHECK(contains(text, format("dp_shard      gather     weights             3 %14ld %14ld ", 2 * elements, 2 * elements)));
        ++traffic.steps.begin()->second.bytes;
        CHECK(count(to_text(traffic), "DIFFERENT\n") == 1);
        traffic.steps.erase(traffic.steps.begin());
        CHECK(count(to_text(traffic), "DIFFERENT\n") == 1);
        traffic.steps[{Axis::dp_shard, Op::all_to_all, "weights"}].bytes = 1;
        CHECK(count(to_text(traffic), "DIFFERENT\n") == 2);
    });
}

TEST_CASE("what `make bench` replays of a step are the products that the plan counts, and nothing else runs") {
    for (const ModelShape& shape : all_shapes()) {
        CAPTURE(shape.family);
        Model<bf16> m(shape, {7, 4, 1});
        const std::vector<Rows> micros{make_rows({7, 7, 7, 7}, 40)};
        std::map<std::string, bench::Phase> all;
        {
            const bench::Phases whole(m.t.device, false);
            train_step(m.t, micros);
            all = whole.by_operation();
            CHECK(whole.products().flops == plan_of<bf16>(m.config, m.params).matmul_flops);
        }
        CHECK(all.count("adamw"));
        CHECK(all.count("attention_backward"));
        CHECK(all.at("linear_forward").product);
        const auto weights = m.tensors(m.t.weights);
        const double before = m.t.matmul.flops();
        const long launches = m.t.device.launches;
        const bench::Phases replay(m.t.device, true);
        train_step(m.t, micros);
        CHECK(replay.products().flops == m.t.matmul.flops() - before);
        CHECK(replay.products().seconds > 0);
        CHECK(m.t.device.launches > launches);         // counted, as on every dry device
        CHECK(m.tensors(m.t.weights) == weights);      // AdamW did not run
    }
}

TEST_CASE("the models of `make bench` are those that it names") {
    const auto millions = [](const bench::Case& c) { return double(bench::config_of(c, "bf16").shape.parameters()) / 1e6; };
    CHECK(millions(bench::cases[2]) == doctest::Approx(124.44).epsilon(1e-4));   // with all of its positions
    for (const bench::Case& c : bench::cases) {
        CAPTURE(c.name);
        const Config config = bench::config_of(c, "fp32");
        const std::string name = c.name, size = concat("-B", config.batch, "-T", config.seq);
        CHECK(name.substr(name.size() - size.size()) == size);
        const std::vector<Rows> rows = bench::random_rows(config);
        CHECK(rows[0].tokens.size() == size_t(config.tokens_per_step));
        CHECK(rows[0].documents.size() == size_t(config.batch) + 1);
        CHECK(rows[0].documents.back() == int(config.tokens_per_step));
        CHECK(plan_of<float>(config, Params(config.shape)).matmul_flops > 0);
    }
}

TEST_CASE("B4: the two groups of weight decay can be read: matrices and embeddings, and norms and biases") {
    const Params params(shape_of("qwen3", false));
    CHECK(decay_group(params, true) ==
          "model.embed_tokens.weight lm_head.weight model.layers.*.self_attn.q_proj.weight "
          "model.layers.*.self_attn.k_proj.weight model.layers.*.self_attn.v_proj.weight "
          "model.layers.*.self_attn.o_proj.weight model.layers.*.mlp.gate_proj.weight "
          "model.layers.*.mlp.up_proj.weight model.layers.*.mlp.down_proj.weight");
    CHECK(decay_group(params, false) ==
          "model.norm.weight model.layers.*.input_layernorm.weight model.layers.*.self_attn.q_norm.weight "
          "model.layers.*.self_attn.k_norm.weight model.layers.*.post_attention_layernorm.weight");
    const std::string kept = decay_group(Params(shape_of("gpt2", true)), false);
    CHECK(kept.find("transformer.h.*.attn.c_attn.bias") != std::string::npos);
}

TEST_CASE("a model of 8 billion parameters is planned without its memory") {
    Config c;
    c.shape = preset("llama3-8b"), c.seq = 8192, c.batch = 1, c.tokens_per_step = 8192;
    const Plan plan = plan_of<bf16>(c, Params(c.shape));
    CHECK(bytes_of(plan, "weights") / 2 - 8030261248 < 64 * 1000);
    CHECK(plan.matmul_flops == doctest::Approx(6.0 * 8192 * (8030261248.0 - 128256.0 * 4096)).epsilon(1e-4));
}

TEST_CASE("the peak of the machine is measured for a run that takes a hundred times as long, and for no other") {
    Device device;
    const double product = on_gpu ? 2.0 * 4096 * 4096 * 4096 : 2.0 * 1024 * 3072 * 768;
    CHECK(measured_peak<float>(device, 99 * product) < 0);
    CHECK(device.launches == 0);
    const double peak = measured_peak<float>(device, 101 * product);
    CHECK(peak > 1e6);
    CHECK(std::isfinite(peak));
}

}
