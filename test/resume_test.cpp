// resume_test.cpp - a run that was stopped, killed or damaged goes on to the bits of the run that never stopped, or is
// refused in one line. Runs the program itself.
#include "program.h"
#include <doctest/doctest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

using namespace baretrain::test;

namespace {

using nlohmann::json;

// 6 windows a step (3 micro-batches of 2). 1080 training tokens have 67 windows: step 12 begins the second epoch; 420
// have 26: the stops below lie in epochs 2, 3 and 4.
Words tiny(const std::string& dtype = "fp32") {
    return {"--family", "gpt2", "--layers", "2", "--dim", "32", "--heads", "2", "--seq", "16", "--batch", "2",
            "--tokens-per-step", "96", "--steps", "20", "--warmup", "3", "--lr", "0.003", "--eval-every", "0",
            "--sample-every", "0", "--keep", "100", "--data", "text.txt", "--dtype", dtype};
}

std::string step_folder(const std::string& run, long step) {
    std::string digits = std::to_string(step);
    return run + "/step-" + std::string(6 - digits.size(), '0') + digits;
}
std::string mark(const std::string& run, long step) { return step_folder(run, step) + "/state/complete"; }

long lines_of(const std::string& run) {
    const std::string log = get(run + "/log.jsonl");
    return std::count(log.begin(), log.end(), '\n');
}

std::set<std::string> marked(const std::string& run) {
    std::set<std::string> found;
    if (!fs::exists(run)) return found;
    for (const auto& entry : fs::directory_iterator(run))
        if (fs::exists(entry.path() / "state/complete")) found.insert(entry.path().filename().string());
    return found;
}

// What must be equal in the log of two runs: everything but times.
std::vector<std::string> numbers_of(const std::string& run) {
    std::vector<std::string> lines;
    std::ifstream in(run + "/log.jsonl");
    for (std::string line; std::getline(in, line);) {
        const json l = json::parse(line);
        std::string text;
        for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"}) text += l.at(key).dump() + " ";
        lines.push_back(text);
    }
    return lines;
}

// Every file below a folder with its content.
std::map<std::string, std::string> content_of(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) files[entry.path().string()] = get(entry.path());
    return files;
}

void check_equal(const std::string& straight, const std::string& resumed, long step) {
    const std::string a = step_folder(straight, step), b = step_folder(resumed, step);
    const auto written = content_of(a);
    CHECK(written.size() == content_of(b).size());
    CHECK(written.size() >= 6);
    for (const auto& [path, bytes] : written) {
        CAPTURE(path);
        CHECK(!bytes.empty());
        CHECK((bytes == get(b + path.substr(a.size()))));
    }
    CHECK(numbers_of(straight).size() == size_t(step));
    CHECK(numbers_of(straight) == numbers_of(resumed));
}

bool one_line(const std::string& text) {
    return !text.empty() && std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n';
}

// A refusal says `names` in one line on stderr and leaves everything as it was.
void check_refused(const fs::path& in, const Words& words, int code, const Words& names) {
    const Result r = run(in, words);
    CAPTURE(r.err);
    CHECK(r.code == code);
    CHECK(one_line(r.err));
    for (const std::string& name : names) {
        CAPTURE(name);
        CHECK(contains(r.err, name));
    }
}

struct Lab : TempFolder {
    explicit Lab(size_t bytes = 1200) { put(path / "text.txt", prose(bytes)); }
    Result train(const std::string& out, const Words& more = {}, const std::string& dtype = "fp32") const {
        return run(path, tiny(dtype) + Words{"--out", out} + more);
    }
    // Starts it and kills it `delay` after the mark of `step` has appeared.
    Result killed(const std::string& out, long step, std::chrono::microseconds delay, const std::string& dtype) const {
        Child child(path, tiny(dtype) + Words{"--out", out, "--save-every", std::to_string(step)});
        child.wait_for([&] { return fs::exists(mark(*this / out, step)); });
        std::this_thread::sleep_for(delay);
        child.kill(SIGKILL);
        return child.wait();
    }
};

