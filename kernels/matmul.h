// matmul.h - matrix products, y = op(a) op(b) + bias: the one door to oneDNN, CBLAS, cuBLASLt, and plain loops.
// Copy with: memory.h, kernels/matmul/ (plain.h and the engine that you use) and what they name
//   y: (M, N) overwritten or added to   op(a): (M, K)   op(b): (K, N)   bias: (1, N) or empty, only when overwriting
// In: float, bf16 or double. Out: In or Real<In>. Sums are kept in Real<In>; a bf16 result is rounded once. Rows may
// have strides. Sizes of 0 are fine: a sum over nothing is the bias, or zero. A dry device only counts operations.
// float: oneDNN, else CBLAS, else plain loops. bf16: oneDNN where the CPU is fast at it; else, with a library,
// through float copies. double: CBLAS, else plain loops. CUDA: cuBLASLt, and plain loops for what it declines.
// Same call, same team: same bits. Another team changes them only where a library splits K: seen with oneDNN for
// transposed a, K of 4,000 and more and small results; never with plain loops.
#pragma once
#include "kernels/matmul/cblas.h"
#include "kernels/matmul/cublaslt.h"
#include "kernels/matmul/onednn.h"
#include "kernels/matmul/plain.h"
#include "memory.h"
#include <type_traits>

namespace baretrain {

// One per rank: the library's handles, what it has prepared for each shape, and the count of operations.
class Matmul {
public:
    // workspace: for as long as this lives, workspace_bytes of it; none: products do without.
    static constexpr long workspace_bytes = CublasLt::workspace_bytes;
    explicit Matmul(Device&, View<char> workspace = {}) : cublas_(workspace), onednn_(OneDnn::fast_bf16()) {}
    Matmul(Device&, bool fast_bf16) : cublas_({}), onednn_(fast_bf16) {}
    Matmul(const Matmul&) = delete;
    static std::string engine();                       // what float products use, and what bf16 and double use
    double flops() const { return flops_; }            // 2 M N K over all calls, also dry ones

    // True: the sums of a factor that were asked for are there too.
    template <class Out, class In> bool multiply(Device& d, Product<Out, In> p, Where at = Where::current()) {
        const double flops = 2.0 * double(p.M) * double(p.N) * double(p.K);
        const double bytes = double((p.a.count() + p.b.count()) * long(sizeof(In)) + p.y.count() * long(sizeof(Out)));
        flops_ += flops;
        const Watched watched(d, {at, bytes, flops, Lane::compute, p.M, p.K, p.N});
        if (d.dry || p.y.empty()) return false;
        if (p.K == 0) return p.add() ? void() : start_rows(d, p.y, p.bias), false;
        if (!p.sums.empty() && cublas_.multiply(d, p)) return true;
        p.sums = {};
        return dispatch(d, p), false;
    }
    // Products of FP8 numbers on tensor cores. False: there are none, or not for such a product; nothing was touched.
    static bool has_fp8(const Device& d, bool rowwise) { return !d.dry && CublasLt::has_fp8(d, rowwise); }
    template <class Out> bool multiply(Device& d, const Fp8Product<Out>& p, Where at = Where::current()) {
        const long M = p.y.rows, N = p.y.cols, K = p.a.codes.cols;
        const double flops = 2.0 * double(M) * double(N) * double(K);
        const Watched watched(d, {at, double((M + N) * K + p.y.count() * long(sizeof(Out))), flops, Lane::compute, M, K,
                                   N});
        if (!cublas_.multiply(d, p)) return false;
        flops_ += flops;
        return true;
    }

private:
    template <class Out, class In> void dispatch(Device& d, const Product<Out, In>& p) {
        if (cublas_.multiply(d, p)) return;
        if constexpr (!std::is_same_v<In, double>)
            if (onednn_.multiply(d, p)) return;
        if constexpr (std::is_same_v<In, Out> && !std::is_same_v<In, bf16>)
            if (cblas_.multiply(d, p)) return;
        if constexpr (std::is_same_v<In, bf16> && (OneDnn::found || Cblas::found)) return multiply_as_float(d, p);
        plain_matmul(d, p);
    }

