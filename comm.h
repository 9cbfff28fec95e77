// comm.h - collectives between the ranks of one axis, each started, then awaited; and the ledger that counts them.
// Copy with: mesh.h, memory.h and what they name
//   gather      whole = part of rank 0, part of rank 1, ...       (n-1)/n of the bytes of `whole` sent by each rank
//   scatter     part r of `data` = sum of part r over all ranks, on rank r; its other parts are lost   (n-1)/n
//   sum, max    data = sum or maximum over all ranks              2 (n-1)/n
//   all_to_all  part r of `to` = the part of rank r's `from` that is mine                              (n-1)/n
//   send, receive, broadcast                                      1, 0, 1 (by the rank that has it)
// Bytes are those of a ring, of the payload padded to a multiple of n elements. Sums are taken in the order of ranks,
// in float for bf16; there is no mean. Between start and await() nobody touches what is under way; a call that is never
// awaited is an error. All ranks of an axis start and await the same calls in the same order. Without an engine a Comm
// is one rank alone, or a dry rank of any mesh, for which calls only count. Engines: comm/threads.h, comm/mpi.h,
// comm/nccl.h.
#pragma once
#include "memory.h"
#include "mesh.h"
#include <chrono>
#include <map>
#include <span>

namespace baretrain {

enum class Op { gather, scatter, sum, max, all_to_all, send, receive, broadcast };
inline constexpr const char* op_names[] = {"gather", "scatter",  "sum",     "max",
                                           "all_to_all", "send", "receive", "broadcast"};

enum class Type { fp64, fp32, bf16, byte };
inline constexpr const char* type_names[] = {"fp64", "fp32", "bf16", "byte"};
inline constexpr long type_bytes[] = {8, 4, 2, 1};
template <class T> constexpr Type type_of() {
    if constexpr (std::is_same_v<T, double>) return Type::fp64;
    else if constexpr (std::is_same_v<T, float>) return Type::fp32;
    else if constexpr (std::is_same_v<T, bf16>) return Type::bf16;
    else { static_assert(sizeof(T) == 1); return Type::byte; }
}
// What is named so; a name that is none: the widest.
inline Type type_named(const std::string& name) {
    size_t i = 0;
    while (i < std::size(type_names) && name != type_names[i]) ++i;
    return Type(i % std::size(type_names));
}
// Calls use with a value of the C++ type.
template <class Use> void with_type(Type t, Use use) {
    if (t == Type::fp64) use(double{});
    else if (t == Type::fp32) use(float{});
    else if (t == Type::bf16) use(baretrain::bf16{});
    else use(char{});
}

// Data parallelism, the outer one first.
inline constexpr Axis dp_axes[] = {Axis::dp_replicate, Axis::dp_shard};

// Elements of a part when `count` of them are cut into n equal ones; the last parts may be short or empty.
constexpr long part_of(long count, int n) { return (count + n - 1) / n; }

// What a call is for: its row in the ledger, and the unit of the model, -1: of none in particular.
struct Purpose { const char* what; long unit = -1; };

// As an engine gets it. Buffers are device memory.
struct Call {
    Axis axis;
    Op op;
    Type type;
    void* data;                                        // what is overwritten; send: what is read
    const void* from;                                  // gather, all_to_all: what is read
    long count;                                        // elements of a whole (gather, scatter, all_to_all: n parts)
    int peer;                                          // send, receive, broadcast: where on the axis
    Where where;
    long time;                                         // of the trace, when it was started; nobody looks: -1
    long bytes() const { return count * type_bytes[int(type)]; }
    bool pair() const { return op == Op::send || op == Op::receive; }
    bool adds() const { return op == Op::scatter || op == Op::sum || op == Op::max; }
    std::string text() const {
        const std::string from = op == Op::broadcast ? concat(" from ", peer) : "";
        return concat(op_names[int(op)], " of ", count, " ", type_names[int(type)], " on ", axis_names[int(axis)], from,
                      " (", where.file_name(), ":", where.line(), ")");
    }
};
[[noreturn]] inline void disagree(int rank, const std::string& call, int other, const std::string& others) {
    fail("ranks disagree: rank ", rank, " is at ", call, ", rank ", other, " at ", others);
}

// Moves a rank's calls. A started call is known by its ticket. Any error of any rank ends every wait of every rank with
// Aborted, in less than 10 seconds.
struct Engine {
    virtual ~Engine() = default;
    virtual long start(const Call& call) = 0;
    virtual long await(long ticket) = 0;               // the latest Call::time of those who took part
    virtual void abort(const std::string& why) noexcept = 0;
};

// Who a rank is, and how it reaches the others. Without an engine: alone, or dry.
struct Rank {
    Mesh mesh = {};
    Engine* engine = nullptr;
    int team = default_team(), gpu = 0;
    cudaStream_t stream = nullptr;                     // of its computation
    bool first() const { return mesh.rank == 0; }
};

// Another rank failed first: its error is the one to report.
struct Aborted : Error { using Error::Error; };

// Sent by this rank, by axis, operation and purpose.
struct LedgerRow { long calls = 0, bytes = 0; double ms = 0; };
struct LedgerKey {
    Axis axis;
    Op op;
    std::string what;
    auto operator<=>(const LedgerKey&) const = default;
    std::string text() const { return concat(axis_names[int(axis)], ".", op_names[int(op)], ".", what); }
};
using Ledger = std::map<LedgerKey, LedgerRow>;

inline long ring_bytes(const Call& c, int n) {
    const long part = part_of(c.count, n) * type_bytes[int(c.type)];
    switch (c.op) {
    case Op::gather: case Op::scatter: case Op::all_to_all: return (n - 1) * part;
    case Op::sum: case Op::max: return 2 * (n - 1) * part;
    case Op::send: return c.bytes();
    case Op::receive: return 0;
    case Op::broadcast: return c.bytes();
    }
    return 0;
}

// A call under way; empty: nothing to wait for.
struct [[nodiscard]] Pending {
    long ticket = -1;
    Call call{};
    Purpose purpose{""};
    explicit operator bool() const { return ticket >= 0; }
};

class Comm {
public:
    explicit Comm(Device& device, const Mesh& mesh = {}, Engine* engine = nullptr, bool check = false)
        : mesh(mesh), device(device), engine_(engine), check_(check) {}
    ~Comm() noexcept(false) {                          // like a lease, it only guards
        if (!under_way_.empty() && std::uncaught_exceptions() == errors_)
            fail(under_way_.begin()->second.text(), " was started, but never awaited");
    }
    Comm(const Comm&) = delete;
    const Mesh mesh;
    Device& device;
    Ledger ledger;                                     // of all calls so far; whoever reads it may clear it
    int size(Axis a) const { return mesh.size(a); }
    bool first() const { return mesh.rank == 0; }

