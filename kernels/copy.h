// copy.h - y = x, between views with their own strides and types (rounding to the type of y).
// Copy with: device.h and what it names
#pragma once
#include "device.h"

namespace baretrain {

// Rows of C, the last one with what is left of n elements.
template <class Y, class X>
__global__ void copy_kernel(Y* y, const X* x, long n, long C, long y_stride, long x_stride) {
    const long left = n - blockIdx.x * C;
    for_each_element(C < left ? C : left, [](Y& to, X from) { to = Y(from); }, out(y + blockIdx.x * y_stride),
                     x + blockIdx.x * x_stride);
}

// y, x: (N, C). One block a row; without gaps between rows one block for 4096 elements.
template <class Y, class X> void copy(Device& d, View<Y> y, View<const X> x) {
    require_equal(y.rows, x.rows, "copy: rows of y and x");
    require_equal(y.cols, x.cols, "copy: columns of y and x");
    constexpr long span = 4096;
    const long n = x.count();
    if (y.dense() && x.dense())
        launch(d, Grid::spans(n, span).moves(y, x), copy_kernel<Y, X>, y.data, x.data, n, span, span, span);
    else launch(d, Grid::rows<Y>(x.rows, x.cols).moves(y, x), copy_kernel<Y, X>, y.data, x.data, n, x.cols, y.stride,
                x.stride);
}

}  // namespace baretrain
