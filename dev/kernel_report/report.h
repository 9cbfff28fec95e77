// report.h - what the kernel report joins: launches, what ptxas says of a kernel, and the comment above it; and its rules.
// Copy with: dev/kernel_report/cases.h and what it names
#pragma once
#include "dev/kernel_report/cases.h"
#include <algorithm>
#include <cxxabi.h>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace baretrain::kernel_report {

inline constexpr int small_gpu = 40, big_gpu = 132;    // SMs: of a T4 or an RTX 4060 class card, of an H100
inline constexpr double most_bytes = 1.1, least_width = 8, least_busy = 0.5;
inline constexpr double few_bytes = 64 * sector;       // parts of sectors: not worth a word
inline constexpr double small_launch = 1 << 20;        // bytes that move in no time, however narrow

// ---- what a multiprocessor has (cuda_occupancy.h of CUDA 13; the last: it keeps so many bytes of each block's shared memory)
struct Limits { const char* arch; int threads, blocks, registers; long shared, shared_unit, reserved; };
inline constexpr Limits limits[] = {
    {"75", 1024, 16, 65536, 64 << 10, 256, 0},       {"80", 2048, 32, 65536, 164 << 10, 128, 1024},
    {"89", 1536, 24, 65536, 100 << 10, 128, 1024},   {"90a", 2048, 32, 65536, 228 << 10, 128, 1024},
    {"100a", 2048, 32, 65536, 228 << 10, 128, 1024}, {"120a", 1536, 24, 65536, 100 << 10, 128, 1024},
};
inline const Limits* limits_of(const std::string& arch) {
    for (const Limits& l : limits)
        if (arch == l.arch) return &l;
    return nullptr;
}
inline long round_up(long x, long unit) { return (x + unit - 1) / unit * unit; }

// Blocks of a kernel that one multiprocessor runs at a time; 0: not even one.
inline long resident_blocks(const Limits& l, long threads, long registers, long shared) {
    const long warps = (threads + 31) / 32, of_warp = round_up(registers * 32, 256);
    const long register_warps = of_warp ? l.registers / 4 / of_warp * 4 : 64;   // a quarter of the SM has its own registers
    const long block_shared = round_up(shared + l.reserved, l.shared_unit);
    long blocks = std::min<long>(l.blocks, l.threads / 32 / warps);
    blocks = std::min(blocks, register_warps / warps);
    return block_shared ? std::min(blocks, l.shared / block_shared) : blocks;
}

// ---- names: baretrain::norm_forward_kernel<baretrain::bf16>(...) is norm_forward_kernel<bf16>
inline std::string short_name(const std::string& mangled) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status),
                                                      std::free);
    std::string s = text ? text.get() : mangled, name;
    int depth = 0;
    for (size_t i = 0; i < s.size(); ++i) {
        depth += (s[i] == '<') - (s[i] == '>');
        if (s[i] == '(' && depth == 0) break;
        if (s[i] == ' ' && depth == 0) name.clear();   // a return type
        else name += s[i];
    }
    return std::regex_replace(name, std::regex("baretrain::|(\\(anonymous namespace\\)::)"), "");
}
inline std::string without_arguments(const std::string& name) { return name.substr(0, name.find('<')); }

// ---- what the compiler made of a kernel
struct Compiled {
    long registers = 0, shared = 0, spilled = 0;       // shared: static; spilled: bytes stored
    long widest_load = 0, widest_store = 0;            // bytes of one access to global memory
};
using Kernels = std::map<std::string, Compiled>;       // by short name

