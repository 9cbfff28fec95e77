// costs.h - the commands plan and --explain: what a run will cost, in every layout, and what its step does.
// Copy with: plan.h, traffic.h, trace.h and what they name
#pragma once
#include "plan.h"
#include "trace.h"
#include "traffic.h"
#include <cstdio>

namespace baretrain {

// ---- plan -----------------------------------------------------------------------------------------------------------
// Bytes of a rank: held, by class, and sent in a step, by axis.
inline Facts cost_facts(const Plan& plan) {
    Facts f = memory_facts(plan.parts, plan.peak);
    for (Axis a : {Axis::dp_replicate, Axis::dp_shard, Axis::tp}) {
        long sent = 0;
        for (const auto& [key, row] : plan.ledger) sent += key.axis == a ? row.bytes : 0;
        f.push_back({std::string("sent.") + axis_names[int(a)], sent});
    }
    return f;
}

// A row a class or an axis, a column a layout.
inline void print_costs(long ranks, const std::vector<std::pair<std::string, Facts>>& layouts) {
    std::printf("\n%-24s", concat("MB, each of ", ranks, " ranks").c_str());
    for (const auto& [name, facts] : layouts) std::printf(" %11s", name.c_str());
    for (size_t row = 0; row < layouts[0].second.size(); ++row) {
        std::string name = layouts[0].second[row].first;
        name[name.find('.')] = ' ';
        std::printf("\n%-24s", (name + (name.starts_with("sent") ? " a step" : "")).c_str());
        for (const auto& [layout, facts] : layouts)
            std::printf(" %11.1f", double(std::get<long>(facts[row].second)) / 1e6);
    }
    std::printf("\n");
}

// Of the ends and the first block: which rows or columns of each matrix the ranks of tp have, one after the other.
inline std::string split_text(const Config& c) {
    std::string text;
    std::vector<Params> ranks;
    for (int r = 0; r < c.tp; ++r) ranks.push_back(params_of(c, r));
    for (size_t i = 0; i < ranks[0].rows().size(); ++i) {
        const Param& p = ranks[0].rows()[i];
        if (!p.split() || p.unit > block_unit(0)) continue;
        const bool by_rows = p.cols == p.whole_cols;
        text += format("split    %-44s %ld x %ld: ", p.name.c_str(), p.whole_rows, p.whole_cols);
        text += by_rows ? "rows" : "columns";
        for (const Params& rank : ranks) {
            const Param& mine = rank.rows()[i];
            text += &rank == &ranks[0] ? "" : " |";
            for (const Range& r : by_rows ? std::vector<Range>{{mine.first_row, mine.rows}} : mine.columns)
                text += concat(" ", r.first, "-", r.first + r.count - 1);
        }
        text += "\n";
    }
    return text;
}

template <class T, class Step> int print_plan(const Config& c, Step step) {
    Config config = c;
    if (config.shape.vocab == 0) set_vocab(config, load_tokenizer(config.tokenizer).vocab());
    const auto plan_of = [&](const Config& one) { return make_plan<T>(one, params_of(one), step); };
    const Params params(config.shape);
    const Plan plan = plan_of(config);
    Facts facts = plan_facts(config, params, plan);
    for (const auto& fact : cost_facts(plan))
        if (fact.first.starts_with("sent.")) facts.push_back(fact);
    for (const auto& [key, row] : plan.ledger) facts.push_back({"sent." + key.text(), row.bytes});
    std::vector<std::pair<std::string, Facts>> layouts;
    for (const auto& [name, other] : alternatives(config))
        if (config.ranks > 1) layouts.emplace_back(name, cost_facts(plan_of(other)));
    for (const auto& [layout, costs] : layouts)
        for (const auto& [name, value] : costs) facts.push_back({"alternatives." + layout + "." + name, value});
    if (!c.output.empty()) write_whole(c.output, holdings_svg(holdings<T>(config)));
    if (c.json) return std::printf("%s\n", to_json(facts).c_str()), 0;

    std::printf("model    %s, %.2f M parameters, %s\n", config.shape.family.c_str(),
                double(config.shape.parameters()) / 1e6, config.dtype.c_str());
    const std::string group_of = config.tp > 1 ? concat(config.tp, " of ") : "of ";
    std::printf("step     %ld tokens: %ld micro-batches of %ld x %ld%s\n", config.tokens_per_step,
                config.micro_batches(), config.batch, config.seq,
                config.ranks > 1 ? concat(" on each ", group_of, config.ranks, " ranks; of one of them:").c_str() : "");
    const char* group = "memory";
    for (const auto& [name, value] : facts) {
        if (!name.starts_with("memory.")) continue;
        std::printf("%-8s %-12s %12.1f MB\n", group, name.c_str() + 7, double(std::get<long>(value)) / 1e6);
        group = "";
    }
    const double products = plan.matmul_flops, all = (products + plan.attention_flops) * double(config.ranks);
    std::printf("compute  %-12s %12.3f GFLOP a step\n", "products", products / 1e9);
    std::printf("%-8s %-12s %12.3f GFLOP a step\n", "", "attention", plan.attention_flops / 1e9);
    std::printf("%-8s %-12s %12.3f GFLOP a token\n", "", "all", all / 1e9 / double(config.tokens_per_step));
    std::printf("decay    %s\nnone     %s\n", decay_group(params, true).c_str(), decay_group(params, false).c_str());
    if (config.tp > 1) std::printf("%s", split_text(config).c_str());
    if (!layouts.empty()) print_costs(config.ranks, layouts);
    return 0;
}

// ---- explain --------------------------------------------------------------------------------------------------------
template <class T, class Step> int print_explanation(const Config& c, Step step) {
    Config config = c;
    if (config.shape.vocab == 0) set_vocab(config, load_tokenizer(config.tokenizer).vocab());
    const Params params = params_of(config);
    Arena arena;
    Trainer<T> t(config, params, arena, {mesh_of(config)});
    Trace trace({.real = false}, [&] { return arena.high(); });
    trace.step(1);
    t.device.watch = &trace;
    dry_step(t, step);
    std::printf("A step of rank 0 in %s, counted, not run; micro-batches: %ld, of %ld x %ld tokens.\n%s",
                config.dtype.c_str(), t.micro_batches(), config.batch, config.seq, explain(trace.events()).c_str());
    return 0;
}

}  // namespace baretrain
