// mma_test.cu - fragments, background copies, and attention on tensor cores (kernels/attention/mma.h), as fibers.
#include "device/warp.h"
#include "test/attention.h"

using namespace baretrain;
using namespace baretrain::test;

namespace {

constexpr long row_stride = 24;                        // of the 16 x 16 matrix in shared memory: 16-byte aligned rows

// Shared element (r, c) is 16 r + c. Lane l gives row l % 8 of the matrix at rows 8 (l / 16), columns 8 (l / 8 % 2).
__global__ void matrices_kernel(uint32_t* y, bool turned) {
    bf16* const s = shared_memory<bf16>();
    for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) s[i / 16 * row_stride + i % 16] = bf16(float(i));
    __syncthreads();
    const bf16* const row = s + (threadIdx.x % 8 + threadIdx.x / 16 * 8) * row_stride + threadIdx.x / 8 % 2 * 8;
    uint32_t x[4];
    if (turned) ldmatrix_trans(x, row);
    else ldmatrix(x, row);
    for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = x[i];
}

// c (16 x 8) = a (16 x 16) b (16 x 8), each lane taking its elements by the formulas of the PTX ISA.
__global__ void product_kernel(float* c, const float* a, const float* b) {
    const int g = threadIdx.x >> 2, t = threadIdx.x % 4;
    float ai[8], bi[4], ci[4] = {};
    for (int i = 0; i < 8; ++i) {
        const int row = i < 2 || (i >= 4 && i < 6) ? g : g + 8, column = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        ai[i] = a[row * 16 + column];
    }
    for (int i = 0; i < 4; ++i) bi[i] = b[(t * 2 + (i & 1) + (i >= 2 ? 8 : 0)) * 8 + g];
    const uint32_t ra[4] = {pack(ai[0], ai[1]), pack(ai[2], ai[3]), pack(ai[4], ai[5]), pack(ai[6], ai[7])};
    mma(ci, ra, pack(bi[0], bi[1]), pack(bi[2], bi[3]));
    mma(ci, ra, pack(bi[0], bi[1]), pack(bi[2], bi[3]));
    for (int i = 0; i < 4; ++i) c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = ci[i];
}

// Two groups, and a copy that belongs to none yet, of zeros. y: what the thread sees after each wait.
__global__ void copies_kernel(float* y, const float* x) {
    float* const s = shared_memory<float>() + 16 * threadIdx.x;
    for (int i = 0; i < 16; ++i) s[i] = -1;
    const auto look = [&](int when) { for (int i = 0; i < 16; ++i) y[(when * 32 + threadIdx.x) * 16 + i] = s[i]; };
    copy_async<16>(s, x), copy_async<4>(s + 4, x + 4);
    look(0);
    commit_copies();
    copy_async<16>(s + 8, x + 8);
    commit_copies();
    copy_async<16>(s + 12, x, false);
    wait_copies<1>(), look(1);
    wait_copies<0>(), look(2);
    commit_copies();
    wait_copies<0>(), look(3);
}

constexpr int kinds = 6;
constexpr int planted_line = __LINE__ + 6;
__global__ void planted_kernel(float* y, int kind) {
    alignas(16) static thread_local float elsewhere[32];
    bf16* const s = shared_memory<bf16>();
    uint32_t x[4] = {};
    float c[4] = {};
    if (kind == 0 && threadIdx.x != 5) mma(c, x, 0, 0);
    if (kind == 1 && threadIdx.x != 5) ldmatrix(x, s);
    if (kind == 2) ldmatrix(x, s + 4);
    if (kind == 3) ldmatrix(x, s + 256);
    if (kind == 4) copy_async<16>(elsewhere, y);
    if (kind == 5) copy_async<16>(s, y + 1);
    __syncwarp();
    y[threadIdx.x] = c[0] + float(x[0]);
}

template <class F> std::string error_of(F f) {
    try { f(); } catch (const Error& e) { return e.what(); }
    return "no error";
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Shape aligned(Shape s) {                               // rows of qkv begin at multiples of 16 bytes
    s.gap = 8;
    return s;
}

// In which file the launches of an attention stand: mma.h or attention.h.
struct Files : Watch {
    std::string seen;
    void begin(const Work& w) override {
        const std::string file = w.where.file_name();
        seen += file.substr(file.rfind('/') + 1) + " ";
    }
    void end() override {}
};

}  // namespace

