// copy.h - y = x or y += x, between views with their own strides and types (rounding to the type of y).
// Copy with: device.h and what it names
#pragma once
#include "device.h"

namespace baretrain {

// Rows of C, the last one with what is left of n elements.
template <class Y, class X>
__global__ void copy_kernel(Y* y, const X* x, long n, long C, long y_stride, long x_stride, bool add) {
    const long left = n - blockIdx.x * C, here = C < left ? C : left;
    y += blockIdx.x * y_stride, x += blockIdx.x * x_stride;
    if (add) for_each_element(here, [](Y& to, X from) { to = Y(Real<Y>(to) + Real<Y>(from)); }, y, x);
    else for_each_element(here, [](Y& to, X from) { to = Y(from); }, out(y), x);
}

// y, x: (N, C). One block a row; without gaps between rows one block for 4096 elements.
template <class Y, class X> void copy(Device& d, View<Y> y, View<const X> x, Write write = Write::over) {
    require_equal(y.rows, x.rows, "copy: rows of y and x");
    require_equal(y.cols, x.cols, "copy: columns of y and x");
    constexpr long span = 4096;
    const bool flat = y.dense() && x.dense();
    const Grid grid = flat ? Grid::spans(x.count(), span) : Grid::rows<Y>(x.rows, x.cols);
    launch(d, grid.moves(y, x), copy_kernel<Y, X>, y.data, x.data, x.count(), flat ? span : x.cols,
           flat ? span : y.stride, flat ? span : x.stride, write == Write::add);
}

}  // namespace baretrain
