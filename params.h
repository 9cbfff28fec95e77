// params.h - the one table that describes the parameters, a row a tensor; all else about them is a loop over its rows.
// Copy with: shape.h, memory.h and what they name
// Memory, initialisation, weight decay, optimizer spans, checkpoint names and gradients are all derived from it. Names
// and layouts are Hugging Face's own, so that files are copies. A unit is what is gathered and handed over at once:
// unit 0 holds the two ends (embeddings, final norm, head), unit l + 1 holds block l. Each unit is one flat segment, as
// long as a multiple of 64 elements for each of its shards. Tensor parallelism cuts tensors before they are laid out:
// every rank of tp has a table of its own parts, and the same offsets.
#pragma once
#include "memory.h"
#include "shape.h"
#include <algorithm>
#include <array>
#include <vector>

namespace baretrain {

// The units: the two ends, then the blocks.
inline constexpr int ends_unit = 0;
constexpr int block_unit(long block) { return int(block) + 1; }

// The places of a model that a tensor can fill. Stacked tensors (q, k, v; gate, up) fill one place together.
enum class Place {
    wte, wpe, norm_w, norm_b, head,                                              // unit 0
    norm1_w, norm1_b, qkv_w, qkv_b, q_norm, k_norm, out_w, out_b,              // the blocks
    norm2_w, norm2_b, up_w, up_b, down_w, down_b
};

// Elements of a unit, one behind the other.
struct Range {
    long first, count;
    Range both(const Range& o) const {                 // what lies in both; perhaps nothing
        const long last = first + count, begin = std::clamp(o.first, first, last);
        return {begin, std::max(0L, std::min(last, o.first + o.count) - begin)};
    }
};

// Who of the ranks of tp has a tensor, and what their gradients are. In this order they lie in a unit.
enum class Share {
    heads,                                             // all have it, each for its heads: gradients are to be summed
    rows,                                              // all have it, with --sp each for its rows: the same then
    all,                                               // all have it, and the same gradient
    outputs, inputs                                    // a part each: of the outputs or of the inputs of its layer
};
constexpr Share share_of(Place p) {
    switch (p) {
    case Place::q_norm: case Place::k_norm: return Share::heads;
    case Place::wpe: case Place::out_b: case Place::down_b: return Share::all;
    case Place::out_w: case Place::down_w: return Share::inputs;
    case Place::wte: case Place::head: case Place::qkv_w: case Place::qkv_b: case Place::up_w: case Place::up_b:
        return Share::outputs;
    default: return Share::rows;
    }
}

// How products of the blocks are taken (fp8.h), and whether those of the first and the last block are not.
enum class Fp8 { off, tensorwise, rowwise };
struct Fp8Layers { Fp8 recipe = Fp8::off; bool skip_ends = false; };

// One of the ranks that split each matrix.
struct Slice { int ranks = 1, rank = 0; };

// Where a rectangle of a tensor begins, in what this rank has and in the whole; `rows` times `cols` elements.
struct Box { long mine, whole, rows, cols; };

struct Param {
    std::string name;                                  // Hugging Face's
    int unit;
    Place place;
    long rows = 0, cols = 0;                           // that this rank has; a vector is (1, n)
    bool transposed;                                   // a linear weight stored (in, out), as GPT-2 does
    bool joined;   // follows the tensor before it without a gap: one matrix for matmul
    double mean, std;                                  // initialisation
    int stacked = 1;                                   // equal parts beside each other, each cut by itself
    long whole_rows = rows, whole_cols = cols;         // as stored in files
    long first_row = 0;                                // of the whole, of those that this rank has
    std::vector<Range> columns = {{0, cols}};
    long room = rows * cols;                           // elements in the unit: no rank has more
    long offset = 0;                                   // of its first element in its unit
    Share share() const { return share_of(place); }
    bool split() const { return share() >= Share::outputs; }
    bool decay() const { return whole_rows > 1; }      // matrices and embeddings; never biases or norms
    long count() const { return rows * cols; }
    Range range() const { return {offset, count()}; }
    std::vector<long> dims() const {                   // in files
        return whole_rows > 1 ? std::vector<long>{whole_rows, whole_cols} : std::vector<long>{whole_cols};
    }
    bool whole() const { return count() == whole_rows * whole_cols; }
    Param cut(Slice) const;
    std::vector<Box> boxes(Range mine) const;
    // use(mine, whole, n): elements mine, mine + 1, ... are elements whole, whole + 1, ... of the whole, n of them.
    template <class Use> void for_each_run(Range mine, Use use) const {
        for (const Box& b : boxes(mine))
            for (long i = 0; i < b.rows; ++i) use(b.mine + i * cols, b.whole + i * whole_cols, b.cols);
    }
};

// What a rank has of a whole tensor. Rows need not divide, as those of a vocabulary: the last ranks have fewer.
inline Param Param::cut(Slice s) const {
    Param p = *this;
    if (!split()) return p;
    if (rows > 1 && (share() == Share::outputs) != transposed) {
        const long part = (rows + s.ranks - 1) / s.ranks;
        p.first_row = std::min(rows, s.rank * part), p.rows = std::min(part, rows - p.first_row);
        p.room = part * cols;
        require(p.rows > 0, "params: each rank of tp has some of the vocabulary");
        return p;
    }
    const long part = cols / stacked, mine = part / s.ranks;
    p.columns.clear();
    for (int i = 0; i < stacked; ++i) p.columns.push_back({i * part + s.rank * mine, mine});
    p.cols = stacked * mine, p.room = rows * p.cols;
    return p;
}

// Where these of its elements lie in the whole: in a row, where it has whole rows; else at most one rectangle of each
// range of columns for whole rows, and for what is left of a row before and after them.
inline std::vector<Box> Param::boxes(Range mine) const {
    if (cols == whole_cols) return {{mine.first, first_row * cols + mine.first, 1, mine.count}};
    std::vector<Box> all;
    for (long e = mine.first, end = mine.first + mine.count; e < end;) {
        const long at = e % cols, whole = (end - e) / cols, n = at || !whole ? std::min(cols - at, end - e) : cols;
        const long rows_here = n == cols ? whole : 1;
        long column = 0;                               // of mine, where a range begins
        for (const Range& r : columns) {
            const Range here = Range{column, r.count}.both({at, n});
            if (here.count > 0)
                all.push_back({e - at + here.first, (first_row + e / cols) * whole_cols + r.first + here.first - column,
                               rows_here, here.count});
            column += r.count;
        }
        e += rows_here * n;
    }
    return all;
}

template <class T> struct Norm { View<T> w, b; };
template <class T> struct Linear {
    View<T> w, b;
    bool transposed = false;
    long first = 0;                                    // of its outputs, in those of the whole layer: of the head
    Share share = Share::all;                          // what of it the ranks of tp have
    Fp8 fp8 = Fp8::off;
    View<const float> amax = {};                       // (1, 1): w has numbers of E4M3, scaled by this (fp8_wire.h)
};

// The tensors of one unit as views into its flat segment; what a unit or a family lacks is empty.
template <class T> struct Weights {
    View<T> wte, wpe;                                  // (V, C), (T, C); of wte the same rows as of the head
    Norm<T> norm;                                      // before the head
    Linear<T> head;                                    // (V, C); tied: wte
    Norm<T> norm1, q_norm, k_norm, norm2;
    Linear<T> qkv, out, up, down;
    View<T> flat;                                      // the whole unit

    // In the order of Place.
    View<T>& at(Place p) {
        View<T>* const all[] = {&wte,    &wpe,      &norm.w,   &norm.b, &head.w, &norm1.w, &norm1.b,
                                &qkv.w,  &qkv.b,    &q_norm.w, &k_norm.w, &out.w, &out.b,
                                &norm2.w, &norm2.b, &up.w,     &up.b,   &down.w, &down.b};
        return *all[int(p)];
    }
    // The linear layer whose weight fills the place, if it is one.
    Linear<T>* linear(Place p) {
        return p == Place::qkv_w  ? &qkv
               : p == Place::out_w  ? &out
               : p == Place::up_w   ? &up
               : p == Place::down_w ? &down : nullptr;
    }
};

// A contiguous part of a unit that AdamW treats alike.
struct OptimizerSpan { long offset, count; bool decay; };

class Params {
public:
    explicit Params(const ModelShape& shape, int shards = 1, Slice slice = {}, Fp8Layers fp8 = {});

