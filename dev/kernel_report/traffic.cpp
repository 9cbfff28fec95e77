// traffic.cpp - counts the accesses that ThreadSanitizer's instrumentation reports. Compiled without instrumentation.
// It uses no inline function of anybody else: the linker might take the instrumented copy, which would call back here.
#include "dev/kernel_report/traffic.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

using baretrain::kernel_report::Traffic, baretrain::kernel_report::sector, baretrain::kernel_report::l1_share;

namespace {

struct Counter {
    const char* base;
    size_t bytes;
    const unsigned *block, *thread;
    void (*yield)();
    bool on;
    unsigned last_block;
    // Of each sector: the number of the read miss that brought it last; the block that stored to it last; the launches
    // that read it and that stored to it last.
    uint32_t *fetched, *stored_by, *read_in, *stored_in;
    uint32_t busy_in[1024];                            // of each thread: the last block in which it did anything
    uint32_t misses, misses_before_block, blocks, launches;
    double block_store_bytes, block_store_sectors;
    Traffic sum;
} counter;

void* zeros(size_t bytes) {                            // pages come when they are touched
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// All that the running block stored goes through L1; half a sector travels as a whole one.
void end_block() {
    const double whole = counter.block_store_sectors * double(sector);
    counter.sum.l2_bytes += whole > counter.block_store_bytes ? whole : counter.block_store_bytes;
    counter.block_store_bytes = counter.block_store_sectors = 0;
    counter.misses_before_block = counter.misses;
    ++counter.blocks;
}

void count(size_t at, size_t size, bool store) {
    if (*counter.block != counter.last_block) end_block(), counter.last_block = *counter.block;
    Traffic& t = counter.sum;
    uint32_t& busy = counter.busy_in[*counter.thread % 1024];
    if (busy != counter.blocks) busy = counter.blocks, t.threads += 1;
    (store ? t.stores : t.loads) += 1;
    (store ? t.store_bytes : t.load_bytes) += double(size);
    if (size < 4) t.narrow_bytes += double(size);
    if (store) counter.block_store_bytes += double(size);
    for (size_t s = at / sector; s <= (at + size - 1) / sector; ++s) {
        uint32_t& launch = (store ? counter.stored_in : counter.read_in)[s];
        const bool fresh = launch != counter.launches && (store || counter.stored_in[s] != counter.launches);
        if (fresh) t.memory_bytes += double(sector);
        launch = counter.launches;
        if (store && counter.stored_by[s] != counter.blocks)
            counter.stored_by[s] = counter.blocks, counter.block_store_sectors += 1;
        if (store) continue;
        const uint32_t then = counter.fetched[s];
        if (then > counter.misses_before_block && (counter.misses - then) * sector < l1_share) continue;
        counter.fetched[s] = ++counter.misses;
        t.l2_bytes += double(sector);
    }
}

void access(const void* p, size_t size, bool store) {
    const size_t at = size_t(static_cast<const char*>(p) - counter.base);
    if (at >= counter.bytes || !counter.on || size == 0) return;
    count(at, size, store);
    counter.yield();
}

}  // namespace

namespace baretrain::kernel_report {

void start_counting(const void* base, unsigned long bytes, const unsigned* block, const unsigned* thread,
                    void (*yield)()) {
    const size_t sectors = bytes / sector + 1;
    if (!counter.fetched) {
        counter.fetched = static_cast<uint32_t*>(zeros(sectors * sizeof(uint32_t)));
        counter.stored_by = static_cast<uint32_t*>(zeros(sectors * sizeof(uint32_t)));
        counter.read_in = static_cast<uint32_t*>(zeros(sectors * sizeof(uint32_t)));
        counter.stored_in = static_cast<uint32_t*>(zeros(sectors * sizeof(uint32_t)));
    }
    counter.base = static_cast<const char*>(base), counter.bytes = bytes, counter.block = block, counter.thread = thread, counter.yield = yield;
    counter.sum = Traffic{};
    counter.last_block = *block;
    ++counter.launches, ++counter.blocks;
    counter.misses_before_block = counter.misses;
    counter.on = true;
}

Traffic stop_counting() {
    counter.on = false;
    end_block();
    return counter.sum;
}

}  // namespace baretrain::kernel_report

// What the instrumented code calls. Vector registers do not survive a call, so these are small; atomics, which no kernel has, are not counted.
#define BT_ACCESS(n) \
    void __tsan_read##n(void* p) { access(p, n, false); } \
    void __tsan_write##n(void* p) { access(p, n, true); } \
    void __tsan_unaligned_read##n(void* p) { access(p, n, false); } \
    void __tsan_unaligned_write##n(void* p) { access(p, n, true); }
#define BT_ATOMIC(bits, T) \
    T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, 5); } \
    void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, 5); } \
    T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { return __atomic_exchange_n(p, v, 5); } \
    T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) { return __atomic_fetch_add(p, v, 5); } \
    T __tsan_atomic##bits##_fetch_sub(volatile T* p, T v, int) { return __atomic_fetch_sub(p, v, 5); } \
    bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) { \
        return __atomic_compare_exchange_n(p, c, v, false, 5, 5); \
    } \
    bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* c, T v, int, int) { \
        return __atomic_compare_exchange_n(p, c, v, false, 5, 5); \
    } \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T c, T v, int, int) { \
        return __atomic_compare_exchange_n(p, &c, v, false, 5, 5), c; \
    }
extern "C" {
BT_ATOMIC(8, uint8_t) BT_ATOMIC(32, uint32_t) BT_ATOMIC(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(5); }
BT_ACCESS(1) BT_ACCESS(2) BT_ACCESS(4) BT_ACCESS(8) BT_ACCESS(16)
void __tsan_read_range(void* p, size_t n) { access(p, n, false); }
void __tsan_write_range(void* p, size_t n) { access(p, n, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// Copies that the compiler left as calls: clang's go to __tsan_, the linker sends g++'s to __wrap_ (--wrap).
void* __real_memcpy(void*, const void*, size_t);
void* __real_memmove(void*, const void*, size_t);
void* __real_memset(void*, int, size_t);
void* __wrap_memcpy(void* to, const void* from, size_t n) {
    access(from, n, false), access(to, n, true);
    return __real_memcpy(to, from, n);
}
void* __wrap_memmove(void* to, const void* from, size_t n) {
    access(from, n, false), access(to, n, true);
    return __real_memmove(to, from, n);
}
void* __wrap_memset(void* to, int byte, size_t n) {
    access(to, n, true);
    return __real_memset(to, byte, n);
}
void* __tsan_memcpy(void* to, const void* from, size_t n) { return __wrap_memcpy(to, from, n); }
void* __tsan_memmove(void* to, const void* from, size_t n) { return __wrap_memmove(to, from, n); }
void* __tsan_memset(void* to, int byte, size_t n) { return __wrap_memset(to, byte, n); }
}
