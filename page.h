// page.h - the page of a run: numbers, curves, samples and configuration in one HTML file that needs no network.
// Copy with: page.cpp, files.h and what they name
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace baretrain {

struct RunPage {
    struct Point { double step, loss, grad_norm, lr, tokens_per_s, val_loss; };   // val_loss NaN: none
    std::string name, config;                          // config: TOML
    std::string trace;                                 // HTML: what some steps did when; empty: nobody looked
    std::vector<Point> points;                         // steps grow
    std::vector<std::pair<long, std::string>> samples; // with their step; UTF-8
    std::string html() const;
};

}  // namespace baretrain
