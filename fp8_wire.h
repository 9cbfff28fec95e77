// fp8_wire.h - weights that are gathered as the codes of FP8 that their products use: half of bf16's bytes, same bits.
// Copy with: comm.h, kernels/copy.h, kernels/fp8.h, params.h and what they name
// Where a product has one scale (--fp8 tensorwise), what is gathered is just what every rank would make of the whole
// weight: E4M3 numbers under the scale of its largest. So the largest of all matrices are found first, by one maximum
// after each update. A rank of S elements of a unit sends S bytes, and two more for each of O elements: so many are in
// no such matrix (norms, biases, padding) on the rank that has most of those.
#pragma once
#include "comm.h"
#include "kernels/copy.h"
#include "kernels/fp8.h"
#include "params.h"

namespace baretrain {

// What is multiplied in FP8 as one matrix, in its unit; `number` counts them all.
struct Fp8Matrix { Place place; Range range; long number; };

// By unit, each in the order of memory.
inline std::vector<std::vector<Fp8Matrix>> fp8_matrices(const Params& params) {
    std::vector<std::vector<Fp8Matrix>> units(size_t(params.units()));
    long number = 0;
    for (const Param& p : params.rows()) {
        std::vector<Fp8Matrix>& here = units[size_t(p.unit)];
        if (params.fp8(p) == Fp8::off) continue;
        if (p.joined) here.back().range.count = p.offset + p.count() - here.back().range.first;
        else here.push_back({p.place, p.range(), number++});
    }
    for (auto& here : units) std::ranges::sort(here, {}, [](const Fp8Matrix& m) { return m.range.first; });
    return units;
}

// body(run, matrix): the parts of `all`, in order, that lie in a matrix, and those between; then null.
template <class Body> void for_each_run(const std::vector<Fp8Matrix>& matrices, Range all, Body body) {
    long at = all.first;
    const long end = all.first + all.count;
    for (const Fp8Matrix& m : matrices) {
        const Range inside = m.range.both(all);
        if (inside.count == 0) continue;
        if (inside.first > at) body(Range{at, inside.first - at}, nullptr);
        body(inside, &m);
        at = inside.first + inside.count;
    }
    if (at < end) body(Range{at, end - at}, nullptr);
}

// Bytes that a rank sends of a unit to each other one.
inline long fp8_part(const Params& params, const std::vector<Fp8Matrix>& matrices, int unit) {
    long most = 0;
    for (int r = 0; r < params.shards(); ++r) {
        long others = 0;
        for_each_run(matrices, params.shard(unit, r), [&](Range run, const Fp8Matrix* m) {
            others += m ? 0 : run.count;
        });
        most = std::max(most, others);
    }
    return params.shard(unit, 0).count + 2 * most;
}

template <class T> class Fp8Wire {
public:
    using Units = std::vector<std::vector<Fp8Matrix>>;
    // amax: (1, matrices), of all ranks. All of it for as long as this lives. on: false: nothing will be gathered, as
    // units without matrices never are.
    Fp8Wire(Arena& arena, Comm& comm, const Params& params, const Units& units, View<float> amax, bool on)
        : comm_(comm), params_(params), units_(units), amax_(amax) {
        long most = 0;
        for (int u = 0; on && u < params.units(); ++u)
            if (!units[size_t(u)].empty()) most = std::max(most, fp8_part(params, units[size_t(u)], u));
        buffer_ = arena.take<char>(1, most * params.shards());
    }
    // whole: (1, unit), written when awaited; part: this rank's shard of the unit.
    void gather(View<T> whole, View<const T> part, int unit, Where at = Where::current()) {
        unit_ = unit, whole_ = whole;
        const int me = comm_.mesh.at(Axis::dp_shard);
        const long bytes = fp8_part(params_, matrices(), unit);
        const View<char> mine = buffer_.col_range(me * bytes, bytes);
        pass(mine, me, [&](Range run, const Fp8Matrix* m, View<char> wire) {
            const View<const T> from = part.col_range(run.first - params_.shard(unit, me).first, run.count);
            if (m) encode_span<E4m3, T>(comm_.device, as<uint8_t>(wire), from, amax_.col_range(m->number, 1));
            else copy<T, T>(comm_.device, as<T>(wire), from);
        });
        pending_ = comm_.gather(Axis::dp_shard, buffer_.col_range(0, bytes * params_.shards()), View<const char>(mine),
                                {"weights", unit}, at);
    }
    // In the matrices are numbers of E4M3 then, to be divided by their scale.
    void await() {
        if (unit_ < 0) return;
        comm_.await(pending_);
        const long bytes = fp8_part(params_, matrices(), unit_);
        for (int r = 0; r < params_.shards(); ++r)
            pass(buffer_.col_range(r * bytes, bytes), r, [&](Range run, const Fp8Matrix* m, View<char> wire) {
                const View<T> to = whole_.col_range(run.first, run.count);
                if (m) decode_span<E4m3, T>(comm_.device, to, View<const uint8_t>(as<uint8_t>(wire)));
                else copy<T, T>(comm_.device, to, View<const T>(as<T>(wire)));
            });
        unit_ = -1;
    }
private:
    const std::vector<Fp8Matrix>& matrices() const { return units_[size_t(unit_)]; }
    template <class E> static View<E> as(View<char> wire) {
        return {reinterpret_cast<E*>(wire.data), 1, wire.cols / long(sizeof(E))};
    }
    // body(run, matrix, where it travels in the part of a rank): a byte for each element in its place, then the others.
    template <class Body> void pass(View<char> part, int rank, Body body) {
        const Range shard = params_.shard(unit_, rank);
        long others = shard.count;
        for_each_run(matrices(), shard, [&](Range run, const Fp8Matrix* m) {
            if (m) return body(run, m, part.col_range(run.first - shard.first, run.count));
            body(run, m, part.col_range(others, run.count * long(sizeof(T))));
            others += run.count * long(sizeof(T));
        });
    }
    Comm& comm_;
    const Params& params_;
    const Units& units_;
    View<float> amax_;
    View<char> buffer_;
    Pending pending_;
    int unit_ = -1;                                    // under way; -1: none
    View<T> whole_;
};

}  // namespace baretrain
