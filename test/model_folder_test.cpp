// model_folder_test.cpp - weights of any folder load whatever their types, or not at all; an export is the same again.
#include "model_folder.h"
#include "device/types.h"
#include "host.h"
#include "parsed.h"
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#ifdef __GLIBC__
#include <malloc.h>
#endif

using namespace baretrain;

namespace {

using namespace baretrain::test;

TensorSource source(const std::string& name, const std::string& dtype, std::vector<long> shape, std::string bytes) {
    return {name, dtype, std::move(shape), [bytes](void* to) { std::memcpy(to, bytes.data(), bytes.size()); }};
}
TensorTarget target(const std::string& name, const std::string& dtype, std::vector<long> shape, std::string* to) {
    return {name, dtype, std::move(shape), [to](const void* from) { std::memcpy(to->data(), from, to->size()); }};
}
template <class T> std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// What `values` of type `from` in a file become as `To`.
template <class To, class From>
std::vector<To> loaded(const std::string& from, const std::vector<From>& values, const std::string& to) {
    const TempFolder temp;
    const long n = long(values.size());
    write_safetensors(temp / "model.safetensors", {source("w", from, {n}, bytes_of(values))}, {});
    std::vector<To> back(values.size());
    load_model_tensors(temp.path.string(), {{"w", to, {n}, [&](const void* bytes) {
        std::memcpy(static_cast<void*>(back.data()), bytes, back.size() * sizeof(To));
    }}});
    return back;
}
std::vector<int> bits(const std::vector<bf16>& values) {
    std::vector<int> all;
    for (const bf16 v : values) all.push_back(v.bits);
    return all;
}

// A folder in two shards, with tensors of three types, tokenizer and more.
struct Sharded : TempFolder {
    const std::string dir = *this / "hf", one = "model-00001-of-00002.safetensors",
                      two = "model-00002-of-00002.safetensors";
    Sharded() {
        put("hf/config.json", "{\"model_type\":\"llama\",   \"torch_dtype\":\"bfloat16\", \"rope_theta\": 5e5}");
        put("hf/tokenizer.json", "{\"a\": 1}");
        put("hf/tokenizer_config.json", "{ }");
        put("hf/generation_config.json", "{\"temperature\":0.6}");
        put("hf/chat_template.jinja", "{{ x }}");
        put("hf/notes.bin", "no");
        put("hf/state/optimizer.safetensors", "never read");
        const std::map<std::string, std::string> metadata = {{"format", "pt"}};
        write_safetensors(dir + "/" + one, {source("a", "F32", {2, 1}, "aaaabbbb"),
                                            source("b", "BF16", {1, 3}, "cdefgh")}, metadata);
        write_safetensors(dir + "/" + two, {source("c", "F16", {1}, "ij"), source("d", "F32", {0}, "")}, metadata);
        const nlohmann::json map = {{"a", one}, {"b", one}, {"c", two}, {"d", two}};
        put("hf/model.safetensors.index.json",
            nlohmann::json({{"metadata", {{"total_size", 16}}}, {"weight_map", map}}).dump());
    }
};

}  // namespace

