// processes_test.cpp - the program under mpirun: the run of thread ranks to the bit, and all that ends it.
// Skipped, with a word, where there is no mpirun; a program built without MPI is asked for the line that says so.
#include "program.h"
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace {

using namespace baretrain::test;

struct Lab : TempFolder {
    Lab() { put("text.txt", prose(20000)); }
    Result go(const std::string& out, const Words& more, const Words& launcher = {}) const {
        return run(path, flags(out) + more, launcher);
    }
    static Words flags(const std::string& out) {
        return {"--data", "text.txt", "--out", out, "--layers", "1", "--dim", "16", "--heads", "2", "--seq", "16",
                "--batch", "2", "--steps", "6", "--eval-every", "3", "--sample-every", "0", "--lr", "1e-2"};
    }
    // The lines of the log without what the clock makes of them.
    std::vector<nlohmann::json> log(const std::string& out) const {
        std::vector<nlohmann::json> lines;
        std::ifstream in(path / out / "log.jsonl");
        for (std::string line; std::getline(in, line);) {
            nlohmann::json j = nlohmann::json::parse(line);
            for (const char* key : {"tokens_per_s", "mfu", "resident", "ms"}) j.erase(key);
            lines.push_back(j);
        }
        return lines;
    }
    std::map<std::string, std::string> files(const std::string& folder) const {
        std::map<std::string, std::string> all;
        for (const auto& e : fs::recursive_directory_iterator(path / folder))
            if (e.is_regular_file()) all[fs::relative(e.path(), path / folder).string()] = get(e.path());
        return all;
    }
};

size_t errors(const Result& r) { return count("\n" + r.err, "\ntrain_gpt: "); }

}  // namespace

