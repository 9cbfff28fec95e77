// keys.h - the table behind config.h: each key with its member, domain, commands and help; values as text and back.
// Copy with: config.h, shape.h, schedule.h, files.h, device/error.h
// Defaults stand in struct Config. A row's slot points into the Config that the table was made for.
#pragma once
#include "config.h"
#include "files.h"
#include <algorithm>
#include <charconv>
#include <climits>
#include <variant>

namespace baretrain::keys {

inline constexpr double inf = HUGE_VAL;

using Slot = std::variant<long*, double*, bool*, std::string*>;

// What a value may be: an interval, or a list of words.
struct Domain {
    double least = -inf, most = inf;
    bool open_below = false, open_above = false;       // the end itself is excluded
    std::vector<std::string> words = {};
};
inline const Domain any{}, not_negative{0, 1e15}, count{1, 1 << 24}, positive{0, 1e15, true};
inline const Domain below_one{0, 1, false, true};

inline const std::vector<std::string> commands = {"train", "generate", "gradcheck", "doctor", "plan",
                                                  "eval", "dump", "export", "tokenize", "report"};
// Command i is bit i; those without a name here have no keys. What train takes, plan takes too.
enum : unsigned { train = 1 | 16, generate = 2, plan = 16, eval = 32, dump = 64, exports = 128, tokenize = 256,
                report = 512 };
inline constexpr unsigned of_tp = generate | eval | dump;   // whose ranks are all of tp
inline constexpr unsigned of_shape = 1u << 31;         // a number of the model's shape
enum Show { often, seldom };

struct Key {
    const char* name;
    Slot slot;
    Domain domain;
    unsigned commands;                                 // those that use it, and of_shape
    Show show;                                         // in --help, or in --help-all only
    const char* help;                                  // with its unit
};

using Table = std::vector<std::pair<const char*, std::vector<Key>>>;

inline Table training_keys(Config& c) {
    const unsigned all = train | generate | eval | dump | exports, shape = train | of_shape;
    return {{"model", {
        {"model", &c.model, any, all, often, "a preset or a Hugging Face folder; empty: the shape below"},
        {"family", &c.shape.family, {.words = model_families}, shape, often, "kind of block"},
        {"layers", &c.shape.layers, count, shape, often, "blocks"},
        {"dim", &c.shape.dim, count, shape, often, "width of the residual stream"},
        {"heads", &c.shape.heads, count, shape, often, "query heads"},
        {"kv-heads", &c.shape.kv_heads, count, shape, seldom, "key and value heads; unset: heads"},
        {"head-dim", &c.shape.head_dim, count, shape, seldom, "width of a head; unset: dim / heads"},
        {"window", &c.shape.window, not_negative, shape, seldom, "mistral: keys a query sees, with itself; 0: all"},
        {"ffn", &c.shape.ffn, count, shape, seldom, "inner width; unset: 4 dim, llama 8/3 dim rounded up to 64"},
        {"vocab", &c.shape.vocab, count, shape, seldom, "token ids; unset: the tokenizer's"},
        {"tied", &c.shape.tied, any, shape, seldom, "use the embedding as the head"},
        {"seq", &c.seq, count, train | eval, often, "tokens of a window; of a folder: its own, at most 1024"},
    }}, {"data", {
        {"data", &c.data, any, train | eval, often,
         "files, folders, a/*.txt: text, .jsonl or shards .bin; a:0.7,b:0.3 mixes; empty: the project's own sources"},
        {"val", &c.val, any, train, often, "the same for validation, or the part of --data held out; 0: none"},
        {"tokenizer", &c.tokenizer, any, train | eval | tokenize, often,
         "byte, a file or folder, or none: shards alone; unset: that of --model DIR"},
        {"batch", &c.batch, count, train | eval, often, "sequences of a micro-batch"},
        {"tokens-per-step", &c.tokens_per_step, {1, INT_MAX}, train, often, "tokens of an update; unset: batch x seq"},
    }}, {"optimizer", {
        {"steps", &c.steps, not_negative, train, often, "updates"},
        {"epochs", &c.epochs, not_negative, train, seldom, "passes over the data instead of --steps; 0: off"},
        {"lr", &c.lr, positive, train, often, "peak learning rate; unset: 0.5 / dim"},
        {"min-lr", &c.min_lr, not_negative, train, seldom, "learning rate of the last step; unset: lr / 10"},
        {"warmup", &c.warmup, not_negative, train, often, "steps of warm-up; unset: 50, at most a tenth of the steps"},
        {"schedule", &c.schedule, {.words = {"cosine", "linear", "wsd", "constant"}}, train, often,
         "learning rate after warm-up; wsd decays over the last fifth"},
        {"beta1", &c.beta1, below_one, train, seldom, "AdamW: decay of the mean"},
        {"beta2", &c.beta2, below_one, train, seldom, "AdamW: decay of the square"},
        {"eps", &c.eps, positive, train, seldom, "AdamW: added to the root"},
        {"weight-decay", &c.weight_decay, not_negative, train, often, "AdamW: decay of matrices, times lr"},
        {"clip", &c.clip, not_negative, train, often, "largest gradient norm; 0: off"},
        {"nonfinite", &c.nonfinite, {.words = {"skip", "stop"}}, train, seldom, "at a gradient with NaN or infinity"},
    }}, {"numbers", {
        {"dtype", &c.dtype, {.words = {"fp32", "bf16", "fp64"}}, train | eval | dump, often,
         "weights, activations"},
        {"fp8", &c.fp8, {.words = {"off", "tensorwise", "rowwise"}}, train, seldom,
         "with --dtype bf16: products of the blocks in FP8, a scale a tensor or a row; the head stays in bf16"},
        {"fp8-skip-ends", &c.fp8_skip_ends, any, train, seldom, "the first and the last block stay in bf16 too"},
        {"recompute", &c.recompute, {.words = {"none", "selective", "full"}}, train, seldom,
         "rebuilt in the backward pass: nothing; norms and activations; whole blocks"},
        {"master", &c.master, {.words = {"fp32", "none"}}, train, seldom,
         "weights of the optimizer; none, with bf16: no copy, stochastic rounding"},
        {"seed", &c.seed, {0, 9e18}, train | generate, often, "of every random number"},
    }}};
}

inline Table layout_keys(Config& c) {
    return {{"layout", {
        {"ranks", &c.ranks, {1, 4096}, train, often, "threads that share the work; under mpirun: its processes"},
        {"shard", &c.shard, {.words = {"none", "zero1", "zero2", "fsdp"}}, train, often,
         "what each rank holds a part of: nothing; optimizer; and gradients; and weights"},
        {"replicate", &c.replicate, {1, 4096}, train, seldom, "copies of the shards, each on ranks / copies ranks"},
        {"tp", &c.tp, {1, 4096}, train | of_tp, often,
         "ranks that split each matrix: heads, hidden units, ids; each has 1/tp of weights and caches"},
        {"sp", &c.sp, any, train, seldom,
         "and between the matrices the rows: each of them 1/tp of the residual stream"},
        {"prefetch", &c.prefetch, {0, 2}, train, seldom, "fsdp: units gathered ahead of the one at work"},
        {"reshard-after-forward", &c.reshard_after_forward, any, train, seldom,
         "fsdp: let blocks go after the forward pass, and gather them again; false: keep them"},
        {"gather-dtype", &c.gather_dtype, {.words = {"same", "fp32", "bf16", "fp8"}}, train, seldom,
         "fsdp: in which weights travel; a narrower one rounds them for the passes, not for the optimizer; fp8: "
         "as products of --fp8 tensorwise do"},
        {"reduce-dtype", &c.reduce_dtype, {.words = {"same", "fp32", "bf16"}}, train, seldom,
         "in which gradients travel and are summed between ranks; same: fp32, with --dtype fp64 fp64"},
        {"rendezvous", &c.rendezvous, any, train, seldom, "under srun: HOST:PORT of rank 0"},
        {"check-collectives", &c.check_collectives, any, train, seldom,
         "before each collective compare it between ranks; on in checked builds"},
    }}};
}

inline Table run_keys(Config& c) {
    const unsigned both = train | generate;
    return {{"run", {
        {"out", &c.out, any, train, often, "run folder; empty: out/<time>"},
        {"save-every", &c.save_every, not_negative, train, often, "steps between checkpoints; 0: only the last"},
        {"keep", &c.keep, count, train, seldom, "checkpoints kept, the newest"},
        {"resume", &c.resume, any, train, often, "auto, or a checkpoint or run folder"},
        {"eval-every", &c.eval_every, not_negative, train, often, "steps between validations; 0: never"},
        {"sample-every", &c.sample_every, not_negative, train, often, "steps between samples; 0: never"},
        {"log-every", &c.log_every, not_negative, train, seldom, "steps between printed lines; log.jsonl has all"},
        {"stats", &c.stats, not_negative, train, seldom,
         "steps between lines of stats.jsonl: norms of each tensor, sizes of activations; 0: never"},
        {"spike-z", &c.spike_z, not_negative, train, seldom,
         "a loss so many deviations above the mean of 50 steps is written down with its batch; 0: never"},
        {"replay", &c.replay, not_negative, train, seldom,
         "run this step of --out RUN again, from the checkpoint before, and compare it with the log; 0: no"},
        {"compare", &c.compare, any, train, seldom,
         "KEY=a,b,...: the run with each value of a key, and of the first one again with another seed; a value may "
         "bring other keys: dtype=fp32,bf16+fp8=rowwise"},
        {"ledger", &c.ledger, any, train, seldom, "print at the end what each rank sent in a step, and what it had to"},
        {"explain", &c.explain, any, train, seldom, "print what a step does, one sentence a piece of work, and end"},
        {"trace", &c.trace, not_negative, train, seldom, "record N steps from the second on: trace.json, run.html"},
        {"clock", &c.clock, {.words = {"wall", "virtual"}}, train, seldom, "of the trace; virtual: rates, not time"},
        {"clock-flops", &c.clock_flops, positive, train, seldom, "virtual clock: operations of products a second"},
        {"clock-bytes", &c.clock_bytes, positive, train, seldom, "virtual clock: bytes a second, for all else"},
        {"clock-wire", &c.clock_wire, positive, train, seldom, "virtual clock: bytes a second, between ranks"},
    }}, {"sampling", {
        {"prompt", &c.prompt, any, both, often, "text to continue"},
        {"tokens", &c.tokens, count, both, often, "tokens to generate"},
        {"temperature", &c.temperature, not_negative, both, often, "divides the logits; 0: the likeliest token"},
        {"top-k", &c.top_k, not_negative, both, often, "among the k likeliest tokens; 0: all"},
        {"top-p", &c.top_p, {0, 1, true}, both, seldom, "among the likeliest tokens of this total probability"},
    }}, {"files", {
        {"ids", &c.ids, any, dump, often, "JSON, one batch: lists of ids; in each the next id is the target"},
        {"output", &c.output, any, dump | exports | tokenize | report | plan, often,
         "also -o: the file (export: folder) to write; of one RUN unset: its run.html; plan: an SVG, who holds what"},
        {"json", &c.json, any, plan, often, "print JSON"},
        {"train-vocab", &c.train_vocab, {0, 1 << 24}, tokenize, often, "learn a BPE of so many ids from IN; 0: off"},
        {"lines", &c.lines, any, tokenize, often, "JSON lines with a text, from standard input, to lists of ids"},
        {"decode", &c.decode, any, tokenize, often, "lists of ids, from standard input, back to texts"},
        {"special", &c.special, {.words = {"parse", "ordinary"}}, tokenize, often,
         "special tokens that stand in a text: ids of their own, or text like any other"},
        {"add-special-tokens", &c.add_special_tokens, any, tokenize, often, "those that belong around a text"},
    }}};
}

inline Table table(Config& c) {
    Table all = training_keys(c);
    for (auto& groups : {layout_keys(c), run_keys(c)}) all.insert(all.end(), groups.begin(), groups.end());
    return all;
}

inline std::vector<Key> all_keys(Config& c) {
    std::vector<Key> all;
    for (auto& [group, keys] : table(c)) all.insert(all.end(), keys.begin(), keys.end());
    return all;
}

// Keys without code behind them yet: only this value is accepted, "" means none is.
struct Later { const char *name, *neutral, *help; };
inline constexpr Later later_keys[] = {
    {"moments", "fp32", "bf16"},
    {"cp", "1", "ranks that split each sequence"},
    {"pp", "1", "pipeline stages"},
    {"ep", "1", "ranks that split the experts"},
    {"lora-rank", "0", "rank of the adapters"},
    {"lora-alpha", "", "scale of the adapters, times rank"},
    {"lora-targets", "", "matrices with an adapter"},
    {"lora-dropout", "0", "probability"},
    {"lora-variant", "lora", "rslora, dora, pissa"},
    {"lora-plus-ratio", "1", "learning rate of B over that of A"},
    {"lora-base", "", "nf4"},
    {"train-on", "", "which tokens count"},
    {"chat", "", "chat template"},
    {"chat-date", "", "the date that templates see"},
    {"show-batch", "false", "print one batch with its mask"},
    {"task", "", "for eval"},
};

inline std::string value_text(bool value) { return value ? "true" : "false"; }
inline std::string value_text(const std::string& value) { return value; }
template <class T> std::string value_text(T value) {
    char digits[64];
    return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};   // the shortest that reads back equal
}

