// view.h - View: a pointer that knows its shape. It owns nothing; copying a view copies no data.
// Copy with: device/error.h
#pragma once
#include "device/error.h"
#include <type_traits>

namespace baretrain {

enum class Write { over, add };                        // what an operation does to its result: y = ... or y += ...

// rows x cols elements; row r starts at data + r * stride. Default: empty, which everywhere means "there is none".
template <class T> struct View {
    T* data = nullptr;
    long rows = 0, cols = 0, stride = 0;

    View() = default;
    View(T* data, long rows, long cols) : View(data, rows, cols, cols) {}
    View(T* data, long rows, long cols, long stride) : data(data), rows(rows), cols(cols), stride(stride) {}
    template <class U>
        requires std::is_same_v<const U, T>
    View(View<U> v) : View(v.data, v.rows, v.cols, v.stride) {}   // View<T> becomes View<const T>, never back

    bool empty() const { return rows == 0 || cols == 0; }
    long count() const { return rows * cols; }
    bool dense() const { return stride == cols || rows <= 1; }
    T* row(long r) const { return data + r * stride; }
    View row_range(long first, long n) const {
        require(first >= 0 && n >= 0 && first + n <= rows, "row_range: within the rows of the view");
        return {data ? data + first * stride : nullptr, n, cols, stride};
    }
    View col_range(long first, long n) const {
        require(first >= 0 && n >= 0 && first + n <= cols, "col_range: within the columns of the view");
        return {data ? data + first : nullptr, rows, n, stride};
    }
};

// A view to read, as a parameter: T is never deduced from it, so a View<T> may be passed as it is.
template <class T> using Input = View<const std::type_identity_t<T>>;

}  // namespace baretrain