    const ModelShape& shape() const { return shape_; }
    const ModelShape& local() const { return local_; }   // with the heads and hidden units of this rank
    Slice slice() const { return slice_; }
    const std::vector<Param>& rows() const { return rows_; }
    int units() const { return int(sizes_.size()); }
    int shards() const { return shards_; }
    long unit_size(int unit) const { return sizes_[size_t(unit)]; }   // elements, padding included
    long largest_block() const { return sizes_.size() < 2 ? 0 : *std::max_element(sizes_.begin() + 1, sizes_.end()); }
    long largest_unit() const { return *std::max_element(sizes_.begin(), sizes_.end()); }
    Range shard(int unit, int which) const {
        const long part = unit_size(unit) / shards_;
        return {which * part, part};
    }
    // Where the tensors of this share end in a unit, and those before them.
    long end_of(int unit, Share share) const { return ends_[size_t(unit)][size_t(share)]; }
    // What tp counts once: all of the unit on its first rank, on the others what is theirs alone.
    Range counted(int unit) const {
        const long first = slice_.rank ? end_of(unit, Share::all) : 0;
        return {first, unit_size(unit) - first};
    }
    bool counts(const Param& p) const { return p.split() || slice_.rank == 0; }
    std::vector<OptimizerSpan> spans(int unit) const;
    // How the products with a tensor are taken: in FP8 where this rank's sizes are multiples of 16.
    Fp8 fp8(const Param& p) const {
        const bool end = fp8_.skip_ends && (p.unit == block_unit(0) || p.unit + 1 == units());
        const auto odd = [&](const Param& q) {         // what is joined is one product
            return q.unit == p.unit && q.place == p.place && (q.rows % 16 || q.cols % 16);
        };
        if (fp8_.recipe == Fp8::off || end || p.unit == ends_unit || std::ranges::any_of(rows_, odd)) return Fp8::off;
        return fp8_.recipe;
    }

