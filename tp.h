// tp.h - tensor and sequence parallelism: the ranks of tp have a part of each matrix, and all see the same tokens.
// Copy with: lease.h, linear.h, kernels/copy.h, kernels/embed.h, kernels/loss.h and what they name
//   x - enter - all rows - qkv, up: my heads, my hidden units - out, down: a part of each sum - leave - y
// N rows, C channels, t ranks. What travels, forward | backward, each (t-1)/t N C elements, or twice that for a sum:
//                            enter                leave                embedding            head: three numbers a row
//   tensor parallel          -       | sum        sum     | -          sum     | -          sums and a maximum | -
//   and sequence (--sp)      gather  | scatter    scatter | gather     scatter | gather     the same
// So both send 8 (t-1)/t N C elements a block and half as much at the ends; with --sp the residual stream and its norms
// have N/t rows a rank. --recompute selective: with --sp two gathers a block more; full: what the forward pass sent
// once more. (Shoeybi et al. 2019; Korthikanti et al. 2022.) The adjoint of a gather is a scatter; that of a sum is
// nothing, as every rank does what follows it. Biases behind a sum are added by the first rank. What every rank has
// whole has the same gradient on all, but for what saw only a rank's heads or rows: share_of() in params.h says which,
// and sum_shared_grads() adds those. On one rank all this does nothing.
#pragma once
#include "kernels/copy.h"
#include "kernels/embed.h"
#include "kernels/loss.h"
#include "lease.h"
#include "linear.h"

