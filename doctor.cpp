// doctor.cpp - body of doctor.h.
#include "doctor.h"
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if !defined(BT_FLAGS)
#define BT_FLAGS "unknown"
#endif
#if !defined(BT_SOURCE)
#define BT_SOURCE "."
#endif
#if !defined(BT_COMMIT)
#define BT_COMMIT "unknown"
#endif

namespace baretrain {
namespace {

namespace fs = std::filesystem;

// The value of the first line `key : value` (or `key value`) of a file of /proc; empty where there is none.
std::string field(const fs::path& file, const std::string& key) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
        if (line.rfind(key, 0) != 0) continue;
        const size_t value = line.find_first_not_of(" \t:", key.size());
        if (value != key.size()) return value == std::string::npos ? "" : line.substr(value);
    }
    return "";
}

std::string sysctl_text([[maybe_unused]] const char* name) {
#if defined(__APPLE__)
    char text[256] = "";
    size_t size = sizeof text - 1;
    if (sysctlbyname(name, text, &size, nullptr, 0) == 0) return text;
#endif
    return "";
}

// A number at the start of a file; `none` where there is no file or no number ("max").
long number_in(const fs::path& file, long none) {
    std::ifstream in(file);
    unsigned long long n;
    return in >> n && n < (1ull << 60) ? long(n) : none;
}
long number_of(const std::string& s) { return std::strtol(s.c_str(), nullptr, 10); }

// What one control group leaves: its limit, less what it uses beyond the page cache.
long left_in_group(const fs::path& limit, const fs::path& usage, const fs::path& stat) {
    const long most = number_in(limit, LONG_MAX);
    if (most == LONG_MAX) return most;
    const long cache = number_of(field(stat, "inactive_file")) + number_of(field(stat, "active_file"));
    return std::max(0l, most - std::max(0l, number_in(usage, 0) - cache));
}

long left_in_groups(const std::string& root) {
    const fs::path v1 = root + "/sys/fs/cgroup/memory", v2 = root + "/sys/fs/cgroup";
    long left = left_in_group(v1 / "memory.limit_in_bytes", v1 / "memory.usage_in_bytes", v1 / "memory.stat");
    std::ifstream in(root + "/proc/self/cgroup");
    std::string own;
    for (std::string line; std::getline(in, line);)
        if (line.rfind("0::/", 0) == 0) own = line.substr(4);
    for (fs::path group = v2 / own;; group = group.parent_path()) {   // every group above limits it too
        left = std::min(left, left_in_group(group / "memory.max", group / "memory.current", group / "memory.stat"));
        if (group == v2 || group == group.parent_path()) return left;
    }
}

std::string on_path(const std::string& program) {
    const char* path = std::getenv("PATH");
    std::istringstream folders(std::string(path ? path : "") + ":/usr/local/cuda/bin");
    for (std::string folder; std::getline(folders, folder, ':');)
        if (std::error_code e; fs::exists(fs::path(folder) / program, e)) return folder + "/" + program;
    return "";
}

std::string gigabytes(long bytes) {
    if (bytes == LONG_MAX || bytes == 0) return "unknown";
    const long tenths = bytes / (1l << 30) * 10 + bytes % (1l << 30) * 10 / (1l << 30);
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GiB";
}

// Libraries for what is still to come: named, so that nobody wonders whether they matter today.
#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>)
const char* const text_libraries = "found; not used yet";
#else
const char* const text_libraries = "off; not used yet";
#endif

// Whether the build says -DBT_X, which makes it 1.
#define TEXT_OF(name) #name
#define BUILT_WITH(name) (TEXT_OF(name)[0] == '1')

}  // namespace

