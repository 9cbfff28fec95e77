// checkpoint_test.cpp - a checkpoint comes back bit for bit or is not used: cut saves, damage, rotation, full disks.
#include "checkpoint.h"
#include "host.h"
#include "model_folder.h"
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace baretrain;

namespace {

using namespace baretrain::test;
using Names = std::vector<std::string>;

struct Temp : TempFolder {
    std::string run(const std::string& name = "run") const { return *this / name; }
};

TensorSource source(const std::string& name, const std::string& dtype, std::vector<long> shape, std::string bytes) {
    return {name, dtype, std::move(shape), [bytes](void* to) { std::memcpy(to, bytes.data(), bytes.size()); }};
}
TensorTarget target(const std::string& name, const std::string& dtype, std::vector<long> shape, std::string* to) {
    return {name, dtype, std::move(shape), [to](const void* from) { std::memcpy(to->data(), from, to->size()); }};
}

// A small checkpoint whose bytes depend on the step.
CheckpointParts parts(long step, size_t weight_bytes = 64) {
    CheckpointParts p;
    p.config_json = "{\"model_type\": \"gpt2\"}\n";
    p.weights = {source("w", "BF16", {long(weight_bytes / 2)}, std::string(weight_bytes, char('a' + step % 26)))};
    p.state = {source("master.w", "F32", {2}, "mmmm" + std::to_string(1000 + step % 1000)),
               source("m.w", "F32", {1}, "mmmm"), source("v.w", "F32", {1}, "vvvv")};
    p.extra_files = {{"tokenizer.json", "{}"}};
    p.trainer = {step, step * 7, step * 512, {{"data", "tiny"}, {"seq", "64"}}};
    return p;
}

// Names in a folder, sorted.
Names names_in(const std::string& folder) {
    Names names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

const Names files_of_a_checkpoint = {"config.json",                 "model.safetensors",  "tokenizer.json",
                                     "state/optimizer.safetensors", "state/trainer.json", "state/complete"};

// While it lives, no file may grow beyond `bytes`: the nearest thing to a full disk that needs no rights.
struct FullDisk {
    rlimit before;
    void (*handler)(int);
    explicit FullDisk(rlim_t bytes) {
        handler = std::signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &before);
        const rlimit small = {bytes, before.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
    }
    ~FullDisk() {
        setrlimit(RLIMIT_FSIZE, &before);
        std::signal(SIGXFSZ, handler);
    }
};

}  // namespace

TEST_SUITE("checkpoint") {

TEST_CASE("a checkpoint comes back bit for bit, as a folder that other programs open") {
    const Temp temp;
    CheckpointParts p = parts(100);
    p.trainer.position = 9007199254740993;             // one more than a double can count
    p.trainer.tokens = 9223372036854775807;
    const std::string folder = save_checkpoint(temp.run(), p, 0);
    CHECK(folder == temp.run() + "/step-000100");
    CHECK(names_in(temp.run()) == Names{"step-000100"});
    CHECK(names_in(folder) == Names{"config.json", "model.safetensors", "state", "tokenizer.json"});
    CHECK(names_in(folder + "/state") == Names{"complete", "optimizer.safetensors", "trainer.json"});
    CHECK(get(folder + "/config.json") == p.config_json);
    CHECK(get(folder + "/tokenizer.json") == "{}");
    const SafetensorsFile weights(folder + "/model.safetensors");
    CHECK(weights.metadata() == std::map<std::string, std::string>{{"format", "pt"}});

    const Found found = newest_checkpoint(temp.run());
    CHECK(found.folder == folder);
    CHECK(found.notes.empty());
    CHECK_NOTHROW(require_complete(folder));
    const TrainerState t = read_trainer_state(folder);
    CHECK(t.step == 100);
    CHECK(t.position == 9007199254740993);
    CHECK(t.tokens == 9223372036854775807);
    CHECK(t.facts == p.trainer.facts);

    std::string w(64, '?'), master(8, '?'), m(4, '?'), v(4, '?');
    load_model_tensors(folder, {target("w", "BF16", {32}, &w)});
    load_tensors(folder + "/state/optimizer.safetensors", {target("m.w", "F32", {1}, &m), target("v.w", "F32", {1}, &v),
                                                           target("master.w", "F32", {2}, &master)});
    CHECK(w == std::string(64, 'w'));
    CHECK(master == "mmmm1100");
    CHECK(m == "mmmm");
    CHECK(v == "vvvv");
}

TEST_CASE("C6: with any file cut, changed or gone, the older checkpoint is used and the broken one is named") {
    const Temp temp;
    const std::string older = save_checkpoint(temp.run(), parts(1), 0);
    const std::string newer = save_checkpoint(temp.run(), parts(2), 0);
    REQUIRE(newest_checkpoint(temp.run()).folder == newer);
    for (const std::string& name : files_of_a_checkpoint) {
        CAPTURE(name);
        const std::string whole = get(newer + "/" + name);
        std::string changed = whole;
        changed[whole.size() / 2] = char(changed[whole.size() / 2] ^ 1);
        const auto falls_back = [&] {
            const Found found = newest_checkpoint(temp.run());
            CHECK(found.folder == older);
            REQUIRE(found.notes.size() == 1);
            CHECK(contains(found.notes[0], newer));
            CHECK(contains(found.notes[0], name));
            CHECK(error_of([&] { require_complete(newer); }) == found.notes[0]);
        };
        for (const size_t bytes : {size_t(0), whole.size() / 2, whole.size() - 2}) {
            put(newer + "/" + name, whole.substr(0, bytes));
            falls_back();
        }
        if (name != "state/complete") {                // a changed mark is tried bit by bit below
            put(newer + "/" + name, changed);
            falls_back();
        }
        fs::remove(newer + "/" + name);
        falls_back();
        put(newer + "/" + name, whole);
    }
    CHECK(newest_checkpoint(temp.run()).folder == newer);
}

TEST_CASE("no changed bit of the mark is taken for another truth or ends in anything but one line") {
    const Temp temp;
    const std::string folder = save_checkpoint(temp.run(), parts(3), 0), mark = folder + "/state/complete";
    const std::string whole = get(mark);
    int passed = 0;
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
        std::string changed = whole;
        changed[bit / 8] = char(changed[bit / 8] ^ 1 << bit % 8);
        put(mark, changed);
        if (!error_of([&] { require_complete(folder); }).empty()) continue;
        ++passed;                                      // one kind of white space for another is no damage
        CHECK(std::isspace(static_cast<unsigned char>(whole[bit / 8])));
    }
    CHECK(passed < int(whole.size()));
}

TEST_CASE("a save that was cut off leaves a folder that is named, not used, and removed by the next save") {
    const Temp temp;
    const std::string older = save_checkpoint(temp.run(), parts(1), 0);
    const std::string newer = save_checkpoint(temp.run(), parts(2), 0);
    fs::rename(newer, temp.run() + "/step-000002.tmp");                          // complete, yet never renamed
    fs::create_directories(temp.run() + "/step-000007.tmp/state");
    put(temp.run() + "/notes.tmp", "not ours");
    const Found found = newest_checkpoint(temp.run());
    CHECK(found.folder == older);
    REQUIRE(found.notes.size() == 2);
    CHECK(contains(found.notes[0], "step-000002.tmp: left by a save"));
    CHECK(contains(found.notes[1], "step-000007.tmp: left by a save"));
    save_checkpoint(temp.run(), parts(3), 0);
    CHECK(names_in(temp.run()) == Names{"notes.tmp", "step-000001", "step-000003"});
}

TEST_CASE("without any checkpoint there is none, and that is no error") {
    const Temp temp;
    CHECK(newest_checkpoint(temp.run("absent")).folder == "");
    CHECK(newest_checkpoint(temp.run("absent")).notes.empty());
    CHECK(newest_run(temp.run("absent")) == "");
    fs::create_directories(temp.run() + "/step-000001/state");
    fs::create_directories(temp.run() + "/step-x");
    const Found found = newest_checkpoint(temp.run());
    CHECK(found.folder == "");
    REQUIRE(found.notes.size() == 1);
    CHECK(contains(found.notes[0], "step-000001: not a complete checkpoint: the mark state/complete is missing"));
    CHECK(newest_run(temp.path.string()) == "");
}

TEST_CASE("C6: rotation keeps as many as asked, counts complete ones only, and orders steps as numbers") {
    const Temp temp;
    for (long step : {999998, 999999, 1000000}) save_checkpoint(temp.run(), parts(step), 2);
    CHECK(names_in(temp.run()) == Names{"step-1000000", "step-999999"});
    CHECK(newest_checkpoint(temp.run()).folder == temp.run() + "/step-1000000");
    fs::remove(temp.run() + "/step-1000000/state/complete");
    save_checkpoint(temp.run(), parts(1000001), 2);
    CHECK(names_in(temp.run()) == Names{"step-1000000", "step-1000001", "step-999999"});
    save_checkpoint(temp.run(), parts(1000002), 0);
    CHECK(names_in(temp.run()).size() == 4);
    save_checkpoint(temp.run(), parts(1000003), 1);
    CHECK(names_in(temp.run()) == Names{"step-1000000", "step-1000003"});
}

TEST_CASE("the folder just saved stays, even if later steps of an abandoned run lie beside it") {
    const Temp temp;
    for (long step : {10, 20, 30}) save_checkpoint(temp.run(), parts(step), 0);
    save_checkpoint(temp.run(), parts(15), 2);
    CHECK(names_in(temp.run()) == Names{"step-000015", "step-000030"});
}

TEST_CASE("saving a step again replaces it, and a cut between the two leaves the older one usable") {
    const Temp temp;
    const std::string folder = save_checkpoint(temp.run(), parts(5), 1), aside = folder + ".old";
    CheckpointParts again = parts(5);
    again.trainer.facts["data"] = "other";
    CHECK(save_checkpoint(temp.run(), again, 1) == folder);
    CHECK(names_in(temp.run()) == Names{"step-000005"});
    CHECK(read_trainer_state(folder).facts["data"] == "other");

    fs::rename(folder, aside);                         // cut after setting aside ...
    CHECK(newest_checkpoint(temp.run()).folder == aside);
    fs::copy(aside, folder, fs::copy_options::recursive);
    fs::remove(folder + "/state/complete");            // ... or before the mark
    Found found = newest_checkpoint(temp.run());
    CHECK(found.folder == aside);
    CHECK(found.notes.size() == 1);
    CHECK(read_trainer_state(found.folder).step == 5);
    save_checkpoint(temp.run(), parts(5), 1);
    CHECK(names_in(temp.run()) == Names{"step-000005"});
    CHECK(read_trainer_state(folder).facts["data"] == "tiny");
}

TEST_CASE("a full disk is one line with file and reason; older checkpoints stay and nothing half-written remains") {
    const Temp temp;
    const std::string older = save_checkpoint(temp.run(), parts(1, 1 << 16), 1);
    const std::string before = get(older + "/state/complete");
    for (const rlim_t bytes : {10, 1000, 5000}) {      // in config.json, in the state or mark, in the weights
        for (const long step : {1, 2}) {
            CAPTURE(bytes);
            CAPTURE(step);
            std::string error;
            {
                const FullDisk full(bytes);
                error = error_of([&] { save_checkpoint(temp.run(), parts(step, 1 << 16), 1); });
            }
            CHECK(contains(error, temp.run() + "/step-00000" + std::to_string(step) + ".tmp/"));
            CHECK(contains(error, "cannot be written: File too large"));
            CHECK(names_in(temp.run()) == Names{"step-000001"});
            CHECK(get(older + "/state/complete") == before);
            CHECK(newest_checkpoint(temp.run()).folder == older);
        }
    }
}

TEST_CASE("a disk that fills at the mark leaves the older one of the same step in its place") {
    const Temp temp;
    CheckpointParts p = parts(1, 2);
    p.state = {source("m", "U8", {1}, "m")}, p.trainer.facts.clear();            // every file is smaller than the mark
    const std::string older = save_checkpoint(temp.run(), p, 1);
    const std::string before = get(older + "/state/complete");
    for (const long step : {1, 2}) {
        p.trainer.step = step;
        std::string error;
        {
            const FullDisk full(before.size() - 1);
            error = error_of([&] { save_checkpoint(temp.run(), p, 1); });
        }
        CHECK(contains(error, "state/complete.tmp: cannot be written: File too large"));
        CHECK(names_in(temp.run()) == Names{"step-000001"});
        CHECK(get(older + "/state/complete") == before);
        CHECK(newest_checkpoint(temp.run()).folder == older);
    }
}

TEST_CASE("C6: a process killed in the middle of a write loses nothing that was complete") {
    const Temp temp;
    const std::string older = save_checkpoint(temp.run(), parts(1, 1 << 16), 1);
    for (const rlim_t bytes : {10, 100, 5000}) {
        for (const long step : {1, 2}) {
            const pid_t child = fork();
            if (child == 0) {                          // the kernel kills it when a file grows too long: no clean-up
                const rlimit none = {0, 0}, small = {bytes, bytes};
                setrlimit(RLIMIT_CORE, &none);
                setrlimit(RLIMIT_FSIZE, &small);
                save_checkpoint(temp.run(), parts(step, 1 << 16), 1);
                _exit(0);
            }
            int status = 0;
            REQUIRE(waitpid(child, &status, 0) == child);
            CHECK(WIFSIGNALED(status));
            const Found found = newest_checkpoint(temp.run());
            CHECK(found.folder == older);
            REQUIRE(found.notes.size() == 1);
            CHECK(contains(found.notes[0], "step-00000" + std::to_string(step) + ".tmp: left by a save"));
        }
    }
    CHECK(save_checkpoint(temp.run(), parts(1), 1) == older);
    CHECK(names_in(temp.run()) == Names{"step-000001"});
}

TEST_CASE("a run folder that cannot be made is one line") {
    const Temp temp;
    put(temp.path / "file", "in the way");
    const std::string run = temp.run("file") + "/run";
    const std::string error = error_of([&] { save_checkpoint(run, parts(1), 1); });
    CHECK(contains(error, run));
    CHECK(contains(error, "Not a directory"));
}

TEST_CASE("C3: the trainer's part of a checkpoint is needed, whole and in range") {
    const Temp temp;
    const std::string folder = save_checkpoint(temp.run(), parts(1), 0), file = folder + "/state/trainer.json";
    const std::string whole = get(file);
    const std::string head = "{\"facts\":{},\"position\":0,\"tokens\":0,\"step\":";
    put(file, head + "9223372036854775807}");
    CHECK(read_trainer_state(folder).step == 9223372036854775807);
    for (const std::string& bad : {std::string(), std::string("{}"), whole.substr(0, whole.size() - 3), head + "-1}",
                                   head + "1.5}", head + "\"1\"}", head + "9223372036854775808}",
                                   head + "18446744073709551616}"}) {
        CAPTURE(bad);
        put(file, bad);
        CHECK(contains(error_of([&] { read_trainer_state(folder); }), file + ": damaged"));
    }
    fs::remove(file);
    CHECK(contains(error_of([&] { read_trainer_state(folder); }), file + ": cannot be opened: No such file"));
}

TEST_CASE("resuming with other data or settings names the first difference") {
    TrainerState saved;
    saved.facts = {{"data", "tiny"}, {"seq", "64"}};
    CHECK_NOTHROW(require_same_facts(saved, {{"seq", "64"}, {"data", "tiny"}}));
    CHECK(error_of([&] { require_same_facts(saved, {{"data", "tiny"}, {"seq", "128"}}); }) ==
          "resume: seq is 128, but the checkpoint was written with 64; set it back, or start a new run");
    CHECK(contains(error_of([&] { require_same_facts(saved, {{"data", "tiny"}}); }), "seq is not given, but"));
    CHECK(contains(error_of([&] { require_same_facts(saved, {{"data", "tiny"}, {"dtype", "bf16"}, {"seq", "64"}}); }),
                   "dtype is bf16, but the checkpoint was written with not given"));
}

TEST_CASE("the newest run is the one that was saved last and holds a complete checkpoint") {
    const Temp temp;
    const std::string out = temp.path.string();
    const auto now = fs::file_time_type::clock::now();
    const std::string a = save_checkpoint(temp.run("a"), parts(1), 0), b = save_checkpoint(temp.run("b"), parts(9), 0),
                      c = save_checkpoint(temp.run("c"), parts(3), 0);
    fs::create_directories(temp.run("d"));
    fs::last_write_time(a + "/state/complete", now);
    fs::last_write_time(b + "/state/complete", now - std::chrono::hours(1));
    fs::last_write_time(c + "/state/complete", now - std::chrono::hours(2));
    CHECK(newest_run(out) == temp.run("a"));
    put(a + "/config.json", "damaged");
    CHECK(newest_run(out) == temp.run("b"));
    fs::remove(b + "/state/complete");
    CHECK(newest_run(out) == temp.run("c"));
}

TEST_CASE("a run that goes on from an earlier step loses what it saved after it, whole or not, and nothing else") {
    const Temp temp;
    for (long step : {10, 20, 30, 40}) save_checkpoint(temp.run(), parts(step), 0);
    fs::remove(temp.run() + "/step-000030/state/complete");
    fs::rename(temp.run() + "/step-000040", temp.run() + "/step-000040.old");
    fs::create_directories(temp.run() + "/step-000020.removed.tmp/state");       // of a clean-up that was cut off
    fs::create_directories(temp.run() + "/step-000030.removed.tmp/state");
    put(temp.run() + "/log.jsonl", "mine");
    discard_after(temp.run(), 20);
    CHECK(names_in(temp.run()) == Names{"log.jsonl", "step-000010", "step-000020"});
    discard_after(temp.run(), 10);
    CHECK(names_in(temp.run()) == Names{"log.jsonl", "step-000010"});
    CHECK(newest_checkpoint(temp.run()).folder == temp.run() + "/step-000010");
    discard_after(temp.run(), 0);
    CHECK(names_in(temp.run()) == Names{"log.jsonl"});
    CHECK_NOTHROW(discard_after(temp.run("absent"), 0));
}

TEST_CASE("looking for the newest run reads no weights") {
    const fs::path counters = "/proc/self/io";         // rchar: bytes asked for by read()
    if (!fs::exists(counters)) return;
    const Temp temp;
    save_checkpoint(temp.run(), parts(1, 1 << 22), 0);
    const auto bytes_read = [&] { return std::stol(get(counters).substr(7)); };
    const long before = bytes_read();
    CHECK(newest_run(temp.path.string()) == temp.run());
    CHECK(bytes_read() - before < 1 << 16);
    require_complete(temp.run() + "/step-000001");     // the counter counts
    CHECK(bytes_read() - before > 1 << 22);
}

}
