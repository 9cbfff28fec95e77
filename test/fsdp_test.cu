// fsdp_test.cu - FSDP and HSDP: the same run in every layout, with the bytes and the memory of the closed forms.
#include "test/layouts.h"

using namespace baretrain;
using namespace baretrain::test;

TEST_SUITE("fsdp") {

TEST_CASE("A2: FSDP, resharding or not, and HSDP are the run of one rank, whatever each rank has to train") {
    check_matrix(on_ranks({.shard = "fsdp"}) + on_ranks({.shard = "fsdp", .reshard = false}) +
                 on_ranks({.shard = "fsdp", .replicate = 2}, {4}) + on_ranks({.shard = "fsdp", .prefetch = 0}, {3}) +
                 on_ranks({.shard = "fsdp", .prefetch = 2}, {3}));
}

}