TEST_SUITE("mma") {

TEST_CASE("every lane and register of ldmatrix holds the element that the table says") {
    Device d;
    for (bool turned : {false, true}) {
        std::vector<uint32_t> y(128);
        launch(d, Grid(1, 32, 16 * row_stride * 2), matrices_kernel, y.data(), turned);
        for (unsigned l = 0; l < 32; ++l)
            for (unsigned i = 0; i < 4; ++i)
                for (unsigned upper = 0; upper < 2; ++upper) {
                    bf16 v;
                    v.bits = uint16_t(y[l * 4 + i] >> 16 * upper);
                    const unsigned r = turned ? l % 4 * 2 + upper : l / 4, c = turned ? l / 4 : l % 4 * 2 + upper;
                    CAPTURE(turned); CAPTURE(l); CAPTURE(i); CAPTURE(upper);
                    CHECK(float(v) == float((i / 2 * 8 + r) * 16 + i % 2 * 8 + c));
                }
    }
}

TEST_CASE("mma adds the product of fragments taken by the formulas of the PTX ISA") {
    Device d;
    std::vector<float> a(256), b(128), c(128);
    for (size_t i = 0; i < 256; ++i) a[i] = float(long(i * 37 % 101) - 50);
    for (size_t i = 0; i < 128; ++i) b[i] = float(long(i * 53 % 89) - 44);
    launch(d, Grid(1, 32), product_kernel, c.data(), a.data(), b.data());
    for (size_t m = 0; m < 16; ++m)
        for (size_t n = 0; n < 8; ++n) {
            float sum = 0;
            for (size_t k = 0; k < 16; ++k) sum += a[m * 16 + k] * b[k * 8 + n];
            CHECK(c[m * 8 + n] == 2 * sum);
        }
}

TEST_CASE("the target of a copy is NaN until its own thread has waited for its group; nothing reads as zero") {
    Device d;
    alignas(16) float x[16];
    for (int i = 0; i < 16; ++i) x[i] = float(i + 1);
    std::vector<float> y(4 * 32 * 16);
    launch(d, Grid(1, 32, 32 * 64), copies_kernel, y.data(), static_cast<const float*>(x));
    for (int when = 0; when < 4; ++when)
        for (int l = 0; l < 32; ++l)
            for (int i = 0; i < 16; ++i) {
                const float v = y[size_t((when * 32 + l) * 16 + i)];
                CAPTURE(when); CAPTURE(i);
                const int arrives = i < 5 ? 1 : i < 12 ? 2 : 3, starts = i < 5 ? 0 : 1;
                if (when < starts || (i >= 5 && i < 8)) CHECK(v == -1);
                else if (when < arrives) CHECK(v != v);
                else CHECK(v == (i < 12 ? x[i] : 0));
            }
}

TEST_CASE("a lane that does not come, an address not aligned or not in shared memory are errors with their line") {
    Device d;
    alignas(16) static float y[64];
    const char* words[kinds] = {"mma: thread", "ldmatrix: thread", "not aligned", "outside", "outside", "aligned"};
    for (int kind = 0; kind < kinds; ++kind) {
        const auto run = [&] { launch(d, Grid(1, 32, 512), planted_kernel, static_cast<float*>(y), kind); };
        const std::string e = error_of(run);
        CHECK_MESSAGE(has(e, words[kind]), e);
        CHECK_MESSAGE(has(e, "mma_test.cu:" + std::to_string(planted_line + kind) + ": "), e);
    }
    CHECK(error_of([&] { launch(d, Grid(1, 32, 512), planted_kernel, static_cast<float*>(y), 9); }) == "no error");
}

TEST_CASE("attention runs on tensor cores for bf16, heads of 64, 96, 128, aligned rows, capability 8.0, whole blocks") {
    const auto files = [](const Shape& s, auto type, int capability, unsigned threads) {
        using T = decltype(type);
        Files watch;
        Device d;
        d.capability = capability, d.threads = threads, d.watch = &watch;
        run<T>(d, s, noise<T>(s.M() * s.width(), 1), noise<T>(s.N() * s.H * s.D, 2), 0.1);
        return watch.seen;
    };
    const std::string plain = "attention.h attention.h attention.h ", fast = "mma.h mma.h mma.h ";
    const Shape s = aligned({{3}, 1, 1, 64});
    Shape odd = s;
    odd.gap = 3;
    for (long D : {64, 96, 128}) CHECK(files(aligned({{3}, 1, 1, D}), bf16(), 80, 1024) == fast);
    CHECK(files(s, bf16(), 90, 128) == fast);
    CHECK(files(s, bf16(), 75, 1024) == plain);
    CHECK(files(s, bf16(), 90, 96) == plain);
    CHECK(files(s, float(), 90, 1024) == plain);
    CHECK(files(odd, bf16(), 90, 1024) == plain);
    CHECK(files(aligned({{3}, 1, 1, 72}), bf16(), 90, 1024) == plain);
}

TEST_CASE("outputs, lse and gradients agree with a plain loop over all keys seen, in any order of threads") {
    Device d;
    for (unsigned seed : {1u, 2u, 3u}) {
        simt_seed = seed;
        compare<bf16>(d, aligned({{150}, 2, 1, 64}));
        compare<bf16>(d, aligned({{3, 1, 70, 0, 90}, 2, 2, 64}));
        compare<bf16>(d, aligned({{70, 1}, 1, 1, 64}));
    }
    for (long D : {96, 128}) {
        compare<bf16>(d, aligned({{131}, 1, 1, D}));
        compare<bf16>(d, aligned({{40, 33, 2}, 4, 2, D, 0, 20}));
    }
    for (long N : {1, 17, 64, 65}) compare<bf16>(d, aligned({{N}, 3, 1, 64}));
    compare<bf16>(d, aligned({{37}, 6, 2, 64}));
    compare<bf16>(d, aligned({{0}, 2, 1, 64}));
}

TEST_CASE("the last queries of a longer row of keys see all of it") {
    Device d;
    for (long cached : {1, 62, 64, 129})
        for (long N : {1, 40}) compare<bf16>(d, aligned({{N}, 4, 2, 64, cached}));
    compare<bf16>(d, aligned({{2, 7}, 2, 1, 96, 70}));  // the second document begins behind the cache
    compare<bf16>(d, aligned({{140}, 1, 1, 128, 5}));
}

TEST_CASE("with a sliding window outputs and gradients agree with a plain loop") {
    Device d;
    for (long window : {1, 2, 31, 64, 65, 95}) {
        compare<bf16>(d, aligned({{140}, 1, 1, 64, 0, window}));
        compare<bf16>(d, aligned({{5, 80}, 2, 1, 64, 0, window}));
        compare<bf16>(d, aligned({{9}, 2, 1, 64, 130, window}));
    }
}

// A number that is not one shows every pair that see each other, and every pair that must not.
TEST_CASE("a NaN of a query's gradient reaches exactly the keys that it sees, one of a value exactly the queries") {
    Device d;
    for (long window : {0, 64, 79, 95}) {
        const Shape s = aligned({{140}, 1, 1, 64, 0, window});
        const Numbers qkv = noise<bf16>(s.N() * s.width(), 1), dout = noise<bf16>(s.N() * s.D, 2);
        for (long row : {0, 31, 63, 95, 127}) {
            CAPTURE(window); CAPTURE(row);
            Numbers x = qkv, dy = dout;
            x[size_t(row * s.width() + 2 * s.D)] = NAN, dy[size_t(row * s.D)] = NAN;
            const Result values = run<bf16>(d, s, x, dout, 0.2), gradients = run<bf16>(d, s, qkv, dy, 0.2);
            long wrong = 0;
            for (long n = 0; n < 140; ++n) {
                const auto sees = [&](long query, long key) { return key <= query && (!window || key > query - window); };
                wrong += std::isnan(values.out[size_t(n * s.D)]) != sees(n, row);
                wrong += std::isnan(gradients.dqkv[size_t(n * s.width() + s.D)]) != sees(row, n);
                wrong += std::isnan(gradients.dqkv[size_t(n * s.width() + 2 * s.D)]) != sees(row, n);
            }
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("another order of threads and blocks gives the same bits, and so do scores of 10,000") {
    Device d;
    const Shape s = aligned({{70, 80}, 2, 1, 64});
    const Numbers qkv = noise<bf16>(s.N() * s.width(), 1), dout = noise<bf16>(s.N() * s.H * s.D, 2);
    const auto seeded = [&](unsigned seed) {
        simt_seed = seed;
        return run<bf16>(d, s, qkv, dout, 2048);
    };
    const Result one = seeded(1), two = seeded(2), truth = plain_forward(s, qkv, 2048);
    CHECK((one.out == two.out && one.lse == two.lse && one.dqkv == two.dqkv));
    CHECK(*std::max_element(truth.lse.begin(), truth.lse.end()) > 1e4);
    CHECK(relative_error(truth.lse, one.lse) < 1e-6);
    CHECK(relative_error(truth.out, one.out) < 2e-2);
    for (double x : one.dqkv) CHECK(std::isfinite(x));
}

TEST_CASE("a change, a NaN, an infinity reach those who see them and nobody else") {
    Device d;
    Touched t{};
    t.s = aligned({{37, 150, 41}, 4, 2, 64});
    t.end = 187;
    const Shape& s = t.s;
    const Numbers qkv = noise<bf16>(s.N() * s.width(), 1), dout = noise<bf16>(s.N() * s.H * s.D, 2);
    const Result before = run<bf16>(d, s, qkv, dout, 0.2);
    for (Place place : {Place::q, Place::k, Place::v, Place::dout})
        for (double value : {3.0, double(NAN), -double(INFINITY)}) {
            INFO("place ", int(place), ", value ", value);
            t.place = place;
            Numbers x = qkv, dy = dout;
            touch(t, value, x, dy);
            const Result after = run<bf16>(d, s, x, dy, 0.2);
            const Count c = count_changes(t, before, after);
            CHECK(c.leaks == 0);
            CHECK((before.out != after.out || place == Place::dout));
            CHECK(before.dqkv != after.dqkv);
            if (std::isnan(value)) CHECK(c.hidden == 0);
        }
}

}