    // whole: (1, n * part); part: (1, part), perhaps in its place in `whole`.
    template <class T> Pending gather(Axis a, View<T> whole, Input<T> part, Purpose p, Where at = Where::current()) {
        require_equal(whole.count(), part.count() * size(a), "gather: elements of n parts", at);
        if (size(a) == 1 && whole.data != part.data) copy_within(whole.data, part.data, part.count() * long(sizeof(T)));
        return start(call<T>(a, Op::gather, whole, at, part.data), p);
    }
    template <class T> Pending scatter(Axis a, View<T> data, Purpose p, Where at = Where::current()) {
        static_assert(sizeof(T) > 1, "bytes are no numbers");
        require(data.count() % size(a) == 0, "scatter: n equal parts", at);
        return start(call<T>(a, Op::scatter, data, at), p);
    }
    template <class T> Pending sum(Axis a, View<T> data, Purpose p, Where at = Where::current()) {
        static_assert(sizeof(T) > 1, "bytes are no numbers");
        return start(call<T>(a, Op::sum, data, at), p);
    }
    template <class T> Pending max(Axis a, View<T> data, Purpose p, Where at = Where::current()) {
        static_assert(sizeof(T) > 1, "bytes are no numbers");
        return start(call<T>(a, Op::max, data, at), p);
    }
    // to, from: (1, n * part), apart.
    template <class T> Pending all_to_all(Axis a, View<T> to, Input<T> from, Purpose p, Where at = Where::current()) {
        require(to.count() == from.count() && to.count() % size(a) == 0, "all_to_all: n equal parts", at);
        if (size(a) == 1) copy_within(to.data, from.data, to.count() * long(sizeof(T)));
        return start(call<T>(a, Op::all_to_all, to, at, from.data), p);
    }
    template <class T> Pending send(Axis a, Input<T> data, int to, Purpose p, Where at = Where::current()) {
        return start(call<T>(a, Op::send, {const_cast<T*>(data.data), data.rows, data.cols}, at, nullptr, to), p);
    }
    template <class T> Pending receive(Axis a, View<T> data, int from, Purpose p, Where at = Where::current()) {
        return start(call<T>(a, Op::receive, data, at, nullptr, from), p);
    }
    template <class T> Pending broadcast(Axis a, View<T> data, int root, Purpose p, Where at = Where::current()) {
        return start(call<T>(a, Op::broadcast, data, at, nullptr, root), p);
    }
    void await(Pending& p);
    void await(Pending&& p) { await(p); }
    // Sums over both axes of data parallelism, awaited.
    template <class T> void sum_dp(View<T> data, Purpose p, Where at = Where::current()) {
        for (Axis a : {Axis::dp_shard, Axis::dp_replicate}) await(sum(a, data, p, at));
    }
    // Until all ranks have come. token: one double of device memory, overwritten.
    void meet(View<double> token, Where at = Where::current()) {
        for (Axis a : all_axes) await(sum(a, token, {"control"}, at));
    }
    void abort(const std::string& why) noexcept { if (engine_) engine_->abort(why); }
private:
    template <class T>
    Call call(Axis a, Op op, View<T> data, Where at, const void* from = nullptr, int peer = -1) const {
        require(data.dense(), "collective: rows without gaps", at);
        require(peer < size(a) && (peer >= 0) == (op >= Op::send), "collective: a peer on the axis", at);
        require(op == Op::broadcast || peer != mesh.at(a), "send, receive: to or from another rank", at);
        return {a, op, type_of<T>(), data.data, from, data.count(), peer, at, 0};
    }
    Pending start(Call c, Purpose p);
    void compare(const Call& c);
    void copy_within(void* to, const void* from, long bytes) { copy_bytes(device, to, from, size_t(bytes)); }
    Engine* engine_;
    bool check_;
    std::map<long, Call> under_way_;                   // by ticket
    long tickets_ = 0;                                 // without an engine
    int errors_ = std::uncaught_exceptions();
};

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The one place that every call goes through.
inline Pending Comm::start(Call c, Purpose p) {
    const int n = size(c.axis);
    if (n == 1) return {};
    const auto begin = Clock::now();
    c.time = device.watch ? device.watch->now() : -1;
    if (check_ && engine_) compare(c);
    if (c.count == 0) return {};
    LedgerRow& row = ledger[{c.axis, c.op, p.what}];
    const bool idle = c.op == Op::broadcast && c.peer != mesh.at(c.axis);   // who only receives sends nothing
    row.calls += 1, row.bytes += idle ? 0 : ring_bytes(c, n);
    const Pending pending{engine_ ? engine_->start(c) : ++tickets_, c, p};
    under_way_[pending.ticket] = c;
    row.ms += 1e3 * seconds_since(begin);
    return pending;
}

inline void Comm::await(Pending& p) {
    if (!p) return;
    const Call& c = p.call;
    if (!under_way_.erase(p.ticket)) fail(c.text(), " is awaited a second time");
    const auto begin = Clock::now();
    const long latest = engine_ ? engine_->await(p.ticket) : c.time;
    ledger[{c.axis, c.op, p.purpose.what}].ms += 1e3 * seconds_since(begin);
    if (device.watch)
        device.watch->travelled({.where = c.where, .bytes = double(ring_bytes(c, size(c.axis))), .lane = Lane::wire,
                                  .op = op_names[int(c.op)], .what = p.purpose.what, .axis = axis_names[int(c.axis)],
                                  .unit = p.purpose.unit, .ranks = size(c.axis)}, latest);
    p = {};
}

// Before each call: do all ranks of the axis mean the same one? Moved by the engine itself, so not in the ledger.
inline void Comm::compare(const Call& c) {
    constexpr size_t width = 240;
    const int n = size(c.axis);
    if (c.pair()) return;                              // two of the axis: the other ranks know nothing of it
    std::string mine = c.text(), all(width * size_t(n), 0);
    mine.resize(width, 0);
    const Buffer from(mine.size()), to(all.size());
    copy_bytes(device, from.data(), mine.data(), mine.size());
    const Call gather{c.axis, Op::gather, Type::byte, to.data(), from.data(), long(all.size()), -1, c.where, 0};
    engine_->await(engine_->start(gather));
    copy_bytes(device, all.data(), to.data(), all.size());
    for (int i = 0; i < n; ++i) {
        const std::string other = all.substr(size_t(i) * width, width);
        if (other != mine) disagree(mesh.rank, mine.c_str(), mesh.peer(c.axis, i), other.c_str());
    }
}

// On rank 0 what all ranks of these axes have, one behind the other in their order; on the others nothing. All ranks
// call it, with lists of any length: on each axis, the inner first, the first rank receives what the others have.
template <class T>
std::vector<T> collect(Comm& comm, std::vector<T> mine, Purpose p, std::span<const Axis> axes = all_axes) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto chars = [](const Buffer& b) { return View<char>(static_cast<char*>(b.data()), 1, long(b.bytes())); };
    for (size_t i = axes.size(); i-- > 0;) {
        const Axis a = axes[i];
        const auto send = [&](const void* from, size_t bytes) {
            const Buffer b(bytes);
            copy_bytes(comm.device, b.data(), from, bytes);
            comm.await(comm.send<char>(a, chars(b), 0, p));
        };
        const auto receive = [&](void* to, size_t bytes, int from) {
            const Buffer b(bytes);
            comm.await(comm.receive(a, chars(b), from, p));
            copy_bytes(comm.device, to, b.data(), bytes);
        };
        size_t count = mine.size();
        if (comm.mesh.at(a) > 0) {
            send(&count, sizeof count);
            send(mine.data(), count * sizeof(T));
            return {};
        }
        for (int from = 1; from < comm.size(a); ++from) {
            receive(&count, sizeof count, from);
            mine.resize(mine.size() + count);
            receive(mine.data() + mine.size() - count, count * sizeof(T), from);
        }
    }
    return mine;
}

}  // namespace baretrain
