// blackbox.cpp - the body of blackbox.h.
#include "blackbox.h"
#include "device/error.h"
#include "files.h"
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace baretrain {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr size_t window = 50, fewest = 20, most_sequences = 32;
constexpr long most_reports = 10;

struct Sequence {
    long number;                                       // in the step, from 0
    double loss;                                       // mean over its trained targets
    std::vector<int> ids;                              // inputs and the last target
    std::vector<double> losses;                        // of ids 1, 2, ...; of one that is not trained 0
};

// A document is a sequence.
std::vector<Sequence> sequences_of(const TakenStep& step, const std::vector<double>& logprobs) {
    std::vector<Sequence> all;
    const double* logprob = logprobs.data();
    for (const Rows& m : step.micros)
        for (size_t d = 0; d + 1 < m.documents.size(); ++d) {
            Sequence s{long(all.size()), 0, {}, {}};
            long trained = 0;
            for (int r = m.documents[d]; r < m.documents[d + 1]; ++r) {
                s.ids.push_back(m.tokens[size_t(r)]), s.losses.push_back(std::fabs(*logprob++));   // NaN without a sign
                s.loss += s.losses.back(), trained += m.targets[size_t(r)] != -1;
            }
            if (!s.ids.empty() && m.targets[size_t(m.documents[d + 1]) - 1] != -1)
                s.ids.push_back(m.targets[size_t(m.documents[d + 1]) - 1]);
            s.loss /= double(std::max(1L, trained));
            all.push_back(s);
        }
    return all;
}

// A token on one line: printable ASCII as it is.
std::string shown(const Tokenizer& tokenizer, int id) {
    if (!tokenizer.has_text()) return std::to_string(id);
    if (id == tokenizer.end_of_text()) return "<|endoftext|>";
    std::string text;
    for (char c : tokenizer.bytes_of(id))
        text += c == '\n' ? "\\n" : c >= ' ' && c < 127 ? std::string(1, c) : format("\\x%02X", unsigned(c) & 0xFF);
    return "'" + text + "'";
}

// Mean and standard deviation of the finite losses of steps that were taken; how many there are.
size_t spread(const auto& seen, double& mean, double& deviation) {
    std::vector<double> losses;
    for (const auto& s : seen)
        if (s.log.skipped.empty() && std::isfinite(s.log.loss)) losses.push_back(s.log.loss);
    mean = deviation = 0;
    for (double l : losses) mean += l / double(losses.size());
    for (double l : losses) deviation += (l - mean) * (l - mean) / double(losses.size());
    deviation = std::sqrt(deviation);
    return losses.size();
}

}  // namespace

std::string worst_sequences(const TakenStep& step, const std::vector<double>& logprobs, const Tokenizer& tokenizer,
                            size_t most) {
    std::vector<Sequence> all = sequences_of(step, logprobs);
    const size_t n = all.size();
    const auto rank = [](const Sequence& s) { return std::pair(std::isnan(s.loss) ? -INFINITY : -s.loss, s.number); };
    std::sort(all.begin(), all.end(), [&](const Sequence& a, const Sequence& b) { return rank(a) < rank(b); });
    all.resize(std::min(most, n));
    std::string text;
    for (const Sequence& s : all) {
        text += format("==== loss %.4f, sequence %ld of %zu, window %ld", s.loss, s.number + 1, n,
                       step.position + s.number);
        Utf8Stream utf8;
        if (tokenizer.has_text()) text += "\n" + utf8.push(tokenizer.decode(s.ids, Special::show));
        text += utf8.finish();
        size_t width = 120;
        for (size_t i = 0; i < std::min(s.losses.size(), s.ids.size() - 1); ++i) {
            const std::string token = "  " + shown(tokenizer, s.ids[i + 1]) + format(" %.2f", s.losses[i]);
            if (width + token.size() > 120) text += "\n  ", width = 2;
            text += token, width += token.size();
        }
        text += "\n";
    }
    return text;
}

BlackBox::BlackBox(const std::string& run, double z) : run_(run), z_(z) {
    for (const auto& [step, log] : z > 0 ? read_steps(run) : std::map<long, StepLog>()) seen_.push_back({log, -1});
    for (const auto& entry : fs::directory_iterator(run))
        written_ += entry.path().filename().string().starts_with("spike-");
}

std::string BlackBox::see(const TakenStep& step) {
    const StepLog& log = step.log;
    if (z_ == 0) return "";
    while (seen_.size() > window) seen_.pop_front();
    const size_t before = spread(seen_, mean_, deviation_);
    seen_.push_back({log, step.position});
    const bool finite = std::isfinite(log.loss) && std::isfinite(log.grad_norm);
    // Where losses hardly differ, rounding is no spike.
    const double deviations = (log.loss - mean_) / std::max(deviation_, 1e-3 * mean_);
    const bool spike = !finite || (log.skipped.empty() && before >= fewest && deviations > z_);
    if (!spike || log.step < quiet_until_[finite] || written_ >= most_reports) return "";
    quiet_until_[finite] = log.step + long(window);
    written_ += !fs::exists(folder_of(log.step));
    if (!finite) return log.skipped;
    return format("loss %.4f lies %.1f deviations above the mean of %zu steps, ", log.loss, deviations, before) +
           format("%.4f", mean_);
}

std::string BlackBox::write(const std::string& why, const TakenStep& step, const std::vector<double>& logprobs,
                            const Tokenizer& tokenizer, const std::string& statistics) {
    const auto line_of = [](const Seen& s) {
        json line = json::parse(to_json(s.log));
        line["position"] = s.position < 0 ? json() : json(s.position);
        return line;
    };
    json spike = line_of(seen_.back());
    spike["why"] = why, spike["mean"] = mean_, spike["deviation"] = deviation_;
    if (!statistics.empty()) spike["statistics"] = json::parse(statistics);
    for (size_t i = 0; i + 1 < seen_.size(); ++i) spike["before"].push_back(line_of(seen_[i]));
    const std::string folder = folder_of(step.log.step), building = folder + ".tmp";
    fs::remove_all(building);
    fs::create_directories(building);
    write_whole(building + "/spike.json", spike.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
    write_whole(building + "/worst.txt", worst_sequences(step, logprobs, tokenizer, most_sequences));
    fs::remove_all(folder);
    fs::rename(building, folder);
    return folder;
}

std::string BlackBox::folder_of(long step) const { return format("%s/spike-%06ld", run_.c_str(), step); }

std::string difference(const StepLog& now, const StepLog& logged) {
    const json a = json::parse(to_json(now)), b = json::parse(to_json(logged));
    for (const char* name : {"loss", "grad_norm", "lr", "tokens"})
        if (a[name] != b[name] || a.value("nonfinite", json()) != b.value("nonfinite", json()))
            return concat(name, " is ", a[name].dump(), ", in the log ", b[name].dump());
    return "";
}

}  // namespace baretrain
