// checkpoint.h - a checkpoint is a Hugging Face folder that is either whole or never used.
// Copy with: checkpoint.cpp, safetensors.h and what they name
//   step-000100/         config.json, model.safetensors, tokenizer files
//   step-000100/state/   optimizer.safetensors, trainer.json, and complete: the mark with each file's size and checksum
// The ranks of a run save together. Several write state, a file each (optimizer-00002-of-00004.safetensors), of which
// any number of ranks can read what they need; all else rank 0 writes, and it is the same however many there are.
// Written as step-000100.tmp, every file and folder synced, renamed, then marked. A folder without a mark, or with one
// that does not fit, is named and never used. Saving a step again sets the old folder aside as step-000100.old until
// the new one is marked; should the save be cut off just then, the .old folder is found and used.
#pragma once
#include "safetensors.h"
#include <climits>

namespace baretrain {

struct TrainerState {
    long step = 0, position = 0, tokens = 0;
    std::map<std::string, std::string> facts;          // what must be the same on resume: name -> value
};

struct CheckpointParts {
    std::string config_json;
    std::vector<TensorSource> weights, state;          // under Hugging Face names; master.<name>, m.<name>, v.<name>:
                                                       // what this rank writes of them, whole or in pieces
    std::map<std::string, std::string> extra_files;    // file name -> content, such as tokenizer.json
    TrainerState trainer;
};

// The place of a rank among those that save together; without more, one rank alone.
struct SaveGroup {
    int rank = 0;
    int writer = 0, writers = 1;                       // of state, numbered as their ranks are; -1: not this rank
    // What each rank, or each writer, gives, in their order; it returns when all ranks have called it.
    std::function<std::vector<Digest>(Digest)> gather = [](Digest mine) { return std::vector{mine}; };
    std::function<void(const std::string& why)> abort = [](const std::string&) {};   // tells the others
};

// All ranks call it and get the new folder when it is complete. Once its mark is on the disk, the oldest other complete
// ones go until `keep` remain (0: all stay). An error of any rank, which others see in `gather` or in a fetch, removes
// the temporary folder and leaves the older checkpoints as they were.
std::string save_checkpoint(const std::string& run_folder, const CheckpointParts& parts, long keep,
                            const SaveGroup& group = {});
std::vector<std::string> state_files(const std::string& checkpoint_folder);   // paths of what the writers wrote

struct Found {
    std::string folder;                                // empty: none
    std::vector<std::string> notes;                    // one line for each folder passed over, saying why
    bool damaged = false;                              // one of them had its mark: it was whole once
};
Found newest_checkpoint(const std::string& run_folder, long last_step = LONG_MAX);   // of steps up to that one
// The run that was saved last, of those with a complete checkpoint; empty: there is none. Mark and sizes are enough.
std::string newest_run(const std::string& out_folder);

// Before a run goes on from `step`: what it saved after that is of a future that will not be, whole or not, and goes.
long discard_after(const std::string& run_folder, long step);   // how many there were

void require_complete(const std::string& checkpoint_folder);
TrainerState read_trainer_state(const std::string& checkpoint_folder);
void require_same_facts(const TrainerState& saved, const std::map<std::string, std::string>& now);

}  // namespace baretrain
