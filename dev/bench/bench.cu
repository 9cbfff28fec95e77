// bench.cu - how near a training step is to its own matrix products and to the machine: `make bench`.
// Words pick: names of rows (4x128-B12-T64), types (fp32, bf16), pairs=N (at least), seconds=S (at most, a row), cpu
// (CPU time instead of the wall clock: for one thread on a machine that others use).
// The tables are Markdown. A pair is a step and, right after it, its own products alone and one big product; medians of
// pairs. Pairs in which others took more than 3 % of the machine are dropped; 0 (N): all were, and are shown.
#define BT_NO_MAIN
#include "train_gpt.cu"
#include "dev/bench/bench.h"

namespace baretrain::bench {

struct Options {
    std::vector<std::string> names, types;
    long pairs = 5;
    double seconds = 40;
    bool cpu = false;
};

inline std::string share(double part, double whole) { return whole > 0 ? format("%.2f", part / whole) : "-"; }

// ---- what the machine can do ----------------------------------------------------------------------------------------
template <class T> struct Operand {
    Buffer memory;
    View<T> v;
    Operand(long rows, long cols)
        : memory(size_t(rows * cols) * sizeof(T)), v(static_cast<T*>(memory.data()), rows, cols) {
        for (long i = 0; i < rows * cols; ++i) v.data[i] = T(float(i % 7) - 3);
    }
};

// One big plain product, 1024 x 768 x 3072.
template <class T> class BigProduct {
public:
    // Operations a second.
    double rate(bool cpu) {
        const double since = seconds(cpu);
        for (int i = 0; i < 4; ++i) matmul(matmul_, device_, y_.v, a_.v, b_.v);
        return 4 * 2.0 * 1024 * 768 * 3072 / (seconds(cpu) - since);
    }
private:
    Device device_;
    Matmul matmul_{device_};
    Operand<T> a_{1024, 768}, b_{768, 3072}, y_{1024, 3072};
};

// w, m and v are read and written, g is read: the traffic of AdamW with next to no arithmetic.
__global__ inline void stream_kernel(float* w, float* m, float* v, const float* g, long n) {
    const auto [begin, end] = block_span(n);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) w[i] -= g[i], m[i] += g[i], v[i] -= g[i];
}
// Bytes a second.
inline double memory_rate(bool cpu) {
    const long n = 32 << 20;
    Device d;
    Operand<float> w(1, n), m(1, n), v(1, n), g(1, n);
    std::vector<double> rates;
    for (int i = 0; i < 7; ++i) {
        const double since = seconds(cpu);
        launch(d, Grid::spans(n, 1 << 16), stream_kernel, w.v.data, m.v.data, v.v.data, g.v.data, n);
        rates.push_back(7.0 * sizeof(float) * double(n) / (seconds(cpu) - since));
    }
    return median(rates);
}

// ---- the same products by each engine ------------------------------------------------------------------------------
// Those of one step of GPT-2 124M at B4 T64, each shape once, in float: operations a second, medians of three.
template <class Engine> double engine_rate(Engine& engine, Device& d, bool cpu) {
    double flops = 0, all = 0;
    const auto time = [&](long M, long N, long K, bool transpose_a, bool transpose_b) {
        const Operand<float> a(transpose_a ? K : M, transpose_a ? M : K), b(transpose_b ? N : K, transpose_b ? K : N);
        const Operand<float> y(M, N);
        const Product<float, float> p{y.v, a.v, b.v, {}, {transpose_a, transpose_b}, M, N, K};
        std::vector<double> times;
        for (int i = 0; i < 4; ++i) {                  // the first one is for caches and preparations
            const double since = seconds(cpu);
            if (!engine.multiply(d, p)) fail("bench: product " + p.shape() + " was declined");
            if (i > 0) times.push_back(seconds(cpu) - since);
        }
        all += median(times), flops += 2.0 * double(M) * double(N) * double(K);
    };
    const long rows = 256, layers[4][2] = {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}};
    for (const auto& [in, out] : layers) {
        time(rows, out, in, false, false);             // forward
        time(rows, in, out, false, true);              // gradient of the input
        time(in, out, rows, true, false);              // gradient of the weight
    }
    time(rows, 50257, 768, false, true), time(rows, 768, 50257, false, false), time(50257, 768, rows, true, false);
    return flops / all;
}
struct PlainLoops {
    static constexpr bool found = true;
    static std::string name() { return "plain loops"; }
    bool multiply(Device& d, const Product<float, float>& p) { return plain_matmul(d, p), true; }
};
inline void print_engines(bool cpu) {
    std::printf("\n| float products of 124M-B4-T64 by | GFLOP/s | / oneDNN |\n|---|---|---|\n");
    double first = 0;
    const auto row = [&]<class Engine>(Engine&& engine) {
        Device d;
        if (!Engine::found) return;
        const double rate = engine_rate(engine, d, cpu);
        if (OneDnn::found && first == 0) first = rate;
        std::printf("| %s | %.0f | %s |\n", Engine::name().c_str(), rate / 1e9, share(rate, first).c_str());
    };
    row(OneDnn()), row(Cblas()), row(PlainLoops());
}

