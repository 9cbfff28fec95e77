// mpi.h - ranks as processes, by MPI. It only moves bytes: sums are taken here, in the order of ranks, as by threads.
// Copy with: comm/combine.h and what it names
// Every call is messages between two ranks each, in small pieces, under way from the start; but for the parts of others
// that are to be summed: await() receives one piece of each at a time, and adds. A sum then sends its part to all. On
// GPUs MPI only brings the ranks together: data go by NCCL. Without -DBT_MPI run_mpi() is one line that says so.
#pragma once
#include "comm/combine.h"
#include <csignal>
#include <functional>
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
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (status == MPI_SUCCESS) return;
    MPI_Error_string(status, text, &length);
    fail("MPI: ", text, call ? " at " + call->text() : "");
}

// This process among the others; one a program.
class MpiWorld {
public:
    int rank = 0, ranks = 1, local = 0, here = 1;      // local, here: the same among those on this host
    const std::function<int()> report;                 // of the error that is being caught; gives the exit code
    explicit MpiWorld(std::function<int()> report) : report(std::move(report)) {
        int provided = 0;
        check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);   // what is made of it inherits that
        check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &notices_));
        MPI_Comm_rank(notices_, &rank), MPI_Comm_size(notices_, &ranks);
        MPI_Comm host;
        check_mpi(MPI_Comm_split_type(notices_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host));
        MPI_Comm_rank(host, &local), MPI_Comm_size(host, &here);
    }
    MpiWorld(const MpiWorld&) = delete;
    // The bytes of rank 0, for all.
    std::string share(std::string bytes) {
        long size = long(bytes.size());
        check_mpi(MPI_Bcast(&size, 1, MPI_LONG, 0, notices_));
        bytes.resize(size_t(size));
        check_mpi(MPI_Bcast(bytes.data(), int(bytes.size()), MPI_BYTE, 0, notices_));
        return bytes;
    }
    using Engine = class MpiEngine;
    // Has it ended so long ago that its last messages are here? They may be overtaken by its notice.
    bool has_ended(int other) {
        for (int there = 0;;) {
            MPI_Status status;
            check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, 0, notices_, &there, &status));
            if (!there) break;
            check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, 0, notices_, MPI_STATUS_IGNORE));
            ended_[status.MPI_SOURCE] = std::chrono::steady_clock::now();
        }
        const auto e = ended_.find(other);
        return e != ended_.end() && seconds_since(e->second) > 2;
    }
    // This rank takes part in nothing any more; returns when all have said so.
    void finish() {
        std::vector<MPI_Request> said(size_t(ranks), MPI_REQUEST_NULL);
        for (int r = 0; r < ranks; ++r)
            if (r != rank) check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, r, 0, notices_, &said[size_t(r)]));
        const auto pause = std::chrono::milliseconds(1);
        for (; int(ended_.size()) < ranks - 1; std::this_thread::sleep_for(pause)) has_ended(rank);
        check_mpi(MPI_Waitall(ranks, said.data(), MPI_STATUSES_IGNORE));
        check_mpi(MPI_Finalize());
    }
private:
    MPI_Comm notices_ = MPI_COMM_NULL;
    std::map<int, std::chrono::steady_clock::time_point> ended_;
};

class MpiEngine final : public Engine {
public:
    // piece: most bytes of a message, whole elements of any type.
    MpiEngine(MpiWorld& world, const Mesh& mesh, const Device& device, long piece = 256 << 10)
        : world_(world), mesh_(mesh), device_(device), piece_(piece) {
        require(!on_gpu, "mpi: memory of the host; on GPUs data go by NCCL");
        require_equal(mesh.ranks(), world.ranks, "mpi: ranks of the mesh and of mpirun");
        device_.watch = nullptr;
        for (Axis a : all_axes)
            check_mpi(MPI_Comm_split(MPI_COMM_WORLD, mesh.peer(a, 0), mesh.at(a), &axes_[size_t(a)]));
    }
    long start(const Call& c) override {
        const int n = mesh_.size(c.axis), me = mesh_.at(c.axis);
        const int number = c.pair() ? 0 : 1 + calls_[size_t(c.axis)]++ % 8000;   // those of a pair: by their order
        Mine& m = under_way_[++tickets_] = {c, 2 * number, {}, std::vector<long>(size_t(n), c.time)};
        const long size = type_bytes[int(c.type)], part = c.bytes() / n;
        char* const data = static_cast<char*>(c.data);
        char* const from = static_cast<char*>(const_cast<void*>(c.from));
        const bool parts = c.op == Op::gather || c.op == Op::all_to_all;
        const auto for_rank = [&](int r) { return c.op == Op::gather ? from : from + r * part; };
        if (parts) copy_part<char>(device_, data + me * part, for_rank(me), part);
        for (int r = (me + 1) % n; r != me; r = (r + 1) % n) {   // not all to rank 0 first
            if (c.pair() && r != c.peer) continue;
            const bool root = c.op == Op::broadcast && me == c.peer, of_root = c.op == Op::broadcast && r == c.peer;
            const Piece theirs = piece_of(c.count, n, r);
            if (c.adds()) post(m.requests, m, data + theirs.begin * size, theirs.count * size, {r});
            if (parts) post(m.requests, m, for_rank(r), part, {r});
            if (parts) post(m.requests, m, data + r * part, part, {r, false});
            if (c.op == Op::send || root) post(m.requests, m, data, c.bytes(), {r});
            if (c.op == Op::receive || of_root) post(m.requests, m, data, c.bytes(), {r, false});
            if (c.time < 0) continue;
            post(m.requests, m, &m.call.time, sizeof(long), {r, true, true});
            post(m.requests, m, &m.times[size_t(r)], sizeof(long), {r, false, true});
        }
        return tickets_;
    }
    long await(long ticket) override {
        Mine& m = under_way_.at(ticket);
        if (m.call.adds()) with_type(m.call.type, [&](auto type) { add_up<decltype(type)>(m); });
        wait(m.requests, m.call);
        const long latest = *std::max_element(m.times.begin(), m.times.end());
        under_way_.erase(ticket);
        return latest;
    }
    void abort(const std::string& why) noexcept override {
        try {
            throw Error(why);
        } catch (const Error&) {
            MPI_Abort(MPI_COMM_WORLD, world_.report());
        }
    }
private:
    using Requests = std::vector<MPI_Request>;
    // Messages between two ranks arrive in the order of their sending; tags tell calls apart, and in each the data and
    // the times of who is watched.
    struct Mine { Call call; int tag; Requests requests; std::vector<long> times; };
    struct Way { int peer; bool sends = true, time = false; };

