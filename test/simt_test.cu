// Planted faults: where a GPU would hang or give wrong numbers, simt.h stops with an error that names the line.
#include "memory.h"
#include <doctest/doctest.h>
#include <thread>
#include <vector>

using namespace baretrain;

#if !defined(BT_SIMT)
TEST_SUITE("simt") {
    TEST_CASE("without fibers a block has one thread") { CHECK(max_threads == 1); }
}
#else

__global__ void reverse_kernel(float* y, bool barrier) {
    __shared__ float s[64];
    s[threadIdx.x] = float(threadIdx.x);
    if (barrier) __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
    __syncthreads();
    s[threadIdx.x] = -1;
}

constexpr int skipped_line = __LINE__ + 3;
__global__ void skipped_barrier_kernel(float* y) {
    if (threadIdx.x == 17) return;
    __syncthreads();
    y[threadIdx.x] = 1;
}

constexpr int divergent_line = __LINE__ + 2;
__global__ void divergent_barrier_kernel(float* y) {
    if (threadIdx.x < 32) __syncthreads();
    y[threadIdx.x] = 1;
}

constexpr int first_line = __LINE__ + 2;
__global__ void two_barriers_kernel(float* y) {
    if (threadIdx.x < 40) __syncthreads();
    else __syncthreads();
    y[threadIdx.x] = 1;
}

constexpr int shuffle_line = __LINE__ + 2;
__global__ void skipped_shuffle_kernel(float* y) {
    if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1.f, 8);
    __syncthreads();
}

constexpr int throw_line = __LINE__ + 4;
__global__ void contract_kernel(float* y, int* destroyed) {
    struct Counter { int* n; ~Counter() { ++*n; } } counter{destroyed + threadIdx.x};
    __syncthreads();
    require(threadIdx.x != 5, "planted");
    __syncthreads();
    y[threadIdx.x] = 1;
}

__global__ void sum_dynamic_kernel(float* y, bool initialise) {
    float* s = shared_memory<float>();
    if (initialise) s[threadIdx.x] = 1;
    y[blockIdx.x * 64 + threadIdx.x] = block_sum(s[threadIdx.x]);
    s[threadIdx.x] = 1;
}

__global__ void overrun_kernel(float* y) {
    shared_memory<float>()[threadIdx.x] = 1;
    y[threadIdx.x] = 1;
}

// Blocks that follow each other: right only if they run in order, which a GPU does not promise.
__global__ void chain_kernel(float* y) {
    if (threadIdx.x == 0) y[blockIdx.x + 1] = y[blockIdx.x] + 1;
}

__global__ void lanes_kernel(float* y) {
    const unsigned t = threadIdx.x;
    y[t] = __shfl_sync(0xFFFFFFFFu, float(t), 3);
    y[64 + t] = __shfl_xor_sync(0xFFFFFFFFu, float(t), 5);
    y[128 + t] = __shfl_down_sync(0xFFFFFFFFu, float(t), 7);
    __syncwarp();
    y[192 + t] = float(__shfl_xor_sync(0xFFFFFFFFu, double(t), 31));
}

constexpr int missing_lane_line = __LINE__ + 2;
__global__ void missing_lane_kernel(float* y) {
    y[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1.f, 16);
}

struct Launches {
    Device d;
    std::vector<float> y = std::vector<float>(256, 0.f);

    template <class Run> std::string error_of(Run run) {
        std::string message = "no error";
        try { run(); } catch (const Error& e) { message = e.what(); }
        still_works();
        return message;
    }
    template <class... Params> std::string error_of_kernel(void (*kernel)(Params...)) {
        return error_of([&] { launch(d, Grid(2, 64, 64), kernel, y.data()); });
    }
    void run_reverse() { launch(d, Grid(1, 64), reverse_kernel, y.data(), true); }
    void check_reversed() {
        for (int t = 0; t < 64; ++t) CHECK(y[size_t(t)] == float(63 - t));
    }
    void still_works() {
        run_reverse();
        check_reversed();
    }
};

