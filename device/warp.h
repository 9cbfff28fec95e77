// warp.h - what a warp does together on tensor cores: fragments from shared memory, products, copies in the background.
// Copy with: device.h and what it names
// All 32 lanes call a function at the same place. A lane has g = lane / 4 and t = lane % 4; a register has two bf16 of
// neighbouring columns (rows, when turned), the lower column in its lower half. Who holds which element:
//     matrix 8 x 8   1 register    (g, 2t) and (g, 2t + 1); turned: (2t, g) and (2t + 1, g)
//     A  16 x 16     4 registers   the matrices of rows 0-7, 8-15 of columns 0-7; then the same of columns 8-15
//     B  16 x 8      2 registers   turned matrices of rows 0-7, 8-15
//     C  16 x 8      4 floats      (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// So two neighbouring Cs, rounded, are an A: a product's result is the next one's factor without leaving its registers.
// Needs compute capability 8.0: code for older GPUs compiles and stops, and the host never starts it there. The fibers'
// versions (test/simt_mma.h) follow the tables of the PTX ISA, and check what a GPU does not.
#pragma once
#include "device.h"

#if defined(__CUDACC__)
#define BT_UNROLL _Pragma("unroll")                    // before loops that index registers: they have no index
#else
#define BT_UNROLL
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define BT_PTX(...) __trap()
#else
#define BT_PTX(...) asm volatile(__VA_ARGS__)
#endif

namespace baretrain {

#if defined(__CUDACC__)

// Four 8 x 8 matrices: lane l gives where row l % 8 of matrix l / 8 begins (16 bytes, aligned), and gets a register of
// each; _trans turns them.
__device__ __forceinline__ void ldmatrix(uint32_t (&x)[4], const bf16* row) {
    BT_PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
           : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(uint32_t(__cvta_generic_to_shared(row))) : "memory");
}
__device__ __forceinline__ void ldmatrix_trans(uint32_t (&x)[4], const bf16* row) {
    BT_PTX("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
           : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(uint32_t(__cvta_generic_to_shared(row))) : "memory");
}

// c += a b: A, B and C of 16 x 8 x 16.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    BT_PTX("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
           "{%0, %1, %2, %3};"
           : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Starts a copy of 16 or 4 bytes, both sides aligned, from global to shared memory; zeros where there is nothing.
template <int bytes> __device__ __forceinline__ void copy_async(void* to, const void* from, bool there = true) {
    static_assert(bytes == 16 || bytes == 4);
    if constexpr (bytes == 16)
        BT_PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               : : "r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from), "r"(there ? 16 : 0) : "memory");
    else
        BT_PTX("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               : : "r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from), "r"(there ? 4 : 0) : "memory");
}
// The copies that this thread has started since the last commit become a group; wait until at most n groups are under
// way. A thread waits for its own copies only: a barrier has to follow.
__device__ __forceinline__ void commit_copies() { BT_PTX("cp.async.commit_group;" : : : "memory"); }
template <int n> __device__ __forceinline__ void wait_copies() {
    BT_PTX("cp.async.wait_group %0;" : : "n"(n) : "memory");
}

#endif

// Two neighbours of a C as a register of an A.
__device__ __forceinline__ uint32_t pack(float low, float high) {
#if defined(__CUDACC__)
    uint32_t x = 0;
    BT_PTX("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
#else
    return uint32_t(bf16(low).bits) | uint32_t(bf16(high).bits) << 16;
#endif
}

// Numbers that are not finite become 0. Says whether there was one.
__device__ __forceinline__ bool drop_wild(uint32_t& x) {
    const bool low = (x & 0x7F80u) == 0x7F80u, high = (x & 0x7F800000u) == 0x7F800000u;
    x &= (low ? 0u : 0xFFFFu) | (high ? 0u : 0xFFFF0000u);
    return low || high;
}

// 2^x; NaN and infinity pass, below the smallest normal number it is 0.
__device__ __forceinline__ float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return x < -126.f ? 0.f : std::exp2(x);
#endif
}

}  // namespace baretrain
