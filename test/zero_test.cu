// zero_test.cu - DDP, ZeRO-1, ZeRO-2: the same run in every layout, with the bytes and the memory of the closed forms.
#include "test/layouts.h"

using namespace baretrain;
using namespace baretrain::test;

TEST_SUITE("zero") {

TEST_CASE("A2: DDP, ZeRO-1 and ZeRO-2 are the run of one rank, whatever each rank has to train") {
    check_matrix(on_ranks({.shard = "none"}) + on_ranks({.shard = "zero1"}) + on_ranks({.shard = "zero2"}) +
                 on_ranks({.shard = "zero1", .replicate = 2}, {4}) + on_ranks({.shard = "zero2", .replicate = 2}, {4}));
}

}
