// wire_test.cu - elements that travel in a narrower type: rounded as by hand, half the bytes, nothing where all stays.
#include "comm/threads.h"
#include "wire.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

constexpr long part = 128;

// Runs body(comm, arena, rank) on n ranks of dp_shard; gives the ledger of rank 0.
template <class Body> Ledger on_ranks(int n, Body body) {
    ThreadWorld world;
    Ledger ledger;
    run_threads(world, n, [&](int rank) {
        const Mesh mesh{{1, 1, n, 1, 1}, rank};
        Device device{.team = 1};
        ThreadEngine engine(world, mesh, device);
        Comm comm(device, mesh, &engine);
        Arena arena(size_t(1) << 16);
        body(comm, arena, rank);
        if (rank == 0) ledger = comm.ledger;
    });
    return ledger;
}
template <class T> View<T> filled(Arena& arena, long n, int which) {
    const View<T> v = arena.take<T>(1, n);
    const Numbers numbers = noise<double>(n, which);
    for (long i = 0; i < n; ++i) v.data[i] = T(numbers[size_t(i)]);
    return v;
}
double round_to(Type type, double x) { return type == Type::bf16 ? double(bf16(float(x))) : double(float(x)); }

// What a sum of the ranks' numbers is: each rounded, added in their order in float, and the sum rounded.
double summed(Type type, int n, long i) {
    float sum = 0;
    for (int r = 0; r < n; ++r) {
        const float x = float(round_to(type, noise<double>(n * part, r)[size_t(i)]));
        sum = r ? sum + x : x;
    }
    return round_to(type, sum);
}
long bytes(const Ledger& ledger) {
    long sum = 0;
    for (const auto& [key, row] : ledger) sum += row.bytes;
    return sum;
}

}  // namespace

TEST_SUITE("wire") {

TEST_CASE("a gather rounds every part, its own too, and leaves the part where it came from exact") {
    for (const Type type : {Type::fp32, Type::bf16})
        for (const int n : {2, 3}) {
            std::vector<long> wrong(size_t(n), 0);
            const Ledger ledger = on_ranks(n, [&](Comm& comm, Arena& arena, int rank) {
                const View<double> mine = filled<double>(arena, part, rank), whole = arena.take<double>(1, n * part);
                Wire<double> wire(arena, comm, Axis::dp_shard, type, n * part);
                wire.gather(whole, mine, {"test"});
                CHECK(bool(wire));
                wire.await();
                CHECK(!bool(wire));
                for (int r = 0; r < n; ++r)
                    for (long i = 0; i < part; ++i)
                        wrong[size_t(rank)] += whole.data[r * part + i] !=
                                               round_to(type, noise<double>(part, r)[size_t(i)]);
                for (long i = 0; i < part; ++i) wrong[size_t(rank)] += mine.data[i] != noise<double>(part, rank)[size_t(i)];
            });
            CHECK(wrong == std::vector<long>(size_t(n), 0));
            CHECK(bytes(ledger) == (n - 1) * part * type_bytes[int(type)]);
        }
}

TEST_CASE("a sum is that of rounded numbers, rounded: all of it, or this rank's part of a scatter") {
    for (const Type type : {Type::fp32, Type::bf16})
        for (const int n : {2, 3})
            for (const bool scatter : {false, true}) {
                CAPTURE(scatter); CAPTURE(n);
                std::vector<long> wrong(size_t(n), 0);
                const Ledger ledger = on_ranks(n, [&](Comm& comm, Arena& arena, int rank) {
                    const View<double> data = filled<double>(arena, n * part, rank);
                    Wire<double> wire(arena, comm, Axis::dp_shard, type, n * part);
                    for (int again = 0; again < 2; ++again) {   // a second one, of a part: the buffer is large enough
                        const long count = again ? part * n / 2 : part * n, each = count / n;
                        for (long i = 0; i < count; ++i) data.data[i] = noise<double>(n * part, rank)[size_t(i)];
                        if (scatter) wire.scatter(data.col_range(0, count), {"test"});
                        else wire.sum(data.col_range(0, count), {"test"});
                        wire.await();
                        for (long i = scatter ? rank * each : 0; i < (scatter ? (rank + 1) * each : count); ++i)
                            wrong[size_t(rank)] += data.data[i] != summed(type, n, i);
                    }
                });
                CHECK(wrong == std::vector<long>(size_t(n), 0));
                CHECK(bytes(ledger) == (scatter ? 1 : 2) * (n - 1) * (part + part / 2) * type_bytes[int(type)]);
            }
}

TEST_CASE("in their own type, or with nobody else on the axis, elements are not touched and there is no buffer") {
    for (const int n : {1, 2}) {
        on_ranks(n, [&](Comm& comm, Arena& arena, int rank) {
            const View<float> data = filled<float>(arena, 2 * part, rank);
            const size_t before = arena.peak();
            Wire<float> wire(arena, comm, Axis::dp_shard, n == 1 ? Type::bf16 : Type::fp64, 2 * part);
            CHECK(arena.peak() == before);
            wire.scatter(data, {"test"});
            CHECK(bool(wire) == (n > 1));
            wire.await();
            const auto exact = [&](int r, long i) { return float(noise<double>(2 * part, r)[size_t(i)]); };
            for (long i = rank * part; i < (rank + 1) * part; ++i)
                CHECK(data.data[i] == (n == 1 ? exact(0, i) : exact(0, i) + exact(1, i)));
        });
    }
}

}
