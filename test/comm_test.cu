// comm_test.cu - collectives between ranks, against plain loops: as threads here, and the same under mpirun.
#include "comm/mpi.h"
#include "comm/threads.h"
#include "comm_cases.h"
#include "host.h"
#include <csignal>
#include <cstdlib>
#include <sys/wait.h>

namespace {

using namespace baretrain;
using namespace baretrain::test;

const Axis data_axis = Axis::dp_shard;
const std::array<int, 5> four = {1, 1, 4, 1, 1};

// body(comm, rank) for each rank of a mesh, as threads.
template <class Body> void on_threads(const std::array<int, 5>& sizes, Body body, bool check = false) {
    ThreadWorld world;
    const Mesh mesh{sizes};
    run_threads(world, mesh.ranks(), [&](int rank) {
        Device d{.team = 1};
        const Mesh mine{sizes, rank};
        ThreadEngine engine(world, mine, d);
        Comm comm(d, mine, &engine, check);
        body(comm, rank);
    });
}

// This test program once more, as the processes of mpirun; `what` each of them is to do comes by the environment.
struct MpiRun { int code; std::string out, error; double seconds; };
MpiRun under_mpirun(int ranks, const std::string& what) {
    const TempFolder folder;
    const auto begin = std::chrono::steady_clock::now();
    const std::string command = concat(
        "BT_MPI_CASE='", what, "' OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 timeout 60 mpirun -q --allow-run-as-root",
        " --oversubscribe -n ", ranks, " ", fs::read_symlink("/proc/self/exe").string(), " -nc -tc='as processes*' > ",
        folder / "out", " 2> ", folder / "error");
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), get(folder / "out"), get(folder / "error"), seconds_since(begin)};
}
// A process of under_mpirun().
void be_a_rank(const std::string& what) {
    const auto report = [] {
        try {
            throw;
        } catch (const std::exception& e) {
            std::fprintf(stderr, "error: %s\n", e.what());
        }
        return 3;
    };
    CHECK(run_mpi([&](auto& world) {
        const bool cross = what == "cross";
        const Mesh mesh{{1, cross ? 2 : 1, cross ? 2 : world.ranks, 1, 1}, world.rank};
        Device d{.team = 1};
        if (what == "all" || cross) {                  // small pieces too: what is longer comes in several
            for (const long piece : {256 << 10, 64, 8}) {
                typename std::decay_t<decltype(world)>::Engine engine(world, mesh, d, piece);
                Comm comm(d, mesh, &engine);
                check_all(comm);
            }
            return 0;
        }
        typename std::decay_t<decltype(world)>::Engine engine(world, mesh, d);
        Comm comm(d, mesh, &engine, what.starts_with("clash"));
        const Filled<float> x(5, [](long) { return 1.f; });
        comm.await(comm.sum(data_axis, x.v(), {"test"}));
        const bool odd = world.rank == 2;
        if (what == "throw at once" && odd) fail("rank 2: the disk is full");
        if (what == "abort" && odd) comm.abort("rank 2: the disk is full");
        if (what == "throw, all") fail("rank ", world.rank, ": the disk is full");
        if (what == "end" && odd) return 0;
        Pending p = comm.sum(data_axis, x.v(), {"test"});
        if (what == "throw amid a call" && odd) fail("rank 2: the disk is full");
        if (what == "never await" && odd) return 0;
        if (what == "kill" && odd) std::raise(SIGKILL);
        comm.await(p);
        if (what != "clash") return 0;
        comm.await(odd ? comm.max(data_axis, x.v(), {"test"}) : comm.sum(data_axis, x.v(), {"test"}));
        return 0;
    }, report) == 0);
}

// Not with fibers: what processes do is no kernel.
bool mpirun_there() {
    if (max_threads > 1) return false;
    const bool there = have_mpi && std::system("command -v mpirun > /dev/null") == 0;
    if (!there) MESSAGE("skipped: no mpirun, or built without MPI");
    return there;
}
std::string lines_with(const std::string& text, const std::string& part) {
    std::string all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
        if (contains(line, part)) all += line + "\n";
    return all;
}


}  // namespace

