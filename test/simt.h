// simt.h - the CPU as a CUDA device with real blocks: every CUDA thread is a fiber, blocks run one after another.
// Copy with: device/error.h
// What a GPU would turn into a hang or into wrong numbers is an Error that names the lines: a barrier or shuffle that
// some of its block or warp skip, two of them at once, writes behind dynamic shared memory. That starts as NaN. Between
// two barriers one warp runs after the other; simt_seed shuffles warps, lanes and blocks: a missing barrier gives wrong
// numbers for some seed. Under -fsanitize=thread it is a data race with both lines.
// An exception in a thread ends its launch and leaves run_grid(). Only a thread that spins on a flag can still hang.
#pragma once
#include "device/error.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <type_traits>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(BT_COUNTED)                                // instrumented, with a runtime of its own: dev/kernel_report
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BT_TSAN
#elif __has_feature(address_sanitizer)
#define BT_ASAN
#endif
#elif defined(__SANITIZE_THREAD__)
#define BT_TSAN
#elif defined(__SANITIZE_ADDRESS__)
#define BT_ASAN
#endif
#if defined(BT_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int);
extern "C" void AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int);
extern "C" void AnnotateIgnoreWritesEnd(const char*, int);
#elif defined(BT_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local                 // of the running block: blocks of one host thread are sequential
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))

