// adamw.h - AdamW (Loshchilov, Hutter 2019), and the one device struct that holds what changes from step to step.
// Copy with: kernels/reduce.h, device.h and what they name
//   m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2
//   w -= lr * ( (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + decay * w ),  t = number of the step, from 1
// The clip scale multiplies g here, so clipping costs no pass of its own. The update runs on the master weight
// (Real<T>); the weight that the model multiplies by is its rounded copy. Without a master a bf16 weight is rounded up
// or down at random, with the probabilities that make the mean exact: to the nearest, small updates would all be lost.
#pragma once
#include "kernels/reduce.h"

namespace baretrain {

struct StepState {
    double lr, beta1, beta2, eps, decay;               // of this step
    double correct1, correct2;                         // 1 - beta^t; steps that were skipped count
    double max_norm;                                   // clip the gradient to this norm; 0: never
    double loss;                                       // sum of the step, only to be finite
    double norm, scale;                                // by decide(): norm before clipping, factor for the gradient
    int skip;                                          // by decide(): 1 if norm or loss is not finite or trained is 0
    long trained;                                      // trained tokens of the step; 0: weights and moments stay put
    uint64_t seed, step;                               // of the random numbers that round
    int stop;                                          // some rank wishes to
};

// What the ranks have agreed on: trained tokens and wishes to stop, and the sum of log-probabilities.
template <class N> __global__ void agreed_kernel(StepState* s, const N* control, const N* logprobs) {
    if (threadIdx.x) return;
    s->trained = long(control[0]), s->stop = control[1] > 0, s->loss = -logprobs[0];
}
inline void agreed(Device& d, View<StepState> s, View<const double> control, View<const double> logprobs) {
    launch(d, Grid(1, 32).moves(s), agreed_kernel<double>, s.data, control.data, logprobs.data);
}

// Norm, clip scale and skip, from the sum of squares of the gradient. One thread: it is about a few numbers.
template <class P> __global__ void decide_kernel(StepState* s, const P* squares) {
    if (threadIdx.x) return;
    s->norm = sqrt(*squares);
    s->skip = s->trained == 0 || !(s->norm <= 1.7e308) || !(s->loss <= 1.7e308);   // infinity and NaN
    s->scale = s->max_norm > 0 && s->norm > s->max_norm ? s->max_norm / s->norm : 1;
}

// One optimizer span. w: the published copy of master; where T is Real<T> they are one and the same memory.
template <class T> struct AdamSpan {
    T* w;
    Real<T> *master, *m, *v;                           // master: null, w is all there is
    const Real<T>* g;
    long n;
    Real<T> decay, lr_factor;                          // 0 or 1: does StepState::decay apply; a factor on lr
    uint64_t first = 0;                                // global number of its first element
    long block = 0;                                    // in a table of spans
    double bytes() const {
        const bool copy = master && !std::is_same_v<T, Real<T>>;   // of the master, which is written and not read
        return double(n) * double((copy ? 1 : 2) * sizeof(T) + (copy ? 7 : 5) * sizeof(Real<T>));
    }
};

// x as bf16, up or down with the probability of how near it lies; the mean over `random` is x. (Ties never come up.)
BT_HD inline bf16 round_stochastically(float x, uint32_t random) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7F800000) == 0x7F800000) return bf16(x);   // infinity and NaN stay what they are
    u = (u + (random & 0xFFFF)) & 0xFFFF0000;
    memcpy(&x, &u, 4);
    return bf16(x);
}

// One element of a span after the step; its weight is that of the master, where there is one, and what it was before.
template <class R> struct AdamElement { R before, w, m, v; };

// A step on the elements of a span, as numbers of the span's type.
template <class T> struct AdamStep {
    using R = Real<T>;
    R lr, decay, scale, eps, b1, b2, unbias1, unbias2, n1, n2;
    __device__ AdamStep(const AdamSpan<T>& a, const StepState* s)
        : lr(R(s->lr) * a.lr_factor), decay(R(s->decay) * a.decay), scale(R(s->scale)), eps(R(s->eps)), b1(R(s->beta1)),
          b2(R(s->beta2)), unbias1(R(1 / s->correct1)), unbias2(R(1 / s->correct2)), n1(R(1 - s->beta1)),
          n2(R(1 - s->beta2)) {}                       // in double: 1 - 0.999f is wrong in the fifth digit
    __device__ __forceinline__ AdamElement<R> of(R w, R m_before, R v_before, R gradient) const {
        const R g = gradient * scale, m = b1 * m_before + n1 * g, v = b2 * v_before + n2 * g * g;
        return {w, w - lr * (m * unbias1 / (sqrt(v * unbias2) + eps) + decay * w), m, v};
    }
};
// The weight as the model gets it where it has no master. place: its global number.
template <class T> __device__ T published(const StepState* s, uint64_t place, Real<T> w) {
    if constexpr (!std::is_same_v<T, bf16>) return T(w);
    else return round_stochastically(w, philox(s->seed, Stream::round, s->step, place).v[0]);
}

