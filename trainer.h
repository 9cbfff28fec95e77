// trainer.h - what one rank holds while it trains, and how that goes to disk and comes back.
// Copy with: gpt.h, state.h, checkpoint.h, config.h, dataloader.h and what they name
// Made twice: with a dry arena, to learn how much memory the run will take, and then with that much. The step itself
// stands in train_gpt.cu.
#pragma once
#include "checkpoint.h"
#include "config.h"
#include "dataloader.h"
#include "gpt.h"
#include "state.h"

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
    View<R> rope, logprobs, final_stats;               // (seq, D); (micro-batches, N); (N, 2)
    View<T> embedded, final;                           // (N, C): before the first block, after the final norm
    Recompute recompute;
    std::vector<BlockActs<T>> acts;
    View<double> squares;                              // parts of the sum of squares, unit after unit
    View<StepState> state;
    Context<T> context;

    long step = 0, position = 0, tokens = 0;           // steps taken, windows read, tokens trained
    std::map<std::string, std::string> brought;        // files of --model DIR, for its checkpoints

    Trainer(const Config& config, const Params& params, Arena& arena)
        : config(config), params(params), device{.dry = arena.dry()}, matmul(device), arena(arena),
          weights(arena, params), grads(arena, params), optimizer(arena, params, weights), 
          rows(arena, params.shape(), micro_rows(), config.seq),
          rope(arena.take<R>(config.shape.rotary() ? config.seq : 0, config.shape.head_dim)),
          logprobs(arena.take<R>(micro_batches(), micro_rows())), final_stats(arena.take<R>(micro_rows(), 2)),
          embedded(arena.take<T>(micro_rows(), config.shape.dim)),
          final(arena.take<T>(micro_rows(), config.shape.dim)),
          recompute(recompute_of(config.recompute)), state(arena.take<StepState>(1, 1)),
          context{device, matmul, arena, params.shape(), rope} {
        const auto shared = BlockActs<T>::take_shared(arena, config.shape, micro_rows(), recompute);
        for (long l = 0; l < config.shape.layers; ++l)
            acts.push_back(BlockActs<T>::take(arena, config.shape, micro_rows(), recompute, shared));
        long parts = 0;
        for (int u = 0; u < params.units(); ++u) parts += square_parts(params.unit_size(u));
        squares = arena.take<double>(1, parts);
        fill_rope(device, rope, rope_frequencies(config.shape));
    }
    long micro_rows() const { return config.batch * config.seq; }
    long micro_batches() const { return config.tokens_per_step / micro_rows(); }
    View<const T> input(long block) const { return block == 0 ? embedded : acts[size_t(block - 1)].out; }
};

// ---- files ----------------------------------------------------------------------------------------------------------
// What must be the same when a run goes on: else its numbers would not be those of the run that never stopped.
inline std::map<std::string, std::string> identity(const Config& c, const Corpus& corpus) {
    return {
        {"data", corpus.hash}, {"dtype", c.dtype}, {"seq", std::to_string(c.seq)}, {"seed", std::to_string(c.seed)}};
}

template <class T>
std::string save(Trainer<T>& t, const Corpus& corpus, const Tokenizer& tokenizer, const std::string& run) {
    CheckpointParts parts;
    const std::string dtype = t.config.dtype == "bf16" ? "bfloat16" : t.config.dtype == "fp64" ? "float64" : "float32";
    if (t.config.tokenizer == t.config.model) parts.extra_files = t.brought;   // else it would fit no more
    parts.extra_files.erase("config.json");
    parts.extra_files.merge(tokenizer.files());
    parts.config_json = t.brought.empty() ? to_hf_config(t.params.shape(), dtype, tokenizer.end_of_text())
                                          : with_dtype(t.brought.at("config.json"), dtype);
    parts.weights = tensor_sources<T>(t.device, t.params, owned_units(t.params, t.weights), "");
    parts.state = t.optimizer.sources(t.device);
    parts.trainer = {t.step, t.position, t.tokens, identity(t.config, corpus)};
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
