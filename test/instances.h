// instances.h - train_gpt.cu for test files: the templates of a step are compiled once, in instances.cu, not in each.
// Copy with: train_gpt.cu
#pragma once
#define BT_NO_MAIN
#include "train_gpt.cu"

#define BT_INSTANCES(EXTERN, T)                                                                                        \
    EXTERN template struct Trainer<T>;                                                                                 \
    EXTERN template class Optimizer<T>;                                                                                \
    EXTERN template class Stats<T>;                                                                                    \
    EXTERN template class WholeWeights<T>;                                                                             \
    EXTERN template class ShardedWeights<T>;                                                                           \
    EXTERN template class Generator<T>;                                                                                \
    EXTERN template View<T> block_forward(Context<T>&, const Weights<T>&, const BlockActs<T>&, Input<T>,               \
                                          const RowViews&, const KvCache<T>*);                                         \
    EXTERN template void gradients(Trainer<T>&, const std::vector<Rows>&);                                             \
    EXTERN template void gradients(Trainer<T>&, const std::vector<Rows>&, long);                                       \
    EXTERN template StepResult train_step(Trainer<T>&, const std::vector<Rows>&);                                      \
    EXTERN template Plan plan_of<T>(const Config&, const Params&, size_t);                                             \
    EXTERN template std::string save(Trainer<T>&, const Corpus&, const Tokenizer&, const std::string&);                \
    EXTERN template void resume(Trainer<T>&, const Corpus&, const std::string&);

#ifndef BT_INSTANTIATE
namespace baretrain {
BT_INSTANCES(extern, float)
BT_INSTANCES(extern, double)
BT_INSTANCES(extern, bf16)
}  // namespace baretrain
#endif