inline bool read_number(const std::string& text, double& value) {
    const std::optional<double> number = number_in(text);
    value = number.value_or(0);
    return number.has_value();
}
inline bool read_number(const std::string& text, long& value) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && stop == end && !text.empty();
}

inline std::string text_of(const Slot& slot) { return std::visit([](auto* p) { return value_text(*p); }, slot); }

inline std::string joined(const std::vector<std::string>& words) {
    std::string all;
    for (const std::string& w : words) all += (all.empty() ? "" : ", ") + w;
    return all;
}

inline std::string expected(const Key& k) {
    const Domain& d = k.domain;
    if (std::holds_alternative<bool*>(k.slot)) return "true or false";
    if (std::holds_alternative<std::string*>(k.slot)) return d.words.empty() ? "a string" : "one of " + joined(d.words);
    return concat(std::holds_alternative<long*>(k.slot) ? "a whole number" : "a number",
                  d.open_below ? " above " : " from ", value_text(d.least),
                  d.most >= 1e15 ? "" : (d.open_above ? " to below " : " to ") + value_text(d.most));
}

// A value as it was given: what it says, where it came from, and how an error begins that talks about it.
struct Given { std::string text, origin, subject; };
using Values = std::map<std::string, Given>;

inline void assign(const Key& k, const Given& g) {
    const Domain& d = k.domain;
    const auto inside = [&](double v) {
        return (d.open_below ? v > d.least : v >= d.least) && (d.open_above ? v < d.most : v <= d.most);
    };
    const bool ok = std::visit([&](auto* p) {
        using T = std::remove_pointer_t<decltype(p)>;
        if constexpr (std::is_same_v<T, bool>) {
            *p = g.text == "true";
            return *p || g.text == "false";
        } else if constexpr (std::is_same_v<T, std::string>) {
            *p = g.text;
            return d.words.empty() || std::count(d.words.begin(), d.words.end(), g.text) > 0;
        } else {
            return read_number(g.text, *p) && inside(double(*p));
        }
    }, k.slot);
    if (!ok) throw Usage(g.subject, ": expected ", expected(k));
}

}  // namespace baretrain::keys
