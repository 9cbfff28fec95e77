// report.cpp - the kernel report: `make kernel-report`. Prints a table, writes build/kernel_report.json.
//   report [--check] HEADER... ARCH...   headers whose kernels must have rows; architectures like 90a, compiled into
//                                        build/kernel_report/ARCH; --check: only what breaks a rule, and `N passed, M failed`
#include "dev/kernel_report/report.h"
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sys/mman.h>

namespace baretrain::kernel_report {
namespace {

std::string name_of(const void* kernel) {
    Dl_info info{};
    if (!dladdr(kernel, &info) || !info.dli_sname) return "?";
    return short_name(info.dli_sname);
}

constexpr unsigned long arena_bytes = 1ul << 30;       // pages come when they are touched
char* new_arena() {
    void* const p = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::runtime_error("no memory for the arena");
    return static_cast<char*>(p);
}

// Planned and counted launches side by side; the same launch of one kernel twice is one row.
std::vector<Row> make_rows(char* arena) {
    const std::vector<Launch> planned = run_cases({}, nullptr, 0);
    const std::vector<Launch> small = run_cases(counted, arena, arena_bytes);
    std::vector<Row> rows;
    for (size_t i = 0; i < planned.size(); ++i) {
        if (i >= small.size() || planned[i].kernel != small[i].kernel)
            throw std::runtime_error("the counted launches are not those that were planned");
        Row row{name_of(planned[i].kernel), planned[i], small[i]};
        const auto same = [&](const Row& r) {
            return r.kernel == row.kernel && r.planned.blocks == planned[i].blocks && r.planned.needs == planned[i].needs;
        };
        if (std::none_of(rows.begin(), rows.end(), same)) rows.push_back(row);
    }
    return rows;
}

struct Fit { long shared, blocks, percent; double waves_small, waves_big; };
Fit fit_of(const Limits& l, const Row& r, const Compiled& c) {
    const long shared = c.shared + long(r.planned.shared_bytes), threads = r.planned.threads;
    const long blocks = resident_blocks(l, threads, c.registers, shared);
    const auto waves = [&](int sms) { return blocks ? double(r.planned.blocks) / double(blocks * sms) : 0; };
    return {shared, blocks, 100 * blocks * round_up(threads, 32) / l.threads, waves(small_gpu), waves(big_gpu)};
}

std::string shortened(const std::string& kernel) { return std::regex_replace(kernel, std::regex("_kernel"), ""); }

std::string text_of(const Sizes& s) {
    std::ostringstream t;
    t << "N=" << s.N << " T=" << s.T << " C=" << s.C << " F=" << s.F << " H=" << s.H << " D=" << s.D << " V=" << s.V << ", "
      << s.head << " rows of logits, " << s.parameters << " parameters, " << s.rows << "x" << s.inner << "x" << s.cols
      << " products, " << s.ranks << " ranks, bf16";
    return t.str();
}

const char* const legend =
    "busy: threads that load or store anything. MB: what the launcher says it must move. Times that, counted: L2, all that passes\n"
    "between L1 and L2 if a block keeps the last 32 KiB that it read; mem, each sector once; all, every access. ld, st: bytes of an\n"
    "access on average. regs, shared (bytes a block), spill (bytes): ptxas. occ: of the threads that an SM can hold; waves on 40, 132 SMs.";

void print_table(const std::vector<Row>& rows, const std::vector<std::string>& archs,
                 const std::map<std::string, Kernels>& compiled) {
    std::printf("launches: %s\ncounted:  %s\n%s\n\n", text_of({}).c_str(), text_of(counted).c_str(), legend);
    std::printf("%-36s %9s %7s %4s %8s %5s %5s %5s %5s %5s  %-6s %4s %6s %6s %6s %4s %7s %7s\n", "kernel", "blocks", "threads", "busy",
                "MB", "L2", "mem", "all", "ld", "st", "arch", "regs", "shared", "spill", "per SM", "occ", "wave 40", "132");
    for (const Row& r : rows) {
        std::printf("%-36s %9u %7u %3.0f%% %8.2f %5.2f %5.2f %5.1f %5.1f %5.1f", shortened(r.kernel).c_str(), r.planned.blocks,
                    r.planned.threads, 100 * r.busy(), r.planned.needs / 1e6, r.l2(), r.memory(), r.touched(), r.load_width(), r.store_width());
        if (archs.empty()) std::printf("\n");
        bool first = true;
        for (const std::string& arch : archs) {
            if (!first) std::printf("%-98s", "");
            first = false;
            std::printf("  sm_%-4s", arch.c_str());
            const auto kernels = compiled.find(arch);
            if (kernels == compiled.end()) { std::printf("skipped\n"); continue; }
            const auto k = kernels->second.find(r.kernel);
            if (k == kernels->second.end()) { std::printf("not compiled\n"); continue; }
            const Compiled& c = k->second;
            const Fit f = fit_of(*limits_of(arch), r, c);
            std::printf("%4ld %6ld %6ld %6ld %3ld%% %7.2f %7.2f\n", c.registers, f.shared, c.spilled, f.blocks, f.percent,
                        f.waves_small, f.waves_big);
        }
    }
}

nlohmann::ordered_json json_of(const std::vector<Row>& rows, const Contracts& contracts,
                               const std::map<std::string, Kernels>& compiled) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Row& r : rows) {
        const Traffic& t = r.counted.traffic;
        nlohmann::ordered_json row = {
            {"kernel", r.kernel}, {"blocks", r.planned.blocks}, {"threads", r.planned.threads},
            {"shared_bytes", r.planned.shared_bytes}, {"needs_bytes", r.planned.needs},
            {"counted", {{"blocks", r.counted.blocks}, {"needs_bytes", r.counted.needs}, {"l2_bytes", t.l2_bytes},
                         {"memory_bytes", t.memory_bytes}, {"load_bytes", t.load_bytes}, {"loads", t.loads},
                         {"store_bytes", t.store_bytes}, {"stores", t.stores}, {"narrow_bytes", t.narrow_bytes}, {"busy_threads", r.busy()}}}};
        if (const auto c = contracts.find(without_arguments(r.kernel)); c != contracts.end())
            row["file"] = c->second.file, row["line"] = c->second.line, row["reasons"] = c->second.reasons;
        for (const auto& [arch, kernels] : compiled)
            if (const auto k = kernels.find(r.kernel); k != kernels.end()) {
                const Fit f = fit_of(*limits_of(arch), r, k->second);
                row["archs"]["sm_" + arch] = {
                    {"registers", k->second.registers}, {"static_shared_bytes", k->second.shared},
                    {"spilled_bytes", k->second.spilled}, {"blocks_per_sm", f.blocks}, {"occupancy_percent", f.percent},
                    {"waves_40", f.waves_small}, {"waves_132", f.waves_big}, {"widest_load", k->second.widest_load},
                    {"widest_store", k->second.widest_store}};
            }
        all.push_back(row);
    }
    return all;
}

