// checkpoint.cpp - the body of checkpoint.h.
#include "checkpoint.h"
#include "device/error.h"
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unistd.h>
#include <utility>

namespace baretrain {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Files = std::map<std::string, Digest>;           // path within the checkpoint -> what was written

const std::string weights_file = "model.safetensors";
const std::string trainer_file = "state/trainer.json", mark_file = "state/complete";

// --- small files ---

// body(json) may use the throwing accessors: whatever does not fit is one line.
template <class Body> auto read_json(const fs::path& path, Body body) {
    const std::string text = read_text(path);
    try {
        return body(json::parse(text, shallow));
    } catch (const std::exception&) {
        fail(path.string() + ": damaged or not written here: other JSON was expected");
    }
}

// Throws what read_json turns into its line; json's own get() would wrap numbers that do not fit.
uint64_t whole_number(const json& v, uint64_t largest) {
    if (!v.is_number_unsigned() || v.get<uint64_t>() > largest) throw std::range_error("whole_number");
    return v.get<uint64_t>();
}

std::string text_of(const json& v) { return v.dump(1, ' ', false, json::error_handler_t::replace) + "\n"; }

Digest write_text(const fs::path& path, const std::string& text) {
    OutputFile file(path.string());
    file.write(text.data(), text.size());
    return file.close();
}

// A new or renamed file is safe only when its folder is synced too.
void sync_folder(const fs::path& folder) {
    const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool ok = file >= 0 && (fsync(file) == 0 || errno == EINVAL);   // some file systems cannot sync folders
    const int error = errno;
    if (file >= 0) ::close(file);
    if (!ok) fail(folder.string() + ": cannot be synced: " + std::strerror(error));
}

// --- names ---

std::string state_file(int writer, int writers) {
    return "state/optimizer" + (writers > 1 ? format("-%05d-of-%05d", writer + 1, writers) : "") + ".safetensors";
}
bool is_state(const std::string& file) { return file.starts_with("state/optimizer"); }

// step-<digits>, with .old or without: the step; otherwise -1.
long step_of(std::string name) {
    if (name.ends_with(".old")) name.resize(name.size() - 4);
    const bool digits = name.size() > 5 && name.size() <= 23 && name.starts_with("step-") &&
                        name.find_first_not_of("0123456789", 5) == std::string::npos;
    return digits ? std::stol(name.substr(5)) : -1;
}
bool is_leftover(const std::string& name) { return name.starts_with("step-") && name.ends_with(".tmp"); }

// Folders inside `folder`; none if it is not there.
std::vector<fs::path> folders_in(const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error))
        if (i->is_directory(error)) found.push_back(i->path());
    if (error && error != std::errc::no_such_file_or_directory)
        fail(folder.string() + ": cannot be listed: " + error.message());
    std::sort(found.begin(), found.end());
    return found;
}

// Newest first; of one step, the folder in place before the one set aside.
std::vector<fs::path> candidates(const fs::path& run) {
    std::vector<fs::path> found = folders_in(run);
    std::erase_if(found, [](const fs::path& p) { return step_of(p.filename()) < 0; });
    std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
        return std::pair(-step_of(a.filename()), a) < std::pair(-step_of(b.filename()), b);
    });
    return found;
}

// --- the mark ---

// Sizes only is enough to count checkpoints; contents (reads every byte) before one is used.
enum class Check { sizes, contents };

Files read_mark(const fs::path& folder) {
    return read_json(folder / mark_file, [](const json& mark) {
        Files listed;
        for (const auto& [name, file] : mark.at("files").items())
            listed[name] = {whole_number(file.at("bytes"), LONG_MAX), whole_number(file.at("hash"), UINT64_MAX)};
        return listed;
    });
}