// ptxas -v.
inline void read_ptxas(Kernels& kernels, std::istream& in) {
    static const std::regex entry("Compiling entry function '([^']+)'"), spills("(\\d+) bytes spill stores"),
        used("Used (\\d+) registers"), shared("(\\d+) bytes smem");
    Compiled* kernel = nullptr;
    std::smatch m;
    for (std::string line; std::getline(in, line);) {
        if (std::regex_search(line, m, entry)) kernel = &kernels[short_name(m[1])];
        else if (!kernel) continue;
        else if (std::regex_search(line, m, spills)) kernel->spilled = std::stol(m[1]);
        else if (std::regex_search(line, m, used)) {
            kernel->registers = std::stol(m[1]);
            if (std::regex_search(line, m, shared)) kernel->shared = std::stol(m[1]);
        }
    }
}
// PTX: ld.global.v4.u32 is an access of 16 bytes, and so is ld.v4.u32, which is told at run time what memory it reads.
inline void read_ptx(Kernels& kernels, std::istream& in) {
    static const std::regex entry("\\.entry (\\w+)\\("),
        access("\\b(ld|st)(?:\\.global(?:\\.\\w+)*?)?(?:\\.v([248]))?\\.[bufs](8|16|32|64|128)\\s"),
        async("\\bcp\\.async\\.c[ag]\\.shared\\.global \\[[^\\]]*\\], \\[[^\\]]*\\], (\\d+)");
    Compiled* kernel = nullptr;
    std::smatch m;
    for (std::string line; std::getline(in, line);) {
        if (std::regex_search(line, m, entry)) kernel = &kernels[short_name(m[1])];
        else if (kernel && std::regex_search(line, m, access)) {
            const long bytes = std::stol(m[3]) / 8 * (m[2].matched ? std::stol(m[2]) : 1);
            long& widest = m[1] == "ld" ? kernel->widest_load : kernel->widest_store;
            widest = std::max(widest, bytes);
        } else if (kernel && std::regex_search(line, m, async))
            kernel->widest_load = std::max(kernel->widest_load, std::stol(m[1]));
    }
}

// ---- what the source says above a kernel, or of all kernels of a header in its first lines: `// Blocks: ...`, `// Bytes: ...`, `// Width: ...`, `// Threads: ...`
struct Contract {
    std::string file;
    long line = 0;
    std::map<std::string, std::string> reasons, of_all;   // by those words; of all kernels of the file
};
using Contracts = std::map<std::string, Contract>;     // by kernel, without template arguments

inline void read_contracts(Contracts& contracts, const std::string& file, std::istream& in) {
    static const std::regex bounds("__launch_bounds__\\([^()]*\\)"), kernel("__global__.*\\bvoid\\s+(\\w+)\\s*\\("), reason("^// (Blocks|Bytes|Width|Threads): (.+)$");
    std::map<std::string, std::string> reasons, of_all;
    std::string* more = nullptr;                       // the reason that the next comment line goes on with
    std::string head;                                  // of a function, so far: from its template line on
    std::smatch m;
    long number = 0;
    for (std::string line; std::getline(in, line);) {
        ++number;
        if (line.rfind("//", 0) == 0) {
            if (std::regex_match(line, m, reason)) more = &(reasons[m[1]] = m[2]);
            else if (more) *more += line.substr(2);
            continue;
        }
        more = nullptr;
        head += std::regex_replace(line, bounds, "") + " ";
        if (std::regex_search(head, m, kernel)) contracts[m[1]] = {file, number, reasons, of_all};
        else if (line == "#pragma once") of_all = reasons;
        else if (line.find_first_of("{};#") == std::string::npos && !line.empty()) continue;
        reasons.clear(), head.clear();
    }
}

// ---- rows
struct Row {
    std::string kernel;                                // short name
    Launch planned, counted;                           // at the sizes of the model, and at those that fibers can do
    double l2() const { return ratio(counted.traffic.l2_bytes); }
    double memory() const { return ratio(counted.traffic.memory_bytes); }
    double busy() const { return counted.traffic.threads / (double(counted.blocks) * counted.threads); }
    double touched() const { return ratio(counted.traffic.load_bytes + counted.traffic.store_bytes); }
    double load_width() const { return mean(counted.traffic.load_bytes, counted.traffic.loads); }
    double width() const {
        const Traffic& t = counted.traffic;
        return mean(t.load_bytes + t.store_bytes, t.loads + t.stores);
    }
    double store_width() const { return mean(counted.traffic.store_bytes, counted.traffic.stores); }
private:
    double ratio(double bytes) const { return counted.needs > 0 ? bytes / counted.needs : 0; }
    static double mean(double bytes, double accesses) { return accesses > 0 ? bytes / accesses : 16; }
};

inline std::string decimal(double v, int digits = 2) {
    std::ostringstream s;
    s.precision(digits);
    s << std::fixed << v;
    return s.str();
}

