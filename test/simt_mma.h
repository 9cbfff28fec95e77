// simt_mma.h - ldmatrix, mma and cp.async as fibers run them; part of test/simt.h. device/warp.h says what they do.
// Stricter than a GPU: addresses must be aligned and lie in the block's dynamic shared memory; a lane that does not come
// is an error with its line; a copy's target is NaN until the thread that started it has waited for its group, and
// belongs to that thread: who reads it without a barrier races.
#pragma once
#include "device/types.h"
#include "test/simt.h"

namespace baretrain {
namespace simt {

// What every lane gives, bytes of V, as all of them see it.
template <class V> const V& lane_gave(const V& v, const char* what, Where at) {
    static_assert(sizeof(V) <= sizeof machine->exchange[0][0] && std::is_trivially_copyable_v<V>);
    require(blockDim.x % unsigned(warpSize) == 0, "a tensor core needs whole warps", at);
    auto& slots = machine->exchange[machine->fibers[threadIdx.x]->passed[0] % 2];
    std::memcpy(slots[threadIdx.x], &v, sizeof v);
    wait(Group::warp, what, at);
    return *reinterpret_cast<const V*>(slots[threadIdx.x / warpSize * warpSize]);
}
template <class V> const V& lane(const V& first, unsigned l) {
    return *reinterpret_cast<const V*>(reinterpret_cast<const unsigned char*>(&first) + l * sizeof machine->exchange[0][0]);
}

inline void check_shared(const void* p, size_t bytes, const char* what, Where at) {
    const auto* const begin = machine->shared[0].bytes;
    const auto* const b = static_cast<const unsigned char*>(p);
    if (reinterpret_cast<uintptr_t>(p) % bytes) fail_at(std::string(what) + ": an address that is not aligned", at);
    if (b < begin || b + bytes > begin + machine->shared_bytes)
        fail_at(std::string(what) + ": an address outside of the block's dynamic shared memory", at);
}

struct Row { uint16_t x[8]; };

inline void load_matrices(uint32_t (&x)[4], const bf16* row, bool turned, const char* what, Where at) {
    check_shared(row, sizeof(Row), what, at);
    Row own;
    std::memcpy(&own, row, sizeof own);
    const Row& rows = lane_gave(own, what, at);
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned i = 0; i < 4; ++i)
        x[i] = turned ? lane(rows, 8 * i + 2 * t).x[g] | uint32_t(lane(rows, 8 * i + 2 * t + 1).x[g]) << 16
                      : lane(rows, 8 * i + g).x[2 * t] | uint32_t(lane(rows, 8 * i + g).x[2 * t + 1]) << 16;
}

inline float half_of(uint32_t x, unsigned upper) {
    bf16 v;
    v.bits = uint16_t(upper ? x >> 16 : x);
    return v;
}

inline void finish_copies(Fiber& f) {                  // those of the oldest group
    for (size_t i = 0; i < f.groups.front(); ++i) {
        const Copy& c = f.copies[i];
        if (c.there) std::memcpy(c.to, c.from, size_t(c.bytes));
        else std::memset(c.to, 0, size_t(c.bytes));
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + long(f.groups.front()));
    f.groups.erase(f.groups.begin());
}

}  // namespace simt

inline void ldmatrix(uint32_t (&x)[4], const bf16* row, Where at = Where::current()) {
    simt::load_matrices(x, row, false, "ldmatrix", at);
}
inline void ldmatrix_trans(uint32_t (&x)[4], const bf16* row, Where at = Where::current()) {
    simt::load_matrices(x, row, true, "ldmatrix.trans", at);
}

inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where at = Where::current()) {
    struct Factors { uint32_t a[4], b[2]; };
    const Factors& all = simt::lane_gave(Factors{{a[0], a[1], a[2], a[3]}, {b0, b1}}, "mma", at);
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float A[2][16], B[16][2];                          // rows g and g + 8, columns 2t and 2t + 1
    for (unsigned k = 0; k < 16; ++k)
        for (unsigned i = 0; i < 2; ++i) {
            A[i][k] = simt::half_of(simt::lane(all, 4 * g + k % 8 / 2).a[k / 8 * 2 + i], k % 2);
            B[k][i] = simt::half_of(simt::lane(all, 4 * (2 * t + i) + k % 8 / 2).b[k / 8], k % 2);
        }
    for (unsigned i = 0; i < 4; ++i)
        for (unsigned k = 0; k < 16; ++k) c[i] += A[i / 2][k] * B[k][i % 2];
}

template <int bytes> void copy_async(void* to, const void* from, bool there = true, Where at = Where::current()) {
    simt::check_shared(to, bytes, "cp.async", at);
    require(reinterpret_cast<uintptr_t>(from) % bytes == 0, "cp.async: from an aligned address", at);
    simt::machine->fibers[threadIdx.x]->copies.push_back({to, from, bytes, there});
    std::memset(to, 0xFF, bytes);
}
inline void commit_copies() {
    simt::Fiber& f = *simt::machine->fibers[threadIdx.x];
    size_t grouped = 0;
    for (size_t n : f.groups) grouped += n;
    f.groups.push_back(f.copies.size() - grouped);
}
template <int n> void wait_copies() {
    simt::Fiber& f = *simt::machine->fibers[threadIdx.x];
    while (f.groups.size() > n) simt::finish_copies(f);
}

}  // namespace baretrain
