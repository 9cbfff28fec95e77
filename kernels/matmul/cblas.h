// cblas.h - float and double products by any CBLAS: OpenBLAS, BLIS, Accelerate, netlib.
// Copy with: kernels/matmul/plain.h and what it names; links the CBLAS
#pragma once
#include "kernels/matmul/plain.h"
#if defined(BT_CBLAS) && !defined(BT_SIMT) && !defined(__CUDACC__)
#include <climits>
#if defined(__APPLE__)
#include <Accelerate/Accelerate.h>
#else
#include <cblas.h>
#endif
#if defined(OPENBLAS_VERSION) && defined(__x86_64__)
#include <cstdlib>
extern "C" [[gnu::weak]] void gotoblas_dynamic_init();   // only in builds for many CPUs
extern "C" [[gnu::weak]] void gotoblas_dynamic_quit();
#endif

namespace baretrain {

struct Cblas {
    static constexpr bool found = true;
    static std::string name() {
#if defined(OPENBLAS_VERSION)
        const Cblas told;
        return std::string("CBLAS (OpenBLAS for ") + openblas_get_corename() + ")";
#elif defined(__APPLE__)
        return "CBLAS (Accelerate)";
#else
        return "CBLAS";
#endif
    }

    Cblas() { [[maybe_unused]] static const bool once = use_this_cpu(); }

    // An OpenBLAS older than the CPU falls back on its kernels of 2004, five times slower: it is told what to take.
    // Whoever has set the variable is obeyed.
    static bool use_this_cpu() {
#if defined(OPENBLAS_VERSION) && defined(__x86_64__)
        const bool wide = __builtin_cpu_supports("avx512vl"), fma = __builtin_cpu_supports("fma");
        if (!fma || !gotoblas_dynamic_init || std::string(openblas_get_corename()) != "Prescott") return false;
        setenv("OPENBLAS_CORETYPE", wide ? "SkylakeX" : "Haswell", 0);
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
#endif
        return true;
    }

    // False: sizes beyond its 32-bit integers; nothing was touched.
    template <class T> bool multiply(Device& d, const Product<T, T>& p) {
        if (std::max({p.M, p.N, p.K, p.a.stride, p.b.stride, p.y.stride}) > INT_MAX) return false;
#if defined(OPENBLAS_VERSION)
        if (openblas_get_num_threads() != d.team) openblas_set_num_threads(d.team);
#endif
        if (!p.bias.empty()) start_rows(d, p.y, p.bias);
        const T before = p.add() || !p.bias.empty() ? T(1) : T(0);
        const auto ta = p.o.transpose_a ? CblasTrans : CblasNoTrans, tb = p.o.transpose_b ? CblasTrans : CblasNoTrans;
        const int M = int(p.M), N = int(p.N), K = int(p.K);
        const int lda = int(p.a.stride), ldb = int(p.b.stride), ldy = int(p.y.stride);
        if constexpr (std::is_same_v<T, float>)
            cblas_sgemm(CblasRowMajor, ta, tb, M, N, K, 1.f, p.a.data, lda, p.b.data, ldb, before, p.y.data, ldy);
        else
            cblas_dgemm(CblasRowMajor, ta, tb, M, N, K, 1.0, p.a.data, lda, p.b.data, ldb, before, p.y.data, ldy);
        return true;
    }
};

}  // namespace baretrain
#else
namespace baretrain { using Cblas = NoEngine; }
#endif