namespace baretrain {

// ---- rows: those of all ranks, mine of them, partial sums of them ---------------------------------------------------
// Those of these rows that this rank has in the residual stream: all, or with --sp a part.
template <class T> View<T> my_rows(const Context<T>& c, std::type_identity_t<View<T>> whole) {
    const long n = c.sp ? whole.rows / c.comm.size(Axis::tp) : whole.rows;
    return c.sp ? whole.row_range(c.comm.mesh.at(Axis::tp) * n, n) : whole;
}
// whole: (N, C), of which my_rows() are there: the others' too. Nothing without --sp.
template <class T> void gather_rows(Context<T>& c, View<T> whole, Where at = Where::current()) {
    if (c.sp)
        c.comm.await(c.comm.gather(Axis::tp, whole, View<const T>(my_rows(c, whole)), {"activations"}, at));
}
// part: (N, C) of this rank; becomes the sum over all ranks, or with --sp my_rows() do and the others are lost.
template <class T> void sum_rows(Context<T>& c, View<T> part, Where at = Where::current()) {
    c.comm.await(c.sp ? c.comm.scatter(Axis::tp, part, {"activations"}, at)
                      : c.comm.sum(Axis::tp, part, {"activations"}, at));
}
// All rows of what has my rows, in memory of s.
template <class T> Input<T> all_rows(Context<T>& c, Scratch& s, Input<T> mine) {
    if (!c.sp) return mine;
    const View<T> whole = s.take<T>(mine.rows * c.comm.size(Axis::tp), mine.cols);
    copy<T, T>(c.device, my_rows(c, whole), mine);
    gather_rows(c, whole);
    return whole;
}

// ---- into the layers that are cut by outputs, and out of those that are cut by inputs -------------------------------
// y: (N, C), the norm of all ranks' rows, overwritten. stats, x: of my rows.
template <class T>
void enter(Context<T>& c, View<T> y, View<Real<T>> stats, NormedInput<T> x, const Norm<T>& n) {
    norm_forward(c, my_rows(c, y), stats, x, n);
    gather_rows(c, y);
}
// dx: of my rows, is added to, unless it says otherwise. dy: (N, C), this rank's part of the gradient of y, is lost.
// stats, x: of my rows.
template <class T> void enter_backward(Context<T>& c, std::type_identity_t<NormInputGrad<T>> dx, View<T> dy, Input<T> x,
                                       Input<Real<T>> stats, Learned<Norm, T> n) {
    sum_rows(c, dy);
    norm_backward(c, dx, my_rows(c, dy), x, stats, n);
}

// Returns my rows of x w^T + b, summed over all ranks. y: (N, C), memory for it. x: (N, I), w: (C, I) of this rank.
template <class T> View<T> leave(Context<T>& c, View<T> y, Input<T> x, const Linear<T>& w) {
    Linear<T> mine = w;
    if (c.comm.mesh.at(Axis::tp) > 0) mine.b = {};     // once
    linear_forward(c, y, x, mine);
    sum_rows(c, y);
    return my_rows(c, y);
}
// dx: (N, I), of this rank's inputs, overwritten. dy: of my rows. x: (N, I).
template <class T> void leave_backward(Context<T>& c, View<T> dx, Input<T> dy, Input<T> x, Learned<Linear, T> l) {
    Scratch s(c.scratch);
    linear_backward(c, dx, all_rows<T>(c, s, dy), x, l);
}

// ---- the vocabulary, a part on each rank ----------------------------------------------------------------------------
// x: of my rows, overwritten. Positions are added by the first rank.
template <class T>
void embed_forward(Context<T>& c, View<T> x, const Weights<T>& w, View<const int> tokens, View<const int> positions) {
    Scratch s(c.scratch);
    const View<T> sum = c.sp ? s.take<T>(tokens.cols, x.cols) : x;
    const bool first = c.comm.mesh.at(Axis::tp) == 0;
    embed_forward<T>(c.device, sum, tokens, w.wte, positions, first ? w.wpe : View<T>(), w.head.first);
    sum_rows(c, sum);
    if (c.sp) copy<T, T>(c.device, x, my_rows(c, sum));
}
// dw: this rank's part of wte, and dwpe, if it is not empty: added to. dx: of my rows.
template <class T>
void embed_backward(Context<T>& c, const Weights<Real<T>>& g, Input<T> dx, const RunViews& by_token,
                    const RunViews& by_position) {
    Scratch s(c.scratch);
    const Input<T> whole = all_rows<T>(c, s, dx);
    embed_backward<T>(c.device, g.wte, whole, by_token, g.head.first);
    if (!g.wpe.empty()) embed_backward<T>(c.device, g.wpe, whole, by_position);
}

// logprob, lse: (1, N), overwritten: the same on all ranks. logits: (N, V) of this rank's ids, from `first` on.
template <class T>
void vocabulary_logprobs(Context<T>& c, View<Real<T>> logprob, View<Real<T>> lse, View<const Real<T>> logits,
                         View<const int> targets, long first) {
    using R = Real<T>;
    if (c.comm.size(Axis::tp) == 1) return logprobs_forward<R>(c.device, logprob, lse, logits, targets);
    Scratch s(c.scratch);
    const auto exps = s.take<R>(1, lse.cols);
    row_max<R>(c.device, lse, logits);
    c.comm.await(c.comm.max(Axis::tp, lse, {"vocabulary"}));
    part_sums<R>(c.device, exps, logprob, logits, View<const R>(lse), targets, first);
    c.comm.await(c.comm.sum(Axis::tp, exps, {"vocabulary"}));
    c.comm.await(c.comm.sum(Axis::tp, logprob, {"vocabulary"}));
    join_parts<R>(c.device, lse, logprob, View<const R>(exps), targets);
}
// Cross-entropy and its gradient; weight: -1 / trained tokens of the whole step. dlogits may be the memory of logits.
template <class T>
void vocabulary_cross_entropy(Context<T>& c, View<T> dlogits, View<Real<T>> logprob, View<Real<T>> logits,
                              View<const int> targets, Input<Real<T>> weight, long first) {
    if (c.comm.size(Axis::tp) == 1) return cross_entropy<T>(c.device, dlogits, logprob, logits, targets, weight);
    Scratch s(c.scratch);
    const auto lse = s.take<Real<T>>(1, logits.rows);
    vocabulary_logprobs<T>(c, logprob, lse, logits, targets, first);
    part_gradient<T>(c.device, dlogits, logits, View<const Real<T>>(lse), targets, weight, first);
}
// Logits of N rows for all ids, (N, V), to the host of the ranks that give memory for them. mine: of this rank's ids.
template <class T> void gather_logits(Context<T>& c, View<const Real<T>> mine, Real<T>* to) {
    using R = Real<T>;
    const long V = c.shape.vocab, N = mine.rows, t = c.comm.size(Axis::tp), room = part_of(V, int(t));
    Scratch s(c.scratch);
    const auto all = s.take<R>(t * N, room), place = all.row_range(c.comm.mesh.at(Axis::tp) * N, N);
    copy<R, R>(c.device, place.col_range(0, mine.cols), mine);
    c.comm.await(c.comm.gather(Axis::tp, all, View<const R>(place), {"vocabulary"}));
    for (long i = 0; i < t * N && to; ++i) {           // a row of one rank after the other
        const long first = i / N * room, ids = std::min(room, V - first);
        copy_bytes(c.device, to + i % N * V + first, all.row(i), size_t(ids) * sizeof(R));
    }
}

// ---- what every rank has whole --------------------------------------------------------------------------------------
// The gradients of tensors of which each rank saw its heads, or with --sp its rows, are summed; in what it owns.
template <class T>
void sum_shared_grads(Context<T>& c, const Params& params, const WeightStore<T>& weights, GradStore<Real<T>>& grads) {
    for (int unit = 0; unit < params.units(); ++unit) {
        const Range mine = weights.owns(unit);
        const Range shared = mine.both({0, params.end_of(unit, c.sp ? Share::rows : Share::heads)});
        c.comm.await(c.comm.sum(Axis::tp, grads.owned(unit).col_range(shared.first - mine.first, shared.count),
                                {"norms", unit}));
    }
}

// A tensor, to the host of the rank that gives memory for it, from what each rank has of it: mine, (1, count). whole:
// its row in a table that cuts nothing.
template <class T, class E>
void gather_tensor(Context<T>& c, const Param& whole, Input<E> mine, E* to) {
    const int t = whole.split() ? c.comm.size(Axis::tp) : 1;
    if (t == 1) return copy_bytes(c.device, to, mine.data, to ? size_t(mine.count()) * sizeof(E) : 0);
    const long room = whole.cut({t, 0}).room;
    Scratch s(c.scratch);
    const auto all = s.take<E>(1, t * room), place = all.col_range(c.comm.mesh.at(Axis::tp) * room, room);
    copy_bytes(c.device, place.data, mine.data, size_t(mine.count()) * sizeof(E));
    c.comm.await(c.comm.gather(Axis::tp, all, View<const E>(place), {"weights"}));
    if (!to) return;
    std::vector<E> host(static_cast<size_t>(all.cols));
    copy_bytes(c.device, host.data(), all.data, host.size() * sizeof(E));
    for (int r = 0; r < t; ++r) {
        const Param part = whole.cut({t, r});
        part.for_each_run({0, part.count()}, [&](long from, long at, long n) {
            std::copy_n(host.begin() + r * room + from, n, to + at);
        });
    }
}

}  // namespace baretrain
