// model.h - a whole trainer whose weights the reference knows too, and rows to train it with.
// Copy with: test/harness.h, test/instances.h, test/reference.h and what they name
// One file of a test binary may include it: train_gpt.cu defines functions.
#pragma once
#include "test/harness.h"
#include "test/instances.h"
#include "test/reference.h"

namespace baretrain::test {

// Each family, tied and not. Heads are grouped and have a size of their own; no two sizes are equal.
inline ModelShape shape_of(const std::string& family, bool tied) {
    if (family == "gpt2")
        return {.family = "gpt2", .layers = 2, .dim = 12, .heads = 3, .kv_heads = 3, .head_dim = 4, .ffn = 20,
                .vocab = 17, .seq = 16, .tied = tied};
    return {.family = family, .layers = 2, .dim = 12, .heads = 6, .kv_heads = 2, .head_dim = 4, .ffn = 14, .vocab = 17,
            .seq = 16, .tied = tied, .rope_theta = 50.0, .window = family == "mistral" ? 3 : 0};
}
// Llama with everything that its config.json can switch on.
inline ModelShape llama_options(bool tied) {
    ModelShape s = shape_of("llama", tied);
    s.attention_bias = s.mlp_bias = true;
    s.scaling = {4, 1, 3, 20};
    return s;
}
inline std::vector<ModelShape> all_shapes() {
    std::vector<ModelShape> all = {llama_options(true), llama_options(false)};
    for (const std::string& family : model_families)
        for (bool tied : {true, false}) all.push_back(shape_of(family, tied));
    return all;
}

struct Sizes { long seq, batch, micros; };
using Tensors = std::map<std::string, Numbers>;

// A trainer in an arena of exactly the planned size, with noise for weights that the reference has too.
template <class T> struct Model {
    Config config;
    Params params;
    size_t planned;
    Arena arena;
    Trainer<T> t;
    Reference truth;

    Model(const ModelShape& shape, Sizes z, int team = 1, const std::string& recompute = "none")
        : config(config_of(shape, z, recompute)), params(shape), planned(plan_of<T>(config, params).peak), arena(planned),
          t(config, params, arena), truth{shape, {}} {
        t.device.team = team;
        int which = 0;
        for (const Param& p : params.rows()) {
            Numbers& values = truth.w[p.name] = noise<bf16>(p.count(), which++);   // every type can hold them
            for (double& v : values) v = p.dims().size() == 1 ? double(bf16(float(p.mean + v / 4))) : v / 2;
        }
        set(truth.w);
    }
    static Config config_of(const ModelShape& shape, Sizes z, const std::string& recompute) {
        Config c;
        c.recompute = recompute;
        c.shape = shape, c.seq = z.seq, c.batch = z.batch, c.tokens_per_step = z.seq * z.batch * z.micros;
        c.lr = 0.01, c.warmup = 0, c.steps = 10, c.clip = 0.5, c.weight_decay = 0.25;
        return c;
    }
    void set(const Tensors& tensors) {
        for (const Param& p : params.rows()) {
            T* const to = t.weights.owned(p.unit).data + p.offset;
            for (long i = 0; i < p.count(); ++i)
                if constexpr (std::is_same_v<T, bf16>) to[i] = bf16(float(tensors.at(p.name)[size_t(i)]));
                else to[i] = T(tensors.at(p.name)[size_t(i)]);
        }
        for (const TensorTarget& master : t.optimizer.targets(t.device))
            if (master.name.starts_with("master.")) {
                const Numbers& values = tensors.at(master.name.substr(7));
                master.store(std::vector<Real<T>>(values.begin(), values.end()).data());
            }
    }
    Tensors tensors(auto& store) {
        Tensors all;
        for (const Param& p : params.rows()) {
            const auto* from = store.owned(p.unit).data + p.offset;
            all[p.name] = Numbers(from, from + p.count());
        }
        return all;
    }
    Tensors grads() { return tensors(t.grads); }
    Tensors weights() { return tensors(t.weights); }
    // Bytes of everything that an update may change.
    std::vector<std::vector<char>> bytes() {
        std::vector<std::vector<char>> all;
        std::vector<TensorSource> sources = t.optimizer.sources(t.device);
        for (TensorSource& s : tensor_sources<T>(t.device, params, owned_units(params, t.weights), ""))
            sources.push_back(std::move(s));
        for (const TensorSource& s : sources) {
            long count = s.dtype == "F64" ? 8 : s.dtype == "F32" ? 4 : 2;
            for (long n : s.shape) count *= n;
            all.emplace_back(size_t(count));
            s.fetch(all.back().data());
        }
        return all;
    }
    // Logits of the last micro-batch.
    Numbers logits() {
        Numbers all;
        auto ends = t.weights.gather(0);
        for_each_logits<T>(t.context, ends->head, t.final, [&](long, long n, View<Real<T>> z) {
            for (long r = 0; r < n; ++r) all.insert(all.end(), z.row(r), z.row(r) + z.cols);
        });
        t.weights.release(ends);
        return all;
    }
    Numbers logprobs(long micro) const {
        const auto row = t.logprobs.row_range(micro, 1);
        return Numbers(row.data, row.data + row.cols);
    }
};

// body(trainer) of each of c.ranks ranks, as threads; each has exactly the memory that is planned for it.
template <class T, class Body> void on_ranks(const Config& c, Body body) {
    const size_t bytes = plan_of<T>(c, params_of(c)).peak;
    ThreadWorld world;
    run_threads(world, int(c.ranks), [&](int rank) {
        const Mesh mesh = mesh_of(c, rank);
        const Params params = params_of(c, mesh);
        ThreadEngine engine(world, mesh, Device{.team = 1});
        Arena arena(bytes);
        Trainer<T> t(c, params, arena, {mesh, &engine, 1});
        t.optimizer.initialise(t.device, 1);
        body(t);
    });
}

// Documents of these lengths with tokens of their own; every `skip`-th target is ignored.
inline Rows make_rows(const std::vector<int>& lengths, int which, int skip = 0, int vocab = 17) {
    Rows m;
    for (int length : lengths) {
        m.documents.push_back(int(m.tokens.size()));
        for (int i = 0; i < length; ++i) {
            const uint64_t n = m.tokens.size();
            const auto token = [&](uint64_t k) {
                return int(philox(3, Stream::test, uint64_t(which), k).v[0] % uint32_t(vocab));
            };
            m.tokens.push_back(token(2 * n)), m.positions.push_back(i);
            m.targets.push_back(skip > 0 && n % uint64_t(skip) == 0 ? ignored : token(2 * n + 1));
        }
    }
    m.documents.push_back(int(m.tokens.size()));
    return m;
}
inline long trained(const std::vector<Rows>& micros) {
    long sum = 0;
    for (const Rows& m : micros)
        for (int t : m.targets) sum += t != ignored;
    return sum;
}

// Sequences of 7 rows of which 7, 3, 5 and 1 are trained.
inline std::vector<Rows> four_sequences() {
    std::vector<Rows> all;
    const std::vector<int> counts = {7, 3, 5, 1};
    for (int i = 0; i < 4; ++i) {
        all.push_back(make_rows({7}, 10 + i));
        for (int j = 0; j < 7 - counts[size_t(i)]; ++j) all.back().targets[size_t((j * 3 + i) % 7)] = ignored;
    }
    return all;
}
// The sequences joined, `batch` to a micro-batch.
inline std::vector<Rows> joined(const std::vector<Rows>& sequences, size_t batch) {
    std::vector<Rows> micros;
    for (size_t i = 0; i < sequences.size(); ++i) {
        const Rows& s = sequences[i];
        if (i % batch == 0) micros.push_back({{}, {}, {}, {0}});
        Rows& m = micros.back();
        m.tokens.insert(m.tokens.end(), s.tokens.begin(), s.tokens.end());
        m.targets.insert(m.targets.end(), s.targets.begin(), s.targets.end());
        m.positions.insert(m.positions.end(), s.positions.begin(), s.positions.end());
        m.documents.push_back(int(m.tokens.size()));
    }
    return micros;
}

}  // namespace baretrain::test
