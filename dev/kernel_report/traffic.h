// traffic.h - what the loads and stores of a launch moved: counted in the SIMT build, access by access (traffic.cpp).
// Copy with: nothing
// The kernels are compiled with the instrumentation of ThreadSanitizer, which calls a function before each access;
// traffic.cpp has functions of those names that count, instead of ThreadSanitizer's own. Only the arena counts.
#pragma once

namespace baretrain::kernel_report {

inline constexpr unsigned long sector = 32;            // bytes that travel between L1 and L2 at a time
inline constexpr unsigned long l1_share = 32 << 10;    // bytes of L1 that one block has: what it read last

struct Traffic {
    // Accesses and their bytes.
    double loads = 0, stores = 0, load_bytes = 0, store_bytes = 0, narrow_bytes = 0;   // narrow: below 4 bytes each
    // Between L1 and L2: sectors that a block reads and does not have in its share of L1, and all that it stores (whole
    // sectors, once a block, where it stores less than that). Between L2 and memory: each sector is read at most once and
    // written at most once a launch; what was stored in it is not read.
    double l2_bytes = 0, memory_bytes = 0;
    double threads = 0;                                // that loaded or stored anything, of all blocks
};

// Counts accesses to [base, base + bytes) from now on. block, thread: where the numbers of the running ones stand. yield: called
// after each access, so that all threads of a block come to their n-th access before one comes to the next.
void start_counting(const void* base, unsigned long bytes, const unsigned* block, const unsigned* thread,
                    void (*yield)());
Traffic stop_counting();

}  // namespace baretrain::kernel_report