TEST_SUITE("comm") {

TEST_CASE("a rank stands where its coordinates say, and those lead back to it") {
    for (const std::array<int, 5>& sizes : {std::array<int, 5>{1, 1, 1, 1, 1}, {2, 3, 4, 1, 2}, {3, 1, 2, 2, 2}}) {
        const Mesh whole{sizes};
        CHECK(whole.ranks() == sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizes[4]);
        for (int rank = 0; rank < whole.ranks(); ++rank) {
            const Mesh m{sizes, rank};
            int back = 0;
            for (Axis a : all_axes) {
                CHECK(m.at(a) >= 0);
                CHECK(m.at(a) < m.size(a));
                back = back * m.size(a) + m.at(a);
                CHECK(m.peer(a, m.at(a)) == rank);
                const std::vector<int> group = m.group(a);
                CHECK(long(group.size()) == m.size(a));
                for (int i = 0; i < m.size(a); ++i) {  // the others of the group have the same group, and stand at i
                    CHECK(group[size_t(i)] == m.peer(a, i));
                    const Mesh other{sizes, group[size_t(i)]};
                    CHECK(other.at(a) == i);
                    CHECK(other.group(a) == group);
                    for (Axis b : all_axes)
                        if (b != a) CHECK(other.at(b) == m.at(b));
                }
            }
            CHECK(back == rank);                       // pp outermost, tp innermost
        }
    }
    const Mesh m{{1, 2, 3, 1, 1}, 4};
    CHECK(m.dp() == 6);
    CHECK(m.dp_rank() == 4);
    CHECK(Mesh{{1, 2, 3, 1, 4}, 21}.dp_rank() == 5);
}

TEST_CASE("every operation of 1 to 4 threads is a plain loop in the order of ranks, to the bit; bytes are as stated") {
    for (int n : {1, 2, 3, 4}) {
        CAPTURE(n);
        on_threads({1, 1, n, 1, 1}, [](Comm& comm, int) { check_all(comm); });
    }
}

TEST_CASE("groups of a mesh of several axes do not hear each other") {
    for (const std::array<int, 5>& sizes : {std::array<int, 5>{1, 2, 2, 1, 1}, {2, 1, 1, 1, 2}, {1, 2, 2, 1, 2}})
        on_threads(sizes, [](Comm& comm, int) { check_all(comm); });
}

TEST_CASE("without an engine the ledger is that of a rank that has peers, and nothing is touched") {
    Device dry{.dry = true};
    Comm plan(dry, {{1, 2, 3, 1, 1}, 4});
    const View<float> x(nullptr, 1, 7);
    plan.await(plan.sum(Axis::dp_shard, x, {"a"}));
    plan.await(plan.sum(Axis::dp_replicate, x, {"a"}));
    plan.await(plan.sum(Axis::tp, x, {"a"}));          // of one rank: no call
    plan.await(plan.gather<float>(Axis::dp_shard, {nullptr, 1, 21}, {nullptr, 1, 7}, {"b"}));
    plan.sum_dp(x, {"a"});
    CHECK(plan.ledger.size() == 3);
    CHECK(plan.ledger.at({Axis::dp_shard, Op::sum, "a"}).bytes == 2 * 2 * 2 * 3 * 4);
    CHECK(plan.ledger.at({Axis::dp_shard, Op::sum, "a"}).calls == 2);
    CHECK(plan.ledger.at({Axis::dp_replicate, Op::sum, "a"}).bytes == 2 * 2 * 4 * 4);
    CHECK(plan.ledger.at({Axis::dp_shard, Op::gather, "b"}).bytes == 2 * 7 * 4);
    CHECK(plan.ledger.begin()->first.text() == "dp_replicate.sum.a");
    CHECK(!plan.first());
}

TEST_CASE("C19: a rank that throws ends all others, wherever they wait, with its error on one line") {
    for (int thrower : {0, 1, 3})
        for (long before : {0, 1, 2}) {                // calls that still go well; at 2, others are in the midst of one
            const std::string error = error_of([&] {
                on_threads(four, [&](Comm& comm, int rank) {
                    const Filled<double> x(5, [](long) { return 1.; });
                    for (long i = 0; i < 3; ++i) {
                        Pending p = comm.sum(data_axis, x.v(), {"test"});
                        if (rank == thrower && i == before) fail("the disk is full");
                        comm.await(p);
                    }
                });
            });
            CHECK(error == concat("rank ", thrower, ": the disk is full"));
        }
}

TEST_CASE("C19: a rank that ends early ends all others; who waits for whom, and where, is said") {
    const std::string error = error_of([] {
        on_threads(four, [](Comm& comm, int rank) {
            const Filled<float> x(5, [](long) { return 1.f; });
            for (int i = 0; i < (rank == 2 ? 1 : 2); ++i) comm.await(comm.sum(data_axis, x.v(), {"test"}));
        });
    });
    CHECK(contains(error, "rank 0 at sum of 5 fp32 on dp_shard (test/comm_test.cu:"));
    CHECK(contains(error, "rank 2 has ended"));
}

TEST_CASE("calls on different axes that wait for each other are an error, not a hang") {
    const std::string error = error_of([] {
        on_threads({1, 2, 2, 1, 1}, [](Comm& comm, int rank) {
            const Filled<bf16> x(8, [](long) { return bf16(1.f); });
            comm.await(comm.sum(rank == 1 ? Axis::dp_replicate : data_axis, x.v(), {"test"}));
        });
    });
    CHECK(contains(error, "ranks wait for what will never come: rank 0 at sum of 8 bf16 on dp_shard"));
    CHECK(contains(error, "rank 1 at sum of 8 bf16 on dp_replicate"));
}

TEST_CASE("a call that is started and never awaited is an error that names its line; so is one awaited twice") {
    for (bool all : {true, false}) {
        const std::string error = error_of([&] {
            on_threads({1, 1, 2, 1, 1}, [&](Comm& comm, int rank) {
                const Filled<float> x(5, [](long) { return 1.f; });
                Pending p = comm.sum(data_axis, x.v(), {"test"});
                if (!all && rank == 1) comm.await(p);
            });
        });
        CHECK(contains(error, "sum of 5 fp32 on dp_shard (test/comm_test.cu:"));
        CHECK(contains(error, "was started, but never awaited"));
    }
    Device dry{.dry = true};
    CHECK_THROWS_WITH_AS(
        [&] {
            Comm plan(dry, {four, 0});
            (void)plan.max(data_axis, View<float>(nullptr, 1, 8), {"test"});
        }(), doctest::Contains("was started, but never awaited"), Error);
    const std::string twice = error_of([&] {
        Comm plan(dry, {four, 0});
        Pending p = plan.max(data_axis, View<float>(nullptr, 1, 8), {"test"}), again = p;
        plan.await(p), plan.await(p);                  // the second has nothing to wait for
        plan.await(again);
    });
    CHECK(contains(twice, "awaited a second time"));
}

TEST_CASE("ranks that start different calls are told so, with the lines of both, before anything is overwritten") {
    const auto clash = [](bool check, auto second) {
        return error_of([&] {
            on_threads({1, 1, 2, 1, 1}, [&](Comm& comm, int rank) {
                const Filled<float> x(rank == 1 ? 8 : 6, [](long) { return 1.f; });
                if (rank == 1) second(comm, x.v());
                else comm.await(comm.sum(data_axis, x.v(), {"test"}));
            }, check);
        });
    };
    const int line = __LINE__ - 4;
    const auto is = [&](const std::string& error, const std::string& other, int others_line, const char* from = "") {
        const std::string zero = concat("rank 0 is at sum of 6 fp32 on dp_shard (test/comm_test.cu:", line, ")");
        const std::string one =
            concat("rank 1 is at ", other, " on dp_shard", from, " (test/comm_test.cu:", others_line, ")");
        const auto at = [](std::string s) { return s.erase(7, 3); };   // "rank 0 at": how the second is named
        CHECK((contains(error, zero + ", " + at(one)) || contains(error, one + ", " + at(zero))));
    };
    for (bool check : {false, true}) {
        is(clash(check, [](Comm& c, View<float> x) { c.await(c.max(data_axis, x, {"x"})); }),
           "max of 8 fp32", __LINE__ - 1);
        is(clash(check, [](Comm& c, View<float> x) { c.await(c.sum(data_axis, x, {"x"})); }),
           "sum of 8 fp32", __LINE__ - 1);
    }
    is(clash(true, [](Comm& c, View<float> x) { c.await(c.sum(data_axis, x.col_range(0, 6), {"x"})); }),
       "sum of 6 fp32", __LINE__ - 1);
    is(clash(true, [](Comm& c, View<float>) { c.await(c.sum(data_axis, View<float>(), {"x"})); }),
       "sum of 0 fp32", __LINE__ - 1);
    is(clash(true, [](Comm& c, View<float> x) { c.await(c.broadcast(data_axis, x.col_range(0, 6), 1, {"x"})); }),
       "broadcast of 6 fp32", __LINE__ - 1, " from 1");
}

TEST_CASE("checked calls give the same ledger as others") {
    Ledger ledgers[2];
    for (bool check : {false, true})
        on_threads(four, [&](Comm& comm, int rank) {
            const Filled<float> x(8, [](long) { return 1.f; });
            comm.await(comm.sum(data_axis, x.v(), {"test"}));
            if (rank == 1) ledgers[check] = comm.ledger;
        }, check);
    const auto of = [](const Ledger& l) { return l.at({data_axis, Op::sum, "test"}); };
    CHECK(ledgers[0].size() == 1);
    CHECK(ledgers[1].size() == 1);
    CHECK(of(ledgers[0]).bytes == of(ledgers[1]).bytes);
    CHECK(of(ledgers[0]).calls == of(ledgers[1]).calls);
}

TEST_CASE("contracts of calls: equal parts, a peer on the axis, rows without gaps") {
    Device d{.dry = true};
    Comm comm(d, {four, 1});
    const auto error = [](auto call) { return error_of([&] { (void)call(); }); };
    const auto view = [](long n) { return View<float>(nullptr, 1, n); };
    CHECK(contains(error([&] { return comm.gather(data_axis, view(9), view(2), {"x"}); }), "test/comm_test.cu:"));
    CHECK(contains(error([&] { return comm.scatter(data_axis, view(9), {"x"}); }), "n equal parts"));
    CHECK(contains(error([&] { return comm.all_to_all(data_axis, view(9), view(9), {"x"}); }), "n equal parts"));
    CHECK(contains(error([&] { return comm.send<float>(data_axis, view(9), 1, {"x"}); }), "another rank"));
    CHECK(contains(error([&] { return comm.receive(data_axis, view(9), 4, {"x"}); }), "a peer on the axis"));
    CHECK(contains(error([&] { return comm.broadcast(data_axis, view(9), -1, {"x"}); }), "a peer on the axis"));
    CHECK(contains(error([&] { return comm.sum(data_axis, View<float>(nullptr, 2, 3, 4), {"x"}); }), "without gaps"));
    CHECK(comm.ledger.empty());
}

TEST_CASE("as processes under mpirun every operation gives the bits that threads give: those of a plain loop") {
    if (const char* what = std::getenv("BT_MPI_CASE")) return be_a_rank(what);
    if (!mpirun_there()) return;
    for (int ranks : {1, 2, 3, 4}) {
        const MpiRun r = under_mpirun(ranks, "all");
        INFO(r.out, r.error);
        CHECK(r.code == 0);
        CHECK(count(r.out, " 1 passed | 0 failed") == size_t(ranks));
    }
    const MpiRun r = under_mpirun(4, "cross");
    INFO(r.out, r.error);
    CHECK(r.code == 0);
}

TEST_CASE("C19: under mpirun a rank that throws, ends early or is killed ends the job within 10 s, with one line") {
    if (!mpirun_there()) return;
    const std::string thrown = "error: rank 2: the disk is full\n", at = "sum of 5 fp32 on dp_shard (test/comm_test.cu";
    const auto one_line = [](const char* what) {
        const MpiRun r = under_mpirun(4, what);
        CAPTURE(what);
        CAPTURE(r.error);
        CHECK(r.code != 0);
        CHECK(r.seconds < 10);
        const std::string lines = lines_with(r.error, "error: ");
        CHECK(count(lines, "\n") == (std::string(what) == "kill" ? 0 : 1));
        return lines;
    };
    CHECK(one_line("throw at once") == thrown);
    CHECK(one_line("throw amid a call") == thrown);
    CHECK(one_line("abort") == thrown);
    CHECK(one_line("throw, all") == "error: rank 0: the disk is full\n");
    CHECK(one_line("kill") == "");
    CHECK(contains(one_line("end"), "error: rank 2 has ended, but is waited for at " + at));
    CHECK(contains(one_line("never await"), at));
    const std::string clash = one_line("clash");
    CHECK(contains(clash, "error: ranks disagree: rank "));
    CHECK(contains(clash, "max of 5 fp32 on dp_shard (test/comm_test.cu:"));
    CHECK(contains(clash, at));
}

}