TEST_SUITE("model_folder") {

TEST_CASE("missing, unexpected and different tensors are listed in one line before anything is stored") {
    const TempFolder temp;
    const std::string file = (temp.path / "x.safetensors").string();
    const std::vector<TensorSource> tensors = {source("a", "F32", {1}, "aaaa"), source("b", "F32", {2, 1}, "bbbbbbbb"),
                                               source("x", "U8", {1}, "x")};
    write_safetensors(file, tensors, {});
    std::string a(4, '?'), b(8, '?'), x(1, '?');
    const TensorTarget ta = target("a", "F32", {1}, &a), tb = target("b", "F32", {2, 1}, &b),
                       tx = target("x", "U8", {1}, &x), turned = target("b", "F32", {1, 2}, &b);
    CHECK(error_of([&] { load_tensors({file}, {ta, turned, target("m.a", "F32", {1}, &a)}); }) ==
          file + ": not the tensors that this model needs; missing: m.a; not expected: x; "
                 "different: b is F32 (2, 1), expected F32 (1, 2)");
    CHECK(contains(error_of([&] { load_tensors({file}, {ta, tb, target("x", "I8", {1}, &x)}); }),
                   "different: x is U8 (1), expected I8 (1)"));
    std::vector<TensorTarget> many = {ta, tb, tx};
    for (char n = 'a'; n < 'm'; ++n) many.push_back(target(std::string("m") + n, "U8", {1}, &x));
    CHECK(contains(error_of([&] { load_tensors({file}, many); }),
                   "missing: ma, mb, mc, md, me, mf, mg, mh, mi, mj and 2 more"));
    CHECK(a + b + x == std::string(13, '?'));
    load_tensors({file}, {tx, tb, ta});
    CHECK(a + b + x == "aaaabbbbbbbbx");
}

TEST_CASE("a tensor is put together from the pieces of several files, or only the elements that are wanted") {
    const TempFolder temp;
    const std::vector<std::string> files = {temp / "1", temp / "2", temp / "3"};
    write_safetensors(files[0], {source("w@2", "U8", {3}, "cde"), source("whole", "U8", {2, 2}, "wxyz")}, {});
    write_safetensors(files[1], {source("w@5", "U8", {1}, "f"), source("a@b", "U8", {1}, "?")}, {});
    write_safetensors(files[2], {source("w@0", "U8", {2}, "ab")}, {});
    for (long first = 0; first <= 6; ++first)
        for (long count = 0; first + count <= 6; ++count) {
            std::string w(size_t(count), '?');
            std::vector<TensorTarget> targets = {target("w", "U8", {2, 3}, &w), {"whole", "U8", {2, 2}, {}},
                                                 {"a@b", "U8", {1}, {}}};
            targets[0].first = first, targets[0].count = count;
            load_tensors(files, targets);
            CHECK(w == std::string("abcdef").substr(size_t(first), size_t(count)));
        }
    std::string rest(2, '?');
    TensorTarget whole = target("whole", "U8", {2, 2}, &rest);
    whole.first = 2;                                   // and all behind it
    load_tensors(files, {{"w", "U8", {6}, {}}, whole, {"a@b", "U8", {1}, {}}});
    CHECK(rest == "yz");
    CHECK(piece_name("w", 40) == "w@40");
}

TEST_CASE("pieces that leave a gap, overlap, end too early or late, or are of another kind are one line") {
    const TempFolder temp;
    const std::vector<std::string> files = {temp / "1", temp / "2"};
    write_safetensors(files[0], {source("w@0", "U8", {2}, "ab")}, {});
    std::string w(5, '?');
    const auto error = [&](const std::vector<TensorSource>& others) {
        write_safetensors(files[1], others, {});
        const std::string line = error_of([&] { load_tensors(files, {target("w", "U8", {5}, &w)}); });
        const std::string head = files[0] + " and 1 more: not the tensors that this model needs; different: ";
        return line.starts_with(head) ? line.substr(head.size()) : line;
    };
    CHECK(error({source("w@3", "U8", {2}, "de")}) == "w lacks element 2");
    CHECK(error({source("w@1", "U8", {4}, "bcde")}) == "w has element 1 twice");
    CHECK(error({}) == "w has 2 elements in its pieces, expected 5");
    CHECK(error({source("w@2", "U8", {4}, "cdef")}) == "w has 6 elements in its pieces, expected 5");
    CHECK(error({source("w@2", "I8", {3}, "cde")}) == "w@2 is I8 (3), expected a piece of U8 (5)");
    CHECK(error({source("w@2", "U8", {3, 1}, "cde")}) == "w@2 is U8 (3, 1), expected a piece of U8 (5)");
    CHECK(contains(error({source("w@-2", "U8", {3}, "cde")}), "not expected: w@-2"));
    CHECK(contains(error({source("w", "U8", {5}, "abcde")}), "not expected: w"));
    CHECK(w == "?????");
    CHECK(error({source("w@2", "U8", {3}, "cde")}) == "");
    CHECK(w == "abcde");
}

// A tensor of bytes, and the pieces in which `ranks` hold it, each with its columns of each of `bands` equal parts: a
// rectangle, and what `ragged` elements less at both ends leave of the first and last row.
struct Banded {
    long R, C;
    std::string all;
    Banded(long R, long C) : R(R), C(C) {
        for (long e = 0; e < R * C; ++e) all += char(e * 7 + e / 251);
    }
    TensorSource piece(long first, long rows, long columns, bool flat) const {
        std::string bytes;
        for (long i = 0; i < rows; ++i) bytes += all.substr(size_t(first + i * C), size_t(columns));
        return source(piece_name("w", first), "U8", flat ? std::vector{rows * columns} : std::vector{rows, columns}, bytes);
    }
    std::vector<TensorSource> band(long column, long columns, long ragged) const {
        if (ragged == 0) return {piece(column, R, columns, false)};
        return {piece((R - 1) * C + column + columns - ragged, 1, ragged, true), piece(column, 1, ragged, true),
                piece(C + column, R - 2, columns, false), piece(column + ragged, 1, columns - ragged, true),
                piece((R - 1) * C + column, 1, columns - ragged, true)};
    }
    std::string read(const std::vector<std::string>& files, long first, long count) const {
        std::string w(size_t(count), '?');
        TensorTarget t = target("w", "U8", {R, C}, &w);
        t.first = first, t.count = count;
        load_tensors(files, {t});
        return w;
    }
    void check_spans(const std::vector<std::string>& files) const {
        for (long first = 0; first <= R * C; ++first)
            for (long count = 0; first + count <= R * C; ++count)
                if (read(files, first, count) != all.substr(size_t(first), size_t(count)))
                    FAIL("elements " << first << " and " << count << " more");
    }
};

TEST_CASE("a tensor is put together from bands of its columns, of any widths, with ends of rows beside them") {
    const TempFolder temp;
    const std::vector<std::string> files = {temp / "1", temp / "2", temp / "3"};
    const Banded w(5, 7);
    for (const std::vector<long>& widths : {std::vector<long>{7}, {3, 4}, {2, 2, 3}, {4, 1, 2}, {1, 1, 1, 1, 1, 1, 1}})
        for (long ragged = 0; ragged < 2; ++ragged) {
            std::vector<std::vector<TensorSource>> in(files.size());
            long column = 0;
            size_t dealt = 0;
            for (const long columns : widths) {
                const bool ends = ragged && columns > 1;
                for (const TensorSource& s : w.band(column, columns, ends)) in[++dealt * 2 % 3].push_back(s);
                column += columns;
            }
            for (size_t f = 0; f < files.size(); ++f) write_safetensors(files[f], in[f], {});
            w.check_spans(files);
            w.check_spans({files[2], files[0], files[1]});
        }
    write_safetensors(files[0], {w.piece(8, 2, 3, false), w.piece(18, 1, 3, true)}, {});   // in the middle of flat ones
    write_safetensors(files[1], {w.piece(21, 1, 14, true), w.piece(0, 1, 8, true), w.piece(11, 1, 4, true)}, {});
    w.check_spans({files[0], files[1]});
}

TEST_CASE("what two and four ranks hold of a matrix of queries, keys and values is read whole and by row") {
    const TempFolder temp;
    const Banded w(6, 24);
    for (const long ranks : {2, 4}) {
        std::vector<std::string> files;
        for (long r = ranks - 1; r >= 0; --r) {
            std::vector<TensorSource> list;
            const long columns = 8 / ranks;
            for (const long third : {2, 0, 1})
                for (const TensorSource& s : w.band(third * 8 + r * columns, columns, r % 2)) list.push_back(s);
            files.push_back(temp / std::to_string(r));
            write_safetensors(files.back(), list, {});
        }
        CHECK(w.read(files, 0, 144) == w.all);
        for (long first = 0; first < 144; first += 5)
            for (long count = 1; first + count <= 144; count += 7)
                CHECK(w.read(files, first, count) == w.all.substr(size_t(first), size_t(count)));
    }
    const Banded tall(400000, 7);                      // a rectangle of more than a megabyte
    write_safetensors(temp / "tall", {tall.piece(0, 400000, 3, false), tall.piece(3, 400000, 4, false)}, {});
    CHECK(tall.read({temp / "tall"}, 0, 2800000) == tall.all);
    CHECK(tall.read({temp / "tall"}, 11, 2799987) == tall.all.substr(11, 2799987));
}

TEST_CASE("rectangles that overlap, leave a hole, are too wide or reach past the end are one line") {
    const TempFolder temp;
    const Banded w(3, 4);
    const auto error = [&](const std::vector<TensorSource>& pieces) {
        write_safetensors(temp / "1", pieces, {});
        const std::string line = error_of([&] { w.read({temp / "1"}, 0, 12); });
        const std::string head = temp / "1: not the tensors that this model needs; different: ";
        return line.starts_with(head) ? line.substr(head.size()) : line;
    };
    const auto shaped = [](const std::string& name, std::vector<long> shape) {
        return source(name, "U8", shape, std::string(size_t(shape[0] * shape[1]), '?'));
    };
    const TensorSource left = w.piece(0, 3, 2, false), right = w.piece(2, 3, 2, false);
    CHECK(error({left, right}) == "");
    CHECK(error({left, w.piece(1, 3, 3, false)}) == "w has element 1 twice");
    CHECK(error({left, right, w.piece(7, 1, 1, true)}) == "w has element 7 twice");
    CHECK(error({left, w.piece(3, 3, 1, false)}) == "w lacks element 2");
    CHECK(error({left, w.piece(2, 1, 2, false), w.piece(10, 1, 2, false)}) == "w lacks element 6");
    CHECK(error({left, w.piece(2, 2, 2, false)}) == "w has 10 elements in its pieces, expected 12");
    for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<long>>>{
             {"w@2", {3, 3}}, {"w@4", {2, 5}}, {"w@6", {3, 2}}, {"w@2", {4, 2}}, {"w@12", {1, 1}}, {"w@2", {3, 0}},
             {"w@2", {0, 2}}, {"w@999999999999999999", {1, 1}}})
        CHECK(error({left, shaped(name, shape)}) == format("%s is U8 (%ld, %ld), expected a piece of U8 (3, 4)",
                                                           name.c_str(), shape[0], shape[1]));
    CHECK(contains(error({left, source("w@2", "U8", {1, 3, 2}, "??????")}), "w@2 is U8 (1, 3, 2), expected a piece"));
}

