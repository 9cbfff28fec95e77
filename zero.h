// zero.h - whole weights on every rank (DDP, ZeRO-1, ZeRO-2), and gradients summed whole or scattered.
// Copy with: lease.h, wire.h, kernels/reduce.h and what they name
//            each of N ranks holds, of P parameters     and sends in a step of M micro-batches       the ranks are
//            weights   gradients   optimizer            gradients          weights
//   DDP      P         P           2 P                  2 (N-1)/N P        0                       dp_replicate = N
//   ZeRO-1   P         P           2 P/N                (N-1)/N P          (N-1)/N P               dp_shard = N
//   ZeRO-2   P         P/N         2 P/N                M (N-1)/N P        (N-1)/N P               dp_shard = N
//   FSDP     P/N       P/N         2 P/N                M (N-1)/N P        see fsdp.h              dp_shard = N
// (Li et al. 2020; Rajbhandari et al. 2019.) ZeRO-2 pays for its memory: it sends gradients with every micro-batch.
// What is sharded on dp_shard = S can stand R times, on dp_replicate: then the summed shards are summed once more,
// across, once a step: 2 (R-1)/R P/S. P counts padding: a unit is cut into equal parts. A unit is a bucket: its sum
// starts when its last gradient is there, and is awaited when that of the next unit starts. On one rank all this does
// nothing.
#pragma once
#include "kernels/reduce.h"
#include "lease.h"
#include "wire.h"

namespace baretrain {

// Every rank holds all weights, and its optimizer updates a shard of them: all, where dp_shard is 1.
template <class T> class WholeWeights final : public WeightStore<T> {
public:
    WholeWeights(Arena& arena, const Params& params, Comm& comm)
        : WeightStore<T>(params, &comm.device), comm_(comm), units_(take_units<T>(arena, params)) {}
    Range owns(int unit) const override { return this->params_.shard(unit, comm_.mesh.at(Axis::dp_shard)); }
    View<T> owned(int unit) override {
        const Range mine = owns(unit);
        return units_[size_t(unit)].col_range(mine.first, mine.count);
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

// Gradients on their way, a unit in each of two stages: scattered on dp_shard, then its shard summed on dp_replicate.
// A stage is awaited when the next unit comes to it.
template <class G> class ReducedGrads : public GradStore<G> {
public:
    ReducedGrads(Arena& arena, const Params& params, Comm& comm, Type type, std::vector<View<G>> buffers)
        : GradStore<G>(params, &comm.device), comm_(comm), buffers_(std::move(buffers)),
          inside_(arena, comm, Axis::dp_shard, type, params.largest_unit()),
          across_(arena, comm, Axis::dp_replicate, type, params.largest_unit() / params.shards()) {}
    void finish() override { arrive(), across_.await(); }
protected:
    virtual size_t buffer(int unit) const = 0;         // of buffers_, which has the unit's whole gradients
    virtual void collect(int unit, View<G> part, long micro) = 0;   // this rank's part of them is the sum over dp_shard

    View<G> whole(int unit) override {
        if (unit_ != none && buffer(unit_) == buffer(unit)) arrive();   // its memory is to be written to again
        return memory(unit);
    }
    void depart(int unit, long micro) {
        arrive();
        unit_ = unit, micro_ = micro;
        inside_.scatter(memory(unit), {"gradients", unit});
        if (!inside_) arrive();                        // there is nobody to wait for
    }
    void arrive() {
        if (unit_ == none) return;
        inside_.await();
        collect(unit_, part(unit_), micro_);
        if (micro_ == this->micros_) {
            across_.await();
            across_.sum(this->owned(unit_), {"gradients", unit_});
        }
        unit_ = none;
    }
    View<G> memory(int unit) const { return buffers_[buffer(unit)].col_range(0, this->params_.unit_size(unit)); }
    View<G> part(int unit) const {
        const Range mine = this->params_.shard(unit, comm_.mesh.at(Axis::dp_shard));
        return memory(unit).col_range(mine.first, mine.count);
    }
    Comm& comm_;
    const std::vector<View<G>> buffers_;
private:
    static constexpr int none = -1;
    Wire<G> inside_, across_;
    int unit_ = none;                                  // the one that is scattered now
    long micro_ = 0;
};

// Whole gradients: summed over the micro-batches here, and over the ranks once a step.
template <class G> class SummedGrads final : public ReducedGrads<G> {
public:
    SummedGrads(Arena& arena, const Params& params, Comm& comm, Type type = type_of<G>())
        : ReducedGrads<G>(arena, params, comm, type, take_units<G>(arena, params)) {}
    View<G> owned(int unit) override { return this->part(unit); }
protected:
    size_t buffer(int unit) const override { return size_t(unit); }
    bool keeps() const override { return true; }
    void absorb(int unit, long micro) override {
        if (micro == this->micros_) this->depart(unit, micro);
    }
    void collect(int, View<G>, long) override {}       // it is where it belongs
};

// A shard of the gradients, to which those of each micro-batch are scattered. Whole are only those of the units at
// work: the ends, a block, and the block before, which is on its way.
template <class G> class ScatteredGrads final : public ReducedGrads<G> {
public:
    ScatteredGrads(Arena& arena, const Params& params, Comm& comm, Type type = type_of<G>())
        : ReducedGrads<G>(arena, params, comm, type, take_working<G>(arena, params, 2)),
          shards_(take_shards<G>(arena, params)) {}
    View<G> owned(int unit) override { return shards_[size_t(unit)]; }
protected:
    size_t buffer(int unit) const override { return working(unit, this->buffers_); }
    bool keeps() const override { return false; }
    void absorb(int unit, long micro) override { this->depart(unit, micro); }
    void collect(int unit, View<G> part, long micro) override {
        copy<G, G>(this->comm_.device, owned(unit), part, micro == 1 ? Write::over : Write::add);
    }
private:
    const std::vector<View<G>> shards_;
};

}  // namespace baretrain
