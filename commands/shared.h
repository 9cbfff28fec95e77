// shared.h - what commands share: words for a person who waits, memory asked for before it is taken, types by name.
// Copy with: comm.h, doctor.h, kernels/matmul.h, report.h and what they name
#pragma once
#include "comm.h"
#include "doctor.h"
#include "kernels/matmul.h"
#include "report.h"
#include <cstdio>
#include <unistd.h>

namespace baretrain {

// Shows how far a long wait has come, at most once a second and only to a person.
struct Progress {
    const char* what;
    long first = 0;                                    // where the wait begins: a resumed run has steps behind it
    bool speaks = true;
    Clock::time_point begin = Clock::now(), shown = begin;
    void operator()(long done, long total) {
        if (!speaks || !isatty(2) || seconds_since(shown) < 1) return;
        shown = Clock::now();
        std::fprintf(stderr, "%-60s\r", progress_line(what, done - first, total - first, seconds_since(begin)).c_str());
    }
};

// Text of a model on a terminal: control characters would reach it as commands.
inline void show_text(const std::string& text) {
    const auto is_command = [](char c) { return static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t'; };
    for (char c : text) std::putchar(isatty(1) && is_command(c) ? '?' : c);
    std::fflush(stdout);
}

// Asked before anything is allocated.
inline size_t memory_there() { return device_memory() ? device_memory() : size_t(available_memory()); }
inline void require_memory(size_t bytes) {
    const size_t available = memory_there();
    if (bytes > available)
        fail("not enough memory: ", bytes / 1000000, " MB needed, ", available / 1000000,
             " MB available; take a smaller --batch, --seq or model, or --dtype bf16");
}

// Operations a second of one big product of T: the best of those that fit into a tenth of a second, two at least.
// Negative where it is not known: the run is so short (100 such products) that measuring would be a good part of it, or
// the GPU has no room for it.
template <class T> double measured_peak(Device& d, double run_flops) {
    constexpr long M = on_gpu ? 4096 : 1024, N = on_gpu ? 4096 : 3072, K = on_gpu ? 4096 : 768;
    constexpr int runs = on_gpu ? 8 : 1;               // one after the other, so that it waits for no launch
    constexpr double flops = 2.0 * M * N * K;
    constexpr size_t bytes = (M * K + N * K + M * N) * sizeof(T) + Matmul::workspace_bytes;
    if (run_flops < 100 * flops) return -1;
    if (on_gpu && device_memory() < 2 * bytes) return -1;
    Arena arena(bytes);
    const auto x = arena.take<T>(M, K), w = arena.take<T>(N, K), y = arena.take<T>(M, N);
    const std::vector<T> ones(size_t(N * K), T(1));    // pages that nobody wrote to are all the same one
    copy_bytes(d, x.data, ones.data(), M * K * sizeof(T));
    copy_bytes(d, w.data, ones.data(), N * K * sizeof(T));
    Matmul products(d, arena.take<char>(1, Matmul::workspace_bytes));
    double best = HUGE_VAL;
    const auto start = Clock::now();
    for (int i = 0; i < 2 || seconds_since(start) < 0.1; ++i) {
        const auto begin = Clock::now();
        for (int j = 0; j < runs; ++j) matmul<T, T>(products, d, y, x, w, {}, {.transpose_b = true});
        T last;
        copy_bytes(d, &last, y.row(M - 1), sizeof last);   // a GPU has then finished
        best = std::min(best, seconds_since(begin) / runs);
    }
    return flops / best;
}

// Calls use with a value of the scalar type that the name stands for.
template <class Use> int with_type(const std::string& dtype, Use use) {
    if (dtype == "bf16" || dtype == "BF16") return use(bf16{});
    if (dtype == "fp64" || dtype == "F64") return use(double{});
    if (dtype == "fp32" || dtype == "F32" || dtype == "F16") return use(float{});   // float holds all that F16 can
    fail("dtype " + dtype + " is not built yet; only fp32, bf16 and fp64 work so far");
}

}  // namespace baretrain
