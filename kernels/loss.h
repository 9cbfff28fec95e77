// loss.h - log-probabilities of the targets, and softmax cross-entropy, over rows of logits.
// Copy with: device.h and what it names
//   logprob[n] = z[target] - lse,  lse = max + log(sum exp(z - max));   d logprob / dz = onehot(target) - softmax(z)
// Rows with target -1 are ignored: logprob 0 and a gradient of exactly 0. Logits are Real<T>; their gradient is T.
// Cross-entropy is the fused form: loss = -sum of logprobs / trained tokens: its weight a row is -1 / trained tokens.
#pragma once
#include "device.h"

namespace baretrain {

inline constexpr int ignored = -1;                     // a target that trains nothing

template <class R> __device__ R row_logsumexp(const R* z, long V) {
    R top = -INFINITY, sum = 0;
    BT_VECTOR_MAX(top)
    for (long v = threadIdx.x; v < V; v += blockDim.x) top = z[v] > top ? z[v] : top;   // a NaN shows in the sum
    top = block_max(top);
    for (long v = threadIdx.x; v < V; v += blockDim.x) sum += fast_exp(z[v] - top);
    return top + log(block_sum(sum));
}

// dz = weight * (onehot - softmax); dz may be the memory of z if they have one type.
template <class T>
__device__ void row_gradient(T* dz, const Real<T>* z, long V, Real<T> lse, int target, Real<T> weight) {
    using R = Real<T>;
    if (target == ignored) {
        for (long v = threadIdx.x; v < V; v += blockDim.x) dz[v] = T(R(0));
        return;
    }
    const R at_target = weight - weight * fast_exp(z[target] - lse);
    __syncthreads();                                   // dz may overwrite z[target], which every thread has just read
    for (long v = threadIdx.x; v < V; v += blockDim.x) dz[v] = T(-weight * fast_exp(z[v] - lse));
    if (threadIdx.x == target % blockDim.x) dz[target] = T(at_target);   // the thread that wrote it in the loop
}

template <class R>
__global__ void logprobs_forward_kernel(R* logprob, R* lse, const R* z, const int* targets, long V, long stride) {
    const int target = targets[blockIdx.x];
    z += blockIdx.x * stride;
    const R total = row_logsumexp(z, V);
    if (threadIdx.x == 0) lse[blockIdx.x] = total, logprob[blockIdx.x] = target == ignored ? R(0) : z[target] - total;
}

template <class T> struct LogitGrad { T* dz; long stride; };

template <class T>
__global__ void logprobs_backward_kernel(LogitGrad<T> g, const Real<T>* z, const Real<T>* lse, const int* targets,
                                         const Real<T>* weights, long V, long stride) {
    const long n = blockIdx.x;
    row_gradient(g.dz + n * g.stride, z + n * stride, V, lse[n], targets[n], weights[n]);
}

template <class T>
__global__ void cross_entropy_kernel(LogitGrad<T> g, Real<T>* logprob, const Real<T>* z, const int* targets,
                                     Real<T> weight, long V, long stride) {
    const long n = blockIdx.x;
    const int target = targets[n];
    z += n * stride;
    const Real<T> total = row_logsumexp(z, V);
    if (threadIdx.x == 0) logprob[n] = target == ignored ? Real<T>(0) : z[target] - total;
    row_gradient(g.dz + n * g.stride, z, V, total, target, weight);
}

// logprob, lse: (1, N), overwritten. logits: (N, V). targets: (1, N), each -1 or below V.
template <class R>
void logprobs_forward(Device& d, View<R> logprob, View<R> lse, View<const R> logits, View<const int> targets) {
    require_equal(targets.cols, logits.rows, "logprobs: one target a row");
    launch(d, Grid(logits.rows).moves(logits), logprobs_forward_kernel<R>, logprob.data, lse.data, logits.data,
           targets.data, logits.cols, logits.stride);
}

// dlogits: (N, V), overwritten: weights[n] times the gradient of logprob[n]. weights: (1, N).
template <class T>
void logprobs_backward(Device& d, View<T> dlogits, View<const Real<T>> logits, View<const Real<T>> lse,
                       View<const int> targets, View<const Real<T>> weights) {
    require_equal(dlogits.cols, logits.cols, "logprobs: classes of dlogits and logits");
    require_equal(weights.cols, logits.rows, "logprobs: one weight a row");
    const LogitGrad<T> g{dlogits.data, dlogits.stride};
    launch(d, Grid(logits.rows).moves(dlogits, logits), logprobs_backward_kernel<T>, g, logits.data, lse.data,
           targets.data, weights.data, logits.cols, logits.stride);
}

// Both at once, with one weight for all rows. logprob: (1, N) and dlogits: (N, V) are overwritten.
template <class T>
void cross_entropy(Device& d, View<T> dlogits, View<Real<T>> logprob, View<const Real<T>> logits,
                   View<const int> targets, Real<T> weight) {
    require_equal(targets.cols, logits.rows, "cross_entropy: one target a row");
    require_equal(dlogits.cols, logits.cols, "cross_entropy: classes of dlogits and logits");
    const LogitGrad<T> g{dlogits.data, dlogits.stride};
    launch(d, Grid(logits.rows).moves(dlogits, logits), cross_entropy_kernel<T>, g, logprob.data, logits.data,
           targets.data, weight, logits.cols, logits.stride);
}

}  // namespace baretrain
