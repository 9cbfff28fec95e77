// gpt.h - the model: one block forward, one block backward, and the two ends. It does not know how it is sharded.
// Copy with: lease.h, tp.h, kernels/ (all of it) and what they name
// It sees N rows: a token, a target and a position each, and where documents start. What a family lacks is an empty
// view: no bias, no norm of q and k, no learned position, no rotation; a norm without bias is an RMSNorm; `up` twice as
// wide as `act` is a SwiGLU. N rows, C channels, H heads and Hkv key-value heads of size D, F hidden units, V tokens:
// heads, units and tokens of this rank. The residual stream has its n of the N rows; enter() and leave() (tp.h) lead to
// all rows and back.
// Read next: train_gpt.cu.
#pragma once
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "tp.h"

namespace baretrain {

// ---- the rows of a micro-batch, on the device -----------------------------------------------------------------------
struct RowViews {
    View<const int> tokens, targets, positions;        // (1, N); target -1: ignored
    View<const int> documents;                         // (1, documents + 1): start rows, then N
    RunViews by_token, by_position;                    // the same rows grouped, for the gradient of the embeddings
};

// Device memory for the rows of one micro-batch; upload() overwrites what it held.
class RowBuffers {
public:
    // longest: what no position reaches, such as the rows of the rotary table.
    RowBuffers(Arena& arena, const ModelShape& shape, long max_rows, long longest)
        : shape_(shape), longest_(longest), space_(arena.take<int>(10, max_rows + 1)) {}