void check_mark(const fs::path& folder, Check check) {
    const auto bad = [&](const std::string& why) {
        fail(folder.string() + ": not a complete checkpoint: " + why + "; use another one or delete it");
    };
    std::error_code error;
    if (!fs::exists(folder / mark_file, error)) bad("the mark " + mark_file + " is missing (was the save cut off?)");
    const Files files = read_mark(folder);
    const int writers = int(std::count_if(files.begin(), files.end(), [](const auto& f) { return is_state(f.first); }));
    std::vector<std::string> needed = {"config.json", weights_file, trainer_file};
    for (int w = 0; w < std::max(writers, 1); ++w) needed.push_back(state_file(w, writers));
    for (const std::string& name : needed)
        if (!files.contains(name)) bad("the mark does not list " + name);
    for (const auto& [name, written] : files) {
        const size_t bytes = fs::file_size(folder / name, error);
        if (error) bad(name + ": " + error.message());
        if (bytes != written.bytes)
            bad(name + " has " + std::to_string(bytes) + " bytes, " + std::to_string(written.bytes) + " were written");
    }
    if (check == Check::contents)
        for (const auto& [name, written] : files)
            if (digest_of_file((folder / name).string()) != written) bad(name + " has changed since it was written");
}

bool passes(const fs::path& folder, Check check) {
    try {
        check_mark(folder, check);
        return true;
    } catch (const Error&) {
        return false;
    }
}

void write_mark(const fs::path& folder, const Files& files) {
    json listed = json::object();
    for (const auto& [name, written] : files) listed[name] = {{"bytes", written.bytes}, {"hash", written.hash}};
    write_whole((folder / mark_file).string(), text_of({{"files", listed}}));
    sync_folder(folder / "state");
}

// --- saving ---

// Renamed first: a folder that is only half removed must not look like a checkpoint.
void discard(const fs::path& folder) {
    const fs::path leaving = folder.string() + ".removed.tmp";
    if (!fs::exists(folder)) return;
    fs::rename(folder, leaving);
    fs::remove_all(leaving);
}

// Leftovers first: discard() must find its name free.
void discard_leftovers(const fs::path& run) {
    for (const fs::path& folder : folders_in(run))
        if (is_leftover(folder.filename())) fs::remove_all(folder);
}

Files write_parts(const fs::path& folder, const CheckpointParts& parts) {
    const TrainerState& t = parts.trainer;
    Files files;
    files["config.json"] = write_text(folder / "config.json", parts.config_json);
    for (const auto& [name, content] : parts.extra_files) {
        require(name.find('/') == std::string::npos && !files.contains(name) && name != weights_file && name != "state",
                "checkpoint: an extra file has a plain name of its own");
        files[name] = write_text(folder / name, content);
    }
    files[weights_file] = write_safetensors((folder / weights_file).string(), parts.weights, {{"format", "pt"}});
    files[trainer_file] = write_text(folder / trainer_file, text_of({{"step", t.step}, {"position", t.position},
                                     {"tokens", t.tokens}, {"facts", t.facts}}));
    return files;
}

// At every moment either the older folder of the same step, if it was complete, or the new one can be found.
void put_in_place(const fs::path& building, const fs::path& folder, const Files& files) {
    const fs::path aside = folder.string() + ".old";
    sync_folder(building / "state");
    sync_folder(building);
    if (passes(folder, Check::contents)) {
        discard(aside);
        fs::rename(folder, aside);
    }
    discard(folder);
    try {
        fs::rename(building, folder);
        sync_folder(folder.parent_path());
        write_mark(folder, files);
    } catch (...) {
        std::error_code ignored;                       // the first error is the one to report
        fs::remove_all(folder, ignored);
        fs::rename(aside, folder, ignored);
        throw;
    }
    discard(aside);
}

// `newest` stays whatever its number: a run may have gone back to an earlier step.
void remove_oldest(const fs::path& run, const fs::path& newest, long keep) {
    long kept = 1;
    for (const fs::path& folder : candidates(run))
        if (folder != newest && passes(folder, Check::sizes) && ++kept > keep) discard(folder);
}

}  // namespace

