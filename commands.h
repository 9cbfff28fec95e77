// commands.h - what the program does besides training: a function a command, and the words that it prints.
// Copy with: blackbox.h, gradcheck.h, commands/compare.h, commands/costs.h, commands/infer.h and what they name
// The training step stands in train_gpt.cu. What needs it is handed it: gradients(trainer, micro-batches, trained) or
// step(trainer, micro-batches).
#pragma once
#include "blackbox.h"
#include "commands/compare.h"
#include "commands/costs.h"
#include "commands/infer.h"
#include "gradcheck.h"
#include <iostream>

namespace baretrain {

// ---- what a run does now and then -----------------------------------------------------------------------------------
// The same 0 for all ranks, the begin of rank 0.
template <class T> TraceClock trace_clock(Trainer<T>& t, Clock::time_point begin) {
    const double zero = t.agree({t.comm.first() ? double(begin.time_since_epoch().count()) : 0.0, 0}, "control")[0];
    const Config& c = t.config;
    return {c.clock == "wall", c.clock_flops, c.clock_bytes, c.clock_wire,
            Clock::time_point(Clock::duration(long(zero)))};
}

[[noreturn]] inline void fail_at(const StepLog& log) {
    fail("step ", log.step, ": loss ", std::to_string(log.loss), ", gradient norm ", std::to_string(log.grad_norm),
         ": ", log.skipped, " came first; nothing was updated or saved; try a smaller --lr");
}

template <class T> double validation_loss(Trainer<T>& t, const Loader& val) {
    const Progress progress{"evaluating", 0, t.comm.first()};
    const LossSum mine = evaluate(t.context, t.weights, t.rows, val, t.share(), progress);
    const auto [total, count] = t.agree({mine.total, double(mine.count)}, "evaluation");
    return LossSum{total, long(count)}.mean();
}

// Of a rank's part of a step the whole step, on rank 0: the sequences of all ranks in the order of the data. Returns
// the log-probabilities of their targets. Called by all ranks.
template <class T> std::vector<double> gather_step(Trainer<T>& t, const Loader& data, TakenStep& step) {
    const std::vector<double> all = collect(t.comm, logprobs_of(t), {"report"}, dp_axes);
    std::vector<double> ordered;
    if (t.comm.first()) step.micros.clear();
    for (long micro = 0; micro < t.micro_batches() && t.comm.first(); ++micro)
        for (RankShare s = t.share(); s.rank < s.ranks; ++s.rank) {
            step.micros.push_back(data.rows(s.first(step.position, micro), s.batch));
            const auto from = all.begin() + (s.rank * t.micro_batches() + micro) * t.micro_rows();
            ordered.insert(ordered.end(), from, from + t.micro_rows());
        }
    return ordered;
}

template <class T> std::string sample_of(Trainer<T>& t, const Tokenizer& tokenizer) {
    const Config& c = t.config;
    const Sampling how{c.temperature, c.top_k, c.top_p, uint64_t(c.seed), uint64_t(t.step)};
    Generator<T> generator(t.context, t.weights, c.seq);
    const std::string prompt = c.prompt.empty() ? "\n" : c.prompt;   // in the middle of a file, not at its head
    return sample(generator, tokenizer, prompt, c.tokens, how, [](const std::string&) {});
}

// ---- gradcheck, doctor ----------------------------------------------------------------------------------------------
// The gradients of whole small models, as the training step takes them: two unequal micro-batches, one target ignored.
template <class Gradients> GradcheckRow gradcheck_model(const ModelShape& shape, Gradients gradients) {
    Config config;
    config.shape = shape, config.seq = 6, config.batch = 2, config.tokens_per_step = 24;
    const Params params(shape);
    const Rows a{{1, 2, 3, 4, 5, 6, 10, 9, 1, 1, 0, 7}, {2, 3, 4, 5, 6, 7, 9, 1, 1, 0, 7, 3},
                 {0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2}, {0, 6, 9, 12}};
    Rows b = a;
    std::reverse(b.tokens.begin(), b.tokens.end());
    b.targets[4] = ignored;
    GradcheckRow row;
    const auto run = [&](Arena arena) {
        Trainer<double> t(config, params, arena);
        t.device.team = 1;                             // a model this small is slower with more
        const auto backward = [&] { gradients(t, {a, b}, 23); };
        const auto loss = [&] { return -(evaluate_rows(t.context, t.weights, t.rows, a) +
                                         evaluate_rows(t.context, t.weights, t.rows, b)) / 23; };
        if (arena.dry()) backward(), loss();
        else row = gradcheck_parameters(t.device, params, t.weights, t.grads, backward, loss);
        return arena.peak();
    };
    run(Arena(run(Arena())));                          // dry first, to know its memory
    return row;
}

template <class Gradients> int print_gradcheck(Gradients gradients) {
    std::vector<GradcheckRow> rows = gradcheck_operations();
    for (const ModelShape& shape : gradcheck_models()) rows.push_back(gradcheck_model(shape, gradients));
    bool good = true;
    std::printf("%-56s %s\n", "gradient (fp64) against central differences", "worst relative error");
    for (const GradcheckRow& row : rows) {
        std::printf("%-56s %.1e%s\n", row.what.c_str(), row.error, row.error < gradcheck_bound ? "" : "   WRONG");
        good = good && row.error < gradcheck_bound;
    }
    std::printf("%s: every error below %.0e\n", good ? "right" : "WRONG", gradcheck_bound);
    return good ? 0 : 1;
}

inline int print_findings() {
    std::string device;
    try { device = on_gpu ? device_name(0) : ""; } catch (const Error&) {}   // none: doctor says what to do
    for (const Finding& f : examine({Matmul::engine(), device, default_team()})) {
        std::printf("%-12s %s\n", f.what.c_str(), f.found.c_str());
        if (!f.advice.empty()) std::printf("%-12s   %s\n", "", f.advice.c_str());
    }
    return 0;
}

// ---- tokenize -------------------------------------------------------------------------------------------------------
// Our own tokenizers put no special token around a text, so --add-special-tokens adds none.
inline int tokenize(const Config& c) {
    Inputs inputs;
    for (const std::string& path : c.inputs) add_inputs(inputs, "tokenize", path);
    if (c.train_vocab > 0) {
        const Tokenizer learned = learn_tokenizer(inputs, c.train_vocab, default_team());
        write_tokenizer(learned, c.output);
        std::printf("%s: %ld ids, learned from %s\n", c.output.c_str(), learned.vocab(), inputs.describe().c_str());
        return 0;
    }
    const Tokenizer tokenizer = load_tokenizer(c.tokenizer);
    const Encoder encode{tokenizer, c.special == "parse" ? Parse::special : Parse::ordinary};
    if (c.decode) decode_lines(std::cin, std::cout, tokenizer);
    else if (c.lines) encode_lines(std::cin, std::cout, encode);
    else {
        const long ids = tokenize_files(inputs, encode, c.output, default_team());
        std::printf("%s: %s ids of %d bytes from %s\n", c.output.c_str(), short_number(double(ids)).c_str(),
                    vocabulary_of(tokenizer).id_bytes(), inputs.describe().c_str());
    }
    return 0;
}

// ---- export ---------------------------------------------------------------------------------------------------------
// Nothing is changed, so nothing is held: tensor after tensor is copied, once all that the model needs is known to be
// there.
inline int export_model(const Config& c) {
    std::vector<TensorTarget> needed;
    const Params params(c.shape);
    for (const Param& p : params.rows()) needed.push_back({p.name, "F32", p.dims(), {}});
    load_model_tensors(c.model, needed);
    const Exported done = export_folder(c.model, c.output);
    std::printf("%s: %ld tensors, %zu bytes, equal to %s\n", c.output.c_str(), done.tensors, done.bytes,
                c.model.c_str());
    return 0;
}

// ---- report ---------------------------------------------------------------------------------------------------------
inline int report(const Config& c) {
    const std::string page = write_report(c.inputs, c.output);
    std::printf("%s: the page of %zu run%s\n", page.c_str(), c.inputs.size(), c.inputs.size() == 1 ? "" : "s");
    return 0;
}

// ---- replay ---------------------------------------------------------------------------------------------------------
// The last checkpoint before a step of the log; "": the step is reached from the beginning.
inline std::string find_replay(const std::string& run, long step) {
    const std::map<long, StepLog> logged = read_steps(run);
    if (!logged.count(step))
        fail("--replay ", step, ": ", run, "/log.jsonl ends at step ", logged.empty() ? 0 : logged.rbegin()->first);
    const Found found = newest_checkpoint(run, step - 1);
    for (const std::string& note : found.notes) std::printf("%s\n", note.c_str());
    std::printf("replay  %s, from %s\n", run.c_str(), found.folder.empty() ? "the beginning" : found.folder.c_str());
    return found.folder;
}

// Takes the steps up to --replay once more, as next(trainer, data) does, and compares each with the log. Nothing is
// written.
template <class T, class Next>
int replay(Trainer<T>& t, const Corpus& corpus, const Tokenizer& tokenizer, Next next) {
    const Config& c = t.config;
    const Loader train(corpus.train, c.seq, uint64_t(c.seed));
    const std::map<long, StepLog> logged = read_steps(c.out);
    const long first = t.step + 1;
    std::string different;
    TakenStep taken;
    Progress progress{"replaying", t.step, t.comm.first()};
    while (t.step < c.replay) {
        taken = next(t, train);
        const auto was = logged.find(t.step);
        const std::string now = was == logged.end() ? "it is not in the log" : difference(taken.log, was->second);
        if (different.empty() && !now.empty()) different = concat("step ", t.step, ": ", now);
        progress(t.step, c.replay);
    }
    const std::vector<double> logprobs = gather_step(t, train, taken);
    if (!t.comm.first()) return 0;
    show_text(worst_sequences(taken, logprobs, tokenizer, 3));
    if (t.stats.due()) std::printf("%s", to_json(t.stats.log(t.device, t.step)).c_str());
    std::printf("%s\n", log_line(taken.log, c.steps).c_str());
    if (different.empty()) std::printf("equal: steps %ld to %ld have the bits of the log\n", first, c.replay);
    else std::printf("different: %s\n", different.c_str());
    return different.empty() ? 0 : 1;
}

// bf16, say; and with FP8 which products are taken in it, and which are not though they are of a block.
inline std::string dtype_text(const Config& c, const Params& params) {
    if (c.fp8 == "off") return c.dtype;
    long all = 0, some = 0;
    std::string others;
    for (const Param& p : params.rows()) {
        if (p.unit == ends_unit || !p.decay()) continue;
        const bool on = params.fp8(p) != Fp8::off;
        ++all, some += on;
        if (!on && others.size() < 200) others += (others.empty() ? "; in bf16: " : ", ") + p.name;
    }
    return concat(c.dtype, "; in FP8, ", c.fp8, ": ", some, " of ", all, " matrices of the blocks", others);
}

// What a run gives that somebody stopped before its last step.
inline constexpr int stopped = 75;

// A folder that is not there yet, for a run; two may begin in one second.
inline std::string new_run() {
    const std::string name = "out/" + time_name();
    std::string free = name;
    for (int n = 2; std::filesystem::exists(free); ++n) free = name + "-" + std::to_string(n);
    return free;
}

// ---- all of them ----------------------------------------------------------------------------------------------------
template <class Gradients, class Step>
int other_command(const Config& c, const World& world, Gradients gradients, Step step) {
    const std::string& name = c.command;
    if (name == "doctor") return print_findings();
    if (name == "tokenize") return tokenize(c);
    if (name == "report") return report(c);
    if (name == "export") return export_model(c);
    if (name == "plan") return with_type(c.dtype, [&](auto type) { return print_plan<decltype(type)>(c, step); });
    require_ranks(c);
    if (name == "gradcheck") return print_gradcheck(gradients);
    if (name == "generate")
        return with_type(dtype_of_folder(c.model), [&](auto type) { return generate<decltype(type)>(c, world); });
    if (name == "eval") return with_type(c.dtype, [&](auto type) { return eval<decltype(type)>(c, world); });
    if (name == "dump") return with_type(c.dtype, [&](auto type) { return dump<decltype(type)>(c, world, gradients); });
    fail(name + ": not built yet");
}

}  // namespace baretrain
