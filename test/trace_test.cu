// trace_test.cu - what a traced step says of itself, against its launches, its plan and closed forms; nothing is timed.
#include "test/host.h"
#include "test/model.h"
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

using namespace baretrain;
using namespace baretrain::test;

namespace {

using nlohmann::json;

const TraceClock virtual_clock{false, 4e9, 1e9, 2e9};

// A trainer that a trace watches. Dry, or with weights.
template <class T> struct Traced {
    std::unique_ptr<Model<T>> model;
    Arena dry;
    std::unique_ptr<Trainer<T>> planned;
    Trainer<T>& t;
    Trace trace;
    Traced(Model<T>* real, const TraceClock& clock = virtual_clock)
        : model(real), t(real->t), trace(clock, [this] { return t.arena.high(); }) { watch(); }
    Traced(const Config& c, const Params& p)
        : planned(std::make_unique<Trainer<T>>(c, p, dry, Rank{mesh_of(c)})), t(*planned),
          trace(virtual_clock, [this] { return t.arena.high(); }) { watch(); }
    void watch() {
        trace.step(1);
        t.device.watch = &trace;
    }
};

Events work_of(const Trace& trace) {
    Events work = trace.events();
    std::erase_if(work, [](const Event& e) { return e.mark != Mark::none; });
    return work;
}
size_t top_of(const Trace& trace) {
    size_t top = 0;
    for (const Event& e : trace.events()) top = std::max(top, e.memory);
    return top;
}
std::vector<Rows> rows_for(const Sizes& z) {
    std::vector<Rows> micros(size_t(z.micros));
    for (Rows& m : micros)
        for (long b = 0; b < z.batch; ++b) {
            std::vector<int> window;
            for (long i = 0; i <= z.seq; ++i) window.push_back(int((5 * i + 3 * b + (&m - &micros[0])) % 17));
            m.append(window);
        }
    return micros;
}
Work work(double bytes, double flops = 0, Lane lane = Lane::compute) { return {Where::current(), bytes, flops, lane}; }
Work sent(double bytes, const char* op, const char* what, long unit) {
    return {.where = Where::current(), .bytes = bytes, .lane = Lane::wire, .op = op, .what = what,
            .axis = "dp_shard", .unit = unit, .ranks = 3};
}
Events joined(Events first, const Events& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

// The events of a step of `ranks` ranks, as rank 0 gets them.
template <class T> Events traced_ranks(Config c, const TraceClock& clock) {
    c.tokens_per_step *= c.ranks;
    Events all;
    on_ranks<T>(c, [&](Trainer<T>& t) {
        Trace trace(clock, [&] { return t.arena.high(); }, t.comm.mesh.rank);
        trace.step(1);
        t.device.watch = &trace;
        train_step(t, rows_for({c.seq, c.batch, t.micro_batches()}));
        t.device.watch = nullptr;
        const Events ranks = collect(t.comm, trace.events(), {"trace"});
        if (t.comm.first()) all = ranks;
        else CHECK(ranks.empty());
    });
    return all;
}

}  // namespace

TEST_SUITE("trace") {

TEST_CASE("the events of a step are its launches and products, run or dry, and sum up to the plan's operations") {
    const Sizes z{7, 4, 2};
    for (const ModelShape& shape : all_shapes())
        for (const char* how : {"none", "full"}) {
            CAPTURE(shape.family); CAPTURE(how);
            const Config c = Model<float>::config_of(shape, z, how);
            const Params params(shape);
            const Plan plan = plan_of<float>(c, params);
            Traced<float> dry(c, params), real(new Model<float>(shape, z, 1, how));
            train_step(dry.t, rows_for(z));
            const long before = real.t.device.launches;
            train_step(real.t, rows_for(z));

            const long passes = how == std::string("full") ? 4 : 3;
            const long products = z.micros * (passes * 4 * shape.layers + 3);
            long compute = 0, data = 0, of_products = 0;
            double matmul = 0, attention = 0;
            for (const Event& e : work_of(dry.trace)) {
                compute += e.work.lane == Lane::compute, data += e.work.lane == Lane::data;
                of_products += e.work.rows > 0;
                if (e.work.rows) CHECK(e.work.flops == 2.0 * double(e.work.rows * e.work.inner * e.work.cols));
                (e.work.rows ? matmul : attention) += e.work.flops;
                CHECK(e.work.bytes + e.work.flops + double(std::string(e.name) == "decide") > 0);
            }
            CHECK(of_products == products);
            CHECK(compute == dry.t.device.launches + products);
            CHECK(data == z.micros);
            CHECK(matmul == plan.matmul_flops);
            CHECK(attention == plan.attention_flops);
            CHECK(real.t.device.launches - before >= dry.t.device.launches);   // plain products are made of launches
            CHECK(trace_json(real.trace.events()) == trace_json(dry.trace.events()));
        }
}

TEST_CASE("pieces inside a piece count with the outer one; the memory that they took does too") {
    Arena arena;
    Trace trace(virtual_clock, [&] { return arena.high(); });
    trace.step(3);
    { Scratch lost(arena); lost.take<char>(1, 1000); }
    trace.step(4);
    trace.begin(work(1e9));
    {
        Scratch s(arena);
        s.take<char>(1, 600);
        trace.begin(work(5e9)), trace.end();
        trace.mark(Mark::gather, 2, 10);
    }
    trace.end();
    trace.begin(work(1, 8e9)), trace.end();
    { Scratch between(arena); between.take<char>(1, 300); }
    trace.begin(work(2e9, 0, Lane::wire)), trace.end();
    const std::vector<Event> events = work_of(trace);
    REQUIRE(events.size() == 3);
    CHECK(trace.events().size() == 4);
    CHECK((events[0].begin == 0 && events[0].end == 1000000000 && events[0].work.bytes == 1e9));
    CHECK((events[1].begin == 1000000000 && events[1].end == 3000000000));   // by operations where there are some
    CHECK((events[2].begin == 3000000000 && events[2].end == 5000000000));
    CHECK((events[0].memory == 768 && events[1].memory == 0 && events[2].memory == 512));
    CHECK((events[0].step == 4 && events[2].unit == 2));
}

TEST_CASE("an error that the wait behind a piece brings is thrown there, unless there is one already") {
    Trace trace(virtual_clock, []() -> size_t { fail("lost"); });
    Device d;
    d.watch = &trace;
    CHECK(error_of([&] { const Watched w(d, work(1)); }) == "lost");
    CHECK(error_of([&] {
        const Watched w(d, work(1));
        fail("first");
    }) == "first");
}

TEST_CASE_TEMPLATE("the memory curve tops at the plan's bytes for a step, which are all of it where logits are large",
                   T, float, bf16, double) {
    ModelShape large = shape_of("gpt2", true);
    large.vocab = 3000;
    std::vector<ModelShape> shapes = all_shapes();
    shapes.push_back(large);
    long less = 0;                                     // an evaluation or a sample takes more
    for (const ModelShape& shape : shapes)
        for (const char* how : {"none", "selective", "full"}) {
            CAPTURE(shape.family); CAPTURE(shape.vocab); CAPTURE(how);
            const Sizes z{7, 4, 2};
            Traced<T> real(new Model<T>(shape, z, 1, how));
            const Plan plan = plan_of<T>(real.t.config, real.t.params);
            train_step(real.t, rows_for(z));
            CHECK(top_of(real.trace) == plan.step);
            if (shape.vocab == 3000) CHECK(plan.step == plan.peak);
            less += plan.step < plan.peak;
            CHECK(contains(trace_html(real.trace.events(), plan.step), concat("at most ", plan.step, " bytes")));
        }
    CHECK(less > 0);
}

TEST_CASE("work belongs to the unit whose lease was taken last, and to its micro-batch; the update to neither") {
    const Sizes z{7, 4, 3};
    const ModelShape shape = shape_of("llama", false);
    Traced<float> real(new Model<float>(shape, z));
    train_step(real.t, rows_for(z));
    std::map<std::pair<long, long>, long> products;   // by micro-batch and unit
    std::vector<long> updated;
    for (const Event& e : real.trace.events()) {
        if (e.work.rows) ++products[{e.micro, e.unit}];
        if (e.mark == Mark::gather || e.mark == Mark::open)
            CHECK(e.work.bytes == double(4 * real.t.params.unit_size(int(e.unit))));
        if (e.mark == Mark::update) updated.push_back(e.unit);
        const bool update = std::set<std::string>{"sum_squares", "decide", "adamw"}.count(e.name) > 0;
        if (update) CHECK(e.micro == -1);
        if (std::string(e.name) == "adamw") CHECK(e.unit == -1);
    }
    CHECK(updated == std::vector<long>{0, 1, 2});
    CHECK(products.size() == 9);
    for (const auto& [where, count] : products) CHECK(count == (where.second == 0 ? 3 : 12));
}

TEST_CASE("the virtual clock gives the same bytes whoever runs the step, and times known in advance") {
    const Sizes z{7, 4, 2};
    const ModelShape shape = shape_of("qwen3", true);
    std::vector<std::string> traces;
    for (int team : {1, 2, 1}) {
        Traced<double> real(new Model<double>(shape, z, team));
        train_step(real.t, rows_for(z));
        traces.push_back(trace_json(real.trace.events()));
        if (team == 2) continue;
        long now = 0;
        for (const Event& e : work_of(real.trace)) {
            CHECK(e.begin == now);
            now = e.end;
            const Work& w = e.work;
            if (w.rows) CHECK(e.end - e.begin == std::llround(double(2 * w.rows * w.inner * w.cols) / 4));
            if (std::string(e.name) == "residual") CHECK(e.end - e.begin == 3 * 28 * 12 * 8);
        }
        CHECK(now == real.trace.now());
    }
    CHECK(traces[0] == traces[1]);
    CHECK(traces[0] == traces[2]);
}

TEST_CASE("a step that is watched gives the bits of one that is not, on either clock") {
    const Sizes z{7, 4, 2};
    for (const bool real_clock : {true, false}) {
        Model<bf16> alone(shape_of("mistral", true), z);
        Traced<bf16> watched(new Model<bf16>(shape_of("mistral", true), z), TraceClock{real_clock});
        for (int i = 0; i < 2; ++i) {
            const StepResult a = train_step(alone.t, rows_for(z)), b = train_step(watched.t, rows_for(z));
            CHECK((a.loss == b.loss && a.grad_norm == b.grad_norm));
        }
        CHECK(alone.bytes() == watched.model->bytes());
        long before = 0;
        for (const Event& e : work_of(watched.trace)) {
            CHECK((e.begin >= before && e.end >= e.begin));
            before = e.end;
        }
    }
}

TEST_CASE("a collective travels once the last rank has started it and the wire is free; who awaits it goes on from its end") {
    Trace trace(virtual_clock, [] { return size_t(1); });
    trace.step(1);
    trace.begin(work(1000)), trace.end();
    CHECK(trace.now() == 1000);
    trace.travelled(sent(600, "gather", "weights", 1), 1000);   // nothing else to do: 1000 to 1300
    trace.begin(work(5000)), trace.end();
    trace.travelled(sent(2000, "gather", "weights", 2), 1100);   // hidden: 1300 to 2300
    CHECK(trace.now() == 6300);
    trace.travelled(sent(400, "sum", "gradients", 2), 7000);   // another rank came later: 7000 to 7200
    CHECK(trace.now() == 7200);
    trace.travelled(sent(4000, "sum", "norm", -1), 7100);   // 7200 to 9200
    const Events e = work_of(trace);
    REQUIRE(e.size() == 6);
    CHECK((e[1].begin == 1000 && e[1].end == 1300 && e[2].begin == 1300 && e[2].end == 6300));
    CHECK((e[3].begin == 1300 && e[3].end == 2300 && e[4].begin == 7000 && e[4].end == 7200));
    CHECK((e[5].begin == 7200 && e[5].end == 9200 && trace.now() == 9200));
    CHECK((e[3].unit == 2 && e[5].unit == -1 && e[3].memory == 0 && std::string(e[3].name) == "gather weights on dp_shard"));
}

TEST_CASE("ranks: their traces meet on rank 0, say what the ledger says, and are the same bytes every time") {
    Config c = Model<float>::config_of(shape_of("llama", false), {7, 4, 2}, "none");
    for (const auto& [ranks, replicate] : {std::pair(2, 1), {3, 1}, {4, 2}}) {
        CAPTURE(ranks);
        c.ranks = ranks, c.replicate = replicate, c.shard = "fsdp";
        const Events all = traced_ranks<float>(c, virtual_clock);
        CHECK(trace_json(all) == trace_json(traced_ranks<float>(c, virtual_clock)));
        std::map<int, std::map<std::string, std::pair<long, double>>> sent;   // by rank and name: calls, bytes
        std::map<std::pair<int, Lane>, long> until;
        for (const Event& e : all) {
            if (e.mark != Mark::none) continue;
            CHECK(e.begin >= until[{e.rank, e.work.lane}]);   // nothing in a lane overlaps
            until[{e.rank, e.work.lane}] = e.end;
            if (e.work.lane == Lane::wire) sent[e.rank][e.name].first += 1, sent[e.rank][e.name].second += e.work.bytes;
        }
        REQUIRE(int(sent.size()) == ranks);
        for (int rank = 1; rank < ranks; ++rank) CHECK(sent[rank] == sent[0]);
        CHECK(sent[0].at("gather weights on dp_shard").first == 2 * (1 + 2 * 2 - 1));   // ends, blocks, but the last
        CHECK(sent[0].at("scatter gradients on dp_shard").first == 2 * 3);
        CHECK(sent[0].count("sum gradients on dp_replicate") == (replicate > 1));
        CHECK(sent[0].at("sum norm on dp_shard").first == 1);
        const std::string html = trace_html(all, 1000);
        CHECK(count(html, "<svg") == size_t(ranks));
        CHECK(!contains(html, "V172.0"));              // memory is never 0: what travels does not ask for it
    }
}

TEST_CASE("a collective begins on all ranks at one time, when the last one started it, on either clock") {
    Config c = Model<float>::config_of(shape_of("gpt2", true), {7, 4, 1}, "none");
    c.ranks = 2, c.shard = "fsdp", c.prefetch = 0;
    for (const bool real : {true, false}) {
        const Events all = traced_ranks<float>(c, TraceClock{real, 4e9, 1e9, 2e9});
        std::vector<Event> of[2];
        for (const Event& e : all)
            if (e.work.ranks > 1) of[e.rank].push_back(e);
        REQUIRE(of[0].size() == of[1].size());
        for (size_t i = 0; i < of[0].size(); ++i) {
            CHECK(std::string(of[0][i].name) == of[1][i].name);
            if (!real) CHECK((of[0][i].begin == of[1][i].begin && of[0][i].end == of[1][i].end));
            CHECK(of[0][i].begin < of[1][i].end);      // nobody is through before the other has come
            CHECK(of[1][i].begin < of[0][i].end);
        }
    }
}

TEST_CASE("trace.json is what Perfetto reads: processes are ranks, threads are lanes from 1 on, memory is a counter") {
    const Sizes z{7, 4, 2};
    Traced<float> real(new Model<float>(shape_of("gpt2", false), z));
    Trace second(virtual_clock, [] { return size_t(77); }, 1);
    second.step(1);
    second.travelled(sent(6e3, "gather", "weights", 3), 9000);
    second.begin(work(1500)), second.end();
    train_step(real.t, rows_for(z));

    const json all = json::parse(trace_json(joined(real.trace.events(), second.events())));
    CHECK(all["displayTimeUnit"] == "ms");
    std::map<std::pair<int, int>, std::string> lanes;
    std::map<int, std::string> ranks;
    std::vector<json> complete, of_second;
    size_t top = 0, instants = 0;
    for (const json& e : all["traceEvents"]) {
        const std::string ph = e["ph"], name = e["name"];
        const int pid = e["pid"], tid = e["tid"];
        if (ph == "M" && name == "process_name") ranks[pid] = e["args"]["name"];
        if (ph == "M" && name == "thread_name") lanes[{pid, tid}] = e["args"]["name"];
        if (ph == "C" && pid == 0) top = std::max(top, e["args"]["bytes"].get<size_t>());
        if (ph == "X") (pid ? of_second : complete).push_back(e);
        instants += ph == "i";
        CHECK((ph == "M" || e["ts"].is_number()));
    }
    CHECK(ranks == std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}});
    CHECK(lanes.size() == 8);
    CHECK(lanes[{0, 1}] == "compute");
    CHECK(lanes[{1, 2}] == "wire");
    CHECK((lanes[{0, 3}] == "data" && lanes[{0, 4}] == "save"));
    CHECK(top == top_of(real.trace));
    const std::vector<Event> work = work_of(real.trace);
    CHECK(instants == real.trace.events().size() - work.size());
    REQUIRE(complete.size() == work.size());
    for (size_t i = 0; i < work.size(); ++i) {
        const Event& e = work[i];
        CHECK(std::llround(complete[i]["ts"].get<double>() * 1000) == e.begin);
        CHECK(std::llround(complete[i]["dur"].get<double>() * 1000) == e.end - e.begin);
        CHECK(complete[i]["name"] == e.name);
        CHECK(complete[i]["args"] == json{{"step", 1}, {"unit", e.unit}, {"micro", e.micro}, {"bytes", e.work.bytes},
                                          {"flops", e.work.flops}});
    }
    REQUIRE(of_second.size() == 2);
    CHECK((of_second[0]["tid"] == 2 && of_second[0]["ts"] == 9 && of_second[0]["dur"] == 3 && of_second[1]["ts"] == 12));
    CHECK((of_second[0]["name"] == "gather weights on dp_shard" && of_second[0]["args"]["unit"] == 3));
}

