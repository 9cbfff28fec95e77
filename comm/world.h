// world.h - how the ranks of a run were started, and by which engine they reach each other.
// Copy with: comm/threads.h, comm/mpi.h, comm/nccl.h, comm/rendezvous.h and what they name
//   ./train_gpt --ranks N         threads; in a GPU build one GPU each by NCCL if there are as many, else all on one
//   mpirun -n N ./train_gpt       processes, by MPI; in a GPU build by NCCL
//   torchrun or srun, GPU build   processes, by NCCL; they meet at a port of rank 0's host
#pragma once
#include "comm/mpi.h"
#include "comm/nccl.h"
#include "comm/rendezvous.h"
#include "comm/threads.h"

namespace baretrain {

// Who this process is. ranks: of a launcher's processes; 0: there is none, all ranks are threads of this one.
struct World {
    int rank = 0, ranks = 0, local = 0, here = 1;      // local, here: the same among those on this host
    std::string engine = "threads";
    std::function<std::string(const std::string&)> share = [](const std::string& mine) { return mine; };   // rank 0's
    std::function<std::unique_ptr<Engine>(const Mesh&, const Device&)> join = {};   // all processes together

    bool first() const { return rank == 0; }
    // OpenMP threads of each of n ranks: the cores, shared out; a launcher may have given this process fewer.
    int team(int n) const {
        const int cores = default_team(), all = int(std::thread::hardware_concurrency());
        return std::max(1, ranks ? std::min(cores, all / here) : cores / n);
    }
    bool threads_by_nccl(int n) const { return have_nccl && ranks == 0 && n > 1 && device_count() >= n; }
    // Ranks, of n, that live in the same memory.
    int neighbours(int n) const {
        if (ranks) return on_gpu ? (here - 1) / std::max(1, device_count()) + 1 : here;
        return threads_by_nccl(n) ? 1 : n;
    }
    int gpu(int thread, int n) const {                 // of this process, or of one of its n threads
        return ranks ? local % std::max(1, device_count()) : threads_by_nccl(n) ? thread : 0;
    }
};

inline void use_nccl(World& w) {
    w.engine = "NCCL";
    w.join = [share = w.share, first = w.first()](const Mesh& mesh, const Device& d) {
        return nccl_engine(share(first ? nccl_id() : ""), mesh, d, [] { return std::string(); });
    };
}

template <class Mpi> World world_of(Mpi& mpi) {
    World w{mpi.rank, mpi.ranks, mpi.local, mpi.here, "MPI"};
    w.share = [&mpi](const std::string& mine) { return mpi.share(mine); };
    w.join = [&mpi](const Mesh& mesh, const Device& d) { return std::make_unique<typename Mpi::Engine>(mpi, mesh, d); };
    if (on_gpu) use_nccl(w);
    return w;
}

// As torchrun says by its variables; or srun by its own, and `rendezvous`: HOST:PORT of rank 0. get(name): the value of
// a variable of the environment, or nothing.
template <class Get> World world_of(Get get, std::string rendezvous) {
    using Names = std::array<const char*, 4>;
    const bool slurm = !rendezvous.empty();
    const Names names = slurm ? Names{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}
                              : Names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    const auto number = [](const std::string& s, int none) {
        return s.empty() || s.size() > 8 || s.find_first_not_of("0123456789") != s.npos ? none : std::stoi(s);
    };
    World w{number(get(names[0]), -1), number(get(names[1]), 0), number(get(names[2]), 0), number(get(names[3]), 1)};
    if (!slurm) rendezvous = get("MASTER_ADDR") + ":" + get("MASTER_PORT");
    const size_t colon = std::min(rendezvous.find_last_of(':'), rendezvous.size() - 1);
    const int port = number(rendezvous.substr(colon + 1), 0);
    const bool good = w.rank >= 0 && w.rank < w.ranks && port > 0;
    if (!good && !slurm) return {};                    // nobody started it
    if (!good)
        fail("--rendezvous ", rendezvous, ": expected HOST:PORT of rank 0, and in the environment SLURM_PROCID and "
             "SLURM_NTASKS, as srun sets them");
    if (!have_nccl)
        fail(names[1], "=", w.ranks, ": started by ", slurm ? "srun" : "torchrun", ", which needs a GPU build with "
             "NCCL (make cuda); on CPUs take --ranks N or mpirun");
    const bool taken = !slurm && get("TORCHELASTIC_USE_AGENT_STORE") == "True";   // torchrun itself listens there
    const Meeting meeting{w.rank, w.ranks, rendezvous.substr(0, colon), port + taken};
    w.share = [meeting](const std::string& mine) { return meet_at(meeting, mine); };
    use_nccl(w);
    return w;
}

// body(world) in the world that the launcher of this process made. report(): called while an error is caught, says what
// it is and gives the exit code.
template <class Get, class Body, class Report>
int as_launched(Get get, const std::string& rendezvous, Body body, Report report) {
    const bool mpirun = !get("OMPI_COMM_WORLD_SIZE").empty() || !get("PMI_SIZE").empty();
    try {
        if (!mpirun || !rendezvous.empty()) return body(world_of(get, rendezvous));
        return run_mpi([&](auto& mpi) { return body(world_of(mpi)); }, report);
    } catch (const std::exception&) {
        return report();
    }
}

// body(mesh, engine, device) for each rank of this process; rank 0's result, or that of the process.
template <class MeshOf, class Body> int run_ranks(const World& w, int n, MeshOf mesh_of, Body body) {
    const auto device = [&](int thread) { return Device{.index = w.gpu(thread, n), .team = w.team(n)}; };
    if (w.ranks) {
        Device d = device(0);
        use_device(d.index), d.stream = new_stream();
        const std::unique_ptr<Engine> engine = w.join(mesh_of(w.rank), d);
        try {
            return body(mesh_of(w.rank), engine.get(), d);
        } catch (const Error& e) {
            throw Error(concat("rank ", w.rank, ": ", e.what()));
        }
    }
    ThreadWorld threads;
    const std::string id = w.threads_by_nccl(n) ? nccl_id() : "";
    std::vector<int> status(size_t(n), 0);
    run_threads(threads, n, [&](int rank) {
        Device d = device(rank);
        use_device(d.index), d.stream = new_stream();
        const Mesh mesh = mesh_of(rank);
        std::unique_ptr<Engine> engine;
        if (id.empty()) engine = std::make_unique<ThreadEngine>(threads, mesh, d);
        else engine = nccl_engine(id, mesh, d, [&] { return threads.error(); });
        status[size_t(rank)] = body(mesh, engine.get(), d);
    });
    return status[0];
}

}  // namespace baretrain
