// matmul.h - matrix products, y = op(a) op(b) + bias: the one door to oneDNN, CBLAS, cuBLASLt, and plain loops.
// Copy with: memory.h, kernels/matmul/ (plain.h and the engine that you use) and what they name
//   y: (M, N) overwritten or added to   op(a): (M, K)   op(b): (K, N)   bias: (1, N) or empty, only when overwriting
// In: float, bf16 or double. Out: In or Real<In>. Sums are kept in Real<In>; a bf16 result is rounded once. Rows may
// have strides. Sizes of 0 are fine: a sum over nothing is the bias, or zero. A dry device only counts operations.
// float: oneDNN, else CBLAS, else plain loops. bf16: oneDNN where the CPU has bf16 instructions; else, with a library,
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
    explicit Matmul(Device&) {}
    Matmul(const Matmul&) = delete;
    static std::string engine();                       // what float products use, and what bf16 and double use
    double flops() const { return flops_; }            // 2 M N K over all calls, also dry ones

    template <class Out, class In> void multiply(Device& d, const Product<Out, In>& p, Where at = Where::current()) {
        const double flops = 2.0 * double(p.M) * double(p.N) * double(p.K);
        const double bytes = double((p.a.count() + p.b.count()) * long(sizeof(In)) + p.y.count() * long(sizeof(Out)));
        flops_ += flops;
        const Watched watched(d, {at, bytes, flops, Lane::compute, p.M, p.K, p.N});
        if (d.dry || p.y.empty()) return;
        if (p.K > 0) dispatch(d, p);
        else if (!p.add()) start_rows(d, p.y, p.bias);
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

    // A library that is fast in float only: copies cost M K + K N, the product M N K.
    template <class Out> void multiply_as_float(Device& d, const Product<Out, bf16>& p) {
        const long sizes[4] = {p.a.count(), p.b.count(), p.bias.count(), std::is_same_v<Out, float> ? 0 : p.y.count()};
        const size_t bytes = size_t(sizes[0] + sizes[1] + sizes[2] + sizes[3]) * sizeof(float);
        if (bytes > scratch_.bytes()) scratch_ = Buffer(bytes);
        float* at = static_cast<float*>(scratch_.data());
        const auto widen = [&](View<const bf16> v) {
            const View<float> wide(at, v.rows, v.cols);
            at += v.count();
            copy_rows(d, wide, v, Write::over);
            return View<const float>(wide);
        };
        Product<float, float> wide{{}, widen(p.a), widen(p.b), widen(p.bias), p.o, p.M, p.N, p.K};
        if constexpr (std::is_same_v<Out, float>) {
            wide.y = p.y;
            dispatch(d, wide);
        } else {
            wide.y = View<float>(at, p.M, p.N);
            wide.o.write = Write::over;
            dispatch(d, wide);
            copy_rows(d, p.y, View<const float>(wide.y), p.o.write);
        }
    }

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
template <class Out, class In>
    requires(!std::is_const_v<In>)
void matmul(Matmul& m, Device& d, View<Out> y, View<In> a, View<const std::type_identity_t<In>> b,
            View<const std::type_identity_t<In>> bias = {}, MatmulOptions o = {}, Where at = Where::current()) {
    matmul<Out, In>(m, d, y, View<const In>(a), b, bias, o, at);
}

}  // namespace baretrain
