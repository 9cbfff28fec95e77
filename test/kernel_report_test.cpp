// kernel_report_test.cpp - the rules of the kernel report (dev/kernel_report/report.h) on launches made up here.
// The report of the real kernels takes longer: make kernel-report-check.
#include "dev/kernel_report/report.h"
#include <doctest/doctest.h>
#include <sstream>

using namespace baretrain::kernel_report;

namespace {

// A launch that no rule has anything against.
Row good() {
    Row r{"one_kernel<bf16>", {nullptr, 1000, 256, 0, 8e6, {}}, {nullptr, 10, 256, 0, 80000, {}}};
    r.counted.traffic = {.loads = 2500, .stores = 2500, .load_bytes = 40000, .store_bytes = 40000, .l2_bytes = 80000,
                         .memory_bytes = 80000, .threads = 2560};
    return r;
}
Contracts contracts_of(const std::string& source) {
    Contracts c;
    std::istringstream in(source);
    read_contracts(c, "one.h", in);
    return c;
}
const std::string plain = "template <class T> __global__ void one_kernel(T* y) {\n";

// The one complaint about a row and its source; "" if there is none.
std::string complaint(const Row& row, const std::string& source,
                      const Compiled& compiled = {.widest_load = 16, .widest_store = 16}) {
    const auto all = complaints({row}, contracts_of(source), {{"90a", {{"one_kernel<bf16>", compiled}}}});
    CHECK(all.size() <= 1);
    return all.empty() ? "" : all[0];
}
bool has(const std::string& s, const char* part) { return s.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE("kernel_report") {

TEST_CASE("reasons stand in the comment above a kernel, and go on in its next lines") {
    const Contracts c = contracts_of(
        "// About it.\n// Blocks: one adds in order,\n// which takes no time.\n// Bytes: weights come from L2.\n"
        "template <class T>\n__global__ void __launch_bounds__(most_threads)\nfirst_kernel(T* y,\n    long n) {\n}\n"
        "// Blocks: of no kernel.\nlong f() {\n}\n"
        "template <class T> __global__ void second_kernel(T* y) {\n}\n");
    REQUIRE(c.size() == 2);
    CHECK(c.at("first_kernel").line == 7);
    CHECK(c.at("first_kernel").reasons.at("Blocks") == "one adds in order, which takes no time.");
    CHECK(c.at("first_kernel").reasons.at("Bytes") == "weights come from L2.");
    CHECK(c.at("second_kernel").reasons.empty());
}

TEST_CASE("what is unusual must be argued, and only that") {
    CHECK(complaint(good(), plain) == "");
    CHECK(has(complaint(good(), "// Bytes: none.\n" + plain), "argues `Bytes: none.`, which no row needs"));
    const auto needs = [](const char* name, auto change) {
        Row r = good();
        change(r);
        CAPTURE(name);
        CHECK(has(complaint(r, plain), ("`// " + std::string(name) + ": ").c_str()));
        CHECK(complaint(r, "// " + std::string(name) + ": so it is.\n" + plain) == "");
    };
    Row slow = good();
    slow.planned.blocks = 1;
    const auto both = complaints({slow}, contracts_of("// Bytes: not what was asked.\n" + plain), {});
    REQUIRE(both.size() == 2);
    CHECK(has(both[0], "`// Blocks: "));
    CHECK(has(both[1], "argues `Bytes: "));
    needs("Blocks", [](Row& r) { r.planned.blocks = 131; });
    needs("Bytes", [](Row& r) { r.counted.traffic.l2_bytes = 92000; });
    needs("Width", [](Row& r) { r.counted.traffic.loads = 8000; });
    needs("Width", [](Row& r) { r.counted.traffic.stores = 8000; });
    needs("Threads", [](Row& r) { r.counted.traffic.threads = 1200; });
}

TEST_CASE("the first lines of a header argue for all of its kernels") {
    Row r = good();
    r.planned.blocks = 1;
    CHECK(complaint(r, "// Blocks: all of them are few.\n#pragma once\n\n" + plain) == "");
    CHECK(has(complaint(good(), "// Blocks: all of them are few.\n#pragma once\n\n" + plain), "which no kernel of it needs"));
    CHECK(has(complaint(r, "// Blocks: of nothing.\nint x;\n#pragma once\n" + plain), "1 blocks"));
}

TEST_CASE("a few bytes more are nothing to argue") {
    Row r = good();
    r.counted.needs = 100, r.counted.traffic.l2_bytes = 1600, r.counted.traffic.memory_bytes = 800;
    CHECK(complaint(r, plain) == "");
    r.planned.needs = 100, r.planned.blocks = 1, r.counted.traffic.threads = 1;
    CHECK(complaint(r, plain) == "");
}

TEST_CASE("what nobody may argue away") {
    Row r = good();
    const Compiled wide{.widest_load = 16, .widest_store = 16};
    CHECK(complaint(r, plain, wide) == "");
    CHECK(has(complaint(r, plain, {.widest_load = 8, .widest_store = 16}), "more than one instruction"));
    CHECK(has(complaint(r, plain, {.widest_load = 16, .widest_store = 4}), "more than one instruction"));
    CHECK(has(complaint(r, plain, {.spilled = 8}), "8 bytes spilled (sm_90a)"));
    CHECK(has(complaint(r, "int x;\n"), "is in no header that was read"));
    r.counted.needs = 0;
    CHECK(has(complaint(r, "// Bytes: x.\n" + plain), "does not say what it moves()"));
    for (const double moved : {60000., 95000.}) {
        r = good();
        r.counted.traffic.memory_bytes = moved;
        CHECK(has(complaint(r, plain), "its launcher says 80000 bytes, it touches"));
    }
    const auto other = complaints({good()}, contracts_of(plain + "}\n__global__ void two_kernel() {\n"), {});
    REQUIRE(other.size() == 1);
    CHECK(has(other[0], "one.h:3: two_kernel: no row"));
    const auto unknown = complaints({good()}, contracts_of(plain), {{"80", {}}});
    REQUIRE(unknown.size() == 1);
    CHECK(has(unknown[0], "ptxas does not know it (sm_80)"));
}

TEST_CASE("what ptxas and PTX say is read") {
    Kernels k;
    std::istringstream log(
        "ptxas info    : Compiling entry function '_ZN9baretrain12adamw_kernelINS_4bf16EEEvNS_8AdamSpanIT_EE' for 'sm_90a'\n"
        "ptxas info    : Function properties for _ZN9baretrain12adamw_kernelINS_4bf16EEEvNS_8AdamSpanIT_EE\n"
        "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 34 registers, used 1 barriers, 256 bytes smem, 400 bytes cmem[0]\n");
    read_ptxas(k, log);
    std::istringstream ptx(
        ".visible .entry _ZN9baretrain12adamw_kernelINS_4bf16EEEvNS_8AdamSpanIT_EE(\n"
        "    ld.global.u16 %r1, [%rd1];\n    ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2];\n    st.global.v2.u32 [%rd3], {%r1, %r2};\n"
        "    ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r9];\n"
        ".visible .entry _ZN9baretrain11copy_kernelEv(\n    st.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};\n    ld.param.u64 %rd1, [p];\n    cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;\n");
    read_ptx(k, ptx);
    REQUIRE(k.size() == 2);
    CHECK(k.at("copy_kernel").widest_load == 16);
    CHECK(k.at("copy_kernel").widest_store == 16);
    const Compiled& c = k.at("adamw_kernel<bf16>");
    CHECK(c.registers == 34);
    CHECK(c.shared == 256);
    CHECK(c.spilled == 12);
    CHECK(c.widest_load == 16);
    CHECK(c.widest_store == 8);
}

// By hand, from the limits of each architecture.
TEST_CASE("blocks that a multiprocessor holds: by threads, registers, shared memory, and at most so many") {
    const Limits &turing = *limits_of("75"), &ampere = *limits_of("80"), &hopper = *limits_of("90a");
    CHECK(resident_blocks(ampere, 256, 32, 0) == 8);           // 2,048 threads
    CHECK(resident_blocks(turing, 256, 32, 0) == 4);           // 1,024 threads
    CHECK(resident_blocks(ampere, 32, 16, 0) == 32);
    CHECK(resident_blocks(ampere, 256, 34, 0) == 6);           // 40 registers are allocated: 51 warps, 48 of them whole quarters
    CHECK(resident_blocks(ampere, 256, 255, 0) == 1);
    CHECK(resident_blocks(ampere, 1024, 65, 0) == 0);          // 72 registers x 1,024
    CHECK(resident_blocks(hopper, 128, 32, 48 << 10) == 4);    // 49 KB each of 228
    CHECK(resident_blocks(ampere, 128, 32, 48 << 10) == 3);
    CHECK(resident_blocks(ampere, 128, 32, 32 << 10) == 4);    // 33 KB each: 1 KB of each block's is kept
    CHECK(resident_blocks(turing, 128, 32, 48 << 10) == 1);    // 64 KB, none kept
    CHECK(resident_blocks(turing, 128, 32, 65 << 10) == 0);
    CHECK(limits_of("70") == nullptr);
}

}
