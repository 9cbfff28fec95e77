// stats.h - the layers from inside, every few steps: norms of what belongs to each tensor, sizes of each activation.
// Copy with: gpt.h, state.h, comm.h, report.h and what they name
//   tensors      L2 norms: weight, grad (before clipping), update (what the step adds to the weight), m, v. Weight (the
//                master's where there is one), m and v are those after the step: as its checkpoint holds them
//   activations  rms, abs_max and zeros (their share) over all micro-batches; measured right after the block's forward
//                pass, when every recompute mode has them all
// Sums of squares are kept until the end, so that ranks add theirs.
#pragma once
#include "comm.h"
#include "gpt.h"
#include "report.h"
#include "state.h"
#include <array>

namespace baretrain {

template <class T> class Stats {
public:
    // every: steps from one measurement to the next; 0: never, which takes no memory. rows: of a micro-batch.
    Stats(Arena& arena, const Params& params, Comm& comm, long rows, long every)
        : params_(params), comm_(comm), every_(every) {
        if (every == 0) return;
        arena.part("statistics");
        const ModelShape& s = params.local();
        long most = rows * std::max({s.dim, (s.heads + 2 * s.kv_heads) * s.head_dim, s.gated() ? 2 * s.ffn : s.ffn});
        for (const Param& p : params.rows()) most = std::max(most, p.count());
        tensors_ = arena.take<double>(long(params.rows().size()), adamw_squares);
        activations_ = arena.take<double>(s.layers * long(std::size(act_names)), magnitudes);
        largest_ = arena.take<double>(s.layers * long(std::size(act_names)), magnitudes);
        parts_ = arena.take<double>(square_parts(most), adamw_squares);
    }
    bool due() const { return due_; }
    // step: the number that it will have in the log.
    void begin_step(Device& d, long step) {
        due_ = every_ > 0 && (d.dry || step % every_ == 0);
        counts_ = {};
        if (due_) zero(d, tensors_), zero(d, activations_);
    }
    void activations(Device& d, long block, const BlockActs<T>& a) {
        if (!due_) return;
        const View<const T> all[] = {a.norm1, a.qkv, a.att, a.mid, a.norm2, a.up, a.act, a.out};
        for (size_t i = 0; i < std::size(all); ++i) {
            const bool norm = i == 0 || i == 4, stream = i == 3 || i == 7;   // the same on all of tp, but for rows
            const bool apart = stream ? all[i].rows < a.qkv.rows : !norm;
            const int ranks = comm_.mesh.dp() * (apart ? comm_.size(Axis::tp) : 1);
            if (block == 0) counts_[i] += double(all[i].count()) * ranks;
            if (apart || comm_.mesh.at(Axis::tp) == 0)
                add_magnitudes<T>(d, activations_.row_range(block * long(std::size(all)) + long(i), 1), all[i], parts_);
        }
    }
    // Before the update, which overwrites what this reads.
    void tensors(Device& d, const Optimizer<T>& optimizer, GradStore<Real<T>>& grads, View<const StepState> state) {
        for (size_t i = 0; due_ && i < params_.rows().size(); ++i) {
            const Param& p = params_.rows()[i];
            const AdamSpan<T> span = optimizer.span(grads, p.unit, {p.offset, p.count(), p.decay()});
            if (span.n > 0 && params_.counts(p))
                add_adamw_squares<T>(d, tensors_.row_range(long(i), 1), span, state, parts_);
        }
        if (!due_) return;
        copy<double, double>(d, largest_, View<const double>(activations_));
        for (Axis a : {Axis::dp_shard, Axis::tp}) comm_.await(comm_.sum(a, tensors_, {"statistics"}));
        for (Axis a : {Axis::dp_shard, Axis::dp_replicate, Axis::tp}) {
            comm_.await(comm_.sum(a, activations_, {"statistics"}));
            comm_.await(comm_.max(a, largest_, {"statistics"}));
        }
    }
    StatsLog log(Device& d, long step) const {
        StatsLog log{step, {}, {}};
        std::vector<double> t(size_t(tensors_.count())), a(size_t(activations_.count())), largest(a);
        copy_bytes(d, t.data(), tensors_.data, t.size() * sizeof(double));
        copy_bytes(d, a.data(), activations_.data, a.size() * sizeof(double));
        copy_bytes(d, largest.data(), largest_.data, a.size() * sizeof(double));
        const double* at = t.data();
        for (const Param& p : params_.rows()) {
            StatsLog::Row& row = log.tensors.emplace_back(p.name, StatsLog::Numbers());
            for (const char* what : {"weight", "grad", "update", "m", "v"})
                row.second.emplace_back(what, std::sqrt(*at++));
        }
        for (size_t i = 0; i < a.size() / magnitudes; ++i) {
            const size_t which = i % std::size(act_names);
            const double *const sums = &a[i * magnitudes], n = counts_[which], top = largest[i * magnitudes + 2];
            const std::string name = concat(i / std::size(act_names), ".", act_names[which]);
            log.activations.push_back(
                {name, {{"rms", std::sqrt(sums[0] / n)}, {"abs_max", top}, {"zeros", sums[1] / n}}});
        }
        return log;
    }
private:
    static constexpr const char* act_names[] = {"norm1", "qkv", "att", "mid", "norm2", "up", "act", "out"};
    const Params& params_;
    Comm& comm_;
    long every_;
    bool due_ = false;
    View<double> tensors_, activations_, largest_, parts_;
    std::array<double, std::size(act_names)> counts_{};   // elements of each activation, all ranks
};

}  // namespace baretrain
