// trainer.h - what one rank holds while it trains, and how that goes to disk and comes back.
// Copy with: stats.h, checkpoint.h, config.h, dataloader.h and what they name
// Made twice: with a dry arena, to learn how much memory the run will take, and then with that much. The step itself
// stands in train_gpt.cu.
#pragma once
#include "checkpoint.h"
#include "config.h"
#include "dataloader.h"
#include "stats.h"

namespace baretrain {

inline Recompute recompute_of(const std::string& word) {
    return word == "full" ? Recompute::full : word == "selective" ? Recompute::selective : Recompute::none;
}

template <class T> struct Trainer {
    using R = Real<T>;
    const Config& config;
    const Params& params;
    Device device;
    Matmul matmul;
    Arena& arena;
    WholeWeights<T> weights;
    WholeGrads<R> grads;
    Optimizer<T> optimizer;

    RowBuffers rows;
    View<R> rope, logprobs;                            // (seq, D); (micro-batches, N)
    View<double> squares, loss_squares;                // parts of sums of squares: gradients, unit after unit; logprobs
    View<StepState> state;
    Stats<T> stats;
    View<R> final_stats;                               // (N, 2)
    View<T> embedded, final;                           // (N, C): before the first block, after the final norm
    Recompute recompute;
    std::vector<BlockActs<T>> acts;
    Context<T> context;

    long step = 0, position = 0, tokens = 0;           // steps taken, windows read, tokens trained
    std::map<std::string, std::string> brought;        // files of --model DIR, for its checkpoints

    Trainer(const Config& config, const Params& params, Arena& arena)
        : config(config), params(params), device{.dry = arena.dry()}, matmul(device), arena(arena),
          weights(arena.part("weights"), params, &device), grads(arena.part("gradients"), params, &device),
          optimizer(arena.part("optimizer"), params, weights, config.master != "none"),
          rows(arena.part("step"), params.shape(), micro_rows(), config.seq),
          rope(arena.take<R>(config.shape.rotary() ? config.seq : 0, config.shape.head_dim)),
          logprobs(arena.take<R>(micro_batches(), micro_rows())),
          squares(arena.take<double>(1, gradient_parts())),
          loss_squares(arena.take<double>(1, square_parts(logprobs.count()))), state(arena.take<StepState>(1, 1)),
          stats(arena, params, micro_rows(), config.stats),
          final_stats(arena.part("activations").take<R>(micro_rows(), 2)),
          embedded(arena.take<T>(micro_rows(), config.shape.dim)),
          final(arena.take<T>(micro_rows(), config.shape.dim)),
          recompute(recompute_of(config.recompute)), context{device, matmul, arena, params.shape(), rope} {
        const auto shared = BlockActs<T>::take_shared(arena, config.shape, micro_rows(), recompute);
        for (long l = 0; l < config.shape.layers; ++l)
            acts.push_back(BlockActs<T>::take(arena, config.shape, micro_rows(), recompute, shared));
        fill_rope(device, rope, rope_frequencies(config.shape));
    }
    long micro_rows() const { return config.batch * config.seq; }
    long micro_batches() const { return config.tokens_per_step / micro_rows(); }
    long gradient_parts() const {
        long parts = 0;
        for (int u = 0; u < params.units(); ++u) parts += square_parts(params.unit_size(u));
        return parts;
    }
    View<const T> input(long block) const { return block == 0 ? embedded : acts[size_t(block - 1)].out; }
};

// Log-probabilities of the targets of the last step, one micro-batch behind the other.
template <class T> std::vector<double> logprobs_of(Trainer<T>& t) {
    std::vector<Real<T>> host(size_t(t.logprobs.count()));
    copy_bytes(t.device, host.data(), t.logprobs.data, host.size() * sizeof(Real<T>));
    return {host.begin(), host.end()};
}

// What was not finite first, for the person who has to find out why: the first weight in the order of the table, else
// the first gradient in the order of the backward pass. Weights or gradients are as the skipped step left them.
template <class T> std::string first_not_finite(Trainer<T>& t) {
    const auto finite = [&](auto* from, const Param& p) {
        std::vector<std::remove_cvref_t<decltype(*from)>> host(static_cast<size_t>(p.count()));
        copy_bytes(t.device, host.data(), from + p.offset, host.size() * sizeof(host[0]));
        return std::all_of(host.begin(), host.end(), [](auto x) { return std::isfinite(double(x)); });
    };
    const std::vector<Param>& rows = t.params.rows();
    for (const Param& p : rows)
        if (!finite(t.weights.owned(p.unit).data, p)) return p.name;
    for (auto p = rows.rbegin(); p != rows.rend(); ++p)
        if (!finite(t.grads.owned(p->unit).data, *p)) return "the gradient of " + p->name;
    return "the loss";
}

// ---- files ----------------------------------------------------------------------------------------------------------
// What must be the same when a run goes on: else its numbers would not be those of the run that never stopped.
inline std::map<std::string, std::string> identity(const Config& c, const Corpus& corpus) {
    const ModelShape& s = c.shape;                     // of it, what the shapes of the tensors do not show
    const RopeScaling& r = s.scaling;
    return {{"data", corpus.hash}, {"dtype", c.dtype}, {"seq", concat(c.seq)}, {"seed", concat(c.seed)},
            {"family", s.family}, {"heads", concat(s.heads, " and ", s.kv_heads)}, {"window", concat(s.window)},
            {"norm epsilon", format("%g", s.norm_eps)}, {"master", c.master},
            {"rope", format("theta %g, factor %g (%g, %g, %ld)", s.rope_theta, r.factor, r.low, r.high, r.original)}};
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
    parts.weights = tensor_sources<T>(t.device, t.params, owned_units(t.params, t.weights), "");
    parts.state = t.optimizer.sources(t.device);
    parts.trainer = {t.step, t.position, t.tokens, identity(t.config, corpus)};
    const size_t kept = parts.state.size() / t.params.rows().size();   // by the optimizer: moments, perhaps a master
    const double bytes = double(t.params.shape().parameters()) * double(sizeof(T) + kept * sizeof(Real<T>));
    const Watched saving(t.device, {Where::current(), bytes, 0, Lane::save});
    return save_checkpoint(run, parts, t.config.keep);
}

// The checkpoint has been found complete: newest_checkpoint(), require_complete().
template <class T> void resume(Trainer<T>& t, const Corpus& corpus, const std::string& checkpoint) {
    const TrainerState saved = read_trainer_state(checkpoint);
    require_same_facts(saved, identity(t.config, corpus));
    load_model_tensors(checkpoint, tensor_targets<T>(t.device, t.params, owned_units(t.params, t.weights), ""));
    load_tensors(checkpoint + "/state/optimizer.safetensors", t.optimizer.targets(t.device));
    t.step = saved.step, t.position = saved.position, t.tokens = saved.tokens;
}

}  // namespace baretrain
