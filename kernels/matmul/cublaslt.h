// cublaslt.h - products on NVIDIA GPUs by cuBLASLt: tensor cores for bf16 and FP8, true float (no TF32) and double.
// Copy with: kernels/matmul/plain.h, memory.h and what they name; links cublasLt
// cuBLASLt counts by columns. A row-major (rows, cols) matrix with stride s is for it a (cols, rows) matrix with
// leading dimension s, so it is given the product of the transposes:
//   y^T (N, M) = op(b)^T (N, K) op(a)^T (K, M)        its A is our b, its B is our a, its m and n are our N and M
// What is stored needs no turning: b as (K, N) already is its (N, K), and transpose_b asks it for one transpose. Only
// of FP8 it wants both factors with K inside a row (its "TN"): those are written so when they are rounded.
// Beside the product and in the same pass it adds a bias, sums the rows of a factor (a bias gradient), and adds to a y
// of floats. The heuristic is asked once for each kind of product, never timed: the same command gives the same bits.
// Compiled and linked; it has not yet run on a GPU.
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
    static constexpr long workspace_bytes = 32L << 20;   // what NVIDIA recommends for Hopper
    explicit CublasLt(View<char> workspace) : workspace_(workspace) {}
    CublasLt(const CublasLt&) = delete;
    ~CublasLt() { if (handle_) cublasLtDestroy(handle_); }
    static std::string name() {
        const size_t v = cublasLtGetVersion();
        return "cuBLASLt " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100);
    }
    // FP8 tensor cores: from Ada (8.9) on; with scales of rows, Hopper and CUDA 12.9.
    static bool has_fp8(const Device& d, bool rowwise) {
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d.index);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d.index);
        return rowwise ? outer_scales && major == 9 : 10 * major + minor >= 89;
    }

    // False: declined (it has no algorithm for such strides, addresses or sums), nothing was touched.
    template <class Out, class In> bool multiply(Device& d, const Product<Out, In>& p) {
        const bool bias_inside = !p.bias.empty() && std::is_same_v<Out, In> && !std::is_same_v<In, double>;
        const bool start = !p.bias.empty() && !bias_inside;   // no bias of another type, or of double: y starts as it
        const Real<In> one = 1, before = p.add() || start ? 1 : 0;
        Task t{type<In>(), type<In>(), type<Out>(), p.o, p.M, p.N, p.K, p.a.stride, p.b.stride, p.y.stride};
        t.a = p.a.data, t.b = p.b.data, t.y = p.y.data, t.one = &one, t.before = &before;
        if (bias_inside) t.epilogue = CUBLASLT_EPILOGUE_BIAS, t.row = const_cast<In*>(p.bias.data);
        if (!p.sums.empty()) {
            if (std::is_same_v<In, double>) return false;
            t.epilogue = p.sums_of_b ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB, t.row = p.sums.data;
        }
        return attempt(p.shape(), t, d, [&] { if (start) start_rows(d, p.y, p.bias); });
    }
    template <class Out> bool multiply(Device& d, const Fp8Product<Out>& p) {
        const float one = 1, before = p.write == Write::add ? 1 : 0;
        Task t{p.a.wide ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3, p.b.wide ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3, type<Out>(),
               {.transpose_b = true}, p.y.rows, p.y.cols, p.a.codes.cols, p.a.codes.cols, p.b.codes.cols, p.y.stride};
        t.a = p.a.codes.data, t.b = p.b.codes.data, t.y = p.y.data, t.one = &one, t.before = &before;
        t.a_unit = p.a.unit.data, t.b_unit = p.b.unit.data, t.rowwise = p.a.unit.cols > 1 || p.b.unit.cols > 1;
        if (!p.bias.empty()) t.epilogue = CUBLASLT_EPILOGUE_BIAS, t.row = const_cast<bf16*>(p.bias.data);
        return attempt(std::to_string(t.M) + " x " + std::to_string(t.K) + " x " + std::to_string(t.N), t, d, [] {});
    }

private:
#if CUDART_VERSION >= 12090
    static constexpr bool outer_scales = true;
    static constexpr auto row_scales = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
#else
    static constexpr bool outer_scales = false;
