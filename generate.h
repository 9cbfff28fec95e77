// generate.h - the model without a backward pass: evaluation, and text token by token with cached keys and values.
// Copy with: gpt.h, state.h, zero.h, dataloader.h and what they name
// The sampler takes logits on the host: temperature 0 is the likeliest token; top-k, then top-p cut the tail. The
// random number of token i is element i of Philox (seed, Stream::sample, step): no device or layout changes it.
#pragma once
#include "dataloader.h"
#include "gpt.h"
#include "state.h"
#include "zero.h"
#include <algorithm>
#include <functional>
#include <numeric>

namespace baretrain {

// hidden: (N, C), after the final norm, overwritten. All blocks share one set of activations. caches: one a block, or
// empty.
template <class T>
void infer(Context<T> c, WeightStore<T>& weights, const Lease<T>& ends, View<T> hidden, const RowViews& rows,
           const std::vector<KvCache<T>>& caches = {}) {
    Scratch s(c.scratch);
    c.sp = false;                                      // any number of rows: every rank of tp has all
    const auto acts = BlockActs<T>::take(s, c.shape, hidden.rows);
    View<T> x = s.take<T>(hidden.rows, hidden.cols);
    embed_forward(c, x, *ends, rows);
    for (long block = 0; block < c.shape.layers; ++block) {
        auto w = weights.gather(block_unit(block));
        x = block_forward(c, *w, acts, x, rows, caches.empty() ? nullptr : &caches[size_t(block)]);
        weights.release(w);
    }
    norm_forward(c, hidden, s.take<Real<T>>(hidden.rows, 2), x, ends->norm);
}

// ---- evaluation -----------------------------------------------------------------------------------------------------
// Sum of the log-probabilities of the trained targets.
template <class T>
double evaluate_rows(Context<T>& c, WeightStore<T>& weights, RowBuffers& buffers, const Rows& m) {
    const long N = long(m.tokens.size());
    const RowViews rows = buffers.upload(c.device, m.tokens, m.targets, m.positions, m.documents);
    Scratch s(c.scratch);
    const auto hidden = s.take<T>(N, c.shape.dim);
    const auto logprobs = s.take<Real<T>>(1, N);
    auto ends = weights.gather(ends_unit);
    infer(c, weights, ends, hidden, rows);
    head_logprobs(c, logprobs, ends->head, hidden, rows.targets);
    weights.release(ends);
    std::vector<Real<T>> host(static_cast<size_t>(N));
    copy_bytes(c.device, host.data(), logprobs.data, host.size() * sizeof(Real<T>));
    return std::accumulate(host.begin(), host.end(), 0.0);
}

// Total over count: no batch weighs more than its tokens.
struct LossSum {
    double total = 0;
    long count = 0;
    void add(double sum, long tokens) { total += sum, count += tokens; }
    double mean() const { return count ? total / double(count) : 0; }
};

// Loss over every window of the data, once, whatever the size of a batch: this rank's share of it. All ranks go through
// as many batches, as weights are gathered by all: those that have none left take the last window again, for nothing.
template <class T>
LossSum evaluate(Context<T>& c, WeightStore<T>& weights, RowBuffers& buffers, const Loader& data,
                 const RankShare& share, std::function<void(long done, long total)> progress) {
    LossSum loss;
    for (long step = 0; share.batch * share.ranks * step < data.windows(); ++step) {
        const long first = share.first(0, step), last = data.windows() - 1;
        Rows m = data.in_order(std::min(first, last), share.batch);
        if (first > last) m.targets.assign(m.targets.size(), ignored);
        loss.add(-evaluate_rows(c, weights, buffers, m), m.trained());
        progress(std::min(first, last), data.windows());
    }
    return loss;
}

// ---- sampling -------------------------------------------------------------------------------------------------------
struct Sampling {
    double temperature = 1;                            // 0: the likeliest token
    long top_k = 0;                                    // 0, or more than there are tokens: all
    double top_p = 1;                                  // keep the likeliest tokens until their sum reaches this
    uint64_t seed = 0, step = 0;
    long vocab = 0;                                    // ids from here on are padding, never picked; 0: all ids count
};

// The token that u in (0, 1) picks. Equal logits are ordered by id.
inline int pick(const std::vector<double>& logits, const Sampling& how, double u) {
    std::vector<int> order;
    const size_t ids = how.vocab > 0 ? std::min(size_t(how.vocab), logits.size()) : logits.size();
    for (size_t id = 0; id < ids; ++id)
        if (!std::isnan(logits[id])) order.push_back(int(id));
    if (order.empty()) fail("no token can be picked: every logit of the model is NaN");
    std::sort(order.begin(), order.end(), [&](int a, int b) {
        return std::pair(-logits[size_t(a)], a) < std::pair(-logits[size_t(b)], b);
    });
    if (how.temperature == 0) return order[0];
    if (how.top_k > 0 && size_t(how.top_k) < order.size()) order.resize(size_t(how.top_k));

    std::vector<double> p;
    for (int id : order) p.push_back(std::exp((logits[size_t(id)] - logits[size_t(order[0])]) / how.temperature));
    const double all = std::accumulate(p.begin(), p.end(), 0.0);
    double kept = 0;
    size_t n = 0;
    while (n < p.size() && (n == 0 || kept < how.top_p * all)) kept += p[n++];
    double left = u * kept;
    for (size_t i = 0; i < n; ++i)
        if ((left -= p[i]) < 0) return order[i];
    return order[n - 1];
}

// Writes text after a prompt; holds the caches. Memory comes from the context's arena and goes back with the generator.
template <class T> class Generator {
public:
    // longest: tokens of context that the caches hold.
    Generator(const Context<T>& c, WeightStore<T>& weights, long longest)
        : c_(c), weights_(weights), longest_(longest), scratch_(c.scratch),
          rows_(c.scratch, c.shape, longest, longest) {
        const long K = c.shape.kv_heads * c.shape.head_dim;
        for (long l = 0; l < c.shape.layers; ++l)
            caches_.push_back({scratch_.take<T>(longest, K), scratch_.take<T>(longest, K), 0});
    }

    // Calls use(token) for each new token until it returns false or `tokens` are written. The prompt is not empty. When
    // the context is full it starts again from its later half.
    void generate(std::vector<int> context, long tokens, const Sampling& how, const std::function<bool(int)>& use) {
        require(!context.empty(), "generate: a prompt of at least one token");
        size_t fed = 0;
        crop(context, fed);
        for (long i = 0; i < tokens; ++i) {
            const std::vector<double> logits = feed({context.begin() + long(fed), context.end()}, long(fed));
            fed = context.size();
            const int next = pick(logits, how, uniform(philox(how.seed, Stream::sample, how.step, uint64_t(i)).v[0]));
            if (!use(next)) return;
            context.push_back(next);
            crop(context, fed);
        }
    }

    // Logits after `ids`, which follow the `length` tokens that are in the cache. Without a cache: length 0 and all
    // ids.
    std::vector<double> feed(const std::vector<int>& ids, long length) {
        const int N = int(ids.size());
        std::vector<int> positions(ids.size());
        std::iota(positions.begin(), positions.end(), int(length));
        for (KvCache<T>& cache : caches_) cache.length = length;
        const RowViews rows = rows_.upload(c_.device, ids, {}, positions, {0, N});

        Scratch s(c_.scratch);
        const auto hidden = s.take<T>(N, c_.shape.dim);
        auto ends = weights_.gather(0);
        const auto logits = s.take<Real<T>>(1, ends->head.w.rows);
        infer(c_, weights_, ends, hidden, rows, caches_);
        matmul<Real<T>, T>(c_.matmul, c_.device, logits, hidden.row_range(N - 1, 1), ends->head.w, {},
                           {.transpose_b = true});
        weights_.release(ends);

        std::vector<Real<T>> host(size_t(c_.shape.vocab));
        gather_logits<T>(c_, logits, host.data());
        return {host.begin(), host.end()};
    }
private:
    void crop(std::vector<int>& context, size_t& fed) const {
        if (long(context.size()) <= longest_) return;
        context.erase(context.begin(), context.end() - std::max(1L, longest_ / 2));
        fed = 0;
    }
    Context<T> c_;
    WeightStore<T>& weights_;
    long longest_;
    Scratch scratch_;
    RowBuffers rows_;
    std::vector<KvCache<T>> caches_;
};

// Text after the prompt (without one: after <|endoftext|>), shown piece by piece; ends early at <|endoftext|>.
template <class T>
std::string sample(Generator<T>& generator, const Tokenizer& tokenizer, const std::string& prompt, long tokens,
                   Sampling how, const std::function<void(const std::string&)>& show) {
    how.vocab = tokenizer.vocab();
    std::vector<int> ids = tokenizer.encode(prompt);
    if (ids.empty()) ids = {tokenizer.end_of_text()};
    Utf8Stream characters;
    std::string text;
    const auto put = [&](const std::string& piece) { text += piece, show(piece); };
    generator.generate(ids, tokens, how, [&](int id) {
        if (id == tokenizer.end_of_text()) return false;
        put(characters.push(tokenizer.decode({id})));
        return true;
    });
    put(characters.finish());
    return text;
}

// A model that is only read: its weights, and what the operations ask for, for contexts of up to `longest` tokens. Of
// weights and caches each rank of tp has its part, from file to text: nothing but logits is gathered.
template <class T> struct Inference {
    const Params params;
    Device device;
    Matmul matmul;
    Comm comm;
    WholeWeights<T> weights;
    View<Real<T>> rope;
    Context<T> context;
    Inference(Arena& arena, const ModelShape& shape, long longest, const Rank& rank = {})
        : params(shape, 1, {rank.mesh.size(Axis::tp), rank.mesh.at(Axis::tp)}),
          device{.index = rank.gpu, .team = rank.team, .stream = rank.stream, .dry = arena.dry()}, matmul(device),
          comm(device, rank.mesh, rank.engine, checked_build), weights(arena, params, comm),
          rope(arena.take<Real<T>>(shape.rotary() ? longest : 0, shape.head_dim)),
          context{device, matmul, arena, params.local(), rope, comm} {
        fill_rope(device, rope, rope_frequencies(shape));
    }
    void load(const std::string& folder) {
        load_model_tensors(folder, tensor_targets<T>(device, params, owned_units(params, weights), ""));
    }
};

}  // namespace baretrain