    // The views of one unit whose flat segment is `flat` (1, unit_size).
    template <class T> Weights<T> bind(int unit, View<T> flat) const {
        Weights<T> w;
        for (const Param& p : rows_) {
            if (p.unit != unit) continue;
            View<T>& v = w.at(p.place);
            if (!p.joined) v = {flat.data ? flat.data + p.offset : nullptr, p.rows, p.cols};
            else if (p.whole_rows == 1) v.cols += p.cols, v.stride += p.cols;
            else v.rows += p.rows;
            if (Linear<T>* l = w.linear(p.place))
                l->transposed = p.transposed, l->share = p.share(), l->fp8 = fp8(p);
            if (p.place == Place::wte) w.head.first = p.first_row;
        }
        if (shape_.tied) w.head.w = w.wte;
        w.flat = flat;
        return w;
    }
private:
    void add_ends();
    void add_block(int unit);
    void lay_out();
    ModelShape shape_, local_;
    int shards_;
    Slice slice_;
    Fp8Layers fp8_;
    std::vector<Param> rows_;
    std::vector<long> sizes_;
    std::vector<std::array<long, 5>> ends_;            // by unit and share
};

inline Params::Params(const ModelShape& shape, int shards, Slice slice, Fp8Layers fp8)
    : shape_(shape), local_(shape), shards_(shards), slice_(slice), fp8_(fp8) {
    for (long* n : {&local_.heads, &local_.kv_heads, &local_.ffn}) {
        require(*n % slice.ranks == 0, "params: the ranks of tp divide heads, key-value heads and hidden units");
        *n /= slice.ranks;
    }
    add_ends();
    for (long block = 0; block < shape.layers; ++block) add_block(block_unit(block));
    for (Param& p : rows_) p = p.cut(slice);
    lay_out();
}

inline void Params::add_ends() {
    const bool gpt2 = shape_.family == "gpt2";
    const long C = shape_.dim, V = shape_.vocab;
    auto add = [&](const char* name, Place place, long rows, long cols, double mean, double std) {
        rows_.push_back({name, ends_unit, place, rows, cols, false, false, mean, std});
    };
    add(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", Place::wte, V, C, 0, 0.02);
    if (shape_.learned_positions()) add("transformer.wpe.weight", Place::wpe, shape_.seq, C, 0, 0.02);
    add(gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", Place::norm_w, 1, C, 1, 0);
    if (shape_.layernorm()) add("transformer.ln_f.bias", Place::norm_b, 1, C, 0, 0);
    if (!shape_.tied) add("lm_head.weight", Place::head, V, C, 0, 0.02);
}

// Residual outputs start smaller with depth, so that the sum of 2L branches starts at the size of one (GPT-2).
inline void Params::add_block(int unit) {
    const long C = shape_.dim, A = shape_.heads * shape_.head_dim, K = shape_.kv_heads * shape_.head_dim,
               F = shape_.ffn;
    const double in = 0.02, out = 0.02 / std::sqrt(2.0 * double(shape_.layers));
    const bool gpt2 = shape_.family == "gpt2";
    const std::string block = (gpt2 ? "transformer.h." : "model.layers.") + std::to_string(unit - 1) + ".";
    auto vector = [&](const char* name, Place place, long n, double mean, bool joined = false) {
        rows_.push_back({block + name, unit, place, 1, n, false, joined, mean, 0});
    };
    auto matrix = [&](const char* name, Place place, long outputs, long inputs, double std, bool joined = false) {
        rows_.push_back(
            {block + name, unit, place, gpt2 ? inputs : outputs, gpt2 ? outputs : inputs, gpt2, joined, 0, std});
    };
    if (gpt2) {
        vector("ln_1.weight", Place::norm1_w, C, 1);
        vector("ln_1.bias", Place::norm1_b, C, 0);
        matrix("attn.c_attn.weight", Place::qkv_w, 3 * C, C, in);
        rows_.back().stacked = 3;
        vector("attn.c_attn.bias", Place::qkv_b, 3 * C, 0);
        rows_.back().stacked = 3;
        matrix("attn.c_proj.weight", Place::out_w, C, C, out);
        vector("attn.c_proj.bias", Place::out_b, C, 0);
        vector("ln_2.weight", Place::norm2_w, C, 1);
        vector("ln_2.bias", Place::norm2_b, C, 0);
        matrix("mlp.c_fc.weight", Place::up_w, F, C, in);
        vector("mlp.c_fc.bias", Place::up_b, F, 0);
        matrix("mlp.c_proj.weight", Place::down_w, C, F, out);
        vector("mlp.c_proj.bias", Place::down_b, C, 0);
        return;
    }
    vector("input_layernorm.weight", Place::norm1_w, C, 1);
    matrix("self_attn.q_proj.weight", Place::qkv_w, A, C, in);
    matrix("self_attn.k_proj.weight", Place::qkv_w, K, C, in, true);
    matrix("self_attn.v_proj.weight", Place::qkv_w, K, C, in, true);
    if (shape_.qkv_bias()) {
        vector("self_attn.q_proj.bias", Place::qkv_b, A, 0);
        vector("self_attn.k_proj.bias", Place::qkv_b, K, 0, true);
        vector("self_attn.v_proj.bias", Place::qkv_b, K, 0, true);
    }
    if (shape_.qk_norm()) {
        vector("self_attn.q_norm.weight", Place::q_norm, shape_.head_dim, 1);
        vector("self_attn.k_norm.weight", Place::k_norm, shape_.head_dim, 1);
    }
    matrix("self_attn.o_proj.weight", Place::out_w, C, A, out);
    if (shape_.out_bias()) vector("self_attn.o_proj.bias", Place::out_b, C, 0);
    vector("post_attention_layernorm.weight", Place::norm2_w, C, 1);
    matrix("mlp.gate_proj.weight", Place::up_w, F, C, in);
    matrix("mlp.up_proj.weight", Place::up_w, F, C, in, true);
    if (shape_.ffn_bias()) {
        vector("mlp.gate_proj.bias", Place::up_b, F, 0);
        vector("mlp.up_proj.bias", Place::up_b, F, 0, true);
    }
    matrix("mlp.down_proj.weight", Place::down_w, C, F, out);
    if (shape_.ffn_bias()) vector("mlp.down_proj.bias", Place::down_b, C, 0);
}

// Tensors begin at multiples of 64 elements, joined ones right behind the one before; so do shards.
inline void Params::lay_out() {
    auto padded = [](long n, long to = 64) { return (n + to - 1) / to * to; };
    sizes_.assign(size_t(shape_.layers) + 1, 0);
    ends_.resize(sizes_.size());
    for (size_t share = 0; share < ends_[0].size(); ++share) {
        for (Param& p : rows_) {
            if (size_t(p.share()) != share) continue;
            long& end = sizes_[size_t(p.unit)];
            p.offset = p.joined ? end : padded(end);
            end = p.offset + p.room;
        }
        for (size_t u = 0; u < sizes_.size(); ++u) ends_[u][share] = sizes_[u] = padded(sizes_[u]);
    }
    for (long& size : sizes_) size = padded(size, 64L * shards_);
}

// Neighbours with the same decay share a span, but not what all of tp have with what they split; the padding between
// them is zero and stays zero.
inline std::vector<OptimizerSpan> Params::spans(int unit) const {
    std::vector<OptimizerSpan> here, spans;
    for (const Param& p : rows_)
        if (p.unit == unit) here.push_back({p.offset, p.count(), p.decay()});
    std::ranges::sort(here, {}, &OptimizerSpan::offset);
    for (const OptimizerSpan& s : here) {
        const bool apart = slice_.ranks > 1 && s.offset == end_of(unit, Share::all);
        if (spans.empty() || spans.back().decay != s.decay || apart) spans.push_back({s.offset, 0, s.decay});
        spans.back().count = s.offset + s.count - spans.back().offset;
    }
    return spans;
}

}  // namespace baretrain
