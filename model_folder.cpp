// model_folder.cpp - the body of model_folder.h.
#include "model_folder.h"
#include "device/error.h"
#include "device/types.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

namespace baretrain {

namespace {

namespace fs = std::filesystem;
const std::string weights_file = "model.safetensors", index_file = "model.safetensors.index.json";

// --- numbers ---

struct Half {                                          // F16: read only
    uint16_t bits;
    operator double() const {
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                            : exponent     ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
        return bits >> 15 ? -size : size;
    }
};

// The last bit of an inexact float is set, so that bf16 rounds it as it would have rounded v: only once.
template <class To> To rounded(double v) {
    if constexpr (!std::is_same_v<To, bf16>) return To(v);
    float f = float(v);
    if (std::isnan(v) || double(f) == v) return To(f);
    if (std::fabs(double(f)) > std::fabs(v)) f = std::nextafter(f, 0.0f);
    return To(std::bit_cast<float>(std::bit_cast<uint32_t>(f) | 1));
}

// Within one buffer: from the end where elements grow.
template <class To, class From> void convert(char* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const size_t e = sizeof(To) > sizeof(From) ? count - 1 - i : i;
        From from;
        std::memcpy(&from, bytes + e * sizeof from, sizeof from);
        const To to = rounded<To>(double(from));
        std::memcpy(bytes + e * sizeof to, &to, sizeof to);
    }
}

using Convert = void (*)(char* bytes, size_t count);
template <class To> Convert from_type(const std::string& dtype) {
    if (dtype == "F64") return convert<To, double>;
    if (dtype == "F32") return convert<To, float>;
    if (dtype == "F16") return convert<To, Half>;
    if (dtype == "BF16") return convert<To, bf16>;
    return nullptr;
}
enum class Types { exact, converted };
Convert conversion(const std::string& from, const std::string& to, Types types) {   // null: there is none
    if (from == to) return [](char*, size_t) {};
    if (types == Types::exact) return nullptr;
    if (to == "F64") return from_type<double>(from);
    if (to == "F32") return from_type<float>(from);
    if (to == "BF16") return from_type<bf16>(from);
    return nullptr;
}

// --- loading ---

// "; missing: a, b and 2 more"
struct Listing {
    std::string items;
    long count = 0;
    void add(const std::string& item) {
        if (++count <= 10) items += (count > 1 ? ", " : "") + item;
    }
    std::string under(const std::string& title) const {
        return count == 0 ? "" : "; " + title + ": " + items + (count > 10 ? format(" and %ld more", count - 10) : "");
    }
};

std::string describe(const std::string& dtype, const std::vector<long>& shape) {
    std::string text = dtype + " (";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + ")";
}

// A tensor of a file, under the name that the targets may know it by.
struct Stored {
    std::string name;
    const SafetensorsFile* file;
    const TensorInfo* info;
};

// `where` is the path to name in errors.
void load(const std::string& where, const std::vector<Stored>& stored, const std::vector<TensorTarget>& targets,
          Types types) {
    std::map<std::string, const TensorTarget*> wanted;
    for (const TensorTarget& t : targets) require(wanted.insert({t.name, &t}).second, "load: a target stands twice");
    struct Move { const Stored& from; const TensorTarget& to; Convert convert; };
    std::vector<Move> moves;
    Listing missing, extra, other;
    size_t largest = 0;
    std::map<std::string, const TensorTarget*> unseen = wanted;
    for (const Stored& s : stored) {
        const TensorInfo& t = *s.info;
        const auto target = wanted.find(s.name);
        if (target == wanted.end() || !unseen.erase(s.name)) {
            extra.add(t.name);
            continue;
        }
        const TensorTarget& to = *target->second;
        const Convert convert = conversion(t.dtype, to.dtype, types);
        if (!convert || t.shape != to.shape)
            other.add(t.name + " is " + describe(t.dtype, t.shape) + ", expected " + describe(to.dtype, to.shape));
        else if (to.store) moves.push_back({s, to, convert});
        largest = std::max({largest, t.bytes(), t.bytes() / dtype_bytes(t.dtype) * dtype_bytes(to.dtype)});
    }
    for (const auto& [name, target] : unseen) missing.add(name);
    if (missing.count + extra.count + other.count)
        fail(where + ": not the tensors that this model needs" + missing.under("missing") +
             extra.under("not expected") + other.under("different"));

    std::vector<char> bytes(moves.empty() ? 0 : largest);
    for (const Move& m : moves) {
        const TensorInfo& t = *m.from.info;
        m.from.file->read(t, bytes.data());
        m.convert(bytes.data(), t.bytes() / dtype_bytes(t.dtype));
        m.to.store(bytes.data());
    }
}

// --- a folder ---

struct ModelFiles {
    std::string where;                                 // the path to name in errors
    std::vector<std::unique_ptr<SafetensorsFile>> files;
};

std::map<std::string, std::string> read_index(const std::string& path) {
    try {
        return nlohmann::json::parse(read_text(path)).at("weight_map").get<std::map<std::string, std::string>>();
    } catch (const nlohmann::json::exception&) {
        fail(path + ": damaged: expected a weight_map from tensor names to file names");
    }
}

// The shards in the order of their names; the index must tell the truth.
ModelFiles open_model(const std::string& folder) {
    const fs::path base = folder, one = base / weights_file, index = base / index_file;
    std::error_code error;
    ModelFiles m{one.string(), {}};
    if (fs::exists(one, error)) {
        m.files.push_back(std::make_unique<SafetensorsFile>(m.where));
        return m;
    }
    if (!fs::exists(index, error))
        fail(folder + ": has neither " + weights_file + " nor " + index_file + "; give a Hugging Face model folder");
    m.where = index.string();
    const auto shard_of = read_index(m.where);
    std::map<std::string, const SafetensorsFile*> shards;
    for (const auto& [name, shard] : shard_of) shards[shard] = nullptr;
    for (auto& [shard, file] : shards) {
        if (shard.find('/') != std::string::npos) fail(m.where + ": a shard lies outside the folder: " + shard);
        file = m.files.emplace_back(std::make_unique<SafetensorsFile>((base / shard).string())).get();
    }
    for (const auto& [name, shard] : shard_of)
        if (!shards.at(shard)->find(name)) fail(m.where + ": tensor " + name + " is not in " + shard + " as listed");
    for (const auto& [shard, file] : shards)
        for (const TensorInfo& t : file->tensors())
            if (const auto listed = shard_of.find(t.name); listed == shard_of.end() || listed->second != shard)
                fail(file->path() + ": tensor " + t.name + " is not listed for this file in " + index_file);
    return m;
}

// Piece by piece: no tensor is in memory.
bool equal(const Stored& a, const Stored& b) {
    if (a.info->dtype != b.info->dtype || a.info->shape != b.info->shape) return false;
    std::vector<char> x(1 << 20), y(1 << 20);
    for (size_t at = 0; at < a.info->bytes(); at += x.size()) {
        const size_t n = std::min(x.size(), a.info->bytes() - at);
        a.file->read(*a.info, x.data(), at, n);
        b.file->read(*b.info, y.data(), at, n);
        if (std::memcmp(x.data(), y.data(), n) != 0) return false;
    }
    return true;
}

// A tied head may lie in the file a second time, if it says the same as the embedding.
void drop_tied_head(const std::string& where, std::vector<Stored>& stored, const std::set<std::string>& wanted) {
    const auto find = [&](const std::string& name) {
        return std::find_if(stored.begin(), stored.end(), [&](const Stored& s) { return s.name == name; });
    };
    const auto head = find("lm_head.weight");
    if (head == stored.end() || wanted.count(head->name)) return;
    for (const char* name : {"transformer.wte.weight", "model.embed_tokens.weight"}) {
        const auto embedding = find(name);
        if (embedding == stored.end()) continue;
        if (!equal(*head, *embedding))
            fail(where + ": lm_head.weight differs from " + embedding->info->name + ", but config.json ties them; "
                 "set its tie_word_embeddings to false to keep both, or leave lm_head.weight out");
        stored.erase(head);
        return;
    }
}

// No weights: the causal mask of old GPT-2 files, the frequencies of old Llama files. Both follow from the shape.
bool is_buffer(const std::string& name) {
    for (const char* end : {"attn.bias", "attn.masked_bias", "rotary_emb.inv_freq"})
        if (name.ends_with(std::string(".") + end)) return true;
    return false;
}

}  // namespace