std::string at(int line) { return "simt_test.cu:" + std::to_string(line) + ": "; }
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_SUITE("simt") {
    TEST_CASE("every thread of every block runs once, in any order of both") {
        for (unsigned seed : {1u, 2u, 3u})
            for (unsigned threads : {1u, 31u, 32u, 33u, 64u, 1000u, 1024u}) {
                simt_seed = seed;
                std::vector<int> count(3 * threads, 0);
                run_grid(3, threads, 0, 1, [&] { ++count[blockIdx.x * blockDim.x + threadIdx.x]; });
                for (int c : count) CHECK(c == 1);
            }
    }

#if !defined(BT_TSAN)                                  // simt_race.sh shows what ThreadSanitizer says about it
    TEST_CASE("a missing barrier gives wrong numbers, the barrier right ones for every seed") {
        Launches l;
        for (unsigned seed = 1; seed <= 20; ++seed) {
            simt_seed = seed;
            launch(l.d, Grid(1, 64), reverse_kernel, l.y.data(), false);
            int wrong = 0;
            for (int t = 0; t < 64; ++t) wrong += l.y[size_t(t)] != float(63 - t);
            CHECK(wrong > 0);
            l.still_works();
        }
    }
    TEST_CASE("blocks that depend on each other's order give wrong numbers") {
        Launches l;
        bool in_order = true;
        for (unsigned seed = 1; seed <= 5; ++seed) {
            simt_seed = seed;
            std::fill(l.y.begin(), l.y.end(), 0.f);
            launch(l.d, Grid(8, 32), chain_kernel, l.y.data());
            in_order &= l.y[8] == 8;
        }
        CHECK(!in_order);
    }
#endif

    TEST_CASE("a barrier that one thread skips by returning is an error with its line") {
        Launches l;
        const std::string e = l.error_of_kernel(skipped_barrier_kernel);
        CHECK_MESSAGE(has(e, at(skipped_line) + "__syncthreads: thread 0 of block "), e);
        CHECK_MESSAGE(has(e, "waits here for its whole block, but thread 17 has returned"), e);
    }
    TEST_CASE("a barrier that only one warp reaches is an error with its line") {
        Launches l;
        const std::string e = l.error_of_kernel(divergent_barrier_kernel);
        CHECK_MESSAGE(has(e, at(divergent_line)), e);
        CHECK_MESSAGE(has(e, "but thread 32 has returned"), e);
    }
    TEST_CASE("threads of one block at two barriers are an error with both lines") {
        Launches l;
        const std::string e = l.error_of_kernel(two_barriers_kernel);
        CHECK_MESSAGE(has(e, at(first_line) + "__syncthreads: thread 0 of block "), e);
        CHECK_MESSAGE(has(e, "but thread 40 waits at "), e);
        CHECK_MESSAGE(has(e, "simt_test.cu:" + std::to_string(first_line + 1)), e);
    }
    TEST_CASE("a shuffle that half of the warp skips is an error with both lines") {
        Launches l;
        const std::string e = l.error_of_kernel(skipped_shuffle_kernel);
        CHECK_MESSAGE(has(e, at(shuffle_line) + "__shfl_xor_sync: thread "), e);
        CHECK_MESSAGE(has(e, "waits here for its whole warp, but thread 16 waits at "), e);
        CHECK_MESSAGE(has(e, "simt_test.cu:" + std::to_string(shuffle_line + 1)), e);
    }
    TEST_CASE("a shuffle from a lane beyond the block is an error with its line") {
        Launches l;
        const std::string e = l.error_of([&] { launch(l.d, Grid(1, 48), missing_lane_kernel, l.y.data()); });
        CHECK_MESSAGE(has(e, at(missing_lane_line)), e);
    }
    TEST_CASE("an exception in a thread leaves the launch, and every thread's objects are destroyed") {
        Launches l;
        std::vector<int> destroyed(64, 0);
        const auto run = [&] { launch(l.d, Grid(1, 64), contract_kernel, l.y.data(), destroyed.data()); };
        const std::string e = l.error_of(run);
        CHECK_MESSAGE(has(e, at(throw_line) + "broken contract: planted"), e);
        for (int n : destroyed) CHECK(n == 1);
    }

    TEST_CASE("dynamic shared memory starts as NaN in each block") {
        Launches l;
        launch(l.d, Grid(4, 64, 64 * sizeof(float)), sum_dynamic_kernel, l.y.data(), true);
        for (float v : l.y) CHECK(v == 64);
        launch(l.d, Grid(4, 64, 64 * sizeof(float)), sum_dynamic_kernel, l.y.data(), false);
        for (float v : l.y) CHECK(v != v);
    }
    TEST_CASE("a write behind the dynamic shared memory is an error, one inside is none") {
        Launches l;
        const auto run = [&](size_t bytes) {
            return l.error_of([&] { launch(l.d, Grid(1, 64, bytes), overrun_kernel, l.y.data()); });
        };
        CHECK(run(64 * sizeof(float)) == "no error");
        CHECK(has(run(63 * sizeof(float)), "behind its dynamic shared memory"));
    }
    TEST_CASE("more shared memory or threads than a GPU has are refused") {
        Launches l;
        CHECK(has(l.error_of([&] { run_grid(1, 32, (227 << 10) + 1, 1, [] {}); }), "227 KiB"));
        CHECK(l.error_of([&] { run_grid(1, 32, 227 << 10, 1, [] {}); }) == "no error");
        CHECK(has(l.error_of([&] { run_grid(1, 1025, 0, 1, [] {}); }), "1024 threads"));
    }

    TEST_CASE("ranks that are host threads run their blocks at the same time") {
        Launches l[2];
        std::thread other([&] { for (int i = 0; i < 50; ++i) l[1].run_reverse(); });
        for (int i = 0; i < 50; ++i) l[0].run_reverse();
        other.join();
        l[0].check_reversed();
        l[1].check_reversed();
    }

    TEST_CASE("shuffles move values between the lanes of a warp") {
        Launches l;
        launch(l.d, Grid(1, 64), lanes_kernel, l.y.data());
        for (unsigned t = 0; t < 64; ++t) {
            const unsigned warp = t / 32 * 32, lane = t % 32;
            CHECK(l.y[t] == float(warp + 3));
            CHECK(l.y[64 + t] == float(t ^ 5));
            CHECK(l.y[128 + t] == float(lane + 7 < 32 ? t + 7 : t));
            CHECK(l.y[192 + t] == float(warp + 31 - lane));
        }
    }
}
#endif