// ---- one row --------------------------------------------------------------------------------------------------------
struct Pairs {
    std::vector<double> step, products, big;           // seconds, seconds, operations a second
    std::map<std::string, Phase> phases;               // of all steps
    long steps = 0;
};
struct Measured : Pairs {
    long clean = 0, dropped = 0;                       // none clean: these are the disturbed ones
    double flops = 0, tokens = 0;
    size_t peak = 0, planned = 0;

    double ratio() const { return median(products) / median(step); }
    double rate() const { return flops / median(products); }
};

// Several steps, where one is short, their products, and the big product. False: others took part of the machine.
template <class T>
bool measure_pair(Pairs& clean, Pairs& disturbed, Trainer<T>& t, const std::vector<Rows>& micros, long repeat,
                  const Options& o) {
    BigProduct<T> big;
    big.rate(o.cpu);
    const Disturbance others;
    std::map<std::string, Phase> phases;
    double step = 0, products = 0;
    for (long i = 0; i < repeat; ++i) {
        {
            const Phases watch(t.device, false, o.cpu);
            const double since = seconds(o.cpu);
            train_step(t, micros);
            step += seconds(o.cpu) - since;
            for (const auto& [name, phase] : watch.by_operation()) phases[name].add(phase);
        }
        const TinyIsZero fast(t.device.team);
        const Phases replay(t.device, true, o.cpu);
        train_step(t, micros);
        products += replay.products().seconds;
    }
    const double rate = big.rate(o.cpu);
    const bool alone = o.cpu || others.share() <= 0.03;
    Pairs& all = alone ? clean : disturbed;
    all.step.push_back(step / double(repeat)), all.products.push_back(products / double(repeat));
    all.big.push_back(rate);
    for (const auto& [name, phase] : phases) all.phases[name].add(phase);
    all.steps += repeat;
    return alone;
}

template <class T> Measured measure(const Config& config, const Options& o) {
    const double begin = seconds(false);
    trim_heap();
    const Params params(config.shape);
    const std::vector<Rows> micros = random_rows(config);
    Measured all;
    const Plan plan = plan_of<T>(config, params);
    all.planned = plan.peak, all.flops = plan.matmul_flops, all.tokens = double(config.tokens_per_step);
    Arena arena(all.planned);
    Trainer<T> t(config, params, arena);
    t.optimizer.initialise(t.device, 1);
    {
        MemoryPeak memory(t.device);
        train_step(t, micros);
        all.peak = size_t(memory.bytes);
    }
    const double warm = seconds(o.cpu);
    train_step(t, micros);
    const long repeat = std::max(1L, long(0.4 / (seconds(o.cpu) - warm)));
    Pairs clean, disturbed;
    do ++(measure_pair(clean, disturbed, t, micros, repeat, o) ? all.clean : all.dropped);
    while (all.clean < o.pairs && seconds(false) - begin < o.seconds);
    static_cast<Pairs&>(all) = all.clean ? clean : disturbed;
    return all;
}

