// ranks.h - whole trainers as thread ranks of one process: a global batch cut in any way, and all that comes of it, whole.
// Copy with: train_gpt.cu, test/harness.h, test/model.h and what they name
#pragma once
#include "test/model.h"

namespace baretrain::test {

// One way to run the same training.
struct Layout {
    std::string shard = "none";
    long ranks = 1, replicate = 1, micros = 1;
    std::string recompute = "none";
    long prefetch = 1;
    bool reshard = true;
    std::string gather = "", reduce = "";              // dtypes on the wire; "": the elements' own
    long tp = 1;                                       // of the ranks
    bool sp = false;
    long dp() const { return ranks / tp; }
    std::string text() const {
        return concat(shard, reshard ? "" : " without reshard", ", ", ranks, " ranks, tp ", tp, sp ? " sp" : "",
                      ", replicate ", replicate, ", ", micros, " micro-batches, recompute ", recompute, ", prefetch ",
                      prefetch, " ", gather, " ", reduce);
    }
};

// ---- the global batch: 12 windows of 8 tokens, cut for any number of ranks and micro-batches --------------------------
inline constexpr long window_length = 8, windows_a_step = 12;

// Odd sizes on purpose: no unit is a multiple of the ranks, and no two sizes of the model are equal.
inline ModelShape small_shape(const std::string& family, bool tied) {
    ModelShape s = shape_of(family, tied);
    s.layers = 3, s.vocab = 33, s.seq = window_length;
    return s;
}

// The same for up to four ranks of tp: heads divide, ids don't.
inline ModelShape split_shape(const std::string& family, bool tied) {
    ModelShape s = small_shape(family, tied);
    s.heads = 8, s.kv_heads = 4, s.dim = 13, s.ffn = 20, s.vocab = tied ? 33 : 101;
    if (family == "gpt2") s.heads = s.kv_heads = 4, s.head_dim = 5, s.dim = 20, s.ffn = 28;
    return s;
}

// Window w of a step trains between none and all of its tokens; window -1: padding, of which nothing is trained.
inline Rows window_of(long step, long w, long vocab = 33) {
    Rows m = make_rows({int(window_length)}, int(100 * step + w + 1), 0, int(vocab));
    const long trained = w < 0 ? 0 : (5 * w + 3 * step) % (window_length + 1);
    for (long i = 0; i < window_length - trained; ++i) m.targets[size_t((3 * i + w + 1) % window_length)] = ignored;
    return m;
}

// Enough sequences a micro-batch for the windows of a step on all data-parallel ranks but one.
inline long batch_of(const Layout& l) {
    const long slots = std::max(1L, l.dp() - 1) * l.micros;
    return (windows_a_step + slots - 1) / slots;
}

// The micro-batches of a data-parallel rank. In every other step one, each in its turn, has nothing but padding; what is
// too much for the others is padding too.
inline std::vector<Rows> micros_of(const Layout& l, long step, long rank, long vocab = 33) {
    const long batch = batch_of(l), idle = l.dp() > 1 && step % 2 ? step / 2 % l.dp() : -1;
    const long active = l.dp() - (idle >= 0), place = rank - (idle >= 0 && rank > idle);
    std::vector<Rows> sequences;
    for (long i = 0; i < l.micros * batch; ++i) {
        const long w = i * active + place;
        sequences.push_back(window_of(step, rank == idle || w >= windows_a_step ? -1 : w, vocab));
    }
    return joined(sequences, size_t(batch));
}

// ---- what comes of a run ----------------------------------------------------------------------------------------------
struct StepTaken {
    StepResult result;
    Tensors grads;                                     // whole, under Hugging Face's names
    Ledger ledger;                                     // of rank 0
};
struct Taken {
    std::vector<StepTaken> steps;
    Tensors weights;                                   // after the last step
    std::vector<ArenaPart> parts;
    size_t peak = 0;
    Plan plan;
    std::vector<std::string> faults;                   // what must never be, said by a rank
};

inline Config config_of(const ModelShape& shape, const Layout& l, const std::string& dtype) {
    Config c = Model<float>::config_of(shape, {window_length, batch_of(l), l.micros * l.dp()}, l.recompute);
    c.dtype = dtype, c.eps = 1e-6;                     // a gradient that is 0 but for rounding must not move its weight
    c.ranks = l.ranks, c.shard = l.shard, c.replicate = l.shard == "none" ? l.dp() : l.replicate;
    c.tp = l.tp, c.sp = l.sp;
    c.prefetch = l.prefetch, c.reshard_after_forward = l.reshard;
    c.gather_dtype = l.gather, c.reduce_dtype = l.reduce;
    return c;
}

// The tensors of a model, put together from the parts that the ranks own.
template <class T> struct Whole {
    Tensors tensors;
    long dirty = 0, unequal = 0;                       // elements of no tensor that are not 0; that two ranks have otherwise
    explicit Whole(const ModelShape& shape) {
        const Params whole(shape);
        for (const Param& p : whole.rows()) tensors[p.name] = Numbers(size_t(p.count()), NAN);
    }
    void put(const Params& params, const std::vector<Part<T>>& parts) {
        for (size_t u = 0; u < parts.size(); ++u) {
            const Part<T>& part = parts[u];
            std::vector<T> rest(part.data.data, part.data.data + part.range.count);
            for (const Param& p : params.rows()) {
                const Range r = p.range().both(part.range);
                if (size_t(p.unit) != u || r.count == 0) continue;
                p.for_each_run({r.first - p.offset, r.count}, [&](long mine, long at, long n) {
                    T* const from = rest.data() + (p.offset + mine - part.range.first);
                    for (long i = 0; i < n; ++i) {
                        double& to = tensors.at(p.name)[size_t(at + i)];
                        unequal += !std::isnan(to) && to != double(from[i]);
                        to = double(from[i]), from[i] = T(0);
                    }
                });
            }
            dirty += std::count_if(rest.begin(), rest.end(), [](T x) { return !(x == T(0)); });
        }
    }
};

// Trains `steps` steps; micros(step, rank) are what a data-parallel rank reads.
template <class T, class Micros>
Taken run_ranks(const Config& config, long steps, Micros micros) {
    using R = Real<T>;
    Taken taken;
    taken.plan = plan_of<T>(config, params_of(config));
    taken.steps.resize(size_t(steps));
    std::vector<Whole<R>> grads(static_cast<size_t>(steps), Whole<R>(config.shape));
    Whole<T> weights(config.shape);
    std::mutex mutex;
    ThreadWorld world;
    run_threads(world, int(config.ranks), [&](int rank) {
        const Mesh mesh = mesh_of(config, rank);
        const Params params = params_of(config, mesh);
        ThreadEngine engine(world, mesh, Device{.team = 1});
        Arena arena(taken.plan.peak);
        Trainer<T> t(config, params, arena, {mesh, &engine, 1});
        t.optimizer.initialise(t.device, 5);
        const bool writes = mesh.at(Axis::dp_replicate) == 0;
        const auto fault = [&](const std::string& what) {
            const std::lock_guard lock(mutex);
            taken.faults.push_back(concat("rank ", rank, ": ", what));
        };
        for (long s = 0; s < steps; ++s) {
            t.comm.ledger.clear();
            const StepResult r = train_step(t, micros(s, mesh.dp_rank()));
            StepTaken& step = taken.steps[size_t(s)];
            if (const std::lock_guard lock(mutex); writes)
                grads[size_t(s)].put(params, owned_parts<R>(params, t.weights, t.grads));
            if (rank == 0) step.result = r, step.ledger = t.comm.ledger;
            const auto [loss, norm] = t.agree({rank ? 0 : r.loss, rank ? 0 : r.grad_norm}, "test");
            if (loss != r.loss || norm != r.grad_norm) fault(concat("another loss or norm than rank 0 in step ", s));
        }
        if (const std::lock_guard lock(mutex); writes) weights.put(params, owned_units(params, t.weights));
        t.meet();
        t.weights.gather_exactly(true);
        for (int u = 0; u < params.units(); ++u) {     // and what is gathered is that, on every rank
            auto w = t.weights.gather(u);
            for (const Param& p : params.rows()) {
                const T* const gathered = w->flat.data + p.offset;
                bool same = true;
                if (p.unit == u) p.for_each_run({0, p.count()}, [&](long mine, long at, long n) {
                    for (long i = 0; i < n; ++i)
                        same = same && double(gathered[mine + i]) == weights.tensors.at(p.name)[size_t(at + i)];
                });
                if (!same) fault("gathers another " + p.name);
            }
            t.weights.release(w);
        }
        if (rank == 0) taken.parts = arena.parts(), taken.peak = arena.peak();
    });
    for (size_t s = 0; s < grads.size(); ++s) {
        taken.steps[s].grads = grads[s].tensors;
        if (grads[s].dirty) taken.faults.push_back("gradients between the tensors");
        if (grads[s].unequal) taken.faults.push_back("gradients of one tensor that ranks of tp have otherwise");
    }
    taken.weights = weights.tensors;
    if (weights.dirty) taken.faults.push_back("weights between the tensors");
    if (weights.unequal) taken.faults.push_back("weights of one tensor that ranks of tp have otherwise");
    return taken;
}
template <class T> Taken run_layout(const ModelShape& shape, const Layout& l, long steps) {
    const std::string dtype = sizeof(T) == 2 ? "bf16" : sizeof(T) == 4 ? "fp32" : "fp64";
    const auto micros = [&](long s, long rank) { return micros_of(l, s, rank, shape.vocab); };
    return run_ranks<T>(config_of(shape, l, dtype), steps, micros);
}

// ---- comparing two runs: DESIGN's relative measure, with the norm of the whole gradient -------------------------------
struct Apart { double worst = 0; std::string where = "nowhere"; };

inline void compare(Apart& apart, const Tensors& want, const Tensors& got, const std::string& when) {
    double squares = 0, count = 0;
    for (const auto& [name, x] : want)
        for (double v : x) squares += v * v, count += 1;
    const double floor = 1e-3 * std::sqrt(squares / count);
    for (const auto& [name, x] : want) {
        double top = floor, difference = x.size() == got.at(name).size() ? 0 : INFINITY;
        for (size_t i = 0; i < x.size() && i < got.at(name).size(); ++i) {
            const double d = std::fabs(x[i] - got.at(name)[i]);
            difference = std::max(difference, d <= 1e300 ? d : INFINITY);
            top = std::max(top, std::fabs(x[i]));
        }
        if (difference > apart.worst * top) apart = {difference / top, when + name};
    }
}
inline Apart apart(const Taken& want, const Taken& got) {
    Apart a;
    for (size_t s = 0; s < got.steps.size(); ++s) {
        const StepTaken &x = want.steps[s], &y = got.steps[s];
        const std::string when = concat("step ", s + 1, ": ");
        compare(a, {{"loss", {x.result.loss}}}, {{"loss", {y.result.loss}}}, when);
        compare(a, {{"norm", {x.result.grad_norm}}}, {{"norm", {y.result.grad_norm}}}, when);
        compare(a, x.grads, y.grads, when);
    }
    return a;
}

}  // namespace baretrain::test
