#include "doctor.h"
#include "host.h"
#include <algorithm>
#include <climits>

using namespace baretrain;

namespace {

using namespace baretrain::test;

// A machine made of files.
struct Machine : TempFolder {
    std::string root = path.string();
    void file(const std::string& name, const std::string& text) const { put(name, text); }
};

const Finding* find(const std::vector<Finding>& all, const std::string& what) {
    const auto it = std::find_if(all.begin(), all.end(), [&](const Finding& f) { return f.what == what; });
    return it == all.end() ? nullptr : &*it;
}

const char* const meminfo = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n";

}  // namespace

TEST_SUITE("doctor") {

TEST_CASE("available memory is what the system says when no control group limits it") {
    Machine m;
    m.file("proc/meminfo", meminfo);
    CHECK(total_memory(m.root) == 16000 * 1024);
    CHECK(available_memory(m.root) == 9000 * 1024);
    m.file("proc/self/cgroup", "0::/\n");
    m.file("sys/fs/cgroup/memory.max", "max\n");
    CHECK(available_memory(m.root) == 9000 * 1024);
}

TEST_CASE("a control group's limit counts, less what is used beyond the page cache") {
    Machine m;
    m.file("proc/meminfo", meminfo);
    m.file("proc/self/cgroup", "0::/\n");
    m.file("sys/fs/cgroup/memory.max", "5000000\n");
    m.file("sys/fs/cgroup/memory.current", "2000000\n");
    CHECK(available_memory(m.root) == 3000000);
    m.file("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 300000\nactive_file 200000\n");
    CHECK(available_memory(m.root) == 3500000);
    m.file("sys/fs/cgroup/memory.max", "1000000\n");   // already over its limit
    CHECK(available_memory(m.root) == 0);
}

TEST_CASE("a control group above the own one, or one of version 1, limits too") {
    Machine m;
    m.file("proc/meminfo", meminfo);
    m.file("proc/self/cgroup", "12:cpu:/x\n0::/a/b\n");
    m.file("sys/fs/cgroup/a/b/memory.max", "max\n");
    m.file("sys/fs/cgroup/a/memory.max", "4000000\n");
    CHECK(available_memory(m.root) == 4000000);
    m.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
    m.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
    CHECK(available_memory(m.root) == 2000000);
    m.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");   // how version 1 says "no limit"
    CHECK(available_memory(m.root) == 4000000);
}

TEST_CASE("a system that says nothing limits nothing") {
    Machine m;
    fs::create_directories(m.root);
    CHECK(available_memory(m.root) > 0);
    CHECK(vector_extensions(m.root).find("avx512") == std::string::npos);
}

TEST_CASE("the processor is named, and only extensions that matter are listed") {
    Machine m;
    m.file("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"
                           "flags\t\t: fpu avx avx2 avx512f avx512fp16 avx512_bf16\n");
    CHECK(cpu_model(m.root) == "Some CPU @ 2 GHz");
    CHECK(vector_extensions(m.root) == "avx avx2 avx512f avx512_bf16");
    CHECK(find(examine({}, m.root), "vector extensions")->advice.empty());
    const Engines slow{"oneDNN 2.6.3 (bf16: oneDNN 2.6.3 in float, double: plain loops)"};
    CHECK(find(examine(slow, m.root), "vector extensions")->advice.starts_with("bf16 instructions are no faster"));
    m.file("proc/cpuinfo", "model name\t: Old\nflags\t\t: fpu avx\n");
    CHECK(!find(examine({}, m.root), "vector extensions")->advice.empty());
}

TEST_CASE("what is missing comes with what it would bring and the command that gets it") {
    const Finding plain = *find(examine({.matmul = "plain loops"}), "matrix products");
    CHECK(plain.found == "plain loops");
    CHECK(plain.advice.find("make deps") != std::string::npos);
    CHECK(find(examine({.matmul = "oneDNN 2.6"}), "matrix products")->advice.empty());
    for (const char* what : {"commit", "compiler", "flags", "CPU", "cores", "memory", "OpenMP", "CBLAS",
                             "CUDA", "NCCL", "MPI"})
        CHECK_MESSAGE(find(examine({}), what), what);
    CHECK(compiler().find_first_of("0123456789") != std::string::npos);
    CHECK(build_flags().find("-std=c++20") != std::string::npos);
    CHECK(!commit().empty());
}

TEST_CASE("the memory that a process holds is its own and what it shares, without mapped files; elsewhere it is unknown") {
    Machine m;
    CHECK(resident_memory(m.root) == -1);
    m.file("proc/self/status", "VmRSS:\t 900 kB\nRssAnon:\t     300 kB\nRssFile:\t     500 kB\nRssShmem:\t     100 kB\n");
    CHECK(resident_memory(m.root) == 400 * 1024);
    m.file("proc/self/status", "VmRSS:\t 900 kB\n");
    CHECK(resident_memory(m.root) == -1);
}

}
