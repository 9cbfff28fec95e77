// mpi.h - ranks as processes, by MPI. It only moves bytes: sums are taken here, in the order of ranks, as by threads.
// Copy with: comm/combine.h and what it names
// Every call is messages between two ranks each. Those of a gather, an all_to_all, a broadcast and a pair are all under
// way from the start, in pieces that MPI can count. Parts to be summed are sent from the start too, in small pieces;
// await() receives one of each peer at a time, into scratch that is bounded, and adds. A sum then gathers the parts.
// Ranks per process: one. On GPUs MPI only brings the ranks together: data go by NCCL. Without -DBT_MPI: stand-ins.
#pragma once
#include "comm/combine.h"
#include <thread>
#if defined(BT_MPI)
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

namespace baretrain {

#if defined(BT_MPI)

inline constexpr bool have_mpi = true;

inline void check_mpi(int status, const Call* call = nullptr) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    MPI_Error_string(status, text, &length);
    fail("MPI: ", text, call ? " at " + call->text() : "");
}

// This process among the others; one a program.
class MpiWorld {
public:
    int rank = 0, ranks = 1, local = 0, here = 1;      // local, here: the same among those on this host
    MpiWorld() {
        int provided = 0;
        check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);   // what is split off inherits it
        check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &notices_));
        MPI_Comm_rank(notices_, &rank), MPI_Comm_size(notices_, &ranks);
        MPI_Comm host;
        check_mpi(MPI_Comm_split_type(notices_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host));
        MPI_Comm_rank(host, &local), MPI_Comm_size(host, &here);
        MPI_Comm_free(&host);
    }
    MpiWorld(const MpiWorld&) = delete;

    // Until these are done; an error when they never will be, as one of the others has ended.
    void wait(std::vector<MPI_Request>& requests, const Call& call, const std::vector<int>& others) {
        for (int done = 0;; std::this_thread::yield()) {
            check_mpi(MPI_Testall(int(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), &call);
            if (done) return requests.clear();
            hear();
            for (const int other : others)
                if (const auto e = ended_.find(other); e != ended_.end() && milliseconds_since(e->second) > patience)
                    fail("rank ", other, " has ended, but is waited for at ", call.text());
        }
    }
    // Tells the others that this rank takes part in nothing any more, and ends when all have said so.
    void finish() {
        std::vector<MPI_Request> said;
        for (int r = 0; r < ranks; ++r)
            if (r != rank) check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, r, 0, notices_, &said.emplace_back()));
        for (; int(ended_.size()) < ranks - 1; std::this_thread::sleep_for(std::chrono::milliseconds(1))) hear();
        check_mpi(MPI_Waitall(int(said.size()), said.data(), MPI_STATUSES_IGNORE));
        check_mpi(MPI_Finalize());
    }
private:
    static constexpr double patience = 2000;           // ms: a last message may be overtaken by the notice
    void hear() {
        for (int there = 0;;) {
            MPI_Status status;
            check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, 0, notices_, &there, &status));
            if (!there) return;
            check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, 0, notices_, MPI_STATUS_IGNORE));
            ended_[status.MPI_SOURCE] = std::chrono::steady_clock::now();
        }
    }
    MPI_Comm notices_ = MPI_COMM_NULL;
    std::map<int, std::chrono::steady_clock::time_point> ended_;
};