// Runs of 20 steps that save after each of them, killed at random. Each kill is followed twice: by the run itself, which is
// killed again, and by a copy of it, which goes on to the end. With a launcher one of its processes is killed.
struct Way { std::string name; Words flags, launcher = {}; };
void kill_at_random(const Way& way) {
    const Lab lab(470);
    const Words saving = Words{"--save-every", "1"} + way.flags;
    const Result straight = run(lab.path, tiny() + saving + Words{"--out", "straight"}, way.launcher);
    CAPTURE(straight.err);
    REQUIRE(straight.code == 0);
    const Words again = tiny() + saving + Words{"--resume", "auto", "--out"};
    const char* const asked = std::getenv("BT_KILLS");                    // make kill-test: 50
    const int kills = asked ? std::atoi(asked) : 5;
    const unsigned seed = 1337;
    std::mt19937 random(seed);
    std::set<std::string> before;
    long cut_saves = 0, resumed = 0, ended = 0;
    for (int i = 0; i < kills; ++i) {
        const long delay = long(1e6 * straight.seconds / (i % 2 ? 1 : 4) * double(random()) / 4294967296.0);
        CAPTURE(i);
        CAPTURE(delay);                                // microseconds
        Child child(lab.path, again + Words{"run"}, way.launcher);
        if (i % 2 == 0) child.wait_for([&] { return marked(lab / "run") != before; });   // so that there is something to lose
        std::this_thread::sleep_for(std::chrono::microseconds(delay));
        const std::set<pid_t> ranks = child.children();
        if (way.launcher.empty()) child.kill(SIGKILL);
        else if (!ranks.empty()) ::kill(*std::next(ranks.begin(), long(random() % ranks.size())), SIGKILL);
        const auto begin = std::chrono::steady_clock::now();
        const Result r = child.wait();
        CAPTURE(r.err);
        if (way.launcher.empty()) CHECK((r.code == 0 || r.code == 1000 + SIGKILL));
        else if (!ranks.empty()) CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
        const std::set<std::string> after = marked(lab / "run");
        for (const std::string& folder : before) CHECK(after.count(folder) == 1);
        if (fs::exists(lab.path / "run"))
            for (const auto& entry : fs::directory_iterator(lab / "run"))
                cut_saves += contains(entry.path().filename(), "step-") && !fs::exists(entry.path() / "state/complete");
        fs::remove_all(lab.path / "copy");
        if (fs::exists(lab.path / "run")) fs::copy(lab.path / "run", lab.path / "copy", fs::copy_options::recursive);
        const Result end = run(lab.path, again + Words{"copy"}, way.launcher);
        CAPTURE(end.err);
        CHECK(end.code == 0);
        if (!after.empty()) CHECK(contains(end.out, "resumed from copy/" + *after.rbegin()));
        check_equal(lab / "straight", lab / "copy", 20);
        resumed += !after.empty(), before = after;
        if (r.code == 0 || after.count("step-000020")) fs::remove_all(lab.path / "run"), before.clear(), ++ended;
    }
    MESSAGE(way.name << ": " << kills << " kills, seed " << seed << ": " << resumed << " resumed from a checkpoint, " << cut_saves
                  << " saves cut, " << ended << " runs reached their end");
    CHECK(resumed > 0);
    WARN(cut_saves > 0);                               // by chance
}

}  // namespace