    // Without targets the rows are only read, not learned from.
    RowViews upload(Device& d, const std::vector<int>& tokens, const std::vector<int>& targets,
                    const std::vector<int>& positions, const std::vector<int>& documents) {
        require(all_in(tokens, 0, shape_.vocab), "rows: every token is below the vocabulary");
        require(all_in(targets, ignored, shape_.vocab), "rows: every target is below the vocabulary, or -1");
        require(all_in(positions, 0, longest_), "rows: every position is below the longest sequence");
        const size_t numbers = tokens.size() + targets.size() + positions.size() + documents.size();
        const Watched watched(d, {Where::current(), double(numbers * sizeof(int)), 0, Lane::data});
        next_ = 0;
        RowViews rows{put(d, tokens), put(d, targets), put(d, positions), put(d, documents), {}, {}};
        if (!targets.empty()) rows.by_token = put(d, Runs(tokens, shape_.vocab));
        if (!targets.empty() && shape_.learned_positions()) rows.by_position = put(d, Runs(positions, shape_.seq));
        return rows;
    }
private:
    static bool all_in(const std::vector<int>& v, long first, long end) {
        return std::all_of(v.begin(), v.end(), [&](int x) { return x >= first && x < end; });
    }
    View<const int> put(Device& d, const std::vector<int>& host) {
        const View<int> v = space_.row_range(next_++, 1).col_range(0, long(host.size()));
        upload_bytes(d, v.data, host.data(), host.size() * sizeof(int));
        return v;
    }
    RunViews put(Device& d, const Runs& r) { return {put(d, r.rows), put(d, r.starts), put(d, r.keys)}; }
    const ModelShape& shape_;
    long longest_;
    View<int> space_;
    long next_ = 0;
};

// ---- what the backward pass needs of the forward pass ---------------------------------------------------------------
// What is not kept until the backward pass, but rebuilt in memory that all blocks share: nothing; the outputs of norms
// and activation; all but the output of the block. The kernels and their inputs are the same, so the bits are too.
enum class Recompute { none, selective, full };

// Of a micro-batch, and of the residual stream.
struct ActRows {
    long all, mine;
    ActRows(long all, long mine = 0) : all(all), mine(mine ? mine : all) {}
};

template <class T> struct BlockActs {
    View<T> norm1, qkv, att, mid, norm2, up, act, out;
    View<Real<T>> stats1, lse, stats2;
    View<T> raw_q, raw_k;                              // before their norms; empty where there are none
    View<Real<T>> stats_q, stats_k;

    // Memory for all of it.
    template <class Memory> static BlockActs take(Memory& m, const ModelShape& s, ActRows rows) {
        return take(m, s, rows, Recompute::none, {});
    }
    // Memory for what a block keeps; the rest lies in `shared`.
    template <class Memory>
    static BlockActs take(Memory& m, const ModelShape& s, ActRows rows, Recompute how, const BlockActs& shared) {
        BlockActs a = shared;
        if (how == Recompute::none) a.take_cheap(m, s, rows.all);
        if (how != Recompute::full) a.take_dear(m, s, rows);
        a.out = m.template take<T>(rows.mine, s.dim);
        return a;
    }
    // Memory for what blocks share.
    template <class Memory> static BlockActs take_shared(Memory& m, const ModelShape& s, ActRows rows, Recompute how) {
        BlockActs a;
        if (how != Recompute::none) a.take_cheap(m, s, rows.all);
        if (how == Recompute::full) a.take_dear(m, s, rows);
        return a;
    }
private:
    void take_cheap(auto& m, const ModelShape& s, long N) {
        norm1 = m.template take<T>(N, s.dim), norm2 = m.template take<T>(N, s.dim), act = m.template take<T>(N, s.ffn);
    }
    void take_dear(auto& m, const ModelShape& s, ActRows rows) {
        const long A = s.heads * s.head_dim, K = s.kv_heads * s.head_dim, N = rows.all, n = rows.mine;
        stats1 = m.template take<Real<T>>(n, 2), stats2 = m.template take<Real<T>>(n, 2);
        qkv = m.template take<T>(N, A + 2 * K);
        att = m.template take<T>(N, A), lse = m.template take<Real<T>>(N, s.heads);
        mid = m.template take<T>(n, s.dim);
        up = m.template take<T>(N, s.gated() ? 2 * s.ffn : s.ffn);
        if (!s.qk_norm()) return;
        raw_q = m.template take<T>(N, A), stats_q = m.template take<Real<T>>(N, 2 * s.heads);
        raw_k = m.template take<T>(N, K), stats_k = m.template take<Real<T>>(N, 2 * s.kv_heads);
    }
};

// Keys and values of the tokens before, for generation: (seq, Hkv * D) each, of which `length` rows are filled.
template <class T> struct KvCache {
    View<T> k, v;
    long length = 0;
};

// ---- operations on the context --------------------------------------------------------------------------------------
// rope: (T, D), filled from a table made in double; nothing where it is empty.
template <class R> void fill_rope(Device& d, View<R> rope, const std::vector<double>& frequencies) {
    if (rope.empty() || d.dry) return;
    const std::vector<double> table = rope_table(rope.rows, frequencies);
    const std::vector<R> host(table.begin(), table.end());
    copy_bytes(d, rope.data, host.data(), host.size() * sizeof(R));
}

// Turns q and k in place; does nothing where positions are learned.
template <class T> void rope(Context<T>& c, View<T> qkv, const RowViews& rows, Turn turn) {
    if (c.rope.empty()) return;
    const View<T> q_and_k = qkv.col_range(0, (c.shape.heads + c.shape.kv_heads) * c.shape.head_dim);
    rope<T>(c.device, q_and_k, rows.positions, c.rope, turn);
}

template <class T> struct Qkv { View<T> q, k, v; };
template <class T> Qkv<T> split(const ModelShape& s, View<T> qkv) {
    const long A = s.heads * s.head_dim, K = s.kv_heads * s.head_dim;
    return {qkv.col_range(0, A), qkv.col_range(A, K), qkv.col_range(A + K, K)};
}
template <class T> AttentionInput<T> attention_input(Context<T>& c, const Qkv<T>& x, const RowViews& rows) {
    const long D = c.shape.head_dim;
    return {x.q, x.k, x.v, rows.positions, rows.documents, D, Real<T>(1 / std::sqrt(double(D))), c.shape.window};
}

// The norms of each head of q and k, in place; what they were before is kept. Nothing where the weights are empty.
template <class T> void qk_norm_forward(Context<T>& c, const Weights<T>& w, const BlockActs<T>& a) {
    if (w.q_norm.w.empty()) return;
    const auto [q, k, v] = split(c.shape, a.qkv);
    norm_forward(c, q, a.stats_q, {a.raw_q, q}, w.q_norm), norm_forward(c, k, a.stats_k, {a.raw_k, k}, w.k_norm);
}
template <class T>
void qk_norm_backward(Context<T>& c, const Weights<T>& w, const Lease<Real<T>>& g, const BlockActs<T>& a,
                      View<T> dqkv) {
    if (w.q_norm.w.empty()) return;
    const auto [dq, dk, dv] = split(c.shape, dqkv);
    norm_backward(c, {dq, Write::over}, dq, a.raw_q, a.stats_q, {w.q_norm, g->q_norm, g.write});
    norm_backward(c, {dk, Write::over}, dk, a.raw_k, a.stats_k, {w.k_norm, g->k_norm, g.write});
}

// out: (N, H * D), lse: (N, H). With a cache the new keys and values are appended to it, and all of it is attended to.
template <class T>
void attention_forward(Context<T>& c, const BlockActs<T>& a, const RowViews& rows, const KvCache<T>* cache) {
    auto [q, k, v] = split(c.shape, a.qkv);
    if (cache) {
        copy<T, T>(c.device, cache->k.row_range(cache->length, k.rows), k);
        copy<T, T>(c.device, cache->v.row_range(cache->length, v.rows), v);
        k = cache->k.row_range(0, cache->length + k.rows), v = cache->v.row_range(0, cache->length + v.rows);
    }
    attention_forward<T>(c.device, a.att, a.lse, attention_input<T>(c, {q, k, v}, rows));
}

// dqkv: (N, (H + 2 Hkv) * D) is overwritten. datt: (N, H * D).
template <class T>
void attention_backward(Context<T>& c, View<T> dqkv, Input<T> datt, const BlockActs<T>& a, const RowViews& rows) {
    const auto [dq, dk, dv] = split(c.shape, dqkv);
    const ModelShape& m = c.shape;
    Scratch s(c.scratch);
    const auto scratch = s.take<Real<T>>(1, attention_scratch<T>(a.qkv.rows, m.heads, m.kv_heads, m.head_dim));
    attention_backward<T>(c.device, AttentionGrad<T>{dq, dk, dv}, datt, a.att, a.lse,
                          attention_input<T>(c, split(m, a.qkv), rows), scratch);
}

// ---- one block ------------------------------------------------------------------------------------------------------
// x: (n, C), the residual stream; returns it after the block. Everything in `a` is overwritten.
template <class T>
View<T> block_forward(Context<T>& c, const Weights<T>& w, const BlockActs<T>& a, Input<T> x, const RowViews& rows,
                      const KvCache<T>* cache = nullptr) {
    Scratch s(c.scratch);
    const auto branch = s.take<T>(a.qkv.rows, x.cols);

    enter(c, a.norm1, a.stats1, x, w.norm1);
    linear_forward(c, a.qkv, a.norm1, w.qkv);
    qk_norm_forward(c, w, a);
    rope(c, a.qkv, rows, Turn::forward);
    attention_forward(c, a, rows, cache);

    enter(c, a.norm2, a.stats2, {a.mid, x, leave(c, branch, a.att, w.out)}, w.norm2);   // mid = x + attention's
    linear_forward(c, a.up, a.norm2, w.up);
    activation_forward<T>(c.device, a.act, a.up);
    residual<T>(c.device, a.out, a.mid, leave(c, branch, a.act, w.down));
    return a.out;
}

// Makes again what the forward pass did not keep. x: (n, C), the input of the block.
template <class T>
void block_rebuild(Context<T>& c, const Weights<T>& w, const BlockActs<T>& a, Input<T> x, const RowViews& rows,
                   Recompute how) {
    if (how == Recompute::full) block_forward(c, w, a, x, rows);
    if (how != Recompute::selective) return;
    enter(c, a.norm1, a.stats1, x, w.norm1);
    enter(c, a.norm2, a.stats2, a.mid, w.norm2);
    activation_forward<T>(c.device, a.act, a.up);
}

// The same lines from the bottom up. dx: (n, C), the gradient after the block, becomes the gradient before it (of x).
template <class T>
void block_backward(Context<T>& c, const Weights<T>& w, const Lease<Real<T>>& g, const BlockActs<T>& a, Input<T> x,
                    View<T> dx, const RowViews& rows) {
    Scratch s(c.scratch);
    const long N = a.qkv.rows;
    const auto dact = s.take<T>(N, a.act.cols), dup = s.take<T>(N, a.up.cols);
    const auto dnorm = s.take<T>(N, x.cols), datt = s.take<T>(N, a.att.cols), dqkv = s.take<T>(N, a.qkv.cols);

    leave_backward(c, dact, dx, a.act, {w.down, g->down, g.write});
    activation_backward<T>(c.device, dup, dact, a.up);
    linear_backward(c, dnorm, dup, a.norm2, {w.up, g->up, g.write});
    enter_backward(c, dx, dnorm, a.mid, a.stats2, {w.norm2, g->norm2, g.write});

    leave_backward(c, datt, dx, a.att, {w.out, g->out, g.write});
    attention_backward(c, dqkv, datt, a, rows);
    rope(c, dqkv, rows, Turn::backward);
    qk_norm_backward(c, w, g, a, dqkv);
    linear_backward(c, dnorm, dqkv, a.norm1, {w.qkv, g->qkv, g.write});
    enter_backward(c, dx, dnorm, x, a.stats1, {w.norm1, g->norm1, g.write});
}

// ---- the two ends ---------------------------------------------------------------------------------------------------
// x: (n, C), overwritten.
template <class T> void embed_forward(Context<T>& c, View<T> x, const Weights<T>& w, const RowViews& rows) {
    embed_forward(c, x, w, rows.tokens, rows.positions);
}

// The last to write to the ends: a tied wte already holds the gradient of the head. dx: (n, C).
template <class T> void embed_backward(Context<T>& c, const Lease<Real<T>>& g, Input<T> dx, const RowViews& rows) {
    if (g.write == Write::over && !c.shape.tied) zero(c.device, g->wte);
    if (g.write == Write::over && !g->wpe.empty()) zero(c.device, g->wpe);
    embed_backward(c, *g, dx, rows.by_token, rows.by_position);
}

// The head walks the rows in chunks, so that no (N, V) buffer exists. Rows of logits begin at multiples of 64 elements.
inline constexpr long head_chunk = 256;

template <class T, class Use> void for_each_logits(Context<T>& c, const Linear<T>& head, View<const T> x, Use use) {
    for (long first = 0; first < x.rows; first += head_chunk) {
        const long n = std::min(head_chunk, x.rows - first), V = head.w.rows;
        Scratch s(c.scratch);
        const auto logits = s.take<Real<T>>(n, V, (V + 63) / 64 * 64);
        matmul<Real<T>, T>(c.matmul, c.device, logits, x.row_range(first, n), head.w, {}, {.transpose_b = true});
        use(first, n, logits);
    }
}

// logprob: (1, N) of the targets, overwritten. x: (N, C), after the final norm.
template <class T>
void head_logprobs(Context<T>& c, View<Real<T>> logprob, const Linear<T>& head, Input<T> x, View<const int> targets) {
    for_each_logits<T>(c, head, x, [&](long first, long n, View<Real<T>> logits) {
        Scratch s(c.scratch);
        const auto lse = s.take<Real<T>>(1, n);
        vocabulary_logprobs<T>(c, logprob.col_range(first, n), lse, logits, targets.col_range(first, n), head.first);
    });
}

// Cross-entropy, forward and backward of a chunk at once, so that logits are computed once. logprob: (1, N) and dx: (N,
// C) are overwritten, the head's gradient overwritten or added to. weight: (1, 1), -1 / trained tokens of the step.
template <class T> void head_backward(Context<T>& c, View<T> dx, View<Real<T>> logprob, Input<T> x,
                                      View<const int> targets, Input<Real<T>> weight, Learned<Linear, T> head) {
    for_each_logits<T>(c, head.w, x, [&](long first, long n, View<Real<T>> logits) {
        Scratch s(c.scratch);
        View<T> dlogits;
        if constexpr (std::is_same_v<T, Real<T>>) dlogits = logits;   // in place
        else dlogits = s.take<T>(n, logits.cols, logits.stride);
        const auto here = targets.col_range(first, n);
        vocabulary_cross_entropy<T>(c, dlogits, logprob.col_range(first, n), logits, here, weight, head.w.first);
        linear_backward_input<T>(c, dx.row_range(first, n), dlogits, head.w);
        linear_backward_weight<T>(c, head.g, dlogits, x.row_range(first, n), first == 0 ? head.write : Write::add);
    });
}

}  // namespace baretrain
