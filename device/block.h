// block.h - what the threads of a block do together: share out a span, add up, find the maximum.
// Copy with: device.h
// With one thread a block (cpu.h) the reductions are the identity and cost nothing.
#pragma once

// Before a loop that takes a maximum into v: lets g++ vectorise it. By itself it does so only where NaN is ruled out.
#if defined(_OPENMP) && !defined(__CUDACC__)
#define BT_PRAGMA(text) _Pragma(#text)
#define BT_VECTOR_MAX(v) BT_PRAGMA(omp simd reduction(max : v))
#else
#define BT_VECTOR_MAX(v)
#endif

namespace baretrain {

// This block's contiguous piece of n items, from a multiple of 16 on; its threads stride inside it.
struct Span { long begin, end; };
__device__ inline Span block_span(long n) {
    const long each = ((n + gridDim.x - 1) / gridDim.x + 15) / 16 * 16, begin = blockIdx.x * each, end = begin + each;
    return {begin < n ? begin : n, end < n ? end : n};
}

struct Sum { template <class V> __device__ V operator()(V a, V b) const { return a + b; } };
// A NaN stays.
struct Max { template <class V> __device__ V operator()(V a, V b) const { return a > b || a != a ? a : b; } };

// Every thread gets the result. blockDim.x is a multiple of warpSize, at most 32 warps; all threads must call it.
// The order of the additions depends on blockDim alone, so a launch gives the same bits every time.
template <class V, class Op> __device__ V block_reduce(V v, V nothing, Op op) {
    for (int d = warpSize / 2; d > 0; d /= 2) v = op(v, __shfl_xor_sync(0xFFFFFFFFu, v, d));
    const unsigned warps = blockDim.x / warpSize, warp = threadIdx.x / warpSize, lane = threadIdx.x % warpSize;
    if (warps == 1) return v;
    __shared__ V partial[32];
    __syncthreads();                                   // an earlier call may still be reading partial
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    v = lane < warps ? partial[lane] : nothing;
    for (int d = warpSize / 2; d > 0; d /= 2) v = op(v, __shfl_xor_sync(0xFFFFFFFFu, v, d));
    return v;
}
template <class V> __device__ V block_sum(V v) { return block_reduce(v, V(0), Sum()); }
template <class V> __device__ V block_max(V v) { return block_reduce(v, V(-INFINITY), Max()); }

}  // namespace baretrain
