// traffic.h - what each rank sends in a step: by formula, and what the ledger counted beside it.
// Copy with: trainer.h and what it names
// P parameters, E of them in the ends and B in the last block, all padded to equal shards; w bytes a weight and g bytes
// a gradient on the wire (--gather-dtype, of fsdp; --reduce-dtype); S ranks on dp_shard, R on dp_replicate; M
// micro-batches:
//   gradients   none, zero1: (S-1)/S P g once a step; zero2, fsdp: with each micro-batch, M times as much; and then
//               2 (R-1)/R P/S g, the shards across
//   weights     zero1, zero2: (S-1)/S P w, published; fsdp: M (S-1)/S (2 P - E - B) w, gathered forward and backward
//               but for the ends and the last block, which stay; M (S-1)/S P w where all blocks do
//               --gather-dtype fp8: of a block in FP8 as often, (S-1) times the part that fp8_wire.h says
//   activations --tp t, N rows of C channels: tp.h; the maximum and the sums of the vocabulary: three numbers a row
//   amax        --fp8 with --tp: the largest numbers of what lies in parts: fp8.h; of weights that travel as codes once
//   norms       --tp: gradients of what each rank saw only its heads of, or with --sp its rows: once a step
//   control     the sums that all agree on: tokens and a wish to stop, the loss (two doubles each), the norm (one)
#pragma once
#include "trainer.h"

namespace baretrain {

// Of the largest numbers that products in FP8 ask the ranks of tp for, in a micro-batch. codes: not those of weights.
template <class T> long amax_by_formula(const Config& c, const Params& params, bool codes) {
    const long N = c.batch * c.seq, t = c.tp, forward = c.recompute == "full" ? 2 : 1;
    const auto sent = [&](long count) { return 2 * (t - 1) * ((count + t - 1) / t) * 4; };
    long bytes = 0;
    for (int unit = 1; unit < params.units(); ++unit) {
        const Weights<T> w = params.bind<T>(unit, {});
        for (const Linear<T>* l : {&w.qkv, &w.out, &w.up, &w.down}) {
            const bool inputs = l->share == Share::inputs;
            const long lists = inputs ? forward : 1, weights = codes ? forward + 1 : 0;
            const long numbers = (inputs ? 2 * forward + 2 : forward + 3) - weights;
            if (l->fp8 == Fp8::rowwise) bytes += lists * (sent(N) + sent(c.shape.dim));
            if (l->fp8 == Fp8::tensorwise) bytes += numbers * sent(1);
        }
    }
    return bytes;
}

// statistics: of a step that --stats looks at. search: of one that was not finite, and where is looked for.
template <class T>
Ledger sent_by_formula(const Config& c, const Params& params, bool statistics = false, bool search = false) {
    const Mesh mesh = mesh_of(c);
    const long S = mesh.size(Axis::dp_shard), R = mesh.size(Axis::dp_replicate), t = mesh.size(Axis::tp);
    const long M = c.micro_batches();
    const bool fsdp = c.shard == "fsdp", each = fsdp || c.shard == "zero2";
    const auto wire = [](const std::string& as, long own) { return std::min(own, type_bytes[int(type_named(as))]); };
    const long w = fsdp ? wire(c.gather_dtype, sizeof(T)) : sizeof(T), g = wire(c.reduce_dtype, sizeof(Real<T>));
    const auto shared = [](long n, long count, long size) { return (n - 1) * ((count + n - 1) / n) * size; };
    Ledger all;
    const auto add = [&](Axis a, Op op, const char* what, long bytes) {
        if (bytes > 0) all[{a, op, what}].bytes += bytes;
    };
    const auto matrices = fp8_matrices(params);
    const bool codes = fsdp && c.gather_dtype == "fp8";
    for (int unit = 0; unit < params.units(); ++unit) {
        const long P = params.unit_size(unit), twice = unit != ends_unit && unit + 1 != params.units();
        const long gathered = !fsdp ? 1 : M * (c.reshard_after_forward ? 1 + twice : 1);
        const bool coded = codes && !matrices[size_t(unit)].empty();
        const long sent = coded ? (S - 1) * fp8_part(params, matrices[size_t(unit)], unit) : shared(S, P, w);
        add(Axis::dp_shard, Op::gather, "weights", gathered * sent);
        add(Axis::dp_shard, Op::scatter, "gradients", (each ? M : 1) * shared(S, P, g));
        add(Axis::dp_replicate, Op::sum, "gradients", 2 * shared(R, P / S, g));
        const Range seen = params.shard(unit, 0).both({0, params.end_of(unit, c.sp ? Share::rows : Share::heads)});
        add(Axis::tp, Op::sum, "norms", 2 * shared(t, seen.count, sizeof(Real<T>)));
    }
    const long N = c.batch * c.seq, L = c.shape.layers, rows = shared(t, N * c.shape.dim, sizeof(T));
    const long again = c.recompute == "full" ? 2 : 0, gathered = c.recompute == "none" ? 0 : 2;   // when recomputing
    if (!c.sp) add(Axis::tp, Op::sum, "activations", M * ((4 + again) * L + 2) * 2 * rows);
    if (c.sp) add(Axis::tp, Op::gather, "activations", M * ((4 + gathered) * L + 2) * rows);
    if (c.sp) add(Axis::tp, Op::scatter, "activations", M * ((4 + again) * L + 2) * rows);
    for (long first = 0; first < N; first += head_chunk) {
        const long numbers = 2 * shared(t, std::min(head_chunk, N - first), sizeof(Real<T>));
        add(Axis::tp, Op::max, "vocabulary", M * numbers), add(Axis::tp, Op::sum, "vocabulary", M * 2 * numbers);
    }
    long largest = 0;                                  // of codes found once a step: one number a matrix
    for (const auto& unit : matrices) largest += codes ? long(unit.size()) : 0;
    add(Axis::dp_shard, Op::max, "amax", 2 * shared(S, largest, 4));
    add(Axis::tp, Op::max, "amax", 2 * shared(t, largest, 4) + M * amax_by_formula<T>(c, params, codes));
    const long tensors = long(params.rows().size()) * adamw_squares, magnitude = 8 * L * magnitudes;
    for (const auto& [axis, n] : {std::pair(Axis::dp_shard, S), {Axis::dp_replicate, R}, {Axis::tp, t}}) {
        const bool copies = axis == Axis::dp_replicate;
        if (!copies) add(axis, Op::sum, "norm", 2 * shared(n, 1, sizeof(double)));
        if (!copies && search) add(axis, Op::max, "search", 2 * shared(n, 1, sizeof(double)));
        for (const char* what : {"control", "loss"})
            add(axis, axis == Axis::tp ? Op::max : Op::sum, what, 2 * shared(n, 2, sizeof(double)));
        for (Op op : {Op::sum, Op::max})
            if (statistics) add(axis, op, "statistics", 2 * shared(n, magnitude, sizeof(double)));
        if (statistics && !copies) add(axis, Op::sum, "statistics", 2 * shared(n, tensors, sizeof(double)));
    }
    return all;
}

inline void add_to(Ledger& sum, const Ledger& more) {
    for (const auto& [key, row] : more) {
        LedgerRow& to = sum[key];
        to.calls += row.calls, to.bytes += row.bytes, to.ms += row.ms;
    }
}

// Of a run so far, of rank 0: what its steps sent, what they had to, and what evaluations, samples and saves sent.
struct Traffic {
    Ledger steps, formula, besides;
    long count = 0;                                    // steps