TEST_CASE("the picture stays small, draws the lanes of each rank, and loses no peak") {
    Arena arena;
    std::vector<size_t> memory = {1};
    Trace trace(virtual_clock, [&] { return memory.back(); }), other(virtual_clock, [] { return size_t(1); }, 1);
    trace.step(5);
    for (int i = 0; i < 20000; ++i) {
        memory.push_back(i == 12345 ? 1000 : 10);
        if (i == 10000) trace.step(6);
        trace.begin(work(100 + i % 7)), trace.end();
    }
    other.step(5);
    other.begin(work(1000, 0, Lane::wire)), other.end();
    const std::string html = trace_html(joined(trace.events(), other.events()), 800);
    CHECK(count(html, "<rect") > 500);
    CHECK(count(html, "<rect") < 1400);
    CHECK(count(html, "<svg") == 2);
    CHECK(count(html, "</svg>") == 2);
    CHECK(count(html, "nothing travels") == 1);        // rank 1 has a wire, and no compute
    CHECK(contains(html, ">step 5<"));
    CHECK(contains(html, ">step 6<"));
    CHECK(contains(html, "V92.0"));                    // the top of the picture: 1000 bytes, once
    CHECK(contains(html, "d=\"M64 108.0H708\""));      // 800 of them
    CHECK(contains(html, ": at most 1000 bytes in use, a step was planned with 800"));
    CHECK(html.size() < 300000);
}

