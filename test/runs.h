// runs.h - what tests of runs and their pages share: a run folder of their own, steps, and what a page draws.
// Copy with: test/host.h, report.h and what they name, nlohmann-json
#pragma once
#include "host.h"
#include "report.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace baretrain::test {

struct RunLab : TempFolder {
    std::string run() const { return *this / "run"; }
    std::string read(const std::string& name) const { return get(path / "run" / name); }
    std::vector<nlohmann::json> lines(const std::string& name) const {
        std::vector<nlohmann::json> parsed;
        std::ifstream in(path / "run" / name);
        for (std::string line; std::getline(in, line);) parsed.push_back(nlohmann::json::parse(line));
        return parsed;
    }
};

inline StepLog step_log(long step, double loss) {
    return {.step = step, .loss = loss, .grad_norm = 0.5, .lr = 3e-4, .tokens = 64 * step, .tokens_per_s = 31234,
            .mfu = 0.412, .resident = 64000000, .val_loss = {}, .ms = {}, .bytes = {}, .skipped = {}};
}

// The data of the curves that show something, in the order of the page.
inline std::vector<std::string> curves(const std::string& page) {
    std::vector<std::string> found;
    const std::string mark = "<path class=\"curve ";
    for (size_t at = page.find(mark); at != std::string::npos; at = page.find(mark, at + 1)) {
        const size_t begin = page.find(" d=\"", at) + 4;
        found.push_back(page.substr(begin, page.find('"', begin) - begin));
    }
    return found;
}

// What is wrong with the tags of a page: nothing, or one that is not closed, closes nothing or holds a bare < or >.
inline std::string broken_tags(const std::string& page) {
    std::vector<std::string> open;
    for (size_t at = 0; (at = page.find_first_of("<>", at)) != std::string::npos;) {
        const size_t end = page.find_first_of("<>", at + 1);
        if (page[at] == '>' || end == std::string::npos || page[end] == '<') return "bare: " + page.substr(at, 40);
        const std::string tag = page.substr(at + 1, end - at - 1), name = tag.substr(0, tag.find_first_of(" /", 1));
        at = end + 1;
        if (std::count(tag.begin(), tag.end(), '"') % 2) return "quotes: " + tag;
        if (tag[0] == '!' || name == "meta" || tag.back() == '/') continue;
        if (tag[0] != '/') open.push_back(name);
        else if (open.empty() || "/" + open.back() != tag) return "closes nothing: " + tag;
        else open.pop_back();
        if (name == "style" || name == "script") at = page.find("</", at);   // no tags in there
    }
    return open.empty() ? "" : "not closed: " + open.back();
}

inline size_t points_of(const std::string& curve) { return count(curve, "M") + count(curve, "L"); }

}  // namespace baretrain::test