class MpiEngine final : public Engine {
public:
    // piece: bytes of a part to be summed that travel at once; message: most bytes of any other message.
    MpiEngine(MpiWorld& world, const Mesh& mesh, const Device& device, long piece = 256 << 10, long message = 1 << 30)
        : world_(world), mesh_(mesh), device_(device), piece_(piece), message_(message) {
        require(!on_gpu, "mpi: memory of the host; on GPUs data go by NCCL");
        require_equal(mesh.ranks(), world.ranks, "mpi: ranks of the mesh and of mpirun");
        device_.watch = nullptr;
        for (Axis a : all_axes) {
            require(mesh.size(a) <= most_combined, "mpi: ranks of an axis");
            check_mpi(MPI_Comm_split(MPI_COMM_WORLD, mesh.peer(a, 0), mesh.at(a), &axes_[size_t(a)]));
        }
    }
    long start(const Call& c) override;
    long await(long ticket) override;
    void abort(const std::string&) noexcept override { MPI_Abort(MPI_COMM_WORLD, 1); }
private:
    using Requests = std::vector<MPI_Request>;
    // Messages between two ranks arrive in the order in which they were sent; tags tell calls apart. A sum has two
    // rounds of messages, and the times of who is watched travel too.
    enum Round { data, sums, times, rounds };
    struct Mine {
        Call call;
        int tag;
        Requests requests = {};
        std::vector<long> times = {};                  // of the others
    };
    MPI_Comm comm(const Call& c) const { return axes_[size_t(c.axis)]; }
    std::vector<int> peers(const Call& c) const {      // on the axis, my next neighbour first
        std::vector<int> all;
        for (int k = 1; !c.pair() && k < mesh_.size(c.axis); ++k) all.push_back((mesh_.at(c.axis) + k) % mesh_.size(c.axis));
        return c.pair() ? std::vector{c.peer} : all;
    }
    void wait(Requests& requests, const Call& c) {
        std::vector<int> others = peers(c);
        for (int& r : others) r = mesh_.peer(c.axis, r);
        world_.wait(requests, c, others);
    }
    void send(Requests& to, const Mine& m, const void* from, long bytes, int peer, Round round = data) {
        for (long at = 0; at < bytes; at += message_)
            check_mpi(MPI_Isend(static_cast<const char*>(from) + at, int(std::min(message_, bytes - at)), MPI_BYTE, peer,
                                m.tag + round, comm(m.call), &to.emplace_back()), &m.call);
    }
    void receive(Requests& to, const Mine& m, void* into, long bytes, int peer, Round round = data) {
        for (long at = 0; at < bytes; at += message_)
            check_mpi(MPI_Irecv(static_cast<char*>(into) + at, int(std::min(message_, bytes - at)), MPI_BYTE, peer,
                                m.tag + round, comm(m.call), &to.emplace_back()), &m.call);
    }
    void send_parts(Mine& m);
    template <class T> void add_up(Mine& m);
    MpiWorld& world_;
    const Mesh mesh_;
    Device device_;
    const long piece_, message_;
    std::array<MPI_Comm, 5> axes_{};
    std::array<int, 5> calls_{};                       // so far, on each axis
    std::map<long, Mine> under_way_;
    long tickets_ = 0;
    std::vector<char> scratch_;
};

inline long MpiEngine::start(const Call& c) {
    const int me = mesh_.at(c.axis), number = c.pair() ? 0 : 1 + calls_[size_t(c.axis)]++ % 8000;   // a pair: its order
    Mine& m = under_way_[++tickets_] = {c, number * rounds};
    Requests& all = m.requests;
    const long part = c.bytes() / mesh_.size(c.axis);
    char* const data = static_cast<char*>(c.data);
    const char* const from = static_cast<const char*>(c.from);
    if (c.op == Op::gather) copy_part(device_, data + me * part, from, part);
    if (c.op == Op::all_to_all) copy_part(device_, data + me * part, from + me * part, part);
    if (c.op == Op::scatter || c.op == Op::sum || c.op == Op::max) send_parts(m);
    m.times.assign(size_t(mesh_.size(c.axis)), c.time);
    for (const int r : peers(c)) {
        if (c.op == Op::gather) send(all, m, from, part, r), receive(all, m, data + r * part, part, r);
        if (c.op == Op::all_to_all) send(all, m, from + r * part, part, r), receive(all, m, data + r * part, part, r);
        if (c.op == Op::send || (c.op == Op::broadcast && me == c.peer)) send(all, m, data, c.bytes(), r);
        if (c.op == Op::receive || (c.op == Op::broadcast && r == c.peer)) receive(all, m, data, c.bytes(), r);
        if (c.time < 0) continue;
        send(all, m, &m.call.time, sizeof(long), r, times);
        receive(all, m, &m.times[size_t(r)], sizeof(long), r, times);
    }
    return tickets_;
}

