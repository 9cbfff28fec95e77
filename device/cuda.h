// cuda.h - the CUDA runtime under the same few names that cpu.h gives: allocate, copy, wait, and the limits of a block.
// Copy with: device/error.h
#pragma once
#include "device/error.h"
#include <algorithm>
#include <cmath>
#include <cuda_runtime.h>

namespace baretrain {

inline constexpr unsigned max_threads = 1024;
inline constexpr bool on_gpu = true;

inline void check(cudaError_t status, Where at = Where::current()) {
    if (status != cudaSuccess) fail_at(std::string("CUDA: ") + cudaGetErrorString(status), at);
}

#if defined(__CUDA_ARCH__)
template <class V> __device__ V* shared_memory() {
    extern __shared__ __align__(16) unsigned char dynamic_shared[];
    return reinterpret_cast<V*>(dynamic_shared);
}
#else
template <class V> __device__ V* shared_memory();
#endif

// The name of a device; one line that says so when there is none.
inline std::string device_name(int index) {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0)
        fail(std::string("no CUDA device found (") +
             cudaGetErrorString(status == cudaSuccess ? cudaErrorNoDevice : status) +
             "); this program runs on NVIDIA GPUs: on a machine without one build ./train_gpt with `make`");
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index));
    return properties.name;
}

inline int device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
// 90 for compute capability 9.0, or less if the code that runs there was compiled for less; 0 where there is no device.
inline int device_capability(int index) {
    int major = 0, minor = 0, most = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) != cudaSuccess) return 0;
    for (const int compiled : {__CUDA_ARCH_LIST__})
        if (compiled <= 100 * major + 10 * minor) most = std::max(most, compiled / 10);
    return most;
}
inline void use_device(int index) { check(cudaSetDevice(index)); }   // by this thread, from now on

inline size_t device_memory() {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return free;
}

inline int default_team() { return 1; }

inline void* device_allocate(size_t bytes) {
    void* p = nullptr;
    check(cudaMalloc(&p, bytes));
    check(cudaMemset(p, 0, bytes));
    return p;
}
inline void device_free(void* p, size_t) { cudaFree(p); }

// Copies in either direction, or on the device; the host may use both sides when it returns.
inline void device_copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    check(cudaStreamSynchronize(stream));
}
inline void device_wait(cudaStream_t stream) { check(cudaStreamSynchronize(stream)); }
inline void device_fill(void* p, int byte, size_t bytes, cudaStream_t stream) {
    check(cudaMemsetAsync(p, byte, bytes, stream));
}

}  // namespace baretrain