#endif
    // A product as cuBLASLt is asked for it, in our letters.
    struct Task {
        cudaDataType_t a_type, b_type, y_type;
        MatmulOptions o;
        long M, N, K, a_stride, b_stride, y_stride;
        const void *a = nullptr, *b = nullptr;
        void* y = nullptr;
        const void *one = nullptr, *before = nullptr;  // of the type that sums have
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
        void* row = nullptr;                           // the bias, or where sums go
        const float *a_unit = nullptr, *b_unit = nullptr;   // what a step of the codes of FP8 stands for
        bool rowwise = false;
        // The power of two, up to 256, that divides every address.
        long alignment() const {
            const size_t all = size_t(a) | size_t(b) | size_t(y) | size_t(row) | 256;
            return long(all & (~all + 1));
        }
    };
    using Key = std::array<long, 9>;
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
    template <class V>
    static void set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t name, V value) {
        check(cublasLtMatmulDescSetAttribute(product, name, &value, sizeof value));
    }
    template <class V>
    static void set(cublasLtMatmulPreference_t choice, cublasLtMatmulPreferenceAttributes_t name, V value) {
        check(cublasLtMatmulPreferenceSetAttribute(choice, name, &value, sizeof value));
    }
    static void describe(cublasLtMatrixLayout_t layout, cudaDataType_t kind, long rows, long cols, long stride) {
        check(cublasLtMatrixLayoutInit(layout, kind, uint64_t(cols), uint64_t(rows), stride));
    }
    // What changes from call to call of one plan.
    static void point(Plan& plan, const Task& t) {
        if (t.row) set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(t.row));
        if (!t.a_unit) return;
        set(&plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(t.b_unit));
        set(&plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(t.a_unit));
    }

    template <class Before> bool attempt(const std::string& shape, const Task& t, Device& d, Before before) {
        try {
            Plan& plan = find(t);
            if (!plan.possible) return false;
            before();
            point(plan, t);
            check(cublasLtMatmul(handle_, &plan.product, t.one, t.b, &plan.a, t.a, &plan.b, t.before, t.y, &plan.y, t.y,
                                 &plan.y, &plan.algorithm, workspace_.data, size_t(workspace_.count()), d.stream));
            return true;
        } catch (const Error& e) {
            fail("matmul " + shape + ": " + e.what());
        }
    }
    Plan& find(const Task& t) {
        const long kinds = t.a_type | t.b_type << 8 | t.y_type << 16 | int(t.rowwise) << 24;
        const Key key{t.M, t.N, t.K, t.a_stride, t.b_stride, t.y_stride, t.alignment(), kinds,
                      t.o.transpose_a | t.o.transpose_b << 1 | long(t.epilogue) << 2};
        const auto found = plans_.find(key);
        if (found != plans_.end()) return found->second;
        if (!handle_) check(cublasLtCreate(&handle_));
        Plan& plan = plans_[key];
        prepare(plan, t);
        return plan;
    }
    void prepare(Plan& plan, const Task& t) {
        const auto sums = t.a_type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
        const auto compute = sums == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
        check(cublasLtMatmulDescInit(&plan.product, compute, sums));
        set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(t.o.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
        set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(t.o.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
        if (t.row) set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(t.epilogue));
        if (t.row && t.a_unit) set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(CUDA_R_16BF));
#if CUDART_VERSION >= 12090
        if (t.rowwise)
            for (auto which : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
                set(&plan.product, which, int32_t(row_scales));
#endif
        point(plan, t);                                // the alignment of addresses counts
        describe(&plan.a, t.b_type, t.o.transpose_b ? t.N : t.K, t.o.transpose_b ? t.K : t.N, t.b_stride);
        describe(&plan.b, t.a_type, t.o.transpose_a ? t.K : t.M, t.o.transpose_a ? t.M : t.K, t.a_stride);
        describe(&plan.y, t.y_type, t.M, t.N, t.y_stride);
        cublasLtMatmulPreferenceOpaque_t choice;
        check(cublasLtMatmulPreferenceInit(&choice));
        set(&choice, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_.count()));
        // Partial sums must not be rounded to bf16.
        set(&choice, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            set(&choice, which, uint32_t(t.alignment()));
        cublasLtMatmulHeuristicResult_t best{};
        int count = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
            handle_, &plan.product, &plan.a, &plan.b, &plan.y, &plan.y, &choice, 1, &best, &count);
        if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_ARCH_MISMATCH &&
            status != CUBLAS_STATUS_INVALID_VALUE)     // what some versions say of epilogues that they lack
            check(status);
        plan.possible = status == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
        plan.algorithm = best.algo;
    }

    cublasLtHandle_t handle_ = nullptr;
    View<char> workspace_;
    std::map<Key, Plan> plans_;
};

}  // namespace baretrain
#else
namespace baretrain {
struct CublasLt : NoEngine {
    static constexpr long workspace_bytes = 0;
    explicit CublasLt(View<char>) {}
    using NoEngine::multiply;
    template <class Out> bool multiply(Device&, const Fp8Product<Out>&) { return false; }
    static bool has_fp8(const Device&, bool) { return false; }
};
}  // namespace baretrain
#endif
