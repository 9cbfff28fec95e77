// pack.h - a thread's way through rows: 16 bytes of each at once on a GPU and in its emulation, one element on a CPU.
// Copy with: device.h
//   for_each_element(C, [&](T& y, T x) { y = T(scale * R(x)); }, out(y), x);      x: const T*, only read
// A thread of a block gets packs of neighbouring elements. Where a row does not begin at a multiple of 16 bytes, and
// behind its last whole pack, the block goes on element by element: right for every address, stride and length.
#pragma once
#include <algorithm>

namespace baretrain {

inline constexpr long pack_bytes = max_threads > 1 ? 16 : 1;
#if defined(__CUDACC__)
using Wide = uint4;                                    // is moved as one access
#else
typedef uint32_t Wide __attribute__((vector_size(16), may_alias));
#endif
__device__ __forceinline__ void store(Wide* to, Wide v) {
#if defined(__CUDA_ARCH__)                             // nvcc makes four stores of an assignment whose parts it knows
    asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
    *to = v;
#endif
}

// A row as for_each_element() takes it: const T*, to read; T*, to read and to write; Out<T>, to write and not to read.
template <class T> struct Out {
    T* data;
    __device__ T& operator[](long c) const { return data[c]; }
    __device__ Out operator+(long c) const { return {data + c}; }
};
template <class T> __device__ Out<T> out(T* data) { return {data}; }
template <class T> __device__ uintptr_t address(const T* row) { return reinterpret_cast<uintptr_t>(row); }
template <class T> __device__ uintptr_t address(Out<T> row) { return address(row.data); }
template <class Row> using ElementOf = std::remove_cvref_t<decltype(std::declval<const Row&>()[0])>;

// Neighbouring elements in registers.
template <class T, long n> struct Pack { T of[n]; };
template <long n, class T> __device__ __forceinline__ Pack<T, n> fetch(const T* from) {
    Pack<T, n> p;
    Wide wide[sizeof p / sizeof(Wide)];
    for (size_t i = 0; i < sizeof p / sizeof(Wide); ++i) wide[i] = reinterpret_cast<const Wide*>(from)[i];
    memcpy(static_cast<void*>(&p), wide, sizeof p);
    return p;
}
template <long n, class T> __device__ __forceinline__ Pack<T, n> fetch(Out<T>) { return {}; }
template <class T, long n> __device__ __forceinline__ void put(const T*, const Pack<T, n>&) {}
template <class T, long n> __device__ __forceinline__ void put(T* to, const Pack<T, n>& p) {
    Wide wide[sizeof p / sizeof(Wide)];
    memcpy(wide, &p, sizeof p);
    for (size_t i = 0; i < sizeof p / sizeof(Wide); ++i) store(reinterpret_cast<Wide*>(to) + i, wide[i]);
}
template <class T, long n> __device__ __forceinline__ void put(Out<T> to, const Pack<T, n>& p) { put(to.data, p); }

// Elements of a pack: 16 bytes of the narrowest of these rows, more of the others.
template <class... Rows>
inline constexpr long pack_width = std::max(1L, pack_bytes / std::min({long(sizeof(ElementOf<Rows>))...}));

template <class Body, class... E> __device__ __forceinline__ void call_at(Body& body, long c, E&... elements) {
    if constexpr (std::is_invocable_v<Body&, E&...>) body(elements...);
    else body(c, elements...);
}
template <long n, class Body, class... Rows>
__device__ __forceinline__ void each_of_pack(Body& body, long c, Rows... rows) {
    [&](auto... packs) {
        for (long i = 0; i < n; ++i) call_at(body, c + i, packs.of[i]...);
        (put(rows + c, packs), ...);
    }(fetch<n>(rows + c)...);
}

// body(elements of the rows at c), or body(c, elements), for each c of the span. All threads of a block call it
// together. Whose c is goes by the addresses of the rows: a barrier must stand before what reads the results.
template <class Body, class... Rows> __device__ __forceinline__ void for_each_element(Span s, Body body, Rows... rows) {
    constexpr long n = pack_width<Rows...>;
    long first = s.begin;                              // of what goes element by element
    if constexpr (n > 1) {
        if (((address(rows + s.begin) % sizeof(Wide) == 0) && ...)) first += (s.end - s.begin) / n * n;
        for (long c = s.begin + threadIdx.x * n; c < first; c += blockDim.x * n) each_of_pack<n>(body, c, rows...);
    }
    for (long c = first + threadIdx.x; c < s.end; c += blockDim.x) call_at(body, c, rows[c]...);
}
template <class Body, class... Rows> __device__ __forceinline__ void for_each_element(long C, Body body, Rows... rows) {
    for_each_element(Span{0, C}, body, rows...);
}

// The largest of `most` and size(x[c]), of this thread's elements. A NaN does not count.
template <class R, class Size, class T> __device__ __forceinline__ R largest(R most, Span s, Size size, const T* x) {
    if constexpr (max_threads > 1)
        for_each_element(s, [&](T v) { most = size(v) > most ? size(v) : most; }, x);
    else {
        BT_VECTOR_MAX(most)
        for (long c = s.begin; c < s.end; ++c) most = size(x[c]) > most ? size(x[c]) : most;
    }
    return most;
}

// ---- sums over rows -------------------------------------------------------------------------------------------------
// K sums for each of some neighbouring columns, which a thread keeps while it goes through the rows: in registers those
// of a pack, or of one column; a CPU those of all, in the cache.
template <class R, long K, long n> struct ColumnSums {
    long first;
    Pack<R, n> of[K];
    template <class Body, class... Rows> __device__ __forceinline__ void operator()(Body body, Rows... rows) {
        [&]<size_t... k>(std::index_sequence<k...>) {
            if constexpr (n == 1) body(of[k].of[0]..., rows[first]...);
            else [&](auto... packs) {
                for (long i = 0; i < n; ++i) body(of[k].of[i]..., packs.of[i]...);
            }(fetch<n>(rows + first)...);
        }(std::make_index_sequence<K>());
    }
};
template <long n, class R, size_t K, class Walk>
__device__ __forceinline__ void sum_columns_by(R* const (&to)[K], long C, Write write, Walk walk) {
    for (long c = threadIdx.x * n; c < C; c += blockDim.x * n) {
        ColumnSums<R, K, n> sums{c, {}};
        for (size_t k = 0; k < K && write == Write::add; ++k)
            if constexpr (n == 1) sums.of[k].of[0] = to[k][c];
            else sums.of[k] = fetch<n>(static_cast<const R*>(to[k] + c));
        walk(sums);
        for (size_t k = 0; k < K; ++k)
            if constexpr (n == 1) to[k][c] = sums.of[k].of[0];
            else put(to[k] + c, sums.of[k]);
    }
}
// to[k][c] = or += what walk() adds up in column c of rows, all of C columns: walk(add) calls add(body, rows...) for a
// row after the other, and body(sums..., elements...) adds. packed: rows begin at multiples of 16 bytes and have whole
// packs of `width` elements.
template <long width, class R, size_t K, class Walk>
__device__ __forceinline__ void sum_columns(R* const (&to)[K], long C, bool packed, Write write, Walk walk) {
    if constexpr (max_threads > 1) {
        if (packed) sum_columns_by<width>(to, C, write, walk);
        else sum_columns_by<1>(to, C, write, walk);
    } else [&]<size_t... k>(std::index_sequence<k...>) {
        if (write == Write::over) ((void)std::fill_n(to[k], C, R(0)), ...);
        walk([&](auto body, auto... rows) {
            for (long c = 0; c < C; ++c) body(to[k][c]..., rows[c]...);
        });
    }(std::make_index_sequence<K>());
}
// Rows of a matrix begin at multiples of 16 bytes.
template <class T> __device__ bool in_packs(const T* x, long stride) {
    return address(x) % sizeof(Wide) == 0 && stride * sizeof(T) % sizeof(Wide) == 0;
}

// ---- rows that are read several times -------------------------------------------------------------------------------
// Their first read brings them into shared memory: row `which` of those that a block keeps. A CPU finds them in its
// cache. All threads see the whole row.
template <class T> BT_HD size_t kept_bytes(long C) { return max_threads > 1 ? (C * sizeof(T) + 15) / 16 * 16 : 0; }
template <class T> __device__ const T* keep(const T* x, long C, long which = 0) {
    if constexpr (max_threads == 1) return x;
    T* const kept = shared_memory<T>() + which * kept_bytes<T>(C) / sizeof(T);
    for_each_element(C, [](T& to, T from) { to = from; }, out(kept), x);
    __syncthreads();
    return kept;
}
// to[c] = make(rows[c]...), a row that is kept, too.
template <class T, class Make, class... Rows>
__device__ __forceinline__ const T* keep_new(T* to, long C, Make make, Rows... rows) {
    if constexpr (max_threads == 1) {
        for_each_element(C, [=](T& toc, ElementOf<Rows>... x) { toc = make(x...); }, out(to), rows...);
        return to;
    }
    T* const kept = shared_memory<T>();
    for_each_element(C, [=](T& k, T& toc, ElementOf<Rows>... x) { k = toc = make(x...); }, out(kept), out(to), rows...);
    __syncthreads();
    return kept;
}
// Threads of a block that has a row of C elements: as many as there are packs, in whole warps.
template <class T> unsigned row_threads(long C) {
    return unsigned(std::clamp((C * long(sizeof(T)) + 511) / 512 * 32, 32L, 256L));
}

}  // namespace baretrain
