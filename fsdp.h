// fsdp.h - FSDP (ZeRO-3): every rank holds a shard of the weights; a unit is whole only around its computation.
// Copy with: lease.h, wire.h and what they name
//   each of N ranks, with L blocks of B parameters and the two ends of E:
//                     sends weights in a micro-batch    holds whole weights
//   reshard           (N-1)/N (E + (2 L - 1) B)         E and 1 + prefetch blocks
//   no reshard        (N-1)/N (E + L B)                 E and all blocks
//   and sends the gradients of ZeRO-2 (zero.h), (N-1)/N (E + L B)
// (Rajbhandari et al. 2019; PyTorch's fully_shard.) A block is gathered before its forward pass, let go, and gathered
// again before its backward pass; but for the last one, which is needed again at once. Without resharding blocks stay
// from forward to backward. With prefetch p the next p blocks are gathered while one is at work. Blocks are leased one
// at a time, as 1, 2, ..., L and back; the ends are there all the time. With --replicate R (HSDP) each shard stands R
// times, and a unit is gathered from the N ranks of one copy: nothing here changes.
#pragma once
#include "lease.h"
#include "wire.h"

namespace baretrain {

struct FsdpOptions {
    int prefetch = 1;                                  // blocks gathered ahead
    bool reshard = true;                               // after the forward pass
    Type type = Type::fp64;                            // on the wire, where it is narrower than the weights
    bool poison = checked_build;                       // what was let go becomes NaN
};

template <class T> class ShardedWeights final : public WeightStore<T> {
public:
    ShardedWeights(Arena& arena, const Params& params, Comm& comm, FsdpOptions o)
        : WeightStore<T>(params, &comm.device), comm_(comm), options_(o), blocks_(params.units() - 1),
          shards_(take_shards<T>(arena, params)),
          buffers_(take_working<T>(arena, params, o.reshard ? 1 + o.prefetch : blocks_)) {
        for (const View<T>& b : buffers_) slots_.push_back({none, {arena, comm, Axis::dp_shard, o.type, b.count()}});
    }
    Range owns(int unit) const override { return this->params_.shard(unit, comm_.mesh.at(Axis::dp_shard)); }
    View<T> owned(int unit) override { return shards_[size_t(unit)]; }
    void publish(int) override {}                      // what is gathered next is the new shard
    void finish() override {}
protected:
    View<T> whole(int unit) override {
        backward_ = unit != ends_unit && unit <= last_;
        last_ = unit;
        fetch(unit);
        for (int i = 1; i <= options_.prefetch; ++i) {
            const int next = backward_ ? unit - i : unit + i;
            if (next >= 1 && next <= blocks_) fetch(next);
        }
        Slot& slot = slots_[working(unit, buffers_)];
        slot.gathered.await();
        slot.leased = true;
        return memory(unit);
    }
    void let_go(int unit) override {
        slots_[working(unit, buffers_)].leased = false;
        const bool again = !backward_ && (unit == blocks_ || !options_.reshard);   // in the backward pass
        if (unit == ends_unit) for (size_t place = 0; place < slots_.size(); ++place) free(place);   // the pass is over
        else if (!again) free(working(unit, buffers_));
    }
private:
    static constexpr int none = -1;
    struct Slot {                                      // of a buffer
        int unit;                                      // whose weights are there, or on their way
        Wire<T> gathered;
        bool leased = false;
    };
    void fetch(int unit) {
        const size_t place = working(unit, buffers_);
        if (slots_[place].unit == unit) return;
        free(place);
        slots_[place].unit = unit;
        slots_[place].gathered.gather(memory(unit), owned(unit), {"weights", unit});
    }
    void free(size_t place) {
        require(!slots_[place].leased, "fsdp: one block is leased at a time");
        slots_[place].gathered.await();
        slots_[place].unit = none;
        if (options_.poison) fill_bytes(comm_.device, buffers_[place], 0xFF);   // NaN in every type
    }
    View<T> memory(int unit) const {
        return buffers_[working(unit, buffers_)].col_range(0, this->params_.unit_size(unit));
    }
    Comm& comm_;
    const FsdpOptions options_;
    const int blocks_;                                 // units 1 to blocks_
    const std::vector<View<T>> shards_, buffers_;
    std::vector<Slot> slots_;
    int last_ = ends_unit;                             // the unit that was gathered last
    bool backward_ = false;
};

}  // namespace baretrain
