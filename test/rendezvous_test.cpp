// rendezvous_test.cpp - processes that meet at a port, and all the ways in which they do not.
#include "comm/rendezvous.h"
#include "host.h"
#include <arpa/inet.h>
#include <chrono>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace baretrain;
using namespace baretrain::test;

struct Sock {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ~Sock() { close(fd); }
};
sockaddr_in address(int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK), a.sin_port = htons(uint16_t(port));
    return a;
}
// A port that nobody listens at.
int free_port() {
    const Sock s;
    sockaddr_in a = address(0);
    socklen_t size = sizeof a;
    REQUIRE(bind(s.fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
    REQUIRE(getsockname(s.fd, reinterpret_cast<sockaddr*>(&a), &size) == 0);
    return ntohs(a.sin_port);
}

// What each of these processes gets, or "error: ..." with its line; and how long all of them took.
struct Met { std::vector<std::string> got; double seconds; };
Met processes(const std::vector<Meeting>& all, const std::string& bytes) {
    const TempFolder folder;
    const auto begin = std::chrono::steady_clock::now();
    std::vector<pid_t> children;
    for (size_t i = 0; i < all.size(); ++i) {
        children.push_back(fork());
        if (children.back()) continue;
        std::string got;
        try {
            got = meet_at(all[i], all[i].rank == 0 ? bytes : "");
        } catch (const Error& e) {
            got = concat("error: ", e.what());
        }
        put(folder / std::to_string(i), got);
        _exit(0);
    }
    Met met;
    for (size_t i = 0; i < all.size(); ++i) {
        waitpid(children[i], nullptr, 0);
        met.got.push_back(get(folder / std::to_string(i)));
    }
    met.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return met;
}

std::string secret() {
    std::string bytes(128, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = char(i * 37);
    return bytes;
}

}  // namespace

TEST_SUITE("rendezvous") {

TEST_CASE("all processes get the bytes of rank 0, whoever comes first") {
    for (int ranks : {1, 2, 5})
        for (bool first_last : {false, true}) {
            const int port = free_port();
            std::vector<Meeting> all;
            for (int r = 0; r < ranks; ++r)
                all.push_back({first_last ? ranks - 1 - r : r, ranks, "localhost", port, 20});
            const Met met = processes(all, secret());
            for (const std::string& got : met.got) CHECK(got == secret());
        }
}

TEST_CASE("two meetings at one port, one after the other: nothing is left of the first") {
    const int port = free_port();
    for (const char* bytes : {"first", "second"}) {
        const Met met = processes({{0, 2, "localhost", port, 20}, {1, 2, "localhost", port, 20}}, bytes);
        CHECK(met.got[1] == bytes);
    }
}

TEST_CASE("C19: a rank that does not come is named by rank 0 in time, and the others end too") {
    const int port = free_port();
    const Meeting zero{0, 4, "localhost", port, 1.5}, one{1, 4, "localhost", port, 20}, three{3, 4, "localhost", port, 20};
    const Met met = processes({zero, one, three}, "x");
    CHECK(met.got[0] == concat("error: rank 0: of 4 ranks these did not come to port ", port, " within 1 s: 2"));
    for (int i : {1, 2}) CHECK(contains(met.got[size_t(i)], concat(":", port, " gave up; see what it says")));
    CHECK(met.seconds < 10);
}

TEST_CASE("without rank 0, at a wrong port or a host that does not exist there is one line, in time") {
    const int port = free_port();
    for (const char* host : {"localhost", "no-such-host.invalid"}) {
        const Met met = processes({{1, 2, host, port, 1}}, "");
        const std::string start = concat("error: rank 1: rank 0 does not answer at ", host, ":", port, " within 1 s: ");
        CHECK(met.got[0].starts_with(start));
        CHECK(met.seconds < 10);
    }
}

TEST_CASE("a port that is taken is said by rank 0") {
    const Sock s;
    const int port = free_port();
    const sockaddr_in a = address(port);
    REQUIRE(bind(s.fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0);
    REQUIRE(listen(s.fd, 1) == 0);
    const Met met = processes({{0, 2, "localhost", port, 5}}, "x");
    CHECK(met.got[0].starts_with(concat("error: rank 0: port ", port, " can't be listened at: ")));
}

TEST_CASE("ranks of another size, and two of one number, are refused by name") {
    const int port = free_port();
    const Met size = processes({{0, 2, "localhost", port, 20}, {1, 3, "localhost", port, 20}}, "x");
    CHECK(size.got[0] == "error: rank 0 of 2: a process came that is rank 1 of 3");
    CHECK(contains(size.got[1], "gave up"));
    const Meeting zero{0, 3, "localhost", port, 20}, one{1, 3, "localhost", port, 20};
    const Met twice = processes({zero, one, one}, "x");
    CHECK(contains(twice.got[0], "rank 1 came twice"));
}

TEST_CASE("strangers at the port, silent, talking or gone at once, do not disturb") {
    const int port = free_port();
    std::thread stranger([&] {
        std::vector<Sock> all(3);
        const sockaddr_in a = address(port);
        size_t there = 0;
        for (int i = 0; i < 400 && there < all.size(); ++i) {
            if (connect(all[there].fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0) ++there;
            else std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        CHECK(there == all.size());
        CHECK(::send(all[1].fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) > 0);
        shutdown(all[2].fd, SHUT_RDWR);
        const Met met = processes({{1, 2, "localhost", port, 20}}, "");
        CHECK(met.got[0] == secret());
    });
    const Met met = processes({{0, 2, "localhost", port, 20}}, secret());
    stranger.join();
    CHECK(met.got[0] == secret());
}

}