namespace baretrain {

struct dim3 { unsigned x = 1, y = 1, z = 1; };
inline constinit thread_local dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim{1, 1, 1}, gridDim{1, 1, 1};
inline constexpr int warpSize = 32;
inline constexpr unsigned max_threads = 1024;
inline constexpr bool on_gpu = false;
inline constinit thread_local unsigned simt_seed = 1;  // another seed, another order of threads and blocks

using std::log, std::sqrt;
using cudaStream_t = struct NoStream*;

namespace simt {

inline constexpr size_t stack_bytes = 256 << 10, guard_bytes = 4 << 10, shared_limit = 227 << 10;

// What the sanitizers must know: which fiber runs, and what happens before what.
#if defined(BT_TSAN)
inline void happens_before(void* token) { __tsan_release(token); }
inline void happens_after(void* token) { __tsan_acquire(token); }
struct Unobserved {                                    // the scheduler's own reads and writes order nothing
    Unobserved() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
    ~Unobserved() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};
#else
inline void happens_before(void*) {}
inline void happens_after(void*) {}
struct Unobserved { ~Unobserved() {} };
#endif

// A stack and where its owner stands on it.
struct Context {
    void* stack_pointer = nullptr;
    const void* stack = nullptr;                       // its lowest byte; the scheduler's own is told by the sanitizer
    size_t bytes = 0;
    void* sanitizer = nullptr;                         // TSan: the fiber; ASan: the fake stack
#if !defined(__x86_64__)
    ucontext_t registers;
#endif
};

#if defined(__x86_64__)
// Saves the registers that a call must preserve and takes those of the other stack; swapcontext() makes system calls.
#if defined(__clang__)
__attribute__((naked, noinline))
#else
__attribute__((naked, noipa))
#endif
inline void swap_stacks(void**, void*) {
    asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
}
#endif

inline void switch_context(Context& from, Context& to) {
#if defined(BT_TSAN)
    __tsan_switch_to_fiber(to.sanitizer, __tsan_switch_to_fiber_no_sync);
#elif defined(BT_ASAN)
    __sanitizer_start_switch_fiber(&from.sanitizer, to.stack, to.bytes);
#endif
#if defined(__x86_64__)
    swap_stacks(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.registers, &to.registers);
#endif
#if defined(BT_ASAN)
    __sanitizer_finish_switch_fiber(from.sanitizer, nullptr, nullptr);
#endif
}

struct Copy { void* to; const void* from; int bytes; bool there; };   // cp.async: under way until it is waited for

enum class Group { warp, block };
enum class State { finished, ready, waiting };
struct Unwind {};                                      // thrown in waiting threads when their launch has failed

struct Fiber {
    Context context;
    State state = State::finished;
    Group group = Group::block;                        // who must come to the place where it waits
    const char* what = "";
    Where at;
    unsigned passed[2] = {0, 0};                       // warp and block barriers so far
    std::vector<Copy> copies;                          // the oldest first
    std::vector<size_t> groups;                        // how many of them each commit has closed
    std::exception_ptr error;
    Fiber();
    ~Fiber();
    Fiber(const Fiber&) = delete;
};

struct alignas(128) Slot { unsigned char bytes[128]; };

// What one host thread needs to run blocks; ranks that are threads have one each.
struct Machine {
    std::vector<std::unique_ptr<Fiber>> fibers;        // they survive: a launch starts none
    Context scheduler;
    void (*call)(const void*) = nullptr;               // runs the kernel with the arguments of body
    const void* body = nullptr;
    bool unwinding = false;
    std::vector<Slot> shared;
    size_t shared_bytes = 0;
    alignas(16) unsigned char exchange[2][max_threads][32];
    char barriers[2][max_threads / warpSize + 1];      // sync tokens: a warp each, and the block's
    char begin, end;
};
inline constinit thread_local Machine* machine = nullptr;   // the host thread's own: a plain pointer is quick to find
inline Machine* own_machine() {
    static thread_local Machine m;
    return &m;
}

inline void fiber_main() {
#if defined(BT_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &machine->scheduler.stack, &machine->scheduler.bytes);
#endif
    for (;;) {
        Fiber& f = *machine->fibers[threadIdx.x];
        happens_after(&machine->begin);
        try {
            if (!machine->unwinding) machine->call(machine->body);
        } catch (const Unwind&) {
        } catch (...) {
            f.error = std::current_exception();
        }
        f.state = State::finished;
        happens_before(&machine->end);
        switch_context(f.context, machine->scheduler);
    }
}

inline Fiber::Fiber() {
    void* p = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("simt: no memory for the stack of a thread");
    mprotect(p, guard_bytes, PROT_NONE);               // a kernel with huge local arrays crashes here, not elsewhere
    context.stack = p, context.bytes = stack_bytes;
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(static_cast<char*>(p) + stack_bytes);
    top[-2] = reinterpret_cast<void*>(&fiber_main);    // above it: no return address; below: six registers, zero
    context.stack_pointer = top - 8;
#else
    getcontext(&context.registers);
    context.registers.uc_stack.ss_sp = p, context.registers.uc_stack.ss_size = stack_bytes;
    makecontext(&context.registers, fiber_main, 0);
#endif
#if defined(BT_TSAN)
    context.sanitizer = __tsan_create_fiber(0);
    __tsan_set_fiber_name(context.sanitizer, ("CUDA thread " + std::to_string(machine->fibers.size())).c_str());
#endif
}
inline Fiber::~Fiber() {
#if defined(BT_TSAN)
    __tsan_destroy_fiber(context.sanitizer);
#endif
    munmap(const_cast<void*>(context.stack), stack_bytes);
}

// Suspends the running thread until its whole group waits at this place.
inline void wait(Group group, const char* what, Where at) {
    Fiber& f = *machine->fibers[threadIdx.x];
    f.state = State::waiting, f.group = group, f.what = what, f.at = at;
    // Two tokens in turn: a thread that is already at the next barrier must not order what a slow one does before it.
    const unsigned turn = f.passed[group == Group::block]++ % 2;
    void* token = &machine->barriers[turn][group == Group::block ? max_threads / warpSize : threadIdx.x / warpSize];
    happens_before(token);
    switch_context(f.context, machine->scheduler);
    if (machine->unwinding) throw Unwind{};
    happens_after(token);
}

// Lets all other threads of the block come to their next yield() too, as a GPU's warps go on side by side.
inline void yield() { switch_context(machine->fibers[threadIdx.x]->context, machine->scheduler); }

inline bool same_place(const Fiber& a, const Fiber& b) {
    return a.state == State::waiting && b.state == State::waiting && a.group == b.group && a.at.line() == b.at.line() &&
           a.at.column() == b.at.column() &&
           (a.at.file_name() == b.at.file_name() || std::strcmp(a.at.file_name(), b.at.file_name()) == 0);
}

// Lets the threads first .. end - 1 go on if they all wait for each other at one place.
inline bool release(Group group, unsigned first, unsigned end) {
    const auto& fibers = machine->fibers;
    for (unsigned t = first; t < end; ++t)
        if (fibers[t]->group != group || !same_place(*fibers[first], *fibers[t])) return false;
    for (unsigned t = first; t < end; ++t) fibers[t]->state = State::ready;
    return true;
}

// Nothing can move: names one thread that waits, and one of its group that is not coming.
[[noreturn]] inline void report_stuck() {
    const auto& fibers = machine->fibers;
    const auto first_waiting = [&](Group g) {
        unsigned t = 0;
        while (t < blockDim.x && (fibers[t]->state != State::waiting || fibers[t]->group != g)) ++t;
        return t;
    };
    unsigned t = first_waiting(Group::warp), u = t / warpSize * warpSize;
    if (t == blockDim.x) t = first_waiting(Group::block), u = 0;
    while (same_place(*fibers[t], *fibers[u])) ++u;
    const Fiber &here = *fibers[t], &other = *fibers[u];
    const std::string place = std::string(other.at.file_name()) + ":" + std::to_string(other.at.line());
    fail_at(std::string(here.what) + ": thread " + std::to_string(t) + " of block " + std::to_string(blockIdx.x) +
            " waits here for its whole " + (here.group == Group::warp ? "warp" : "block") + ", but thread " +
            std::to_string(u) + (other.state == State::finished ? " has returned" : " waits at " + place), here.at);
}

inline void resume(unsigned t) {
    threadIdx = {t, 0, 0};
    switch_context(machine->scheduler, machine->fibers[t]->context);
    if (machine->fibers[t]->error) std::rethrow_exception(std::exchange(machine->fibers[t]->error, nullptr));
}

// Runs the block to its end. Each warp goes as far as it can before the next one starts.
inline void run_threads(std::mt19937& order) {
    std::vector<unsigned> warps((blockDim.x + warpSize - 1) / warpSize);
    std::iota(warps.begin(), warps.end(), 0u);
    for (;;) {
        std::shuffle(warps.begin(), warps.end(), order);
        for (unsigned w : warps) {
            const unsigned first = w * warpSize, end = std::min(first + warpSize, blockDim.x);
            do {
                const unsigned start = unsigned(order()), step = unsigned(order()) | 1;   // odd: meets every lane
                for (unsigned i = 0; i < unsigned(warpSize); ++i) {
                    const unsigned t = first + (start + i * step) % warpSize;
                    if (t < end && machine->fibers[t]->state == State::ready) resume(t);
                }
            } while (release(Group::warp, first, end));
        }
        const auto first = machine->fibers.begin(), last = first + blockDim.x;
        if (std::all_of(first, last, [](const auto& f) { return f->state == State::finished; })) return;
        if (std::any_of(first, last, [](const auto& f) { return f->state == State::ready; })) continue;
        if (!release(Group::block, 0, blockDim.x)) report_stuck();
    }
}

inline void run_block(size_t shared_bytes, std::mt19937& order) {
    machine->shared.resize(shared_bytes / sizeof(Slot) + 2);
    machine->shared_bytes = shared_bytes;
    unsigned char* shared = machine->shared[0].bytes;
    std::memset(shared, 0xFF, shared_bytes);           // every float in it is NaN
    std::memset(shared + shared_bytes, 0xA5, sizeof(Slot));
    for (unsigned t = 0; t < blockDim.x; ++t) {
        machine->fibers[t]->state = State::ready;
        machine->fibers[t]->passed[0] = machine->fibers[t]->passed[1] = 0;
        machine->fibers[t]->copies.clear(), machine->fibers[t]->groups.clear();
    }
    happens_before(&machine->begin);
    try {
        run_threads(order);
    } catch (...) {                                    // take the others out of the kernel: destructors run
        machine->unwinding = true;
        for (unsigned t = 0; t < blockDim.x; ++t) {
            threadIdx = {t, 0, 0};
            Fiber& f = *machine->fibers[t];
            if (f.state != State::finished) switch_context(machine->scheduler, f.context);
            f.error = nullptr;                         // the first error is the one to report
        }
        machine->unwinding = false;
        happens_after(&machine->end);
        throw;
    }
    happens_after(&machine->end);
    for (size_t i = 0; i < sizeof(Slot); ++i)
        require(shared[shared_bytes + i] == 0xA5, "a kernel wrote behind its dynamic shared memory");
}

// Every lane of the warp gives a value and reads one; lanes that do not exist have none.
template <class V> V read_lane(unsigned mask, V v, unsigned lane, const char* what, Where at) {
    static_assert(sizeof(V) <= 16 && std::is_trivially_copyable_v<V>);
    require(mask == 0xFFFFFFFFu, "shuffle: a whole warp, mask 0xFFFFFFFF", at);
    auto& slots = machine->exchange[machine->fibers[threadIdx.x]->passed[0] % 2];
    std::memcpy(slots[threadIdx.x], &v, sizeof v);
    wait(Group::warp, what, at);
    const unsigned source = threadIdx.x / warpSize * warpSize + lane % warpSize;
    require(source < blockDim.x, "shuffle: from a lane that the block has", at);
    std::memcpy(&v, slots[source], sizeof v);
    return v;
}

}  // namespace simt

inline void __syncthreads(Where at = Where::current()) { simt::wait(simt::Group::block, "__syncthreads", at); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, Where at = Where::current()) {
    require(mask == 0xFFFFFFFFu, "__syncwarp: a whole warp, mask 0xFFFFFFFF", at);
    simt::wait(simt::Group::warp, "__syncwarp", at);
}
template <class V> V __shfl_sync(unsigned mask, V v, int lane, Where at = Where::current()) {
    return simt::read_lane(mask, v, unsigned(lane), "__shfl_sync", at);
}
template <class V> V __shfl_xor_sync(unsigned mask, V v, int lanes, Where at = Where::current()) {
    return simt::read_lane(mask, v, (threadIdx.x ^ unsigned(lanes)) % warpSize, "__shfl_xor_sync", at);
}
template <class V> V __shfl_down_sync(unsigned mask, V v, unsigned down, Where at = Where::current()) {
    const unsigned lane = threadIdx.x % warpSize;      // the last lanes keep their own value
    return simt::read_lane(mask, v, lane + down < unsigned(warpSize) ? lane + down : lane, "__shfl_down_sync", at);
}

inline int __any_sync(unsigned mask, int v, Where at = Where::current()) {
    for (int d = warpSize / 2; d > 0; d /= 2)
        v |= simt::read_lane(mask, v, (threadIdx.x ^ unsigned(d)) % warpSize, "__any_sync", at);
    return v != 0;
}

// Dynamic shared memory of the running block.
template <class V> V* shared_memory() { return reinterpret_cast<V*>(simt::machine->shared[0].bytes); }

// Runs body once for each thread of each block. One host thread does it all: the result does not depend on `team`.
template <class Body> void run_grid(unsigned blocks, unsigned threads, size_t shared_bytes, int, Body body) {
    using namespace simt;
    require(threads >= 1 && threads <= max_threads, "launch: 1 to 1024 threads a block");
    require(shared_bytes <= shared_limit, "launch: at most 227 KiB of shared memory a block");
    const Unobserved scheduler_only;
    machine = own_machine();
    std::mt19937 order(simt_seed);
    std::vector<unsigned> turn(blocks);
    std::iota(turn.begin(), turn.end(), 0u);
    std::shuffle(turn.begin(), turn.end(), order);
#if defined(BT_TSAN)
    machine->scheduler.sanitizer = __tsan_get_current_fiber();
#endif
    machine->call = [](const void* p) { (*static_cast<const Body*>(p))(); };
    machine->body = &body;
    while (machine->fibers.size() < threads) machine->fibers.push_back(std::make_unique<Fiber>());
    gridDim = {blocks, 1, 1}, blockDim = {threads, 1, 1};
    for (unsigned b : turn) {
        blockIdx = {b, 0, 0};
        run_block(shared_bytes, order);
    }
}

inline int default_team() { return 1; }
inline int device_capability(int) { return 90; }

inline void* device_allocate(size_t bytes) {
    void* p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!p) fail("out of memory: asked the system for " + std::to_string(bytes) + " bytes");
    return std::memset(p, 0, bytes);
}
inline void device_free(void* p, size_t) { std::free(p); }
inline void device_copy(void* to, const void* from, size_t bytes, cudaStream_t) { std::memcpy(to, from, bytes); }
struct Staging {
    void send(void* to, const void* from, size_t bytes, cudaStream_t) { std::memcpy(to, from, bytes); }
};
inline void device_fill(void* p, int byte, size_t bytes, cudaStream_t) { std::memset(p, byte, bytes); }
inline void device_wait(cudaStream_t) {}

}  // namespace baretrain
#include "test/simt_mma.h"
