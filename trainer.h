// trainer.h - what one rank holds while it trains, and how that goes to disk and comes back.
// Copy with: stats.h, zero.h, fsdp.h, checkpoint.h, config.h, dataloader.h and what they name
// Made twice: with a dry arena, to learn how much memory the run will take, and then with that much. The step itself
// stands in train_gpt.cu.
#pragma once
#include "checkpoint.h"
#include "config.h"
#include "dataloader.h"
#include "fsdp.h"
#include "stats.h"
#include "zero.h"
#include <memory>
#include <numeric>

namespace baretrain {

inline Recompute recompute_of(const std::string& word) {
    return word == "full" ? Recompute::full : word == "selective" ? Recompute::selective : Recompute::none;
}

// The ranks as `--tp`, `--shard` and `--replicate` cut them, and the table of what one of them has.
inline Mesh mesh_of(const Config& c, int rank = 0) {
    Mesh mesh{{}, rank};
    const int dp = int(c.dp()), replicas = c.shard == "none" ? dp : int(c.replicate);
    mesh.sizes = {1, replicas, dp / replicas, 1, int(c.tp)};
    return mesh;
}
inline Params params_of(const Config& c, const Mesh& mesh) {
    const Fp8 recipe = c.fp8 == "tensorwise" ? Fp8::tensorwise : c.fp8 == "rowwise" ? Fp8::rowwise : Fp8::off;
    return Params(c.shape, mesh.size(Axis::dp_shard), {mesh.size(Axis::tp), mesh.at(Axis::tp)},
                  {recipe, c.fp8_skip_ends});
}
inline Params params_of(const Config& c, int rank = 0) { return params_of(c, mesh_of(c, rank)); }

template <class T>
std::unique_ptr<WeightStore<T>> make_weights(const Config& c, Arena& arena, const Params& params, Comm& comm) {
    if (c.shard != "fsdp") return std::make_unique<WholeWeights<T>>(arena, params, comm);
    const FsdpOptions options{int(c.prefetch), c.reshard_after_forward, type_named(c.gather_dtype),
                              c.gather_dtype == "fp8"};
    return std::make_unique<ShardedWeights<T>>(arena, params, comm, options);
}
template <class G>
std::unique_ptr<GradStore<G>> make_grads(const Config& c, Arena& arena, const Params& params, Comm& comm) {
    const Type type = type_named(c.reduce_dtype);
    if (c.shard == "none" || c.shard == "zero1") return std::make_unique<SummedGrads<G>>(arena, params, comm, type);
    return std::make_unique<ScatteredGrads<G>>(arena, params, comm, type);
}

template <class T> struct Trainer {
    using R = Real<T>;
    const Config& config;
    const Params& params;
    Device device;
    Comm comm;
    Arena& arena;
    const std::unique_ptr<WeightStore<T>> weight_store;
    const std::unique_ptr<GradStore<R>> grad_store;
    WeightStore<T>& weights;
    GradStore<R>& grads;
    Optimizer<T> optimizer;

    RowBuffers rows;
    Matmul matmul;
    View<R> rope, logprobs;                            // (seq, D); (micro-batches, N)
    SpanTable<AdamSpan<T>> spans;                      // what the optimizer updates; what counts in the norm
    SpanTable<SquareSpan<R>> counted;
    View<double> squares, norm;                        // parts of a sum of squares, unit after unit; the sum
    View<double> control, loss;                        // (1, 2) each: agree(), and agreed on in a step
    View<double> sums;                                 // parts of the sum of logprobs
    View<R> weight;                                    // of a trained row's log-probability in the loss
    View<StepState> state;
    Stats<T> stats;
    View<R> final_stats;                               // (n, 2)
    View<T> embedded, final;                           // (n, C) before the first block; (N, C) after the final norm
    Recompute recompute;
    std::vector<BlockActs<T>> acts;
    Context<T> context;

    long step = 0, position = 0, tokens = 0;           // steps taken, windows read, tokens trained: by all ranks
    double peak = -1;                                  // operations a second of all ranks, measured; negative: unknown
    bool stop = false;                                 // wished here before a step, and after it by anybody
    std::map<std::string, std::string> brought;        // files of --model DIR, for its checkpoints

    Trainer(const Config& config, const Params& params, Arena& arena, const Rank& rank = {})
        : config(config), params(params),
          device{.index = rank.gpu, .team = rank.team, .stream = rank.stream, .dry = arena.dry()},
          comm(device, rank.mesh, rank.engine, config.check_collectives), arena(arena),
          weight_store(make_weights<T>(config, arena.part("weights"), params, comm)),
          grad_store(make_grads<R>(config, arena.part("gradients"), params, comm)), weights(*weight_store),
          grads(*grad_store), optimizer(arena.part("optimizer"), params, weights, config.master != "none"),
          rows(arena.part("step"), params.shape(), micro_rows(), config.seq),
          matmul(device, arena.take<char>(1, Matmul::workspace_bytes)),
          rope(arena.take<R>(config.shape.rotary() ? config.seq : 0, config.shape.head_dim)),
          logprobs(arena.take<R>(micro_batches(), micro_rows())),
          spans(table_of(optimizer.spans(grads))), counted(table_of(counted_spans())),
          squares(arena.take<double>(1, counted.blocks)), norm(arena.take<double>(1, 1)),
          control(arena.take<double>(1, 2)), loss(arena.take<double>(1, 2)),
          sums(arena.take<double>(1, square_parts(logprobs.count()))), weight(arena.take<R>(1, 1)),
          state(arena.take<StepState>(1, 1)),
          stats(arena, params, comm, micro_rows(), config.stats),
          final_stats(arena.part("activations").take<R>(my_rows(), 2)),
          embedded(arena.take<T>(my_rows(), config.shape.dim)),
          final(arena.take<T>(micro_rows(), config.shape.dim)), recompute(recompute_of(config.recompute)),
          context{device, matmul, arena, params.local(), rope, comm, config.sp} {
        const ActRows rows{micro_rows(), my_rows()};
        const auto shared = BlockActs<T>::take_shared(arena, params.local(), rows, recompute);
        for (long l = 0; l < config.shape.layers; ++l)
            acts.push_back(BlockActs<T>::take(arena, params.local(), rows, recompute, shared));
        fill_rope(device, rope, rope_frequencies(config.shape));
    }
    long micro_rows() const { return config.batch * config.seq; }
    long my_rows() const { return config.sp ? micro_rows() / config.tp : micro_rows(); }   // of the residual stream
    long micro_batches() const { return config.micro_batches(); }
    RankShare share() const { return {config.batch, comm.mesh.dp_rank(), comm.mesh.dp()}; }
    // The gradients of this rank that count in the norm: of what all ranks of tp have only those of the first.
    std::vector<SquareSpan<R>> counted_spans() const {
        std::vector<SquareSpan<R>> all;
        for (int u = 0; u < params.units(); ++u) {
            const Range owned = weights.owns(u), r = owned.both(params.counted(u));
            all.push_back({grads.owned(u).col_range(r.first - owned.first, r.count).data, r.count});
        }
        return all;
    }
    template <class S> SpanTable<S> table_of(const std::vector<S>& all) {
        return {device, arena.take<S>(1, long(all.size())), all};
    }
    View<const T> input(long block) const { return block == 0 ? embedded : acts[size_t(block - 1)].out; }
    // Two numbers become their sums over the data-parallel ranks; where ranks of tp differ, the largest.
    void join(View<double> two, const char* what) {
        comm.sum_dp(two, {what});
        comm.await(comm.max(Axis::tp, two, {what}));   // equal on all of tp, but for a wish of one of them
    }
    std::array<double, 2> agree(std::array<double, 2> mine, const char* what) {
        copy_bytes(device, control.data, mine.data(), sizeof mine);
        join(control, what);
        copy_bytes(device, mine.data(), control.data, sizeof mine);
        return mine;
    }
    void meet() { comm.meet(control.col_range(0, 1)); }
};

// The sum of the squares of all gradients into t.norm, on all ranks: each element counts once.
template <class T> void square_gradients(Trainer<T>& t) {
    sum_squares(t.device, t.squares, t.counted);
    add_parts(t.device, t.norm, View<const double>(t.squares.data, t.squares.cols, 1), Write::over);
    for (Axis a : {Axis::dp_shard, Axis::tp}) t.comm.await(t.comm.sum(a, t.norm, {"norm"}));
}

// Sums up the log-probabilities of the step, over all ranks, into t.loss.
template <class T> void sum_logprobs(Trainer<T>& t) {
    using R = Real<T>;
    add_elements<R>(t.device, t.sums, View<const R>(t.logprobs));
    zero(t.device, t.loss);
    add_parts(t.device, t.loss.col_range(0, 1), View<const double>(t.sums.data, t.sums.cols, 1), Write::over);
    t.join(t.loss, "loss");
}

// Log-probabilities of the targets of the last step, one micro-batch behind the other.
template <class T> std::vector<double> logprobs_of(Trainer<T>& t) {
    std::vector<Real<T>> host(size_t(t.logprobs.count()));
    copy_bytes(t.device, host.data(), t.logprobs.data, host.size() * sizeof(Real<T>));
    return {host.begin(), host.end()};
}

// What was not finite first, for the person who has to find out why: the first weight in the order of the table, else
// the first gradient in the order of the backward pass. Weights or gradients are as the skipped step left them. All
// ranks ask together: each looks at what it owns.
template <class T> std::string first_not_finite(Trainer<T>& t) {
    const auto finite = [&](const auto& part, const Param& p) {
        const Range r = p.range().both(part.range);
        std::vector<std::remove_cvref_t<decltype(*part.data.data)>> host(static_cast<size_t>(r.count));
        copy_bytes(t.device, host.data(), part.data.data + (r.first - part.range.first), host.size() * sizeof(host[0]));
        return std::all_of(host.begin(), host.end(), [](auto x) { return std::isfinite(double(x)); });
    };
    const std::vector<Param>& rows = t.params.rows();
    const auto weights = owned_units(t.params, t.weights);
    const auto grads = owned_parts<Real<T>>(t.params, t.weights, t.grads);
    double bad = 0;                                    // the higher the sooner; 0: all is finite
    for (size_t i = 0; i < rows.size(); ++i) {
        if (!finite(grads[size_t(rows[i].unit)], rows[i])) bad = std::max(bad, double(i + 1));
        if (!finite(weights[size_t(rows[i].unit)], rows[i])) bad = std::max(bad, double(2 * rows.size() - i));
    }
    const View<double> most = t.control.col_range(0, 1);
    copy_bytes(t.device, most.data, &bad, sizeof bad);
    for (Axis a : {Axis::dp_shard, Axis::tp}) t.comm.await(t.comm.max(a, most, {"search"}));
    copy_bytes(t.device, &bad, most.data, sizeof bad);
    const size_t place = size_t(bad);
    return place > rows.size() ? rows[2 * rows.size() - place].name
           : place             ? "the gradient of " + rows[place - 1].name
                               : "the loss";
}

// ---- files ----------------------------------------------------------------------------------------------------------
// What must be the same when a run goes on: else its numbers would not be those of the run that never stopped.
inline std::map<std::string, std::string> identity(const Config& c, const Corpus& corpus) {
    const ModelShape& s = c.shape;                     // of it, what the shapes of the tensors do not show
    const RopeScaling& r = s.scaling;
    const std::string fp8 = c.fp8 == "off" ? "" : " with FP8 " + c.fp8 + (c.fp8_skip_ends ? " but for the ends" : "");
    return {{"data", corpus.hash}, {"dtype", c.dtype + fp8}, {"seq", concat(c.seq)}, {"seed", concat(c.seed)},
            {"family", s.family}, {"heads", concat(s.heads, " and ", s.kv_heads)}, {"window", concat(s.window)},
            {"norm epsilon", format("%g", s.norm_eps)}, {"master", c.master},
            {"rope", format("theta %g, factor %g (%g, %g, %ld)", s.rope_theta, r.factor, r.low, r.high, r.original)}};
}

// The state of the shards is written by the first of their copies.
template <class T> SaveGroup save_group(Trainer<T>& t) {
    const Mesh& mesh = t.comm.mesh;
    const int slices = mesh.size(Axis::tp), writers = mesh.size(Axis::dp_shard) * slices,
              writer = mesh.at(Axis::dp_shard) * slices + mesh.at(Axis::tp);
    return {mesh.rank, mesh.at(Axis::dp_replicate) == 0 ? writer : -1, writers, [&t, slices, writers](Digest mine) {
        Scratch s(t.context.scratch);
        std::vector<Digest> each(static_cast<size_t>(writers));
        const long bytes = long(sizeof mine);
        const auto part = s.take<char>(1, bytes), near = s.take<char>(1, slices * bytes),
                   all = s.take<char>(1, writers * bytes);
        copy_bytes(t.device, part.data, &mine, sizeof mine);
        t.comm.await(t.comm.gather(Axis::tp, near, View<const char>(part), {"control"}));
        t.comm.await(t.comm.gather(Axis::dp_shard, all, View<const char>(near), {"control"}));
        copy_bytes(t.device, each.data(), all.data, each.size() * sizeof mine);
        t.meet();
        return each;
    }, [&t](const std::string& why) { t.comm.abort(concat("rank ", t.comm.mesh.rank, ": ", why)); }};
}

// The tensors of the table, whole when they are fetched, which all ranks do together. part(p): what this rank has of p.
template <class E, class T, class Part>
std::vector<TensorSource> whole_tensors(Trainer<T>& t, Part part) {
    std::vector<TensorSource> list;
    const Params whole(t.params.shape());
    for (size_t i = 0; i < whole.rows().size(); ++i) {
        const Param& mine = t.params.rows()[i];
        list.push_back({mine.name, safetensors_dtype<E>(), mine.dims(), [&, part, all = whole.rows()[i]](void* to) {
            gather_tensor(t.context, all, View<const E>(part(mine)), static_cast<E*>(to));
        }});
    }
    return list;
}

template <class T>
std::string save(Trainer<T>& t, const Corpus& corpus, const Tokenizer& tokenizer, const std::string& run) {
    CheckpointParts parts;
    const std::string dtype = t.config.dtype == "bf16" ? "bfloat16" : t.config.dtype == "fp64" ? "float64" : "float32";
    const bool fits = t.config.tokenizer == t.config.model || !tokenizer.has_text();
    if (fits) parts.extra_files = t.brought;
    parts.extra_files.erase("config.json");
    parts.extra_files.merge(tokenizer.files());
    parts.config_json = t.brought.empty() ? to_hf_config(t.params.shape(), dtype, tokenizer.end_of_text())
                                          : with_dtype(t.brought.at("config.json"), dtype,
                                                       fits ? std::optional<long>() : tokenizer.end_of_text());
    t.weights.gather_exactly(true);
    using Unit = std::unique_ptr<Lease<T>>;
    Unit ends(new Lease<T>(t.weights.gather(ends_unit))), block;   // whose tensors are being written
    parts.weights = whole_tensors<T>(t, [&](const Param& p) {
        Unit& unit = p.unit == ends_unit ? ends : block;
        if (unit && unit->unit != p.unit) t.weights.release(*unit), unit.reset();
        if (!unit) unit.reset(new Lease<T>(t.weights.gather(p.unit)));
        return (*unit)->flat.col_range(p.offset, p.count());
    });
    const SaveGroup group = save_group(t);
    if (group.writer >= 0) parts.state = t.optimizer.sources(t.device);
    parts.trainer = {t.step, t.position, t.tokens, identity(t.config, corpus)};
    double bytes = 0;                                  // that this rank writes
    const auto add = [&](const TensorSource& s) {
        bytes += std::accumulate(s.shape.begin(), s.shape.end(), double(dtype_bytes(s.dtype)), std::multiplies());
    };
    std::ranges::for_each(parts.state, add);
    if (t.comm.first()) std::ranges::for_each(parts.weights, add);
    const Watched saving(t.device, {Where::current(), bytes, 0, Lane::save});
    const std::string folder = save_checkpoint(run, parts, t.config.keep, group);
    for (Unit* unit : {&block, &ends})
        if (*unit) t.weights.release(**unit);
    t.weights.gather_exactly(false);
    return folder;
}

// The checkpoint has been found complete: newest_checkpoint(), require_complete().
template <class T> void resume(Trainer<T>& t, const Corpus& corpus, const std::string& checkpoint) {
    const TrainerState saved = read_trainer_state(checkpoint);
    require_same_facts(saved, identity(t.config, corpus));
    load_model_tensors(checkpoint, tensor_targets<T>(t.device, t.params, owned_units(t.params, t.weights), ""));
    load_tensors(state_files(checkpoint), t.optimizer.targets(t.device));
    t.optimizer.publish_all(t.device);
    t.step = saved.step, t.position = saved.position, t.tokens = saved.tokens;
}

}  // namespace baretrain
