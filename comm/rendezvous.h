// rendezvous.h - how processes on several hosts find each other: all but rank 0 call at its port and get its few bytes.
// Copy with: comm/rendezvous.cpp, device/error.h
// There is no file: nothing that an earlier run left can be taken for an answer. Strangers at the port are let go.
#pragma once
#include "device/error.h"
#include <string>

namespace baretrain {

struct Meeting {
    int rank, ranks;
    std::string host;                                  // of rank 0, which listens on all its interfaces
    int port;
    double seconds = 60;                               // until whoever waits gives up, with one line
};

// The bytes of rank 0, on all ranks.
std::string meet_at(const Meeting& m, const std::string& bytes);

}  // namespace baretrain
