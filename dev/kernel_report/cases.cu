// cases.cu - every launcher once, at given sizes: planned on a dry device, or counted thread for thread.
// The report's SIMT build runs this file, and nvcc compiles it for registers and shared memory.
#include "dev/kernel_report/cases.h"
#include "kernels/adamw.h"
#include "kernels/loss.h"
#include "kernels/norm.h"

namespace baretrain::kernel_report {
namespace {

using T = bf16;
using R = Real<T>;

// Buffers one behind the other. Of a plan: addresses that nobody touches.
class Arena {
public:
    Arena(char* base, unsigned long bytes) : base_(base), bytes_(bytes) {}
    template <class V> View<V> make(long rows, long cols) {
        const unsigned long at = used_;
        used_ += (size_t(rows * cols) * sizeof(V) + 511) / 256 * 256;   // a gap, so that no two share a sector
        require(!base_ || used_ <= bytes_, "kernel report: the arena is too small");
        return {reinterpret_cast<V*>((base_ ? base_ : reinterpret_cast<char*>(256)) + at), rows, cols};
    }
    // at(i) for each of n.
    template <class V, class At> View<V> make_row(long n, At at) {
        const View<V> v = make<V>(1, n);
        for (long i = 0; base_ && i < n; ++i) v.data[i] = V(at(i));
        return v;
    }
    template <class V> View<const V> filled(long rows, long cols) {
        View<V> v = make_row<V>(rows * cols, [](long i) { return float(i % 7) * 0.25f - 0.5f; });
        return View<V>(v.data, rows, cols);
    }
private:
    char* base_;
    unsigned long bytes_, used_ = 0;
};

// Writes down each launch; on a device that is not dry, counts it too.
class Recorder : public Watch {
public:
    std::vector<Launch> launches;
    Recorder(char* arena, unsigned long bytes) : arena_(arena), bytes_(bytes) {}
    void begin(const Work& work) override { needs_ = work.bytes; }
    void launched(const Spread& s) override {
        launches.push_back({s.kernel, s.blocks, s.threads, s.shared_bytes, needs_, {}});
#if defined(BT_COUNTED)
        if (arena_) start_counting(arena_, bytes_, &blockIdx.x, simt::yield);
#endif
    }
    void end() override {
#if defined(BT_COUNTED)
        if (arena_) launches.back().traffic = stop_counting();
#endif
    }
private:
    char* arena_;
    unsigned long bytes_;
    double needs_ = 0;
};

struct Context {
    Device& d;
    Arena& a;
    const Sizes& s;
};

void norms(Context c) {
    const auto& [d, a, s] = c;
    const View<const T> x = a.filled<T>(s.N, s.C), dy = a.filled<T>(s.N, s.C);
    const NormWeights<T> n{a.filled<T>(1, s.C), a.filled<T>(1, s.C), 1e-5f};
    const View<R> stats = a.make<R>(s.N, 2);
    norm_forward(d, a.make<T>(s.N, s.C), stats, x, n);
    norm_backward_input<T>(d, NormInputGrad<T>(a.make<T>(s.N, s.C)), dy, x, stats, n);
    norm_backward_weight<T>(d, {a.make<R>(1, s.C), a.make<R>(1, s.C), Write::add}, dy, x, stats,
                            a.make<R>(2 * column_sum_parts(s.N), s.C));
}

void losses(Context c) {
    const auto& [d, a, s] = c;
    const View<int> targets = a.make_row<int>(s.head, [&](long i) { return i * 997 % s.V; });
    cross_entropy<T>(d, a.make<T>(s.head, s.V), a.make<R>(1, s.head), a.filled<R>(s.head, s.V), targets, R(-0.5));
}

void optimizer(Context c) {
    const auto& [d, a, s] = c;
    const long n = s.parameters;
    const View<StepState> state = a.make_row<StepState>(1, [](long) {
        return StepState{1e-3, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001, 1, 1, 1, 1, 0, 1, 1, 1};
    });
    const AdamSpan<T> span{a.make<T>(1, n).data, a.make<R>(1, n).data, a.make<R>(1, n).data, a.make<R>(1, n).data,
                           a.filled<R>(1, n).data, n, R(1), R(1)};
    adamw(d, span, View<const StepState>(state));
}

}  // namespace

std::vector<Launch> run_cases(const Sizes& s, char* memory, unsigned long bytes) {
    Recorder recorder(memory, bytes);
    Device d;
    d.dry = !memory;
    d.watch = &recorder;
    for (const auto run : {norms, losses, optimizer}) {
        Arena arena(memory, bytes);
        run({d, arena, s});
    }
    return recorder.launches;
}

}  // namespace baretrain::kernel_report
