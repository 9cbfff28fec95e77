// threads.h - ranks as threads of one process, on a CPU or all on one GPU: each reads what its peers have lent.
// Copy with: comm/combine.h and what it names
// Starting a call posts its pointers; awaiting it waits until all await it, does this rank's part of the work, and
// waits again until nobody reads the buffers any more. A part is combined by one rank. A send is copied when started.
// Every wait ends when a rank fails, or when all that have not ended wait: then nobody can go on, and each is named
// with what it waits for. Nobody reads the buffers of a rank that is not inside await(): it may fail and free them.
#pragma once
#include "comm/combine.h"
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#if defined(__linux__)
#include <pthread.h>
#endif

namespace baretrain {

// What the ranks of a process share.
class ThreadWorld {
public:
    using Group = std::array<int, 3>;                  // axis, first rank, -1; a pair: axis, from, to
    // A call on its way: the calls of those who take part, in the order of the axis.
    struct Round {
        explicit Round(std::vector<int> ranks) : ranks(ranks), calls(ranks.size()), busy(ranks.size(), false) {}
        std::vector<int> ranks;
        std::vector<Call> calls;
        std::vector<bool> busy;                        // reads what others have lent
        Buffer sent;                                   // of a pair
        int posted = 0, arrived = 0;
        bool idle() const { return std::count(busy.begin(), busy.end(), true) == 0; }
    };
    // The number-th call of these ranks; place: whose of them it is.
    std::shared_ptr<Round> post(const Group& group, long number, const std::vector<int>& ranks, size_t place,
                                const Call& call, Buffer sent) {
        const std::lock_guard lock(mutex_);
        if (!error_.empty()) throw Aborted(error_);
        std::shared_ptr<Round>& round = rounds_[{group, number}];
        if (!round) round = std::make_shared<Round>(ranks);
        const std::shared_ptr<Round> mine = round;
        mine->calls[place] = call;
        if (call.op == Op::send) mine->sent = std::move(sent);
        if (size_t(++mine->posted) == ranks.size()) rounds_.erase({group, number});   // nobody else will look for it
        change();
        return mine;
    }
    // The stage-th time that all of the round meet, from 1; at 0 it is enough that all have posted. Who goes on is
    // busy, but for after the last one.
    void meet(Round& round, size_t place, int stage, bool last = false) {
        std::unique_lock lock(mutex_);
        round.arrived += stage > 0, round.busy[place] = false;
        change();
        const int& came = stage ? round.arrived : round.posted;
        const auto ready = [&] { return came >= std::max(1, stage) * int(round.ranks.size()); };
        while (!ready() && error_.empty()) {
            waiting_[round.ranks[place]] = &round.calls[place];
            if (waiting_.size() + ended_.size() < ranks_) changed_.wait(lock);
            else error_ = stuck(), change();
        }
        round.busy[place] = !last && error_.empty();
        if (error_.empty()) return;
        changed_.wait(lock, [&] { return round.idle(); });   // then what this rank has lent may be freed
        throw Aborted(error_);
    }
    // Its work went wrong; what it has lent may still be read.
    void give_up(Round& round, size_t place, const std::string& why) {
        abort(concat("rank ", round.ranks[place], ": ", why));
        std::unique_lock lock(mutex_);
        round.busy[place] = false;
        change();
        changed_.wait(lock, [&] { return round.idle(); });
    }
    void abort(const std::string& why) noexcept {
        const std::lock_guard lock(mutex_);
        if (error_.empty()) error_ = why;
        change();
    }
    void begin(int ranks) { ranks_ = size_t(ranks); }
    // A rank that has ended takes part in nothing any more.
    void leave(int rank) {
        const std::lock_guard lock(mutex_);
        ended_.insert(rank);
        change();
    }
    std::string error() const {
        const std::lock_guard lock(mutex_);
        return error_;
    }
private:
    void change() { waiting_.clear(), changed_.notify_all(); }   // who waits looks again, and says so again
    std::string stuck() const {
        std::string all;
        for (const auto& [rank, call] : waiting_) all += concat(", rank ", rank, " at ", call->text());
        for (const int rank : ended_) all += concat(", rank ", rank, " has ended");
        return "ranks wait for what will never come: " + all.substr(2);
    }
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::pair<Group, long>, std::shared_ptr<Round>> rounds_;
    std::map<int, const Call*> waiting_;               // since the last change
    std::set<int> ended_;
    size_t ranks_ = 0;
    std::string error_;
};

class ThreadEngine final : public Engine {
public:
    ThreadEngine(ThreadWorld& world, const Mesh& mesh, const Device& device)
        : world_(world), mesh_(mesh), device_(device) { device_.watch = nullptr; }
    long start(const Call& c) override {
        wait(device_);                                 // on a GPU: what is lent has been computed
        const int me = mesh_.rank, other = c.pair() ? mesh_.peer(c.axis, c.peer) : -1;
        const std::vector<int> ranks = c.op == Op::send      ? std::vector{me, other}
                                       : c.op == Op::receive ? std::vector{other, me} : mesh_.group(c.axis);
        const ThreadWorld::Group group{int(c.axis), ranks[0], c.pair() ? ranks[1] : -1};
        const size_t place = c.pair() ? c.op == Op::receive : size_t(mesh_.at(c.axis));
        Buffer sent(c.op == Op::send ? size_t(c.bytes()) : 0);
        copy_bytes(device_, sent.data(), c.data, sent.bytes());
        under_way_[++tickets_] = {world_.post(group, next_[group]++, ranks, place, c, std::move(sent)), place};
        return tickets_;
    }
    long await(long ticket) override {
        const Mine mine = under_way_.at(ticket);
        under_way_.erase(ticket);
        const Call& c = mine.round->calls[mine.place];
        if (c.op == Op::send) return c.time;
        world_.meet(*mine.round, mine.place, c.op == Op::receive ? 0 : 1);
        try {
            const long latest = compare(mine, c);
            with_type(c.type, [&](auto type) { work<decltype(type)>(mine, c); });
            return latest;
        } catch (const std::exception& e) {
            world_.give_up(*mine.round, mine.place, e.what());
            throw;
        }
    }
    void abort(const std::string& why) noexcept override { world_.abort(why); }
private:
    struct Mine { std::shared_ptr<ThreadWorld::Round> round; size_t place; };
    // All mean the same call; the time of the latest.
    long compare(const Mine& m, const Call& c) const {
        long latest = c.time;
        for (size_t i = 0; i < m.round->calls.size(); ++i) {
            const Call& other = m.round->calls[i];
            const bool same = c.pair() || (other.op == c.op && other.peer == c.peer);
            if (!same || other.count != c.count || other.type != c.type)
                disagree(mesh_.rank, c.text(), m.round->ranks[i], other.text());
            latest = std::max(latest, other.time);
        }
        return latest;
    }
    template <class T> void work(const Mine& m, const Call& c) {
        const int n = int(m.round->calls.size()), me = int(m.place);
        const long each = c.count / n;
        T* const data = static_cast<T*>(c.data);
        Sources<T> lent{}, from{};
        for (int r = 0; r < n; ++r) {
            lent.of[r] = static_cast<const T*>(m.round->calls[size_t(r)].data);
            from.of[r] = static_cast<const T*>(m.round->calls[size_t(r)].from);
        }
        int stage = 1;
        if (c.op == Op::receive) copy_bytes(device_, data, m.round->sent.data(), size_t(c.bytes()));
        if (c.op == Op::broadcast) copy_part(device_, data, lent.of[c.peer], c.count);
        for (int r = 0; r < n; ++r) {
            if (c.op == Op::gather) copy_part(device_, data + r * each, from.of[r], each);
            if (c.op == Op::all_to_all) copy_part(device_, data + r * each, from.of[r] + me * each, each);
        }
        if (c.adds()) {
            const Piece mine = piece_of(c.count, n, me);
            for (int r = 0; r < n; ++r) from.of[r] = lent.of[r] + mine.begin;
            combine(device_, data + mine.begin, from, n, mine.count, c.op != Op::max);
        }
        if (c.adds() && c.op != Op::scatter) {
            wait(device_);
            world_.meet(*m.round, m.place, ++stage);
            for (int r = 0; r < n; ++r) {
                const Piece part = piece_of(c.count, n, r);
                copy_part(device_, data + part.begin, lent.of[r] + part.begin, part.count);
            }
        }
        wait(device_);
        if (c.op != Op::receive) world_.meet(*m.round, m.place, ++stage, true);
    }
    ThreadWorld& world_;
    const Mesh mesh_;
    Device device_;
    std::map<ThreadWorld::Group, long> next_;
    std::map<long, Mine> under_way_;
    long tickets_ = 0;
};

// Runs body(rank) for each rank, rank 0 on this thread, and throws the first error of any of them. A debugger and top
// show the others as "rank 3".
template <class Body> void run_threads(ThreadWorld& world, int ranks, Body body) {
    std::exception_ptr alone;                          // of one rank the error is passed on as it is
    const auto run = [&](int rank) {
#if defined(__linux__)
        if (rank) pthread_setname_np(pthread_self(), concat("rank ", rank).c_str());
#endif
        try {
            body(rank);
            world.leave(rank);
        } catch (const std::exception& e) {
            if (ranks == 1) alone = std::current_exception();
            world.abort(concat("rank ", rank, ": ", e.what()));   // of an Aborted: there is an error already
        }
    };
    world.begin(ranks);
    std::vector<std::thread> threads;
    for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
    run(0);
    for (std::thread& t : threads) t.join();
    if (alone) std::rethrow_exception(alone);
    if (!world.error().empty()) throw Error(world.error());
}

}  // namespace baretrain
