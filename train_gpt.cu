// train_gpt.cu - the program: setup, train_step, loop. Start here; then gpt.h, which holds the model.
// One rank's training step stands in full view: where weights are gathered and released, where gradients are opened and
// handed over, where the loss is scaled (once), and how the update follows. Everything it calls is one header away.
#include "comm/world.h"
#include "commands.h"
#include <csignal>
#include <filesystem>

namespace baretrain {

// ---- one step -------------------------------------------------------------------------------------------------------
struct StepResult {
    double loss, grad_norm;   // mean over the trained tokens of the whole step; before clipping
    long trained;
    bool skipped;
};

// The gradient of the loss, summed over `micros`, into the gradient store. Log-probabilities go to t.logprobs. The loss
// is that of a token: t.control has how many the whole step trains.
template <class T> void gradients(Trainer<T>& t, const std::vector<Rows>& micros) {
    Context<T>& c = t.context;
    const long blocks = t.params.shape().layers;
    loss_weight(t.device, t.weight, View<const double>(t.control));   // the only scaling: the rest are sums
    t.grads.begin_step(long(micros.size()));
    for (size_t i = 0; i < micros.size(); ++i) {
        t.device.mark(Mark::micro, long(i));
        const Rows& m = micros[i];
        const RowViews rows = t.rows.upload(t.device, m.tokens, m.targets, m.positions, m.documents);
        Scratch s(c.scratch);
        const auto dx = s.take<T>(t.my_rows(), c.shape.dim), dfinal = s.take<T>(t.micro_rows(), c.shape.dim);

        auto ends = t.weights.gather(ends_unit);
        View<T> x = t.embedded;
        embed_forward(c, x, *ends, rows);
        for (long block = 0; block < blocks; ++block) {
            auto w = t.weights.gather(block_unit(block));
            x = block_forward(c, *w, t.acts[size_t(block)], x, rows);
            t.stats.activations(t.device, block, t.acts[size_t(block)]);
            t.weights.release(w);
        }
        enter(c, t.final, t.final_stats, x, ends->norm);

        auto dends = t.grads.open(ends_unit);
        head_backward(c, dfinal, t.logprobs.row_range(long(i), 1), t.final, rows.targets, t.weight,
                      {ends->head, dends->head, dends.write});
        enter_backward(c, {dx, Write::over}, dfinal, x, t.final_stats, {ends->norm, dends->norm, dends.write});
        for (long block = blocks - 1; block >= 0; --block) {
            auto w = t.weights.gather(block_unit(block));
            auto g = t.grads.open(block_unit(block));
            block_rebuild(c, *w, t.acts[size_t(block)], t.input(block), rows, t.recompute);
            block_backward(c, *w, g, t.acts[size_t(block)], t.input(block), dx, rows);
            t.grads.hand_over(g);
            t.weights.release(w);
        }
        embed_backward(c, dends, dx, rows);
        t.grads.hand_over(dends);
        t.weights.release(ends);
    }
    t.grads.finish();
    sum_shared_grads(c, t.params, t.weights, t.grads);
}
template <class T> void gradients(Trainer<T>& t, const std::vector<Rows>& micros, long trained) {
    const double control[] = {double(trained), 0};
    upload_bytes(t.device, t.control.data, control, sizeof control);
    gradients(t, micros);
}

// One optimizer step. A step without a trained token, or with a loss or a gradient that is not finite, leaves the
// weights and moments as they are. The host waits once, at the end: for the loss.
template <class T> StepResult train_step(Trainer<T>& t, const std::vector<Rows>& micros) {
    require_equal(long(micros.size()), t.micro_batches(), "train_step: micro-batches of a step");
    double here = 0;
    for (const Rows& m : micros) here += double(m.trained());
    const double mine[] = {here, t.stop ? 1.0 : 0.0};
    upload_bytes(t.device, t.control.data, mine, sizeof mine);
    t.join(t.control, "control");                      // of all ranks, before anything else
    t.stats.begin_step(t.device, t.step + 1);
    gradients(t, micros);
    square_gradients(t);
    sum_logprobs(t);

    const Config& c = t.config;
    const double count = double(t.step + 1);
    StepState now{.lr = learning_rate(schedule_of(c), t.step), .beta1 = c.beta1, .beta2 = c.beta2, .eps = c.eps,
                  .decay = c.weight_decay, .correct1 = 1 - std::pow(c.beta1, count),
                  .correct2 = 1 - std::pow(c.beta2, count), .max_norm = c.clip, .loss = 0, .norm = 0, .scale = 1,
                  .skip = 0, .trained = 0, .seed = uint64_t(c.seed), .step = uint64_t(t.step), .stop = 0};
    upload_bytes(t.device, t.state.data, &now, sizeof now);
    agreed(t.device, t.state, t.control, t.loss);
    decide(t.device, t.state, t.norm);
    t.stats.tensors(t.device, t.optimizer, t.grads, t.state);
    t.optimizer.update(t.device, t.spans, t.state);

    copy_bytes(t.device, &now, t.state.data, sizeof now);
    t.step += 1;
    t.tokens += now.trained;
    t.stop = now.stop != 0;
    return {now.trained ? now.loss / double(now.trained) : 0, now.norm, now.trained, now.skip != 0};
}

template <class T> std::vector<Rows> next_rows(Trainer<T>& t, const Loader& data) {
    const double bytes = 3 * sizeof(int) * double(t.micro_batches() * t.micro_rows());   // tokens, targets, positions
    const Watched reading(t.device, {Where::current(), bytes, 0, Lane::data});
    std::vector<Rows> micros;
    const RankShare share = t.share();
    for (long i = 0; i < t.micro_batches(); ++i)
        micros.push_back(data.rows(share.first(t.position, i), share.batch));
    t.position += t.micro_batches() * share.ranks * share.batch;
    return micros;
}

// The step that comes next in the data, with what is said of it.
template <class T> TakenStep next_step(Trainer<T>& t, const Loader& data) {
    const auto begin = Clock::now();
    TakenStep s{t.position, {}, {}};
    t.comm.ledger.clear();
    s.micros = next_rows(t, data);
    const StepResult r = train_step(t, s.micros);
    const double seconds = seconds_since(begin);
    s.log.step = t.step, s.log.loss = r.loss, s.log.grad_norm = r.grad_norm;
    s.log.lr = learning_rate(schedule_of(t.config), t.step - 1), s.log.tokens = t.tokens;
    s.log.tokens_per_s = double(r.trained) / seconds, s.log.ms = {{"step", 1e3 * seconds}};
    if (r.skipped) s.log.skipped = r.trained ? "not finite: " + first_not_finite(t) : "nothing to train";
    for (const auto& [key, row] : t.comm.ledger)
        s.log.bytes[key.text()] = row.bytes, s.log.ms[key.text()] = row.ms;
    return s;
}

// What the other commands take of the above.
inline constexpr auto take_gradients = [](auto& t, const std::vector<Rows>& micros, long trained) {
    gradients(t, micros, trained);
};
inline constexpr auto take_step = [](auto& t, const std::vector<Rows>& micros) { return train_step(t, micros); };

// ---- the run --------------------------------------------------------------------------------------------------------
inline volatile std::sig_atomic_t interrupted = 0;     // Ctrl-C and its kin: save, then end; a second one ends at once
inline void interrupt(int signal) {
    interrupted = 1;
    std::signal(signal, SIG_DFL);
}

// Where a run is to be taken up: the run folder and its checkpoint. No checkpoint: it was cut off before its first one
// and begins again. Both empty: a new run.
struct Resume { std::string run, checkpoint; };

inline Resume find_resume(const std::string& resume, const std::string& out) {
    namespace fs = std::filesystem;
    const bool automatic = resume == "auto" || resume == "--replay";
    if (resume.empty()) return {};
    if (!automatic && fs::exists(resume + "/state")) {
        require_complete(resume);                      // newest_checkpoint() reads every byte of what it finds
        const fs::path run = (fs::path(resume) / "..").lexically_normal();
        return {(run.has_filename() ? run : run.parent_path()).string(), resume};
    }
    const std::string run = !automatic ? resume : out.empty() ? newest_run("out") : out;
    if (automatic && (run.empty() || !fs::exists(run + "/config.toml"))) return {};
    if (resume == "--replay") return {run, ""};        // find_replay() knows which checkpoint to read
    const Found found = newest_checkpoint(run);
    for (const std::string& note : found.notes) std::printf("%s\n", note.c_str());
    if (found.folder.empty() && (!automatic || found.damaged)) fail("--resume: " + run + " has no complete checkpoint");
    return {run, found.folder};
}

// Everything the step, an evaluation and a sample will ask for, found by running them dry.
template <class T> Plan plan_of(const Config& config, const Params& params, size_t available = size_t(-1)) {
    return make_plan<T>(config, params, take_step, available);
}

// What the ranks of a run share.
template <class T> struct Run {
    Config config;
    Resume from;
    Tokenizer tokenizer;
    Params params;
    Plan plan;
    Corpus corpus;
    Clock::time_point begin;
    const World& world;
};

template <class T> Facts run_facts(const Trainer<T>& t, const Run<T>& r) {
    Facts f = {{"commit", commit()}, {"compiler", compiler()}, {"flags", build_flags()},
               {"device", device_name(t.device.index)}, {"matmul", Matmul::engine()}, {"team", long(t.device.team)},
               {"ranks", t.config.ranks}, {"engine", r.world.engine}, {"dtype", t.config.dtype},
               {"parameters", t.params.shape().parameters()}, {"data", r.corpus.describe()},
               {"data_hash", r.corpus.hash}, {"seed", t.config.seed}};
    if (t.peak > 0) f.push_back({"peak_flops", t.peak});
    for (const auto& [key, row] : sent_by_formula<T>(t.config, t.params, t.config.stats > 0, true))
        f.push_back({"sent." + key.text(), row.bytes});
    for (auto& fact : memory_facts(r.plan.parts, r.plan.peak)) f.push_back(fact);
    for (const auto& [key, value] : key_values(t.config)) f.push_back({"config." + key, value});
    return f;
}

// folder: of the first rank, which speaks for all; null: another rank's. Returns what was sent.
template <class T> Traffic loop(Trainer<T>& t, const Run<T>& r, RunFolder* folder) {
    const Config& c = t.config;
    const Loader train(r.corpus.train, c.seq, uint64_t(c.seed)), val(r.corpus.val, c.seq, uint64_t(c.seed));
    const auto due = [&](long every) { return every > 0 && (t.step % every == 0 || t.step == c.steps); };
    Progress progress{"training", t.step, folder != nullptr};
    const long first = std::min(t.step + 2, c.steps), last = std::min(first + c.trace - 1, c.steps);   // 1 warms up
    Trace trace(trace_clock(t, r.begin), [&] { return wait(t.device), t.arena.high(); }, t.comm.mesh.rank);
    BlackBox box(c.out, c.spike_z);
    Traffic traffic;
    auto drawn = Clock::now();
    double pause = 0;                                  // before the page is written again: it takes 1 % of the time
    while (t.step < c.steps && !t.stop) {
        if (t.step + 1 >= first && t.step < last) trace.step(t.step + 1), t.device.watch = &trace;
        t.stop = interrupted || (folder && folder->stop_requested());
        traffic.add_besides(t.comm);
        TakenStep taken = next_step(t, train);         // t.stop: somebody wants to
        StepLog& log = taken.log;
        traffic.add_step(t, log.skipped.starts_with("not finite"));
        log.mfu = 1e3 * r.plan.flops() * double(c.ranks) / t.peak / log.ms["step"];
        log.resident = on_gpu ? -1 : resident_memory();
        if (folder) folder->log(log);                  // before the save, so that a checkpoint never misses its line
        const std::string statistics = t.stats.due() ? to_json(t.stats.log(t.device, t.step)) : "";
        if (folder) folder->stats(statistics);
        if (const std::string why = box.see(taken); !why.empty()) {   // on all ranks, or on none
            const std::vector<double> logprobs = gather_step(t, train, taken);
            if (folder)
                std::printf("spike   step %ld: %s; see %s\n", t.step, why.c_str(),
                            box.write(why, taken, logprobs, r.tokenizer, statistics).c_str());
        }
        if (log.skipped.starts_with("not finite") && c.nonfinite == "stop") fail_at(log);
        if ((c.save_every > 0 && t.step % c.save_every == 0) || t.step == c.steps || t.stop) {
            const std::string saved = save(t, r.corpus, r.tokenizer, c.out);
            if (folder) std::printf("saved %s\n", saved.c_str());
        }
        if (std::exchange(t.device.watch, nullptr) && (t.stop || t.step == last)) {
            const Events ranks = collect(t.comm, trace.events(), {"trace"});
            if (folder) folder->trace(trace_json(ranks), trace_html(ranks, r.plan.step));
        }
        const bool evaluated = due(c.eval_every) && val.windows() > 0;
        if (evaluated) {                               // after the save: whatever happens here, the run is on the disk
            log.val_loss = validation_loss(t, val);
            if (folder) folder->log(log);
        }
        if (folder && (t.step == 1 || due(c.log_every) || evaluated || !log.skipped.empty()))
            std::printf("%s\n", log_line(log, c.steps).c_str());
        else progress(t.step, c.steps);
        if (due(c.sample_every) && r.tokenizer.has_text()) {   // all ranks write it, as all have a part of the weights
            const std::string text = sample_of(t, r.tokenizer);
            if (folder) std::printf("---- sample after step %ld ----\n", t.step), show_text(text + "\n----\n");
            if (folder) folder->sample(t.step, text);
        }
        if (folder && (evaluated || t.stop || t.step == c.steps || seconds_since(drawn) > pause)) {
            drawn = Clock::now();
            folder->write_html();
            pause = std::max(1.0, 100 * seconds_since(drawn));
        }
        std::fflush(stdout);
    }
    return traffic;
}

// One rank of a run, from its memory to its last step.
template <class T> int train_rank(const Run<T>& r, const Rank& rank) {
    const Config& c = r.config;
    Arena arena(r.plan.peak);
    const Params params = params_of(c, rank.mesh);     // of this rank
    Trainer<T> t(c, params, arena, rank);
    if (c.model_is_folder) t.brought = files_beside_weights(c.model);
    if (!r.from.checkpoint.empty()) resume(t, r.corpus, r.from.checkpoint);
    else if (c.model_is_folder) t.optimizer.load(t.device, c.model);
    else t.optimizer.initialise(t.device, uint64_t(c.seed));
    if (c.replay > 0) return replay(t, r.corpus, r.tokenizer, next_step<T>);

    t.meet();                                          // nothing of the run is changed before all ranks got this far
    t.peak = double(c.tp) * t.agree({measured_peak<T>(t.device, r.plan.flops() * double(c.steps)), 0}, "control")[0];
    std::optional<RunFolder> folder;
    if (t.comm.first()) {
        folder.emplace(c.out, r.from.run.empty() ? -1 : t.step);
        folder->write_config(to_toml(c));
        folder->write_run_json(run_facts(t, r));
        if (const long later = r.from.run.empty() ? 0 : discard_after(r.from.run, t.step))   // after all that can fail
            std::printf("resume  from step %ld: %ld later checkpoints of this run are removed\n", t.step, later);
        std::printf("lr      %s from %.1e to %.1e over %ld steps, %ld of warm-up%s\n", c.schedule.c_str(), c.lr,
                    c.schedule == "constant" ? c.lr : c.min_lr, c.steps, c.warmup,
                    t.step ? ("; on this curve from step " + std::to_string(t.step) + " on").c_str() : "");
        std::printf("run     %s%s\n\n%s\n", folder->path().c_str(),
                    r.from.checkpoint.empty() ? "" : (", resumed from " + r.from.checkpoint).c_str(),
                    log_header().c_str());
    }
    t.meet();
    Traffic traffic = loop(t, r, folder ? &*folder : nullptr);
    traffic.add_besides(t.comm);
    if (folder && c.ledger) std::printf("%s", to_text(traffic).c_str());
    if (folder)
        std::printf("%s after %ld steps, %.1f s; the curves: %s/run.html\n", t.step < c.steps ? "stopped" : "done",
                    t.step, seconds_since(r.begin), folder->path().c_str());
    return t.step < c.steps ? stopped : 0;
}

template <class T> int train(Config config, const Resume& from, const World& world) {
    const auto begin = Clock::now();
    Tokenizer tokenizer = load_tokenizer(config.tokenizer, config.shape.vocab);
    set_vocab(config, tokenizer.vocab());
    Params params = params_of(config);                 // of rank 0, which speaks for all
    std::printf("model   %s, %ld layers, dim %ld, %ld heads, %ld tokens: %.2f M parameters, %s\n",
                config.shape.family.c_str(), config.shape.layers, config.shape.dim, config.shape.heads,
                config.shape.vocab, double(config.shape.parameters()) / 1e6, dtype_text(config, params).c_str());
    const int ranks = int(config.ranks), team = world.team(ranks);
    std::printf("device  %s, %d threads%s, matrix products by %s\n", device_name(0).c_str(), team,
                ranks > 1 ? concat(" for each of ", ranks, " ranks (", world.engine, ")").c_str() : "",
                Matmul::engine().c_str());
    const size_t available = memory_there(), neighbours = size_t(world.neighbours(ranks));
    Plan plan = plan_of<T>(config, params, available / neighbours);
    std::printf("memory  %.1f MB planned, %.1f MB available\n", double(plan.peak * neighbours) / 1e6,
                double(available) / 1e6);
    require_memory(plan.peak * neighbours);
    Corpus corpus = read_corpus(config.data, config.val, tokenizer, config.seq, default_team());
    std::printf("data    %s\n", corpus.describe().c_str());
    if (config.epochs > 0) {
        const long windows = Loader(corpus.train, config.seq, uint64_t(config.seed)).windows();
        const double steps = config.epochs * double(windows * config.seq) / double(config.tokens_per_step);
        set_steps(config, std::max(1L, long(std::ceil(steps))));
    }
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, interrupt);
    const Run<T> run{std::move(config), from, std::move(tokenizer), std::move(params), std::move(plan),
                     std::move(corpus), begin, world};
    return run_ranks(world, ranks, [&](int rank) { return mesh_of(run.config, rank); },
                     [&](const Mesh& mesh, Engine* engine, const Device& d) {
        return train_rank(run, {mesh, engine, d.team, d.index, d.stream});
    });
}

