// lease.h - whole weights and whole gradients of a unit, between two visible calls; what lies behind is the store's.
// Copy with: params.h and what it names
//   auto w = weights.gather(unit);   ...   weights.release(w);      read what the optimizer last published
//   auto g = grads.open(unit);       ...   grads.hand_over(g);      write (first micro-batch) or add (later) gradients
// The step reads the same however the state is sharded: DDP, ZeRO and FSDP are other stores behind these four calls. A
// lease only guards: no destructor communicates, but a lease that was not handed back is an error that names the line
// it came from.
#pragma once
#include "params.h"
#include <exception>

namespace baretrain {

template <class T> class Lease {
public:
    Lease(const Weights<T>& views, int unit, Write write, Where taken)
        : unit(unit), write(write), views_(views), taken_(taken) {}
    ~Lease() noexcept(false) {
        if (open_ && std::uncaught_exceptions() == errors_)
            fail_at("the lease of unit " + std::to_string(unit) + " taken here was never handed back", taken_);
    }
    Lease(const Lease&) = delete;
    const Weights<T>& operator*() const { return views_; }
    const Weights<T>* operator->() const { return &views_; }

    void hand_back(Where at) {
        if (!open_) fail_at("the lease of unit " + std::to_string(unit) + " was handed back twice", at);
        open_ = false;
    }
    const int unit;
    const Write write;                                 // gradients: the first micro-batch overwrites, later ones add
private:
    Weights<T> views_;
    Where taken_;
    int errors_ = std::uncaught_exceptions();
    bool open_ = true;
};

// Whoever watches the device hears of leases. No device: nobody does.
template <class T> void tell(const Device* d, Mark what, const Params& params, int unit) {
    if (d) d->mark(what, unit, double(params.unit_size(unit)) * double(sizeof(T)));
}

template <class T> class WeightStore {
public:
    explicit WeightStore(const Params& params, const Device* device = nullptr) : params_(params), device_(device) {}
    virtual ~WeightStore() = default;
    Lease<T> gather(int unit, Where at = Where::current()) {
        tell<T>(device_, Mark::gather, params_, unit);
        Weights<T> w = params_.bind(unit, whole(unit));
        finish_views(w, unit);
        return {w, unit, Write::over, at};
    }
    void release(Lease<T>& w, Where at = Where::current()) {
        w.hand_back(at);
        let_go(w.unit);
        tell<T>(device_, Mark::release, params_, w.unit);
    }
    virtual Range owns(int unit) const = 0;            // the elements that this rank's optimizer updates
    virtual View<T> owned(int unit) = 0;               // their memory, (1, count)
    virtual void publish(int unit) = 0;                // the optimizer has written owned(unit)
    virtual void finish() = 0;                         // all that was published can be gathered
    virtual void gather_exactly(bool) {}               // from now on, also where products need less
protected:
    virtual View<T> whole(int unit) = 0;
    virtual void finish_views(Weights<T>&, int) {}     // of a unit that is whole
    virtual void let_go(int unit) = 0;
    const Params& params_;
    const Device* device_;
};

template <class G> class GradStore {
public:
    explicit GradStore(const Params& params, const Device* device = nullptr)
        : params_(params), device_(device), opened_(size_t(params.units()), 0) {}
    virtual ~GradStore() = default;
    void begin_step(long micros) { micros_ = micros, opened_.assign(opened_.size(), 0); }   // each opens all units once
    Lease<G> open(int unit, Where at = Where::current()) {
        tell<G>(device_, Mark::open, params_, unit);
        const Write write = opened_[size_t(unit)]++ && keeps() ? Write::add : Write::over;
        return {params_.bind(unit, whole(unit)), unit, write, at};
    }
    void hand_over(Lease<G>& g, Where at = Where::current()) {
        g.hand_back(at);
        absorb(g.unit, opened_[size_t(g.unit)]);
        tell<G>(device_, Mark::hand_over, params_, g.unit);
    }
    virtual void finish() = 0;                         // all micro-batches are in: owned() is their sum
    virtual View<G> owned(int unit) = 0;               // where this rank's optimizer reads it, (1, n)
protected:
    virtual View<G> whole(int unit) = 0;
    virtual bool keeps() const = 0;                    // what a micro-batch wrote is there when the next one opens
    virtual void absorb(int unit, long micro) = 0;     // micro: 1, 2, ..., micros_
    const Params& params_;
    const Device* device_;
    long micros_ = 1;
private:
    std::vector<long> opened_;                         // how often in this step
};

// ---- memory for stores: all units; a shard of each; the ends and some blocks, for units at work by turns -----------
template <class T> std::vector<View<T>> take_units(Arena& arena, const Params& params) {
    std::vector<View<T>> units;
    for (int u = 0; u < params.units(); ++u) units.push_back(arena.take<T>(1, params.unit_size(u)));
    return units;
}
template <class T> std::vector<View<T>> take_shards(Arena& arena, const Params& params) {
    std::vector<View<T>> shards;
    for (int u = 0; u < params.units(); ++u) shards.push_back(arena.take<T>(1, params.shard(u, 0).count));
    return shards;
}
template <class T> std::vector<View<T>> take_working(Arena& arena, const Params& params, int blocks) {
    std::vector<View<T>> buffers{arena.take<T>(1, params.unit_size(ends_unit))};
    for (int b = 0; b < std::min(blocks, params.units() - 1); ++b)
        buffers.push_back(arena.take<T>(1, params.largest_block()));
    return buffers;
}
// Which of them a unit has: neighbours never the same.
size_t working(int unit, const auto& buffers) {
    return unit == ends_unit ? 0 : 1 + size_t(unit) % (buffers.size() - 1);
}

}  // namespace baretrain
