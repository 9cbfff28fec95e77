// adamw.h - AdamW (Loshchilov, Hutter 2019), and the one device struct that holds what changes from step to step.
// Copy with: device.h and what it names
//   m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2
//   w -= lr * ( (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + decay * w ),  t = number of the step, from 1
// The clip scale multiplies g here, so clipping costs no pass of its own. The update runs on the master weight
// (Real<T>); the weight that the model multiplies by is its rounded copy.
#pragma once
#include "device.h"

namespace baretrain {

struct StepState {
    double lr, beta1, beta2, eps, decay;               // of this step
    double correct1, correct2;                         // 1 - beta^t; steps that were skipped count
    double max_norm;                                   // clip the gradient to this norm; 0: never
    double norm, scale;                                // by decide(): norm before clipping, factor for the gradient
    int skip;                                          // by decide(): 1 if the norm is not finite or trained is 0
    long trained;                                      // trained tokens of the step; 0: weights and moments stay put
};

// Norm, clip scale and skip from the parts of the sum of squares. One thread: the parts are added in order.
template <class P> __global__ void decide_kernel(StepState* s, const P* parts, long n) {
    if (threadIdx.x) return;
    double sum = 0;
    for (long i = 0; i < n; ++i) sum += parts[i];
    s->norm = sqrt(sum);
    s->skip = s->trained == 0 || !(s->norm <= 1.7e308);   // infinity and NaN
    s->scale = s->max_norm > 0 && s->norm > s->max_norm ? s->max_norm / s->norm : 1;
}

// One optimizer span. w: the published copy of master; where T is Real<T> they are one and the same memory.
template <class T> struct AdamSpan {
    T* w;
    Real<T> *master, *m, *v;
    const Real<T>* g;
    long n;
    Real<T> decay, lr_factor;                          // 0 or 1: does StepState::decay apply; a factor on lr
};

template <class T> __global__ void adamw_kernel(AdamSpan<T> a, const StepState* s) {
    using R = Real<T>;
    if (s->skip) return;
    const R lr = R(s->lr) * a.lr_factor, decay = R(s->decay) * a.decay, scale = R(s->scale), eps = R(s->eps);
    const R b1 = R(s->beta1), b2 = R(s->beta2), unbias1 = R(1 / s->correct1);
    const R unbias2 = R(1 / s->correct2);
    const R n1 = R(1 - s->beta1), n2 = R(1 - s->beta2);  // in double: 1 - 0.999f is wrong in the fifth digit
    const auto [begin, end] = block_span(a.n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) {
        const R g = a.g[i] * scale, w = a.master[i];
        const R m = b1 * a.m[i] + n1 * g, v = b2 * a.v[i] + n2 * g * g;
        a.m[i] = m;
        a.v[i] = v;
        const R updated = w - lr * (m * unbias1 / (sqrt(v * unbias2) + eps) + decay * w);
        a.master[i] = updated;
        if constexpr (!std::is_same_v<T, R>) a.w[i] = T(updated);
    }
}

inline void decide(Device& d, View<StepState> s, View<const double> parts) {
    launch(d, {1, 32}, decide_kernel<double>, s.data, parts.data, parts.count());
}

// Master, m, v and w of the span are overwritten, unless the step is skipped.
template <class T> void adamw(Device& d, const AdamSpan<T>& span, View<const StepState> s) {
    launch(d, Grid::spans(span.n, 16384), adamw_kernel<T>, span, s.data);
}

}  // namespace baretrain
