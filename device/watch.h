// watch.h - who is told what a rank does: work at the doors (a launch, a product, ...), and marks between them.
// Copy with: device/error.h
#pragma once
#include "device/error.h"

namespace baretrain {

// Where a rank is busy: with kernels, between ranks, from the data to its device, from its device to files.
enum class Lane { compute, wire, data, save };

// A piece of work at a door: where in the source, how many bytes it must move at least (each read or written once), and
// how many operations its products take. Of a matrix product its sizes: (rows, inner) by (inner, cols).
struct Work {
    Where where;
    double bytes = 0, flops = 0;
    Lane lane = Lane::compute;
    long rows = 0, inner = 0, cols = 0;
    const char *op = nullptr, *what = nullptr, *axis = nullptr;   // of a collective: which, of what, and where
    long unit = -1, ranks = 1;                         // of a collective: what it was started for, among how many
};

// How a kernel is spread out, and its address.
struct Spread {
    const void* kernel;
    unsigned blocks, threads;
    size_t shared_bytes;
};

// No work, but what the work behind it is for: micro-batch i begins; the weights (gather, release) or the gradients
// (open, hand_over) of unit i are leased and given back; the weights of unit i are updated.
enum class Mark { none, micro, gather, release, open, hand_over, update };

// Told before and after each piece, on dry devices too. Pieces may nest: a product may be made of launches.
struct Watch {
    virtual ~Watch() = default;
    virtual void begin(const Work&) = 0;
    virtual void end() = 0;
    virtual void launched(const Spread&) {}            // between begin() and end(), before it runs
    virtual void mark(Mark, long, double) {}           // i, and the bytes of what is leased
    // A collective ends. It began when the last of its ranks started it: at that one's now().
    virtual long now() const { return 0; }
    virtual void travelled(const Work&, long) {}
};

}  // namespace baretrain
