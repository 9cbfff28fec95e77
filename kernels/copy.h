// copy.h - y = x, row by row, between views with their own strides and types (rounding to the type of y).
// Copy with: device.h and what it names
#pragma once
#include "device.h"

namespace baretrain {

template <class Out, class In> __global__ void copy_kernel(Out* y, const In* x, long C, long y_stride, long x_stride) {
    y += blockIdx.x * y_stride, x += blockIdx.x * x_stride;
    for (long c = threadIdx.x; c < C; c += blockDim.x) y[c] = Out(x[c]);
}

// Of a flat view, as rows: kernels that take a block a row then have blocks. Units are made of 64s.
template <class T> View<T> as_rows(View<T> flat) { return {flat.data, flat.count() / 64, 64}; }

// y, x: (N, C); one block a row.
template <class Out, class In> void copy(Device& d, View<Out> y, View<const In> x) {
    require_equal(y.rows, x.rows, "copy: rows of y and x");
    require_equal(y.cols, x.cols, "copy: columns of y and x");
    launch(d, Grid(x.rows).moves(y, x), copy_kernel<Out, In>, y.data, x.data, x.cols, y.stride, x.stride);
}

}  // namespace baretrain
