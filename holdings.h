// holdings.h - a picture of who holds what: weights, gradients and optimizer of each rank, layout beside layout.
// Copy with: holdings.cpp, files.h and what they name
#pragma once
#include <array>
#include <string>
#include <vector>

namespace baretrain {

// One rank's share of one of the three. All numbers but the bytes are shares of the whole.
struct Holding {
    std::vector<std::pair<double, double>> parts;      // from, to; one of each unit of the model
    double room = 0;                                   // more memory, for units that are whole while they are at work
    size_t bytes = 0;                                  // of both
};
// Of each rank: weights, gradients, optimizer.
struct LayoutHoldings { std::string name; std::vector<std::array<Holding, 3>> ranks; };
// The first layout must have whole weights: its parts are the units.
std::string holdings_svg(const std::vector<LayoutHoldings>& layouts);   // stands alone; light and dark

}  // namespace baretrain