TEST_CASE("--explain says each matrix and each micro-batch, and adds up to the plan") {
    ModelShape shape = preset("gpt2-124m");
    Config c = Model<float>::config_of(shape, {64, 4, 3}, "none");
    const Params params(shape);
    const Plan plan = plan_of<float>(c, params);
    Traced<float> dry(c, params);
    dry_step(dry.t, take_step);
    const std::string text = explain(dry.trace.events());
    const auto megabytes = [&](int unit) { return format("%.1f MB", double(4 * params.unit_size(unit)) / 1e6); };
    for (const std::string& line : {std::string("blocks 1 to 11: the same"), std::string("blocks 10 to 0: the same"),
                                    std::string("micro-batches 2 to 3: the same"),
                                    "gather the weights of the block, " + megabytes(1),
                                    "open the gradients of the ends (embeddings, final norm, head), " + megabytes(0)})
        CHECK_MESSAGE(contains(text, line), line);
    for (const auto& [in, out] : {std::pair(768, 2304), {768, 768}, {768, 3072}, {3072, 768}}) {
        const double gflop = 2 * 256.0 * in * out / 1e9;
        CHECK(contains(text, format("(256 x %d) (%d x %d), %.3f GFLOP", in, in, out, gflop)));
        CHECK(contains(text, format("(256 x %d) (%d x %d), %.3f GFLOP", out, out, in, gflop)));
        CHECK(contains(text, format("(%d x 256) (256 x %d), %.3f GFLOP", in, out, gflop)));
    }
    CHECK(contains(text, format("in all %.3f GFLOP of products, %.3f of attention, ", plan.matmul_flops / 1e9,
                                plan.attention_flops / 1e9)));
    CHECK(contains(text, format("at most %.1f MB in use", double(plan.step) / 1e6)));
    long number = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (const long n = std::atol(line.c_str())) CHECK(n == ++number);
        CHECK(line.size() <= 120);
    }
    CHECK((number > 40 && number < 66));               // a page
}