    // A library that is fast in float only gets float copies, of a part of the longest side at a time: what it reads is
    // still in the cache, and the copies stay small whatever the product.
    template <class Out> void multiply_as_float(Device& d, const Product<Out, bf16>& p) {
        constexpr bool rounds = !std::is_same_v<Out, float>;   // sums that must be kept in float until they are whole
        const long most = std::max({p.M, p.N, p.K});
        const bool rows = p.M == most, cols = !rows && p.N == most, depth = !rows && !cols;   // the side that is cut
        const long each = depth ? p.M + p.N : p.K + (rounds ? (rows ? p.N : p.M) : 0);
        const long parts = (most * each + copied_floats - 1) / copied_floats;
        const long step = std::min(most, ((most + parts - 1) / parts + 63) / 64 * 64);
        const long m = rows ? step : p.M, n = cols ? step : p.N, k = depth ? step : p.K;
        const auto line = [](long count) { return (count + 15) / 16 * 16; };
        const size_t bytes = size_t(line(m * k) + line(k * n) + line(n) + (rounds ? m * n : 0)) * sizeof(float);
        if (bytes > scratch_.bytes()) scratch_ = Buffer(bytes);
        float *a = static_cast<float*>(scratch_.data()), *b = a + line(m * k), *bias = b + line(k * n);
        const auto widen = [&](float* to, View<const bf16> v) {
            copy_rows(d, View<float>(to, v.rows, v.cols), v, Write::over);
            return View<const float>(to, v.rows, v.cols);
        };
        Product<float, float> wide{{}, {}, {}, {}, p.o, m, n, k};
        for (long first = 0, here; first < most; first += here) {
            here = std::min(step, most - first);
            const auto part = [&](auto v, bool cut_rows, bool cut_cols) {
                return cut_rows ? v.row_range(first, here) : cut_cols ? v.col_range(first, here) : v;
            };
            const bool ta = p.o.transpose_a, tb = p.o.transpose_b, later = depth && first > 0;
            if (first == 0 || !cols) wide.a = widen(a, part(p.a, ta ? depth : rows, ta ? rows : depth));
            if (first == 0 || !rows) wide.b = widen(b, part(p.b, tb ? cols : depth, tb ? depth : cols));
            wide.bias = p.bias.empty() || later ? View<const float>() : widen(bias, part(p.bias, false, cols));
            const View<Out> y = part(p.y, rows, cols);
            if constexpr (rounds) wide.y = View<float>(bias + line(n), y.rows, y.cols);
            else wide.y = y;
            wide.o.write = later ? Write::add : rounds ? Write::over : p.o.write;
            (rows ? wide.M : cols ? wide.N : wide.K) = here;
            dispatch(d, wide);
            if constexpr (rounds)
                if (!depth || first + here == most) copy_rows(d, y, View<const float>(wide.y), p.o.write);
        }
    }

    static constexpr long copied_floats = 1 << 20;
    double flops_ = 0;
    Buffer scratch_;
    CublasLt cublas_;
    OneDnn onednn_;
    Cblas cblas_;
};

inline std::string Matmul::engine() {
    if (CublasLt::found) return CublasLt::name() + " (bf16 and double: the same)";
    const std::string plain = "plain loops", wide = Cblas::found ? Cblas::name() : plain;
    const std::string real = OneDnn::found ? OneDnn::name() : wide;
    const std::string brain = OneDnn::fast_bf16() || real == plain ? real : real + " in float";
    return real + " (bf16: " + brain + ", double: " + wide + ")";
}

// Views of one row may have any stride; engines and the table of prepared products see one.
template <class T> View<T> with_sane_stride(View<T> v) {
    if (v.rows <= 1) v.stride = v.cols;
    require(v.stride >= v.cols, "matmul: rows do not overlap");
    return v;
}

template <class In> struct FactorSums { View<Real<In>> to; bool of_b; };   // (1, columns), overwritten; empty: none

template <class Out, class In>
void matmul(Matmul& m, Device& d, View<Out> y, View<const In> a, View<const std::type_identity_t<In>> b,
            View<const std::type_identity_t<In>> bias = {}, MatmulOptions o = {}, Where at = Where::current()) {
    static_assert(std::is_same_v<Out, In> || std::is_same_v<Out, Real<In>>, "matmul: y has the type of a, or its Real");
    const long M = o.transpose_a ? a.cols : a.rows, K = o.transpose_a ? a.rows : a.cols;
    const long N = o.transpose_b ? b.rows : b.cols;
    require_equal(K, o.transpose_b ? b.cols : b.rows, "matmul: columns of op(a) and rows of op(b)");
    require_equal(y.rows, M, "matmul: rows of y and op(a)");
    require_equal(y.cols, N, "matmul: columns of y and op(b)");
    if (!bias.empty()) {
        require_equal(bias.cols, N, "matmul: columns of bias and y");
        require_equal(bias.rows, 1, "matmul: rows of bias and 1");
        require(o.write == Write::over, "matmul: no bias when adding to y");
    }
    const Product<Out, In> product{with_sane_stride(y), with_sane_stride(a), with_sane_stride(b), bias, o, M, N, K};
    m.multiply(d, product, at);
}
// y (M, N) = or += a^T b, and if it costs nothing: the sums of the rows of b, or of a. False: the sums are not made.
template <class In>
bool matmul_and_sums(Matmul& m, Device& d, View<Real<In>> y, View<const In> a, View<const In> b, FactorSums<In> sums,
                     Write write, Where at = Where::current()) {
    require_equal(a.rows, b.rows, "matmul: rows of a and b");
    require_equal(y.rows, a.cols, "matmul: rows of y and columns of a");
    require_equal(y.cols, b.cols, "matmul: columns of y and b");
    return m.multiply(d, Product<Real<In>, In>{with_sane_stride(y), with_sane_stride(a), with_sane_stride(b), {},
                                               {.transpose_a = true, .write = write}, a.cols, b.cols, a.rows, sums.to,
                                               sums.of_b}, at);
}
template <class Out, class In>
    requires(!std::is_const_v<In>)
void matmul(Matmul& m, Device& d, View<Out> y, View<In> a, View<const std::type_identity_t<In>> b,
            View<const std::type_identity_t<In>> bias = {}, MatmulOptions o = {}, Where at = Where::current()) {
    matmul<Out, In>(m, d, y, View<const In>(a), b, bias, o, at);
}

}  // namespace baretrain
