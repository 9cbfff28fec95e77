// plan.h - what a run will cost, found by running its step dry: memory by purpose and operations, nothing allocated.
// Copy with: generate.h, holdings.h, report.h, trainer.h and what they name
// An arena without memory hands out shapes and counts bytes, launches and products only count: so the plan can't drift
// from the step. A run allocates exactly what its plan says.
#pragma once
#include "generate.h"
#include "holdings.h"
#include "report.h"
#include "trainer.h"

namespace baretrain {

struct Plan {
    std::vector<ArenaPart> parts;                      // what a run holds all the time
    size_t step = 0;                                   // these and the most scratch that a step uses at once
    size_t peak = 0;                                   // the same with an evaluation and a sample
    Ledger ledger;                                     // of one step of rank 0
    double matmul_flops = 0;                           // of one step, forward, backward and recomputed
    double attention_flops = 0;                        // of one step: scores and sums over the keys that are seen

    double flops() const { return matmul_flops + attention_flops; }
    size_t held() const {
        size_t sum = 0;
        for (const ArenaPart& p : parts) sum += p.bytes;
        return sum;
    }
};

// Two products forward and five backward, 2 D operations each, for every head, query and key that it sees.
inline double attention_flops(const Config& c) {
    const ModelShape& s = c.shape;
    const double T = double(c.seq), w = s.window > 0 ? std::min(T, double(s.window)) : T;
    const double pairs = w * (w + 1) / 2 + (T - w) * w, products = c.recompute == "full" ? 9 : 7;
    return products * 2 * double(s.head_dim * s.heads * s.layers) * pairs * double(c.tokens_per_step / c.dp() / c.seq) /
           double(c.tp);
}

// step(trainer, micro-batches): one training step, here of a dry trainer. Gives one of its micro-batches.
template <class T, class Step> Rows dry_step(Trainer<T>& t, Step step) {
    Rows rows;
    for (long b = 0; b < t.config.batch; ++b) rows.append(std::vector<int>(size_t(t.config.seq) + 1));
    step(t, std::vector<Rows>(size_t(t.micro_batches()), rows));
    return rows;
}

// available: beyond that many bytes only the memory of a run is counted, not that of its step.
template <class T, class Step>
Plan make_plan(const Config& config, const Params& params, Step step, size_t available = size_t(-1)) {
    Arena arena;
    Trainer<T> t(config, params, arena, {mesh_of(config)});
    Plan plan{arena.parts(), arena.peak(), arena.peak(), {}, 0, attention_flops(config)};
    if (plan.peak > available) return plan;            // already too much: spare the host the rows of a dry step
    const Rows rows = dry_step(t, step);
    plan.step = arena.peak();
    plan.matmul_flops = t.matmul.flops();
    plan.ledger = t.comm.ledger;
    join_fetches(whole_tensors<T>(t, [](const Param& p) { return View<T>(nullptr, 1, p.count()); }));   // a save
    evaluate_rows(t.context, t.weights, t.rows, rows);
    Generator<T>(t.context, t.weights, config.seq).feed(std::vector<int>(size_t(config.seq)), 0);
    plan.peak = arena.peak();
    return plan;
}

// ---- layouts side by side -------------------------------------------------------------------------------------------
// The same run with each way to share its state. hsdp: fsdp in copies, two unless they are given.
inline std::vector<std::pair<std::string, Config>> alternatives(const Config& c) {
    std::vector<std::pair<std::string, Config>> all;
    const long copies = c.shard == "none" ? 2 : std::max(2L, c.replicate);
    for (const std::string name : {"none", "zero1", "zero2", "fsdp", "hsdp"}) {
        const bool hsdp = name == "hsdp";
        if (hsdp && c.dp() % copies != 0) continue;
        all.emplace_back(name, c);
        all.back().second.shard = hsdp ? "fsdp" : name, all.back().second.replicate = hsdp ? copies : 1;
    }
    return all;
}

// ---- who holds what -------------------------------------------------------------------------------------------------
// A rank's part of the memory as planned, and which elements of the model it is: all, or those that it owns.
template <class T> std::array<Holding, 3> holdings_of(const Config& c, const Params& params, int rank) {
    Arena arena;
    const Trainer<T> t(c, params, arena, {mesh_of(c, rank)});
    const bool whole[] = {c.shard != "fsdp", c.shard == "none" || c.shard == "zero1", c.shard == "none"};
    std::array<Holding, 3> holdings;
    const double slices = double(c.tp), slice = double(t.comm.mesh.at(Axis::tp));   // of each unit, beside each other
    double all = 0;
    for (int u = 0; u < params.units(); ++u) all += slices * double(params.unit_size(u));
    for (size_t i = 0; i < 3; ++i) {
        double at = 0, held = 0;
        for (int u = 0; u < params.units(); at += slices * double(params.unit_size(u++))) {
            const Range r = whole[i] ? Range{0, params.unit_size(u)} : t.weights.owns(u);
            const double from = at + slice * double(params.unit_size(u)) + double(r.first);
            holdings[i].parts.push_back({from / all, (from + double(r.count)) / all});
            held += double(r.count);
        }
        holdings[i].bytes = arena.parts()[i].bytes;    // of weights, gradients, optimizer
        const double elements = double(holdings[i].bytes) / double(i ? sizeof(Real<T>) : sizeof(T));
        if (i < 2) holdings[i].room = (elements - held) / all;   // the optimizer needs none
    }
    return holdings;
}

// Of more ranks the first 16.
template <class T> std::vector<LayoutHoldings> holdings(const Config& config) {
    std::vector<LayoutHoldings> all;
    for (const auto& [name, c] : alternatives(config)) {
        all.push_back({name, {}});
        for (int r = 0; r < std::min(16L, c.ranks); ++r)
            all.back().ranks.push_back(holdings_of<T>(c, params_of(c, r), r));
    }
    return all;
}

// The tensors that weight decay reaches, or the others, by name, with * for the number of a block.
inline std::string decay_group(const Params& params, bool decay) {
    std::vector<std::string> names;
    for (const Param& p : params.rows()) {
        std::string name = p.name;
        const size_t at = name.find_first_of("0123456789"), end = name.find_first_not_of("0123456789", at);
        if (p.unit != ends_unit) name.replace(at, end - at, "*");
        if (p.decay() == decay && !std::count(names.begin(), names.end(), name)) names.push_back(name);
    }
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : " ") + name;
    return all;
}

// As memory.weights, ..., in bytes: what a run reports of itself, too.
inline Facts memory_facts(const std::vector<ArenaPart>& parts, size_t peak) {
    Facts f;
    size_t held = 0;
    for (const ArenaPart& p : parts) f.push_back({std::string("memory.") + p.name, long(p.bytes)}), held += p.bytes;
    f.push_back({"memory.scratch", long(peak - held)});
    f.push_back({"memory.all", long(peak)});
    return f;
}

inline Facts plan_facts(const Config& c, const Params& params, const Plan& plan) {
    Facts f = {{"family", c.shape.family}, {"dtype", c.dtype}, {"parameters", c.shape.parameters()},
               {"tokens_per_step", c.tokens_per_step},
               {"micro_batches", c.micro_batches()},
               {"decayed", decay_group(params, true)}, {"not_decayed", decay_group(params, false)}};
    for (auto& fact : memory_facts(plan.parts, plan.peak)) f.push_back(fact);
    f.push_back({"flops.matmul", plan.matmul_flops});
    f.push_back({"flops.attention", plan.attention_flops});
    return f;
}

}  // namespace baretrain