TEST_CASE("--explain tells what a rank of many sends, where it is awaited") {
    Config c = Model<float>::config_of(preset("gpt2-124m"), {64, 4, 5}, "none");
    c.ranks = 4, c.tokens_per_step *= 4, c.shard = "fsdp";
    const Params params(c.shape, 4);
    Traced<float> dry(c, params);
    dry_step(dry.t, take_step);
    const std::string text = explain(dry.trace.events());
    CAPTURE(text);
    double sent = 0;
    for (const auto& [key, row] : dry.t.comm.ledger) sent += double(row.bytes);
    const std::string block = format("on dp_shard among 4 ranks, %.1f MB sent\n", 0.75 * 4 * double(params.unit_size(1)) / 1e6);
    for (const std::string& line : {"gather of the weights of block 0 " + block, "scatter of the gradients of block 11 " + block,
                                    std::string("gather of the weights of the ends on dp_shard among 4 ranks, "),
                                    std::string("sum of the control on dp_shard among 4 ranks, 48 bytes sent\n"),
                                    std::string("before\n"), std::string("blocks 9 to 0: the same\n"),
                                    std::string("micro-batches 3 to 5: the same\n"), format(" %.1f MB sent, at most ", sent / 1e6)})
        CHECK_MESSAGE(contains(text, line), line);
}

