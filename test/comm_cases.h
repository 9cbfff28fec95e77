// comm_cases.h - what every engine must do, as bodies that each rank runs: all operations, against loops of their own.
// Copy with: test/harness.h, comm.h and what they name
// Nothing here knows the engine: suite comm runs it with ranks as threads, and again under mpirun.
#pragma once
#include "comm.h"
#include "harness.h"
#include <functional>
#include <memory>
#include <numeric>

namespace baretrain::test {

// What rank `rank` brings to a call: numbers that do not add up exactly, so that the order of a sum shows.
template <class T> T brought(int rank, long i) {
    const uint32_t bits = philox(11, Stream::test, uint64_t(rank), uint64_t(i)).v[0];
    if constexpr (sizeof(T) == 1) return T(bits);
    else return T(float((2 * uniform(bits) - 1) * (bits % 7 ? 1 : 1000)));
}

// A buffer of `count` elements with guards behind them, filled by value(i).
template <class T> struct Filled {
    Tensor<T> tensor;
    long count;
    template <class Value> Filled(long count, Value value) : tensor(1, count), count(count) {
        std::vector<T> host;
        for (long i = 0; i < count; ++i) host.push_back(value(i));
        copy_bytes(tensor.d, tensor.v.data, host.data(), host.size() * sizeof(T));
    }
    View<T> v() const { return tensor.v; }
    View<T> part(long first, long n) const { return tensor.v.col_range(first, n); }
    // The bits of elements [first, first + n) are those of value(i).
    template <class Value> void check(long first, long n, Value value) const {
        Device d;
        std::vector<T> host(static_cast<size_t>(count));
        copy_bytes(d, host.data(), tensor.v.data, host.size() * sizeof(T));
        long wrong = 0;
        for (long i = first; i < first + n; ++i) {
            const T expected = value(i);
            wrong += std::memcmp(&host[size_t(i)], &expected, sizeof(T)) != 0;
        }
        CHECK(wrong == 0);
        tensor.check_guard();
    }
    template <class Value> void check(Value value) const { check(0, count, value); }
};

// The sum or maximum over a group, added in the order of its ranks, one by one.
template <class T> T combined(const std::vector<int>& group, long i, bool sum) {
    using R = Real<T>;
    volatile R x = R(brought<T>(group[0], i));         // volatile: nothing is re-associated
    for (size_t k = 1; k < group.size(); ++k) {
        const R y = R(brought<T>(group[k], i));
        if (sum) x = x + y;
        else if (y > x) x = y;
    }
    return T(R(x));
}

inline long up(long a, long b) { return (a + b - 1) / b; }

// Bytes that the ledger has got since the last look, which must be those of one call.
inline void check_ledger(Comm& comm, Op op, Axis a, bool moves, long expected) {
    CHECK(comm.ledger.size() == (moves && comm.size(a) > 1));
    for (const auto& [key, row] : comm.ledger) {
        CHECK(key.axis == a);
        CHECK(key.op == op);
        CHECK(key.what == "test");
        CHECK(row.calls == 1);
        CHECK(row.bytes == expected);
        CHECK(row.ms >= 0);
    }
    comm.ledger.clear();
}

template <class T> void check_numbers(Comm& comm, Axis a, long count) {
    const std::vector<int> group = comm.mesh.group(a);
    const long n = comm.size(a), me = comm.mesh.at(a), bytes = long(sizeof(T));
    const auto mine = [&](long i) { return brought<T>(comm.mesh.rank, i); };
    const auto sum = [&](long i) { return combined<T>(group, i, true); };
    const auto max = [&](long i) { return combined<T>(group, i, false); };
    const Filled<T> x(count, mine), y(count, mine), z(count * n, mine);
    comm.await(comm.sum(a, x.v(), {"test"}));
    x.check(sum);
    check_ledger(comm, Op::sum, a, count, 2 * (n - 1) * up(count, n) * bytes);
    comm.await(comm.max(a, y.v(), {"test"}));
    y.check(max);
    check_ledger(comm, Op::max, a, count, 2 * (n - 1) * up(count, n) * bytes);
    comm.await(comm.scatter(a, z.v(), {"test"}));
    z.check(me * count, count, sum);
    check_ledger(comm, Op::scatter, a, count, (n - 1) * count * bytes);
}

// count: elements of a part.
template <class T> void check_moves(Comm& comm, Axis a, long count) {
    const std::vector<int> group = comm.mesh.group(a);
    const long n = comm.size(a), me = comm.mesh.at(a), bytes = long(sizeof(T));
    const auto mine = [&](long i) { return brought<T>(comm.mesh.rank, i); };
    const auto gathered = [&](long i) { return brought<T>(group[size_t(i / count)], i % count); };
    const auto nothing = [](long) { return T{}; };
    const Filled<T> part(count, mine), whole(n * count, nothing);
    comm.await(comm.gather(a, whole.v(), part.v(), {"test"}));
    whole.check(gathered);
    part.check(mine);
    check_ledger(comm, Op::gather, a, count, (n - 1) * count * bytes);

    const Filled<T> place(n * count, [&](long i) { return i / count == me ? mine(i % count) : T{}; });
    comm.await(comm.gather(a, place.v(), place.part(me * count, count), {"test"}));
    place.check(gathered);
    comm.ledger.clear();

    const Filled<T> from(n * count, mine), to(n * count, nothing);
    comm.await(comm.all_to_all(a, to.v(), from.v(), {"test"}));
    to.check([&](long i) { return brought<T>(group[size_t(i / count)], me * count + i % count); });
    check_ledger(comm, Op::all_to_all, a, count, (n - 1) * count * bytes);

    for (int root = 0; root < n; ++root) {
        const Filled<T> x(count, mine);
        comm.await(comm.broadcast(a, x.v(), root, {"test"}));
        x.check([&](long i) { return brought<T>(group[size_t(root)], i); });
        check_ledger(comm, Op::broadcast, a, count, me == root ? count * bytes : 0);
    }
    if (n == 1 || count == 0) return;
    const Filled<T> taken(count, nothing);             // round the ring, twice in a row
    for (long step : {1, 2}) {
        Pending out = comm.send<T>(a, part.v(), int((me + 1) % n), {"test"});
        Pending in = comm.receive(a, taken.v(), int((me + n - 1) % n), {"test"});
        comm.await(in), comm.await(out);
        taken.check([&](long i) { return brought<T>(group[size_t((me + n - 1) % n)], i); });
        CHECK(comm.ledger.size() == 2);
        CHECK(comm.ledger.at({a, Op::send, "test"}).bytes == step * count * bytes);
        CHECK(comm.ledger.at({a, Op::receive, "test"}).bytes == 0);
    }
    comm.ledger.clear();
}

// Ten calls of several kinds under way at once, awaited in another order than they were started.
inline void check_several(Comm& comm, Axis a) {
    const std::vector<int> group = comm.mesh.group(a);
    const long n = comm.size(a), me = comm.mesh.at(a), count = 1000;
    std::vector<std::unique_ptr<Filled<float>>> sums, wholes;
    std::vector<Pending> pending;
    const Filled<float> mine(count, [&](long i) { return brought<float>(comm.mesh.rank, i); });
    for (int k = 0; k < 4; ++k) {
        const auto shifted = [&](long i) { return brought<float>(comm.mesh.rank, i + k); };
        sums.push_back(std::make_unique<Filled<float>>(count * n, shifted));
        wholes.push_back(std::make_unique<Filled<float>>(count * n, [](long) { return 0.f; }));
        pending.push_back(comm.scatter(a, sums.back()->v(), {"test"}));
        pending.push_back(comm.gather(a, wholes.back()->v(), mine.v(), {"test"}));
    }
    const Filled<double> last(3, [&](long i) { return brought<double>(comm.mesh.rank, i); });
    pending.push_back(comm.sum(a, last.v(), {"test"}));
    for (size_t i : {8, 1, 0, 2, 3, 7, 6, 5, 4}) comm.await(pending[i]);
    for (int k = 0; k < 4; ++k) {
        sums[size_t(k)]->check(me * count, count, [&](long i) { return combined<float>(group, i + k, true); });
        wholes[size_t(k)]->check([&](long i) { return brought<float>(group[size_t(i / count)], i % count); });
    }
    last.check([&](long i) { return combined<double>(group, i, true); });
    comm.ledger.clear();
}

// A NaN of any rank, and only of the elements that have it; the largest is found among negative numbers too.
template <class T> void check_nan(Comm& comm, Axis a) {
    const int n = comm.size(a), me = comm.mesh.at(a);
    Filled<T> x(long(n) + 1, [&](long i) { return T(float(i == me ? NAN : double(-1 - me))); });
    comm.await(comm.max(a, x.v(), {"test"}));
    const Numbers got = x.tensor.get();
    for (int i = 0; i < n; ++i) CHECK(got[size_t(i)] != got[size_t(i)]);
    CHECK(got[size_t(n)] == -1);
    comm.ledger.clear();
}

// <A x, y> = <x, A* y> over all ranks: what goes backward through each operation. x and y are each rank's own; what all
// ranks have is counted once.
inline void check_adjoint(Comm& comm, Axis a, const Numbers& x, const Numbers& y, auto forward, auto backward) {
    const auto dot = [](const Numbers& u, const Numbers& v) { return std::inner_product(u.begin(), u.end(), v.begin(), 0.0); };
    const Tensor<double> products(1, 2, {dot(forward(x), y), dot(x, backward(y))});
    comm.await(comm.sum(a, products.v, {"test"}));
    const Numbers both = products.get();
    CHECK(std::fabs(both[0]) > 1e-3);
    CHECK(std::fabs(both[0] - both[1]) < 1e-12 * (1 + std::fabs(both[0])));
}
inline void check_adjoints(Comm& comm, Axis a, long count) {
    const long n = comm.size(a), me = comm.mesh.at(a);
    const auto own = [&](long size, int which) { return noise<double>(size, 2 * comm.mesh.rank + which); };
    const auto tensor = [](const Numbers& v) { return Tensor<double>(1, long(v.size()), v); };
    const auto gather = [&](const Numbers& x) {
        const Tensor<double> from = tensor(x), to(1, n * count);
        comm.await(comm.gather(a, to.v, from.in(), {"test"}));
        return to.get();
    };
    const auto scatter = [&](const Numbers& x) {
        const Tensor<double> t = tensor(x);
        comm.await(comm.scatter(a, t.v, {"test"}));
        const Numbers all = t.get();
        return Numbers(all.begin() + me * count, all.begin() + (me + 1) * count);
    };
    const auto sum = [&](const Numbers& x) {
        const Tensor<double> t = tensor(x);
        comm.await(comm.sum(a, t.v, {"test"}));
        return t.get();
    };
    const auto all_to_all = [&](const Numbers& x) {
        const Tensor<double> from = tensor(x), to(1, n * count);
        comm.await(comm.all_to_all(a, to.v, from.in(), {"test"}));
        return to.get();
    };
    check_adjoint(comm, a, own(count, 0), own(n * count, 1), gather, scatter);
    check_adjoint(comm, a, own(n * count, 0), own(count, 1), scatter, gather);
    check_adjoint(comm, a, own(n * count, 0), own(n * count, 1), all_to_all, all_to_all);
    check_adjoint(comm, a, own(count, 0), own(count, 1), sum, sum);   // each goes on with the sum in its own way
    const Numbers same = noise<double>(count, 99);                    // or all in the same: then nothing travels back
    check_adjoint(comm, a, own(count, 0), same, [&](const Numbers& x) {
        Numbers s = sum(x);
        for (double& v : s) v /= double(n);
        return s;
    }, std::identity());
    for (int root = 0; root < n; ++root) {
        const auto broadcast = [&](const Numbers& x) {
            const Tensor<double> t = tensor(x);
            comm.await(comm.broadcast(a, t.v, root, {"test"}));
            return t.get();
        };
        const auto sum_to_root = [&](const Numbers& y) {
            const Numbers s = sum(y);
            return me == root ? s : Numbers(s.size());
        };
        check_adjoint(comm, a, own(count, 0), own(count, 1), broadcast, sum_to_root);
        const int next = int((root + 1) % n);
        if (n == 1) continue;
        const auto carry = [&](int from, int to) {
            return [&comm, a, me, from, to, tensor](const Numbers& x) {
                const Tensor<double> t = tensor(x), none = tensor(Numbers(x.size()));
                if (me == from) comm.await(comm.send<double>(a, t.in(), to, {"test"}));
                if (me == to) comm.await(comm.receive(a, t.v, from, {"test"}));
                return me == to ? t.get() : none.get();
            };
        };
        check_adjoint(comm, a, own(count, 0), own(count, 1), carry(root, next), carry(next, root));
    }
    comm.ledger.clear();
}

inline void check_all(Comm& comm) {
    for (Axis a : all_axes) {
        CAPTURE(axis_names[int(a)]);
        for (long count : {0, 1, 3, 7, 1031}) {        // fewer than ranks; no multiple of them; more than a strip
            check_numbers<double>(comm, a, count), check_numbers<float>(comm, a, count), check_numbers<bf16>(comm, a, count);
            check_moves<double>(comm, a, count), check_moves<float>(comm, a, count), check_moves<bf16>(comm, a, count);
            check_moves<char>(comm, a, count);
        }
        check_several(comm, a), check_adjoints(comm, a, 7);
        check_nan<double>(comm, a), check_nan<float>(comm, a), check_nan<bf16>(comm, a);
    }
}

}  // namespace baretrain::test