TEST_CASE("a model in shards is loaded by its index, which must tell the truth") {
    const TempFolder temp;
    const std::string folder = temp.path.string(), one = folder + "/model-00001-of-00002.safetensors",
                      two = folder + "/model-00002-of-00002.safetensors",
                      index = folder + "/model.safetensors.index.json";
    std::string a(1, '?'), b(1, '?'), c(1, '?');
    const std::vector<TensorTarget> all = {target("a", "U8", {1}, &a), target("b", "U8", {1}, &b),
                                           target("c", "U8", {1}, &c)};
    const auto error = [&] { return error_of([&] { load_model_tensors(folder, all); }); };
    const auto map = [&](const std::string& entries) {
        put(index, "{\"metadata\":{},\"weight_map\":{" + entries + "}}");
    };
    const std::string first = "\"model-00001-of-00002.safetensors\"", second = "\"model-00002-of-00002.safetensors\"";
    const std::string truth = "\"a\":" + first + ",\"c\":" + first + ",\"b\":" + second;

    CHECK(contains(error(), "has neither model.safetensors nor model.safetensors.index.json"));
    write_safetensors(one, {source("a", "U8", {1}, "A"), source("c", "U8", {1}, "C")}, {});
    map(truth);
    CHECK(contains(error(), two + ": cannot be opened"));
    write_safetensors(two, {source("b", "U8", {1}, "B")}, {});
    CHECK(error() == "");
    CHECK(a + b + c == "ABC");
    map("\"a\":" + first + ",\"b\":" + second);
    CHECK(contains(error(), one + ": tensor c is not listed for this file"));
    map(truth + ",\"d\":" + second);
    CHECK(contains(error(), "tensor d is not in model-00002"));
    map(truth + ",\"d\":\"../x\"");
    CHECK(contains(error(), "a shard lies outside the folder: ../x"));
    put(index, "{\"weight_map\":3}");
    CHECK(contains(error(), index + ": damaged"));
    map(truth);
    write_safetensors(two, {source("b", "U8", {1}, "B"), source("c", "U8", {1}, "C")}, {});
    CHECK(contains(error(), two + ": tensor c is not listed for this file"));
    write_safetensors(two, {source("b", "I8", {1}, "B")}, {});
    CHECK(contains(error(), "different: b is I8 (1), expected U8 (1)"));
}

