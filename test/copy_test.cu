// copy_test.cu - kernels/copy.h: any strides, any types, nothing but what was asked for.
#include "kernels/copy.h"
#include "test/harness.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

// Of (N, C) in rows of other lengths, from a column on.
template <class Y, class X> void check_copy(Device& d, long N, long C, long from, long gap_y, long gap_x) {
    CAPTURE(N); CAPTURE(C); CAPTURE(from); CAPTURE(gap_y); CAPTURE(gap_x);
    const long y_cols = from + C + gap_y, x_cols = from + C + gap_x;
    const Numbers x = noise<X>(N * x_cols, 1);
    Numbers want = noise<Y>(N * y_cols, 2);
    const Tensor<X> tx(N, x_cols, x);
    Tensor<Y> y(N, y_cols, want);
    for (long n = 0; n < N; ++n)
        for (long c = from; c < from + C; ++c) want[size_t(n * y_cols + c)] = double(Y(X(float(x[size_t(n * x_cols + c)]))));
    copy<Y, X>(d, y.v.col_range(from, C), tx.in().col_range(from, C));
    CHECK(y.get() == want);
    for (long n = 0; n < N; ++n)
        for (long c = from; c < from + C; ++c) want[size_t(n * y_cols + c)] = double(Y(2 * Real<Y>(want[size_t(n * y_cols + c)])));
    if (std::is_same_v<Y, X>) copy<Y, X>(d, y.v.col_range(from, C), tx.in().col_range(from, C), Write::add);
    if (std::is_same_v<Y, X>) CHECK(y.get() == want);
    y.check_guard();
}

}  // namespace

TEST_SUITE("copy") {

// 4096 elements are a block's where rows have no gaps; 16 bytes are 2, 4 or 8 of them.
TEST_CASE_TEMPLATE("each element arrives, rounded, and nothing beside it is touched", Y, float, bf16, double) {
    for_each_block_size([](Device& d) {
        for (const long C : {1, 8, 33, 64})
            for (const long from : {0, 1, 8})
                for (const long gap : {0, 3, 8}) {
                    check_copy<Y, float>(d, 3, C, from, gap, 8 - gap);
                    check_copy<Y, bf16>(d, 3, C, from, 8 - gap, gap);
                }
        for (const long n : {4095, 4096, 4097, 9000}) check_copy<Y, float>(d, 1, n, 0, 0, 0);
        check_copy<Y, float>(d, 300, 31, 0, 0, 0);
    });
}

TEST_CASE("no rows are nothing to do, and other sizes are refused") {
    Device d;
    Tensor<float> none(0, 3), y(2, 3), x(2, 4), one(1, 3);
    copy<float, float>(d, none, none.in());
    CHECK(d.launches == 0);
    CHECK_THROWS_AS((copy<float, float>(d, y, x.in())), Error);
    CHECK_THROWS_AS((copy<float, float>(d, y, one.in())), Error);
}

}
