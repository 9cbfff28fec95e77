// model_folder.h - a Hugging Face model folder: its weights, whatever type they have there, and what lies beside them.
// Copy with: model_folder.cpp, safetensors.h and what they name, device/types.h, nlohmann-json
// The weights are model.safetensors or the shards of model.safetensors.index.json. One tensor at a time is in memory.
#pragma once
#include "safetensors.h"
#include <optional>

namespace baretrain {

// Where a tensor goes when it is loaded; store gets its bytes, or those of the elements that are wanted. Without store
// it only has to be there.
struct TensorTarget {
    std::string name, dtype;
    std::vector<long> shape;                           // of the whole tensor
    std::function<void(const void* from)> store;
    long first = 0, count = -1;                        // what is wanted of it, row after row; -1: all from there on
};

// Every target must be there with its dtype and shape, and nothing else; that is checked before anything is stored. A
// tensor may lie in pieces, in any of the files: m.w@40, of shape (8), holds elements 40 to 47 of m.w; of shape (3, 8),
// a rectangle: 40 to 47, within one row, and what stands below them in the next two rows.
void load_tensors(const std::vector<std::string>& paths, const std::vector<TensorTarget>& targets);
std::string piece_name(const std::string& tensor, long first);

// The same for the weights of a folder, which are whole and may be F64, F32, F16 or BF16: they are rounded to the
// target's dtype, to nearest, ties to even. Names may lack their first part (transformer., model.), as base models do.
// Left out: masks and frequencies that old files carry, and a head that equals the embedding which stands for it.
void load_model_tensors(const std::string& folder, const std::vector<TensorTarget>& targets);

std::string dtype_of_folder(const std::string& folder);   // of its largest tensor

// What else describes the model: config.json, tokenizer, generation settings, licence. Name -> content.
std::map<std::string, std::string> files_beside_weights(const std::string& folder);
// The same config.json but for the type of the weights, and for the id of the end of a text, where there is another;
// byte for byte where nothing changes.
std::string with_dtype(const std::string& config_json, const std::string& torch_dtype,
                       std::optional<long> end_of_text = {});

// Writes the folder again, each tensor and file as it is, in the same shards, and compares what it reads back. `to` is
// made when all of it is right.
struct Exported { long tensors = 0; size_t bytes = 0; };
Exported export_folder(const std::string& from, const std::string& to);

}  // namespace baretrain
