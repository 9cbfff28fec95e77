// fsdp.h - FSDP (ZeRO-3): every rank holds a shard of the weights; a unit is whole only around its computation.
// Copy with: fp8_wire.h, lease.h, wire.h and what they name
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
#include "fp8_wire.h"
#include "lease.h"
#include "wire.h"

namespace baretrain {

struct FsdpOptions {
    int prefetch = 1;                                  // blocks gathered ahead
    bool reshard = true;                               // after the forward pass
    Type type = Type::fp64;                            // on the wire, where it is narrower than the weights
    bool fp8 = false;                                  // matrices of tensorwise products travel as codes
    bool poison = checked_build;                       // what was let go becomes NaN
};

template <class T> class ShardedWeights final : public WeightStore<T> {
public:
    ShardedWeights(Arena& arena, const Params& params, Comm& comm, FsdpOptions o)
        : WeightStore<T>(params, &comm.device), comm_(comm), options_(o), blocks_(params.units() - 1),
          shards_(take_shards<T>(arena, params)), matrices_(fp8_matrices(params)),
          amax_(arena.take<float>(o.fp8, count_matrices())),
          parts_(arena.take<float>(o.fp8, amax_parts(params.largest_unit()))) {
        for (const View<T>& memory : take_working<T>(arena, params, o.reshard ? 1 + o.prefetch : blocks_)) {
            const bool ends = slots_.empty();          // which have no matrix in FP8
            slots_.push_back({memory, {arena, comm, Axis::dp_shard, o.type, memory.count()},
                              {arena, comm, params, matrices_, amax_, o.fp8 && !ends}});
        }
    }
    Range owns(int unit) const override { return this->params_.shard(unit, comm_.mesh.at(Axis::dp_shard)); }
    View<T> owned(int unit) override { return shards_[size_t(unit)]; }
    void publish(int) override {}                      // what is gathered next is the new shard
    // The largest of each matrix: of my shard, then of all ranks.
    void finish() override {
        if (!options_.fp8) return;
        zero(comm_.device, amax_);
        for (int u = 0; u < this->params_.units(); ++u)
            for (const Fp8Matrix& m : matrices_[size_t(u)]) {
                const Range shard = owns(u), mine = m.range.both(shard);
                if (mine.count == 0) continue;
                const View<const T> x = owned(u).col_range(mine.first - shard.first, mine.count);
                amax_span<T>(comm_.device, amax_.col_range(m.number, 1), x, parts_);
            }
        for (Axis a : {Axis::dp_shard, Axis::tp}) comm_.await(comm_.max(a, amax_, {"amax"}));
    }
    void gather_exactly(bool exactly) override { exactly_ = exactly; }
protected:
    View<T> whole(int unit) override {
        backward_ = unit != ends_unit && unit <= last_;
        last_ = unit;
        Slot& slot = fetch(unit);
        for (int i = 1; i <= options_.prefetch; ++i) {
            const int next = backward_ ? unit - i : unit + i;
            if (next >= 1 && next <= blocks_) fetch(next);
        }
        arrive(slot);
        slot.leased = true;
        return weights(slot);
    }
    void finish_views(Weights<T>& w, int unit) override {
        if (!slot_of(unit).rounded) return;
        for (const Fp8Matrix& m : matrices_[size_t(unit)]) w.linear(m.place)->amax = amax_.col_range(m.number, 1);
    }
    // The unit, but not if it is needed again in the backward pass; with the ends all, for the pass is over.
    void let_go(int unit) override {
        slot_of(unit).leased = false;
        const bool again = !backward_ && (unit == blocks_ || !options_.reshard);
        for (Slot& s : slots_)
            if (unit == ends_unit || (s.unit == unit && !again)) free(s);
    }
private:
    static constexpr int none = -1;
    struct Slot {
        View<T> memory;
        Wire<T> gathered;
        Fp8Wire<T> codes;
        bool rounded = false;                          // it travels, or came, as codes
        int unit = none;                               // whose weights are there, or on their way
        bool leased = false;
    };
    Slot& slot_of(int unit) { return slots_[working(unit, slots_)]; }
    Slot& fetch(int unit) {
        Slot& s = slot_of(unit);
        if (s.unit == unit) return s;
        free(s);
        s.unit = unit;
        s.rounded = options_.fp8 && !exactly_ && !matrices_[size_t(unit)].empty();
        if (s.rounded) s.codes.gather(weights(s), owned(unit), unit);
        else s.gathered.gather(weights(s), owned(unit), {"weights", unit});
        return s;
    }
    void free(Slot& s) {
        require(!s.leased, "fsdp: one block is leased at a time");
        arrive(s);
        s.unit = none;
        if (options_.poison) fill_bytes(comm_.device, s.memory, 0xFF);   // NaN in every type
    }
    static void arrive(Slot& s) { s.gathered.await(), s.codes.await(); }
    long count_matrices() const {
        long n = 0;
        for (const auto& unit : matrices_) n += long(unit.size());
        return n;
    }
    View<T> weights(const Slot& s) const { return s.memory.col_range(0, this->params_.unit_size(s.unit)); }
    Comm& comm_;
    const FsdpOptions options_;
    const int blocks_;                                 // units 1 to blocks_
    const std::vector<View<T>> shards_;
    const typename Fp8Wire<T>::Units matrices_;
    const View<float> amax_, parts_;                   // (1, matrices), of all ranks, and scratch; empty without codes
    std::vector<Slot> slots_;                          // of the ends, and of blocks by turns
    int last_ = ends_unit;                             // the unit that was gathered last
    bool backward_ = false, exactly_ = false;
};

}  // namespace baretrain
