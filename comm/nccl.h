// nccl.h - one GPU a rank, which is a thread or a process, by NCCL (2.18 or newer): beside the computation.
// Copy with: comm/combine.h and what it names
// A started call waits for what was computed before it, on a stream that is not the computation's: sums and maxima
// have one, all other calls another, each with communicators of its own, so that a gather does not queue behind
// gradients. What is computed after await() waits for the call; the host waits for neither. So a second
// thread looks out for errors, and ends what would never end.
// Sums are NCCL's: right within rounding, not to the bit; and a maximum, as NCCL's loses a NaN, is gathered and found
// here. Compiled and linked; it has not yet run on a GPU. Without -DBT_NCCL, and on CPU builds: stand-ins.
#pragma once
#include "comm/combine.h"
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#if defined(BT_NCCL) && defined(__CUDACC__)
#include <nccl.h>
#endif

namespace baretrain {

#if defined(BT_NCCL) && defined(__CUDACC__)

inline constexpr bool have_nccl = true;

inline void check(ncclResult_t status, Where at = Where::current()) {
    if (status == ncclSuccess) return;
    fail_at(concat("NCCL: ", ncclGetErrorString(status), ": ", ncclGetLastError(nullptr)), at);
}

// Made by rank 0, and needed by all.
inline std::string nccl_id() {
    ncclUniqueId id;
    check(ncclGetUniqueId(&id));
    return {id.internal, sizeof id.internal};
}

class NcclEngine final : public Engine {
public:
    // All ranks make theirs together, each after it has chosen its GPU. failed(): what went wrong with another rank of
    // this process, or nothing.
    NcclEngine(const std::string& id, const Mesh& mesh, const Device& device, std::function<std::string()> failed)
        : mesh_(mesh), device_(device), failed_(std::move(failed)) {
        ncclUniqueId unique;
        require_equal(long(id.size()), long(sizeof unique.internal), "nccl: bytes of an id");
        memcpy(unique.internal, id.data(), id.size());
        check(ncclCommInitRank(&comms_.emplace_back(), mesh.ranks(), unique, mesh.rank));
        for (Queue& q : queues_) {
            check(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking));
            for (Axis a : all_axes)
                if (mesh.size(a) > 1) {
                    check(ncclCommSplit(comms_[0], mesh.peer(a, 0), mesh.at(a), &comms_.emplace_back(), nullptr));
                    q.comms[size_t(a)] = comms_.back();
                }
        }
        scratch_.emplace_back(size_t(1) << 20);
        lookout_ = std::thread([this] { look_out(); });
    }
    ~NcclEngine() override {
        ending_ = true;
        lookout_.join();
        for (ncclComm_t c : comms_)
            if (error_.empty() && c) ncclCommDestroy(c);
        for (Queue& q : queues_) cudaStreamDestroy(q.stream);
    }
    long start(const Call& c) override {
        const std::lock_guard lock(mutex_);
        if (!error_.empty()) throw Aborted(error_);
        follow(queue(c).stream, mark(device_.stream));
        under_way_[++tickets_] = {c, nullptr};
        if (c.pair()) return pairs_.push_back(tickets_), tickets_;
        issue_pairs();
        issue(c);
        under_way_[tickets_].done = mark(queue(c).stream);
        return tickets_;
    }
    long await(long ticket) override {
        const std::lock_guard lock(mutex_);
        if (!error_.empty()) throw Aborted(error_);
        const Mine& mine = under_way_.at(ticket);
        if (!mine.done) issue_pairs();
        follow(device_.stream, mine.done);
        const long time = mine.call.time;              // this rank's own: hosts have no common clock
        under_way_.erase(ticket);
        return time;
    }
    void abort(const std::string& why) noexcept override {
        const std::lock_guard lock(mutex_);
        if (error_.empty())
            for (ncclComm_t c : comms_)
                if (c) ncclCommAbort(c);
        if (error_.empty()) error_ = why;
    }
private:
    struct Mine { Call call; cudaEvent_t done; };
    struct Queue { cudaStream_t stream = nullptr; std::array<ncclComm_t, 5> comms{}; };   // by axis
    Queue& queue(const Call& c) { return queues_[c.adds()]; }
    static cudaEvent_t mark(cudaStream_t stream) {
        cudaEvent_t e;
        check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        check(cudaEventRecord(e, stream));
        return e;
    }
    static void follow(cudaStream_t stream, cudaEvent_t e) {   // what comes on the stream waits for the event
        check(cudaStreamWaitEvent(stream, e, 0));
        check(cudaEventDestroy(e));                    // once it has happened
    }
    void issue(const Call& c) {
        static constexpr ncclDataType_t types[] = {ncclFloat64, ncclFloat32, ncclBfloat16, ncclInt8};
        const ncclDataType_t type = types[int(c.type)];
        const auto [stream, comms] = queue(c);
        const ncclComm_t comm = comms[size_t(c.axis)];
        const int n = mesh_.size(c.axis);
        const size_t count = size_t(c.count), part = count / size_t(n);
        const long bytes = c.bytes() / n;
        char* const data = static_cast<char*>(c.data);
        const char* const from = static_cast<const char*>(c.from);
        const Where at = c.where;
        switch (c.op) {
        case Op::gather: check(ncclAllGather(from, data, part, type, comm, stream), at); break;
        case Op::scatter:
            check(ncclReduceScatter(data, data + mesh_.at(c.axis) * bytes, part, type, ncclSum, comm, stream), at);
            break;
        case Op::sum: check(ncclAllReduce(data, data, count, type, ncclSum, comm, stream), at); break;
        case Op::max:
            if (size_t(n * c.bytes()) > scratch_.back().bytes()) scratch_.emplace_back(size_t(n * c.bytes()));
            check(ncclAllGather(data, scratch_.back().data(), count, type, comm, stream), at);
            with_type(c.type, [&, stream = stream](auto zero) {
                using T = decltype(zero);
                Sources<T> all{};
                for (int r = 0; r < n; ++r) all.of[r] = static_cast<const T*>(scratch_.back().data()) + r * c.count;
                Device d{.index = device_.index, .stream = stream};
                combine(d, static_cast<T*>(c.data), all, n, c.count, false);
            });
            break;
        case Op::all_to_all:
            check(ncclGroupStart());
            for (int r = 0; r < n; ++r) {
                check(ncclSend(from + r * bytes, part, type, r, comm, stream), at);
                check(ncclRecv(data + r * bytes, part, type, r, comm, stream), at);
            }
            check(ncclGroupEnd());
            break;
        case Op::broadcast: check(ncclBroadcast(data, data, count, type, c.peer, comm, stream), at); break;
        case Op::send: check(ncclSend(data, count, type, c.peer, comm, stream), at); break;
        case Op::receive: check(ncclRecv(data, count, type, c.peer, comm, stream), at); break;
        }
    }
    // A send on its own could wait for a receive that stands behind another send: those started together go together.
    void issue_pairs() {
        check(ncclGroupStart());
        for (long ticket : pairs_) issue(under_way_.at(ticket).call);
        check(ncclGroupEnd());
        for (long ticket : pairs_) under_way_.at(ticket).done = mark(queues_[0].stream);
        pairs_.clear();
    }
    void look_out() {
        for (; !ending_; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
            std::string why = failed_();
            for (ncclComm_t c : comms_) {
                ncclResult_t status = ncclSuccess;
                const std::lock_guard lock(mutex_);
                if (c && error_.empty()) ncclCommGetAsyncError(c, &status);
                if (why.empty() && status != ncclSuccess)
                    why = concat("rank ", mesh_.rank, ": NCCL: ", ncclGetErrorString(status));
            }
            if (!why.empty()) return abort(why);
        }
    }
    const Mesh mesh_;
    const Device device_;
    const std::function<std::string()> failed_;
    std::array<Queue, 2> queues_;                      // of what moves, and of what adds
    std::vector<ncclComm_t> comms_;                    // all of them; first that of all ranks
    std::deque<Buffer> scratch_;                       // of maxima: the last one; to free one would wait
    std::map<long, Mine> under_way_;
    std::vector<long> pairs_;                          // started, not yet issued
    long tickets_ = 0;
    std::mutex mutex_;                                 // against the lookout
    std::string error_;
    std::atomic<bool> ending_ = false;
    std::thread lookout_;
};

inline std::unique_ptr<Engine> nccl_engine(const std::string& id, const Mesh& mesh, const Device& device,
                                           std::function<std::string()> failed) {
    return std::make_unique<NcclEngine>(id, mesh, device, failed);
}

#else

inline constexpr bool have_nccl = false;
inline std::string nccl_id() { fail("built without NCCL: install it beside the CUDA Toolkit, then make cuda"); }
inline std::unique_ptr<Engine> nccl_engine(const std::string&, const Mesh&, const Device&,
                                           std::function<std::string()>) {
    nccl_id();
    return nullptr;
}

#endif

}  // namespace baretrain
