// known.cu - kernels of which one can say by hand what they move: does the counter say the same?
#include "dev/kernel_report/cases.h"
#include "device.h"

namespace baretrain::kernel_report {
namespace {

struct alignas(16) Four { float v[4]; };

template <class V> __global__ void stream_kernel(V* y, const V* x, long n) {
    const auto [begin, end] = block_span(n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) y[i] = x[i];
}
// Each block reads the same n numbers, `times` times.
__global__ void read_kernel(float* y, const float* x, long n, int times) {
    float sum = 0;
    for (int k = 0; k < times; ++k)
        for (long i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    if (sum < 0) y[0] = sum;                           // never: all are 0
}
__global__ void add_kernel(float* y, long n, int times) {
    for (int k = 0; k < times; ++k)
        for (long i = threadIdx.x; i < n; i += blockDim.x) y[i] += 1;
}
// One byte of each sector, by every second thread.
__global__ void sparse_kernel(char* y, long n) {
    if (threadIdx.x % 2) return;
    for (long i = threadIdx.x / 2; i < n; i += blockDim.x / 2) y[i * long(sector)] = 1;
}

template <class... Params, class... Args>
Traffic count_launch(const Device& device, Grid g, void (*kernel)(Params...), Args... args) {
    Device d = device;
    launch(d, g, kernel, args...);
    return stop_counting();
}

}  // namespace

std::vector<std::string> miscounted(char* arena, unsigned long bytes) {
    std::vector<std::string> wrong;
    const Device d;
    float *x = reinterpret_cast<float*>(arena), *y = x + (1 << 20);
    const auto expect = [&](const char* what, const Traffic& t, const Traffic& e) {
        if (t.loads != e.loads || t.stores != e.stores || t.load_bytes != e.load_bytes || t.store_bytes != e.store_bytes ||
            t.narrow_bytes != e.narrow_bytes || t.l2_bytes != e.l2_bytes || t.memory_bytes != e.memory_bytes ||
            t.threads != e.threads)
            wrong.push_back(concat(what, ": loads ", long(t.loads), " stores ", long(t.stores), " bytes ", long(t.load_bytes), " ",
                                   long(t.store_bytes), " narrow ", long(t.narrow_bytes), " l2 ", long(t.l2_bytes), " memory ",
                                   long(t.memory_bytes), " threads ", long(t.threads)));
    };
    const auto start = [&] { start_counting(arena, bytes, &blockIdx.x, &threadIdx.x, simt::yield); };
    const long n = 16384, all = 4 * n;
    const double N = double(n), A = double(all);       // 64 KiB: twice what a block has of L1
    start();
    expect("a copy of floats", count_launch(d, Grid(4), stream_kernel<float>, y, x, n), {N, N, A, A, 0, 2 * A, 2 * A, 1024});
    start();
    expect("a copy of 16 bytes each", count_launch(d, Grid(4), stream_kernel<Four>, reinterpret_cast<Four*>(y),
           reinterpret_cast<Four*>(x), n / 4), {N / 4, N / 4, A, A, 0, 2 * A, 2 * A, 1024});
    start();
    expect("a row that does not fit into L1, twice, by two blocks", count_launch(d, Grid(2), read_kernel, y, x, n, 2),
           {4 * N, 0, 4 * A, 0, 0, 4 * A, A, 512});
    start();
    expect("a row that fits, twice, by two blocks", count_launch(d, Grid(2), read_kernel, y, x, n / 4, 2),
           {N, 0, A, 0, 0, A / 2, A / 4, 512});
    start();
    expect("a sum in memory", count_launch(d, Grid(1), add_kernel, y, n / 4, 10),
           {2.5 * N, 2.5 * N, 2.5 * A, 2.5 * A, 0, A / 4 + 2.5 * A, A / 2, 256});
    start();
    expect("a byte of each sector", count_launch(d, Grid(1), sparse_kernel, reinterpret_cast<char*>(y), 1024L),
           {0, 1024, 0, 1024, 1024, 32768, 32768, 128});
    return wrong;
}

}  // namespace baretrain::kernel_report
