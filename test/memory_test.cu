// Arena, scratch, buffers and views: addresses, sizes and limits against plain arithmetic.
#include "memory.h"
#include <doctest/doctest.h>
#include <cstdint>
#include <type_traits>
#include <vector>

using namespace baretrain;

uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }
size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

template <class Run> std::string error_of(Run run) {
    try { run(); } catch (const Error& e) { return e.what(); }
    return "no error";
}

// A step as the model takes it: tensors that stay, scratch inside scratch, scratch after scratch.
template <class Seen> void step(Arena& a, Seen seen) {
    seen(a.take<float>(3, 5));
    seen(a.take<bf16>(1, 129));
    {
        Scratch outer(a);
        seen(outer.take<double>(10, 10));
        {
            Scratch inner(a);
            seen(inner.take<float>(100, 7, 8));
            seen(inner.take<bf16>(1, 1));
        }
        seen(outer.take<float>(2, 2));
    }
    Scratch last(a);
    seen(last.take<float>(50, 50));
}

TEST_SUITE("memory") {
    TEST_CASE("a dry arena measures the peak that the real one reaches, with the same shapes") {
        Arena dry;
        std::vector<long> shapes, real_shapes;
        step(dry, [&](auto v) {
            CHECK(v.data == nullptr);
            shapes.insert(shapes.end(), {v.rows, v.cols, v.stride});
        });
        const size_t stays = rounded(3 * 5 * 4) + rounded(129 * 2), outer = rounded(800);
        CHECK(dry.peak() == stays + std::max(outer + rounded(100 * 8 * 4) + rounded(2), rounded(50 * 50 * 4)));

        Arena real(dry.peak());
        step(real, [&](auto v) {
            CHECK(v.data != nullptr);
            real_shapes.insert(real_shapes.end(), {v.rows, v.cols, v.stride});
        });
        CHECK(real.peak() == dry.peak());
        CHECK(real_shapes == shapes);
        CHECK(dry.dry());
        CHECK(!real.dry());
    }
    TEST_CASE("every view starts at a multiple of 256 bytes, behind the one before") {
        Arena a(1 << 20);
        uintptr_t end = 0;
        for (long cols : {1, 63, 64, 65, 1000}) {
            const View<float> f = a.take<float>(3, cols);
            const View<bf16> b = a.take<bf16>(1, cols);
            CHECK(address(f.data) % 256 == 0);
            CHECK(address(b.data) % 256 == 0);
            CHECK(address(f.data) >= end);
            CHECK(address(b.data) >= address(f.data + f.count()));
            end = address(b.data + b.count());
        }
    }
    TEST_CASE("a scope gives its scratch back, in the order of a stack") {
        Arena a(4096);
        float *first, *second;
        {
            Scratch outer(a);
            first = outer.take<float>(1, 64).data;
            {
                Scratch inner(a);
                second = inner.take<float>(1, 64).data;
            }
            CHECK(outer.take<float>(1, 1).data == second);
        }
        Scratch again(a);
        CHECK(again.take<float>(1, 64).data == first);
        CHECK(second == first + 64);
    }
    TEST_CASE("fresh memory is zero") {
        Arena a(4096);
        Device d;
        std::vector<float> host(1000, 1.f);
        copy_bytes(d, host.data(), a.take<float>(10, 100).data, 4000);
        for (float v : host) CHECK(v == 0);
    }
    TEST_CASE("an arena that is too small says in one line what was needed and what there is, at the caller's line") {
        Arena exact(512), small(511);
        CHECK(error_of([&] { exact.take<float>(1, 65); }) == "no error");
        const int line = __LINE__ + 1;
        const std::string e = error_of([&] { small.take<float>(1, 65); });
        CHECK(e.find("512 bytes needed, 511 planned") != std::string::npos);
        CHECK(e.find("memory_test.cu:" + std::to_string(line) + ": ") != std::string::npos);
        CHECK(e.find('\n') == std::string::npos);
    }
    TEST_CASE("scratch that does not fit names its caller's line too") {
        Arena a(256);
        Scratch s(a);
        const int line = __LINE__ + 1;
        const std::string e = error_of([&] { s.take<float>(1, 65); });
        CHECK(e.find("memory_test.cu:" + std::to_string(line) + ": ") != std::string::npos);
    }
    TEST_CASE("negative sizes and strides below the columns are broken contracts") {
        Arena a;
        CHECK(error_of([&] { a.take<float>(-1, 4); }) != "no error");
        CHECK(error_of([&] { a.take<float>(4, -1); }) != "no error");
        CHECK(error_of([&] { a.take<float>(4, 8, 7); }) != "no error");
        CHECK(error_of([&] { a.take<float>(4, 8, 8); }) == "no error");
        CHECK(error_of([&] { a.take<float>(0, 0); }) == "no error");
    }
    TEST_CASE("A11: sizes beyond 2^32 are exact: the logits of 64 x 1024 tokens and 151936 words") {
        Arena a;
        const long N = 64 * 1024, V = 151936;
        const View<float> logits = a.take<float>(N, V);
        CHECK(logits.count() == 9957277696);
        CHECK(a.peak() == 39829110784);
        Scratch s(a);
        const View<double> twice = s.take<double>(N, V);
        CHECK(twice.row_range(N - 1, 1).count() == V);
        CHECK(a.peak() == 3 * 39829110784);
    }
    TEST_CASE("the address of a row beyond 2^32 elements is exact") {
        char* const base = reinterpret_cast<char*>(4096);   // never touched
        const View<char> v(base, 64 * 1024, 151936);
        CHECK(address(v.row_range(60000, 1).data) - address(base) == 60000ull * 151936);
    }

    TEST_CASE("a buffer moves its memory and leaves nothing behind") {
        Buffer a(100);
        void* p = a.data();
        CHECK(p != nullptr);
        Buffer b(std::move(a));
        CHECK(b.data() == p);
        CHECK(b.bytes() == 100);
        CHECK(a.data() == nullptr);
        CHECK(a.bytes() == 0);
        Buffer c(50);
        c = std::move(b);
        CHECK(c.data() == p);
        CHECK(c.bytes() == 100);
        CHECK(Buffer().data() == nullptr);
        CHECK(Buffer(0).data() == nullptr);
        CHECK(!std::is_copy_constructible_v<Buffer>);
    }

    TEST_CASE("row_range and col_range are parts of the view, and stay within it") {
        const Buffer memory(12 * sizeof(float));
        float* const x = static_cast<float*>(memory.data());
        const View<float> v(x, 3, 4), rows = v.row_range(1, 2), cols = v.col_range(1, 2);
        CHECK(rows.data == x + 4);
        CHECK(rows.rows == 2);
        CHECK(rows.cols == 4);
        CHECK(rows.dense());
        CHECK(cols.data == x + 1);
        CHECK(cols.rows == 3);
        CHECK(cols.cols == 2);
        CHECK(cols.row(2) == x + 9);
        CHECK(!cols.dense());
        CHECK(cols.row_range(1, 1).dense());
        CHECK(v.row_range(3, 0).empty());
        CHECK(v.col_range(4, 0).empty());
        CHECK_THROWS_AS(v.row_range(1, 3), Error);
        CHECK_THROWS_AS(v.row_range(-1, 1), Error);
        CHECK_THROWS_AS(v.row_range(1, -1), Error);
        CHECK_THROWS_AS(v.col_range(1, 4), Error);
        CHECK_THROWS_AS(v.col_range(-1, 1), Error);
        CHECK_THROWS_AS(v.col_range(5, 0), Error);
    }
    TEST_CASE("parts of a view without memory have none") {
        const View<float> v(nullptr, 3, 4);
        CHECK(v.row_range(1, 2).data == nullptr);
        CHECK(v.col_range(1, 2).data == nullptr);
        CHECK(View<float>().empty());
    }
    TEST_CASE("a view becomes a view to read, never back") {
        float x[4] = {};
        const View<const float> r = View<float>(x, 2, 1, 2);
        CHECK(r.data == x);
        CHECK(r.rows == 2);
        CHECK(r.cols == 1);
        CHECK(r.stride == 2);
        CHECK(std::is_convertible_v<View<float>, View<const float>>);
        CHECK(!std::is_convertible_v<View<const float>, View<float>>);
        CHECK(!std::is_convertible_v<View<float>, View<const double>>);
    }
}