// ---- the command line -----------------------------------------------------------------------------------------------
inline int run_command(int argc, const char* const* argv, const World& world) {
    Resume from;
    const auto recipe_of = [&](const std::string& resume, const std::string& out) {
        from = find_resume(resume, out);
        return from.run.empty() ? "" : from.run + "/config.toml";   // the run goes on as it was, but for flags
    };
    ParseResult parsed = parse(argc, argv, recipe_of, world.ranks);
    if (!parsed.text.empty()) return std::fputs(parsed.text.c_str(), stdout), 0;
    Config& c = parsed.config;
    if (c.explain)
        return with_type(c.dtype, [&](auto type) { return print_explanation<decltype(type)>(c, take_step); });
    if (c.command != "train") return other_command(c, world, take_gradients, take_step);
    require_ranks(c);
    if (from.run.empty()) from = find_resume(c.replay > 0 ? "--replay" : c.resume, c.out);   // by --config
    if (c.replay > 0 && from.run.empty())
        throw Usage("--replay ", c.replay, ": ", c.out.empty() ? "no run" : c.out + " has no run", "; give --out RUN");
    std::error_code absent;
    if (!from.run.empty() && !c.out.empty() && !std::filesystem::equivalent(c.out, from.run, absent))
        throw Usage("--out " + c.out + ": --resume goes on in " + from.run + "; leave --out out");
    if (!from.run.empty()) c.out = from.run;
    c.out = world.share(c.out.empty() ? new_run() : c.out);
    if (!c.compare.empty())
        return compare(argc, argv, c, world,
                       [&](int n, const char* const* line) { return run_command(n, line, world); });
    if (c.data.empty()) c.data = source_folder();
    std::optional<RunLock> lock;                       // a replay writes nothing, but what it reads must stay
    if (c.replay > 0 && world.first()) lock.emplace(c.out);
    if (c.replay > 0) from.checkpoint = find_replay(from.run, c.replay);
    return with_type(c.dtype, [&](auto type) { return train<decltype(type)>(c, from, world); });
}