std::string save_checkpoint(const std::string& run_folder, const CheckpointParts& parts, long keep,
                            const SaveGroup& group) {
    require(keep >= 0, "checkpoint: keep is not negative");
    require(parts.trainer.step >= 0 && parts.trainer.position >= 0 && parts.trainer.tokens >= 0,
            "checkpoint: step, position and tokens are not negative");
    const fs::path run = run_folder, folder = run / format("step-%06ld", parts.trainer.step);
    const fs::path building = folder.string() + ".tmp";
    const bool first = group.rank == 0;
    const Building cleanup{first ? building : ""};
    const auto save = [&] {
        if (first) {
            fs::create_directories(run);
            discard_leftovers(run);
            fs::create_directories(building / "state");
        }
        group.gather({});                              // the folder is there
        Digest mine;
        if (group.writer >= 0)
            mine = write_safetensors(building / state_file(group.writer, group.writers), parts.state, {});
        std::vector<Digest> written = group.gather(mine);
        if (first) {
            Files files = write_parts(building, parts);
            std::erase(written, Digest());             // who wrote nothing
            require_equal(long(written.size()), long(group.writers), "checkpoint: writers of state");
            for (int w = 0; w < group.writers; ++w) files[state_file(w, group.writers)] = written[size_t(w)];
            put_in_place(building, folder, files);
            if (keep > 0) remove_oldest(run, folder, keep);
        } else join_fetches(parts.weights);
        group.gather({});                              // it is complete
    };
    try {
        change_folders(save);
    } catch (const std::exception& e) {
        group.abort(e.what());                         // before the folder goes, which others would complain of
        throw;
    }
    return folder.string();
}

std::vector<std::string> state_files(const std::string& checkpoint_folder) {
    std::vector<std::string> paths;
    for (const auto& [name, written] : read_mark(checkpoint_folder))
        if (is_state(name)) paths.push_back((fs::path(checkpoint_folder) / name).string());
    return paths;
}

// Newest first: cut off at any moment, what is left is a run that had gone less far.
long discard_after(const std::string& run_folder, long step) {
    long later = 0;
    change_folders([&] {
        discard_leftovers(run_folder);
        for (const fs::path& folder : candidates(run_folder))
            if (step_of(folder.filename()) > step) discard(folder), ++later;
    });
    return later;
}

// --- finding ---

void require_complete(const std::string& checkpoint_folder) { check_mark(checkpoint_folder, Check::contents); }

Found newest_checkpoint(const std::string& run_folder, long last_step) {
    Found found;
    for (const fs::path& folder : folders_in(run_folder))
        if (is_leftover(folder.filename()))
            found.notes.push_back(folder.string() + ": left by a save that was cut off; the next save removes it");
    for (const fs::path& folder : candidates(run_folder)) {
        if (step_of(folder.filename()) > last_step) continue;
        try {
            require_complete(folder.string());
            found.folder = folder.string();
            return found;
        } catch (const Error& e) {
            std::error_code ignored;
            found.damaged |= fs::exists(folder / mark_file, ignored);
            found.notes.push_back(e.what());
        }
    }
    return found;
}

std::string newest_run(const std::string& out_folder) {
    std::pair<fs::file_time_type, fs::path> newest{fs::file_time_type::min(), {}};
    for (const fs::path& run : folders_in(out_folder))
        for (const fs::path& folder : candidates(run)) {
            std::error_code error;                     // gone since it was listed
            const auto time = fs::last_write_time(folder / mark_file, error);
            if (!error && passes(folder, Check::sizes)) newest = std::max(newest, {time, run});
        }
    return newest.second.string();
}

TrainerState read_trainer_state(const std::string& checkpoint_folder) {
    return read_json(fs::path(checkpoint_folder) / trainer_file, [](const json& j) {
        return TrainerState{long(whole_number(j.at("step"), LONG_MAX)), long(whole_number(j.at("position"), LONG_MAX)),
                            long(whole_number(j.at("tokens"), LONG_MAX)),
                            j.at("facts").get<std::map<std::string, std::string>>()};
    });
}

void require_same_facts(const TrainerState& saved, const std::map<std::string, std::string>& now) {
    std::map<std::string, std::string> before = saved.facts, here = now;
    for (const auto& [name, value] : now) before.emplace(name, "not given");
    for (const auto& [name, value] : before)
        if (const std::string& current = here.emplace(name, "not given").first->second; current != value)
            fail("resume: " + name + " is " + current + ", but the checkpoint was written with " + value +
                 "; set it back, or start a new run");
}

}  // namespace baretrain
