// threads.h - ranks as threads of one process, on a CPU or all on one GPU: each reads what its peers have lent.
// Copy with: comm.h and what it names
// Starting a call posts its pointers; awaiting it waits until all have posted, does this rank's part of the work, and
// waits again until nobody reads the buffers any more. Every wait can be aborted. A part is summed by one rank, over
// the ranks in their order: the bits do not depend on who comes first.
#pragma once
#include "comm.h"
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#if defined(__linux__)
#include <pthread.h>
#endif

namespace baretrain {

inline constexpr int most_threads = 64;                // ranks of one axis

template <class T> struct Sources { const T* of[most_threads]; };

// to = sum or maximum of n sources, in their order; one source: a copy. A block a span.
template <class T> __global__ void combine_kernel(T* to, Sources<T> from, int n, long count, bool sum) {
    const auto [begin, end] = block_span(count);
    for (long i = begin + threadIdx.x; i < end; i += blockDim.x) {
        if constexpr (std::is_same_v<T, char>) to[i] = from.of[0][i];
        else {
            Real<T> x = Real<T>(from.of[0][i]);
            for (int k = 1; k < n; ++k) {
                const Real<T> y = Real<T>(from.of[k][i]);
                x = sum ? x + y : y > x || y != y ? y : x;   // NaN stays
            }
            to[i] = T(x);
        }
    }
}

// What the ranks of a process share.
class ThreadWorld {
public:
    // A call on its way: the calls of those who take part, in the order of the axis.
    struct Round {
        std::vector<int> ranks;
        std::vector<Call> calls;
        std::vector<bool> posted;
        int arrived = 0;
        bool complete() const { return std::count(posted.begin(), posted.end(), false) == 0; }
    };
    struct Key {                                       // of a group: axis, its first rank; of a pair: from, to
        Axis axis;
        int first, to;
        auto operator<=>(const Key&) const = default;
    };
    // ranks: who takes part; place: whose call it is.
    std::shared_ptr<Round> post(const Key& key, long number, const std::vector<int>& ranks, int place,
                                const Call& call) {
        const std::lock_guard lock(mutex_);
        std::shared_ptr<Round>& round = rounds_[{key, number}];
        if (!round) round = std::make_shared<Round>(Round{ranks, std::vector<Call>(ranks.size()),
                                                          std::vector<bool>(ranks.size(), false)});
        round->calls[size_t(place)] = call, round->posted[size_t(place)] = true;
        const std::shared_ptr<Round> mine = round;
        if (mine->complete()) rounds_.erase({key, number});   // nobody else will look for it
        changed_.notify_all();
        return mine;
    }
    void wait_for_all(const Round& round, const Call& mine) {
        std::unique_lock lock(mutex_);
        wait(lock, [&] {
            for (size_t i = 0; i < round.ranks.size(); ++i)
                if (!round.posted[i] && ended_.count(round.ranks[i]) && error_.empty())
                    error_ = concat("rank ", round.ranks[i], " has ended, but is waited for at ", mine.text());
            return round.complete();
        });
    }
    // The stage-th time that all of the round meet, from 1.
    void meet(Round& round, int stage) {
        std::unique_lock lock(mutex_);
        ++round.arrived;
        changed_.notify_all();
        wait(lock, [&] { return round.arrived >= stage * int(round.ranks.size()); });
    }
    void abort(const std::string& why) noexcept {
        const std::lock_guard lock(mutex_);
        if (error_.empty()) error_ = why;
        changed_.notify_all();
    }
    // A rank that has ended takes part in nothing any more.
    void leave(int rank) {
        const std::lock_guard lock(mutex_);
        ended_.insert(rank);
        changed_.notify_all();
    }
    std::string error() const {
        const std::lock_guard lock(mutex_);
        return error_;
    }
private:
    template <class Ready> void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
        changed_.wait(lock, [&] { return ready() || !error_.empty(); });
        if (ready()) return;
        changed_.notify_all();
        throw Aborted(error_);
    }
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::pair<Key, long>, std::shared_ptr<Round>> rounds_;
    std::string error_;
    std::set<int> ended_;
};

class ThreadEngine final : public Engine {
public:
    ThreadEngine(ThreadWorld& world, const Mesh& mesh, const Device& device)
        : world_(world), mesh_(mesh), device_(device) { device_.watch = nullptr; }

