// tp_test.cu - tensor and sequence parallelism: the same run in every layout, with the bytes and the memory of the
// closed forms; and known faults of others.
#include "test/host.h"
#include "test/layouts.h"
#include "test/parsed.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

// Of each tp, with sp and without: alone, and with every way to share the state between up to 8 ranks.
std::vector<Layout> split_layouts() {
    std::vector<Layout> all;
    for (const long t : {1, 2, 4})
        for (const bool sp : {false, true}) {
            const auto add = [&](Layout l) { l.tp = t, l.sp = sp, all.push_back(l); };
            add({.ranks = t}), add({.ranks = 2 * t});
            add({.shard = "zero1", .ranks = 2 * t}), add({.shard = "fsdp", .ranks = 2 * t});
            if (t == 4) continue;
            add({.shard = "zero1", .ranks = 8}), add({.shard = "fsdp", .ranks = 8 / t});
            add({.shard = "fsdp", .ranks = 8, .replicate = 2}), add({.shard = "zero2", .ranks = 3 * t});
        }
    return all;
}

// All that this rank owns becomes number(tensor, element of the whole).
template <class Store, class Number> void fill(Trainer<double>& t, Store& store, Number number) {
    const auto parts = owned_parts<double>(t.params, t.weights, store);
    for (const Param& p : t.params.rows()) {
        const Part<double>& part = parts[size_t(p.unit)];
        const Range r = p.range().both(part.range);
        p.for_each_run({r.first - p.offset, r.count}, [&](long mine, long at, long n) {
            double* const to = part.data.data + (p.offset + mine - part.range.first);
            for (long i = 0; i < n; ++i) to[i] = number(p, at + i);
        });
    }
}
double some_number(const Param& p, long at) {          // so that logits are about 1
    const double x = noise<double>(1, int(std::hash<std::string>()(p.name) % 10000 + 10000 * uint64_t(at % 1000)))[0];
    return p.mean + (p.whole_rows > 1 ? x / 2 : x / 4);
}
Tensors tensors_of(const ModelShape& shape) {
    Tensors all;
    const Params whole(shape);
    for (const Param& p : whole.rows())
        for (long i = 0; i < p.count(); ++i) all[p.name].push_back(some_number(p, i));
    return all;
}

// A checkpoint of such a model, saved by the ranks of a layout; returns its folder.
template <class Number> std::string saved(const ModelShape& shape, const Layout& l, const TempFolder& temp, Number number) {
    std::string folder;
    on_ranks<double>(config_of(shape, l, "fp64"), [&](Trainer<double>& t) {
        fill(t, t.weights, number);
        t.optimizer.publish_all(t.device);
        Corpus corpus;
        corpus.hash = "0123";
        const std::string mine = save(t, corpus, Tokenizer::bytes(), temp / concat("saved", l.tp));
        if (t.comm.first()) folder = mine;
    });
    return folder;
}
// look(trainer, rank) of each rank of a layout that has read the folder.
template <class Look> void loaded(const std::string& folder, const ModelShape& shape, const Layout& l, Look look) {
    on_ranks<double>(config_of(shape, l, "fp64"), [&](Trainer<double>& t) {
        CAPTURE(l.text());
        t.optimizer.load(t.device, folder);
        look(t, t.comm.mesh.at(Axis::tp));
    });
}

std::string refusal(const std::string& words) {
    std::istringstream in("train_gpt " + words);
    const std::vector<std::string> all{std::istream_iterator<std::string>(in), {}};
    std::vector<const char*> argv;
    for (const std::string& w : all) argv.push_back(w.c_str());
    try {
        parse(int(argv.size()), argv.data());
    } catch (const Usage& e) { return e.what(); }
    return "accepted";
}

// Bytes for activations that a rank sends in a step, as planned.
long activations_sent(const ModelShape& shape, long t, bool sp, const std::string& recompute) {
    Config c = Model<float>::config_of(shape, {1024, 4, 1}, recompute);
    c.dtype = "bf16", c.ranks = c.tp = t, c.sp = sp;
    long bytes = 0;
    for (const auto& [key, row] : plan_of<bf16>(c, params_of(c)).ledger)
        if (key.axis == Axis::tp && key.what == "activations") bytes += row.bytes;
    return bytes;
}

}  // namespace

