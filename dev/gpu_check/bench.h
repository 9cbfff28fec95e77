// bench.h - one case after the other: planned dry, given its memory, run until its time is known; a line of JSON each.
// Copy with: linear.h, shape.h and what they name
// The device says what a case moves and multiplies (Grid::moves, Work); here only time is taken: by events on a GPU, by
// the clock on a CPU, whose lines prove that this program works and nothing else.
#pragma once
#include "linear.h"
#include <cstdio>
#include <functional>
#include <set>

namespace baretrain::gpu_check {

#if defined(__CUDACC__)
class Stopwatch {
public:
    explicit Stopwatch(Device& d) : d_(d) { check(cudaEventCreate(&begin_)), check(cudaEventCreate(&end_)); }
    ~Stopwatch() { cudaEventDestroy(begin_), cudaEventDestroy(end_); }
    void start() { check(cudaEventRecord(begin_, d_.stream)); }
    double ms() {                                      // since start(), by the device; waits for it
        float ms = 0;
        check(cudaEventRecord(end_, d_.stream));
        check(cudaEventSynchronize(end_));
        check(cudaEventElapsedTime(&ms, begin_, end_));
        return double(ms);
    }
private:
    Device& d_;
    cudaEvent_t begin_, end_;
};
// The memory of one device to another place of it: no kernel of ours.
inline void plain_copy(Device& d, void* to, const void* from, size_t bytes) {
    if (!d.dry) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d.stream));
}
inline void forget_error() { cudaGetLastError(); }     // an allocation that failed is no error of the next launch
inline bool tensor_cores_for_bf16() {
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 8;
}
#else
class Stopwatch {
public:
    explicit Stopwatch(Device&) {}
    void start() { begin_ = Clock::now(); }
    double ms() const { return 1e3 * seconds_since(begin_); }
private:
    Clock::time_point begin_;
};
inline void plain_copy(Device& d, void* to, const void* from, size_t bytes) { copy_bytes(d, to, from, bytes); }
inline void forget_error() {}
inline bool tensor_cores_for_bf16() { return true; }   // the same cases as on a GPU
#endif

// What the outermost pieces of work of a case are said to move and to multiply.
struct Counted final : Watch {
    double bytes = 0, flops = 0;
    void begin(const Work& w) override {
        if (depth_++ == 0) bytes += w.bytes, flops += w.flops;
    }
    void end() override { --depth_; }
private:
    int depth_ = 0;
};

// Numbers in (-1, 1) without a pattern: zeros would cost a GPU less power, and so look faster.
template <class T> __global__ void random_kernel(T* x, long n, unsigned seed) {
    const auto [begin, end] = block_span(n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) {
        unsigned h = (unsigned(i) + seed) * 2654435761u;
        h = (h ^ (h >> 15)) * 2246822519u;
        x[i] = T(float(h >> 8) * (2.f / 16777216.f) - 1.f);
    }
}

// What a case is made of: it takes memory, fills it, and gives what is to be timed.
struct Bench {
    Device& d;
    Arena& arena;
    Matmul& matmul;
    Comm& comm;
    template <class T> View<T> take(long rows, long cols) { return arena.take<T>(rows, cols); }
    template <class T> View<T> random(long rows, long cols) {
        const View<T> v = take<T>(rows, cols);
        if (!v.empty()) launch(d, Grid::spans(v.count()), random_kernel<T>, v.data, v.count(), unsigned(rows));
        return v;
    }
    template <class T> View<T> filled(const std::vector<T>& host) {
        const View<T> v = take<T>(1, long(host.size()));
        copy_bytes(d, v.data, host.data(), host.size() * sizeof(T));
        return v;
    }
};
using Body = std::function<void()>;
using Make = std::function<Body(Bench&)>;

struct Case { std::string group, name, shape, type; };

class Table {
public:
    Table(bool small, const std::set<std::string>& groups) : small(small), groups_(groups) {}
    const bool small;                                  // sizes for a test: one run each
    bool wants(const std::string& group) const { return groups_.empty() || groups_.count(group) > 0; }
    // Of the copy, of the product: what the shares are of. 0: not measured.
    double copy_rate = 0, product_rate = 0;

    // Prints its line, or why there is none.
    void add(const Case& c, const Make& make) {
        try {
            print(c, run(make));
        } catch (const std::exception& e) {
            forget_error();
            std::printf("{%s, \"failed\": \"%s\"}\n", key(c).c_str(), quoted(e.what()).c_str());
        }
        std::fflush(stdout);
    }
    void skip(const Case& c, const std::string& why) {
        std::printf("{%s, \"skipped\": \"%s\"}\n", key(c).c_str(), quoted(why).c_str());
    }
private:
    struct Found { double ms, bytes, flops; };
    static std::string quoted(const std::string& text) {
        std::string all;
        for (char c : text) all += c == '"' || c == '\\' ? '\'' : c;
        return all;
    }
    static std::string key(const Case& c) {
        return "\"group\": \"" + c.group + "\", \"name\": \"" + c.name + "\", \"shape\": \"" + c.shape +
               "\", \"type\": \"" + c.type + "\"";
    }
    static double median(std::vector<double> v) {
        std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
        return v[v.size() / 2];
    }
    Found run(const Make& make) const {
        Found found{0, 0, 0};
        const auto on = [&](Arena arena, bool dry) {
            Device d{.dry = dry};
            Matmul matmul(d, arena.take<char>(1, Matmul::workspace_bytes));
            Comm comm(d);
            Bench b{d, arena, matmul, comm};
            const Body body = make(b);
            if (dry) {
                Counted counted;
                d.watch = &counted;
                body();
                found.bytes = counted.bytes, found.flops = counted.flops;
            } else found.ms = time(d, body);
            return arena.peak();
        };
        on(Arena(on(Arena(), true)), false);
        return found;
    }
    // The median of nine runs, each long enough that the launch counts for little.
    double time(Device& d, const Body& body) const {
        Stopwatch watch(d);
        const auto ms_of = [&](int runs) {
            watch.start();
            for (int i = 0; i < runs; ++i) body();
            return watch.ms() / runs;
        };
        ms_of(1);                                      // caches, plans of the library
        const double once = ms_of(1);
        const int runs = small || once >= 5 ? 1 : int(5 / std::max(once, 0.01)) + 1, samples = small ? 1 : once > 100 ? 3 : 9;
        std::vector<double> all;
        for (int i = 0; i < samples; ++i) all.push_back(ms_of(runs));
        return median(all);
    }
    void print(const Case& c, const Found& f) {
        const double moved = f.bytes / f.ms / 1e6, done = f.flops / f.ms / 1e9;   // GB/s, TFLOP/s
        if (c.group == "rate" && c.type != "fp8") (f.flops > 0 ? product_rate : copy_rate) = f.flops > 0 ? done : moved;
        std::printf("{%s, \"ms\": %.4g, \"gb_s\": %.4g", key(c).c_str(), f.ms, moved);
        if (f.flops > 0) std::printf(", \"tflop_s\": %.4g", done);
        const double whole = f.flops > 0 ? product_rate : copy_rate;
        if (whole > 0) std::printf(", \"share\": %.3f", (f.flops > 0 ? done : moved) / whole);
        std::printf("}\n");
    }
    const std::set<std::string> groups_;
};

}  // namespace baretrain::gpu_check
