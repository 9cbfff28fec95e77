// schedule.h - the learning rate of each step: a warm-up, a plateau, and a decay that ends exactly at min_lr.
// Copy with: device/error.h
// Steps count optimizer updates from 0. Warm-up of W steps: lr * (step + 1) / W, so that the first update already
// learns and step W - 1 has the full lr. Then lr, until the last `decay` steps; the last of them, N - 1, has min_lr.
// At least one step has the full lr: a run that is all warm-up, or has one step, never decays. From N on: end value.
// A resumed run with another N follows the curve of the new N from its step on; it never warms up again.
#pragma once
#include "device/error.h"
#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace baretrain {

struct Schedule {
    std::string curve = "cosine";                      // cosine, linear, wsd, constant
    double lr = 1e-3, min_lr = 1e-4;
    long warmup = 0, steps = 0, decay = 0;
};

// How long each curve decays: all that warm-up leaves, the last fifth of the run (wsd), or never.
inline long decay_steps(const std::string& curve, long warmup, long steps) {
    const long left = std::max(0L, steps - std::max(1L, warmup));
    if (curve == "cosine" || curve == "linear") return left;
    if (curve == "wsd") return std::min(left, (steps + 4) / 5);
    require(curve == "constant", "schedule: cosine, linear, wsd or constant");
    return 0;
}

inline double learning_rate(const Schedule& s, long step) {
    if (step < s.warmup) return s.lr * double(step + 1) / double(s.warmup);
    const long begin = s.steps - s.decay;
    if (s.decay == 0 || step < begin) return s.lr;
    if (step >= s.steps - 1) return s.min_lr;
    const double done = double(step + 1 - begin) / double(s.decay);
    const double left = s.curve == "cosine" ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
    return s.min_lr + (s.lr - s.min_lr) * left;
}

}  // namespace baretrain
