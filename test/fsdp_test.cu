// fsdp_test.cu - FSDP and HSDP: the same run in every layout, with the bytes and the memory of the closed forms.
#include "test/layouts.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

constexpr long blocks = 5;
ModelShape deep_shape() {
    ModelShape s = small_shape("llama", false);
    s.layers = blocks;
    return s;
}

// Runs body(store, rank) on two ranks whose weights are noise.
template <class Body> void with_stores(const FsdpOptions& options, Body body) {
    const Params params(deep_shape(), 2);
    ThreadWorld world;
    run_threads(world, 2, [&](int rank) {
        const Mesh mesh{{1, 1, 2, 1, 1}, rank};
        Device device{.team = 1};
        ThreadEngine engine(world, mesh, device);
        Comm comm(device, mesh, &engine);
        Arena arena(size_t(1) << 20);
        ShardedWeights<float> store(arena, params, comm, options);
        for (int u = 0; u < params.units(); ++u)
            for (long i = 0; i < store.owned(u).count(); ++i)
                store.owned(u).data[i] = float(1000 * u + store.owns(u).first + i);
        body(store, params, rank);
    });
}
// Of all elements of a unit that is leased: wrong ones.
long wrong(const Lease<float>& w, const Params& params) {
    long n = 0;
    Weights<float> views = *w;
    for (const Param& p : params.rows())
        if (p.unit == w.unit && !p.joined)
            for (long i = 0; i < p.count(); ++i)
                n += views.at(p.place).data[i] != float(1000 * w.unit + p.offset + i);
    return n;
}

}  // namespace

