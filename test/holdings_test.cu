// holdings_test.cu - who holds what: the picture's parts are the stores', its sizes the plan's.
#include "plan.h"
#include "test/harness.h"
#include <doctest/doctest.h>

using namespace baretrain;
using namespace baretrain::test;

namespace {

Config config_of(long ranks, const std::string& dtype) {
    Config c;
    c.shape = {.family = "llama", .layers = 3, .dim = 12, .heads = 6, .kv_heads = 2, .head_dim = 4, .ffn = 14,
               .vocab = 17, .seq = 16, .tied = false, .rope_theta = 50.0};
    c.seq = 8, c.batch = 1, c.tokens_per_step = 8 * ranks, c.ranks = ranks, c.dtype = dtype;
    return c;
}

}  // namespace

TEST_SUITE("holdings") {

TEST_CASE_TEMPLATE("every element lies on as many ranks as the layout says, and bytes are the plan's", T, float, bf16) {
    for (long ranks : {1, 2, 3, 4}) {
        const Config base = config_of(ranks, sizeof(T) == 2 ? "bf16" : "fp32");
        const std::vector<LayoutHoldings> all = holdings<T>(base);
        REQUIRE(all.size() == (ranks % 2 ? 4 : 5));
        const std::string svg = holdings_svg(all);
        for (const LayoutHoldings& l : all) {
            CAPTURE(ranks);
            CAPTURE(l.name);
            Config c = base;
            c.shard = l.name == "hsdp" ? "fsdp" : l.name, c.replicate = l.name == "hsdp" ? 2 : 1;
            const Params params = params_of(c);
            Arena arena;
            const Trainer<T> t(c, params, arena, {mesh_of(c)});
            const long copies_if_sharded = l.name == "hsdp" ? 2 : 1, cut = l.name == "none" ? 3 : l.name == "zero1" ? 2 : l.name == "zero2";
            REQUIRE(l.ranks.size() == size_t(ranks));
            for (size_t i = 0; i < 3; ++i) {
                double covered = 0, whole = 0;
                std::vector<std::pair<double, double>> parts;
                for (const auto& rank : l.ranks)
                    for (const auto& [from, to] : rank[i].parts) covered += to - from, parts.push_back({from, to});
                whole = long(i) < cut ? double(ranks) : double(copies_if_sharded);
                CHECK(covered == doctest::Approx(whole));
                for (double at : {0.001, 0.21, 0.52, 0.83, 0.999})
                    CHECK(std::count_if(parts.begin(), parts.end(), [&](auto p) { return p.first <= at && at < p.second; }) == long(whole));
                for (const ArenaPart& p : arena.parts())
                    if (std::string(p.name) == std::array{"weights", "gradients", "optimizer"}[i]) {
                        CHECK(l.ranks[0][i].bytes == p.bytes);
                        CHECK(svg.find(format(">%.4g MB<", double(p.bytes) / 1e6)) != std::string::npos);
                    }
            }
        }
    }
}

TEST_CASE("room is what is whole while it is at work: the ends and one block more than are gathered ahead") {
    Config c = config_of(4, "fp32");
    for (long ahead : {0, 1, 2}) {
        c.prefetch = ahead;
        const std::vector<LayoutHoldings> all = holdings<float>(c);
        const Params params(c.shape, 4);
        double model = 0;
        for (int u = 0; u < params.units(); ++u) model += double(params.unit_size(u));
        const auto units = [&](long blocks) { return double(params.unit_size(0) + blocks * params.unit_size(1)) / model; };
        for (const auto& rank : all[3].ranks) {
            CHECK(rank[0].room == doctest::Approx(units(1 + ahead)));
            CHECK(rank[1].room == doctest::Approx(units(2)));
            CHECK(rank[2].room == 0);
        }
        for (const auto& rank : all[1].ranks) CHECK(rank[0].room == doctest::Approx(0));
    }
}

TEST_CASE("each layout is a column of bars, a bar a rank; of many ranks the first 16") {
    const auto count = [](const std::string& text, const std::string& what) {
        long n = 0;
        for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
        return n;
    };
    const std::string svg = holdings_svg(holdings<float>(config_of(64, "fp32")));
    CHECK(count(svg, "fill-opacity=\"0.08\"") == 3 * 5 * 16);
    CHECK(count(svg, "</text>") == 3 + 5 + 15 + 1);
    CHECK(count(svg, "prefers-color-scheme:dark") == 1);
}

}