TEST_CASE("every type is read as every other: rounded to nearest, ties to even, infinity and NaN kept") {
    const std::vector<uint16_t> half = {0x3C00, 0x8001, 0x03FF, 0x0400, 0xFBFF, 0x7C00, 0xFC00, 0x8000};
    const std::vector<double> values = {1, -std::ldexp(1.0, -24), std::ldexp(1023.0, -24), std::ldexp(1.0, -14),
                                        -65504, INFINITY, -INFINITY, -0.0};
    CHECK(loaded<double>("F16", half, "F64") == values);
    CHECK(loaded<float>("F16", half, "F32") == std::vector<float>(values.begin(), values.end()));
    CHECK(std::signbit(loaded<float>("F16", half, "F32").back()));
    CHECK(std::isnan(loaded<float>("F16", std::vector<uint16_t>{0xFE01}, "F32")[0]));

    const float ulp = std::ldexp(1.0f, -7);            // of bf16 at 1
    const std::vector<float> floats = {1 + ulp / 2, 1 + ulp * 3 / 2, 1 + ulp / 2 + std::ldexp(1.0f, -23),
                                       -1 - ulp * 3 / 4, 3.4e38f, INFINITY, std::ldexp(1.0f, -133),
                                       std::ldexp(1.0f, -134)};
    CHECK(bits(loaded<bf16>("F32", floats, "BF16")) ==
          std::vector<int>{0x3F80, 0x3F82, 0x3F81, 0xBF81, 0x7F80, 0x7F80, 1, 0});
    CHECK(std::isnan(float(loaded<bf16>("F32", std::vector<float>{NAN}, "BF16")[0])));
    const double tie = 1 + std::ldexp(1.0, -8);        // rounded by way of a float, its neighbours would be ties too
    const std::vector<double> doubles = {tie, std::nextafter(tie, 2), std::nextafter(tie, 0), -std::nextafter(tie, 2),
                                         1e300};
    CHECK(bits(loaded<bf16>("F64", doubles, "BF16")) == std::vector<int>{0x3F80, 0x3F81, 0x3F80, 0xBF81, 0x7F80});
    CHECK(loaded<float>("F64", doubles, "F32")[1] == float(tie));
    CHECK(loaded<double>("BF16", std::vector<uint16_t>{0x3F81, 0xFF80}, "F64") ==
          std::vector<double>{1 + 1.0 / 128, -INFINITY});
    std::string last(8, '?');                          // a part of a tensor is converted like the whole
    const TempFolder temp;
    const std::string bytes = bytes_of(std::vector<uint16_t>{1, 0x3F80, 0x4000});
    write_safetensors(temp / "model.safetensors", {source("w", "BF16", {3}, bytes)}, {});
    TensorTarget part = target("w", "F32", {3}, &last);
    part.first = 1, part.count = 2;
    load_model_tensors(temp.path.string(), {part});
    CHECK(last == bytes_of(std::vector<float>{1, 2}));
    const std::vector<uint16_t> odd = {0x7F81, 0xFFFF, 1};   // a type of its own is copied: NaNs keep their bits
    CHECK(bits(loaded<bf16>("BF16", odd, "BF16")) == std::vector<int>{0x7F81, 0xFFFF, 1});
    CHECK(contains(error_of([&] { loaded<float>("I32", std::vector<int>{1}, "F32"); }),
                   "w is I32 (1), expected F32 (1)"));
}

