// onednn.h - float and bf16 products by oneDNN's matmul primitive on plain strided layouts; 2.6 and 3.x.
// Copy with: kernels/matmul/plain.h and what it names; links dnnl
// One primitive for each combination of shape, strides, types and options, made on first use (about 1 ms) and kept. A
// product for which oneDNN has only its slow reference code is declined; the caller takes another way.
#pragma once
#include "kernels/matmul/plain.h"
#if defined(BT_ONEDNN) && !defined(BT_SIMT) && !defined(__CUDACC__)
#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace baretrain {

// oneDNN takes the calling thread's OpenMP setting; it is put back afterwards.
class TeamScope {
public:
#if defined(_OPENMP)
    explicit TeamScope(int team) : before_(omp_get_max_threads()) { if (team != before_) omp_set_num_threads(team); }
    ~TeamScope() { if (before_ != omp_get_max_threads()) omp_set_num_threads(before_); }
    TeamScope(const TeamScope&) = delete;
private:
    int before_;
#else
    explicit TeamScope(int) {}
#endif
};

class OneDnn {
public:
    static constexpr bool found = true;
    static std::string name() {
        const dnnl_version_t* v = dnnl_version();
        return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
    }
    // Without bf16 instructions oneDNN emulates them. Intel's, but for AMX, are no faster than those for float, and
    // oneDNN's code for them is slower (one core: 80 GFLOP/s, float 150). Never decided by a clock: bits depend on it.
    static bool fast_bf16() {
        const auto has = [have = int(dnnl::get_effective_cpu_isa())](dnnl::cpu_isa isa) {
            return (have & int(isa)) == int(isa);
        };
        return has(dnnl::cpu_isa::avx512_core_amx) || (has(dnnl::cpu_isa::avx512_core_bf16) && !intel());
    }
    static bool intel() {
#if defined(__x86_64__)
        return __builtin_cpu_is("intel");
#else
        return false;
#endif
    }

    explicit OneDnn(bool bf16 = fast_bf16()) : bf16_(bf16) {}

    // False: declined, nothing was touched.
    template <class Out, class In> bool multiply(Device& d, const Product<Out, In>& p) {
        if (std::is_same_v<In, bf16> && !bf16_) return false;
        const TeamScope team(d.team);
        try {
            const Key key{p.M, p.N, p.K, p.a.stride, p.b.stride, p.y.stride,
                          p.o.transpose_a | p.o.transpose_b << 1 | p.add() << 2 | !p.bias.empty() << 3 |
                              std::is_same_v<In, bf16> << 4 | std::is_same_v<Out, bf16> << 5 | long(d.team) << 6};
            const auto found = plans_.find(key);
            Plan& plan = found != plans_.end() ? found->second : plans_.emplace(key, make(p)).first->second;
            if (!plan.multiply) return false;
            run(plan, p);
            return true;
        } catch (const dnnl::error& e) {
            fail("matmul " + p.shape() + ": oneDNN: " + e.what());
        }
    }

private:
    using Key = std::array<long, 7>;
    struct Plan {
        dnnl::primitive multiply;                      // empty: declined
        dnnl::memory a, b, bias, y;
    };
    using Desc = dnnl::memory::desc;

    template <class T> static Desc desc(long rows, long cols, long stride, bool transposed) {
        const auto type = std::is_same_v<T, bf16> ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
        return Desc({rows, cols}, type, transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1});
    }

    static bool is(const dnnl::matmul::primitive_desc& pd, const char* kind) {
        return std::string(pd.impl_info_str()).rfind(kind, 0) == 0;
    }

    template <class Out, class In> Plan make(const Product<Out, In>& p) {
        const Desc a = desc<In>(p.M, p.K, p.a.stride, p.o.transpose_a);
        const Desc b = desc<In>(p.K, p.N, p.b.stride, p.o.transpose_b);
        const Desc y = desc<Out>(p.M, p.N, p.y.stride, false);
        const Desc bias = p.bias.empty() ? Desc() : desc<In>(1, p.N, p.N, false);
        dnnl::primitive_attr attributes;
        if (p.add()) {
            dnnl::post_ops sum;
            sum.append_sum(1.f);
            attributes.set_post_ops(sum);
        }
#if DNNL_VERSION_MAJOR >= 3
        const dnnl::matmul::primitive_desc pd(engine_, a, b, bias, y, attributes, true);
#else
        const dnnl::matmul::desc operation(a, b, bias, y);   // pd points to it
        dnnl::matmul::primitive_desc pd(operation, attributes, engine_, true);
        // Its first choice does not copy its operands: half as fast where rows of b are a multiple of 4 KB apart.
        while (pd && intel() && std::is_same_v<In, float> && is(pd, "brg") && pd.next_impl()) {}
#endif
        if (!pd || is(pd, "ref")) return {};
        Plan plan{dnnl::matmul(pd), {a, engine_, nullptr}, {b, engine_, nullptr}, {}, {y, engine_, nullptr}};
        if (!p.bias.empty()) plan.bias = {bias, engine_, nullptr};
        return plan;
    }

    // The C call: the C++ one would build a hash table for each product.
    template <class Out, class In> void run(Plan& plan, const Product<Out, In>& p) {
        const auto point = [](dnnl::memory& m, const void* data) {
            m.set_data_handle(const_cast<void*>(data));
            return m.get();
        };
        dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, point(plan.a, p.a.data)}, {DNNL_ARG_WEIGHTS, point(plan.b, p.b.data)},
                                   {DNNL_ARG_DST, point(plan.y, p.y.data)}, {}};
        const int count = p.bias.empty() ? 3 : 4;
        if (count == 4) args[3] = {DNNL_ARG_BIAS, point(plan.bias, p.bias.data)};
        dnnl::error::wrap_c_api(dnnl_primitive_execute(plan.multiply.get(), stream_.get(), count, args), "it failed");
        stream_.wait();
    }

    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream_{engine_};
    bool bf16_;
    std::map<Key, Plan> plans_;
};

}  // namespace baretrain
#else
namespace baretrain { using OneDnn = NoEngine; }
#endif