// The error that is being caught, on one line; the exit code.
inline int report_error() {
    try {
        throw;
    } catch (const Usage& e) {
        std::fprintf(stderr, "train_gpt: %s\n", e.what());
        return 2;
    } catch (const std::filesystem::filesystem_error& e) {
        std::fprintf(stderr, "train_gpt: %s: %s\n", e.path1().c_str(), e.code().message().c_str());
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "train_gpt: not enough memory on the host; take a smaller --batch, --seq or input\n");
    } catch (const std::exception& e) {
        std::fprintf(stderr, "train_gpt: %s\n", e.what());
    }
    return 1;
}

}  // namespace baretrain

#ifndef BT_NO_MAIN
int main(int argc, char** argv) {
    using namespace baretrain;
    std::signal(SIGPIPE, SIG_IGN);                     // who closes our output ends no training
    std::signal(SIGXFSZ, SIG_IGN);                     // a limit on file sizes is a write error like any other
    const auto get = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
    std::string rendezvous;
    for (int i = 1; i + 1 < argc; ++i)
        if (argv[i] == std::string("--rendezvous")) rendezvous = argv[i + 1];
    return as_launched(get, rendezvous, [&](const World& world) {
        if (!world.first() && !std::freopen("/dev/null", "w", stdout)) return 1;   // one speaks; errors are everybody's
        const int status = run_command(argc, argv, world);
        const bool written = std::fflush(stdout) == 0 && !std::ferror(stdout);
        if (!written && argc >= 2 && !std::string(argv[1]).starts_with("--")) fail("standard output can't be written");
        return status == stopped ? 0 : status;
    }, report_error);
}
#endif