    void post(Requests& to, const Mine& m, void* what, long bytes, Way w) {
        for (long done = 0; done < bytes; done += piece_) {
            const int n = int(std::min(piece_, bytes - done)), tag = m.tag + w.time;
            char* const at = static_cast<char*>(what) + done;
            MPI_Request* const request = &to.emplace_back();
            const MPI_Comm axis = axes_[size_t(m.call.axis)];
            check_mpi(w.sends ? MPI_Isend(at, n, MPI_BYTE, w.peer, tag, axis, request)
                              : MPI_Irecv(at, n, MPI_BYTE, w.peer, tag, axis, request), &m.call);
        }
    }
    void wait(Requests& requests, const Call& c) {
        for (int done = 0;; std::this_thread::yield()) {
            check_mpi(MPI_Testall(int(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), &c);
            if (done) return requests.clear();
            for (int r = 0; r < mesh_.size(c.axis); ++r)
                if ((!c.pair() || r == c.peer) && world_.has_ended(mesh_.peer(c.axis, r)))
                    fail("rank ", mesh_.peer(c.axis, r), " has ended, but is waited for at ", c.text());
        }
    }
    // My part, piece after piece: while one is added the next is on its way.
    template <class T> void add_up(Mine& m) {
        const Call& c = m.call;
        const int n = mesh_.size(c.axis), me = mesh_.at(c.axis);
        const long each = piece_ / long(sizeof(T));
        const Piece mine = piece_of(c.count, n, me);
        T* const whole = static_cast<T*>(c.data);
        T* const part = whole + mine.begin;
        scratch_.resize(std::max(scratch_.size(), size_t(2 * n * piece_)));
        Requests coming[2];
        const auto of = [&](long begin, int r) {       // where the piece of rank r is
            char* const slot = scratch_.data() + (begin / each % 2 * n + r) * piece_;
            return r == me ? part + begin : reinterpret_cast<T*>(slot);
        };
        const auto receive = [&](long begin) {
            const long bytes = std::min(each, mine.count - begin) * long(sizeof(T));
            for (int r = 0; r < n; ++r)
                if (r != me) post(coming[begin / each % 2], m, of(begin, r), bytes, {r, false});
        };
        receive(0);
        for (long begin = 0; begin < mine.count; begin += each) {
            receive(begin + each);
            wait(coming[begin / each % 2], c);
            Sources<T> sources{};
            for (int r = 0; r < n; ++r) sources.of[r] = of(begin, r);
            combine(device_, part + begin, sources, n, std::min(each, mine.count - begin), c.op != Op::max);
        }
        wait(m.requests, c);                           // the parts of others have gone: their sums may come there
        for (int r = 0; r < n; ++r) {
            const Piece theirs = piece_of(c.count, n, r);
            if (r == me || c.op == Op::scatter) continue;
            post(m.requests, m, part, mine.count * long(sizeof(T)), {r});
            post(m.requests, m, whole + theirs.begin, theirs.count * long(sizeof(T)), {r, false});
        }
    }
    MpiWorld& world_;
    const Mesh mesh_;
    Device device_;
    const long piece_;
    std::array<MPI_Comm, 5> axes_{};
    std::array<int, 5> calls_{};                       // so far, on each axis
    std::map<long, Mine> under_way_;
    long tickets_ = 0;
    std::vector<char> scratch_;                        // two pieces of each rank
};

// Runs body(world). An error ends the whole job: report(), called while it is caught, says what it was and gives the
// exit code. Others may fail for the same reason: they give the lower ranks time to speak, and to end them.
template <class Body, class Report> int run_mpi(Body body, Report report) {
    MpiWorld world(report);
    try {
        const int status = body(world);
        world.finish();
        return status;
    } catch (const std::exception&) {
        std::signal(SIGTERM, SIG_DFL);                 // it comes from mpirun when another one has spoken
        std::this_thread::sleep_for(std::chrono::milliseconds(std::min(1500 * world.rank, 6000)));
        MPI_Abort(MPI_COMM_WORLD, report());
        throw;
    }
}

#else

inline constexpr bool have_mpi = false;
template <class Body, class Report> int run_mpi(Body, Report) {
    fail("started by mpirun, but built without MPI; make deps ALL=1 gets Open MPI, then make");
}

#endif

}  // namespace baretrain