    void add_besides(Comm& comm) { add_to(besides, std::exchange(comm.ledger, {})); }
    template <class T> void add_step(Trainer<T>& t, bool search) {
        add_to(steps, std::exchange(t.comm.ledger, {}));
        add_to(formula, sent_by_formula<T>(t.config, t.params, t.stats.due(), search));
        ++count;
    }
};

// A table; what is not as it has to be is marked.
inline std::string to_text(Traffic t) {
    std::string text = format("%-13s %-10s %-11s %9s %14s", "axis", "operation", "what", "calls", "bytes") +
                       format(" %14s %10s   a step of rank 0\n", "by formula", "ms");
    const auto line = [&](const LedgerKey& k, const LedgerRow& r, double n, const std::string& due) {
        text += format("%-13s %-10s %-11s", axis_names[int(k.axis)], op_names[int(k.op)], k.what.c_str()) +
                format(" %9.4g %14.0f", double(r.calls) / n, double(r.bytes) / n) +
                format(" %14s %10.3f", due.c_str(), r.ms / n);
    };
    for (const auto& [key, row] : t.formula) t.steps[key];
    for (const auto& [key, row] : t.steps) {
        const long formula = t.formula[key].bytes;
        line(key, row, double(t.count), format("%.0f", double(formula) / double(t.count)));
        text += row.bytes == formula ? "\n" : "   DIFFERENT\n";
    }
    if (!t.besides.empty()) text += "besides the steps, in all: first weights, evaluations, samples, saves\n";
    for (const auto& [key, row] : t.besides) line(key, row, 1, ""), text += "\n";
    return text;
}

}  // namespace baretrain
