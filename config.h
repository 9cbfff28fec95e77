// config.h - the command line and the recipe: one table of keys gives flags, TOML, help, checks and the saved file.
// Copy with: config.cpp, config/keys.h, config/recipe.h, schedule.h and what they name, CLI11, toml++, nlohmann-json
// Flags are named like the TOML keys, and members like both (- becomes _). Flags win over --config FILE, and that wins
// over the defaults. parse() resolves and checks every number: the shape comes from the preset, from DIR/config.json or
// from the defaults, with the shape flags on top. Wrong usage throws Usage, one line.
// Keys whose code does not exist yet are known by name, accept only the value that changes nothing, and have no member.
#pragma once
#include "device/error.h"
#include "schedule.h"
#include "shape.h"
#include <functional>
#include <map>

namespace baretrain {

struct Config {
    std::string command = "train";                     // one of keys::commands

    std::string model;                                 // a preset, a Hugging Face folder, or "" for the shape below
    bool model_is_folder = false;                      // set by parse(): weights are read from it
    ModelShape shape;                                  // --family --layers --dim --heads --kv-heads --head-dim --ffn
                                                       // --vocab --tied; vocab 0: the tokenizer's, to be filled in
    long seq = 0;                                      // tokens of a window; the model can hold shape.seq >= seq

    std::string data, val = "0.1", tokenizer = "byte"; // data "": our own sources; val: a path, a fraction or 0
    long batch = 8, tokens_per_step = 0;               // resolved: a multiple of batch * seq

    long steps = 1200;                                 // with epochs > 0 unknown until the data is: see set_steps()
    double epochs = 0;                                 // 0: steps counts
    double lr = 0, min_lr = 0;                         // unless given: 0.5 / dim, and a tenth of lr
    long warmup = 50;                                  // unless given: at most a tenth of the steps
    std::string schedule = "cosine";                   // cosine, linear, wsd, constant
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double clip = 1.0;                                 // 0: off
    std::string nonfinite = "skip";                    // skip, stop

    std::string dtype = "fp32";                        // fp32, bf16, fp64
    std::string fp8 = "off";                           // off, tensorwise, rowwise: products of the blocks (bf16 only)
    bool fp8_skip_ends = false;                        // but for those of the first and the last block
    std::string recompute = "none";                    // none, selective, full
    std::string master = "fp32";                       // fp32; none (bf16 only): weights are rounded stochastically
    long seed = 1337;

    long ranks = 1;                                    // of the whole run
    long tp = 1;                                       // of them, that split each matrix
    bool sp = false;                                   // and the rows between the matrices
    std::string shard = "none";                        // none, zero1, zero2, fsdp
    long replicate = 1;                                // copies of what is sharded; none: each rank is one
    long prefetch = 1;                                 // fsdp: units gathered ahead
    bool reshard_after_forward = true;                 // fsdp
    std::string gather_dtype = "same", reduce_dtype = "same";   // of weights, of gradients on the wire
    bool check_collectives = checked_build;
    std::string rendezvous;                            // HOST:PORT of rank 0, of srun's processes

    std::string out, resume;                           // out "": out/<time>; resume: "", "auto" or a folder
    long trace = 0;                                    // steps to trace, from the second on; 0: none
    std::string clock = "wall";                        // wall, virtual
    double clock_flops = 1e12, clock_bytes = 1e11, clock_wire = 1e10;   // of the virtual clock
    bool explain = false, ledger = false;
    long save_every = 200, keep = 2, eval_every = 200, sample_every = 400, log_every = 20;   // 0: never
    double spike_z = 6;                                // deviations that make a loss a spike; 0: off
    long replay = 0;                                   // a step to run again; 0: none
    long stats = 0;                                    // steps from line to line of stats.jsonl; 0: never
    std::string compare;                               // KEY=a,b: a run for each value; "": one run

    std::string prompt;
    long tokens = 300;
    double temperature = 0.7;                          // 0: the likeliest token
    long top_k = 0;                                    // 0: off
    double top_p = 1.0;                                // 1: off

    std::vector<std::string> inputs;                   // tokenize IN..., report RUN...: what is no key
    std::string ids, output, special = "ordinary";     // output: -o too; special: parse, ordinary
    bool json = false, lines = false, decode = false, add_special_tokens = false;
    long train_vocab = 0;                              // 0: off

    std::map<std::string, std::string> origin;         // key -> "default", "flag", "recipe.toml:12", "gpt2-124m" ...
    bool given(const std::string& key) const;          // by flag or recipe
    long dp() const { return ranks / tp; }             // ranks, or groups of them, with data of their own
    long micro_batches() const { return tokens_per_step / (batch * seq * dp()); }
};

struct Usage : Error {                                 // exit code 2
    template <class... Parts> explicit Usage(const Parts&... parts) : Error(concat(parts...)) {}
};

struct ParseResult {
    Config config;
    std::string text;                                  // not empty: print it and exit with 0 (--help, --version)
};

// With --resume and without --config a run's own recipe lies under the flags: recipe_of names it, or "" for none. So
// with --replay, for which resume is "--replay".
using RecipeOf = std::function<std::string(const std::string& resume, const std::string& out)>;
// processes: of a launcher, which are the ranks of a training run; 0: there is none.
ParseResult parse(int argc, const char* const* argv, const RecipeOf& recipe_of = {}, int processes = 0);
// The recipe: each key but out and resume with its origin; --config reads it back, equal.
std::string to_toml(const Config&);
std::vector<std::pair<std::string, std::string>> key_values(const Config&);

void set_steps(Config&, long steps);                   // what --epochs comes to; throws Usage when --warmup is longer
void set_vocab(Config&, long tokenizer);               // unless given: the tokenizer's; throws Usage when less
Schedule schedule_of(const Config&);

}  // namespace baretrain
