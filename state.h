// state.h - what the optimizer keeps from step to step, how weights begin, and the tensors' names in files.
// Copy with: lease.h, kernels/adamw.h, kernels/copy.h, model_folder.h and what they name
// The master weight and the moments are Real<T>. For float and double the master is the weight itself; for bf16 the
// weights are its rounded copy, made again after each update, unless there is to be no master. All loops run over the
// rows of the parameter table.
#pragma once
#include "kernels/adamw.h"
#include "kernels/copy.h"
#include "lease.h"
#include "model_folder.h"

namespace baretrain {

template <class T> constexpr const char* safetensors_dtype() {
    if constexpr (std::is_same_v<T, double>) return "F64";
    else if constexpr (std::is_same_v<T, bf16>) return "BF16";
    else return "F32";
}

// Memory of a part of a unit: its elements `range`.
template <class T> struct Part { View<T> data; Range range; };

// The part that this rank owns of each unit; `store`: of weights or gradients.
template <class T, class Store>
std::vector<Part<T>> owned_parts(const Params& params, const auto& weights, Store& store) {
    std::vector<Part<T>> parts;
    for (int u = 0; u < params.units(); ++u) parts.push_back({store.owned(u), weights.owns(u)});
    return parts;
}
template <class T> std::vector<Part<T>> owned_units(const Params& params, WeightStore<T>& weights) {
    return owned_parts<T>(params, weights, weights);
}

// The tensors of the table, as they lie in `parts`, under prefix + Hugging Face name: to write, or to be filled. What
// is there only in part is written in pieces (model_folder.h); what all ranks of tp have is written by the first.
template <class T>
std::vector<TensorSource> tensor_sources(Device& d, const Params& params, const std::vector<Part<T>>& parts,
                                         const std::string& prefix) {
    std::vector<TensorSource> list;
    for (const Param& p : params.rows()) {
        const Part<T>& part = parts[size_t(p.unit)];
        const Range r = p.range().both(part.range);
        if (r.count == 0 || !params.counts(p)) continue;
        const T* const first = part.data.data + (p.offset - part.range.first);   // of the tensor, were it here
        for (const Box& b : p.boxes({r.first - p.offset, r.count})) {
            const bool whole = p.whole() && b.cols == p.count();
            const std::vector<long> shape = b.rows > 1 ? std::vector{b.rows, b.cols} : std::vector{b.cols};
            list.push_back({whole ? prefix + p.name : piece_name(prefix + p.name, b.whole), safetensors_dtype<T>(),
                            whole ? p.dims() : shape, [&d, b, from = first + b.mine, cols = p.cols](void* to) {
                if (b.rows == 1) return copy_bytes(d, to, from, size_t(b.cols) * sizeof(T));
                std::vector<T> rows(size_t((b.rows - 1) * cols + b.cols));   // and what lies between those of the box
                copy_bytes(d, rows.data(), from, rows.size() * sizeof(T));
                for (long i = 0; i < b.rows; ++i)
                    std::copy_n(rows.begin() + i * cols, b.cols, static_cast<T*>(to) + i * b.cols);
            }});
        }
    }
    return list;
}
template <class T>
std::vector<TensorTarget> tensor_targets(Device& d, const Params& params, const std::vector<Part<T>>& parts,
                                         const std::string& prefix) {
    std::vector<TensorTarget> list;
    for (const Param& p : params.rows()) {
        const Part<T>& part = parts[size_t(p.unit)];
        const Range r = p.range().both(part.range), mine{r.first - p.offset, r.count};
        T* const to = part.data.data + (r.first - part.range.first);
        Range span{0, 0};                              // of the whole, that holds all that is wanted
        p.for_each_run(mine, [&](long, long at, long n) {
            if (span.count == 0) span.first = at;
            span.count = at + n - span.first;
        });
        list.push_back({prefix + p.name, safetensors_dtype<T>(), p.dims(), [&d, &p, mine, to, span](const void* from) {
            const size_t bytes = size_t(mine.count) * sizeof(T);
            if (span.count == mine.count) return copy_bytes(d, to, from, bytes);   // all in a row, as without tp
            std::vector<T> host(static_cast<size_t>(mine.count));
            p.for_each_run(mine, [&](long e, long at, long n) {
                std::copy_n(static_cast<const T*>(from) + (at - span.first), n, host.begin() + (e - mine.first));
            });
            copy_bytes(d, to, host.data(), bytes);
        }, span.first, span.count});
    }
    return list;
}

// AdamW over the spans that this rank owns: publishes weights from gradients.
template <class T> class Optimizer {
public:
    using R = Real<T>;
    static constexpr bool same = std::is_same_v<T, R>;   // the weights are their own master

    Optimizer(Arena& arena, const Params& params, WeightStore<T>& weights, bool master = true)
        : params_(params), weights_(weights) {
        const auto take = [&] {
            std::vector<Part<R>> parts;
            for (int u = 0; u < params.units(); ++u)
                parts.push_back({arena.take<R>(1, weights.owns(u).count), weights.owns(u)});
            return parts;
        };
        if constexpr (same) master_ = owned_units(params, weights);
        else if (master) master_ = take();
        m_ = take();
        v_ = take();
    }

    // Element e of tensor i of the table, whole, is normal number e of Philox step i: the same in every layout.
    void initialise(Device& d, uint64_t seed) {
        uint64_t tensor = 0;
        for (const Param& p : params_.rows()) {
            const Range owned = weights_.owns(p.unit), r = p.range().both(owned);
            std::vector<R> exact(static_cast<size_t>(r.count), R(p.mean));
            const long first = r.first - p.offset;
            p.for_each_run({first, p.std > 0 ? r.count : 0}, [&](long mine, long whole, long n) {
                for (long i = 0; i < n; ++i)
                    exact[size_t(mine - first + i)] =
                        R(p.mean + p.std * normal(seed, Stream::init, tensor, uint64_t(whole + i)));
            });
            const std::vector<T> rounded(exact.begin(), exact.end());
            const long at = r.first - owned.first;
            copy_bytes(d, weights_.owned(p.unit).data + at, rounded.data(), rounded.size() * sizeof(T));
            if (!same && !master_.empty())
                copy_bytes(d, master_[size_t(p.unit)].data.data + at, exact.data(), exact.size() * sizeof(R));
            ++tensor;
        }
        publish([](int) {});
    }

    // Of all units at once: one launch is less to wait for than what publishing could hide.
    void update(Device& d, const SpanTable<AdamSpan<T>>& spans, View<const StepState> step) {
        adamw<T>(d, spans, step);
        publish([&](int u) { d.mark(Mark::update, u); });
    }
    std::vector<AdamSpan<T>> spans(GradStore<R>& grads) const {
        std::vector<AdamSpan<T>> all;
        for (int u = 0; u < params_.units(); ++u)
            for (const OptimizerSpan& s : params_.spans(u)) all.push_back(span(grads, u, s));
        return all;
    }
    // What the update of a part of a unit works on: as much of it as this rank owns. Random numbers go by the place in
    // the unit, and where tp splits it by the rank, too: what several ranks have is rounded alike.
    AdamSpan<T> span(GradStore<R>& grads, int unit, const OptimizerSpan& s) const {
        const size_t i = size_t(unit);
        const auto [slices, slice] = params_.slice();
        const uint64_t whose = i * size_t(slices) + (s.offset < params_.end_of(unit, Share::all) ? 0 : size_t(slice));
        const Range owned = weights_.owns(unit), r = Range{s.offset, s.count}.both(owned);
        const long at = r.first - owned.first;
        return {weights_.owned(unit).data + at, master_.empty() ? nullptr : master_[i].data.data + at,
                m_[i].data.data + at, v_[i].data.data + at, grads.owned(unit).data + at, r.count,
                R(s.decay), R(1), (whose << 40) + uint64_t(r.first)};
    }

    // Everything that a resumed run needs besides the weights.
    std::vector<TensorSource> sources(Device& d) const {
        std::vector<TensorSource> all;
        each_part([&](const std::string& prefix, const std::vector<Part<R>>& parts) {
            for (TensorSource& t : tensor_sources<R>(d, params_, parts, prefix)) all.push_back(std::move(t));
        });
        return all;
    }
    std::vector<TensorTarget> targets(Device& d) const {
        std::vector<TensorTarget> all;
        each_part([&](const std::string& prefix, const std::vector<Part<R>>& parts) {
            for (TensorTarget& t : tensor_targets<R>(d, params_, parts, prefix)) all.push_back(std::move(t));
        });
        return all;
    }
    // A model without optimizer state: into the master, if there is one, which holds what narrower weights would lose.
    void load(Device& d, const std::string& folder) {
        if (same || master_.empty())
            load_model_tensors(folder, tensor_targets<T>(d, params_, owned_units(params_, weights_), ""));
        else load_model_tensors(folder, tensor_targets<R>(d, params_, master_, ""));
        publish_all(d);
    }
    // Weights = master, rounded.
    void publish_all(Device& d) {
        publish([&](int u) {
            if (same || master_.empty()) return;
            copy<T, R>(d, weights_.owned(u), View<const R>(master_[size_t(u)].data));
        });
    }
private:
    // What `write` writes of each unit is published while the next one is written.
    template <class Write> void publish(Write write) {
        for (int u = 0; u < params_.units(); ++u) {
            write(u);
            weights_.publish(u);
        }
        weights_.finish();
    }
    template <class Use> void each_part(Use use) const {
        if (!same && !master_.empty()) use("master.", master_);
        use("m.", m_);
        use("v.", v_);
    }
    const Params& params_;
    WeightStore<T>& weights_;
    std::vector<Part<R>> master_, m_, v_;              // no master: weights are rounded stochastically
};

}  // namespace baretrain
