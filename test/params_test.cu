// params_test.cu - the parameter table: Hugging Face's names and shapes, places in memory, decay, initialisation.
#include "params.h"
#include "test/harness.h"
#include <map>
#include <set>

using namespace baretrain;
using namespace baretrain::test;

namespace {

struct Expected { std::string name; std::vector<long> dims; };

// No size is a multiple of 64, and no two sizes are equal, so that swapped ones show.
ModelShape gpt2(bool tied) {
    return {.family = "gpt2", .layers = 2, .dim = 10, .heads = 2, .kv_heads = 2, .head_dim = 5, .ffn = 44,
            .vocab = 13, .seq = 7, .tied = tied};
}
ModelShape llama(bool tied) {
    return {.family = "llama", .layers = 2, .dim = 10, .heads = 4, .kv_heads = 2, .head_dim = 6, .ffn = 15,
            .vocab = 13, .seq = 7, .tied = tied};
}
std::vector<ModelShape> all_shapes() { return {gpt2(true), gpt2(false), llama(true), llama(false)}; }

// As the state dicts of GPT2LMHeadModel and LlamaForCausalLM list them: Conv1D (in, out), Linear (out, in).
std::vector<Expected> hugging_face(const ModelShape& s) {
    std::vector<Expected> all;
    for (const std::string l : {"0", "1"}) {
        const std::string h = "transformer.h." + l + ".", m = "model.layers." + l + ".";
        const std::vector<Expected> gpt2_block = {
            {h + "ln_1.weight", {10}},         {h + "ln_1.bias", {10}},
            {h + "attn.c_attn.weight", {10, 30}}, {h + "attn.c_attn.bias", {30}},
            {h + "attn.c_proj.weight", {10, 10}}, {h + "attn.c_proj.bias", {10}},
            {h + "ln_2.weight", {10}},         {h + "ln_2.bias", {10}},
            {h + "mlp.c_fc.weight", {10, 44}}, {h + "mlp.c_fc.bias", {44}},
            {h + "mlp.c_proj.weight", {44, 10}}, {h + "mlp.c_proj.bias", {10}}};
        const std::vector<Expected> llama_block = {
            {m + "input_layernorm.weight", {10}},
            {m + "self_attn.q_proj.weight", {24, 10}}, {m + "self_attn.k_proj.weight", {12, 10}},
            {m + "self_attn.v_proj.weight", {12, 10}}, {m + "self_attn.o_proj.weight", {10, 24}},
            {m + "post_attention_layernorm.weight", {10}},
            {m + "mlp.gate_proj.weight", {15, 10}}, {m + "mlp.up_proj.weight", {15, 10}},
            {m + "mlp.down_proj.weight", {10, 15}}};
        const auto& block = s.family == "gpt2" ? gpt2_block : llama_block;
        all.insert(all.end(), block.begin(), block.end());
    }
    if (s.family == "gpt2")
        all.insert(all.begin(), {{"transformer.wte.weight", {13, 10}}, {"transformer.wpe.weight", {7, 10}},
                                 {"transformer.ln_f.weight", {10}}, {"transformer.ln_f.bias", {10}}});
    else
        all.insert(all.begin(), {{"model.embed_tokens.weight", {13, 10}}, {"model.norm.weight", {10}}});
    if (!s.tied) all.push_back({"lm_head.weight", {13, 10}});
    return all;
}

std::map<std::string, Param> by_name(const Params& params) {
    std::map<std::string, Param> rows;
    for (const Param& p : params.rows()) rows[p.name] = p;
    return rows;
}

// For 1, 2, 3, 4 and 8 ranks of tp: heads and hidden units divide, ids and channels don't.
ModelShape split_shape(const std::string& family) {
    const bool gpt2 = family == "gpt2";
    ModelShape s{.family = family, .layers = 1, .dim = gpt2 ? 24 : 7, .heads = gpt2 ? 24 : 48, .kv_heads = 24,
                 .head_dim = gpt2 ? 1 : 2, .ffn = 72, .vocab = 61, .seq = 5, .tied = false};
    s.attention_bias = family == "llama" || family == "qwen3", s.mlp_bias = family == "llama";
    return s;
}
// The rank that has an element of a whole tensor, -1: all have it.
int owner(const std::string& name, long row, long col, const ModelShape& s, long t) {
    const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
    const bool vector = name.ends_with(".bias");
    const long A = s.heads * s.head_dim, K = s.kv_heads * s.head_dim, output = vector || s.family == "gpt2" ? col : row;
    if (is("wte") || is("embed_tokens") || is("lm_head")) return int(row / ((s.vocab + t - 1) / t));
    if (is("c_attn")) return int(output % s.dim / (s.dim / t));   // q, k and v, each by heads
    if (is("q_proj")) return int(output / (A / t));
    if (is("k_proj") || is("v_proj")) return int(output / (K / t));
    if (is("c_fc") || is("gate_proj") || is("up_proj")) return int(output / (s.ffn / t));
    if (vector) return -1;                             // of layers that are cut by inputs: behind the sum
    if (is("attn.c_proj")) return int(row / (A / t));
    if (is("mlp.c_proj")) return int(row / (s.ffn / t));
    if (is("o_proj")) return int(col / (A / t));
    if (is("down_proj")) return int(col / (s.ffn / t));
    return -1;
}
// The elements of the whole that a rank has, in their order in its memory.
std::vector<long> elements_of(const Param& p, const ModelShape& s, Slice slice) {
    std::vector<long> all;
    for (long r = 0; r < p.whole_rows; ++r)
        for (long c = 0; c < p.whole_cols; ++c)
            if (const int who = owner(p.name, r, c, s, slice.ranks); who < 0 || who == slice.rank)
                all.push_back(r * p.whole_cols + c);
    return all;
}

}  // namespace

