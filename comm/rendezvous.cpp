// rendezvous.cpp - body of rendezvous.h.
#include "comm/rendezvous.h"
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace baretrain {
namespace {

using Clock = std::chrono::steady_clock;

struct Socket {
    int fd;
    explicit Socket(int fd = -1) : fd(fd) {}
    Socket(Socket&& s) noexcept : fd(std::exchange(s.fd, -1)) {}
    ~Socket() { if (fd >= 0) close(fd); }
    void wait_at_most(double seconds) const {          // for each of its calls
        const timeval t{time_t(seconds), suseconds_t(1e6 * (seconds - double(long(seconds))) + 1)};
        for (int what : {SO_RCVTIMEO, SO_SNDTIMEO}) setsockopt(fd, SOL_SOCKET, what, &t, sizeof t);
    }
    bool read(void* to, size_t bytes) const { return recv(fd, to, bytes, MSG_WAITALL) == ssize_t(bytes); }
    bool write(const void* from, size_t bytes) const { return send(fd, from, bytes, MSG_NOSIGNAL) == ssize_t(bytes); }
};

// What the others begin with.
struct Hello { char greeting[16] = "baretrain ranks"; int32_t rank, ranks; };

// A socket at the first address of the host for which use() works, or none, and why.
template <class Use> Socket open(const char* host, int port, std::string& why, Use use) {
    addrinfo hints{}, *all = nullptr;
    hints.ai_socktype = SOCK_STREAM, hints.ai_flags = host ? 0 : AI_PASSIVE;
    if (const int status = getaddrinfo(host, std::to_string(port).c_str(), &hints, &all)) why = gai_strerror(status);
    int found = -1;
    for (const addrinfo* a = all; a && found < 0; a = a->ai_next) {
        Socket s(socket(a->ai_family, a->ai_socktype, 0));
        if (use(s, *a) == 0) found = std::exchange(s.fd, -1);
        else why = std::strerror(errno);
    }
    if (all) freeaddrinfo(all);
    return Socket(found);
}

// Rank 0: the sockets of all others, when they have said who they are.
std::map<int, Socket> wait_for_others(const Meeting& m, Clock::time_point end) {
    std::string why;
    const Socket door = open(nullptr, m.port, why, [](const Socket& s, const addrinfo& a) {
        const int yes = 1;                             // the port may be that of a run that has just ended
        setsockopt(s.fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        return bind(s.fd, a.ai_addr, a.ai_addrlen) || listen(s.fd, 1024);
    });
    if (door.fd < 0) fail("rank 0: port ", m.port, " can't be listened at: ", why, "; choose another one");
    std::map<int, Socket> came;
    while (int(came.size()) < m.ranks - 1) {
        pollfd p{door.fd, POLLIN, 0};
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
        if (poll(&p, 1, int(std::max<long>(0, left))) == 0) {
            std::string missing;
            for (int r = 1; r < m.ranks; ++r) missing += came.count(r) ? "" : concat(" ", r);
            fail("rank 0: of ", m.ranks, " ranks these did not come to port ", m.port, " within ", long(m.seconds),
                 " s:", missing);
        }
        Socket s(accept(door.fd, nullptr, nullptr));
        s.wait_at_most(1);                             // a stranger may say nothing
        Hello hello;
        if (!s.read(&hello, sizeof hello) || std::memcmp(hello.greeting, Hello().greeting, 16) != 0) continue;
        if (hello.ranks != m.ranks || hello.rank < 1 || hello.rank >= m.ranks)
            fail("rank 0 of ", m.ranks, ": a process came that is rank ", hello.rank, " of ", hello.ranks);
        if (!came.emplace(hello.rank, std::move(s)).second)
            fail("rank 0: rank ", hello.rank, " came twice to port ", m.port, "; is there another job at it?");
    }
    return came;
}

}  // namespace

std::string meet_at(const Meeting& m, const std::string& bytes) {
    const auto end = Clock::now() + std::chrono::microseconds(long(1e6 * m.seconds));
    uint32_t size = uint32_t(bytes.size());
    if (m.rank == 0) {
        for (const auto& [rank, s] : wait_for_others(m, end))
            if (!s.write(&size, sizeof size) || !s.write(bytes.data(), size))
                fail("rank 0: rank ", rank, " has gone away");
        return bytes;
    }
    for (std::string why; ; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {   // it may come after us
        const double left = std::chrono::duration<double>(end - Clock::now()).count();
        if (left <= 0)
            fail("rank ", m.rank, ": rank 0 does not answer at ", m.host, ":", m.port, " within ", long(m.seconds),
                 " s: ", why);
        const Socket s = open(m.host.c_str(), m.port, why, [&](const Socket& s, const addrinfo& a) {
            s.wait_at_most(left);
            return connect(s.fd, a.ai_addr, a.ai_addrlen);
        });
        if (s.fd < 0) continue;
        const Hello hello{.rank = m.rank, .ranks = m.ranks};
        std::string answer;
        if (s.write(&hello, sizeof hello) && s.read(&size, sizeof size)) answer.resize(size);
        if (answer.empty() || !s.read(answer.data(), size))
            fail("rank ", m.rank, ": rank 0 at ", m.host, ":", m.port, " gave up; see what it says");
        return answer;
    }
}

}  // namespace baretrain
