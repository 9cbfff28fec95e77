// doctor.h - what this machine and this build have, what is off, and what it would bring: the table of `doctor`.
// Copy with: doctor.cpp
// Nothing is changed or allocated. /proc and /sys are looked up below `root`; tests give a folder of their own.
#pragma once
#include <string>
#include <vector>

namespace baretrain {

struct Finding { std::string what, found, advice; };   // advice: empty where there is nothing to gain

// What only the device build knows.
struct Engines {
    std::string matmul = "plain loops";               // Matmul::engine()
    std::string devices = "";                           // the CUDA devices; empty: none
    int team = 1;                                      // OpenMP threads of a rank
};
std::vector<Finding> examine(const Engines& engines, const std::string& root = "");

// Bytes that can still be allocated: what is free, or what control groups leave if that is less. Page cache is free.
long available_memory(const std::string& root = "");
long total_memory(const std::string& root = "");
long resident_memory(const std::string& root = "");    // RssAnon and RssShmem of this process; -1: not known here

std::string cpu_model(const std::string& root = "");
std::string vector_extensions(const std::string& root = "");   // those that matter, e.g. "avx2 avx512_bf16"

// How this program was built, for run.json.
std::string compiler();
std::string build_flags();
std::string commit();
std::string source_folder();                           // where the sources lay that this program was built from

}  // namespace baretrain
