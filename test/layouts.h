// layouts.h - what a layout must send and hold, as closed forms written by hand; and the matrix of all layouts.
// Copy with: test/ranks.h and what it names
#pragma once
#include "test/ranks.h"

namespace baretrain::test {

inline long padded(long n, long to) { return (n + to - 1) / to * to; }

// The letters of the formulas: t ranks have a part of each matrix and all N rows, n of them in the residual stream; S
// ranks share, R hold the same; L blocks of B elements and the ends of E on each rank. How padding enters: each tensor
// begins at a multiple of 64 elements, but for stacked ones; a unit is as long as a multiple of 64 for each of its S
// shards. A, K, F, V: of this rank. seen_E, seen_B: elements whose gradients are sums over the t, as each rank saw its
// heads or its rows.
struct Letters {
    long t, S, R, M, N, n, L, C, A, K, F, up, V, E, B, seen_E, seen_B;
    Letters(const ModelShape& s, const Layout& l)
        : t(l.tp), S(l.shard == "none" ? 1 : l.dp() / l.replicate), R(l.dp() / S), M(l.micros),
          N(batch_of(l) * window_length), n(l.sp ? N / t : N), L(s.layers), C(s.dim), A(s.heads / t * s.head_dim),
          K(s.kv_heads / t * s.head_dim), F(s.ffn / t), up(s.gated() ? 2 * F : F), V((s.vocab + t - 1) / t) {
        const auto room = [](std::initializer_list<long> tensors) {
            long all = 0;
            for (long elements : tensors) all += padded(elements, 64);
            return all;
        };
        const long norm = room({C, s.layernorm() ? C : 0}), of_heads = s.qk_norm() ? room({s.head_dim, s.head_dim}) : 0;
        E = norm + room({V * C, s.tied ? 0 : V * C, s.learned_positions() ? s.seq * C : 0});
        B = of_heads + 2 * norm + room({(A + 2 * K) * C, A * C, up * C, F * C});
        if (s.qkv_bias()) B += room({A + 2 * K});
        if (s.out_bias()) B += room({C});
        if (s.ffn_bias()) B += room({up, C});
        E = padded(E, 64 * S), B = padded(B, 64 * S);
        seen_E = l.sp ? norm : 0, seen_B = of_heads + (l.sp ? 2 * norm : 0);
    }
};

using Sent = std::map<std::string, std::pair<long, long>>;   // row of the ledger: calls, bytes
inline Sent sent(const Ledger& ledger) {
    Sent all;
    for (const auto& [key, row] : ledger) all[key.text()] = {row.calls, row.bytes};
    return all;
}

// Of one step of M micro-batches; a weight has w bytes on the wire, a gradient g. With tp these are their own: w those
// of an activation, g those of a number of the head.
inline Sent closed_ledger(const ModelShape& s, const Layout& l, long w, long g) {
    const Letters z(s, l);
    const auto [S, R, M, L, t] = std::tuple(z.S, z.R, z.M, z.L, z.t);
    const auto sum = [](long elements, long n, long size) { return 2 * (n - 1) * (padded(elements, n) / n) * size; };
    Sent all;
    if (S > 1) {
        const bool whole = l.shard == "zero1", fsdp = l.shard == "fsdp";
        const long sharded = (S - 1) * (z.E + L * z.B) / S, fetched = fsdp && l.reshard ? 2 * L - 1 : L;
        all["dp_shard.scatter.gradients"] = {(1 + L) * (whole ? 1 : M), sharded * g * (whole ? 1 : M)};
        all["dp_shard.gather.weights"] = {(1 + fetched) * (fsdp ? M : 1),
                                          (S - 1) * (z.E + fetched * z.B) / S * w * (fsdp ? M : 1)};
        all["dp_shard.sum.norm"] = {1, sum(1, S, 8)};
        all["dp_shard.sum.control"] = all["dp_shard.sum.loss"] = {1, sum(2, S, 8)};
    }
    if (R > 1) {
        all["dp_replicate.sum.gradients"] = {1 + L, sum(z.E / S, R, g) + L * sum(z.B / S, R, g)};
        all["dp_replicate.sum.control"] = all["dp_replicate.sum.loss"] = {1, sum(2, R, 8)};
    }
    if (t == 1) return all;
    // Into and out of two layers a block and one of the ends, forward and backward; again where blocks are rebuilt.
    const bool full = l.recompute == "full", rebuilt = l.recompute != "none";
    const long in = 2 + 4 * L + (rebuilt ? 2 * L : 0), out = 2 + 4 * L + (full ? 2 * L : 0);
    const long part = (t - 1) * z.N * z.C / t;
    if (l.sp) all["tp.gather.activations"] = {M * in, M * in * part * w};
    if (l.sp) all["tp.scatter.activations"] = {M * out, M * out * part * w};
    if (!l.sp) all["tp.sum.activations"] = {M * out, M * out * sum(z.N * z.C, t, w)};
    for (long first = 0; first < z.N; first += 256) {
        const long numbers = sum(std::min(256L, z.N - first), t, g);
        auto &max = all["tp.max.vocabulary"], &sums = all["tp.sum.vocabulary"];
        max.first += M, max.second += M * numbers, sums.first += 2 * M, sums.second += 2 * M * numbers;
    }
    const long ends = std::min(z.seen_E, z.E / S), block = std::min(z.seen_B, z.B / S);   // of what rank 0 owns
    if (ends + block) all["tp.sum.norms"] = {(ends > 0) + L * (block > 0), sum(ends, t, g) + L * sum(block, t, g)};
    all["tp.sum.norm"] = {1, sum(1, t, 8)};
    all["tp.max.control"] = all["tp.max.loss"] = {1, sum(2, t, 8)};
    return all;
}

// Bytes of a rank by class; every view begins at a multiple of 256 bytes. T: weights; G: gradients; moments, and a
// master where weights are narrower, are G too. wire: of an element on the wire, 0: no other than its own.
inline std::map<std::string, long> closed_memory(const ModelShape& s, const Layout& l, long T, long G,
                                                 long gather_wire = 0, long reduce_wire = 0) {
    const Letters z(s, l);
    const auto [S, R, L, E, B] = std::tuple(z.S, z.R, z.L, z.E, z.B);
    const auto bytes = [](long elements, long size) { return padded(elements * size, 256); };
    const auto units = [&, L = L, E = E, B = B](long shards, long size) {
        return bytes(E / shards, size) + L * bytes(B / shards, size);
    };
    const bool fsdp = l.shard == "fsdp", scattered = fsdp || l.shard == "zero2";
    const long blocks = l.reshard ? std::min(1 + l.prefetch, L) : L;
    std::map<std::string, long> all;
    all["weights"] = fsdp ? units(S, T) + bytes(E, T) + blocks * bytes(B, T) : units(1, T);
    if (fsdp && S > 1) all["weights"] += bytes(E, gather_wire) + blocks * bytes(B, gather_wire);
    all["gradients"] = scattered ? units(S, G) + bytes(E, G) + std::min(2L, L) * bytes(B, G) : units(1, G);
    if (S > 1) all["gradients"] += bytes(std::max(E, B), reduce_wire);
    if (R > 1) all["gradients"] += bytes(std::max(E, B) / S, reduce_wire);
    all["optimizer"] = (T < G ? 3 : 2) * units(S, G);

    // What --recompute selective makes again has all rows, also with sp; of the rest the residual stream has n.
    const auto [N, n, C, A, K] = std::tuple(z.N, z.n, z.C, z.A, z.K);
    const long H = s.heads / z.t, H_kv = s.kv_heads / z.t;
    const long cheap = 2 * bytes(N * C, T) + bytes(N * z.F, T);
    long dear = bytes(N * (A + 2 * K), T) + bytes(N * A, T) + bytes(n * C, T) + bytes(N * z.up, T) +
                2 * bytes(n * 2, G) + bytes(N * H, G);
    if (s.qk_norm()) dear += bytes(N * A, T) + bytes(N * K, T) + bytes(N * 2 * H, G) + bytes(N * 2 * H_kv, G);
    const long stream = bytes(n * C, T), last = bytes(n * 2, G) + bytes(N * C, T);
    all["activations"] = (1 + L) * stream + last + cheap * (l.recompute == "none" ? L : 1) +
                         dear * (l.recompute == "full" ? 1 : L);
    return all;
}
inline std::map<std::string, long> held(const std::vector<ArenaPart>& parts) {
    std::map<std::string, long> all;
    for (const ArenaPart& part : parts) all[part.name] += long(part.bytes);
    return all;
}
inline void check_memory(const std::map<std::string, long>& closed, const std::vector<ArenaPart>& parts) {
    const auto all = held(parts);
    for (const auto& [name, bytes] : closed) {
        CAPTURE(name);
        CHECK(all.at(name) == bytes);
    }
}

// All that one cell shows.
inline void check_cell(const ModelShape& shape, const Layout& l, const Taken& one, long steps) {
    CAPTURE(shape.family); CAPTURE(shape.tied); CAPTURE(l.text());
    const Taken t = run_layout<double>(shape, l, steps);
    const Apart a = apart(one, t);
    CAPTURE(a.where);
    CHECK(a.worst < 1e-11);
    CHECK(t.faults == std::vector<std::string>());
    const Sent closed = closed_ledger(shape, l, 8, 8);
    for (const StepTaken& step : t.steps) CHECK(sent(step.ledger) == closed);
    CHECK(sent(t.plan.ledger) == closed);
    const Config c = config_of(shape, l, "fp64");
    std::map<std::string, long> bytes, formula;        // and of traffic.h
    for (const auto& [row, calls_and_bytes] : closed) bytes[row] = calls_and_bytes.second;
    for (const auto& [key, row] : sent_by_formula<double>(c, params_of(c))) formula[key.text()] = row.bytes;
    CHECK(formula == bytes);
    check_memory(closed_memory(shape, l, 8, 8), t.parts);
    CHECK(held(t.parts) == held(t.plan.parts));
    CHECK(t.peak <= t.plan.peak);                      // an evaluation and a sample may need more
    CHECK(t.peak == t.plan.step);
}

struct Models {
    std::vector<std::string> families = {"gpt2", "llama"}, recompute = {"none", "full"};
    ModelShape (*shape)(const std::string& family, bool tied) = small_shape;
    long count() const { return long(2 * families.size() * recompute.size()); }
};

// Every layout of `ways`, with each number of micro-batches, family, tied or not, and what is recomputed; or of each
// layout one of those models, another one each time. BT_MATRIX=all: the former.
inline void check_matrix(const std::vector<Layout>& ways, const Models& models = {}) {
    const bool all = std::getenv("BT_MATRIX") != nullptr;
    const long steps = 8;
    const auto begin = Clock::now();
    long cells = 0, run = 0, layout = 0;
    std::map<std::pair<std::string, bool>, Taken> ones;
    for (Layout l : ways)
        for (long micros : {1, 3}) {
            ++layout;
            long model = 0;
            for (const std::string& family : models.families)
                for (bool tied : {true, false})
                    for (const std::string& recompute : models.recompute) {
                        ++cells;
                        if (!all && (7 * layout + layout / models.count()) % models.count() != model++) continue;
                        ++run;
                        const ModelShape shape = models.shape(family, tied);
                        Taken& one = ones[{family, tied}];
                        if (one.steps.empty()) one = run_layout<double>(shape, {}, steps);
                        l.micros = micros, l.recompute = recompute;
                        check_cell(shape, l, one, steps);
                    }
        }
    MESSAGE("matrix: ", run, " of ", cells, " cells, ", steps, " steps each, in ", seconds_since(begin), " s",
            std::string(all ? "" : "; the others: make test-long PART=matrix"));
}

inline std::vector<Layout> with_ranks(const Layout& l, std::initializer_list<long> ranks = {1, 2, 3, 4}) {
    std::vector<Layout> all;
    for (long n : ranks) all.push_back(l), all.back().ranks = n;
    return all;
}
inline std::vector<Layout> operator+(std::vector<Layout> a, const std::vector<Layout>& b) {
    return a.insert(a.end(), b.begin(), b.end()), a;
}

inline void check_same_bits(const Taken& a, const Taken& b) {
    for (size_t s = 0; s < a.steps.size(); ++s) {
        CHECK(a.steps[s].result.loss == b.steps[s].result.loss);
        CHECK(a.steps[s].result.grad_norm == b.steps[s].result.grad_norm);
        CHECK(a.steps[s].grads == b.steps[s].grads);
    }
    CHECK(a.weights == b.weights);
}

// In fp32 the first step agrees to 1e-5: the type does not matter.
inline void check_fp32(const Layout& l) {
    for (const char* family : {"gpt2", "llama"}) {
        const ModelShape shape = l.tp > 1 ? split_shape(family, false) : small_shape(family, false);
        const Taken one = run_layout<float>(shape, {}, 1), t = run_layout<float>(shape, l, 1);
        const Apart a = apart(one, t);
        CAPTURE(l.text()); CAPTURE(a.where);
        CHECK(a.worst < 1e-5);
        CHECK(t.faults == std::vector<std::string>());
    }
}

// Half the bytes where they are narrower, the memory of the wires, and nearly the same numbers.
inline void check_narrow(Layout l, const std::string& gather, const std::string& reduce) {
    const ModelShape shape = small_shape("llama", true);
    const Taken one = run_layout<float>(shape, {}, 8);
    l.gather = gather, l.reduce = reduce;
    CAPTURE(l.text());
    const Taken t = run_layout<float>(shape, l, 8);
    const long w = gather == "bf16" ? 2 : 0, g = reduce == "bf16" ? 2 : 0;
    for (const StepTaken& step : t.steps) CHECK(sent(step.ledger) == closed_ledger(shape, l, w ? w : 4, g ? g : 4));
    CHECK(sent(t.plan.ledger) == sent(t.steps[0].ledger));
    check_memory(closed_memory(shape, l, 4, 4, w, g), t.parts);
    CHECK(held(t.parts) == held(t.plan.parts));
    const Apart a = apart(one, t);
    CAPTURE(a.where);
    CHECK(a.worst > 1e-5);                             // it is rounded
    for (size_t s = 0; s < t.steps.size(); ++s)
        CHECK(std::fabs(t.steps[s].result.loss - one.steps[s].result.loss) < 0.01);
}

// ---- who does what when, by a virtual clock ---------------------------------------------------------------------------
inline Events trace_of(const Config& c, const TraceClock& clock) {   // a step's, of rank 0
    Events events;
    on_ranks<float>(c, [&](Trainer<float>& t) {
        Trace trace(clock, [&] { return t.arena.high(); }, t.comm.mesh.rank);
        trace.step(1);
        t.device.watch = &trace;
        Layout l{.shard = c.shard, .ranks = c.ranks, .replicate = c.replicate, .micros = t.micro_batches()};
        train_step(t, micros_of(l, 0, t.comm.mesh.rank));
        t.device.watch = nullptr;
        if (t.comm.first()) events = trace.events();
    });
    return events;
}

}  // namespace baretrain::test
