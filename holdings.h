// holdings.h - a picture of who holds what: weights, gradients and optimizer of each rank, layout beside layout.
// Copy with: holdings.cpp, files.h and what they name
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace baretrain {

// One rank's share of one of the three. All numbers but the bytes are shares of the whole.
struct Holding {
    std::vector<std::pair<double, double>> parts;      // from, to
    double room = 0;                                   // more memory, for units that are whole while they are at work
    size_t bytes = 0;                                  // of both
};
struct LayoutHoldings {
    std::string name;
    std::vector<double> units;                         // where each unit of the model begins
    std::vector<std::array<Holding, 3>> ranks;         // weights, gradients, optimizer
};
std::string holdings_svg(const std::vector<LayoutHoldings>& layouts);   // stands alone; light and dark

}  // namespace baretrain
