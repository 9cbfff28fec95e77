// tp_test.cu - tensor and sequence parallelism: the same run in every layout, with the bytes and the memory of the
// closed forms; and known faults of others.
#include "test/layouts.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

// Of each tp, with sp and without: alone, and with every way to share the state between up to 8 ranks.
std::vector<Layout> split_layouts() {
    std::vector<Layout> all;
    for (const long t : {1, 2, 4})
        for (const bool sp : {false, true}) {
            const auto add = [&](Layout l) { l.tp = t, l.sp = sp, all.push_back(l); };
            add({.ranks = t}), add({.ranks = 2 * t});
            add({.shard = "zero1", .ranks = 2 * t}), add({.shard = "fsdp", .ranks = 2 * t});
            if (t == 4) continue;
            add({.shard = "zero1", .ranks = 8}), add({.shard = "fsdp", .ranks = 8 / t});
            add({.shard = "fsdp", .ranks = 8, .replicate = 2}), add({.shard = "zero2", .ranks = 3 * t});
        }
    return all;
}

}  // namespace

TEST_SUITE("tp") {

TEST_CASE("every part of every matrix on a rank of its own, its rows or all: the run is that of one rank") {
    check_matrix(split_layouts(), {model_families, {"none", "selective", "full"}, split_shape});
}

}