TEST_CASE("B8: optimizer state that is missing or of another type is an error that names it") {
    const TempFolder temp;
    const std::string file = temp / "optimizer.safetensors";
    std::string m(4, '?'), v(4, '?');
    const std::vector<TensorTarget> state = {target("m.w", "F32", {1}, &m), target("v.w", "F32", {1}, &v)};
    const auto error = [&] { return error_of([&] { load_tensors({file}, state); }); };
    CHECK(contains(error(), file + ": cannot be opened"));
    write_safetensors(file, {source("m.w", "F32", {1}, "mmmm")}, {});
    CHECK(contains(error(), "missing: v.w"));
    write_safetensors(file, {source("m.w", "F32", {1}, "mmmm"), source("v.w", "BF16", {1}, "vv")}, {});
    CHECK(contains(error(), "different: v.w is BF16 (1), expected F32 (1)"));
    CHECK(m + v == "????????");
    write_safetensors(file, {source("m.w", "F32", {1}, "mmmm"), source("v.w", "F32", {1}, "vvvv")}, {});
    CHECK(error() == "");
    CHECK(m + v == "mmmmvvvv");
}

TEST_CASE("E5: a tied head may be left out or equal the embedding, but not differ; an untied one is kept") {
    const TempFolder temp;
    const std::string dir = temp.path.string();
    const auto write = [&](const std::vector<TensorSource>& tensors) {
        write_safetensors(temp / "model.safetensors", tensors, {});
    };
    for (const std::string embedding : {"model.embed_tokens.weight", "transformer.wte.weight"}) {
        CAPTURE(embedding);
        std::string e(8, '?'), h(8, '?');
        const std::vector<TensorTarget> tied = {target(embedding, "F32", {2, 1}, &e)},
                                        untied = {tied[0], target("lm_head.weight", "F32", {2, 1}, &h)};
        const TensorSource table = source(embedding, "F32", {2, 1}, "eeeeEEEE");
        const auto error = [&](const std::vector<TensorTarget>& targets) {
            return error_of([&] { load_model_tensors(dir, targets); });
        };
        write({table});
        CHECK(error(tied) == "");
        CHECK(e == "eeeeEEEE");
        CHECK(contains(error(untied), "missing: lm_head.weight"));
        write({table, source("lm_head.weight", "F32", {2, 1}, "eeeeEEEE")});
        e = "????????";
        CHECK(error(tied) == "");
        CHECK(e == "eeeeEEEE");
        e = "????????";
        for (const TensorSource& head : {source("lm_head.weight", "F32", {2, 1}, "eeeeEEEF"),
                                         source("lm_head.weight", "F32", {1, 2}, "eeeeEEEE")}) {
            write({table, head});
            CHECK(contains(error(tied), "lm_head.weight differs from " + embedding));
        }
        CHECK(e == "????????");
        write({table, source("lm_head.weight", "F32", {2, 1}, "hhhhHHHH")});
        CHECK(error(untied) == "");
        CHECK(e + h == "eeeeEEEEhhhhHHHH");
    }
}