TEST_SUITE("resume") {

TEST_CASE("a killed run goes on to the bits of the run that never stopped: fp32 and bf16, in any epoch") {
    const Lab first(1200), later(470);
    int cut = 0;
    for (const Lab* lab : {&first, &later})
        for (const std::string dtype : {"fp32", "bf16"}) {
            REQUIRE(lab->train("straight-" + dtype, {"--save-every", "7"}, dtype).code == 0);
            for (int delay : {0, 3000}) {
                const std::string out = "killed-" + dtype + std::to_string(delay);
                CAPTURE(out);
                const Result r = lab->killed(out, 7, std::chrono::microseconds(delay), dtype);
                REQUIRE(fs::exists(mark(*lab / out, 7)));
                cut += r.code == 1000 + SIGKILL && !fs::exists(mark(*lab / out, 20));
                const Result resumed = run(lab->path, {"--out", out, "--resume", "auto"});
                CAPTURE(resumed.err);
                CHECK(resumed.code == 0);
                CHECK(contains(resumed.out, "resumed from"));
                check_equal(*lab / ("straight-" + dtype), *lab / out, 20);
            }
        }
    CHECK(cut >= 4);                                   // of 8: killed in the middle of the run
}

TEST_CASE("any checkpoint of a run can be taken up, by its own name, with a slash behind it, or from inside the run") {
    const Lab lab(470);
    REQUIRE(lab.train("straight", {"--save-every", "3"}).code == 0);
    for (const std::string name : {"run/step-000003", "run/step-000006/", "./run/../run/step-000012", "step-000015"}) {
        CAPTURE(name);
        fs::remove_all(lab.path / "run");
        fs::copy(lab.path / "straight", lab.path / "run", fs::copy_options::recursive);
        const bool inside = name.starts_with("step");
        const Words data = {"--data", lab / "text.txt"};
        const Result r = run(inside ? lab.path / "run" : lab.path, data + Words{"--resume", name});
        CAPTURE(r.err);
        CHECK(r.code == 0);
        CHECK(contains(r.out, "resumed from"));
        check_equal(lab / "straight", lab / "run", 20);
        CHECK(!fs::exists(lab.path / "out"));
    }
}

TEST_CASE("C6: killed at any moment with a save after every step: nothing marked is lost, and the end is the same") {
    kill_at_random({"one rank", {}});
}

TEST_CASE("C6: two ranks of one process that share state and weights, killed at any moment, lose nothing marked either") {
    kill_at_random({"two ranks", {"--ranks", "2", "--shard", "fsdp", "--batch", "1"}});
}

TEST_CASE("C6: two ranks of tp, who have a part of each matrix, killed at any moment, lose nothing marked either") {
    kill_at_random({"two ranks of tp", {"--ranks", "2", "--tp", "2", "--sp"}});
}

TEST_CASE("C6: one of two processes, killed at any moment, ends the other, and nothing marked is lost") {
    if (!with_mpi()) return;
    kill_at_random({"a process of two", {"--shard", "fsdp", "--batch", "1"}, mpirun(2)});
}

// Whatever tensors have the same names and shapes: another model must not go on with this one's weights.
TEST_CASE("a run goes on as the model that it was, or not at all") {
    const Lab lab(470);
    REQUIRE(lab.train("run", {"--family", "llama"}).code == 0);
    for (const Words& other : {Words{"--family", "mistral"}, Words{"--family", "mistral", "--window", "3"}}) {
        const Result r = run(lab.path, Words{"--resume", "run", "--steps", "30"} + other);
        CHECK(r.code == 1);
        CHECK(contains(r.err, "resume: family is mistral, but the checkpoint was written with llama"));
    }
}

TEST_CASE("a run that was killed before its first checkpoint begins again when it is resumed") {
    const Lab lab;
    const Words words = tiny() + Words{"--out", "run", "--resume", "auto"};
    REQUIRE(lab.train("straight").code == 0);
    {
        Child child(lab.path, words);
        REQUIRE(child.wait_for([&] { return lines_of(lab / "run") > 0; }));
        child.kill(SIGKILL);
        child.wait();
    }
    fs::remove_all(step_folder(lab / "run", 20));      // should the kill have come too late
    fs::create_directories(step_folder(lab / "run", 7) + ".tmp/state");   // a save that was cut off
    fs::create_directories(step_folder(lab / "run", 6) + "/state");       // and one before its mark
    const Result r = run(lab.path, words);
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(contains(r.out, "step-000006"));
    CHECK(contains(r.out, "step-000007.tmp"));
    CHECK(!contains(r.out, "resumed"));
    check_equal(lab / "straight", lab / "run", 20);
}

TEST_CASE("C5: with more steps the learning rate follows the curve of the new length, without a warm-up") {
    const Lab lab;
    REQUIRE(lab.train("short", {"--steps", "10", "--save-every", "5"}).code == 0);
    REQUIRE(lab.train("long").code == 0);
    const std::vector<std::string> before = numbers_of(lab / "short");
    REQUIRE(before.size() == 10);
    const Result r = run(lab.path, {"--out", "short", "--resume", "short/step-000005", "--steps", "20"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    const std::vector<std::string> after = numbers_of(lab / "short"), whole = numbers_of(lab / "long");
    REQUIRE(after.size() == 20);
    for (size_t i = 0; i < 20; ++i) {
        CAPTURE(i);
        if (i < 5) CHECK(after[i] == before[i]);
        else {                                         // the fourth number is the rate
            const auto rate = [](std::string line) {
                for (int skip = 0; skip < 3; ++skip) line.erase(0, line.find(' ') + 1);
                return line.substr(0, line.find(' '));
            };
            CHECK(rate(after[i]) == rate(whole[i]));
        }
    }
    CHECK(contains(get(lab / "short/config.toml"), "steps = 20 "));
}

TEST_CASE("what would change the numbers of a run is refused by name, and the run stays as it was") {
    const Lab lab;
    REQUIRE(lab.train("run", {"--steps", "5"}).code == 0);
    put(lab.path / "other.txt", prose(1300));
    const auto before = content_of(lab / "run");
    const Words again = {"--out", "run", "--resume", "auto", "--steps", "9"};
    check_refused(lab.path, again + Words{"--tokens-per-step", "80"}, 2, {"--batch 2 x --seq 16", "96"});
    check_refused(lab.path, again + Words{"--seed", "5"}, 1, {"seed", "1337", " 5"});
    check_refused(lab.path, again + Words{"--data", "other.txt"}, 1, {"data"});
    check_refused(lab.path, again + Words{"--seq", "8", "--batch", "2"}, 1, {"seq", "16", "8"});
    check_refused(lab.path, again + Words{"--dtype", "bf16"}, 1, {"dtype", "fp32", "bf16"});
    check_refused(lab.path, again + Words{"--val", "0.2"}, 1, {"data"});
    const Words wider = {"--dim", "64", "--heads", "2", "--head-dim", "32"};
    check_refused(lab.path, again + wider, 1, {"model.safetensors", "wte.weight", "64", "32"});
    check_refused(lab.path, again + Words{"--layers", "3"}, 1, {"missing", "h.2."});
    CHECK((content_of(lab / "run") == before));
}

TEST_CASE("a folder to resume that is not there, or holds no checkpoint, is refused and not begun anew") {
    const Lab lab;
    fs::create_directories(lab.path / "empty");
    for (const std::string name : {"nowhere", "run/step-000099", "empty"}) {
        CAPTURE(name);
        check_refused(lab.path, tiny() + Words{"--resume", name}, 1, {name});
        CHECK(!fs::exists(lab.path / "out"));
    }
}

TEST_CASE("a damaged checkpoint is refused by name, or passed over for the one before it") {
    struct Damage { std::string file; bool cut; };
    const Lab lab;
    REQUIRE(lab.train("whole", {"--save-every", "7", "--steps", "14"}).code == 0);
    REQUIRE(lab.train("straight", {"--steps", "14"}).code == 0);
    const std::vector<Damage> damages = {{"state/optimizer.safetensors", true}, {"state/optimizer.safetensors", false},
                                         {"state/trainer.json", false}, {"model.safetensors", true},
                                         {"state/complete", false}};
    for (const Damage& d : damages) {
        CAPTURE(d.file);
        fs::remove_all(lab.path / "run");
        fs::copy(lab.path / "whole", lab.path / "run", fs::copy_options::recursive);
        const std::string file = step_folder(lab / "run", 14) + "/" + d.file;
        if (d.cut) fs::resize_file(file, fs::file_size(file) - 8);
        else fs::remove(file);
        check_refused(lab.path, {"--resume", "run/step-000014"}, 1, {"step-000014", d.file});
        const Result r = run(lab.path, {"--out", "run", "--resume", "auto"});
        CAPTURE(r.err);
        CHECK(r.code == 0);
        CHECK(contains(r.out, "step-000014: not a complete checkpoint"));
        CHECK(contains(r.out, d.file));
        CHECK(contains(r.out, "resumed from run/step-000007"));
        check_equal(lab / "straight", lab / "run", 14);
    }
    for (const auto& entry : fs::directory_iterator(lab / "run"))   // none is whole: nothing is begun anew
        if (entry.is_directory()) fs::remove(entry.path() / "model.safetensors");
    check_refused(lab.path, tiny() + Words{"--resume", "run"}, 1, {"run", "no complete checkpoint"});
    check_refused(lab.path, tiny() + Words{"--out", "run", "--resume", "auto"}, 1, {"run", "no complete checkpoint"});
    CHECK(numbers_of(lab / "run").size() == 14);
}

TEST_CASE("a file `stop` and Ctrl-C save and end well; the run goes on from there to the same end") {
    const Lab lab;
    for (const std::string how : {"file", "signal", "signal-tp"}) {
        CAPTURE(how);
        const bool tp = how == "signal-tp";
        const Words words = tiny() + Words{"--steps", "400", "--ranks", tp ? "2" : "1", "--tp", tp ? "2" : "1"};
        if (how != "signal") {
            fs::remove_all(lab.path / "straight");
            REQUIRE(run(lab.path, words + Words{"--out", "straight"}).code == 0);
        }
        Child child(lab.path, words + Words{"--out", how});
        REQUIRE(child.wait_for([&] { return lines_of(lab / how) >= 3; }));
        if (how == "file") put(lab.path / how / "stop", "");
        else child.kill(SIGINT);
        const Result r = child.wait();
        CAPTURE(r.err);
        CHECK(r.code == 0);
        CHECK(contains(r.out, "stopped after "));
        const std::vector<std::string> lines = numbers_of(lab / how);
        CHECK(lines.size() < 400);
        CHECK(fs::exists(mark(lab / how, long(lines.size()))));
        CHECK(run(lab.path, {"--out", how, "--resume", "auto"}).code == 0);
        CHECK(!fs::exists(lab / (how + "/stop")));
        check_equal(lab / "straight", lab / how, 400);
    }
}

TEST_CASE("C7: the last checkpoint is on the disk before the last validation begins") {
    const Lab lab;
    put(lab.path / "val.txt", prose(400000));
    Child child(lab.path, tiny() + Words{"--out", "run", "--eval-every", "20", "--val", "val.txt"});
    REQUIRE(child.wait_for([&] { return fs::exists(mark(lab / "run", 20)); }));
    CHECK(child.running());                            // it evaluates
    child.kill(SIGKILL);
    CHECK(child.wait().code == 1000 + SIGKILL);
    CHECK(!contains(get(lab / "run/log.jsonl"), "val_loss"));
    CHECK(marked(lab / "run") == std::set<std::string>{"step-000020"});
    const Result r = run(lab.path, {"generate", "--model", "run/step-000020", "--tokens", "3"});
    CAPTURE(r.err);
    CHECK(r.code == 0);
}

TEST_CASE("a used --out without --resume is refused and untouched") {
    const Lab lab;
    REQUIRE(lab.train("run", {"--steps", "3"}).code == 0);
    fs::create_directories(lab.path / "notes");
    put(lab.path / "notes/mine.txt", "keep");
    for (const std::string out : {"run", "notes"}) {
        const auto before = content_of(lab / out);
        check_refused(lab.path, tiny() + Words{"--out", out}, 1, {"--out " + out});
        CHECK((content_of(lab / out) == before));
    }
    CHECK(lab.train("notes/new").code == 0);           // a new folder inside is fine
}

TEST_CASE("flags go on top of the run's own numbers, not of the defaults") {
    const Lab lab;
    REQUIRE(lab.train("run", {"--steps", "5"}).code == 0);
    const Result r = run(lab.path, {"--resume", "run", "--tokens-per-step", "64", "--steps", "7"});
    CAPTURE(r.err);
    CHECK(r.code == 0);
    const std::string trainer = get(step_folder(lab / "run", 7) + "/state/trainer.json");
    REQUIRE(!trainer.empty());
    CHECK(json::parse(trainer).at("position") == 5 * 6 + 2 * 4);
    CHECK(json::parse(trainer).at("tokens") == 5 * 96 + 2 * 64);
}

TEST_CASE("a resumed run goes on where it lies: another --out is refused, its own is fine, and it may be moved") {
    const Lab lab;
    REQUIRE(lab.train("run", {"--steps", "3"}).code == 0);
    const auto before = content_of(lab / "run");
    for (const std::string resume : {"run", "run/step-000003"}) {
        const Words words = {"--resume", resume, "--steps", "5", "--out", "other"};
        check_refused(lab.path, words, 2, {"--out other", "run"});
        CHECK(!fs::exists(lab / "other"));
    }
    CHECK((content_of(lab / "run") == before));
    CHECK(run(lab.path, {"--resume", "run", "--steps", "4", "--out", "./run/"}).code == 0);
    fs::rename(lab / "run", lab / "moved");
    CHECK(run(lab.path, {"--resume", "moved", "--steps", "5"}).code == 0);
    CHECK(numbers_of(lab / "moved").size() == 5);
    CHECK(!fs::exists(lab / "run"));
}

TEST_CASE("after going back to an earlier checkpoint, the steps that were given up are never taken up again") {
    const Lab lab;
    REQUIRE(lab.train("run", {"--save-every", "7", "--steps", "14"}).code == 0);
    REQUIRE(run(lab.path, {"--resume", "run/step-000007", "--steps", "8", "--warmup", "2"}).code == 0);
    CHECK(marked(lab / "run") == std::set<std::string>{"step-000007", "step-000008"});
    const Result r = run(lab.path, {"--resume", "run", "--steps", "9"});
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(contains(r.out, "resumed from run/step-000008"));
    CHECK(numbers_of(lab / "run").size() == 9);
}

TEST_CASE("--resume auto without --out takes the newest run below out/") {
    const Lab lab;
    REQUIRE(lab.train("straight").code == 0);
    REQUIRE(lab.train("out/b", {"--steps", "5"}).code == 0);
    REQUIRE(lab.train("out/a", {"--steps", "4"}).code == 0);
    const Result r = run(lab.path, {"--resume", "auto", "--steps", "6"});
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(contains(r.out, "resumed from out/a/step-000004"));
    CHECK(numbers_of(lab / "out/a").size() == 6);
}

TEST_CASE("C8: a resumed run takes no more memory than a new one, but for one tensor") {
    const Lab lab;
    const Words big = {"--family", "llama", "--layers", "6", "--dim", "256", "--heads", "4", "--ffn", "704", "--batch",
                       "1", "--tokens-per-step", "16", "--warmup", "0"};   // 20 MB of weights
    for (const std::string dtype : {"fp32", "bf16"}) {
        CAPTURE(dtype);
        const Result fresh = lab.train(dtype, big + Words{"--steps", "1"}, dtype);
        const Result again = lab.train(dtype, big + Words{"--steps", "2", "--resume", dtype}, dtype);
        CHECK(fresh.code == 0);
        CHECK(again.code == 0);
        CHECK(again.peak_kb < fresh.peak_kb + 704 * 256 * 4 / 1024 + 2048);
    }
}

}