template <class T> __global__ void adamw_kernel(const AdamSpan<T>* spans, long count, const StepState* s) {
    using R = Real<T>;
    if (s->skip) return;
    const AdamSpan<T> a = find_span(spans, count);
    const AdamStep<T> step(a, s);
    const Span here = elements_here(a);
    const auto update = [=](R& w, R& m, R& v, R g) {
        const AdamElement<R> e = step.of(w, m, v, g);
        m = e.m, v = e.v, w = e.w;
        return e.w;
    };
    if constexpr (std::is_same_v<T, R>) for_each_element(here, update, a.master, a.m, a.v, a.g);
    else if (a.master)                                 // on its own: random numbers do not vectorise
        for_each_element(here, [=](T& w, R& master, R& m, R& v, R g) {
            w = T(update(master, m, v, g));
        }, out(a.w), a.master, a.m, a.v, a.g);
    else for_each_element(here, [=](long i, T& w, R& m, R& v, R g) {
        R exact = R(w);
        update(exact, m, v, g);
        w = published<T>(s, a.first + uint64_t(i), exact);
    }, a.w, a.m, a.v, a.g);
}

// Sums of squares of what the step is about to make of a span: weight, gradient before clipping, change of the weight,
// m, v. In double: a change is often smaller than the float between two weights, a square of v than all floats.
inline constexpr long adamw_squares = 5;
template <class T> __global__ void adamw_square_parts_kernel(double* parts, AdamSpan<T> a, const StepState* s) {
    using R = Real<T>;
    const AdamStep<T> step(a, s);
    const long begin = blockIdx.x * square_span, end = begin + square_span < a.n ? begin + square_span : a.n;
    double w = 0, g = 0, change = 0, m = 0, v = 0;
    const auto add_all = [&](auto element, const auto* before) {
        for_each_element(Span{begin, end}, [&](long i, auto wi, R mi, R vi, R gi) {
            const AdamElement<R> e = element(R(wi), mi, vi, gi, a.first + uint64_t(i));
            const double after = double(e.w), moved = after - double(e.before);
            w += after * after, change += moved * moved, g += double(gi) * double(gi);
            m += double(e.m) * double(e.m), v += double(e.v) * double(e.v);
        }, before, static_cast<const R*>(a.m), static_cast<const R*>(a.v), a.g);
    };
    const auto add_of_weights = [&](auto element) {
        if (a.master) add_all(element, static_cast<const R*>(a.master));
        else add_all(element, static_cast<const T*>(a.w));
    };
    const bool exact = a.master || std::is_same_v<T, R>;
    if (s->skip) add_of_weights([](R w, R m, R v, R, uint64_t) { return AdamElement<R>{w, w, m, v}; });
    else add_of_weights([=](R w, R m, R v, R g, uint64_t place) {
        const AdamElement<R> e = step.of(w, m, v, g);
        return AdamElement<R>{w, exact ? e.w : R(published<T>(s, place, e.w)), e.m, e.v};
    });
    const double sums[] = {block_sum(w), block_sum(g), block_sum(change), block_sum(m), block_sum(v)};
    if (threadIdx.x == 0)
        for (long k = 0; k < adamw_squares; ++k) parts[blockIdx.x * adamw_squares + k] = sums[k];
}

// squares: (1, 1), of all gradients.
inline void decide(Device& d, View<StepState> s, View<const double> squares) {
    require_equal(squares.count(), 1, "decide: one sum");
    launch(d, Grid(1, 32).moves(squares), decide_kernel<double>, s.data, squares.data);
}

// Master (where there is one), m, v and w of all spans are overwritten, unless the step is skipped.
template <class T> void adamw(Device& d, const SpanTable<AdamSpan<T>>& table, View<const StepState> s) {
    Grid grid(table.blocks);
    grid.work.bytes = table.bytes;
    launch(d, grid, adamw_kernel<T>, table.spans.data, table.spans.cols, s.data);
}

// Before adamw(), of the same span. total: (1, adamw_squares), added to. parts: scratch of at least square_parts(n)
// rows.
template <class T>
void add_adamw_squares(Device& d, View<double> total, const AdamSpan<T>& span, View<const StepState> s,
                       View<double> parts) {
    const long P = square_parts(span.n);
    const View<double> used = {parts.row_range(0, P).data, P, adamw_squares};
    Grid grid(P);
    grid.work.bytes = double(span.n) * double(4 * sizeof(Real<T>));
    launch(d, grid, adamw_square_parts_kernel<T>, used.data, span, s.data);
    add_statistics(d, total, used, adamw_squares);
}

}  // namespace baretrain
