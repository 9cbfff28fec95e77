// zero.h - whole weights on every rank (DDP, ZeRO-1, ZeRO-2), and gradients summed whole or scattered.
// Copy with: lease.h, comm.h, kernels/copy.h, kernels/activation.h and what they name
//                weights   gradients  optimizer  sent by each rank for a step of M micro-batches, of P parameters
//   DDP          whole     whole      whole      2 (N-1)/N P gradients                        dp_replicate = N
//   ZeRO-1       whole     whole      1/N        (N-1)/N P gradients + (N-1)/N P weights      dp_shard = N
//   ZeRO-2       whole     1/N        1/N        M (N-1)/N P gradients + (N-1)/N P weights    dp_shard = N
//   FSDP         1/N: fsdp.h, with the gradients of ZeRO-2
// (Rajbhandari et al. 2019; Li et al. 2020.) What is sharded on dp_shard may be replicated on dp_replicate: then the
// summed shards are summed once more, across, once a step. A unit is a bucket: its sum starts when its last gradient is
// there, and is awaited when the next unit's is to start. On one rank all this does nothing.
#pragma once
#include "comm.h"
#include "kernels/activation.h"
#include "kernels/copy.h"
#include "lease.h"

namespace baretrain {

// Every rank holds all weights and updates its shard of them: all, where dp_shard is 1.
template <class T> class WholeWeights final : public WeightStore<T> {
public:
    WholeWeights(Arena& arena, const Params& params, Comm& comm)
        : WeightStore<T>(params, &comm.device), comm_(comm), units_(take_units<T>(arena, params)) {}
    Range owns(int unit) const override { return this->params_.shard(unit, comm_.mesh.at(Axis::dp_shard)); }
    View<T> owned(int unit) override {
        const Range r = owns(unit);
        return units_[size_t(unit)].col_range(r.first, r.count);
    }
    void publish(int unit) override {
        finish();
        published_ = comm_.gather(Axis::dp_shard, units_[size_t(unit)], View<const T>(owned(unit)), {"weights", unit});
    }
    void finish() override { comm_.await(published_); }
protected:
    View<T> whole(int unit) override { return units_[size_t(unit)]; }
    void let_go(int) override {}
private:
    Comm& comm_;
    std::vector<View<T>> units_;
    Pending published_;
};

// Whole gradients, summed over the micro-batches here and over the ranks once a step.
template <class G> class SummedGrads final : public GradStore<G> {
public:
    SummedGrads(Arena& arena, const Params& params, Comm& comm)
        : GradStore<G>(params, &comm.device), comm_(comm), units_(take_units<G>(arena, params)) {}
    void finish(int) override { settle(); }
    View<G> owned(int unit) override {
        const Range r = this->params_.shard(unit, comm_.mesh.at(Axis::dp_shard));
        return units_[size_t(unit)].col_range(r.first, r.count);
    }
protected:
    View<G> whole(int unit) override { return units_[size_t(unit)]; }
    bool keeps() const override { return true; }
    void absorb(int unit, long micro) override {
        if (micro < this->micros_) return;
        settle();
        unit_ = unit;
        scatter_ = comm_.scatter(Axis::dp_shard, units_[size_t(unit)], {"gradients", unit});
        if (!scatter_) across_ = comm_.sum(Axis::dp_replicate, owned(unit), {"gradients", unit});
    }
private:
    void settle() {
        if (scatter_) {
            comm_.await(scatter_);
            across_ = comm_.sum(Axis::dp_replicate, owned(unit_), {"gradients", unit_});
        }
        comm_.await(across_);
    }
    Comm& comm_;
    std::vector<View<G>> units_;
    Pending scatter_, across_;
    int unit_ = 0;                                     // the one that is under way
};

// A shard of the gradients, to which each micro-batch's are scattered; whole are only those of the units at work: the
// ends, a block, and the block before, which is under way.
template <class G> class ScatteredGrads final : public GradStore<G> {
public:
    ScatteredGrads(Arena& arena, const Params& params, Comm& comm)
        : GradStore<G>(params, &comm.device), comm_(comm), ends_(arena.take<G>(1, params.unit_size(ends_unit))) {
        for (int u = 0; u < params.units(); ++u) shards_.push_back(arena.take<G>(1, params.shard(u, 0).count));
        for (View<G>& b : blocks_) b = arena.take<G>(1, params.largest_block());
    }
    void finish(int) override {
        settle();
        comm_.await(across_);
    }
    View<G> owned(int unit) override { return shards_[size_t(unit)]; }
protected:
    View<G> whole(int unit) override {
        if (unit_ == unit) settle();                   // of the micro-batch before: its memory is written to again
        return memory(unit);
    }
    bool keeps() const override { return false; }
    void absorb(int unit, long micro) override {
        settle();
        unit_ = unit, micro_ = micro;
        scatter_ = comm_.scatter(Axis::dp_shard, memory(unit), {"gradients", unit});
    }
private:
    View<G> memory(int unit) const {
        return unit == ends_unit ? ends_ : blocks_[unit % 2].col_range(0, this->params_.unit_size(unit));
    }
    void settle() {
        if (unit_ < 0) return;
        comm_.await(scatter_);
        const Range r = this->params_.shard(unit_, comm_.mesh.at(Axis::dp_shard));
        const View<G> part = as_rows(memory(unit_).col_range(r.first, r.count)), shard = as_rows(owned(unit_));
        if (micro_ == 1) copy<G, G>(comm_.device, shard, part);
        else residual<G>(comm_.device, shard, shard, part);
        comm_.await(across_);
        if (micro_ == this->micros_) across_ = comm_.sum(Axis::dp_replicate, owned(unit_), {"gradients", unit_});
        unit_ = -1;
    }
    Comm& comm_;
    View<G> ends_, blocks_[2];
    std::vector<View<G>> shards_;
    Pending scatter_, across_;
    int unit_ = -1;                                    // the one that is under way; -1: none
    long micro_ = 0;
};

}  // namespace baretrain