TEST_SUITE("params") {

TEST_CASE("tp: each element is on the rank of its head, hidden unit or id, in order, or on all: any part of a tensor") {
    for (const std::string& family : model_families)
        for (const int t : {1, 2, 3, 4, 8})
            for (int rank = 0; rank < t; ++rank) {
                const ModelShape shape = split_shape(family);
                const Params params(shape, 1, {t, rank});
                for (const Param& p : params.rows()) {
                    CAPTURE(p.name); CAPTURE(t); CAPTURE(rank);
                    const std::vector<long> want = elements_of(p, shape, {t, rank});
                    REQUIRE(p.count() == long(want.size()));
                    CHECK(p.count() <= p.room);
                    CHECK(p.split() == (owner(p.name, 0, 0, shape, t) == 0));
                    CHECK(p.whole() == (t == 1 || !p.split()));
                    const long n = p.count();
                    for (const auto& [first, end] : {std::pair(0L, n), {0L, 1L}, {n - 1, n}, {n / 3, n / 2}, {n / 4, n - 1},
                                                     {n / 2, n / 2}, {std::min(n, p.cols), std::min(n, 2 * p.cols)}}) {
                        std::vector<long> got(size_t(n), -1);
                        long told = 0;
                        p.for_each_run({first, end - first}, [&](long mine, long whole, long count) {
                            for (long i = 0; i < count; ++i, ++told) got.at(size_t(mine + i)) = whole + i;
                        });
                        CHECK(told == end - first);
                        CHECK(std::equal(want.begin() + first, want.begin() + end, got.begin() + first));
                        CHECK(p.boxes({first, end - first}).size() <= 3 * p.columns.size());
                    }
                }
            }
}

TEST_CASE("tp: every rank lays out the same, what all have first; what is counted once is all that one rank has") {
    for (const std::string& family : model_families)
        for (const int t : {1, 2, 3, 4, 8}) {
            const ModelShape shape = split_shape(family);
            const Params first(shape, 2, {t, 0});
            std::map<std::string, long> counted;
            for (int rank = 0; rank < t; ++rank) {
                CAPTURE(family); CAPTURE(t); CAPTURE(rank);
                const Params params(shape, 2, {t, rank});
                for (size_t i = 0; i < params.rows().size(); ++i) {
                    const Param &p = params.rows()[i], &q = first.rows()[i];
                    CHECK((p.offset == q.offset && p.room == q.room));
                    const Range once = p.range().both(params.counted(p.unit));
                    CHECK((once.count == 0 || once.count == p.count()));
                    CHECK(params.counts(p) == (once.count > 0));
                    counted[p.name] += once.count;
                    const auto before = [&](Share share) { return p.offset + p.count() <= params.end_of(p.unit, share); };
                    const auto has = [&](const char* part) { return p.name.find(part) != std::string::npos; };
                    CHECK(before(Share::all) == !p.split());
                    CHECK(before(Share::heads) == (has("q_norm") || has("k_norm")));
                    CHECK(before(Share::rows) == (has("norm") || has("ln_")));
                }
                for (int u = 0; u < params.units(); ++u) CHECK(params.unit_size(u) == first.unit_size(u));
            }
            for (const Param& p : first.rows()) CHECK(counted.at(p.name) == p.whole_rows * p.whole_cols);
        }
}

TEST_CASE("names, shapes and orientation are those of Hugging Face's models, no more and no fewer") {
    for (const ModelShape& shape : all_shapes()) {
        const Params params(shape);
        const auto rows = by_name(params);
        const std::vector<Expected> expected = hugging_face(shape);
        CHECK(rows.size() == expected.size());
        CHECK(params.rows().size() == expected.size());
        for (const Expected& e : expected) {
            CAPTURE(e.name);
            REQUIRE(rows.count(e.name) == 1);
            CHECK(rows.at(e.name).dims() == e.dims);
            const bool block_matrix = e.dims.size() == 2 && rows.at(e.name).unit > 0;
            CHECK(rows.at(e.name).transposed == (shape.family == "gpt2" && block_matrix));
        }
    }
}

TEST_CASE("embeddings, final norm and head are unit 0, block l is unit l + 1") {
    for (const ModelShape& shape : all_shapes()) {
        const Params params(shape);
        CHECK(params.units() == 3);
        for (const Param& p : params.rows()) {
            CAPTURE(p.name);
            const auto in = [&](const char* block) { return p.name.find(block) != std::string::npos; };
            CHECK(p.unit == (in(".0.") ? 1 : in(".1.") ? 2 : 0));
        }
    }
}

TEST_CASE("tensors begin at multiples of 64, joined ones right behind their neighbour, and none overlap") {
    for (const ModelShape& shape : all_shapes()) {
        const Params params(shape);
        std::vector<std::set<long>> taken(size_t(params.units()));
        long total = 0;
        for (const Param& p : params.rows()) {
            CAPTURE(p.name);
            if (!p.joined) CHECK(p.offset % 64 == 0);
            for (long i = p.offset; i < p.offset + p.count(); ++i) REQUIRE(taken[size_t(p.unit)].insert(i).second);
            CHECK(p.offset + p.count() <= params.unit_size(p.unit));
            total += p.count();
        }
        for (int u = 0; u < params.units(); ++u) {
            CHECK(params.unit_size(u) % 64 == 0);
            CHECK(params.unit_size(u) - (*taken[size_t(u)].rbegin() + 1) < 64);
        }
        CHECK(total == shape.parameters());
        const auto rows = by_name(params);
        if (shape.family == "gpt2") continue;
        for (const std::string m : {"model.layers.0.", "model.layers.1."}) {
            const auto behind = [&](const char* a, const char* b) {
                return rows.at(m + b).offset == rows.at(m + a).offset + rows.at(m + a).count();
            };
            CHECK(behind("self_attn.q_proj.weight", "self_attn.k_proj.weight"));
            CHECK(behind("self_attn.k_proj.weight", "self_attn.v_proj.weight"));
            CHECK(behind("mlp.gate_proj.weight", "mlp.up_proj.weight"));
            CHECK(rows.at(m + "self_attn.k_proj.weight").offset % 64 != 0);   // else padding would not show
            CHECK(rows.at(m + "mlp.up_proj.weight").offset % 64 != 0);
        }
    }
}

TEST_CASE("q, k, v and gate, up read as one matrix: row r of the bound view is row r of the three, in that order") {
    const Params params(llama(true));
    Buffer buffer(size_t(params.unit_size(2)) * sizeof(float));
    const View<float> flat(static_cast<float*>(buffer.data()), 1, params.unit_size(2));
    const auto rows = by_name(params);
    const auto fill = [&](const char* name, long first) {
        const Param& p = rows.at(std::string("model.layers.1.") + name);
        for (long r = 0; r < p.rows; ++r)
            for (long c = 0; c < p.cols; ++c) flat.data[p.offset + r * p.cols + c] = float(first + r);
    };
    fill("self_attn.q_proj.weight", 0), fill("self_attn.k_proj.weight", 24), fill("self_attn.v_proj.weight", 36);
    fill("mlp.gate_proj.weight", 0), fill("mlp.up_proj.weight", 15);
    fill("self_attn.o_proj.weight", 1000), fill("mlp.down_proj.weight", 2000);
    const Weights<float> w = params.bind<float>(2, flat);
    CHECK_FALSE(w.qkv.transposed);
    const auto check = [](View<float> v, long rows_, long cols, long first) {
        REQUIRE(v.rows == rows_);
        REQUIRE(v.cols == cols);
        for (long r = 0; r < rows_; ++r)
            for (long c = 0; c < cols; ++c) REQUIRE(v.row(r)[c] == float(first + r));
    };
    check(w.qkv.w, 48, 10, 0), check(w.up.w, 30, 10, 0), check(w.out.w, 10, 24, 1000), check(w.down.w, 10, 15, 2000);
}

TEST_CASE("every view of a bound unit shows the tensor of its name") {
    using Names = std::map<std::string, View<double>>;
    const auto check = [](const ModelShape& shape, int unit, auto names_of) {
        const Params params(shape);
        Buffer buffer(size_t(params.unit_size(unit)) * sizeof(double));
        const View<double> flat(static_cast<double*>(buffer.data()), 1, params.unit_size(unit));
        const Names views = names_of(params.bind<double>(unit, flat));
        size_t seen = 0;
        for (const Param& p : params.rows()) {
            if (p.unit != unit || p.joined) continue;
            CAPTURE(p.name);
            const std::string number = "." + std::to_string(unit - 1) + ".";
            const std::string name = unit == 0 ? p.name : p.name.substr(p.name.find(number) + number.size());
            REQUIRE(views.count(name) == 1);
            const View<double> v = views.at(name);
            CHECK(v.data == flat.data + p.offset);
            CHECK(v.cols == p.cols);
            CHECK(v.rows >= p.rows);
            CHECK(v.stride == p.cols);
            ++seen;
        }
        CHECK(seen == views.size());
    };
    using W = Weights<double>;
    check(gpt2(false), 0, [](const W& w) {
        return Names{{"transformer.wte.weight", w.wte}, {"transformer.wpe.weight", w.wpe}, {"lm_head.weight", w.head.w},
                     {"transformer.ln_f.weight", w.norm.w}, {"transformer.ln_f.bias", w.norm.b}};
    });
    check(llama(false), 0, [](const W& w) {
        return Names{{"model.embed_tokens.weight", w.wte}, {"model.norm.weight", w.norm.w},
                     {"lm_head.weight", w.head.w}};
    });
    check(gpt2(true), 2, [](const W& w) {
        return Names{{"ln_1.weight", w.norm1.w}, {"ln_1.bias", w.norm1.b},
                     {"ln_2.weight", w.norm2.w}, {"ln_2.bias", w.norm2.b},
                     {"attn.c_attn.weight", w.qkv.w}, {"attn.c_attn.bias", w.qkv.b}, {"attn.c_proj.weight", w.out.w},
                     {"attn.c_proj.bias", w.out.b}, {"mlp.c_fc.weight", w.up.w}, {"mlp.c_fc.bias", w.up.b},
                     {"mlp.c_proj.weight", w.down.w}, {"mlp.c_proj.bias", w.down.b}};
    });
    check(llama(true), 1, [](const W& w) {
        return Names{{"input_layernorm.weight", w.norm1.w}, {"post_attention_layernorm.weight", w.norm2.w},
                     {"self_attn.q_proj.weight", w.qkv.w}, {"self_attn.o_proj.weight", w.out.w},
                     {"mlp.gate_proj.weight", w.up.w}, {"mlp.down_proj.weight", w.down.w}};
    });
}

TEST_CASE("a tied head is the embedding, an untied one is memory of its own; what a family lacks is empty") {
    for (const ModelShape& shape : all_shapes()) {
        const Params params(shape);
        Buffer buffer(size_t(params.unit_size(0) + params.unit_size(1)) * sizeof(float));
        float* const data = static_cast<float*>(buffer.data());
        const Weights<float> ends = params.bind<float>(0, {data, 1, params.unit_size(0)});
        CHECK((ends.head.w.data == ends.wte.data) == shape.tied);
        CHECK(ends.head.w.rows == 13);
        CHECK(ends.head.w.cols == 10);
        CHECK_FALSE(ends.head.transposed);
        CHECK(ends.head.b.empty());
        CHECK(ends.wpe.empty() == (shape.family != "gpt2"));
        CHECK(ends.norm.b.empty() == (shape.family != "gpt2"));
        CHECK(ends.qkv.w.empty());
        const Weights<float> block = params.bind<float>(1, {data, 1, params.unit_size(1)});
        CHECK(block.qkv.b.empty() == (shape.family != "gpt2"));
        CHECK(block.down.b.empty() == (shape.family != "gpt2"));
        CHECK(block.qkv.transposed == (shape.family == "gpt2"));
        CHECK(block.down.transposed == (shape.family == "gpt2"));
        CHECK(block.wte.empty());
    }
}

TEST_CASE("a dry unit binds to views with shapes and no memory") {
    const Params params(llama(true));
    const Weights<float> w = params.bind<float>(1, {nullptr, 1, params.unit_size(1)});
    CHECK(w.qkv.w.data == nullptr);
    CHECK(w.qkv.w.rows == 48);
    CHECK(w.down.w.data == nullptr);
}

TEST_CASE("B4: exactly the tensors of two dimensions decay, and every parameter is in one span of its own kind") {
    for (const ModelShape& shape : all_shapes()) {
        const Params params(shape);
        long decayed = 0, others = 0;
        for (int u = 0; u < params.units(); ++u) {
            std::vector<int> kind(size_t(params.unit_size(u)), -1);   // of each element: -1 padding, 0 vector, 1 matrix
            for (const Param& p : params.rows())
                if (p.unit == u)
                    for (long i = 0; i < p.count(); ++i) kind[size_t(p.offset + i)] = p.dims().size() == 2;
            std::vector<int> covered(kind.size(), 0);
            for (const OptimizerSpan& s : params.spans(u)) {
                REQUIRE(s.offset >= 0);
                REQUIRE(s.offset + s.count <= params.unit_size(u));
                for (long i = s.offset; i < s.offset + s.count; ++i) {
                    ++covered[size_t(i)];
                    REQUIRE((kind[size_t(i)] == -1 || kind[size_t(i)] == int(s.decay)));
                }
            }
            for (size_t i = 0; i < kind.size(); ++i) REQUIRE((kind[i] == -1 ? covered[i] <= 1 : covered[i] == 1));
            for (int k : kind) decayed += k == 1, others += k == 0;
        }
        const bool g = shape.family == "gpt2";
        CHECK(others == (g ? 2 * (4 * 10 + 30 + 10 + 44 + 10) + 20 : 2 * 20 + 10));
        CHECK(decayed + others == shape.parameters());
    }
}

TEST_CASE("initialisation: gains 1, biases 0, matrices 0.02, residual outputs smaller by the root of twice the depth") {
    for (const ModelShape& shape : all_shapes()) {
        const Params params(shape);
        for (const Param& p : params.rows()) {
            CAPTURE(p.name);
            const bool gain = p.dims().size() == 1 && p.name.find("weight") != std::string::npos;
            const bool residual = p.name.find("c_proj.weight") != std::string::npos ||
                                  p.name.find("o_proj.weight") != std::string::npos ||
                                  p.name.find("down_proj.weight") != std::string::npos;
            CHECK(p.mean == (gain ? 1 : 0));
            CHECK(p.std == doctest::Approx(p.dims().size() == 1 ? 0 : residual ? 0.01 : 0.02));   // 2 layers: 0.02 / 2
        }
    }
}

TEST_CASE("the tables of all presets hold as many parameters as the closed form; GPT-2 124M has 124,439,808") {
    for (const std::string& name : preset_names()) {
        CAPTURE(name);
        const Params params(preset(name));
        long total = 0;
        for (const Param& p : params.rows()) total += p.count();
        CHECK(total == params.shape().parameters());
        if (name == "gpt2-124m") CHECK(total == 124439808);
    }
    CHECK(preset("gpt2-124m").layers == 12);
}

}  // TEST_SUITE
