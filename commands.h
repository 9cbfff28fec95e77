// commands.h - what the program does besides training: a function a command, and the words that it prints.
// Copy with: blackbox.h, gradcheck.h, commands/costs.h, doctor.h and what they name
// The training step stands in train_gpt.cu. What needs it is handed it: gradients(trainer, micro-batches, trained) or
// step(trainer, micro-batches).
#pragma once
#include "blackbox.h"
#include "commands/costs.h"
#include "doctor.h"
#include "gradcheck.h"
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <unistd.h>

namespace baretrain {

// ---- shared ---------------------------------------------------------------------------------------------------------
using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Shows how far a long wait has come, at most once a second and only to a person.
struct Progress {
    const char* what;
    long first = 0;                                    // where the wait begins: a resumed run has steps behind it
    bool speaks = true;
    Clock::time_point begin = Clock::now(), shown = begin;
    void operator()(long done, long total) {
        if (!speaks || !isatty(2) || seconds_since(shown) < 1) return;
        shown = Clock::now();
        std::fprintf(stderr, "%-60s\r", progress_line(what, done - first, total - first, seconds_since(begin)).c_str());
    }
};

// Text of a model on a terminal: control characters would reach it as commands.
inline void show_text(const std::string& text) {
    const auto is_command = [](char c) { return static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t'; };
    for (char c : text) std::putchar(isatty(1) && is_command(c) ? '?' : c);
    std::fflush(stdout);
}

// Asked before anything is allocated.
inline size_t memory_there() { return device_memory() ? device_memory() : size_t(available_memory()); }
inline void require_memory(size_t bytes) {
    const size_t available = memory_there();
    if (bytes > available)
        fail("not enough memory: ", bytes / 1000000, " MB needed, ", available / 1000000,
             " MB available; take a smaller --batch, --seq or model, or --dtype bf16");
}

// run(arena) returns the arena's peak: dry first, to know its memory, and then with that much.
template <class Run> void run_planned(Run run) {
    const size_t bytes = run(Arena());
    require_memory(bytes);
    run(Arena(bytes));
}

// Operations a second of one big product of T: the best of those that fit into a tenth of a second, two at least.
// Negative where the run is so short (100 such products) that measuring would be a good part of it.
template <class T> double measured_peak(Device& d, double run_flops) {
    constexpr long M = 1024, N = 3072, K = 768;
    constexpr double flops = 2.0 * M * N * K;
    if (run_flops < 100 * flops) return -1;
    Arena arena((M * K + N * K + M * N) * sizeof(T));
    const auto x = arena.take<T>(M, K), w = arena.take<T>(N, K), y = arena.take<T>(M, N);
    const std::vector<T> ones(size_t(N * K), T(1));    // pages that nobody wrote to are all the same one
    copy_bytes(d, x.data, ones.data(), M * K * sizeof(T));
    copy_bytes(d, w.data, ones.data(), N * K * sizeof(T));
    Matmul products(d);
    double best = HUGE_VAL;
    const auto start = Clock::now();
    for (int i = 0; i < 2 || seconds_since(start) < 0.1; ++i) {
        const auto begin = Clock::now();
        matmul<T, T>(products, d, y, x, w, {}, {.transpose_b = true});
        T last;
        copy_bytes(d, &last, y.row(M - 1), sizeof last);   // a GPU has then finished
        best = std::min(best, seconds_since(begin));
    }
    return flops / best;
}

// Calls use with a value of the scalar type that the name stands for.
template <class Use> int with_type(const std::string& dtype, Use use) {
    if (dtype == "bf16" || dtype == "BF16") return use(bf16{});
    if (dtype == "fp64" || dtype == "F64") return use(double{});
    if (dtype == "fp32" || dtype == "F32" || dtype == "F16") return use(float{});   // float holds all that F16 can
    fail("dtype " + dtype + " is not built yet; only fp32, bf16 and fp64 work so far");
}

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

// ---- generate -------------------------------------------------------------------------------------------------------
template <class T> int generate(const Config& c) {
    const Tokenizer tokenizer = load_tokenizer(c.model);
    const long prompt = long(tokenizer.encode(c.prompt).size());
    if (tokenizer.vocab() > c.shape.vocab)
        fail(c.model, ": its tokenizer has ", tokenizer.vocab(), " ids, its config.json ", c.shape.vocab);
    if (prompt > c.shape.seq)
        fail("--prompt: " + std::to_string(prompt) + " tokens, but " + c.model + " sees at most " +
             std::to_string(c.shape.seq) + " at once; give a shorter one");
    show_text(c.prompt);
    const Sampling how{c.temperature, c.top_k, c.top_p, uint64_t(c.seed), 0};
    generate_text<T>(c.model, c.shape, c.prompt, c.tokens, how, show_text);
    show_text("\n");
    return 0;
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
    run_planned(run);
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

// ---- eval -----------------------------------------------------------------------------------------------------------
// Every token of the data but the first of each stream is a target once: windows of seq tokens, the last one shorter.
template <class T> int eval(Config c) {
    const Tokenizer tokenizer = load_tokenizer(c.tokenizer, c.shape.vocab);
    set_vocab(c, tokenizer.vocab());
    const Corpus corpus = read_corpus(c.data, "0", tokenizer, 1, default_team());
    const Params params(c.shape);
    LossSum loss;
    size_t bytes = 0;
    const auto run = [&](Arena arena) {
        Inference<T> model(arena, params, c.seq);
        RowBuffers buffers(arena, c.shape, c.batch * c.seq, c.seq);
        const auto sum = [&](const Rows& rows) { return evaluate_rows(model.context, model.weights, buffers, rows); };
        if (arena.dry()) {
            Rows full;
            for (long b = 0; b < c.batch; ++b) full.append(std::vector<int>(size_t(c.seq) + 1));
            sum(full);
            return arena.peak();
        }
        model.load(c.model);
        Progress progress{"evaluating"};
        for (const auto& [tokens, weight] : corpus.train)
            for (long at = 0, last = tokens.size() - 1; at < last; at += c.batch * c.seq) {
                Rows rows;
                for (long w = at; w < std::min(last, at + c.batch * c.seq); w += c.seq)
                    rows.append(tokens.read(w, std::min(last, w + c.seq) + 1));
                loss.add(-sum(rows), rows.trained());
                for (int id : rows.targets) bytes += tokenizer.bytes_of(id).size();
                progress(at, last);
            }
        return arena.peak();
    };
    run_planned(run);
    const double mean = loss.mean();
    std::printf("loss          %.6f\nperplexity    %.4f\ntokens        %ld\n", mean, std::exp(mean), loss.count);
    if (tokenizer.has_text())
        std::printf("bits per byte %.6f\nbytes         %zu\n", loss.total / std::log(2.0) / double(bytes), bytes);
    return 0;
}

// ---- dump -----------------------------------------------------------------------------------------------------------
// One batch as the training step takes it: each list a document, all in one micro-batch.
template <class T, class Gradients> int dump(Config c, Gradients gradients) {
    using R = Real<T>;
    const Rows rows = read_id_lists(c.ids, c.shape.vocab, c.shape.seq);
    std::error_code absent;
    const std::filesystem::path output = c.output, folder = output.has_parent_path() ? output.parent_path() : ".";
    if (std::filesystem::equivalent(output, c.ids, absent) || std::filesystem::equivalent(folder, c.model, absent))
        fail("-o ", c.output, ": would be written over what it is made from; give another name");
    const long N = long(rows.tokens.size()), V = c.shape.vocab;
    c.batch = 1, c.seq = c.tokens_per_step = N;
    const Params params(c.shape);
    const auto run = [&](Arena arena) {
        Trainer<T> t(c, params, arena);
        if (!arena.dry()) t.optimizer.load(t.device, c.model);
        gradients(t, {rows}, N);
        if (arena.dry()) return arena.peak();

        std::vector<TensorSource> tensors =
            tensor_sources<R>(t.device, params, owned_parts<R>(params, t.weights, t.grads), "");
        std::vector<R> logprobs(static_cast<size_t>(N));
        copy_bytes(t.device, logprobs.data(), t.logprobs.data, logprobs.size() * sizeof(R));
        const R loss = R(-std::accumulate(logprobs.begin(), logprobs.end(), 0.0) / double(N));
        tensors.push_back({"loss", safetensors_dtype<R>(), {}, [&](void* to) { std::memcpy(to, &loss, sizeof loss); }});
        tensors.push_back({"logits", safetensors_dtype<R>(), {N, V}, [&](void* to) {
            auto ends = t.weights.gather(ends_unit);
            for_each_logits<T>(t.context, ends->head, t.final, [&](long first, long n, View<R> logits) {
                for (long r = 0; r < n; ++r)
                    copy_bytes(t.device, static_cast<R*>(to) + (first + r) * V, logits.row(r), size_t(V) * sizeof(R));
            });
            t.weights.release(ends);
        }});
        replace_file(c.output, [&](const std::string& path) { write_safetensors(path, tensors, {}); });
        std::printf("%s: loss %.6f, logits of %ld rows, %zu gradients\n", c.output.c_str(), double(loss), N,
                    tensors.size() - 2);
        return arena.peak();
    };
    run_planned(run);
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

// ---- all of them ----------------------------------------------------------------------------------------------------
template <class Gradients, class Step> int other_command(const Config& c, Gradients gradients, Step step) {
    const std::string& name = c.command;
    if (name == "doctor") return print_findings();
    if (name == "tokenize") return tokenize(c);
    if (name == "report") return report(c);
    if (name == "export") return export_model(c);
    if (name == "plan") return with_type(c.dtype, [&](auto type) { return print_plan<decltype(type)>(c, step); });
    device_name(0);                                    // a CUDA build without a device says so before anything else
    if (name == "gradcheck") return print_gradcheck(gradients);
    if (name == "generate")
        return with_type(dtype_of_folder(c.model), [&](auto type) { return generate<decltype(type)>(c); });
    if (name == "eval") return with_type(c.dtype, [&](auto type) { return eval<decltype(type)>(c); });
    if (name == "dump") return with_type(c.dtype, [&](auto type) { return dump<decltype(type)>(c, gradients); });
    fail(name + ": not built yet");
}

}  // namespace baretrain