int run(int argc, char** argv) {
    bool check = false;
    std::vector<std::string> archs;
    Contracts contracts;
    std::map<std::string, Kernels> compiled;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--check") check = true;
        else if (limits_of(word)) {
            archs.push_back(word);
            std::ifstream log("build/kernel_report/" + word + "/ptxas.log"), ptx("build/kernel_report/" + word + "/cases.ptx");
            if (log) read_ptxas(compiled[word], log);
            if (ptx) read_ptx(compiled[word], ptx);
        } else {
            std::ifstream in(word);
            if (!in) throw std::runtime_error(word + " is neither a header nor an architecture that the report knows");
            read_contracts(contracts, word, in);
        }
    }
    char* const arena = new_arena();
    std::vector<std::string> wrong;
    for (const std::string& what : miscounted(arena, arena_bytes)) wrong.push_back("dev/kernel_report: miscounts " + what);
    const std::vector<Row> rows = make_rows(arena);
    const nlohmann::ordered_json report = {
        {"launches", text_of({})}, {"counted", text_of(counted)}, {"rows", json_of(rows, contracts, compiled)}};
    std::ofstream("build/kernel_report.json") << report.dump(1) << "\n";
    if (!check) {
        print_table(rows, archs, compiled);
        return 0;
    }
    for (const std::string& what : complaints(rows, contracts, compiled)) wrong.push_back(what);
    for (const std::string& line : wrong) std::printf("FAILED  %s\n", line.c_str());
    for (const std::string& arch : archs)
        if (!compiled.count(arch)) std::printf("skipped: sm_%s was not compiled, there is no nvcc\n", arch.c_str());
    const size_t skipped = archs.size() - compiled.size();
    std::printf("%zu passed, %zu failed%s\n", rows.size(), wrong.size(), skipped ? (", " + std::to_string(skipped) + " skipped").c_str() : "");
    return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace baretrain::kernel_report

int main(int argc, char** argv) {
    try {
        return baretrain::kernel_report::run(argc, argv);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "kernel report: %s\n", e.what());
        return 1;
    }
}
