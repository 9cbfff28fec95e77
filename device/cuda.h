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
    if (status == cudaSuccess) return;
    cudaGetLastError();                                // or the next launch would report it again
    fail_at(std::string("CUDA: ") + cudaGetErrorString(status), at);
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
// Of a rank's computation; lives as long as the process.
inline cudaStream_t new_stream() {
    cudaStream_t s = nullptr;
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

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
    check(cudaStreamSynchronize(nullptr));             // streams of ranks do not wait for it
    return p;
}
inline void device_free(void* p, size_t) { cudaFree(p); }

// Copies in either direction, or on the device; the host may use both sides when it returns.
inline void device_copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    check(cudaStreamSynchronize(stream));
}
// Host memory from which copies leave without a wait: what is sent is copied to it first. Two halves by turns; one is
// written again when the copies out of it are done.
class Staging {
public:
    Staging() = default;
    Staging(const Staging&) = delete;
    ~Staging() {
        if (memory_) cudaDeviceSynchronize(), cudaFreeHost(memory_);   // copies out of it may be under way
        for (cudaEvent_t e : sent_) if (e) cudaEventDestroy(e);
    }
    // `from` may be written again when it returns; `to` is there for what comes later.
    void send(void* to, const void* from, size_t bytes, cudaStream_t stream) {
        if (bytes > half) return device_copy(to, from, bytes, stream);
        if (!memory_) {
            check(cudaMallocHost(&memory_, 2 * half));
            for (cudaEvent_t& e : sent_) check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        }
        if (used_ + bytes > half) {
            check(cudaEventRecord(sent_[turn_], stream));
            turn_ ^= 1, used_ = 0;
            check(cudaEventSynchronize(sent_[turn_]));
        }
        char* const here = static_cast<char*>(memory_) + turn_ * half + used_;
        memcpy(here, from, bytes);
        check(cudaMemcpyAsync(to, here, bytes, cudaMemcpyHostToDevice, stream));
        used_ += (bytes + 255) / 256 * 256;
    }
private:
    static constexpr size_t half = size_t(8) << 20;
    void* memory_ = nullptr;
    cudaEvent_t sent_[2] = {};
    size_t used_ = 0;
    int turn_ = 0;
};
inline void device_wait(cudaStream_t stream) { check(cudaStreamSynchronize(stream)); }
inline void device_fill(void* p, int byte, size_t bytes, cudaStream_t stream) {
    check(cudaMemsetAsync(p, byte, bytes, stream));
}

}  // namespace baretrain
