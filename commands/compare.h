// compare.h - train --compare KEY=a,b: the same run once for each value, and once with another seed, in one page.
// Copy with: comm/world.h, config/keys.h, report.h and what they name
// Data, seed and all other keys stay; the second seed of the first value says how far apart two runs are that differ in
// nothing but chance. A value may bring other keys: dtype=fp32,bf16+fp8=rowwise. Run folders KEY-a, KEY-b, KEY-a-again
// and compare.html lie in --out.
#pragma once
#include "comm/world.h"
#include "config/keys.h"
#include "report.h"
#include <set>

namespace baretrain {

struct Compared {
    std::string name;                                  // of its folder
    std::vector<std::string> flags;                    // what sets it apart
};

// The flags of KEY=value, or of KEY=value+KEY=value.
inline std::vector<std::string> flags_of(const std::string& settings) {
    const size_t equal = settings.find('='), next = settings.find('=', equal + 1);
    const size_t plus = next == std::string::npos ? next : settings.rfind('+', next);   // 1e+3 is one value
    std::vector<std::string> flags = {"--" + settings.substr(0, equal), settings.substr(equal + 1, plus - equal - 1)};
    if (plus == std::string::npos) return flags;
    const std::vector<std::string> others = flags_of(settings.substr(plus + 1));
    flags.insert(flags.end(), others.begin(), others.end());
    return flags;
}

// From KEY=a,b,...
inline std::vector<Compared> compared(const Config& c) {
    const size_t equal = std::min(c.compare.find('='), c.compare.size());
    const std::string key = c.compare.substr(0, equal);
    std::vector<std::string> values;
    for (size_t at = equal + 1, end; at <= c.compare.size(); at = end + 1) {
        end = std::min(c.compare.find(',', at), c.compare.size());
        values.push_back(c.compare.substr(at, end - at));
    }
    Config any;
    const std::set<std::string> places = {"out", "resume", "replay", "compare", "rendezvous", "ranks"};
    const auto fits = [&](const keys::Key& k) { return k.name == key && (k.commands & 1) && !places.count(key); };
    if (!std::ranges::any_of(keys::all_keys(any), fits) || values.size() < 2)
        throw Usage("--compare ", c.compare, ": expected KEY=a,b,... with a key of train and two values or more");
    std::vector<Compared> all;
    for (const std::string& v : values) {
        std::string name = key + "-" + v;
        std::ranges::replace(name, '/', '_');
        if (std::ranges::count(values, v) > 1) throw Usage("--compare ", c.compare, ": ", v, " stands there twice");
        all.push_back({name, flags_of(key + "=" + v)});
    }
    all.push_back({all[0].name + "-again", all[0].flags});
    const std::string seed = std::to_string(c.seed + 1);
    if (key == "seed") all.pop_back();                 // they are all that already
    else all.back().flags.insert(all.back().flags.end(), {"--seed", seed});
    return all;
}

// Without a flag and its value, in whichever way it was given.
inline void drop_flag(std::vector<std::string>& words, const std::string& flag) {
    for (size_t i = 0; i < words.size();)
        if (words[i].starts_with(flag + "=")) words.erase(words.begin() + long(i));
        else if (words[i] != flag) ++i;
        else {
            const bool value = i + 1 < words.size() && !words[i + 1].starts_with("--");   // booleans may stand alone
            words.erase(words.begin() + long(i), words.begin() + long(i + 1 + value));
        }
}

// run(argc, argv): one training. All ranks of a world call it; the first one speaks.
template <class Run> int compare(int argc, const char* const* argv, const Config& c, const World& world, Run run) {
    const std::vector<Compared> all = compared(c);
    const auto with_words = [&](const Compared& one, auto use) {
        std::vector<std::string> words(argv, argv + argc);
        for (const std::string flag : {"--compare", "--out"}) drop_flag(words, flag);
        for (size_t i = 0; i < one.flags.size(); i += 2) drop_flag(words, one.flags[i]);
        words.insert(words.end(), one.flags.begin(), one.flags.end());
        words.insert(words.end(), {"--out", c.out + "/" + one.name});
        std::vector<const char*> line;
        for (const std::string& w : words) line.push_back(w.c_str());
        return use(int(line.size()), line.data());
    };
    for (const Compared& one : all)                    // before the first of them runs
        with_words(one, [&](int n, const char* const* line) { return parse(n, line, {}, world.ranks); });
    for (const Compared& one : all)
        if (const int status = with_words(one, run); status != 0) return status;
    if (!world.first()) return 0;
    std::vector<std::string> folders;
    std::printf("\n%-32s %10s %10s\n", "mean of the last tenth of steps", "loss", "gap");
    double base = 0;
    for (const Compared& one : all) {
        folders.push_back(c.out + "/" + one.name);
        const std::map<long, StepLog> steps = read_steps(folders.back());
        const long count = std::max(1L, long(steps.size()) / 10);
        double sum = 0;
        for (auto s = steps.rbegin(); s != std::next(steps.rbegin(), std::min(count, long(steps.size()))); ++s)
            sum += s->second.loss / double(count);
        if (folders.size() == 1) base = sum;
        std::printf("%-32s %10.4f %+9.2f %%\n", one.name.c_str(), sum, 100 * (sum / base - 1));
    }
    std::printf("%s\n", write_report(folders, c.out + "/compare.html").c_str());
    return 0;
}

}  // namespace baretrain
