// cpu.h - the CPU as a CUDA device whose blocks have one thread: threadIdx is the constant 0, blockDim the constant 1.
// Copy with: device/error.h
// So `for (i = threadIdx.x; i < n; i += blockDim.x)` is a plain stride-1 loop that the compiler vectorises, shared
// memory is a variable of the one thread, barriers are nothing, and a launch is an OpenMP loop over blocks.
#pragma once
#include "device/error.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define __global__
#define __device__
#define __host__
#define __shared__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))

namespace baretrain {

using std::log, std::sqrt;                            // for float too: ::sqrt and ::log are the ones for double

struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct ConstantDim { unsigned x, y, z; };
inline constexpr ConstantDim threadIdx{0, 0, 0}, blockDim{1, 1, 1};
inline constexpr int warpSize = 1;
inline constexpr unsigned max_threads = 1;
inline constexpr bool on_gpu = false;
inline constinit thread_local dim3 blockIdx{0, 0, 0}, gridDim{1, 1, 1};

inline void __syncthreads() {}
inline void __syncwarp() {}
template <class V> V __shfl_xor_sync(unsigned, V v, int) { return v; }

using cudaStream_t = struct NoStream*;

// Dynamic shared memory of the running block: at least the bytes that its launch asked for, 64-byte aligned.
struct SharedBuffer {
    char* data = nullptr;
    size_t bytes = 0;
    ~SharedBuffer() { std::free(data); }
    void grow(size_t n) {
        if (n <= bytes) return;
        std::free(data);
        bytes = (n + 63) / 64 * 64;
        data = static_cast<char*>(std::aligned_alloc(64, bytes));
    }
};
inline thread_local SharedBuffer shared_buffer;
template <class V> V* shared_memory() { return reinterpret_cast<V*>(shared_buffer.data); }

// Runs body once for each block. `team` is the number of OpenMP threads; the result never depends on it.
template <class Body> void run_grid(unsigned blocks, unsigned, size_t shared_bytes, int team, Body body) {
    (void)team;
#if defined(_OPENMP)
    #pragma omp parallel for schedule(static) num_threads(team) if (blocks > 1 && team > 1)
#endif
    for (unsigned b = 0; b < blocks; ++b) {
        if (shared_bytes) shared_buffer.grow(shared_bytes);
        gridDim = {blocks, 1, 1};
        blockIdx = {b, 0, 0};
        body();
    }
}

inline std::string device_name(int) { return "CPU"; }
inline int device_count() { return 0; }
inline int device_capability(int) { return 0; }
inline void use_device(int) {}
inline cudaStream_t new_stream() { return nullptr; }
inline size_t device_memory() { return 0; }             // free bytes of its own; 0: it uses the host's

inline int default_team() {
#if defined(_OPENMP)
    return std::max(1, std::min(omp_get_max_threads(), omp_get_thread_limit()));   // OMP_NUM_THREADS, else the cores
#else
    return 1;
#endif
}

// Memory of the device. Fresh pages read as zero.
inline void* device_allocate(size_t bytes) {
#if defined(__linux__)
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("out of memory: asked the system for " + std::to_string(bytes) + " bytes");
    if (bytes >= (8u << 20)) madvise(p, bytes, MADV_HUGEPAGE);   // before the first touch: half of AdamW's time else
    return p;
#else
    void* p = std::calloc(bytes, 1);
    if (!p) fail("out of memory: asked the system for " + std::to_string(bytes) + " bytes");
    return p;
#endif
}
inline void device_free(void* p, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
    munmap(p, bytes);
#else
    std::free(p);
#endif
}
inline void device_copy(void* to, const void* from, size_t bytes, cudaStream_t) { std::memcpy(to, from, bytes); }
struct Staging {                                       // see cuda.h
    void send(void* to, const void* from, size_t bytes, cudaStream_t) { std::memcpy(to, from, bytes); }
};
inline void device_fill(void* p, int byte, size_t bytes, cudaStream_t) { std::memset(p, byte, bytes); }
inline void device_wait(cudaStream_t) {}

}  // namespace baretrain
