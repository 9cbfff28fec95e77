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

// A tensor of a file, or a piece of one, under the name that the targets may know it by.
struct Stored {
    std::string name;
    const SafetensorsFile* file;
    const TensorInfo* info;
    long piece = -1;                                   // the first of its elements in the whole; -1: it is whole
    long first() const { return std::max(piece, 0L); }
    long count() const { return long(info->bytes() / dtype_bytes(info->dtype)); }
    bool rectangle() const { return piece >= 0 && info->shape.size() == 2 && count() > 0; }
    long rows() const { return rectangle() ? info->shape[0] : 1; }
    long columns() const { return rectangle() ? info->shape[1] : count(); }
};

long count_of(const TensorTarget& t) {
    long count = 1;
    for (const long extent : t.shape) count *= extent;
    return count;
}
long columns_of(const TensorTarget& t) { return t.shape.empty() ? 1 : std::max(t.shape.back(), 1L); }

bool fits(const Stored& s, const TensorTarget& t) {
    if (s.piece < 0) return s.info->shape == t.shape;
    if (!s.rectangle()) return s.info->shape.size() == 1;
    const long C = columns_of(t);
    return s.columns() <= C - s.first() % C && s.rows() <= count_of(t) / C - s.first() / C;
}

// Why the pieces are not the tensor that is wanted, or nothing.
std::string wrong_with(const std::vector<Stored>& pieces, const TensorTarget& t, Types types) {
    std::vector<std::pair<long, long>> runs;           // where they begin and end in the whole
    for (const Stored& s : pieces) {
        if (!fits(s, t) || !conversion(s.info->dtype, t.dtype, types))
            return s.info->name + " is " + describe(s.info->dtype, s.info->shape) + ", expected " +
                   (s.piece < 0 ? "" : "a piece of ") + describe(t.dtype, t.shape);
        for (long i = 0, first = s.first(); i < s.rows(); ++i, first += columns_of(t))
            runs.push_back({first, first + s.columns()});
    }
    std::sort(runs.begin(), runs.end());
    const long count = count_of(t);
    long at = 0;
    for (const auto& [first, end] : runs) {
        if (first > at) return format("%s lacks element %ld", t.name.c_str(), at);
        if (first < at) return format("%s has element %ld twice", t.name.c_str(), first);
        at = end;
    }
    return at == count ? "" : format("%s has %ld elements in its pieces, expected %ld", t.name.c_str(), at, count);
}

// The span that is wanted of a tensor; the bytes are overwritten. Of a rectangle, about a megabyte of
// rows is read at once.
void read_wanted(const std::vector<Stored>& pieces, const TensorTarget& t, std::vector<char>& bytes, Types types) {
    const std::string& dtype = pieces[0].info->dtype;
    const size_t width = dtype_bytes(dtype), widest = std::max(width, dtype_bytes(t.dtype));
    const long C = columns_of(t), end = t.count < 0 ? count_of(t) : t.first + t.count;
    bytes.resize(std::max(bytes.size(), size_t(end - t.first) * widest));
    const auto take = [&](long first, long count, auto copy) {           // copy(to, bytes to skip, bytes)
        const long from = std::max(first, t.first), n = std::min(first + count, end) - from;
        if (n > 0) copy(bytes.data() + size_t(from - t.first) * width, size_t(from - first) * width, size_t(n) * width);
    };
    std::vector<char> rows;
    for (const Stored& s : pieces) {
        if (!s.rectangle()) {
            take(s.first(), s.count(), [&](char* to, size_t skip, size_t n) { s.file->read(*s.info, to, skip, n); });
            continue;
        }
        const size_t row = size_t(s.columns()) * width, at_once = (1 << 20) / row + 1;
        const long top = s.first() / C, low = std::max(t.first / C - top, 0L),
                   high = std::min((end - 1) / C + 1 - top, s.rows());
        rows.resize(at_once * row);
        for (long i = low; i < high; ++i) {
            const size_t in = size_t(i - low) % at_once;
            if (in == 0) s.file->read(*s.info, rows.data(), size_t(i) * row, std::min(at_once, size_t(high - i)) * row);
            take(s.first() + i * C, s.columns(),
                 [&](char* to, size_t skip, size_t n) { std::memcpy(to, rows.data() + in * row + skip, n); });
        }
    }
    conversion(dtype, t.dtype, types)(bytes.data(), size_t(end - t.first));
}

// `where` is the path to name in errors.
void load(const std::string& where, const std::vector<Stored>& stored, const std::vector<TensorTarget>& targets,
          Types types) {
    std::map<std::string, std::vector<Stored>> pieces;
    std::set<std::string> wanted;
    Listing missing, extra, other;
    for (const TensorTarget& t : targets) require(wanted.insert(t.name).second, "load: a target stands twice");
    for (const Stored& s : stored)
        if (!wanted.count(s.name) || (s.piece < 0 && pieces.count(s.name))) extra.add(s.info->name);
        else pieces[s.name].push_back(s);
    for (const TensorTarget& t : targets)
        if (!pieces.count(t.name)) missing.add(t.name);
        else if (const std::string wrong = wrong_with(pieces.at(t.name), t, types); !wrong.empty()) other.add(wrong);
    if (missing.count + extra.count + other.count)
        fail(where + ": not the tensors that this model needs" + missing.under("missing") +
             extra.under("not expected") + other.under("different"));

    std::vector<char> bytes;                           // of one tensor at a time
    for (const TensorTarget& t : targets)
        if (t.store && t.count != 0) read_wanted(pieces.at(t.name), t, bytes, types), t.store(bytes.data());
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

std::string piece_name(const std::string& tensor, long first) { return tensor + '@' + std::to_string(first); }

void load_tensors(const std::vector<std::string>& paths, const std::vector<TensorTarget>& targets) {
    std::vector<std::unique_ptr<SafetensorsFile>> files;
    std::vector<Stored> stored;
    for (const std::string& path : paths) {
        files.push_back(std::make_unique<SafetensorsFile>(path));
        for (const TensorInfo& t : files.back()->tensors()) {
            Stored s{t.name, files.back().get(), &t};
            const size_t at = t.name.rfind('@'), digits = at == std::string::npos ? 0 : t.name.size() - at - 1;
            if (digits > 0 && digits <= 18 && t.name.find_first_not_of("0123456789", at + 1) == std::string::npos)
                s.name.resize(at), s.piece = std::stol(t.name.substr(at + 1));
            stored.push_back(s);
        }
    }
    const size_t more = paths.size() - 1;
    load(paths.at(0) + (more ? " and " + std::to_string(more) + " more" : ""), stored, targets, Types::exact);
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
