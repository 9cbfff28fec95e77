// fsdp.h - FSDP (ZeRO-3): every rank holds a shard of the weights, a unit is whole only around its computation.
// Copy with: lease.h, comm.h and what they name
//   sent by each rank for a micro-batch, of P parameters in the blocks and E in the ends:
//   (N-1)/N (E + 2 P - the last block) weights, gathered before the forward pass and again before the backward pass but
//   for the last block, which is needed at once; (N-1)/N (E + P) when they stay in between (reshard false); and the
//   gradients of ZeRO-2 (zero.h), (N-1)/N (E + P)
// (Rajbhandari et al. 2019; PyTorch's fully_shard.) With prefetch p, p units more are gathered while one is at work.
// Blocks come as 1, 2, ..., L, forward, and L, ..., 1, backward; the ends are there all the time. Any order is right,
// but others than this one wait longer.
#pragma once
#include "comm.h"
#include "lease.h"

namespace baretrain {

struct FsdpOptions {
    int prefetch = 1;                                  // units gathered ahead
    bool reshard = true;                               // false: blocks stay whole from forward to backward pass
    bool poison = checked_build;                       // what was let go becomes NaN
};

template <class T> class ShardedWeights final : public WeightStore<T> {
public:
    ShardedWeights(Arena& arena, const Params& params, Comm& comm, FsdpOptions o)
        : WeightStore<T>(params, &comm.device), comm_(comm), options_(o), blocks_(params.units() - 1),
          ends_{arena.take<T>(1, params.unit_size(ends_unit)), ends_unit, {}} {
        for (int u = 0; u < params.units(); ++u) shards_.push_back(arena.take<T>(1, params.shard(u, 0).count));
        const int buffers = o.reshard ? std::min(1 + o.prefetch, blocks_) : blocks_;
        for (int b = 0; b < buffers; ++b) slots_.push_back({arena.take<T>(1, params.largest_block()), none, {}});
    }
    Range owns(int unit) const override { return this->params_.shard(unit, comm_.mesh.at(Axis::dp_shard)); }
    View<T> owned(int unit) override { return shards_[size_t(unit)]; }
    void publish(int) override {}                      // what is gathered next is the new shard
    void finish() override {}
protected:
    View<T> whole(int unit) override {
        if (unit == ends_unit) last_ = ends_unit, backward_ = false;
        else backward_ = unit <= last_, last_ = unit;
        Slot& slot = slot_of(unit);
        if (slot.unit != unit || unit == ends_unit) start(slot, unit);
        slot.in_use = true;
        for (int i = 1; i <= options_.prefetch; ++i) {
            const int next = backward_ ? unit - i : unit + i;
            if (next < 1 || next > blocks_) break;
            Slot& ahead = slot_of(next);
            if (ahead.unit != next) start(ahead, next);
        }
        comm_.await(slot.gathered);
        return slot.memory.col_range(0, this->params_.unit_size(unit));
    }
    // After the ends nothing is worth keeping: the weights are about to change.
    void let_go(int unit) override {
        slot_of(unit).in_use = false;
        const bool turns = unit == blocks_ && !backward_, stays = !options_.reshard && !backward_;
        if (unit == ends_unit) {
            free(ends_);
            for (Slot& s : slots_) free(s);
        } else if (!turns && !stays) free(slot_of(unit));
    }
private:
    static constexpr int none = -1;
    struct Slot {
        View<T> memory;
        int unit;                                      // whose weights are there, or on their way
        Pending gathered;
        bool in_use = false;
    };
    // Where the unit is; else a free place, else one that only waits for its turn.
    Slot& slot_of(int unit) {
        if (unit == ends_unit) return ends_;
        Slot* best = nullptr;
        for (Slot& s : slots_) {
            if (s.unit == unit) return s;
            if (!s.in_use && (!best || (best->unit != none && s.unit == none))) best = &s;
        }
        require(best != nullptr, "fsdp: one block is leased at a time");
        return *best;
    }
    void start(Slot& s, int unit) {
        free(s);
        s.unit = unit;
        s.gathered = comm_.gather(Axis::dp_shard, s.memory.col_range(0, this->params_.unit_size(unit)),
                                  View<const T>(owned(unit)), {"weights", unit});
    }
    void free(Slot& s) {
        comm_.await(s.gathered);
        s.unit = none;
        if (options_.poison) fill_bytes(comm_.device, s.memory, 0xFF);   // NaN in every type
    }
    Comm& comm_;
    FsdpOptions options_;
    int blocks_, last_ = 0;                            // units 1 to blocks_; the last one that was gathered
    bool backward_ = false;
    Slot ends_;
    std::vector<View<T>> shards_;
    std::vector<Slot> slots_;
};

}  // namespace baretrain