// ---- the tables -----------------------------------------------------------------------------------------------------
inline void print_header() {
    std::printf("\n| model | type | step ms | tokens/s | own products ms | GFLOP/s | / step | target | / one big product "
                "| memory MB | plan MB | pairs (dropped) |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
}
inline void print_row(const std::string& name, const std::string& type, const Measured& m, double target) {
    const double step = median(m.step);
    std::printf("| %s | %s | %.1f | %.0f | %.1f | %.0f | %.3f | %s | %.2f | %.0f | %.0f | %ld (%ld) |\n", name.c_str(),
                type.c_str(), 1e3 * step, m.tokens / step, 1e3 * median(m.products), m.rate() / 1e9, m.ratio(),
                target > 0 ? format("%.2f", target).c_str() : "-", m.rate() / median(m.big), double(m.peak) / 1e6,
                double(m.planned) / 1e6, m.clean, m.dropped);
    std::fflush(stdout);
}

// Rates are compared with the step's own products, or with a loop that only moves memory.
inline void print_phases(const std::string& title, const Measured& m, double memory) {
    std::printf("\n%s\n\n| operation | %% of the step | ms | GFLOP/s | / own products | GB/s | / memory loop | calls |\n"
                "|---|---|---|---|---|---|---|---|\n", title.c_str());
    double all = 0, step = 0;
    for (const double s : m.step) step += s / double(m.step.size());
    for (const auto& [name, p] : m.phases) {
        const double s = p.seconds / double(m.steps), flops = p.flops / p.seconds, bytes = p.bytes / p.seconds;
        all += s;
        std::printf("| %s | %.1f | %.2f | %s | %s | %.1f | %s | %ld |\n", name.c_str(), 100 * s / step, 1e3 * s,
                    p.flops > 0 ? format("%.0f", flops / 1e9).c_str() : "-", p.flops > 0 ? share(flops, m.rate()).c_str() : "-",
                    bytes / 1e9, share(bytes, memory).c_str(), p.calls / m.steps);
    }
    std::printf("| between them | %.1f | %.2f | - | - | - | - | - |\n", 100 * (1 - all / step), 1e3 * (step - all));
}

inline Options options_of(int argc, char** argv) {
    Options o;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const bool name = std::any_of(std::begin(cases), std::end(cases), [&](const Case& c) { return c.name == word; });
        if (name) o.names.push_back(word);
        else if (word == "fp32" || word == "bf16") o.types.push_back(word);
        else if (word == "cpu") o.cpu = true;
        else if (word.starts_with("pairs=")) o.pairs = std::stol(word.substr(6));
        else if (word.starts_with("seconds=")) o.seconds = std::stod(word.substr(8));
        else {
            std::string known;
            for (const Case& c : cases) known += std::string(c.name) + " ";
            throw Usage("bench: ", word, ": expected one of ", known, "fp32 bf16 cpu pairs=N seconds=S");
        }
    }
    return o;
}
inline bool wanted(const std::vector<std::string>& words, const std::string& word) {
    return words.empty() || std::count(words.begin(), words.end(), word);
}

inline void run(const Options& o) {
    const std::time_t now = std::time(nullptr);
    char date[32];
    std::strftime(date, sizeof date, "%Y-%m-%d", std::localtime(&now));
    std::printf("%s, %s, %d threads%s, %s, %s, commit %s\n", date, cpu_model().c_str(), default_team(),
                o.cpu ? " (CPU time)" : "", compiler().c_str(), Matmul::engine().c_str(), commit().c_str());
    const double memory = memory_rate(o.cpu);
    std::printf("a loop that moves memory as AdamW does: %.1f GB/s\n", memory / 1e9);
    struct Done { std::string title; Measured m; };
    std::vector<Done> done;
    print_header();
    for (const Case& c : cases)
        for (const std::string type : {"fp32", "bf16"}) {
            if (!wanted(o.names, c.name) || !wanted(o.types, type)) continue;
            const Config config = config_of(c, type);
            with_type(type, [&](auto t) {
                done.push_back({std::string(c.name) + " " + type, measure<decltype(t)>(config, o)});
                return 0;
            });
            print_row(c.name, type, done.back().m, c.target[type == "bf16"]);
        }
    if (o.names.empty() && o.types.empty()) print_engines(o.cpu);
    for (const Done& d : done) print_phases(d.title, d.m, memory);
}

}  // namespace baretrain::bench

int main(int argc, char** argv) {
    try {
        baretrain::bench::run(baretrain::bench::options_of(argc, argv));
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