TEST_SUITE("processes") {

TEST_CASE("processes of mpirun give the losses, norms and checkpoints of threads, to the bit, in every layout") {
    if (!with_mpi()) return;
    const std::vector<std::pair<int, Words>> layouts = {
        {2, {}}, {3, {"--shard", "zero1", "--tokens-per-step", "192"}}, {2, {"--shard", "zero2", "--dtype", "bf16"}},
        {2, {"--tp", "2", "--sp", "--stats", "2"}}, {4, {"--shard", "fsdp", "--tp", "2"}},
        {4, {"--shard", "fsdp"}}, {4, {"--shard", "fsdp", "--replicate", "2", "--check-collectives"}}};
    for (const auto& [ranks, layout] : layouts) {
        const Lab lab;
        const Result threads = lab.go("threads", layout + Words{"--ranks", std::to_string(ranks)});
        const Result processes = lab.go("processes", layout, mpirun(ranks));
        CAPTURE(ranks);
        INFO(threads.err, processes.err);
        REQUIRE(threads.code == 0);
        REQUIRE(processes.code == 0);
        CHECK(lab.log("threads").size() == 6);
        CHECK(lab.log("threads") == lab.log("processes"));
        CHECK(lab.files("threads/step-000006") == lab.files("processes/step-000006"));
        CHECK(count(processes.out, "step 6/6") == 1);   // one rank speaks
        const auto facts = nlohmann::json::parse(get(lab.path / "processes/run.json"));
        CHECK(facts["engine"] == "MPI");
        CHECK(facts["ranks"] == ranks);
        CHECK(facts["team"] == 1);
        if (ranks != 2 || layout.empty() || layout[0] != "--tp") continue;
        const Words ask = {"generate", "--model", "threads/step-000006", "--temperature", "0"};
        const Result one = run(lab.path, ask + Words{"--tp", "2"}), both = run(lab.path, ask, mpirun(2));
        CHECK(one.code == 0);
        CHECK(both.code == 0);
        CHECK(both.out == one.out);                    // the processes are the ranks of tp
        CHECK(run(lab.path, ask + Words{"--tp", "1"}, mpirun(2)).err ==
              "train_gpt: --tp 1: there are 2 processes; leave it out\n");
    }
}

TEST_CASE("a run of threads goes on as processes, with the same bits") {
    if (!with_mpi()) return;
    const Lab lab;
    REQUIRE(lab.go("straight", {"--ranks", "2"}).code == 0);
    REQUIRE(lab.go("cut", {"--ranks", "2", "--save-every", "3"}).code == 0);
    const Result r = run(lab.path, {"--resume", "cut/step-000003"}, mpirun(2));
    INFO(r.err);
    CHECK(r.code == 0);
    CHECK(lab.log("straight") == lab.log("cut"));
}

TEST_CASE("--ranks is left out under mpirun, or says the same") {
    if (!with_mpi()) return;
    const Lab lab;
    const Result other = lab.go("run", {"--ranks", "3"}, mpirun(2));
    CHECK(other.code == 2);
    CHECK(other.err == "train_gpt: --ranks 3: there are 2 processes; leave it out\n");
    CHECK(!fs::exists(lab.path / "run"));
    CHECK(lab.go("run", {"--ranks", "2"}, mpirun(2)).code == 0);
    CHECK(lab.go("alone", {}, mpirun(1)).code == 0);
}

TEST_CASE("a file stop saves and ends a run of processes") {
    if (!with_mpi()) return;
    const Lab lab;
    Child child(lab.path, lab.flags("run") + Words{"--steps", "1000000"}, mpirun(3));
    REQUIRE(child.wait_for([&] { return lab.log("run").size() >= 2; }));
    lab.put("run/stop", "");
    const Result r = child.wait();
    CHECK(r.code == 0);
    CHECK(contains(r.out, "stopped after "));
    char folder[32];
    std::snprintf(folder, sizeof folder, "run/step-%06zu", lab.log("run").size());
    CHECK(fs::exists(lab.path / folder));
}

TEST_CASE("C19: an error of all processes is said once, and the exit code is that of a single process") {
    if (!with_mpi()) return;
    const Lab lab;
    const Result usage = lab.go("run", {"--lr", "fast"}, mpirun(3));
    CHECK(usage.code == 2);
    CHECK(errors(usage) == 1);
    const Result data = lab.go("run", {"--data", "nowhere.txt"}, mpirun(3));
    CHECK(data.code == 1);
    CHECK(errors(data) == 1);
    CHECK(contains(data.err, "nowhere.txt"));
}

TEST_CASE("C19: one process killed ends the job within 10 s") {
    if (!with_mpi()) return;
    const Lab lab;
    Child child(lab.path, lab.flags("run") + Words{"--steps", "1000000"}, mpirun(3));
    REQUIRE(child.wait_for([&] { return lab.log("run").size() >= 2; }));
    const std::set<pid_t> ranks = child.children();
    REQUIRE(ranks.size() == 3);
    ::kill(*std::next(ranks.begin()), SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    CHECK(child.wait().code != 0);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("what torchrun and srun set is understood, and refused by a CPU build in one line") {
    const Lab lab;
    const Words torch = {"env", "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=29400"};
    const Result t = lab.go("run", {}, torch);
    CHECK(t.code == 1);
    CHECK(t.err == "train_gpt: WORLD_SIZE=2: started by torchrun, which needs a GPU build with NCCL (make cuda); "
                   "on CPUs take --ranks N or mpirun\n");
    const Words slurm = {"env", "SLURM_PROCID=0", "SLURM_NTASKS=2"};
    CHECK(contains(lab.go("run", {"--rendezvous", "node1:29500"}, slurm).err, "SLURM_NTASKS=2: started by srun"));
    for (const char* wrong : {"node1", "node1:", "node1:port"}) {
        const Result r = lab.go("run", {"--rendezvous", wrong}, slurm);
        CHECK(r.code == 1);
        CHECK(contains(r.err, "expected HOST:PORT of rank 0"));
        CHECK(errors(r) == 1);
    }
    CHECK(lab.go("run", {}, slurm).code == 0);          // inside a job of Slurm, but not started as its processes
}

TEST_CASE("the mpirun line of the README works as it is written") {
    if (!with_mpi()) return;
    const Lab lab;
    std::string line = get("README.md");
    const size_t begin = line.find("\nmpirun ") + 1, end = line.find(" #", begin);
    REQUIRE(begin > 0);
    line = line.substr(begin, end - begin);
    const size_t name = line.find("./train_gpt ");
    REQUIRE(name != std::string::npos);
    line.replace(name, 11, program());
    for (const std::string& word : lab.flags("run")) line += " " + word;
    const std::string command = "cd " + lab.path.string() + " && " + line + " > stdout 2> stderr";
    CHECK(std::system(command.c_str()) == 0);
    CHECK(lab.log("run").size() == 6);
    CHECK(get(lab.path / "stderr") == "");
}

}
