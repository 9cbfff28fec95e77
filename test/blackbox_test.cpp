// blackbox_test.cpp - what is written of a spike, and steps that are run again. Most of it runs the program itself.
#include "blackbox.h"
#include "program.h"
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace baretrain;
using namespace baretrain::test;

namespace {

using nlohmann::json;

TakenStep step_of(long step, double loss, double norm = 1) {
    TakenStep s;
    s.position = 10 * step, s.log.step = step, s.log.loss = loss, s.log.grad_norm = norm, s.log.tokens = step;
    return s;
}
// n steps whose losses are 1 and 3 in turn: mean 2, deviation 1.
BlackBox seen(const std::string& run, long n, double z) {
    BlackBox box(run, z);
    for (long i = 1; i <= n; ++i) CHECK(box.see(step_of(i, i % 2 ? 1 : 3)).empty());
    return box;
}
json spike_json(const std::string& folder) { return json::parse(get(folder + "/spike.json")); }

// 16 bytes like no others, met once, in step 149: in a step of 6 windows of 16 they stand out. Saves steps 50, 100, ...
const char* const junk = "%7#QZ@{}|~^$&*!?";
struct Lab : TempFolder {
    Lab() { put("text.txt", prose(10000) + junk + prose(6000)); }
    Words flags(const std::string& out) const {
        return {"--family", "llama", "--layers", "2", "--dim", "32", "--heads", "2", "--seq", "16", "--batch", "2",
                "--tokens-per-step", "96", "--steps", "160", "--eval-every", "0", "--sample-every", "0", "--val", "0",
                "--save-every", "50", "--keep", "100", "--data", "text.txt", "--seed", "3", "--out", out};
    }
    Result train(const std::string& out, const Words& more = {}) const { return run(path, flags(out) + more); }
    Result replay(long step, const std::string& out, const Words& more = {}) const {
        return run(path, Words{"--replay", std::to_string(step), "--out", out} + more);
    }
    std::vector<std::string> spikes(const std::string& out) const {
        std::vector<std::string> all;
        for (const auto& entry : fs::directory_iterator(path / out))
            if (entry.path().filename().string().starts_with("spike-")) all.push_back(entry.path().string());
        std::sort(all.begin(), all.end());
        return all;
    }
    // Everything below a run with content and time of its last change.
    std::map<std::string, std::string> state(const std::string& out) const {
        std::map<std::string, std::string> all;
        for (const auto& entry : fs::recursive_directory_iterator(path / out)) {
            const auto time = entry.last_write_time().time_since_epoch().count();
            all[entry.path()] = std::to_string(time) + (entry.is_regular_file() ? get(entry.path()) : "");
        }
        return all;
    }
};

bool one_line(const std::string& text) { return std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n'; }

}  // namespace

TEST_SUITE("blackbox") {

TEST_CASE("a loss is a spike from z deviations above the mean of the last 50 steps on, but for the first 20") {
    const TempFolder t;
    CHECK(seen(t.path, 50, 6).see(step_of(51, 7.99)).empty());
    const std::string why = seen(t.path, 50, 6).see(step_of(51, 8.01));
    CHECK(contains(why, "loss 8.0100 lies 6.0 deviations above the mean of 50 steps, 2.0000"));
    CHECK(seen(t.path, 50, 6).see(step_of(51, -9)).empty());                  // a fall is none
    CHECK(seen(t.path, 19, 6).see(step_of(20, 100)).empty());
    CHECK(!seen(t.path, 20, 6).see(step_of(21, 100)).empty());
    CHECK(seen(t.path, 50, 0).see(step_of(51, NAN)).empty());
    BlackBox old(t.path, 6);                           // what lies more than 50 steps back does not count
    for (long i = 1; i <= 60; ++i) old.see(step_of(i, 1000));
    for (long i = 61; i <= 110; ++i) CHECK(old.see(step_of(i, i % 2 ? 1 : 3)).empty());
    CHECK(!old.see(step_of(111, 8.01)).empty());
    BlackBox still(t.path, 6);                         // rounding of a loss that stands still is none
    for (long i = 1; i <= 60; ++i) CHECK(still.see(step_of(i, i == 55 ? 1.0001 : 1)).empty());
}

TEST_CASE("a step that is not finite is reported at once, does not count in the mean, and silences only its own kind") {
    const TempFolder t;
    BlackBox first(t.path, 6);
    TakenStep broken = step_of(1, 2.5, NAN);
    broken.log.skipped = "not finite: w";
    CHECK(first.see(broken) == "not finite: w");
    BlackBox box = seen(t.path, 40, 6);
    broken.log.step = 41, broken.log.loss = INFINITY;
    CHECK(box.see(broken) == "not finite: w");
    broken.log.step = 42;
    CHECK(box.see(broken).empty());                    // 50 steps long
    CHECK(!box.see(step_of(43, 9)).empty());
    for (long i = 44; i <= 90; ++i) box.see(step_of(i, i % 2 ? 1 : 3));
    broken.log.step = 91;
    CHECK(box.see(broken) == "not finite: w");
}

TEST_CASE("a run writes ten reports, however often it is taken up") {
    const TempFolder t;
    for (int i = 0; i < 9; ++i) fs::create_directories(t.path / ("spike-" + std::to_string(i)));
    BlackBox box = seen(t.path, 30, 6);
    const TakenStep tenth = step_of(31, 50), eleventh = step_of(300, 5000);
    REQUIRE(!box.see(tenth).empty());
    CHECK(fs::exists(box.write("why", tenth, {}, Tokenizer::bytes(), "") + "/spike.json"));
    CHECK(box.see(eleventh).empty());
    CHECK(BlackBox(t.path, 6).see([] { TakenStep s = step_of(1, NAN); s.log.skipped = "not finite"; return s; }()).empty());
}

TEST_CASE("sequences come worst first with the loss of each token, NaN before all; ids where there are no texts") {
    TakenStep step;
    step.position = 40;
    step.micros.resize(2);
    step.micros[0].append({'a', 'b', '\n', 200}), step.micros[0].append({'x', 'y', 'z'});
    step.micros[1].append({'p', 256}), step.micros[1].append({'q', 'r', 's'});
    step.micros[1].targets[2] = -1;                    // s: not trained
    const std::vector<double> logprobs = {-1, -2, -3, -4.25, -0.25, -0.5, -9, 0};
    const std::string text = worst_sequences(step, logprobs, Tokenizer::bytes(), 3);
    CHECK(text == "==== loss 9.0000, sequence 4 of 4, window 43\nqr\n    'r' 9.00\n"
                  "==== loss 2.2500, sequence 2 of 4, window 41\nxyz\n    'y' 4.25  'z' 0.25\n"
                  "==== loss 2.0000, sequence 1 of 4, window 40\nab\n\xEF\xBF\xBD\n    'b' 1.00  '\\n' 2.00  '\\xC8' 3.00\n");
    const std::vector<double> broken = {-1, -2, -3, -4.25, -0.25, NAN, -9, 0};
    CHECK(worst_sequences(step, broken, Tokenizer::none(300), 1) ==
          "==== loss nan, sequence 3 of 4, window 42\n    256 nan\n");
}

TEST_CASE("two steps are equal when every bit of loss, norm, lr and tokens is; NaN equals NaN") {
    const StepLog a = step_of(3, 0.1).log;
    CHECK(difference(a, a).empty());
    StepLog b = a;
    b.loss = std::nextafter(0.1, 1);
    CHECK(difference(b, a) == "loss is 0.10000000000000002, in the log 0.1");
    b = a, b.grad_norm = std::nextafter(1.0, 2);
    CHECK(contains(difference(b, a), "grad_norm is 1.0000000000000002"));
    b = a, b.lr = 1e-300;
    CHECK(contains(difference(b, a), "lr is 1e-300"));
    b = a, b.tokens = 4;
    CHECK(contains(difference(b, a), "tokens is 4, in the log 3"));
    b = a, b.loss = NAN;
    CHECK(difference(b, b).empty());
    CHECK(!difference(b, a).empty());
    StepLog c = b;
    c.loss = INFINITY;
    CHECK(!difference(b, c).empty());
    b = a, b.tokens_per_s = 9, b.ms = {{"step", 7}};   // times are not of the step
    CHECK(difference(b, a).empty());
}

TEST_CASE("a batch with 16 strange bytes is found: named, with text and token losses, and run again to the same bits") {
    const Lab lab;
    const Result r = lab.train("run", {"--stats", "1"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    REQUIRE(lab.spikes("run").size() == 1);
    const std::string folder = lab.spikes("run")[0], name = fs::path(folder).filename();
    CHECK(contains(r.out, "; see run/" + name + "\n"));
    const json spike = spike_json(folder);
    const long step = spike["step"];
    std::vector<json> log;
    std::ifstream in(lab.path / "run/log.jsonl");
    for (std::string line; std::getline(in, line);) log.push_back(json::parse(line));
    CHECK(spike["loss"] == log[size_t(step - 1)]["loss"]);
    CHECK(spike["position"] == 6 * (step - 1));
    REQUIRE(spike["before"].size() == 50);
    double mean = 0, squares = 0;
    for (size_t i = 0; i < 50; ++i) {
        const json& before = log[size_t(step) - 51 + i];
        for (const char* key : {"step", "loss", "grad_norm", "lr"}) CHECK(spike["before"][i][key] == before[key]);
        CHECK(spike["before"][i]["position"] == 6 * (before["step"].get<long>() - 1));
        mean += before["loss"].get<double>() / 50, squares += std::pow(before["loss"].get<double>(), 2) / 50;
    }
    CHECK(spike["mean"].get<double>() == doctest::Approx(mean).epsilon(1e-12));
    CHECK(spike["deviation"].get<double>() == doctest::Approx(std::sqrt(squares - mean * mean)).epsilon(1e-6));
    CHECK(spike["statistics"]["step"] == step);
    const std::string worst = get(folder + "/worst.txt");
    CHECK(count(worst, "====") == 6);
    CHECK(contains(worst.substr(0, worst.find("====", 4)), "$&*!"));         // the first sequence has most of them

    const auto before = lab.state("run");
    const Result again = lab.replay(step, "run", {"--stats", "1"});
    CAPTURE(again.err);
    CHECK(again.code == 0);
    CHECK(contains(again.out, "from run/step-000100\n"));
    CHECK(contains(again.out, "equal: steps 101 to " + std::to_string(step) + " "));
    const size_t third = worst.find("====", worst.find("====", worst.find("====", 4) + 4) + 4);
    CHECK(contains(again.out, worst.substr(0, third)));                      // the three worst, letter for letter
    const size_t statistics = again.out.find("{\"step\"");
    REQUIRE(statistics != std::string::npos);
    CHECK((json::parse(again.out.substr(statistics, again.out.find('\n', statistics) - statistics)) == spike["statistics"]));
    CHECK((lab.state("run") == before));
}

TEST_CASE("a spike has the same report whatever the layout, and any rank's share of the step is in it, in order") {
    const Lab lab;
    const Words base = {"--dtype", "fp64", "--spike-z", "6", "--save-every", "0"};
    REQUIRE(lab.train("one", base).code == 0);
    REQUIRE(lab.spikes("one").size() == 1);
    const std::string worst = get(lab.spikes("one")[0] + "/worst.txt"), name = fs::path(lab.spikes("one")[0]).filename();
    CHECK(count(worst, ", window ") == 6);
    for (const Words& layout : {Words{"--ranks", "2", "--shard", "none"}, Words{"--ranks", "3", "--shard", "fsdp"},
                                Words{"--ranks", "6", "--shard", "zero2", "--replicate", "3"},
                                Words{"--ranks", "4", "--shard", "fsdp", "--tp", "2", "--sp"}}) {
        CAPTURE(layout[1]);
        const Result r = lab.train("run", base + layout + Words{"--batch", "1"});
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        CHECK(count(r.out, "spike   step") == 1);
        CHECK((get(lab.path / "run" / name / "worst.txt") == worst));
        const Result again = lab.replay(spike_json(lab.path / "run" / name)["step"], "run");
        CHECK(again.code == 0);
        CHECK(count(again.out, "====") == 3);          // said once
        CHECK(contains(again.out, worst.substr(0, 100)));
        CHECK(count(again.out, "equal: steps 1 to ") == 1);
        fs::remove_all(lab.path / "run");
    }
}

TEST_CASE("all ranks agree on when the reports of a run are used up, though one of them writes") {
    const TempFolder t;
    for (int i = 0; i < 9; ++i) fs::create_directories(t.path / ("spike-" + std::to_string(i)));
    BlackBox writes = seen(t.path, 50, 6), sees = seen(t.path, 50, 6);
    const auto both = [&](long step) {
        const TakenStep taken = step_of(step, 100);
        const std::string why = writes.see(taken);
        CHECK(sees.see(taken) == why);
        if (!why.empty()) writes.write(why, taken, {}, Tokenizer::bytes(), "");
        return !why.empty();
    };
    CHECK(both(51));
    for (long step = 52; step < 200; ++step) {
        CHECK(writes.see(step_of(step, step % 2 ? 1 : 3)) == "");
        CHECK(sees.see(step_of(step, step % 2 ? 1 : 3)) == "");
    }
    CHECK(!both(200));                                 // a run has ten
}

TEST_CASE("any step is run again to the same bits: from the start or a checkpoint, resumed, bf16, mixed, from shards") {
    const Lab lab;
    put(lab.path / "other.txt", prose(3000));
    for (const Words& kind : {Words{}, Words{"--dtype", "bf16"}, Words{"--dtype", "bf16", "--master", "none"},
                              Words{"--ranks", "2", "--tp", "2", "--sp", "--recompute", "selective"},
                              Words{"--data", "text.txt:0.7,other.txt:0.3", "--recompute", "full"}}) {
        fs::remove_all(lab.path / "run");
        REQUIRE(lab.train("run", kind + Words{"--steps", "33", "--save-every", "10"}).code == 0);
        REQUIRE(lab.train("run", kind + Words{"--resume", "run/step-000020", "--steps", "33", "--save-every", "10"}).code == 0);
        for (const long step : {1L, 10L, 11L, 30L, 33L}) {
            const Result r = lab.replay(step, "run");
            CAPTURE(r.err); CAPTURE(r.out);
            CHECK(r.code == 0);
            const long from = (step - 1) / 10 * 10;
            CHECK(contains(r.out, from ? "from run/step-0000" + std::to_string(from) : "from the beginning"));
            CHECK(contains(r.out, "equal: steps " + std::to_string(from + 1) + " to " + std::to_string(step) + " "));
        }
    }
    for (const char* of_no_use : {"20", "30"}) fs::resize_file(lab / ("run/step-0000" + std::string(of_no_use) + "/config.json"), 1);
    const std::string out = lab.replay(25, "run").out;
    CHECK(contains(out, "equal: steps 11 to 25 "));
    CHECK(contains(out, "step-000020: not a complete checkpoint"));
    CHECK(!contains(out, "step-000030"));              // nothing that was saved later is read
}

TEST_CASE("a step that is not the same is said to be different, with its number, and by exit code 1") {
    const Lab lab;
    REQUIRE(lab.train("run", {"--steps", "12", "--save-every", "5"}).code == 0);
    const Result r = lab.replay(8, "run", {"--lr", "0.01"});
    CHECK(r.code == 1);
    CHECK(contains(r.out, "different: step 6: lr is "));
    std::string log = get(lab.path / "run/log.jsonl");
    const size_t at = log.find("\"step\":9,\"loss\":") + 18;
    log[at] = log[at] == '5' ? '6' : '5';
    put(lab.path / "run/log.jsonl", log);
    CHECK(lab.replay(8, "run").code == 0);
    const Result changed = lab.replay(10, "run");
    CHECK(changed.code == 1);
    CHECK(contains(changed.out, "different: step 9: loss is "));
}

TEST_CASE("a replay of what is not there, or of a run in use, is one line") {
    const Lab lab;
    REQUIRE(lab.train("run", {"--steps", "12", "--save-every", "5"}).code == 0);
    const auto refused = [&](const Result& r, const std::string& words) {
        CAPTURE(r.err);
        CHECK(r.code != 0);
        CHECK(one_line(r.err));
        CHECK(contains(r.err, words));
    };
    refused(lab.replay(13, "run"), "--replay 13: run/log.jsonl ends at step 12");
    refused(lab.replay(3, "absent"), "--replay 3: absent has no run");
    refused(run(lab.path, {"--replay", "3"}), "--replay 3: no run");
    refused(lab.replay(-3, "run"), "--replay -3: expected a whole number from 0");
    const RunLock training(lab / "run");
    refused(lab.replay(3, "run"), "another process is training in this folder");
}

TEST_CASE("a step that is not finite is reported, skipped or stopped at, and run again") {
    const Lab lab;
    const Words wild = {"--lr", "1e15", "--schedule", "constant", "--warmup", "0", "--clip", "0",
                        "--save-every", "0"};
    std::string why;
    for (const std::string how : {"skip", "stop", "skip-tp"}) {
        const bool tp = how == "skip-tp";
        const Result r = lab.train(how, wild + Words{"--nonfinite", how.substr(0, 4), "--steps", "20", "--ranks", tp ? "2" : "1",
                                                     "--tp", tp ? "2" : "1"});
        CAPTURE(r.out);
        CHECK(r.code == (how == "stop" ? 1 : 0));
        REQUIRE(lab.spikes(how).size() == 1);          // and not one for each step from there on
        const json spike = spike_json(lab.spikes(how)[0]);
        CHECK(contains(spike["why"], "not finite: "));
        if (why.empty()) why = spike["why"];
        CHECK(spike["why"] == why);                    // whoever has what was not finite first
        CHECK(contains(r.out, "see " + how + "/spike-0000"));
        CHECK(contains(get(lab.spikes(how)[0] + "/worst.txt"), "==== loss nan"));
        const Result again = lab.replay(spike["step"], how);
        CAPTURE(again.err);
        CHECK(again.code == 0);
        CHECK(contains(again.out, "equal: steps 1 to "));
    }
}

TEST_CASE("a resume cuts stats.jsonl to the checkpoint and knows the losses before it; a NaN in it is null") {
    const Lab lab;
    REQUIRE(lab.train("straight", {"--stats", "3"}).code == 0);
    REQUIRE(lab.train("run", {"--stats", "3"}).code == 0);
    const std::string whole = get(lab.path / "run/stats.jsonl");
    CHECK(count(whole, "\n") == 53);
    const std::string spike = lab.spikes("run").at(0);
    const json first = spike_json(spike);
    REQUIRE(lab.train("run", {"--resume", "run/step-000050", "--stats", "3"}).code == 0);
    CHECK((get(lab.path / "run/stats.jsonl") == whole));
    CHECK((get(lab.path / "straight/stats.jsonl") == whole));
    CHECK(lab.spikes("run") == std::vector<std::string>{spike});             // reported again, in the same folder
    CHECK(spike_json(spike)["mean"] == first["mean"]);
    CHECK(spike_json(spike)["before"] != first["before"]);                   // times
    StatsLog log;
    log.step = 7, log.tensors = {{"w", {{"weight", NAN}, {"grad", 1}}}};
    CHECK(to_json(log) == "{\"step\":7,\"tensors\":{\"w\":{\"weight\":null,\"grad\":1.0}}}\n");
}

}  // TEST_SUITE
