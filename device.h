// device.h - all that a kernel may use: CUDA words on every device, launch(), block sums, types, Philox, errors.
// Copy with: the folder device/
// A kernel is ordinary CUDA, right for every blockDim. Each block owns a contiguous piece of work; its threads stride
// over it by blockDim.x. nvcc makes CUDA kernels of it; g++ one-thread blocks (device/cpu.h); -DBT_SIMT runs every CUDA
// thread as a fiber and finds races and divergent barriers (test/simt.h). Read next: memory.h, then any header in
// kernels/.
#pragma once
#include "device/error.h"
#include "device/types.h"
#include "device/view.h"
#include "device/random.h"
#include "device/watch.h"
#if defined(__CUDACC__)
#include "device/cuda.h"
#elif defined(BT_SIMT)
#include "test/simt.h"
#else
#include "device/cpu.h"
#endif
#include "device/block.h"
#include "device/pack.h"
#include "device/vector.h"
#include "device/math.h"
#include <exception>
#include <memory>

namespace baretrain {

// Where one rank's kernels run. `dry`: nothing runs and nothing is touched, launches are only counted (plan).
struct Device {
    int index = 0;                                     // CUDA device number
    int capability = device_capability(index);         // of its instructions: 80 has tensor cores for bf16; 0 on a CPU
    int team = default_team();                         // OpenMP threads on CPU builds
    cudaStream_t stream = nullptr;
    unsigned threads = max_threads;                    // no block gets more; tests run each kernel at several sizes
    bool dry = false;
    long launches = 0;
    Watch* watch = nullptr;                            // not owned; null: nobody looks
    std::shared_ptr<Staging> staging = std::make_shared<Staging>();

    void mark(Mark what, long index, double bytes = 0) const { if (watch) watch->mark(what, index, bytes); }
};

class Watched {
public:
    Watched(Device& d, const Work& work) : watch_(d.watch) { if (watch_) watch_->begin(work); }
    ~Watched() noexcept(false) {                       // on a GPU end() waits, and may be told of an error
        if (watch_ && std::uncaught_exceptions() == errors_) watch_->end();
    }
    Watched(const Watched&) = delete;
private:
    Watch* watch_;
    int errors_ = std::uncaught_exceptions();
};

// How a kernel is spread out. `threads` is a wish: the device answers with what it has (1 on the CPU build).
struct Grid {
    unsigned blocks, threads;
    size_t shared_bytes;                               // dynamic shared memory a block, see shared_memory()
    Work work;
    Grid(long blocks, unsigned threads = 256, size_t shared_bytes = 0, Where at = Where::current())
        : blocks(unsigned(blocks)), threads(std::min(threads, max_threads)), shared_bytes(shared_bytes), work{at} {
        require(blocks >= 0 && blocks <= 0x7FFFFFFF, "launch: at most 2^31 - 1 blocks", at);
    }
    // Blocks that own about per_block neighbouring items each; see block_span().
    static Grid spans(long n, long per_block = 4096, unsigned threads = 256, Where at = Where::current()) {
        return Grid((n + per_block - 1) / per_block, threads, 0, at);
    }
    // A block a row of C elements of T, which keeps so many rows; see keep().
    template <class T> static Grid rows(long n, long C, long kept = 0, Where at = Where::current()) {
        return Grid(n, row_threads<T>(C), size_t(kept) * kept_bytes<T>(C), at);
    }
    // Counts the memory of these views as moved.
    template <class... Views> Grid moves(const Views&... views) const {
        Grid g = *this;
        ((g.work.bytes += double(views.count()) * double(sizeof *views.data)), ...);
        return g;
    }
};

// The one place where a kernel starts: geometry checked, errors reported at the caller's line.
template <class... Params, class... Args>
void launch(Device& d, Grid g, void (*kernel)(Params...), Args... args) {
    if (g.blocks == 0) return;                         // an empty shard is not an error
    ++d.launches;
    const Watched watched(d, g.work);
    const unsigned threads = std::min(g.threads, d.threads);
    if (d.watch) d.watch->launched({reinterpret_cast<const void*>(kernel), g.blocks, threads, g.shared_bytes});
    if (d.dry) return;
#if defined(__CUDACC__)
    if (g.shared_bytes > (40u << 10))                  // with what a kernel has besides it may pass the usual 48 KiB
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(g.shared_bytes)),
              g.work.where);
    kernel<<<g.blocks, threads, g.shared_bytes, d.stream>>>(static_cast<Params>(args)...);
    check(cudaGetLastError(), g.work.where);
#else
    run_grid(g.blocks, threads, g.shared_bytes, d.team, [=] { kernel(static_cast<Params>(args)...); });
#endif
}

// Bytes between host and device, in either direction; both sides are usable when it returns.
inline void copy_bytes(Device& d, void* to, const void* from, size_t bytes) {
    if (bytes && !d.dry) device_copy(to, from, bytes, d.stream);
}
// From the host to the device, in the order of the stream: `from` may be written again when it returns, which it does
// without waiting for the device.
inline void upload_bytes(Device& d, void* to, const void* from, size_t bytes) {
    if (bytes && !d.dry) d.staging->send(to, from, bytes, d.stream);
}
// Until all that was started is done; at once on CPU builds.
inline void wait(Device& d) {
    if (!d.dry) device_wait(d.stream);
}
template <class T> void fill_bytes(Device& d, View<T> v, int byte) {
    require(v.dense(), "fill: rows without gaps");
    if (!v.empty() && !d.dry) device_fill(v.data, byte, size_t(v.count()) * sizeof(T), d.stream);
}
template <class T> void zero(Device& d, View<T> v) { fill_bytes(d, v, 0); }

}  // namespace baretrain
