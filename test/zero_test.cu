// zero_test.cu - DDP, ZeRO-1 and ZeRO-2: the same run as one rank, in every layout; bytes as counted by hand.
#include "test/ranks.h"

using namespace baretrain;
using namespace baretrain::test;

TEST_SUITE("zero") {

TEST_CASE("every layout is the same run") {
    for (const char* family : {"gpt2", "llama"}) {
        const ModelShape shape = small_shape(family, true);
        const Taken one = run_layout<double>(shape, {}, 8);
        for (const char* shard : {"none", "zero1", "zero2", "fsdp"})
            for (long ranks : {1, 2, 3, 4})
                for (long micros : {1, 3}) {
                    const Layout l{.shard = shard, .ranks = ranks, .micros = micros};
                    CAPTURE(l.text());
                    const Taken t = run_layout<double>(shape, l, 8);
                    const Apart a = apart(one, t);
                    CAPTURE(a.where);
                    CHECK(a.worst < 1e-11);
                    CHECK(t.faults == std::vector<std::string>());
                }
    }
}

}
