// bench.h - what `make bench` measures: the models, a step piece by piece, its matrix products alone, and disturbance.
// Copy with: train_gpt.cu and what it names
// "Own products" are the linear layers and the head. They are timed by a replay: the same step is run again with a
// device that is dry but for them, so shapes, buffers, library calls and their order are those of the step.
#pragma once
#include "commands.h"
#include <fstream>
#include <map>
#include <sstream>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace baretrain::bench {

// ---- the models -----------------------------------------------------------------------------------------------------
struct Case {
    const char* name;
    const char* flags;
    double target[2];                                  // own products / step that is wanted, fp32 and bf16; 0: none
};
inline const Case cases[] = {
    {"124M-B4-T64", "--model gpt2-124m --batch 4 --seq 64", {0.87, 0.82}},
    {"124M-B4-T256", "--model gpt2-124m --batch 4 --seq 256", {0.90, 0.85}},
    {"124M-B1-T1024", "--model gpt2-124m --batch 1 --seq 1024", {0.85, 0.76}},
    {"llama-110M-B4-T256", "--family llama --layers 12 --dim 768 --heads 12 --kv-heads 12 --ffn 2048 --vocab 32000 "
                           "--tokenizer none --batch 4 --seq 256", {0, 0}},
    {"6x384-B8-T256", "--family gpt2 --layers 6 --dim 384 --heads 6 --kv-heads 6 --ffn 1536 --vocab 65 "
                      "--tokenizer none --batch 8 --seq 256", {0.82, 0.75}},
    {"4x128-B12-T64", "--family gpt2 --layers 4 --dim 128 --heads 4 --kv-heads 4 --ffn 512 --vocab 65 "
                      "--tokenizer none --batch 12 --seq 64", {0.75, 0.60}},
};

inline Config config_of(const Case& c, const std::string& dtype) {
    std::vector<std::string> words{"train_gpt", "plan", "--dtype", dtype};
    std::istringstream flags(c.flags);
    for (std::string word; flags >> word;) words.push_back(word);
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    Config config = parse(int(argv.size()), argv.data()).config;
    config.tokens_per_step = config.batch * config.seq;
    return config;
}

// One micro-batch of random tokens.
inline std::vector<Rows> random_rows(const Config& c) {
    Rows rows{{}, {}, {}, {0}};
    for (long i = 0; i < c.batch * c.seq; ++i) {
        rows.tokens.push_back(int(philox(7, Stream::test, 0, uint64_t(i)).v[0] % uint32_t(c.shape.vocab)));
        rows.positions.push_back(int(i % c.seq));
        if ((i + 1) % c.seq == 0) rows.documents.push_back(int(i + 1));
    }
    rows.targets = rows.tokens;
    std::rotate(rows.targets.begin(), rows.targets.begin() + 1, rows.targets.end());
    return {rows};
}

// ---- a step, piece by piece -----------------------------------------------------------------------------------------
// The time of a neighbour is in the wall clock, not in the CPU time of this process; with a team that is no time at all.
inline double seconds(bool cpu_time) {
    timespec t;
    clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

inline bool is_own_product(const std::string& operation) {
    static const char* const own[] = {"linear_forward", "linear_backward_input", "linear_backward_weight",
                                      "for_each_logits"};
    return std::count(std::begin(own), std::end(own), operation) > 0;
}

struct Phase {
    std::string name;                                  // operation() of its work
    bool product = false;
    double seconds = 0, bytes = 0, flops = 0;
    long calls = 0;
    void add(const Phase& p) {
        name = p.name, product = p.product;
        seconds += p.seconds, bytes += p.bytes, flops += p.flops, calls += p.calls;
    }
};

// Adds up the outermost pieces of a step by the function that started them. only_products: nothing else runs.
class Phases final : public Watch {
public:
    Phases(Device& d, bool only_products, bool cpu_time = false)
        : device_(d), dry_(d.dry), only_products_(only_products), cpu_time_(cpu_time) {
        d.watch = this;
        d.dry = dry_ || only_products;
    }
    ~Phases() { device_.watch = nullptr, device_.dry = dry_; }
    void begin(const Work& w) override {
        if (depth_++) return;
        const auto [found, fresh] = phases_.try_emplace(w.where.function_name());
        now_ = &found->second;
        if (fresh) now_->name = operation(w), now_->product = is_own_product(now_->name);
        now_->bytes += w.bytes, now_->flops += w.flops, ++now_->calls;
        device_.dry = dry_ || (only_products_ && !now_->product);
        since_ = bench::seconds(cpu_time_);
    }
    void end() override {
        if (--depth_) return;
        now_->seconds += bench::seconds(cpu_time_) - since_;
        device_.dry = dry_ || only_products_;
    }
    std::map<std::string, Phase> by_operation() const {
        std::map<std::string, Phase> all;
        for (const auto& [function, phase] : phases_) all[phase.name].add(phase);
        return all;
    }
    Phase products() const {
        Phase all;
        for (const auto& [function, phase] : phases_)
            if (phase.product) all.add(phase);
        return all;
    }
private:
    Device& device_;
    bool dry_, only_products_, cpu_time_;
    std::map<const char*, Phase> phases_;
    Phase* now_ = nullptr;
    int depth_ = 0;
    double since_ = 0;
};

// Numbers below 1e-38 count as 0 while this lives. A replay multiplies what it has not computed: bits of another type,
// many of them such numbers, for which a CPU takes a hundred times as long; a step has none.
class TinyIsZero {
public:
    explicit TinyIsZero(int team) : team_(team) { set(true); }
    ~TinyIsZero() { set(false); }
    TinyIsZero(const TinyIsZero&) = delete;
private:
    void set([[maybe_unused]] bool on) const {
#if defined(__SSE__)
        #pragma omp parallel num_threads(team_)
        _mm_setcsr(on ? _mm_getcsr() | 0x8040 : _mm_getcsr() & ~0x8040u);
#endif
    }
    [[maybe_unused]] int team_;
};

// ---- the process and the machine ------------------------------------------------------------------------------------
// Free memory goes back to the system: what one row leaves behind is not the next one's.
inline void trim_heap() {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

// The most that was resident at any door of a step.
class MemoryPeak final : public Watch {
public:
    explicit MemoryPeak(Device& d) : device_(d) { d.watch = this; }
    ~MemoryPeak() { device_.watch = nullptr; }
    void begin(const Work&) override { bytes = std::max(bytes, resident_memory()); }
    void end() override { bytes = std::max(bytes, resident_memory()); }
    long bytes = 0;                                    // 0: the system does not say
private:
    Device& device_;
};

// CPU seconds that all of the machine has spent (and that its host has taken away), less those of this process.
inline double seconds_of_others() {
    std::ifstream in("/proc/stat");
    std::string cpu;
    double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, stolen = 0;
    in >> cpu >> user >> nice >> system >> idle >> wait >> irq >> softirq >> stolen;
    return (user + nice + system + irq + softirq + stolen) / double(sysconf(_SC_CLK_TCK)) - seconds(true);
}

// What else ran while something was measured, as a share of the machine.
class Disturbance {
public:
    double share() const {
        const double cores = double(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
        return (seconds_of_others() - others_) / (cores * (seconds(false) - begin_));
    }
private:
    double begin_ = seconds(false), others_ = seconds_of_others();
};

inline double median(std::vector<double> v) {
    if (v.empty()) return 0;
    std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
    return v[v.size() / 2];
}

}  // namespace baretrain::bench