TEST_CASE("--explain says on which axis something travels, and of tensor parallelism where in a block") {
    Config c = Model<float>::config_of(preset("gpt2-124m"), {64, 4, 1}, "none");
    c.ranks = 4, c.tp = 2, c.tokens_per_step *= 2;
    for (const bool sp : {false, true}) {
        c.sp = sp;
        const Params params = params_of(c);
        Traced<float> dry(c, params);
        dry_step(dry.t, take_step);
        const std::string text = explain(dry.trace.events());
        CAPTURE(text);
        const std::string rows = format(" among 2 ranks, %.1f MB sent\n", (sp ? 0.5 : 1) * 4 * 256 * 768 / 1e6);
        CHECK(contains(text, "sum of the gradients of block 11 on dp_replicate among 2 ranks, "));
        CHECK(contains(text, (sp ? "scatter of the activations on tp" : "sum of the activations on tp") + rows));
        CHECK(contains(text, "gather of the activations on tp" + rows) == sp);
        CHECK(contains(text, "sum of the vocabulary on tp among 2 ranks, 2 times, "));
        CHECK(contains(text, "blocks 1 to 11: the same\n"));
    }
}

TEST_CASE("--explain knows in words every piece of a step, of each family and type") {
    for (const ModelShape& shape : all_shapes())
        for (const char* how : {"none", "selective", "full"}) {
            Config c = Model<bf16>::config_of(shape, {8, 4, 1}, how);
            c.ranks = c.tp = shape.heads % 2 || shape.kv_heads % 2 ? 1 : 2, c.sp = c.tp > 1;
            const Params params = params_of(c);
            Traced<bf16> dry(c, params);
            dry_step(dry.t, take_step);
            const std::string text = explain(dry.trace.events());
            CAPTURE(text);
            CHECK(!contains(text, ": ,"));
            CHECK(!contains(text, ": \n"));
            CHECK(!contains(text, "  : "));
            for (const Event& e : work_of(dry.trace))
                if (e.work.lane == Lane::compute) CHECK(contains(text, std::string(e.name) + ": "));
        }
}

}  // TEST_SUITE