// What of a row must be argued in its contract, by name, with the finding.
inline std::map<std::string, std::string> findings(const Row& r) {
    std::map<std::string, std::string> found;
    if (r.planned.needs <= few_bytes) return found;    // one thread and a few numbers
    if (r.planned.blocks < unsigned(big_gpu))
        found["Blocks"] = std::to_string(r.planned.blocks) + " blocks, fewer than " + std::to_string(big_gpu);
    if (r.busy() < least_busy) found["Threads"] = decimal(100 * r.busy(), 0) + " % of the threads load or store anything";
    if (r.counted.traffic.l2_bytes > most_bytes * r.counted.needs + few_bytes)
        found["Bytes"] = "moves " + decimal(r.l2()) + " times the bytes that it needs";
    if (r.width() < least_width && r.planned.needs > small_launch)
        found["Width"] = decimal(r.width(), 1) + " bytes an access";
    return found;
}

// Loads or stores of 16 bytes in the source that nvcc cut up.
inline bool narrowed(const Row& r, const Compiled& c) {
    return (r.load_width() > 8 && c.widest_load < 16 && r.counted.traffic.loads > 0) ||
           (r.store_width() > 8 && c.widest_store < 16 && r.counted.traffic.stores > 0);
}

// One line for each broken rule.
inline std::vector<std::string> complaints(const std::vector<Row>& rows, const Contracts& contracts,
                                           const std::map<std::string, Kernels>& compiled) {
    std::vector<std::string> wrong;
    std::map<std::string, std::map<std::string, bool>> argued;   // by kernel or file, and name: does a row need it
    for (const Row& r : rows) {
        const std::string kernel = without_arguments(r.kernel);
        const auto contract = contracts.find(kernel);
        const auto add = [&](const std::string& what) {
            wrong.push_back((contract == contracts.end() ? "?" : contract->second.file + ":" +
                             std::to_string(contract->second.line)) + ": " + r.kernel + ": " + what);
        };
        if (contract == contracts.end()) { add("is in no header that was read"); continue; }
        for (const auto& [name, finding] : findings(r)) {
            const bool own = contract->second.reasons.count(name), shared = contract->second.of_all.count(name);
            argued[own ? kernel : contract->second.file][name] = true;
            if (!own && !shared) add(finding + ": say why in a line `// " + name + ": ...` above it");
        }
        if (r.counted.needs <= 0) add("its launcher does not say what it moves()");
        else if (const double moved = r.counted.traffic.memory_bytes; moved > most_bytes * r.counted.needs + few_bytes ||
                 moved * most_bytes + few_bytes < r.counted.needs)
            add("its launcher says " + decimal(r.counted.needs, 0) + " bytes, it touches " +
                decimal(r.counted.traffic.memory_bytes, 0));
        for (const auto& [arch, kernels] : compiled) {
            const auto k = kernels.find(r.kernel);
            if (k == kernels.end()) add("ptxas does not know it (sm_" + arch + ")");
            else if (k->second.spilled) add(std::to_string(k->second.spilled) + " bytes spilled (sm_" + arch + ")");
            else if (arch != "75" && narrowed(r, k->second))   // there, kernels on tensor cores are never started
                add("accesses of 16 bytes are more than one instruction each in its PTX (sm_" + arch + ")");
        }
    }
    for (const auto& [kernel, contract] : contracts) {
        const std::string at = contract.file + ":" + std::to_string(contract.line) + ": " + kernel + ": ";
        const auto is = [&kernel = kernel](const Row& r) { return without_arguments(r.kernel) == kernel; };
        if (std::none_of(rows.begin(), rows.end(), is)) wrong.push_back(at + "no row: add a launch to dev/kernel_report/cases.cu");
        else
            for (const auto& [name, reason] : contract.reasons)
                if (!argued[kernel].count(name)) wrong.push_back(at + "argues `" + name + ": " + reason + "`, which no row needs");
        for (const auto& [name, reason] : contract.of_all)
            if (argued[contract.file].emplace(name, true).second)
                wrong.push_back(contract.file + ":1: argues `" + name + ": " + reason + "`, which no kernel of it needs");
    }
    return wrong;
}

}  // namespace baretrain::kernel_report