TEST_SUITE("tp") {

TEST_CASE("in bf16 each block sends 16 (t-1)/t N C bytes, with --sp too; 20 where it gathers again, 24 all again") {
    ModelShape shape = preset("gpt2-124m");
    shape.heads = shape.kv_heads = 16, shape.head_dim = 48;
    const long N = 4 * 1024, C = 768;
    for (const long t : {2, 4, 8})
        for (const bool sp : {false, true})
            for (const auto& [recompute, factor] : {std::pair("none", 16L), {"selective", sp ? 20L : 16L}, {"full", 24L}}) {
                CAPTURE(t); CAPTURE(sp); CAPTURE(recompute);
                ModelShape more = shape;
                ++more.layers;
                const long some = activations_sent(shape, t, sp, recompute), all = activations_sent(more, t, sp, recompute);
                CHECK(all - some == factor * (t - 1) * N * C / t);
                CHECK(some == (12 * factor + 8) * (t - 1) * N * C / t);   // and the two ends half as much as a block
            }
}

TEST_CASE("weights begin as those of one rank, each element of every tensor") {
    for (const std::string& family : model_families)
        for (const bool tied : {true, false}) {
            const ModelShape shape = split_shape(family, tied);
            const Tensors one = run_layout<double>(shape, {}, 0).weights, rounded = run_layout<bf16>(shape, {}, 0).weights;
            for (const Layout& l : std::vector<Layout>{{.ranks = 2, .tp = 2}, {.ranks = 4, .tp = 4, .sp = true},
                                                       {.shard = "zero1", .ranks = 4, .tp = 2},
                                                       {.shard = "fsdp", .ranks = 6, .tp = 2}}) {
                CAPTURE(family); CAPTURE(tied); CAPTURE(l.text());
                CHECK((run_layout<double>(shape, l, 0).weights == one));
                CHECK((run_layout<bf16>(shape, l, 0).weights == rounded));
            }
        }
}

TEST_CASE("in fp32 the first step is that of one rank; the same layout gives the same bits, whatever is made again") {
    check_fp32({.shard = "zero1", .ranks = 4, .micros = 3, .tp = 2, .sp = true});
    check_fp32({.shard = "fsdp", .ranks = 8, .tp = 4});
    for (const bool sp : {false, true}) {
        Layout l{.shard = "fsdp", .ranks = 4, .micros = 3, .tp = 2, .sp = sp};
        const ModelShape shape = split_shape("qwen3", false);
        const Taken first = run_layout<float>(shape, l, 3);
        for (const char* recompute : {"none", "selective", "full"}) {
            l.recompute = recompute;
            check_same_bits(first, run_layout<float>(shape, l, 3));
        }
    }
}

TEST_CASE("mixed precision sends activations in bf16 and numbers of the head in fp32, and holds what it should") {
    const ModelShape shape = split_shape("qwen2", true);
    for (const bool sp : {false, true})
        for (const char* recompute : {"none", "selective", "full"}) {
            const Layout l{.shard = "zero1", .ranks = 8, .micros = 3, .recompute = recompute, .tp = 4, .sp = sp};
            CAPTURE(l.text());
            const Taken one = run_layout<bf16>(shape, {}, 8), t = run_layout<bf16>(shape, l, 8);
            for (const StepTaken& step : t.steps) CHECK(sent(step.ledger) == closed_ledger(shape, l, 2, 4));
            check_memory(closed_memory(shape, l, 2, 4), t.parts);
            CHECK(t.faults == std::vector<std::string>());
            for (size_t i = 0; i < t.steps.size(); ++i)
                CHECK(std::fabs(t.steps[i].result.loss - one.steps[i].result.loss) < 0.01);
        }
}

TEST_CASE("C16: gate and up, and q, k and v, are cut each by itself: saved by four ranks, each is in order on 4, 2 and 1") {
    for (const std::string family : {"llama", "gpt2"}) {
        const TempFolder temp;
        const ModelShape shape = split_shape(family, true);
        const long A = shape.heads * shape.head_dim, K = shape.kv_heads * shape.head_dim, F = shape.ffn;
        const auto first = [&](const std::string& name) {
            const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
            return is("up_proj") ? 100 : is("k_proj") ? A : is("v_proj") ? A + K : 0;
        };
        const auto number = [&](const Param& p, long at) {   // of the output
            return double(first(p.name) + (p.transposed ? at % p.whole_cols : at / p.whole_cols));
        };
        const std::string folder = saved(shape, {.ranks = 4, .tp = 4}, temp, number);
        const auto file = parsed(fs::path(folder) / "model.safetensors");
        const Params whole(shape);
        for (const Param& p : whole.rows()) {
            CAPTURE(p.name);
            const Numbers in_file = file.at(p.name).numbers();
            long wrong = 0;
            for (long i = 0; i < p.count(); ++i) wrong += in_file[size_t(i)] != number(p, i);
            CHECK(wrong == 0);
        }
        for (const long t : {1, 2, 4})
            loaded(folder, shape, {.ranks = t, .tp = t}, [&](Trainer<double>& trainer, long rank) {
                auto w = trainer.weights.gather(block_unit(1));
                long wrong = 0;
                const auto check = [&](View<const double> v, bool transposed, std::vector<std::pair<long, long>> stacked) {
                    long output = 0;                   // of this rank's
                    for (const auto& [begin, count] : stacked)
                        for (long i = 0; i < count / t; ++i, ++output)
                            wrong += (transposed ? v.row(1)[output] : v.row(output)[1]) !=
                                     double(begin + rank * (count / t) + i);
                    CHECK(output == (transposed ? v.cols : v.rows));
                };
                check(w->qkv.w, w->qkv.transposed, {{0, A}, {A, K}, {A + K, K}});
                if (shape.gated()) check(w->up.w, false, {{0, F}, {100, F}});
                CHECK(wrong == 0);
                trainer.weights.release(w);
            });
    }
}

TEST_CASE("D1: the norm is that of all parts on all ranks, and every rank clips by it") {
    const ModelShape shape = split_shape("qwen3", false);
    double squares = 0;
    for (const auto& [name, values] : tensors_of(shape))
        for (double v : values) squares += v * v;
    for (const Layout& l : split_layouts()) {
        CAPTURE(l.text());
        on_ranks<double>(config_of(shape, l, "fp64"), [&](Trainer<double>& t) {
            fill(t, t.grads, some_number);
            square_gradients(t);
            StepState s{};
            s.max_norm = 0.5, s.trained = 1;
            copy_bytes(t.device, t.state.data, &s, sizeof s);
            decide(t.device, t.state, t.norm);
            CHECK(std::fabs(t.state.data->norm / std::sqrt(squares) - 1) < 1e-12);
            CHECK(std::fabs(t.state.data->scale * std::sqrt(squares) / 0.5 - 1) < 1e-12);
        });
    }
}

TEST_CASE("D2: parts with squares of 16 and what all ranks have, with 9, have a norm of 5, in every layout") {
    for (const std::string family : {"gpt2", "qwen3"})
        for (const Layout& l : split_layouts()) {
            CAPTURE(family); CAPTURE(l.text());
            const ModelShape shape = split_shape(family, true);
            on_ranks<double>(config_of(shape, l, "fp64"), [&](Trainer<double>& t) {
                fill(t, t.grads, [&](const Param& p, long at) {
                    const bool split = p.place == Place::down_w && p.unit == 2, whole = p.place == Place::norm_w;
                    const long count = p.whole_rows * p.whole_cols, ones = split ? 16 : whole ? 9 : 0;
                    return ones && at % (count / ones) == 0 && at / (count / ones) < ones ? 1.0 : 0.0;
                });
                square_gradients(t);
                CHECK(*t.norm.data == 25);
            });
        }
}

TEST_CASE("D4: what every rank has whole has the same gradient on all, with --sp too: that of one rank") {
    for (const std::string family : {"qwen3", "gpt2"}) {
        const ModelShape shape = split_shape(family, false);
        const std::vector<Rows> micros = micros_of({.micros = 3}, 0, 0, shape.vocab);
        const auto grads_of = [&](const Layout& l) {
            std::vector<Tensors> ranks(size_t(l.tp));
            on_ranks<double>(config_of(shape, l, "fp64"), [&](Trainer<double>& t) {
                gradients(t, micros, trained(micros));
                for (const Param& p : t.params.rows()) {
                    const double* const g = t.grads.owned(p.unit).data + p.offset;
                    if (!p.split()) ranks[size_t(t.comm.mesh.rank)][p.name] = Numbers(g, g + p.count());
                }
            });
            return ranks;
        };
        const Tensors one = grads_of({.micros = 3})[0];
        CHECK(one.size() == (family == "gpt2" ? 3 + 3 * 6 : 1 + 3 * 4));   // norms, biases behind sums, positions
        for (const long t : {2, 4})
            for (const bool sp : {false, true}) {
                const auto ranks = grads_of({.ranks = t, .micros = 3, .tp = t, .sp = sp});
                for (const Tensors& grads : ranks) {
                    CHECK((grads == ranks[0]));
                    Apart apart;
                    compare(apart, one, grads, "");
                    CAPTURE(apart.where);
                    CHECK(apart.worst < 1e-11);
                }
            }
    }
}

TEST_CASE("D6: key-value heads that the ranks of tp don't divide are refused, with what would do, before all is read") {
    const TempFolder temp;
    for (const long kv : {1, 2, 3})
        for (const long t : {2, 4}) {
            ModelShape shape = shape_of("llama", true);
            shape.heads = 12, shape.kv_heads = kv, shape.ffn = 24, shape.vocab = 257;
            const std::string folder = temp / concat("kv", kv);
            put(folder + "/config.json", to_hf_config(shape, "float32"));   // there are no weights
            const std::string sizes = concat("--heads 12 --dim 48 --ffn 24 --kv-heads ", kv), tp = concat(" --tp ", t);
            const std::string due = concat("--tp ", t, ": does not divide 12 heads, ", kv, " key-value heads and 24 hidden ",
                                           "units, or leaves a rank without one of 257 ids; these do: ");
            for (const std::string& words : {concat(sizes, " --ranks 4 --data nowhere.txt", tp), concat("plan ", sizes, " --ranks 4", tp),
                                             concat("generate --model ", folder, tp), concat("eval --data nowhere.txt --model ", folder, tp)}) {
                CAPTURE(words);
                if (kv % t == 0) CHECK(refusal(words) == "accepted");
                else CHECK(refusal(words) == due + (kv == 1 ? "1" : kv == 2 ? "1, 2" : "1, 3"));
            }
        }
}

TEST_CASE("D7: of 101 ids the last rank has fewer: padding takes no probability, and files have exactly 101 rows") {
    for (const bool tied : {true, false})
        for (const std::string family : {"gpt2", "llama"}) {
            const TempFolder temp;
            ModelShape shape = split_shape(family, tied);
            shape.vocab = 101;
            const Reference truth{shape, tensors_of(shape)};
            Rows m = window_of(0, 4, 101);
            m.tokens[0] = m.targets[1] = 100;
            double loss = 0;
            const auto logits = truth.logits(m.tokens);
            for (size_t i = 0; i < m.tokens.size(); ++i)
                if (m.targets[i] != ignored) loss += Reference::logprob(logits[i], m.targets[i]);
            for (const long t : {2, 4}) {
                const std::string folder = saved(shape, {.ranks = t, .tp = t}, temp, some_number);
                for (const auto& [name, tensor] : parsed(fs::path(folder) / "model.safetensors")) {
                    CAPTURE(name);
                    CHECK(tensor.numbers() == truth.w.at(name));
                    if (name.find("wte") != std::string::npos || name.find("embed_tokens") != std::string::npos ||
                        name.find("lm_head") != std::string::npos)
                        CHECK(tensor.shape == std::vector<long>{101, shape.dim});
                }
                for (const long next : {1, 2, 4})
                    loaded(folder, shape, {.ranks = next, .tp = next, .sp = next == 4}, [&](Trainer<double>& trainer, long) {
                        const double got = evaluate_rows(trainer.context, trainer.weights, trainer.rows, m);
                        CHECK(std::fabs(got / loss - 1) < 1e-12);
                    });
            }
        }
}

TEST_CASE("D8: after the start and after reading a folder each rank has its ids of the head alone, and memory as planned") {
    for (const bool tied : {true, false})
        for (const Layout& l : std::vector<Layout>{{.ranks = 2, .tp = 2}, {.ranks = 4, .tp = 4, .sp = true},
                                                   {.shard = "fsdp", .ranks = 4, .tp = 2}}) {
            CAPTURE(tied); CAPTURE(l.text());
            const TempFolder temp;
            ModelShape shape = split_shape("llama", tied);
            shape.vocab = 16;
            const std::string folder = saved(shape, {}, temp, some_number);
            const Tensors all = tensors_of(shape);
            const auto check = [&](Trainer<double>& t, bool read) {
                auto ends = t.weights.gather(ends_unit);
                for (const View<double> v : {ends->head.w, ends->wte}) CHECK(v.rows == 16 / l.tp);
                CHECK((ends->head.w.data == ends->wte.data) == tied);
                CHECK(ends->head.first == t.comm.mesh.at(Axis::tp) * 16 / l.tp);
                const Numbers& head = all.at(tied ? "model.embed_tokens.weight" : "lm_head.weight");
                const double* const mine = head.data() + ends->head.first * shape.dim;
                CHECK(std::equal(mine, mine + ends->head.w.count(), ends->head.w.data) == read);
                t.weights.release(ends);
                check_memory(closed_memory(shape, l, 8, 8), t.arena.parts());
            };
            on_ranks<double>(config_of(shape, l, "fp64"), [&](Trainer<double>& t) {
                check(t, false);
                t.optimizer.load(t.device, folder);
                check(t, true);
            });
        }
}

TEST_CASE("E7: a folder read by 1, 2 and 4 ranks gives the same logits, those of plain loops") {
    const std::vector<int> tokens{7, 0, 32, 16, 9};
    for (const std::string& family : model_families)
        for (const bool tied : {true, false}) {
            CAPTURE(family); CAPTURE(tied);
            const TempFolder temp;
            const ModelShape shape = split_shape(family, tied);
            const std::string folder = saved(shape, {}, temp, some_number);
            const auto truth = Reference{shape, tensors_of(shape)}.logits(tokens);
            for (const long t : {1, 2, 4})
                loaded(folder, shape, {.ranks = t, .tp = t, .sp = t == 4}, [&](Trainer<double>& trainer, long) {
                    Generator<double> g(trainer.context, trainer.weights, window_length);
                    for (size_t i = 0; i < tokens.size(); ++i)
                        CHECK(relative_error(truth[i], g.feed({tokens[i]}, long(i))) < 1e-12);
                });
        }
}

TEST_CASE("a wish to stop of any one rank is known to all of them before the step is over") {
    const Layout l{.ranks = 4, .tp = 2};
    for (long wishing = 0; wishing < 4; ++wishing) {
        std::atomic<long> stopping = 0;
        on_ranks<double>(config_of(split_shape("llama", true), l, "fp64"), [&](Trainer<double>& t) {
            t.stop = t.comm.mesh.rank == wishing;
            train_step(t, micros_of(l, 0, t.comm.mesh.dp_rank()));
            stopping += t.stop;
        });
        CHECK(stopping == 4);
    }
}

TEST_CASE("every part of every matrix on a rank of its own, its rows or all: the run is that of one rank") {
    check_matrix(split_layouts(), {model_families, {"none", "selective", "full"}, split_shape});
}

}