void load_tensors(const std::string& path, const std::vector<TensorTarget>& targets) {
    const SafetensorsFile file(path);
    std::vector<Stored> stored;
    for (const TensorInfo& t : file.tensors()) stored.push_back({t.name, &file, &t});
    load(path, stored, targets, Types::exact);
}

void load_model_tensors(const std::string& folder, const std::vector<TensorTarget>& targets) {
    const ModelFiles model = open_model(folder);
    std::set<std::string> wanted;
    for (const TensorTarget& t : targets) wanted.insert(t.name);
    std::vector<Stored> stored;
    for (const auto& file : model.files)
        for (const TensorInfo& t : file->tensors()) {
            std::string name = t.name;
            for (const std::string first : {"transformer.", "model."})
                if (!wanted.count(t.name) && wanted.count(first + t.name)) name = first + t.name;
            if (wanted.count(name) || !is_buffer(name)) stored.push_back({name, file.get(), &t});
        }
    drop_tied_head(model.where, stored, wanted);
    load(model.where, stored, targets, Types::converted);
}

std::string dtype_of_folder(const std::string& folder) {
    const ModelFiles model = open_model(folder);
    const TensorInfo* largest = nullptr;
    for (const auto& file : model.files)
        for (const TensorInfo& t : file->tensors())
            if (!largest || t.bytes() > largest->bytes()) largest = &t;
    if (!largest) fail(model.where + ": holds no tensor");
    return largest->dtype;
}

