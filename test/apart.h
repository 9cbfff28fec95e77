// apart.h - the one-thread CPU build with device memory that the host can't touch: as on a GPU, without one.
// Copy with: device/cpu.h
// `make apart` includes it in front of everything. Memory of the device can be read and written inside launches, copies
// and fills only; host code that follows a pointer to it ends the process there, with a line and its callers.
#pragma once
#include <csignal>
#include <execinfo.h>
#include <map>
#include <mutex>
#include <unistd.h>
#define device_allocate cpu_device_allocate
#define device_free cpu_device_free
#define device_copy cpu_device_copy
#define device_fill cpu_device_fill
#define run_grid cpu_run_grid
#define Staging CpuStaging
#include "device/cpu.h"
#undef device_allocate
#undef device_free
#undef device_copy
#undef device_fill
#undef run_grid
#undef Staging

namespace baretrain::apart {

// All memory of the device, one range of addresses: closed unless somebody works on it.
class Memory {
public:
    static Memory& all() { static Memory m; return m; }
    void* take(size_t bytes) {
        const std::lock_guard lock(mutex_);
        const size_t size = rounded(bytes);
        if (const auto free = free_.find(size); free != free_.end()) {
            char* const p = free->second;
            free_.erase(free);
            return p;
        }
        if (top_ + size > reserved) fail("apart: more device memory than is reserved");
        char* const p = base_ + top_;
        top_ += size;
        if (users_) mprotect(p, size, PROT_READ | PROT_WRITE);
        return p;
    }
    void give(void* p, size_t bytes) {
        const std::lock_guard lock(mutex_);
        madvise(p, rounded(bytes), MADV_DONTNEED);     // reads as zero when it is taken again
        free_.emplace(rounded(bytes), static_cast<char*>(p));
    }
    void open() {
        const std::lock_guard lock(mutex_);
        if (users_++ == 0) mprotect(base_, top_, PROT_READ | PROT_WRITE);
    }
    void close() {
        const std::lock_guard lock(mutex_);
        if (--users_ == 0) mprotect(base_, top_, PROT_NONE);
    }
private:
    static constexpr size_t reserved = size_t(1) << 36, page = 4096;
    static size_t rounded(size_t bytes) { return (bytes + page - 1) / page * page; }
    Memory() {
        void* const p = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) fail("apart: no addresses for the memory of the device");
        base_ = static_cast<char*>(p);
        struct sigaction act = {};
        act.sa_sigaction = touched;
        act.sa_flags = SA_SIGINFO | int(SA_RESETHAND);
        sigaction(SIGSEGV, &act, nullptr);
    }
    static void touched(int, siginfo_t* info, void*) {
        const char* const at = static_cast<const char*>(info->si_addr);
        const bool ours = at >= all().base_ && at < all().base_ + reserved;
        const char text[] = "apart: the host reads or writes memory of the device, called from\n";
        if (ours && write(2, text, sizeof text - 1) > 0) {
            void* callers[20];
            backtrace_symbols_fd(callers, backtrace(callers, 20), 2);
        }
    }                                                  // and it happens again, now with the usual end
    std::mutex mutex_;
    char* base_ = nullptr;
    size_t top_ = 0;
    int users_ = 0;
    std::multimap<size_t, char*> free_;
};

struct Open {
    Open() { Memory::all().open(); }
    ~Open() { Memory::all().close(); }
    Open(const Open&) = delete;
};

}  // namespace baretrain::apart

namespace baretrain {

inline void* device_allocate(size_t bytes) { return apart::Memory::all().take(bytes); }
inline void device_free(void* p, size_t bytes) { apart::Memory::all().give(p, bytes); }
inline void device_copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    const apart::Open open;
    cpu_device_copy(to, from, bytes, stream);
}
struct Staging {
    void send(void* to, const void* from, size_t bytes, cudaStream_t stream) { device_copy(to, from, bytes, stream); }
};
inline void device_fill(void* p, int byte, size_t bytes, cudaStream_t stream) {
    const apart::Open open;
    cpu_device_fill(p, byte, bytes, stream);
}
template <class Body> void run_grid(unsigned blocks, unsigned threads, size_t shared_bytes, int team, Body body) {
    const apart::Open open;
    cpu_run_grid(blocks, threads, shared_bytes, team, body);
}

}  // namespace baretrain
