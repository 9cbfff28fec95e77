// program.h - what tests of the whole program share: run it as a child, stop it, kill it, and read what it left behind.
// Copy with: test/host.h and what it names
// BT_PROGRAM is the path of the built program. A child has one OpenMP thread, its two outputs in files, its input from
// the file stdin if there is one, and its own working directory, so that nothing lands in the checkout.
#pragma once
#include "host.h"
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <set>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace baretrain::test {

using Words = std::vector<std::string>;

// Flags with their values; a flag that both have gets the value of the second.
inline Words operator+(Words a, const Words& b) {
    for (size_t i = 0; i < b.size(); ++i) {
        const auto there = std::find(a.begin(), a.end(), b[i]);
        if (b[i].starts_with("--") && there != a.end() && i + 1 < b.size()) *(there + 1) = b[++i];
        else a.push_back(b[i]);
    }
    return a;
}

// Words of English, always the same: enough structure for a loss to fall.
inline std::string prose(size_t bytes) {
    const char* const words[] = {"the ", "sun ", "rose ", "over ", "a ", "hill, ", "and ", "water ", "ran ", "down. "};
    std::string text;
    for (unsigned n = 7; text.size() < bytes; n = n * 1103515245 + 12345) text += words[n / 65536 % 10];
    text.resize(bytes);
    return text;
}

inline const std::string& program() {
    static const std::string path = fs::absolute(BT_PROGRAM).lexically_normal().string();
    return path;
}

struct Result {
    int code;                                          // exit code, or 1000 + the signal that ended it
    std::string out, err;
    double seconds;
    long peak_kb;                                      // of resident memory
};

class Child {
public:
    // `in`: its working directory, which also gets the files of its outputs. launcher: mpirun and its flags.
    Child(const fs::path& in, const Words& words, const Words& launcher = {}) : in_(in), pid_(fork()) {
        if (pid_ < 0) throw std::runtime_error("fork");
        if (pid_ == 0) start(launcher, words);
    }
    ~Child() { if (pid_ > 0) kill(SIGKILL), wait(); }
    Child(const Child&) = delete;

    void kill(int signal) const { ::kill(pid_, signal); }
    // The processes that it started, such as the ranks of mpirun.
    std::set<pid_t> children() const {
        std::set<pid_t> found;
        for (const auto& e : fs::directory_iterator("/proc")) {
            std::ifstream stat(e.path() / "stat");
            std::string pid, name, state;
            pid_t parent = 0;
            if (stat >> pid >> name >> state >> parent && parent == pid_) found.insert(std::stoi(pid));
        }
        return found;
    }
    bool running() {
        if (pid_ > 0 && wait4(pid_, &status_, WNOHANG, &used_) == pid_) pid_ = 0;
        return pid_ > 0;
    }
    Result wait() {
        if (pid_ > 0) wait4(pid_, &status_, 0, &used_), pid_ = 0;
        const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
        return {WIFEXITED(status_) ? WEXITSTATUS(status_) : 1000 + WTERMSIG(status_), get(in_ / "stdout"),
                get(in_ / "stderr"), s, used_.ru_maxrss / (fs::exists("/proc") ? 1 : 1024)};   // a Mac counts bytes
    }
    // Waits until `done()`, or until the child has ended by itself: then false.
    template <class Done> bool wait_for(Done done) {
        while (!done()) {
            if (!running()) return done();
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        return true;
    }
private:
    [[noreturn]] void start(Words launcher, const Words& words) const {
        std::vector<char*> argv;
        launcher.push_back(program());
        launcher.insert(launcher.end(), words.begin(), words.end());
        for (const std::string& word : launcher) argv.push_back(const_cast<char*>(word.c_str()));
        argv.push_back(nullptr);
        setenv("OMP_THREAD_LIMIT", "1", 1);
        const auto send = [](const char* file, int to) { dup2(open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644), to); };
        if (chdir(in_.c_str()) == 0) {
            send("stdout", 1), send("stderr", 2);
            dup2(open("stdin", O_RDONLY), 0);          // none: its input is ours
            execvp(argv[0], argv.data());
        }
        _exit(127);
    }
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    fs::path in_;
    pid_t pid_;
    int status_ = 0;
    rusage used_{};
};

inline Result run(const fs::path& in, const Words& words, const Words& launcher = {}) {
    return Child(in, words, launcher).wait();
}

// As in the README, but that a suite under sanitizers forgives MPI what it never frees.
inline Words mpirun(int ranks) {
    setenv("ASAN_OPTIONS", "detect_leaks=0", 0);
    return {"mpirun", "-q", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks)};
}
inline bool with_mpi() {
    const bool there = std::system("command -v mpirun > /dev/null") == 0;
    if (!there) MESSAGE("skipped: there is no mpirun");
    return there && contains(run(TempFolder().path, {"doctor"}).out, "\nMPI          on");
}

}  // namespace baretrain::test
