// checkpoint_test.cpp - a checkpoint comes back bit for bit or is not used: cut saves, damage, rotation, full disks.
#include "checkpoint.h"
#include "host.h"
#include "model_folder.h"
#include <algorithm>
#include <barrier>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <functional>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace baretrain;

namespace {

using namespace baretrain::test;
using Names = std::vector<std::string>;

struct Temp : TempFolder {
    std::string run(const std::string& name = "run") const { return *this / name; }
};

TensorSource source(const std::string& name, const std::string& dtype, std::vector<long> shape, std::string bytes) {
    return {name, dtype, std::move(shape), [bytes](void* to) { if (to) std::memcpy(to, bytes.data(), bytes.size()); }};
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

// Ranks as threads that save together. Who throws releases the others, which throw too, as in a run.
class Ranks {
public:
    explicit Ranks(int ranks) : barrier_(ranks), given_(size_t(ranks)) {}
    std::vector<Digest> gather(int rank, Digest mine) {
        given_[size_t(rank)] = mine;
        meet();
        const std::vector<Digest> all = given_;
        meet();
        return all;
    }
    // body(group) on each; the first error, or nothing. The first `writers` ranks write state.
    template <class Body> std::string run(int writers, Body body) {
        std::vector<std::thread> threads;
        for (int rank = 0; rank < int(given_.size()); ++rank)
            threads.emplace_back([&, rank] {
                try {
                    body(SaveGroup{rank, rank < writers ? rank : -1, writers,
                                   [&, rank](Digest mine) { return gather(rank, mine); },
                                   [&](const std::string& why) { fail(why); }});
                } catch (const std::exception& e) {
                    fail(e.what());
                }
                barrier_.arrive_and_drop();
            });
        for (std::thread& t : threads) t.join();
        return error_;
    }
private:
    void fail(const std::string& why) {
        const std::lock_guard lock(mutex_);
        if (error_.empty()) error_ = why;
    }
    void meet() {
        barrier_.arrive_and_wait();
        const std::lock_guard lock(mutex_);
        if (!error_.empty()) throw Error("another rank failed");
    }
    std::barrier<> barrier_;
    std::vector<Digest> given_;
    std::mutex mutex_;
    std::string error_;
};

// Tensors one behind the other in a flat segment, each at a multiple of `align`, cut into equal spans for n ranks.
struct Flat {
    struct Tensor {
        std::string name;
        std::vector<long> shape;
        long offset;
        std::vector<float> values;
    };
    std::vector<Tensor> tensors;
    long size = 0;

    Flat(const std::vector<std::vector<long>>& shapes, long align) {
        for (const std::vector<long>& shape : shapes) {
            Tensor t{"t" + std::to_string(tensors.size()), shape, size, {}};
            for (long i = 0; i < (shape.size() > 1 ? shape[0] * shape[1] : shape[0]); ++i)
                t.values.push_back(float(100 * tensors.size()) + 1.0f / float(i + 1));
            size += (long(t.values.size()) + align - 1) / align * align;
            tensors.push_back(t);
        }
    }
    // use(tensor, first, count): what rank r of n owns of each; a count of 0 or less is nothing.
    template <class Use> void each(int r, int n, Use use) const {
        const long part = (size + n - 1) / n;
        for (const Tensor& t : tensors) {
            const long first = std::max(r * part - t.offset, 0L);
            use(t, first, std::min((r + 1) * part - t.offset, long(t.values.size())) - first);
        }
    }
    // What rank r of n writes.
    std::vector<TensorSource> state(int r, int n) const {
        std::vector<TensorSource> list;
        each(r, n, [&](const Tensor& t, long first, long count) {
            const bool whole = count == long(t.values.size());
            if (count > 0)
                list.push_back({whole ? "m." + t.name : piece_name("m." + t.name, first), "F32",
                                whole ? t.shape : std::vector<long>{count}, [&t, first, count](void* to) {
                    std::memcpy(to, t.values.data() + first, size_t(count) * sizeof(float));
                }});
        });
        return list;
    }
    // What n ranks read, each its own, put together.
    std::vector<std::vector<float>> read(const std::vector<std::string>& files, int n) const {
        std::vector<std::vector<float>> all;
        for (const Tensor& t : tensors) all.emplace_back(t.values.size(), -1.0f);
        for (int r = 0; r < n; ++r) {
            std::vector<TensorTarget> targets;
            each(r, n, [&](const Tensor& t, long first, long count) {
                float* const to = all[targets.size()].data() + first;
                targets.push_back({"m." + t.name, "F32", t.shape, {}, first, count});
                if (count > 0) targets.back().store = [=](const void* from) { std::memcpy(to, from, size_t(count) * 4); };
            });
            load_tensors(files, targets);
        }
        return all;
    }
    std::vector<std::vector<float>> values() const {
        std::vector<std::vector<float>> all;
        for (const Tensor& t : tensors) all.push_back(t.values);
        return all;
    }
};

// Saved by `ranks`, of which the first `writers` write.
std::string save_together(const std::string& run, long step, const Flat& flat, int ranks, int writers) {
    const std::string error = Ranks(ranks).run(writers, [&](const SaveGroup& group) {
        CheckpointParts p = parts(step);
        p.state = flat.state(group.writer, writers);
        save_checkpoint(run, p, 0, group);
    });
    CHECK(error == "");
    return run + "/step-00000" + std::to_string(step);
}

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
    load_tensors(state_files(folder), {target("m.w", "F32", {1}, &m), target("v.w", "F32", {1}, &v),
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

TEST_CASE("C15: what any number of ranks saved, any other number reads, bit for bit") {
    const Temp temp;
    const Flat flat({{7}, {8, 8}, {3, 11}, {1}, {2, 64}}, 64);
    for (const int writers : {1, 2, 3, 4}) {
        CAPTURE(writers);
        const std::string folder = save_together(temp.run(), writers, flat, 4, writers);
        const std::vector<std::string> files = state_files(folder);
        CHECK(files.size() == size_t(writers));
        CHECK_NOTHROW(require_complete(folder));
        for (const int n : {1, 2, 3, 4, 8}) CHECK((flat.read(files, n) == flat.values()));
    }
    const std::string four = temp.run() + "/step-000004";
    CHECK(names_in(four + "/state") ==
          Names{"complete", "optimizer-00001-of-00004.safetensors", "optimizer-00002-of-00004.safetensors",
                "optimizer-00003-of-00004.safetensors", "optimizer-00004-of-00004.safetensors", "trainer.json"});
    CHECK(fs::exists(temp.run() + "/step-000001/state/optimizer.safetensors"));
    for (const char* same : {"model.safetensors", "config.json", "tokenizer.json"}) {
        const std::string alone = save_checkpoint(temp.run("alone"), parts(4), 0);
        CHECK(get(four + "/" + same) == get(alone + "/" + same));
    }
}

TEST_CASE("C17: ranks that own a part of a row, or nothing at all, write no empty piece and read none") {
    const Temp temp;
    for (const std::vector<long>& shape : {std::vector<long>{1, 17}, {5}, {1, 1}, {5, 3}, {7}, {33, 2}})
        for (const int ranks : {2, 4, 8}) {
            CAPTURE(shape[0]);
            CAPTURE(ranks);
            const Flat flat({shape}, 1);
            const std::vector<std::string> files = state_files(save_together(temp.run(), 1, flat, ranks, ranks));
            CHECK(files.size() == size_t(ranks));
            long elements = 0;
            for (const std::string& path : files) {
                const SafetensorsFile file(path);
                for (const TensorInfo& t : file.tensors()) {
                    CHECK(t.bytes() > 0);
                    elements += long(t.bytes() / 4);
                }
            }
            CHECK(elements == long(flat.tensors[0].values.size()));              // no padding
            for (const int n : {1, 2, 3, 8}) CHECK((flat.read(files, n) == flat.values()));
        }
}

TEST_CASE("C6: with the state of any writer cut, changed, gone or not listed, the older checkpoint is used") {
    const Temp temp;
    const Flat flat({{7}, {8, 8}, {100}}, 1);
    const std::string older = save_together(temp.run(), 1, flat, 4, 4), newer = save_together(temp.run(), 2, flat, 4, 4);
    REQUIRE(newest_checkpoint(temp.run()).folder == newer);
    const auto falls_back = [&](const std::string& name) {
        const Found found = newest_checkpoint(temp.run());
        CHECK(found.folder == older);
        REQUIRE(found.notes.size() == 1);
        CHECK(contains(found.notes[0], newer + ": not a complete checkpoint: "));
        CHECK(contains(found.notes[0], name));
    };
    for (const std::string& file : state_files(newer)) {
        CAPTURE(file);
        const std::string name = fs::path(file).filename(), whole = get(file);
        std::string changed = whole;
        changed.back() = char(changed.back() ^ 1);
        for (const std::string& bytes : {changed, whole.substr(0, whole.size() - 1), std::string()}) {
            put(file, bytes);
            falls_back(name);
        }
        fs::remove(file);
        falls_back(name);
        put(file, whole);

        const std::string mark = newer + "/state/complete", listed = get(mark);  // three of four, each of them whole
        const size_t at = listed.find("\"state/" + name), end = listed.find('}', at);
        put(mark, listed.substr(0, at) + listed.substr(listed.find('"', end)));
        falls_back("the mark does not list state/optimizer-0000");
        put(mark, listed);
    }
    CHECK(newest_checkpoint(temp.run()).folder == newer);
}

// Collective, as with sharded weights: each rank brings one letter, and all must be at the same tensor.
TEST_CASE("weights that no rank has whole are fetched by all ranks in the order of the file, and are whole in it") {
    const Temp temp;
    Ranks ranks(3);
    const std::string error = ranks.run(3, [&](const SaveGroup& group) {
        CheckpointParts p = parts(1);
        p.state = {source("m." + std::to_string(group.rank), "F32", {1}, "mmmm")};
        p.weights.clear();
        size_t id = 0;
        for (const char* dtype : {"BF16", "F32", "U8", "BF16", "F64"}) {         // the file has wide ones first
            const size_t bytes = dtype_bytes(dtype) * 3, mine = ++id;
            p.weights.push_back({"w" + std::to_string(id), dtype, {3}, [&group, bytes, mine](void* to) {
                std::string text;
                for (const Digest& d : group.gather({mine, uint64_t('a' + group.rank)})) {
                    if (d.bytes != mine) throw Error("ranks are at different tensors");
                    text.append(bytes / 3, char(d.hash));
                }
                if ((to != nullptr) != (group.rank == 0)) throw Error("rank 0 writes, and nobody else");
                if (to) std::memcpy(to, text.data(), bytes);
            }});
        }
        save_checkpoint(temp.run(), p, 0, group);
    });
    CHECK(error == "");
    const SafetensorsFile file(temp.run() + "/step-000001/model.safetensors");
    REQUIRE(file.tensors().size() == 5);
    for (const TensorInfo& t : file.tensors()) {
        std::string bytes(t.bytes(), '?'), expected;
        file.read(t, bytes.data());
        for (const char letter : {'a', 'b', 'c'}) expected.append(bytes.size() / 3, letter);
        CHECK(bytes == expected);
    }
}

TEST_CASE("C19: a rank that fails at any stage of a save ends it for all, and the older checkpoint stays in use") {
    for (const long step : {1, 2})                     // saved again, or behind it
        for (const std::string stage : {"begin", "state", "gather", "weights", "meet"})
            for (int bad = 0; bad < 3; ++bad) {
                CAPTURE(step);
                CAPTURE(stage);
                CAPTURE(bad);
                const Temp temp;
                const Flat flat({{8, 8}}, 1);
                const std::string older = save_together(temp.run(), 1, flat, 3, 3), mark = older + "/state/complete";
                const std::string before = get(mark);
                const std::string error = Ranks(3).run(3, [&](SaveGroup group) {
                    const auto fail_at = [&, rank = group.rank](const std::string& now) {
                        if (now == stage && rank == bad) throw Error("rank " + std::to_string(rank) + " fails");
                    };
                    CheckpointParts p = parts(step);
                    p.state = flat.state(group.rank, 3);
                    const auto fetch_state = p.state[0].fetch, fetch_weights = p.weights[0].fetch;
                    p.state[0].fetch = [&](void* to) { fail_at("state"), fetch_state(to); };
                    p.weights[0].fetch = [&](void* to) { fail_at("weights"), fetch_weights(to); };
                    long calls = 0;
                    const auto gather = group.gather;
                    group.gather = [&](Digest mine) {
                        const char* const stages[] = {"begin", "gather", "meet"};
                        fail_at(stages[calls++]);
                        return gather(mine);
                    };
                    p.trainer.tokens = 99;
                    save_checkpoint(temp.run(), p, 0, group);
                });
                CHECK(error == "rank " + std::to_string(bad) + " fails");
                const Found found = newest_checkpoint(temp.run());
                const bool marked = read_trainer_state(found.folder).tokens == 99;
                const bool late = stage == "meet" || (stage == "weights" && bad > 0);   // rank 0 needs nobody any more:
                if (!late || bad == 0) CHECK(marked == late);                           // it may have come to the end
                if (!marked) CHECK(found.folder == older);
                if (!marked) CHECK(get(mark) == before);
                CHECK((flat.read(state_files(found.folder), 2) == flat.values()));
                const std::string next = save_together(temp.run(), 3, flat, 3, 3);
                CHECK(newest_checkpoint(temp.run()).folder == next);
                CHECK(newest_checkpoint(temp.run()).notes.empty());
            }
}

}
