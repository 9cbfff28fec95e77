// infer.h - commands on the ranks of a world, and those that read a model: generate, eval and dump, on ranks of tp.
// Copy with: commands/shared.h, comm/world.h, generate.h, trainer.h and what they name
// Each rank holds its part of the weights and nothing else, so it needs 1/tp of the memory; the first one speaks.
#pragma once
#include "commands/shared.h"
#include "comm/world.h"
#include "generate.h"
#include "trainer.h"
#include <filesystem>

namespace baretrain {

// Before anything else: a CUDA build has a device, and no axis has more ranks than an engine combines at once.
inline void require_ranks(const Config& c) {
    device_name(0);
    const Mesh mesh = mesh_of(c);
    for (Axis a : all_axes)
        if (mesh.size(a) > most_combined)
            throw Usage("--ranks ", c.ranks, ": ", mesh.size(a), " of them on the axis ", axis_names[int(a)],
                        ", where at most ", most_combined, " find room; take fewer, or split them over two axes");
}

// run(arena, rank), of each rank, returns the arena's peak: first once dry, to know its memory.
template <class Run> int run_planned(const Config& c, const World& world, Run run) {
    const auto mesh = [&](int rank) { return mesh_of(c, rank); };
    const int ranks = int(c.ranks);
    const size_t bytes = run(Arena(), Rank{mesh(0)});
    require_memory(bytes * size_t(world.neighbours(ranks)));
    return run_ranks(world, ranks, mesh, [&](const Mesh& mine, Engine* engine, const Device& d) {
        run(Arena(bytes), Rank{mine, engine, d.team, d.index, d.stream});
        return 0;
    });
}

// ---- generate -------------------------------------------------------------------------------------------------------
template <class T> int generate(const Config& c, const World& world) {
    const Tokenizer tokenizer = load_tokenizer(c.model);
    const long prompt = long(tokenizer.encode(c.prompt).size());
    if (tokenizer.vocab() > c.shape.vocab)
        fail(c.model, ": its tokenizer has ", tokenizer.vocab(), " ids, its config.json ", c.shape.vocab);
    if (prompt > c.shape.seq)
        fail("--prompt: " + std::to_string(prompt) + " tokens, but " + c.model + " sees at most " +
             std::to_string(c.shape.seq) + " at once; give a shorter one");
    show_text(c.prompt);
    const Sampling how{c.temperature, c.top_k, c.top_p, uint64_t(c.seed), 0};
    const long longest = std::min(c.shape.seq, std::max(64L, prompt + c.tokens));
    const int status = run_planned(c, world, [&](Arena arena, const Rank& rank) {
        Inference<T> model(arena, c.shape, longest, rank);
        Generator<T> generator(model.context, model.weights, longest);
        if (arena.dry()) generator.feed(std::vector<int>(size_t(longest)), 0);
        else {
            model.load(c.model);                       // all ranks pick the same ids, of the same logits
            sample(generator, tokenizer, c.prompt, c.tokens, how, [&](const std::string& s) {
                if (rank.first()) show_text(s);
            });
        }
        return arena.peak();
    });
    show_text("\n");
    return status;
}

// ---- eval -----------------------------------------------------------------------------------------------------------
// Every token of the data but the first of each stream is a target once: windows of seq tokens, the last one shorter.
template <class T> int eval(Config c, const World& world) {
    const Tokenizer tokenizer = load_tokenizer(c.tokenizer, c.shape.vocab);
    set_vocab(c, tokenizer.vocab());
    const Corpus corpus = read_corpus(c.data, "0", tokenizer, 1, default_team());
    return run_planned(c, world, [&](Arena arena, const Rank& rank) {
        Inference<T> model(arena, c.shape, c.seq, rank);
        RowBuffers buffers(arena, c.shape, c.batch * c.seq, c.seq);
        const auto sum = [&](const Rows& rows) { return evaluate_rows(model.context, model.weights, buffers, rows); };
        if (arena.dry()) {
            Rows full;
            for (long b = 0; b < c.batch; ++b) full.append(std::vector<int>(size_t(c.seq) + 1));
            sum(full);
            return arena.peak();
        }
        model.load(c.model);
        LossSum loss;
        size_t bytes = 0;
        Progress progress{"evaluating", 0, rank.first()};
        for (const auto& [tokens, weight] : corpus.train)
            for (long at = 0, last = tokens.size() - 1; at < last; at += c.batch * c.seq) {
                Rows rows;
                for (long w = at; w < std::min(last, at + c.batch * c.seq); w += c.seq)
                    rows.append(tokens.read(w, std::min(last, w + c.seq) + 1));
                loss.add(-sum(rows), rows.trained());
                for (int id : rows.targets) bytes += tokenizer.bytes_of(id).size();
                progress(at, last);
            }
        if (!rank.first()) return arena.peak();
        const double mean = loss.mean();
        std::printf("loss          %.6f\nperplexity    %.4f\ntokens        %ld\n", mean, std::exp(mean), loss.count);
        if (tokenizer.has_text())
            std::printf("bits per byte %.6f\nbytes         %zu\n", loss.total / std::log(2.0) / double(bytes), bytes);
        return arena.peak();
    });
}

// ---- dump -----------------------------------------------------------------------------------------------------------
// One batch as the training step takes it: each list a document, all in one micro-batch. What is gathered, all ranks
// fetch together: loss and logits, and the gradient of each tensor, whole.
template <class T, class Gradients> int dump(Config c, const World& world, Gradients gradients) {
    using R = Real<T>;
    const Rows rows = read_id_lists(c.ids, c.shape.vocab, c.shape.seq);
    std::error_code absent;
    const std::filesystem::path output = c.output, folder = output.has_parent_path() ? output.parent_path() : ".";
    if (std::filesystem::equivalent(output, c.ids, absent) || std::filesystem::equivalent(folder, c.model, absent))
        fail("-o ", c.output, ": would be written over what it is made from; give another name");
    const long N = long(rows.tokens.size()), V = c.shape.vocab;
    c.batch = 1, c.seq = c.tokens_per_step = N;
    return run_planned(c, world, [&](Arena arena, const Rank& rank) {
        const Params params = params_of(c, rank.mesh);
        Trainer<T> t(c, params, arena, rank);
        if (!arena.dry()) t.optimizer.load(t.device, c.model);
        gradients(t, {rows}, N);
        const std::vector<double> logprobs = logprobs_of(t);
        const R loss = R(-std::accumulate(logprobs.begin(), logprobs.end(), 0.0) / double(N));
        std::vector<TensorSource> tensors = whole_tensors<R>(t, [&](const Param& p) {
            return t.grads.owned(p.unit).col_range(p.offset, p.count());
        });
        tensors.push_back({"loss", safetensors_dtype<R>(), {}, [&](void* to) {
            if (to) std::memcpy(to, &loss, sizeof loss);
        }});
        tensors.push_back({"logits", safetensors_dtype<R>(), {N, V}, [&](void* to) {
            auto ends = t.weights.gather(ends_unit);
            for_each_logits<T>(t.context, ends->head, t.final, [&](long first, long, View<R> logits) {
                gather_logits<T>(t.context, logits, to ? static_cast<R*>(to) + first * V : nullptr);
            });
            t.weights.release(ends);
        }});
        if (!rank.first() || arena.dry()) return join_fetches(tensors), arena.peak();
        replace_file(c.output, [&](const std::string& path) { write_safetensors(path, tensors, {}); });
        std::printf("%s: loss %.6f, logits of %ld rows, %zu gradients\n", c.output.c_str(), double(loss), N,
                    tensors.size() - 2);
        return arena.peak();
    });
}

}  // namespace baretrain