    long start(const Call& c) override {
        wait(device_);                                 // on a GPU: what is lent has been computed
        const bool sends = c.op == Op::send, pair = sends || c.op == Op::receive;
        const int me = mesh_.rank, other = pair ? mesh_.peer(c.axis, c.peer) : -1;
        const std::vector<int> ranks = !pair ? mesh_.group(c.axis) : sends ? std::vector{me, other} : std::vector{other, me};
        const ThreadWorld::Key key{c.axis, ranks[0], pair ? ranks[1] : -1};
        const int place = pair ? !sends : mesh_.at(c.axis);
        under_way_[++tickets_] = {world_.post(key, next_[key]++, ranks, place, c), c, place};
        return tickets_;
    }

    long await(long ticket) override {
        const auto found = under_way_.find(ticket);
        require(found != under_way_.end(), "await: a call that was started and not yet awaited");
        const Mine mine = found->second;
        under_way_.erase(found);
        world_.wait_for_all(*mine.round, mine.call);
        long latest = 0;
        for (const Call& c : mine.round->calls) latest = std::max(latest, c.time);
        with_type(mine.call.type, [&](auto type) { work<decltype(type)>(mine); });
        return latest;
    }
    void abort(const std::string& why) noexcept override { world_.abort(why); }
private:
    struct Mine {
        std::shared_ptr<ThreadWorld::Round> round;
        Call call;
        int place;                                     // among those who take part
    };
    template <class T> void work(const Mine& m) {
        const std::vector<Call>& all = m.round->calls;
        const Call& c = m.call;
        const int n = int(all.size());
        const long part = part_of(c.count, n), first = std::min(m.place * part, c.count);
        const long mine = std::min(part, c.count - first);
        T* const data = static_cast<T*>(c.data);
        const auto lent = [&](int rank) { return static_cast<const T*>(all[size_t(rank)].data); };
        const auto from = [&](int rank) { return static_cast<const T*>(all[size_t(rank)].from); };
        int stage = 0;
        switch (c.op) {
        case Op::gather:
            for (int r = 0; r < n; ++r) copy(data + r * part, from(r), part);
            break;
        case Op::all_to_all:
            for (int r = 0; r < n; ++r) copy(data + r * part, from(r) + m.place * part, part);
            break;
        case Op::receive: copy(data, lent(0), c.count); break;
        case Op::broadcast:
            if (m.place != c.peer) copy(data, lent(c.peer), c.count);
            break;
        case Op::send: break;
        case Op::scatter: case Op::sum: case Op::max:
            combine(data + first, m, first, mine);
            if (c.op == Op::scatter) break;
            world_.meet(*m.round, ++stage);
            for (int r = 0; r < n; ++r) {
                const long begin = std::min(r * part, c.count);
                if (r != m.place) copy(data + begin, lent(r) + begin, std::min(part, c.count - begin));
            }
        }
        wait(device_);
        world_.meet(*m.round, ++stage);
    }
    template <class T> void combine(T* to, const Mine& m, long first, long count) {
        Sources<T> from{};
        for (size_t r = 0; r < m.round->calls.size(); ++r)
            from.of[r] = static_cast<const T*>(m.round->calls[r].data) + first;
        launch(device_, Grid::spans(count), combine_kernel<T>, to, from, int(m.round->calls.size()), count,
               m.call.op != Op::max);
        wait(device_);
    }
    template <class T> void copy(T* to, const T* from, long count) {
        if (to == from) return;
        launch(device_, Grid::spans(count), combine_kernel<T>, to, Sources<T>{{from}}, 1, count, true);
    }
    ThreadWorld& world_;
    const Mesh mesh_;
    Device device_;
    std::map<ThreadWorld::Key, long> next_;
    std::map<long, Mine> under_way_;
    long tickets_ = 0;
};

// Runs body(rank) for each rank, rank 0 on this thread, and throws the first error of any of them. A debugger and top
// show the others as "rank 3".
template <class Body> void run_threads(ThreadWorld& world, int ranks, Body body) {
    std::mutex mutex;
    std::exception_ptr first;                          // the error that the others were aborted for
    const auto run = [&](int rank) {
#if defined(__linux__)
        if (rank) pthread_setname_np(pthread_self(), concat("rank ", rank).c_str());
#endif
        try {
            body(rank);
            world.leave(rank);
        } catch (const Aborted&) {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
        } catch (const std::exception& e) {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
            world.abort(concat("rank ", rank, ": ", e.what()));
        }
    };
    std::vector<std::thread> threads;
    for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
    run(0);
    for (std::thread& t : threads) t.join();
    if (first && ranks > 1) throw Error(world.error());
    if (first) std::rethrow_exception(first);
}

}  // namespace baretrain
