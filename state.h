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

// The tensors of the table, as they lie in `units`, under prefix + Hugging Face name: to write, or to be filled.
template <class T>
std::vector<TensorSource> tensor_sources(Device& d, const Params& params, const std::vector<View<T>>& units,
                                         const std::string& prefix) {
    std::vector<TensorSource> list;
    for (const Param& p : params.rows()) {
        const T* const from = units[size_t(p.unit)].data + p.offset;
        const size_t bytes = size_t(p.count()) * sizeof(T);
        list.push_back({prefix + p.name, safetensors_dtype<T>(), p.dims(),
                        [&d, from, bytes](void* to) { copy_bytes(d, to, from, bytes); }});
    }
    return list;
}
template <class T>
std::vector<TensorTarget> tensor_targets(Device& d, const Params& params, const std::vector<View<T>>& units,
                                         const std::string& prefix) {
    std::vector<TensorTarget> list;
    for (const Param& p : params.rows()) {
        T* const to = units[size_t(p.unit)].data + p.offset;
        const size_t bytes = size_t(p.count()) * sizeof(T);
        list.push_back({prefix + p.name, safetensors_dtype<T>(), p.dims(),
                        [&d, to, bytes](const void* from) { copy_bytes(d, to, from, bytes); }});
    }
    return list;
}

template <class T> std::vector<View<T>> owned_units(const Params& params, WeightStore<T>& weights) {
    std::vector<View<T>> units;
    for (int u = 0; u < params.units(); ++u) units.push_back(weights.owned(u));
    return units;
}

// AdamW over the spans that this rank owns: publishes weights from gradients.
template <class T> class Optimizer {
public:
    using R = Real<T>;
    static constexpr bool same = std::is_same_v<T, R>;   // the weights are their own master

    Optimizer(Arena& arena, const Params& params, WeightStore<T>& weights, bool master = true)
        : params_(params), weights_(weights) {
        if constexpr (same) master_ = owned_units(params, weights);
        else if (master) master_ = take_units<R>(arena, params);
        m_ = take_units<R>(arena, params);
        v_ = take_units<R>(arena, params);
    }

    // Element e of tensor i of the table is normal number e of Philox step i: the same in every layout.
    void initialise(Device& d, uint64_t seed) {
        uint64_t tensor = 0;
        for (const Param& p : params_.rows()) {
            std::vector<R> exact(static_cast<size_t>(p.count()));
            for (size_t e = 0; e < exact.size(); ++e)
                exact[e] = R(p.mean + (p.std > 0 ? p.std * normal(seed, Stream::init, tensor, e) : 0));
            const std::vector<T> rounded(exact.begin(), exact.end());
            copy_bytes(d, weights_.owned(p.unit).data + p.offset, rounded.data(), rounded.size() * sizeof(T));
            if (!same && !master_.empty())
                copy_bytes(d, master_[size_t(p.unit)].data + p.offset, exact.data(), exact.size() * sizeof(R));
            ++tensor;
        }
        for (int u = 0; u < params_.units(); ++u) weights_.publish(u);
    }

    void update(Device& d, GradStore<R>& grads, View<const StepState> step) {
        for (int u = 0; u < params_.units(); ++u) {
            d.mark(Mark::update, u);
            for (const OptimizerSpan& s : params_.spans(u)) adamw<T>(d, span(grads, u, s), step);
            weights_.publish(u);
        }
    }
    // What the update of a part of a unit works on.
    AdamSpan<T> span(GradStore<R>& grads, int unit, const OptimizerSpan& s) const {
        const size_t i = size_t(unit);
        return {weights_.owned(unit).data + s.offset, master_.empty() ? nullptr : master_[i].data + s.offset,
                m_[i].data + s.offset, v_[i].data + s.offset, grads.owned(unit).data + s.offset, s.count,
                R(s.decay), R(1), (uint64_t(unit) << 40) + uint64_t(s.offset)};
    }

    // Everything that a resumed run needs besides the weights.
    std::vector<TensorSource> sources(Device& d) const {
        std::vector<TensorSource> all;
        each_part([&](const std::string& prefix, const std::vector<View<R>>& units) {
            for (TensorSource& t : tensor_sources<R>(d, params_, units, prefix)) all.push_back(std::move(t));
        });
        return all;
    }
    std::vector<TensorTarget> targets(Device& d) const {
        std::vector<TensorTarget> all;
        each_part([&](const std::string& prefix, const std::vector<View<R>>& units) {
            for (TensorTarget& t : tensor_targets<R>(d, params_, units, prefix)) all.push_back(std::move(t));
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
        for (int u = 0; u < params_.units(); ++u) {
            if (!same && !master_.empty()) {
                const View<R> master = master_[size_t(u)];
                const long rows = master.cols / 64;    // units are multiples of 64: as rows, so that there are blocks
                copy<T, R>(d, {weights_.owned(u).data, rows, 64}, {master.data, rows, 64});
            }
            weights_.publish(u);
        }
    }
private:
    template <class Use> void each_part(Use use) const {
        if (!same && !master_.empty()) use("master.", master_);
        use("m.", m_);
        use("v.", v_);
    }
    const Params& params_;
    WeightStore<T>& weights_;
    std::vector<View<R>> master_, m_, v_;              // no master: weights are rounded stochastically
};

}  // namespace baretrain