std::map<std::string, std::string> files_beside_weights(const std::string& folder) {
    static const std::set<std::string> kinds = {".json", ".jinja", ".model", ".txt", ".md"};
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (entry.is_regular_file() && !name.ends_with(".index.json") &&
            (kinds.count(entry.path().extension().string()) || name == "LICENSE"))
            files[name] = read_text(entry.path().string());
    }
    return files;
}

std::string with_dtype(const std::string& config_json, const std::string& torch_dtype,
                       std::optional<long> end_of_text) {
    auto config = nlohmann::ordered_json::parse(config_json);
    const char* const key = config.contains("dtype") ? "dtype" : "torch_dtype";   // newer and older files
    if (config.value(key, "") == torch_dtype && !end_of_text) return config_json;
    config[key] = torch_dtype;
    if (end_of_text) config["bos_token_id"] = config["eos_token_id"] = *end_of_text;
    return config.dump(2) + "\n";
}

Exported export_folder(const std::string& from, const std::string& name) {
    const fs::path given(name);
    const std::string to = given.has_filename() ? name : given.parent_path().string();   // NAME/ is NAME
    const fs::path building = to + ".tmp";
    for (const std::string& path : {to, building.string()})
        if (fs::exists(path)) fail(path + ": is there already; give a folder that is not, or remove it");
    const ModelFiles model = open_model(from);
    const Building cleanup{building};
    Exported all;
    change_folders([&] {
        fs::create_directories(building);
        auto files = files_beside_weights(from);
        if (model.where.ends_with(index_file)) files[index_file] = read_text(model.where);
        for (const auto& [name, text] : files) write_whole((building / name).string(), text);
        for (const auto& file : model.files) {
            std::vector<TensorSource> sources;
            for (const TensorInfo& t : file->tensors())
                sources.push_back({t.name, t.dtype, t.shape, [&](void* bytes) { file->read(t, bytes); }});
            const std::string path = (building / fs::path(file->path()).filename()).string();
            write_safetensors(path, sources, file->metadata());
            const SafetensorsFile written(path);
            for (const TensorInfo& t : file->tensors()) {
                const TensorInfo* const back = written.find(t.name);
                if (!back || !equal({t.name, file.get(), &t}, {t.name, &written, back}))
                    fail(path + ": tensor " + t.name + " does not read back as it was written");
                ++all.tensors, all.bytes += t.bytes();
            }
        }
        fs::rename(building, to);
    });
    return all;
}

}  // namespace baretrain