inline long MpiEngine::await(long ticket) {
    Mine& m = under_way_.at(ticket);
    const Op op = m.call.op;
    if (op == Op::scatter || op == Op::sum || op == Op::max)
        with_type(m.call.type, [&](auto type) { add_up<decltype(type)>(m); });
    wait(m.requests, m.call);
    const long latest = *std::max_element(m.times.begin(), m.times.end());
    under_way_.erase(ticket);
    return latest;
}

// What add_up() of the others will receive, in its order: the first piece of each one's part, the second of each, ...
inline void MpiEngine::send_parts(Mine& m) {
    const Call& c = m.call;
    const int n = mesh_.size(c.axis);
    const long size = type_bytes[int(c.type)], each = std::max(1l, piece_ / size);
    for (long begin = 0; begin < part_of(c.count, n); begin += each)
        for (const int r : peers(c)) {
            const Piece part = piece_of(c.count, n, r);
            const char* const from = static_cast<const char*>(c.data) + (part.begin + begin) * size;
            send(m.requests, m, from, std::min(each, part.count - begin) * size, r);
        }
}

// My part, piece after piece: while one is added the next is on its way.
template <class T> void MpiEngine::add_up(Mine& m) {
    const Call& c = m.call;
    const int n = mesh_.size(c.axis), me = mesh_.at(c.axis);
    const Piece mine = piece_of(c.count, n, me);
    const long each = std::max(1l, piece_ / long(sizeof(T)));
    T* const whole = static_cast<T*>(c.data);
    T* const part = whole + mine.begin;
    scratch_.resize(std::max(scratch_.size(), size_t(2 * n * each) * sizeof(T)));
    const auto slot = [&](long begin, int r) { return reinterpret_cast<T*>(scratch_.data()) + (begin / each % 2 * n + r) * each; };
    Requests coming[2];
    const auto receive_piece = [&](long begin) {
        for (const int r : peers(c))
            receive(coming[begin / each % 2], m, slot(begin, r), std::min(each, mine.count - begin) * long(sizeof(T)), r);
    };
    receive_piece(0);
    for (long begin = 0; begin < mine.count; begin += each) {
        receive_piece(begin + each);
        wait(coming[begin / each % 2], c);
        Sources<T> sources{};
        for (int r = 0; r < n; ++r) sources.of[r] = r == me ? part + begin : slot(begin, r);
        combine(device_, part + begin, sources, n, std::min(each, mine.count - begin), c.op != Op::max);
    }
    wait(m.requests, c);                               // my own parts have gone: the sums may overwrite them
    if (c.op == Op::scatter) return;
    for (const int r : peers(c)) {
        const Piece theirs = piece_of(c.count, n, r);
        send(m.requests, m, part, mine.count * long(sizeof(T)), r, sums);
        receive(m.requests, m, whole + theirs.begin, theirs.count * long(sizeof(T)), r, sums);
    }
}

// Runs body(world). An error ends the whole job: report(), called while it is caught, says what it was and gives the
// exit code. Other ranks may have failed for the same reason: they give the lower ones time to speak and end them.
template <class Body, class Report> int run_mpi(Body body, Report report) {
    MpiWorld world;
    try {
        const int status = body(world);
        world.finish();
        return status;
    } catch (const std::exception&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(std::min(700 * world.rank, 5000)));
        MPI_Abort(MPI_COMM_WORLD, report());
        throw;
    }
}

#else

inline constexpr bool have_mpi = false;
struct MpiWorld { int rank = 0, ranks = 1, local = 0, here = 1; };
class MpiEngine final : public Engine {
public:
    MpiEngine(MpiWorld&, const Mesh&, const Device&) {}
    long start(const Call&) override { return 0; }
    long await(long) override { return 0; }
    void abort(const std::string&) noexcept override {}
};
template <class Body, class Report> int run_mpi(Body, Report report) {
    try {
        fail("started by mpirun, but built without MPI; make deps ALL=1 gets Open MPI, then make");
    } catch (const std::exception&) {
        return report();
    }
}

#endif

}  // namespace baretrain
