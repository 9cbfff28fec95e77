// trace.h - what a rank did and when, told by its device: trace.json for Perfetto, a picture, sentences.
// Copy with: trace.cpp, device/watch.h, files.h and what they name
// A piece of work at a door is an event; pieces inside another count with the outer one. Time is the wall clock's: on
// a GPU each piece is waited for, so that its length is true and nothing overlaps. Or it is virtual: a piece takes its
// operations, or without any its bytes, over a stated rate: the same on every machine, however long it really took.
// A collective travels beside the work, from when the last of its ranks started it until it is awaited; or, virtually,
// for its bytes over the rate of the wire, as soon as that is free. So they follow each other as they are awaited.
#pragma once
#include "device/watch.h"
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

namespace baretrain {

// One for all ranks, so that they agree on when 0 was. The wall clock is that of one machine.
struct TraceClock {
    bool real = true;                                  // false: virtual
    double flops = 1e12, bytes = 1e11, wire = 1e10;    // of the virtual clock, a second; wire: bytes between ranks
    std::chrono::steady_clock::time_point zero = std::chrono::steady_clock::now();
};

struct Event {
    Mark mark = Mark::none;                            // none: a piece of work; else no time passes
    Work work;                                         // of a mark only the bytes; numbers alone: ranks exchange events
    char name[40] = "";                                // operation() of the work
    int rank = 0;
    long step = 0, unit = -1, micro = -1;              // unit, micro-batch -1: of no one in particular
    long begin = 0, end = 0;                           // nanoseconds
    size_t memory = 0;                                 // the most bytes in use since it was asked before; 0: not asked
};
using Events = std::vector<Event>;                     // of one rank, or of several, one behind the other

class Trace final : public Watch {
public:
    // settle() waits until the device has done what was started, and gives the most bytes in use since it was called.
    Trace(const TraceClock& clock, std::function<size_t()> settle, int rank = 0)
        : clock_(clock), settle_(std::move(settle)), rank_(rank) {}
    const Events& events() const { return events_; }

    void step(long number);                            // what comes now is of this step
    void begin(const Work& work) override;
    void end() override;
    void mark(Mark what, long index, double bytes) override;
    long now() const override;
    void travelled(const Work& work, long latest) override;
private:
    Event event(const Work& work) const;
    TraceClock clock_;
    std::function<size_t()> settle_;
    int rank_;
    Events events_;
    std::vector<long> leased_;                         // units: the innermost lease is what the work is for
    long step_ = 0, micro_ = -1, virtual_now_ = 0, wire_free_ = 0;
    int depth_ = 0;
    size_t open_ = 0;                                  // the event that has begun
};

std::string operation(const Work& work);               // the function that it was started from; "sum control on tp"
std::string trace_json(const Events& ranks);           // Chrome's trace event format: a process a rank, a thread a lane
std::string trace_html(const Events& ranks, size_t planned);   // two lanes a rank over its memory; planned: bytes
std::string explain(const Events& step);               // numbered sentences; what repeats is said once

}  // namespace baretrain