std::vector<Finding> examine(const Engines& engines, const std::string& root) {
    const auto names = [](const std::string& all, const char* one) { return all.find(one) != std::string::npos; };
    const std::string vectors = vector_extensions(root), nvcc = on_path("nvcc"), mpirun = on_path("mpirun");
    const bool openmp = BUILT_WITH(BT_OPENMP), cblas = BUILT_WITH(BT_CBLAS), cuda = BUILT_WITH(BT_CUDA);
    const bool nccl = BUILT_WITH(BT_NCCL), mpi = BUILT_WITH(BT_MPI);
    const bool onednn = names(engines.matmul, "oneDNN"), fast = onednn || names(engines.matmul, "cuBLAS");
    const bool no_device = engines.devices.empty();
    const long total = total_memory(root);
    return {
        {"commit", commit(), ""},
        {"compiler", compiler(), ""},
        {"flags", build_flags(), ""},
        {"CPU", cpu_model(root), ""},
        {"cores", std::to_string(std::max(1u, std::thread::hardware_concurrency())), ""},
        {"vector extensions", vectors.empty() ? "none that matter" : vectors,
         !names(vectors, "bf16") ? "no bf16 instructions: --dtype bf16 saves memory here, not time"
         : names(engines.matmul, "in float") ? "bf16 instructions are no faster than float ones on this CPU (Intel "
                                               "without AMX), which are used: --dtype bf16 saves memory here, not time"
                                             : ""},
        {"memory", gigabytes(total) + ", of which " + gigabytes(available_memory(root)) + " can be had", ""},
        {"OpenMP", openmp ? "on, " + std::to_string(engines.team) + " threads a rank" : "off",
         openmp ? "" : "all cores, not one: build with g++ (on a Mac: brew install libomp), then make"},
        {"matrix products", engines.matmul, fast ? "" : "products several times faster: make deps (oneDNN), then make"},
        {"CBLAS", !cblas ? "off" : onednn ? "found; oneDNN goes first" : "found",
         cblas || fast ? "" : "faster products: make deps ALL=1 (OpenBLAS), then make"},
        cuda ? Finding{"CUDA", no_device ? "built in, but no device" : engines.devices,
                       no_device ? "the driver shows no GPU: see nvidia-smi; ./train_gpt runs on the CPU" : ""}
        : nvcc.empty() ? Finding{"CUDA", "off", "to train on a GPU: CUDA Toolkit, then make cuda"}
                       : Finding{"CUDA", "off; " + nvcc + " found", "to train on a GPU: make cuda"},
        {"NCCL", nccl ? "on, a GPU a rank" : "off",
         cuda && !nccl ? "one GPU for each rank: install NCCL beside the CUDA Toolkit, then make cuda" : ""},
        {"MPI", (mpi ? "on" : "off") + (mpirun.empty() ? "" : ", " + mpirun),
         mpi ? mpirun.empty() ? "ranks as processes: put mpirun into PATH" : ""
             : "ranks as processes, on several hosts: make deps ALL=1 (Open MPI), then make"},
        {"PCRE2, utf8proc", text_libraries, ""},
    };
}

long total_memory(const std::string& root) {
    long total = number_of(field(root + "/proc/meminfo", "MemTotal")) * 1024;
#if defined(__APPLE__)
    size_t size = sizeof total;
    sysctlbyname("hw.memsize", &total, &size, nullptr, 0);
#endif
    return total ? total : LONG_MAX;
}

long available_memory(const std::string& root) {
    const long free = number_of(field(root + "/proc/meminfo", "MemAvailable")) * 1024;
    return std::min(free ? free : total_memory(root), left_in_groups(root));
}

long resident_memory(const std::string& root) {
    const fs::path file = root + "/proc/self/status";
    const std::string own = field(file, "RssAnon"), shared = field(file, "RssShmem");
    return own.empty() ? -1 : (number_of(own) + number_of(shared)) * 1024;
}

std::string cpu_model(const std::string& root) {
    for (const char* key : {"model name", "Model", "CPU implementer"})
        if (const std::string s = field(root + "/proc/cpuinfo", key); !s.empty()) return s;
    const std::string mac = sysctl_text("machdep.cpu.brand_string");
    return mac.empty() ? "unknown" : mac;
}

std::string vector_extensions(const std::string& root) {
    const std::string file = root + "/proc/cpuinfo";
    std::istringstream flags(field(file, "flags") + " " + field(file, "Features") + " " +
                             sysctl_text("machdep.cpu.leaf7_features"));
    std::string all;
    for (std::string flag; flags >> flag;) {
        std::transform(flag.begin(), flag.end(), flag.begin(), [](unsigned char c) { return char(std::tolower(c)); });
        for (const char* known : {"avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16"})
            if (flag == known) all += (all.empty() ? "" : " ") + flag;
    }
    return all;
}

std::string compiler() {
#if defined(__clang__)
    return std::string("clang ") + __clang_version__;
#else
    return std::string("g++ ") + __VERSION__;
#endif
}
std::string build_flags() { return BT_FLAGS; }
std::string commit() { return BT_COMMIT; }
std::string source_folder() { return BT_SOURCE; }

}  // namespace baretrain
