// layouts.h - what a layout must send and hold, as closed forms written by hand; and the matrix of all layouts.
// Copy with: test/ranks.h and what it names
#pragma once
#include "test/ranks.h"

namespace baretrain::test {

inline long padded(long n, long to) { return (n + to - 1) / to * to; }

// How padding enters: each tensor begins at a multiple of 64 elements, but for stacked ones; a unit is as long as a
// multiple of 64 for each of its S shards.
inline long unit_elements(const Params& p, int unit, long S) {
    long end = 0;
    for (const Param& row : p.rows())
        if (row.unit == unit) end = (row.joined ? end : padded(end, 64)) + row.room;
    return padded(end, 64 * S);
}

// The letters of the formulas: S ranks share, R hold the same; L blocks of B elements and the ends of E.
struct Letters {
    long S, R, L, E, B;
    Letters(const Params& p, const Layout& l)
        : S(l.shard == "none" ? 1 : l.dp() / l.replicate), R(l.dp() / S), L(p.units() - 1), E(unit_elements(p, 0, S)),
          B(unit_elements(p, 1, S)) {}
};

using Sent = std::map<std::string, std::pair<long, long>>;   // row of the ledger: calls, bytes
inline Sent sent(const Ledger& ledger) {
    Sent all;
    for (const auto& [key, row] : ledger) all[key.text()] = {row.calls, row.bytes};
    return all;
}

// Of one step of M micro-batches; a weight has w bytes on the wire, a gradient g.
inline Sent closed_ledger(const Params& p, const Layout& l, long w, long g) {
    const auto [S, R, L, E, B] = Letters(p, l);
    const long M = l.micros;
    const auto sum = [](long elements, long n, long size) { return 2 * (n - 1) * (padded(elements, n) / n) * size; };
    Sent all;
    if (S > 1) {
        const bool whole = l.shard == "zero1", fsdp = l.shard == "fsdp";
        const long sharded = (S - 1) * (E + L * B) / S, fetched = fsdp && l.reshard ? 2 * L - 1 : L;
        all["dp_shard.scatter.gradients"] = {(1 + L) * (whole ? 1 : M), sharded * g * (whole ? 1 : M)};
        all["dp_shard.gather.weights"] = {(1 + fetched) * (fsdp ? M : 1),
                                          (S - 1) * (E + fetched * B) / S * w * (fsdp ? M : 1)};
        all["dp_shard.sum.norm"] = {1, sum(1, S, 8)};
        all["dp_shard.sum.control"] = all["dp_shard.sum.loss"] = {1, sum(2, S, 8)};
    }
    if (R > 1) {
        all["dp_replicate.sum.gradients"] = {1 + L, sum(E / S, R, g) + L * sum(B / S, R, g)};
        all["dp_replicate.sum.control"] = all["dp_replicate.sum.loss"] = {1, sum(2, R, 8)};
    }
    return all;
}

// Bytes of a rank by class; every view begins at a multiple of 256 bytes. T: weights; G: gradients; moments, and a
// master where weights are narrower, are G too. wire: of an element on the wire, 0: no other than its own.
inline std::map<std::string, long> closed_memory(const Params& p, const Layout& l, long T, long G,
                                                 long gather_wire = 0, long reduce_wire = 0) {
    const auto [S, R, L, E, B] = Letters(p, l);
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
    const Params params = params_of(config_of(shape, l, "fp32"));
    const Sent closed = closed_ledger(params, l, 8, 8);
    for (const StepTaken& step : t.steps) CHECK(sent(step.ledger) == closed);
    CHECK(sent(t.plan.ledger) == closed);
    check_memory(closed_memory(params, l, 8, 8), t.parts);
    CHECK(held(t.parts) == held(t.plan.parts));
    CHECK(t.peak <= t.plan.peak);                      // an evaluation and a sample may need more
    CHECK(t.peak == t.plan.step);
}

// Every layout of `ways`, with each number of ranks, micro-batches, family, tied or not, recomputed or not; or of each
// layout one of those eight models, another one each time. BT_MATRIX=all: the former.
inline void check_matrix(const std::vector<Layout>& ways) {
    const bool all = std::getenv("BT_MATRIX") != nullptr;
    const long steps = 8;
    const auto begin = Clock::now();
    long cells = 0, run = 0, layout = 0;
    std::map<std::pair<std::string, bool>, Taken> ones;
    for (Layout l : ways)
        for (long micros : {1, 3}) {
            ++layout;
            long model = 0;
            for (const char* family : {"gpt2", "llama"})
                for (bool tied : {true, false})
                    for (const char* recompute : {"none", "full"}) {
                        ++cells;
                        if (!all && layout % 8 != model++) continue;
                        ++run;
                        const ModelShape shape = small_shape(family, tied);
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
        const ModelShape shape = small_shape(family, false);
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
    const Params params = params_of(config_of(shape, l, "fp32"));
    const long w = gather == "bf16" ? 2 : 0, g = reduce == "bf16" ? 2 : 0;
    for (const StepTaken& step : t.steps) CHECK(sent(step.ledger) == closed_ledger(params, l, w ? w : 4, g ? g : 4));
    CHECK(sent(t.plan.ledger) == sent(t.steps[0].ledger));
    check_memory(closed_memory(params, l, 4, 4, w, g), t.parts);
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
