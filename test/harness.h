// harness.h - what kernel tests share: tensors with guard words, noise, the relative error of the design, block sizes.
// Copy with: memory.h, doctest
// A kernel test is compiled twice: as one-thread blocks and with -DBT_SIMT, where every CUDA thread is a fiber. Both are
// compared with a plain fp64 loop that the test writes itself; inputs are rounded to T first, so only the kernel rounds.
#pragma once
#include "memory.h"
#include <doctest/doctest.h>
#include <vector>

namespace baretrain::test {

using Numbers = std::vector<double>;

// n numbers in (-1, 1) as T stores them; another `which` gives other numbers.
template <class T> Numbers noise(long n, int which) {
    Numbers v(static_cast<size_t>(n));
    for (long i = 0; i < n; ++i)
        v[size_t(i)] = double(T(float(2 * uniform(philox(7, Stream::test, uint64_t(which), uint64_t(i)).v[0]) - 1)));
    return v;
}

// A device tensor of rows x cols with a guard word behind it: check_guard() sees a kernel that writes too far.
template <class T> struct Tensor {
    Buffer buffer;
    View<T> v;
    Device d;
    Tensor(long rows, long cols, long stride = 0)
        : buffer(size_t(rows * std::max(cols, stride) + 16) * sizeof(T)),
          v(static_cast<T*>(buffer.data()), rows, cols, std::max(cols, stride)) {
        fill_guard();
    }
    Tensor(long rows, long cols, const Numbers& numbers, long stride = 0) : Tensor(rows, cols, stride) { set(numbers); }
    operator View<T>() const { return v; }
    View<const T> in() const { return v; }             // as an input

    void set(const Numbers& numbers) {
        REQUIRE(long(numbers.size()) == v.count());
        std::vector<T> host(size_t(v.rows * v.stride), T{});
        for (long r = 0; r < v.rows; ++r)
            for (long c = 0; c < v.cols; ++c) {
                const double x = numbers[size_t(r * v.cols + c)];
                if constexpr (std::is_same_v<T, bf16>) host[size_t(r * v.stride + c)] = bf16(float(x));
                else host[size_t(r * v.stride + c)] = T(x);
            }
        copy_bytes(d, v.data, host.data(), host.size() * sizeof(T));
    }
    Numbers get() const {
        Device device = d;
        std::vector<T> host(size_t(v.rows * v.stride));
        copy_bytes(device, host.data(), v.data, host.size() * sizeof(T));
        Numbers numbers;
        for (long r = 0; r < v.rows; ++r)
            for (long c = 0; c < v.cols; ++c) numbers.push_back(double(host[size_t(r * v.stride + c)]));
        return numbers;
    }
    void check_guard() const {
        Device device = d;
        std::vector<unsigned char> bytes(16 * sizeof(T));
        copy_bytes(device, bytes.data(), v.data + v.rows * v.stride, bytes.size());
        for (unsigned char b : bytes) CHECK(b == 0xA5);
    }
private:
    void fill_guard() {
        const std::vector<unsigned char> guard(16 * sizeof(T), 0xA5);
        copy_bytes(d, v.data + v.rows * v.stride, guard.data(), guard.size());
    }
};

// max|a-b| / max(max|a|, 1e-3 * norm(a) / sqrt(n)), a being the truth; infinite if either has a NaN or the sizes differ.
inline double relative_error(const Numbers& a, const Numbers& b) {
    if (a.size() != b.size()) return INFINITY;
    double worst = 0, top = 0, squares = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (!(std::fabs(a[i] - b[i]) <= 1e300)) return INFINITY;
        worst = std::max(worst, std::fabs(a[i] - b[i]));
        top = std::max(top, std::fabs(a[i]));
        squares += a[i] * a[i];
    }
    const double scale = std::max(top, 1e-3 * std::sqrt(squares / double(std::max<size_t>(1, a.size()))));
    return worst == 0 ? 0 : scale == 0 ? INFINITY : worst / scale;
}

// What one rounding of the result allows, with room for sums of a few hundred terms.
template <class T> double tolerance() { return std::is_same_v<T, double> ? 1e-12 : std::is_same_v<T, bf16> ? 8e-3 : 4e-6; }

// Runs body(device) for each block size that this build knows: one thread on a CPU, two and eight warps otherwise, which
// fibers run in two different orders.
template <class Body> void for_each_block_size(Body body) {
    for (unsigned threads : {64u, 256u}) {
        Device d;
#if defined(BT_SIMT)
        simt_seed = threads;
#endif
        d.threads = std::min(threads, max_threads);
        CAPTURE(d.threads);
        body(d);
        if (max_threads == 1) return;
    }
}

}  // namespace baretrain::test
