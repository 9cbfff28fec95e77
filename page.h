// page.h - the page of runs: curves, numbers, memory, samples and settings in one HTML file that needs no network.
// Copy with: page.cpp, page/style.h, files.h and what they name
// One run or several over one another: the page of one run is the comparison of one. It shows everything without
// JavaScript, which only adds what is under the pointer. All texts are UTF-8.
#pragma once
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace baretrain {

using Texts = std::vector<std::pair<std::string, std::string>>;   // name and value, in an order

struct RunPage {
    struct Point { double step, loss, grad_norm, lr, tokens_per_s, val_loss, mfu, resident; };   // NaN: none, unknown
    std::string name, config;                          // config: TOML, an origin behind each value
    std::string trace;                                 // HTML: what some steps did when; empty: nobody looked
    Texts facts;                                       // of run.json
    std::vector<Point> points;                         // steps grow
    std::vector<std::pair<long, std::string>> samples; // with their step
    std::map<long, std::vector<std::pair<double, double>>> layers;   // by block, -1: ends: step, update / weight
    std::map<std::string, std::pair<double, double>> sent;   // by axis.operation.what: bytes and ms in the last step
};
std::string html_page(std::span<const RunPage> runs);

struct Curve {
    std::string name, style;                           // name "": not in the legend; style: CSS classes, color-0 ...
    std::vector<std::pair<double, double>> points;     // step and value; steps grow; what is not finite is a gap
};
enum class Floor { lowest, zero };                     // where the vertical axis begins
// A <figure>; nothing where no curve has a point.
std::string chart(const std::string& title, const std::vector<Curve>& curves, Floor floor = Floor::lowest);

}  // namespace baretrain
