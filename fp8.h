// fp8.h - matrix products in FP8: each factor scaled by its largest numbers, rounded, multiplied, scaled back.
// Copy with: comm.h, kernels/fp8.h, kernels/matmul.h, params.h and what they name
//                 forward y = x w^T       input's gradient dy w       weight's gradient dy^T x
//   numbers       E4M3 by E4M3            E5M2 by E4M3                E5M2 by E4M3, sums and result in float
//   tensorwise    one scale for each of the two factors
//   rowwise       a scale for each row of x and each output of w; each row of dy and each input of w; each column of dy
//                 and of x: never along what is summed
// (Micikevicius et al. 2022.) Scales are made of the numbers that are multiplied, when they are (current scaling). On a
// GPU with FP8 units their codes are multiplied (compiled and emulated, not yet run there); elsewhere the same rounded
// numbers as bf16 with sums in float, which gives what an FP8 unit gives, at bf16's speed: a CPU's loss is FP8's. With
// tp the largest number is looked for on all ranks that have a part of what a scale is for: so the same numbers are
// rounded to the same ones on any number of ranks where a rank's sizes divide by 16.
#pragma once
#include "comm.h"
#include "kernels/fp8.h"
#include "kernels/matmul.h"
#include "params.h"

namespace baretrain {

// Which dimension of a factor lies in parts on the ranks of tp: none, the one that is left, the one that is summed.
enum class Cut { none, kept, summed };
// amax: (1, 1), of x before it was rounded: x has E4M3 numbers already; empty: it has not.
struct Fp8Factor { View<const bf16> x; Cut cut; View<const float> amax = {}; };

// The largest |x|: one number, or one for each row or column.
template <class Context>
View<const float> amax_of(Context& c, Scratch& s, const Fp8Factor& f, Along along, Fp8 recipe) {
    if (!f.amax.empty()) return f.amax;
    const bool one = recipe == Fp8::tensorwise;
    const auto most = s.take<float>(1, one ? 1 : along == Along::rows ? f.x.rows : f.x.cols);
    if (!one) amax<bf16>(c.device, most, f.x, along);
    else {
        Scratch of_rows(c.scratch);
        const auto each = of_rows.take<float>(1, f.x.rows);
        amax<bf16>(c.device, each, f.x, Along::rows);
        amax<float>(c.device, most, View<const float>(each), Along::rows);
    }
    if (f.cut == Cut::summed || (f.cut == Cut::kept && one)) c.comm.await(c.comm.max(Axis::tp, most, {"amax"}));
    return most;
}
template <class F> struct Rounded { View<const bf16> x; View<const float> amax; };
template <class F, class Context>
Rounded<F> rounded(Context& c, Scratch& s, const Fp8Factor& f, Along along, Fp8 recipe) {
    if (!f.amax.empty()) return {f.x, f.amax};
    const auto q = s.take<bf16>(f.x.rows, f.x.cols);
    const View<const float> most = amax_of(c, s, f, along, recipe);
    quantize<F, bf16>(c.device, q, f.x, most, along);
    return {q, most};
}
// As cuBLASLt wants it: along its rows is summed. turned: it lies the other way.
template <class F, class Context>
Fp8Rows encoded(Context& c, Scratch& s, const Fp8Factor& f, bool turned, Fp8 recipe) {
    const Along along = turned ? Along::columns : Along::rows;
    const auto codes = turned ? s.take<uint8_t>(f.x.cols, f.x.rows) : s.take<uint8_t>(f.x.rows, f.x.cols);
    const View<const float> most = amax_of(c, s, f, along, recipe), none;
    const auto unit = s.take<float>(1, most.cols);
    encode<F, bf16>(c.device, codes, f.x, f.amax.empty() ? most : none, along, turned ? Turned::yes : Turned::no);
    units<F>(c.device, unit, most);
    return {codes, unit, std::is_same_v<F, E5m2>};
}

// y = or += op(a) op(b) + bias, a rounded to FA, b to FB. Context: has a device, products, scratch and a comm.
template <class FA, class FB, class Out, class Context>
void fp8_matmul(Context& c, View<Out> y, const Fp8Factor& a, const Fp8Factor& b, View<const bf16> bias, MatmulOptions o,
                Fp8 recipe) {
    Scratch s(c.scratch);
    if (Matmul::has_fp8(c.device, recipe == Fp8::rowwise)) {   // needs less scratch than what follows, which is planned
        Scratch codes(c.scratch);
        const Fp8Rows qa = encoded<FA>(c, codes, a, o.transpose_a, recipe);
        const Fp8Rows qb = encoded<FB>(c, codes, b, !o.transpose_b, recipe);
        if (c.matmul.multiply(c.device, Fp8Product<Out>{y, qa, qb, bias, o.write})) return;
    }
    const auto qa = rounded<FA>(c, s, a, o.transpose_a ? Along::columns : Along::rows, recipe);
    const auto qb = rounded<FB>(c, s, b, o.transpose_b ? Along::rows : Along::columns, recipe);
    const auto product = s.take<float>(y.rows, y.cols);
    const Write write = std::exchange(o.write, Write::over);
    matmul<float, bf16>(c.matmul, c.device, product, qa.x, qb.x, {}, o);
    unscale<FA, FB, Out, bf16>(c.device, y, product, {qa.amax, qb.amax}, bias, write);
}

// ---- the three products of a linear layer ---------------------------------------------------------------------------
template <class Context> void fp8_forward(Context& c, View<bf16> y, View<const bf16> x, const Linear<bf16>& w) {
    const bool parts = w.share == Share::inputs;       // a rank of tp has some inputs only
    fp8_matmul<E4m3, E4m3, bf16>(c, y, {x, parts ? Cut::summed : Cut::none},
                                 {w.w, parts ? Cut::summed : Cut::kept, w.amax},
                                 w.b, {.transpose_b = !w.transposed}, w.fp8);
}
template <class Context>
void fp8_backward_input(Context& c, View<bf16> dx, View<const bf16> dy, const Linear<bf16>& w) {
    const bool parts = w.share == Share::outputs;
    fp8_matmul<E5m2, E4m3, bf16>(c, dx, {dy, parts ? Cut::summed : Cut::none},
                                 {w.w, parts ? Cut::summed : Cut::kept, w.amax}, {},
                                 {.transpose_b = w.transposed}, w.fp8);
}
template <class Context>
void fp8_backward_weight(Context& c, const Linear<float>& g, View<const bf16> dy, View<const bf16> x, Write write) {
    const Fp8Factor of_dy{dy, g.share == Share::outputs ? Cut::kept : Cut::none},
                    of_x{x, g.share == Share::inputs ? Cut::kept : Cut::none};
    const MatmulOptions o{.transpose_a = true, .write = write};
    if (g.transposed) fp8_matmul<E4m3, E5m2, float>(c, g.w, of_x, of_dy, {}, o, g.fp8);
    else fp8_matmul<E5m2, E4m3, float>(c, g.w, of_dy, of_x, {}, o, g.fp8);
}

}  // namespace baretrain
