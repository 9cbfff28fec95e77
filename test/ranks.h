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
    std::string text() const {
        return concat(shard, reshard ? "" : " without reshard", ", ", ranks, " ranks, replicate ", replicate, ", ", micros,
                      " micro-batches, recompute ", recompute, ", prefetch ", prefetch, " ", gather, " ", reduce);
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

// Window w of a step trains between none and all of its tokens; window -1: padding, of which nothing is trained.
inline Rows window_of(long step, long w) {
    Rows m = make_rows({int(window_length)}, int(100 * step + w + 1), 0, 33);
    const long trained = w < 0 ? 0 : (5 * w + 3 * step) % (window_length + 1);
    for (long i = 0; i < window_length - trained; ++i) m.targets[size_t((3 * i + w + 1) % window_length)] = ignored;
    return m;
}

// Enough sequences a micro-batch for the windows of a step on all ranks but one.
inline long batch_of(const Layout& l) {
    const long slots = std::max(1L, l.ranks - 1) * l.micros;
    return (windows_a_step + slots - 1) / slots;
}

// The micro-batches of a rank. In every other step one rank, each in its turn, has nothing but padding; what is too much
// for the others is padding too.
inline std::vector<Rows> micros_of(const Layout& l, long step, long rank) {
    const long batch = batch_of(l), idle = l.ranks > 1 && step % 2 ? step / 2 % l.ranks : -1;
    const long active = l.ranks - (idle >= 0), place = rank - (idle >= 0 && rank > idle);
    std::vector<Rows> sequences;
    for (long i = 0; i < l.micros * batch; ++i) {
        const long w = i * active + place;
        sequences.push_back(window_of(step, rank == idle || w >= windows_a_step ? -1 : w));
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
    Config c = Model<float>::config_of(shape, {window_length, batch_of(l), l.micros * l.ranks}, l.recompute);
    c.dtype = dtype, c.eps = 1e-6;                     // a gradient that is 0 but for rounding must not move its weight
    c.ranks = l.ranks, c.shard = l.shard, c.replicate = l.shard == "none" ? l.ranks : l.replicate;
    c.prefetch = l.prefetch, c.reshard_after_forward = l.reshard;
    c.gather_dtype = l.gather, c.reduce_dtype = l.reduce;
    return c;
}

// The segments of all units, put together from the parts that the ranks own.
template <class T> struct Whole {
    std::vector<std::vector<T>> units;
    explicit Whole(const Params& p) {
        for (int u = 0; u < p.units(); ++u) units.emplace_back(size_t(p.unit_size(u)), T(NAN));
    }
    void put(const std::vector<Part<T>>& parts) {
        for (size_t u = 0; u < parts.size(); ++u)
            std::copy_n(parts[u].data.data, parts[u].range.count, units[u].begin() + parts[u].range.first);
    }
    Tensors tensors(const Params& p) const {
        Tensors all;
        for (const Param& row : p.rows()) {
            const auto from = units[size_t(row.unit)].begin() + row.offset;
            all[row.name] = Numbers(from, from + row.count());
        }
        return all;
    }
    // Elements that belong to no tensor and are not 0.
    long dirty(const Params& p) const {
        auto rest = units;
        for (const Param& row : p.rows())
            std::fill_n(rest[size_t(row.unit)].begin() + row.offset, row.count(), T(0));
        long n = 0;
        for (const auto& unit : rest) n += std::count_if(unit.begin(), unit.end(), [](T x) { return !(x == T(0)); });
        return n;
    }
};

// Trains `steps` steps; micros(step, rank) are what a rank reads.
template <class T, class Micros>
Taken run_ranks(const Config& config, long steps, Micros micros) {
    using R = Real<T>;
    const Params params(config.shape, mesh_of(config).size(Axis::dp_shard));
    Taken taken;
    taken.plan = plan_of<T>(config, params);
    taken.steps.resize(size_t(steps));
    std::vector<Whole<R>> grads(static_cast<size_t>(steps), Whole<R>(params));
    Whole<T> weights(params);
    std::mutex mutex;
    ThreadWorld world;
    run_threads(world, int(config.ranks), [&](int rank) {
        const Mesh mesh = mesh_of(config, rank);
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
            const StepResult r = train_step(t, micros(s, rank));
            StepTaken& step = taken.steps[size_t(s)];
            if (writes) grads[size_t(s)].put(owned_parts<R>(params, t.weights, t.grads));
            if (rank == 0) step.result = r, step.ledger = t.comm.ledger;
            const auto [loss, norm] = t.agree({rank ? 0 : r.loss, rank ? 0 : r.grad_norm}, "test");
            if (loss != r.loss || norm != r.grad_norm) fault(concat("another loss or norm than rank 0 in step ", s));
        }
        if (writes) weights.put(owned_units(params, t.weights));
        t.meet();
        for (int u = 0; u < params.units(); ++u) {     // and what is gathered is that, on every rank
            auto w = t.weights.gather(u);
            const Param& first = *std::ranges::find(params.rows(), u, &Param::unit);   // at offset 0
            Weights<T> views = *w;
            const std::vector<T>& whole = weights.units[size_t(u)];
            if (std::memcmp(views.at(first.place).data, whole.data(), whole.size() * sizeof(T)) != 0)
                fault(concat("gathers another unit ", u));
            t.weights.release(w);
        }
        if (rank == 0) taken.parts = arena.parts(), taken.peak = arena.peak();
    });
    for (size_t s = 0; s < grads.size(); ++s) {
        taken.steps[s].grads = grads[s].tensors(params);
        if (grads[s].dirty(params)) taken.faults.push_back("gradients between the tensors");
    }
    taken.weights = weights.tensors(params);
    if (weights.dirty(params)) taken.faults.push_back("weights between the tensors");
    return taken;
}
template <class T> Taken run_layout(const ModelShape& shape, const Layout& l, long steps) {
    const std::string dtype = sizeof(T) == 2 ? "bf16" : sizeof(T) == 4 ? "fp32" : "fp64";
    return run_ranks<T>(config_of(shape, l, dtype), steps, [&](long s, long rank) { return micros_of(l, s, rank); });
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
