// loss.h - log-probabilities of the targets, and softmax cross-entropy, over rows of logits.
// Copy with: device.h and what it names
//   logprob[n] = z[target] - lse,  lse = max + log(sum exp(z - max));   d logprob / dz = onehot(target) - softmax(z)
// Rows with target -1 are ignored: logprob 0 and a gradient of exactly 0. Logits are Real<T>; their gradient is T.
// Cross-entropy is the fused form: loss = -sum of logprobs / trained tokens: its weight a row is -1 / trained tokens.
// Where logits are those of a part of the vocabulary (the ids from `first` on), the maximum, the sum of exp and the
// target's logit are found part by part, put together by whoever has the parts, and the gradient is made of their lse.
// A row of logits is read for its maximum, for the sum and for the gradient: it is too long to be kept by a block, but
// not by the cache.
#pragma once
#include "device.h"

namespace baretrain {

inline constexpr int ignored = -1;                     // a target that trains nothing

template <class R> __device__ R row_logsumexp(const R* z, long V) {
    R top = largest(R(-INFINITY), Span{0, V}, [](R zv) { return zv; }, z), sum = 0;   // a NaN shows in the sum
    top = block_max(top);
    for_each_element(V, [&](R zv) { sum += fast_exp(zv - top); }, z);
    return top + log(block_sum(sum));
}

// dz = weight * (onehot - softmax); dz may be the memory of z if they have one type. The target may lie elsewhere.
template <class T>
__device__ void row_gradient(T* dz, const Real<T>* z, long V, Real<T> lse, int target, Real<T> weight, long first = 0) {
    using R = Real<T>;
    if (target == ignored) {
        for_each_element(V, [](T& dzv) { dzv = T(R(0)); }, out(dz));
        return;
    }
    const long at = target - first;
    const bool here = at >= 0 && at < V;
    const R at_target = here ? weight - weight * fast_exp(z[at] - lse) : R(0);
    __syncthreads();                                   // dz may overwrite z[at], which every thread has just read
    for_each_element(V, [=](T& dzv, R zv) { dzv = T(-weight * fast_exp(zv - lse)); }, out(dz), z);
    __syncthreads();                                   // the element of the target has been written like the others
    if (here && threadIdx.x == 0) dz[at] = T(at_target);
}

// Bytes: a row of 200 KB is read twice, for its maximum and its sum.
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

// Bytes: a row of 200 KB is read three times: maximum, sum, gradient.
template <class T>
__global__ void cross_entropy_kernel(LogitGrad<T> g, Real<T>* logprob, const Real<T>* z, const int* targets,
                                     const Real<T>* weight, long V, long stride) {
    const long n = blockIdx.x;
    const int target = targets[n];
    z += n * stride;
    const Real<T> total = row_logsumexp(z, V);
    if (threadIdx.x == 0) logprob[n] = target == ignored ? Real<T>(0) : z[target] - total;
    row_gradient(g.dz + n * g.stride, z, V, total, target, *weight);
}

// ---- of a part of the vocabulary ------------------------------------------------------------------------------------
template <class R> __global__ void row_max_kernel(R* top, const R* z, long V, long stride) {
    const R most = block_max(largest(R(-INFINITY), Span{0, V}, [](R zv) { return zv; }, z + blockIdx.x * stride));
    if (threadIdx.x == 0) top[blockIdx.x] = most;
}

template <class R> struct PartSums { R *exp, *target; };

template <class R>
__global__ void part_sums_kernel(PartSums<R> sums, const R* z, const R* top, const int* targets, long V, long stride,
                                 long first) {
    const long n = blockIdx.x, at = targets[n] - first;
    R sum = 0;
    z += blockIdx.x * stride;
    const R most = top[n];
    for_each_element(V, [&](R zv) { sum += fast_exp(zv - most); }, z);
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums.exp[n] = sum, sums.target[n] = at >= 0 && at < V ? z[at] - most : R(0);
}

// lse: the maximum before; target: the target's logit less it before, its log-probability after.
template <class R>
__global__ void join_parts_kernel(R* lse, PartSums<R> sums, const int* targets) {
    const long n = blockIdx.x;
    if (threadIdx.x > 0) return;
    const R total = log(sums.exp[n]);
    lse[n] += total;
    sums.target[n] = targets[n] == ignored ? R(0) : sums.target[n] - total;
}

template <class T>
__global__ void part_gradient_kernel(LogitGrad<T> g, const Real<T>* z, const Real<T>* lse, const int* targets,
                                     const Real<T>* weight, long V, long stride, long first) {
    const long n = blockIdx.x;
    row_gradient(g.dz + n * g.stride, z + n * stride, V, lse[n], targets[n], *weight, first);
}

// top: (1, N), overwritten. logits: (N, V).
template <class R> void row_max(Device& d, View<R> top, View<const R> logits) {
    launch(d, Grid(logits.rows).moves(logits), row_max_kernel<R>, top.data, logits.data, logits.cols, logits.stride);
}
// exps, at_target: (1, N), overwritten: the sum of exp(z - top), and the target's logit less top, 0 where it is another
// part's. top: (1, N), of all parts.
template <class R>
void part_sums(Device& d, View<R> exps, View<R> at_target, View<const R> logits, View<const R> top,
               View<const int> targets, long first) {
    require_equal(targets.cols, logits.rows, "part_sums: one target a row");
    launch(d, Grid(logits.rows).moves(logits), part_sums_kernel<R>, PartSums<R>{exps.data, at_target.data},
           logits.data, top.data, targets.data, logits.cols, logits.stride, first);
}
// From those sums over all parts: lse, which is top before, and logprob, which is at_target before. (1, N) each.
template <class R>
void join_parts(Device& d, View<R> lse, View<R> logprob, View<const R> exps, View<const int> targets) {
    launch(d, Grid(lse.cols, 1).moves(lse, logprob, exps), join_parts_kernel<R>, lse.data,
           PartSums<R>{const_cast<R*>(exps.data), logprob.data}, targets.data);
}
// dlogits: (N, V), overwritten: weight times the gradient of the log-probabilities. lse: of the whole vocabulary.
template <class T>
void part_gradient(Device& d, View<T> dlogits, View<const Real<T>> logits, View<const Real<T>> lse,
                   View<const int> targets, View<const Real<T>> weight, long first) {
    const LogitGrad<T> g{dlogits.data, dlogits.stride};
    launch(d, Grid(logits.rows).moves(dlogits, logits), part_gradient_kernel<T>, g, logits.data, lse.data,
           targets.data, weight.data, logits.cols, logits.stride, first);
}

// ---- of all of it ---------------------------------------------------------------------------------------------------
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

// weight: one number, overwritten: -1 / trained, 0 where nothing is. trained: the tokens of the whole step.
template <class R> __global__ void loss_weight_kernel(R* weight, const double* trained) {
    if (threadIdx.x == 0) *weight = *trained > 0 ? R(-1 / *trained) : R(0);
}
template <class R> void loss_weight(Device& d, View<R> weight, View<const double> trained) {
    launch(d, Grid(1, 32).moves(weight, weight), loss_weight_kernel<R>, weight.data, trained.data);
}

// Both at once, with one weight for all rows. logprob: (1, N) and dlogits: (N, V) are overwritten.
template <class T>
void cross_entropy(Device& d, View<T> dlogits, View<Real<T>> logprob, View<const Real<T>> logits,
                   View<const int> targets, View<const Real<T>> weight) {
    require_equal(targets.cols, logits.rows, "cross_entropy: one target a row");
    require_equal(dlogits.cols, logits.cols, "cross_entropy: classes of dlogits and logits");
    const LogitGrad<T> g{dlogits.data, dlogits.stride};
    launch(d, Grid(logits.rows).moves(dlogits, logits), cross_entropy_kernel<T>, g, logprob.data, logits.data,
           targets.data, weight.data, logits.cols, logits.stride);
}

}  // namespace baretrain
