// mesh.h - the grid of ranks: five axes, where a rank stands on each, and with whom it shares one.
// Copy with: device/error.h
// The last axis is the innermost: its ranks are neighbours and get the fastest links. Data are split over dp_replicate
// and dp_shard, which together are dp. Expert parallelism will be another factorisation of dp_shard x cp x tp.
#pragma once
#include "device/error.h"
#include <array>
#include <vector>

namespace baretrain {

enum class Axis { pp, dp_replicate, dp_shard, cp, tp };
inline constexpr const char* axis_names[] = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};
inline constexpr Axis all_axes[] = {Axis::pp, Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp};

struct Mesh {
    std::array<int, 5> sizes = {1, 1, 1, 1, 1};        // in the order of Axis
    int rank = 0;

    int size(Axis a) const { return sizes[size_t(a)]; }
    int ranks() const { return stride(Axis::pp) * size(Axis::pp); }
    // From one rank to the next on this axis.
    int stride(Axis a) const {
        int inner = 1;
        for (size_t i = size_t(a) + 1; i < sizes.size(); ++i) inner *= sizes[i];
        return inner;
    }
    int at(Axis a) const { return rank / stride(a) % size(a); }
    // The rank that differs only in where it stands on this axis.
    int peer(Axis a, int at_other) const { return rank + (at_other - at(a)) * stride(a); }
    std::vector<int> group(Axis a) const {
        std::vector<int> ranks;
        for (int i = 0; i < size(a); ++i) ranks.push_back(peer(a, i));
        return ranks;
    }
    int dp() const { return size(Axis::dp_replicate) * size(Axis::dp_shard); }
    int dp_rank() const { return at(Axis::dp_replicate) * size(Axis::dp_shard) + at(Axis::dp_shard); }
};

}  // namespace baretrain
