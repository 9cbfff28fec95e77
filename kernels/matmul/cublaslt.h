// cublaslt.h - products on NVIDIA GPUs by cuBLASLt: tensor cores for bf16, true float (no TF32) and double.
// Copy with: kernels/matmul/plain.h, memory.h and what they name; links cublasLt
// cuBLASLt counts by columns. A row-major (rows, cols) matrix with stride s is for it a (cols, rows) matrix with
// leading dimension s, so it is given the product of the transposes:
//   y^T (N, M) = op(b)^T (N, K) op(a)^T (K, M)        its A is our b, its B is our a, its m and n are our N and M
// What is stored needs no turning: b as (K, N) already is its (N, K), and transpose_b asks it for one transpose.
#pragma once
#include "kernels/matmul/plain.h"
#include "memory.h"
#if defined(__CUDACC__)
#include <array>
#include <cublasLt.h>
#include <map>

namespace baretrain {

class CublasLt {
public:
    static constexpr bool found = true;
    CublasLt() = default;
    CublasLt(const CublasLt&) = delete;
    ~CublasLt() { if (handle_) cublasLtDestroy(handle_); }
    static std::string name() {
        const size_t v = cublasLtGetVersion();
        return "cuBLASLt " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100);
    }
    static bool fast_bf16() { return true; }
    static constexpr size_t workspace_bytes = size_t(32) << 20;   // what NVIDIA recommends for Hopper

    // False: declined (it has no algorithm for such strides or addresses), nothing was touched.
    template <class Out, class In> bool multiply(Device& d, const Product<Out, In>& p) {
        try {
            Plan& plan = find(p);
            if (!plan.possible) return false;
            run(d, plan, p);
            return true;
        } catch (const Error& e) {
            fail("matmul " + p.shape() + ": " + e.what());
        }
    }

private:
    using Key = std::array<long, 8>;
    struct Plan {                                      // the descriptors are plain data: nothing to free
        bool possible = false;
        cublasLtMatmulDescOpaque_t product;
        cublasLtMatrixLayoutOpaque_t a, b, y;
        cublasLtMatmulAlgo_t algorithm;
    };

    static void check(cublasStatus_t status) {
        if (status != CUBLAS_STATUS_SUCCESS) fail(std::string("cuBLASLt: ") + cublasLtGetStatusString(status));
    }
    template <class T> static constexpr cudaDataType_t type() {
        return std::is_same_v<T, double> ? CUDA_R_64F : std::is_same_v<T, bf16> ? CUDA_R_16BF : CUDA_R_32F;
    }
    // It adds a bias itself when that has the type of y and is not double; else y starts as the bias.
    template <class Out, class In> static bool bias_inside(const Product<Out, In>& p) {
        return !p.bias.empty() && std::is_same_v<Out, In> && !std::is_same_v<In, double>;
    }
    // The power of two, up to 256, that divides every address.
    template <class Out, class In> static long alignment(const Product<Out, In>& p) {
        const size_t all = size_t(p.a.data) | size_t(p.b.data) | size_t(p.y.data) | size_t(p.bias.data) | 256;
        return long(all & (~all + 1));
    }
    template <class V>
    static void set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t name, V value) {
        check(cublasLtMatmulDescSetAttribute(product, name, &value, sizeof value));
    }
    template <class V>
    static void set(cublasLtMatmulPreference_t choice, cublasLtMatmulPreferenceAttributes_t name, V value) {
        check(cublasLtMatmulPreferenceSetAttribute(choice, name, &value, sizeof value));
    }
    template <class Out, class In> static void point_at_bias(Plan& plan, const Product<Out, In>& p) {
        set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.data));
    }
    template <class T> static void describe(cublasLtMatrixLayout_t layout, const View<T>& v) {
        const auto kind = type<std::remove_const_t<T>>();
        check(cublasLtMatrixLayoutInit(layout, kind, uint64_t(v.cols), uint64_t(v.rows), v.stride));
    }

    template <class Out, class In> Plan& find(const Product<Out, In>& p) {
        const long options = p.o.transpose_a | p.o.transpose_b << 1 | bias_inside(p) << 2;
        const Key key{p.M, p.N, p.K, p.a.stride, p.b.stride, p.y.stride, alignment(p),
                      options | type<In>() << 3 | type<Out>() << 10};
        const auto found = plans_.find(key);
        if (found != plans_.end()) return found->second;
        if (!handle_) {
            check(cublasLtCreate(&handle_));
            workspace_ = Buffer(workspace_bytes);
        }
        Plan& plan = plans_[key];
        prepare(plan, p);
        return plan;
    }

    template <class Out, class In> void prepare(Plan& plan, const Product<Out, In>& p) {
        const auto compute = std::is_same_v<In, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
        check(cublasLtMatmulDescInit(&plan.product, compute, type<Real<In>>()));
        set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(p.o.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
        set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(p.o.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
        if (bias_inside(p)) {
            set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_BIAS));
            point_at_bias(plan, p);                    // its alignment counts
        }
        describe(&plan.a, p.b);
        describe(&plan.b, p.a);
        describe(&plan.y, p.y);
        cublasLtMatmulPreferenceOpaque_t choice;
        check(cublasLtMatmulPreferenceInit(&choice));
        set(&choice, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_bytes));
        // Partial sums must not be rounded to bf16.
        set(&choice, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            set(&choice, which, uint32_t(alignment(p)));
        cublasLtMatmulHeuristicResult_t best{};
        int count = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
            handle_, &plan.product, &plan.a, &plan.b, &plan.y, &plan.y, &choice, 1, &best, &count);
        if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_ARCH_MISMATCH) check(status);
        plan.possible = status == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
        plan.algorithm = best.algo;
    }

    template <class Out, class In> void run(Device& d, Plan& plan, const Product<Out, In>& p) {
        const bool start = !p.bias.empty() && !bias_inside(p);
        if (start) start_rows(d, p.y, p.bias);
        if (bias_inside(p)) point_at_bias(plan, p);
        const Real<In> one = 1, before = p.add() || start ? 1 : 0;
        Out* y = p.y.data;
        check(cublasLtMatmul(handle_, &plan.product, &one, p.b.data, &plan.a, p.a.data, &plan.b, &before, y, &plan.y, y,
                             &plan.y, &plan.algorithm, workspace_.data(), workspace_bytes, d.stream));
    }

    cublasLtHandle_t handle_ = nullptr;
    Buffer workspace_;
    std::map<Key, Plan> plans_;
};

}  // namespace baretrain
#else
namespace baretrain { using CublasLt = NoEngine; }
#endif
