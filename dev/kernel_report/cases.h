// cases.h - the launches that the report is about: which kernels, how they are spread out, what they move.
// Copy with: dev/kernel_report/traffic.h
#pragma once
#include "dev/kernel_report/traffic.h"
#include <string>
#include <vector>

namespace baretrain::kernel_report {

// GPT-2 124M with 8 sequences of 1,024 tokens; what GPT-2 has not (RoPE, SwiGLU, FP8) at the same sizes.
struct Sizes {
    long N = 8192, C = 768, F = 3072, H = 12, D = 64, V = 50257, T = 1024;
    long head = 256;                                   // rows of logits at a time
    long parameters = 124439808;
    long rows = 8192, inner = 768, cols = 3072;        // of a matrix product
    int ranks = 8;                                     // whose numbers are combined
};
// Fewer rows, so that fibers are done in half a minute: what is counted is divided by what these sizes need.
inline constexpr Sizes counted{
    .N = 512, .H = 2, .T = 256, .head = 4, .parameters = 1 << 18, .rows = 64, .inner = 256, .cols = 256};

struct Launch {
    const void* kernel;                                // its address
    unsigned blocks, threads;
    unsigned long shared_bytes;                        // dynamic
    double needs;                                      // bytes, as its launcher declares them
    Traffic traffic;
};

// The arena is memory for buffers; where it is null, launches are only planned.
std::vector<Launch> run_cases(const Sizes& s, char* arena, unsigned long arena_bytes);

// Launches whose traffic was miscounted, of those in known.cu; none.
std::vector<std::string> miscounted(char* arena, unsigned long arena_bytes);

}  // namespace baretrain::kernel_report
