// wire.h - one collective under way, whose elements may travel in a narrower type than they are kept in.
// Copy with: comm.h, kernels/copy.h and what they name
// Fewer bytes, each element rounded, and a buffer: packed when the call starts, unpacked when it is awaited. In their
// own type, or where an axis has one rank, elements travel as they lie: no buffer, no copy, no rounding.
#pragma once
#include "comm.h"
#include "kernels/copy.h"

namespace baretrain {

template <class T> class Wire {
public:
    // most: elements of the largest whole that will travel.
    Wire(Arena& arena, Comm& comm, Axis axis, Type type, long most)
        : comm_(comm), axis_(axis), type_(type),
          narrow_(type_bytes[int(type)] < long(sizeof(T)) && comm.size(axis) > 1),
          buffer_(arena.take<char>(1, narrow_ ? most * type_bytes[int(type)] : 0)) {}

    void gather(View<T> whole, View<const T> part, Purpose p, Where at = Where::current()) {
        if (!narrow_) return start(comm_.gather(axis_, whole, part, p, at), {});
        packed(whole.count(), [&]<class W>(View<W> wire) {
            const View<W> mine = wire.col_range(comm_.mesh.at(axis_) * part.count(), part.count());
            copy<W, T>(comm_.device, mine, part);
            start(comm_.gather(axis_, wire, View<const W>(mine), p, at), whole);
        });
    }
    void scatter(View<T> data, Purpose p, Where at = Where::current()) {
        if (!narrow_) return start(comm_.scatter(axis_, data, p, at), {});
        const long part = data.count() / comm_.size(axis_);
        packed(data.count(), [&]<class W>(View<W> wire) {
            copy<W, T>(comm_.device, wire, View<const T>(data));
            start(comm_.scatter(axis_, wire, p, at), data.col_range(comm_.mesh.at(axis_) * part, part));
        });
    }
    void sum(View<T> data, Purpose p, Where at = Where::current()) {
        if (!narrow_) return start(comm_.sum(axis_, data, p, at), {});
        packed(data.count(), [&]<class W>(View<W> wire) {
            copy<W, T>(comm_.device, wire, View<const T>(data));
            start(comm_.sum(axis_, wire, p, at), data);
        });
    }
    void await() {
        if (!pending_) return;
        const Call call = pending_.call;
        comm_.await(pending_);
        if (!unpacked_.empty()) packed(call.count, [&]<class W>(View<W> wire) {
            const long n = unpacked_.count(), first = n < wire.count() ? comm_.mesh.at(axis_) * n : 0;
            copy<T, W>(comm_.device, unpacked_, View<const W>(wire.col_range(first, n)));
        });
    }
    explicit operator bool() const { return bool(pending_); }   // something is under way
private:
    template <class Use> void packed(long count, Use use) {
        with_type(type_, [&](auto element) {
            using W = decltype(element);
            if constexpr (sizeof(W) > 1 && sizeof(W) < sizeof(T))
                use(View<W>(reinterpret_cast<W*>(buffer_.data), 1, count));
        });
    }
    void start(Pending pending, View<T> unpacked) { pending_ = pending, unpacked_ = unpacked; }
    Comm& comm_;
    const Axis axis_;
    const Type type_;
    const bool narrow_;
    View<char> buffer_;
    Pending pending_;
    View<T> unpacked_;                                 // where what has come goes; empty: it is there
};

}  // namespace baretrain