TEST_CASE("old files load: without the first part of the names, with masks and frequencies in them") {
    const TempFolder temp;
    std::string w(4, '?'), b(4, '?');
    const std::vector<TensorTarget> gpt2 = {target("transformer.wte.weight", "F32", {1}, &w),
                                            target("transformer.h.0.attn.c_attn.bias", "F32", {1}, &b)};
    std::vector<TensorSource> tensors = {
        source("wte.weight", "F32", {1}, "wwww"), source("h.0.attn.c_attn.bias", "F32", {1}, "bbbb"),
        source("h.0.attn.bias", "F32", {1, 1}, "mask"), source("h.0.attn.masked_bias", "F32", {}, "-1e4"),
        source("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, "freq")};
    const auto error = [&] {
        write_safetensors(temp / "model.safetensors", tensors, {});
        return error_of([&] { load_model_tensors(temp.path.string(), gpt2); });
    };
    CHECK(error() == "");
    CHECK(w + b == "wwwwbbbb");
    tensors.push_back(source("h.0.attn.other", "F32", {1}, "xxxx"));
    CHECK(contains(error(), "not expected: h.0.attn.other"));
    tensors.back() = source("transformer.wte.weight", "F32", {1}, "WWWW");   // both names: one of them is too many
    CHECK(contains(error(), "not expected: "));
}

#ifdef __GLIBC__
TEST_CASE("C8: while a model is loaded and converted, one tensor of it is in memory") {
    const std::string status = "/proc/self/status", reset = "/proc/self/clear_refs";
    if (!fs::exists(reset)) {
        MESSAGE("skipped: no /proc/self/clear_refs");
        return;
    }
    const auto peak = [&] {                            // KiB
        const std::string text = get(status);
        return std::stol(text.substr(text.find("VmHWM:") + 6));
    };
    const TempFolder temp;
    const long n = 1 << 20;
    std::vector<TensorSource> tensors;
    std::vector<TensorTarget> targets;
    double sum = 0;
    for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
        tensors.push_back({name, "F16", {n}, [](void* to) { std::memset(to, 0x3C, size_t(2 * n)); }});
        targets.push_back({name, "F64", {n}, [&](const void* from) { sum += *static_cast<const double*>(from); }});
    }
    write_safetensors(temp / "model.safetensors", tensors, {});
    malloc_trim(0);                                    // what other tests freed must not be counted as there already
    put(reset, "5");
    const long before = peak();
    load_model_tensors(temp.path.string(), targets);
    CHECK(sum > 8);
    CHECK(peak() - before < 10 * 1024);                // 8 MiB once, not 10 (read and converted), 16 or 64
    CHECK(peak() - before > 7 * 1024);
}
#endif

TEST_CASE("E9: an export is every tensor byte for byte, the other files verbatim, and an index of files that exist") {
    const Sharded hf;
    const std::string to = hf / "out/copy";
    const Exported done = export_folder(hf.dir, to);
    CHECK(done.tensors == 4);
    CHECK(done.bytes == 8 + 6 + 2);
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(to)) names.insert(entry.path().filename().string());
    CHECK(names == std::set<std::string>{"config.json", "tokenizer.json", "tokenizer_config.json",
                                         "generation_config.json", "chat_template.jinja", hf.one, hf.two,
                                         "model.safetensors.index.json"});
    for (const std::string& name : names) {
        CAPTURE(name);
        if (name.ends_with(".safetensors")) CHECK((parsed(to + "/" + name) == parsed(hf.dir + "/" + name)));
        else CHECK(get(to + "/" + name) == get(hf.dir + "/" + name));
    }
    const auto map = nlohmann::json::parse(get(to + "/model.safetensors.index.json")).at("weight_map");
    for (const auto& [tensor, file] : map.items())
        CHECK(parsed(to + "/" + file.get<std::string>()).count(tensor) == 1);
    CHECK(!fs::exists(to + ".tmp"));
    CHECK(dtype_of_folder(to) == "F32");

    CHECK(contains(error_of([&] { export_folder(hf.dir, to); }), to + ": is there already"));
    put(hf.dir + "/" + hf.two, "cut");
    CHECK(contains(error_of([&] { export_folder(hf.dir, hf / "second"); }), hf.two));
    CHECK((!fs::exists(hf / "second") && !fs::exists(hf / "second.tmp")));
    const std::string mine = hf.put("third.tmp/mine", "mine");
    CHECK(contains(error_of([&] { export_folder(hf.dir, hf / "third"); }), "third.tmp: is there already"));
    CHECK(get(mine) == "mine");
}

TEST_CASE("a config.json keeps every field and their order when the weights change their type") {
    const std::string old = "{\"rope_theta\": 500000.0,\"torch_dtype\":\"bfloat16\",\"a\":{\"z\":1,\"b\":[1e-05]}}";
    CHECK(with_dtype(old, "bfloat16") == old);
    const std::string changed = with_dtype(old, "float32");
    CHECK(nlohmann::ordered_json::parse(changed).dump() ==
          "{\"rope_theta\":500000.0,\"torch_dtype\":\"float32\",\"a\":{\"z\":1,\"b\":[1e-05]}}");
    CHECK(nlohmann::json::parse(with_dtype("{\"dtype\":\"float16\"}", "float32")).dump() == "{\"dtype\":\"float32\"}");
}

}