TEST_SUITE("fsdp") {

TEST_CASE("A2: FSDP, resharding or not, and HSDP are the run of one rank, whatever each rank has to train") {
    check_matrix(with_ranks({.shard = "fsdp"}) + with_ranks({.shard = "fsdp", .reshard = false}) +
                 with_ranks({.shard = "fsdp", .replicate = 2}, {4}) + with_ranks({.shard = "fsdp", .prefetch = 0}, {3}) +
                 with_ranks({.shard = "fsdp", .prefetch = 2}, {3}));
}

TEST_CASE("in fp32 the first step of HSDP is that of one rank") {
    check_fp32({.shard = "fsdp", .ranks = 4, .replicate = 2, .micros = 3});
}

TEST_CASE("prefetch and resharding change memory and time, not one bit; nor does it matter that weights are sharded") {
    const ModelShape shape = deep_shape();
    const Taken first = run_layout<float>(shape, {.shard = "fsdp", .ranks = 3, .micros = 3, .prefetch = 0}, 3);
    size_t peak = first.peak;
    for (long prefetch : {1, 2}) {
        const Taken t = run_layout<float>(shape, {.shard = "fsdp", .ranks = 3, .micros = 3, .prefetch = prefetch}, 3);
        check_same_bits(first, t);
        CHECK(t.peak > peak);
        peak = t.peak;
    }
    const Layout stays{.shard = "fsdp", .ranks = 3, .micros = 3, .reshard = false};
    check_same_bits(first, run_layout<float>(shape, stays, 3));
    check_same_bits(first, run_layout<float>(shape, stays, 3));
    check_same_bits(first, run_layout<float>(shape, {.shard = "zero2", .ranks = 3, .micros = 3}, 3));
}

TEST_CASE("weights that were let go are NaN where releases are poisoned, and only there") {
    CHECK(FsdpOptions{}.poison == checked_build);
    for (const bool poison : {true, false})
        with_stores({.prefetch = 0, .poison = poison}, [&](ShardedWeights<float>& store, const Params& params, int) {
            auto ends = store.gather(ends_unit);
            const View<float> head = ends->head.w;
            for (int b = 1; b <= blocks; ++b) {
                auto w = store.gather(b);
                CHECK(wrong(w, params) == 0);
                const View<float> up = w->up.w;
                store.release(w);
                for (long i = 0; i < up.count(); ++i)  // the last block is needed again at once
                    CHECK(std::isnan(up.data[i]) == (poison && b < blocks));
            }
            auto last = store.gather(blocks);
            const View<float> up = last->up.w;
            CHECK(wrong(last, params) == 0);
            store.release(last);
            CHECK(std::isnan(up.data[0]) == poison);
            CHECK(!std::isnan(head.data[0]));
            store.release(ends);
            CHECK(std::isnan(head.data[0]) == poison);
        });
}

TEST_CASE("whatever the order, a lease has its unit's weights; two blocks at once are an error") {
    for (const bool reshard : {true, false})
        for (const int prefetch : {0, 1, 2})
            with_stores({prefetch, reshard, Type::fp64, true}, [&](ShardedWeights<float>& store, const Params& params, int) {
                for (uint64_t pass = 0; pass < 20; ++pass) {
                    auto ends = store.gather(ends_unit);
                    CHECK(wrong(ends, params) == 0);
                    for (uint64_t i = 0; i < 8; ++i) {
                        auto w = store.gather(1 + int(philox(9, Stream::test, pass, i).v[0] % blocks));
                        CHECK(wrong(w, params) == 0);
                        store.release(w);
                    }
                    store.release(ends);
                    for (int u = 0; u < params.units(); ++u)   // as an optimizer would; publish() does nothing
                        store.publish(u);
                    store.finish();
                }
            });
    std::string error;
    try {
        with_stores({.prefetch = 0}, [&](ShardedWeights<float>& store, const Params&, int) {
            auto a = store.gather(2), b = store.gather(3);
            store.release(b), store.release(a);
        });
    } catch (const Error& e) { error = e.what(); }
    CHECK(error.find("one block is leased at a time") != std::string::npos);
}

TEST_CASE("weights and gradients that travel as bf16 are half the bytes, and nearly the same run") {
    check_narrow({.shard = "fsdp", .ranks = 2, .micros = 3}, "bf16", "");
    check_narrow({.shard = "fsdp", .ranks = 4, .replicate = 2, .prefetch = 2}, "bf16", "bf16");
    check_narrow({.shard = "fsdp", .ranks = 3, .reshard = false}, "", "bf16");
}

TEST_CASE("weights that travel as the codes of FP8 give the same bits as those in bf16, in half the bytes") {
    for (const char* family : {"gpt2", "qwen2"}) {
        ModelShape shape = small_shape(family, false);
        shape.vocab = 1009, shape.layers = 3, shape.dim = 64, shape.heads = shape.kv_heads = 4, shape.head_dim = 16, shape.ffn = 96;
        const Layout layouts[] = {{.shard = "fsdp", .ranks = 2, .micros = 3}, {.shard = "fsdp", .ranks = 3, .reshard = false},
                                  {.shard = "fsdp", .ranks = 4, .replicate = 2, .recompute = "full", .prefetch = 2},
                                  {.shard = "fsdp", .ranks = 4, .micros = 2, .prefetch = 0, .tp = 2}};
        for (const Layout& l : layouts) {
            CAPTURE(l.text());
            Config c = config_of(shape, l, "bf16");
            c.fp8 = "tensorwise", c.fp8_skip_ends = l.replicate > 1;   // skipped: only one block has codes
            const auto micros = [&](long s, long rank) { return micros_of(l, s, rank, shape.vocab); };
            const Taken whole = run_ranks<bf16>(c, 3, micros);
            c.gather_dtype = "fp8";
            const Taken codes = run_ranks<bf16>(c, 3, micros);
            check_same_bits(whole, codes);
            CHECK(codes.faults == std::vector<std::string>());   // what is gathered exactly is not rounded
            const Params params = params_of(c);
            const long slots = l.reshard ? 1 + l.prefetch : 3, S = params.shards(), part = fp8_part(params, fp8_matrices(params)[2], 2);
            CHECK(params.unit_size(0) > params.unit_size(2));    // codes need memory for a block at a time, not for the ends
            CHECK(codes.peak <= whole.peak + size_t(slots * (S * part + 256) + 4096));
            const auto bytes = [](const Ledger& ledger) {
                std::map<std::string, long> all;
                for (const auto& [key, row] : ledger) all[key.text()] = row.bytes;
                return all;
            };
            CHECK(bytes(codes.steps[2].ledger) == bytes(sent_by_formula<bf16>(c, params_of(c))));
            const double sent = double(bytes(codes.steps[2].ledger)["dp_shard.gather.weights"]);
            CHECK(sent < 0.95 * double(bytes(whole.steps[2].ledger)["dp_shard.gather.weights"]));
        }
    }
}

TEST_CASE("codes: a rank sends a byte an element and two more for what is in no matrix, as many as the worst rank has") {
    ModelShape shape = small_shape("llama", false);
    shape.layers = 2, shape.dim = 64, shape.heads = shape.kv_heads = 4, shape.head_dim = 16, shape.ffn = 96;
    const Params params(shape, 2, {}, {Fp8::tensorwise, false});
    const auto units = fp8_matrices(params);
    REQUIRE(units[1].size() == 4); CHECK(units[0].empty());
    // Two norms of 64; q, k, v, out: 4 x 64 x 64; gate, up, down: 3 x 64 x 96; padded to 2 x 64.
    CHECK(params.unit_size(1) == 34944);
    CHECK(fp8_part(params, units[1], 1) == 34944 / 2 + 2 * 128);
    CHECK(units[1][0].range.count == 3 * 64 * 64);     // what is joined is one
}

// On a wire so fast that it is always free. A gather is told when the block that waits for it begins.
TEST_CASE("with prefetch 0 no gather overlaps a block; with 1 and 2 each starts before the block before it ends") {
    for (const long prefetch : {0, 1, 2}) {
        CAPTURE(prefetch);
        const Layout l{.shard = "fsdp", .ranks = 2, .micros = 2, .prefetch = prefetch};
        struct Block { long begin, end; };
        std::vector<Block> work;                       // L forward, L backward; twice
        std::vector<std::pair<Event, size_t>> gathers;   // and which of `work` waits for it
        bool inside = false;
        for (const Event& e : trace_of(config_of(deep_shape(), l, "fp32"), {false, 4e9, 1e9, 1e11})) {
            if (e.mark == Mark::gather && e.unit >= 1) work.push_back({LONG_MAX, 0}), inside = true;
            if (e.mark == Mark::release) inside = false;
            if (e.mark != Mark::none) continue;
            if (std::string(e.name) == "gather weights on dp_shard" && e.work.unit >= 1) gathers.push_back({e, work.size() - 1});
            if (inside && e.work.lane == Lane::compute) work.back() = {std::min(work.back().begin, e.begin), e.end};
        }
        REQUIRE(work.size() == 2 * 2 * blocks);
        REQUIRE(gathers.size() == 2 * (2 * blocks - 1));
        long overlaps = 0, ahead = 0, second = 0;
        for (const auto& [g, next] : gathers) {
            for (const Block& b : work) overlaps += g.begin < b.end && b.begin < g.end;
            if (next % (2 * blocks) == 0) continue;    // before the first block there is none
            ++second, ahead += g.begin < work[next - 1].end;
        }
        CHECK(second == 2 * (2 * blocks - 2));
        CHECK(ahead == (prefetch ? second : 0));
        CHECK((overlaps > 0) == (prefetch > 0));
    }
}

}
