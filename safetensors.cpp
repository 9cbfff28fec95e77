// safetensors.cpp - the body of safetensors.h.
#include "safetensors.h"
#include "device/error.h"
#include <algorithm>
#include <bit>
#include <climits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

namespace baretrain {

namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is copied as it is");

constexpr size_t longest_header = 100'000'000, longest_name = 500;

[[noreturn]] void fail_damaged(const std::string& path, const std::string& why) {
    fail(path + ": not a sound safetensors file: " + why + "; copy or download it again");
}

// Product of shape and width; false if it does not fit into 63 bits (which no file can hold either).
bool byte_count(const std::vector<long>& shape, size_t width, size_t& bytes) {
    long n = long(width);
    for (long extent : shape)
        if (extent < 0 || __builtin_mul_overflow(n, extent, &n)) return false;
    bytes = size_t(n);
    return true;
}

// Names stand in error messages, which are one line.
bool printable(const std::string& s) {
    const auto control = [](unsigned char c) { return c < 32 || c == 127; };
    return !s.empty() && s.size() <= longest_name && std::none_of(s.begin(), s.end(), control);
}

// The JSON library keeps the last of two equal keys and nests without end; this format allows neither.
json parse_header(const std::string& path, const std::string& text) {
    std::vector<std::set<std::string>> keys;           // of each open object
    const auto check = [&](int depth, json::parse_event_t event, json& value) {
        using Event = json::parse_event_t;
        if ((event == Event::object_start || event == Event::array_start) && depth > 2)
            fail_damaged(path, "the header nests too deeply");
        if (event == Event::object_start) keys.emplace_back();
        if (event == Event::object_end) keys.pop_back();
        if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
            fail_damaged(path, "a name stands twice in the header" +
                         (printable(value.get<std::string>()) ? ": " + value.get<std::string>() : ""));
        return true;
    };
    if (text.empty() || text[0] != '{') fail_damaged(path, "the header does not begin with {");
    if (text.find('\0') != std::string::npos) fail_damaged(path, "the header is not JSON");   // the library stops there
    try {
        return json::parse(text, check);
    } catch (const json::exception&) {
        fail_damaged(path, "the header is not JSON");
    }
}

bool is_size(const json& v) { return v.is_number_unsigned() && v.get<uint64_t>() <= uint64_t(LONG_MAX); }
bool are_sizes(const json& v) { return v.is_array() && std::all_of(v.begin(), v.end(), is_size); }

// One tensor of the header, checked on its own: types, size, inside the data.
TensorInfo read_entry(const std::string& path, const std::string& name, const json& entry, size_t data_bytes) {
    if (!printable(name)) fail_damaged(path, "a tensor name is empty, longer than 500 bytes, or not printable");
    const auto bad = [&](const std::string& why) { fail_damaged(path, "tensor " + name + ": " + why); };
    if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets"))
        bad("expected dtype, shape and data_offsets, nothing else");
    const json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
    const std::string type = dtype.is_string() ? dtype.get<std::string>() : "";
    if (!dtype_bytes(type)) bad("unknown dtype" + (printable(type) ? " " + type : ""));
    if (!are_sizes(shape)) bad("the shape is not a list of sizes (whole, not negative)");
    if (!are_sizes(offsets) || offsets.size() != 2) bad("data_offsets are not two sizes (whole, not negative)");

    TensorInfo t{name, type, shape.get<std::vector<long>>(), offsets[0].get<size_t>(),
                 offsets[1].get<size_t>()};
    if (t.begin > t.end) bad("begins at byte " + std::to_string(t.begin) + ", behind its end " + std::to_string(t.end));
    if (t.end > data_bytes)
        bad("ends at byte " + std::to_string(t.end) + " of " + std::to_string(data_bytes) + " bytes of data");
    size_t bytes = 0;
    if (!byte_count(t.shape, dtype_bytes(t.dtype), bytes)) bad("the size of its shape overflows");
    if (bytes != t.bytes())
        bad("spans " + std::to_string(t.bytes()) + " bytes, its shape and dtype need " + std::to_string(bytes));
    return t;
}

// t must be sorted by position.
void check_tiling(const std::string& path, const std::vector<TensorInfo>& tensors, size_t data_bytes) {
    size_t at = 0;
    for (const TensorInfo& t : tensors) {
        if (t.begin < at) fail_damaged(path, "tensor " + t.name + " overlaps the one before it");
        if (t.begin > at)
            fail_damaged(path, "a gap of " + std::to_string(t.begin - at) + " bytes before tensor " + t.name);
        at = t.end;
    }
    if (at < data_bytes) fail_damaged(path, std::to_string(data_bytes - at) + " bytes behind the last tensor");
}

std::vector<const TensorSource*> file_order(const std::vector<TensorSource>& tensors) {
    std::vector<const TensorSource*> order;
    for (const TensorSource& t : tensors) order.push_back(&t);
    std::sort(order.begin(), order.end(), [](const TensorSource* a, const TensorSource* b) {
        return std::pair(dtype_bytes(b->dtype), a) < std::pair(dtype_bytes(a->dtype), b);      // of one width: as given
    });
    return order;
}

}  // namespace

size_t dtype_bytes(const std::string& dtype) {
    static const std::map<std::string, size_t> widths = {
        {"BOOL", 1}, {"U8", 1}, {"I8", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
        {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4}, {"U64", 8}, {"I64", 8}, {"F64", 8}, {"C64", 8}};
    const auto found = widths.find(dtype);
    return found == widths.end() ? 0 : found->second;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
    const size_t file_bytes = file_.bytes();
    if (file_bytes < 8) fail_damaged(path, std::to_string(file_bytes) + " bytes, the header's length alone takes 8");
    uint64_t length = 0;
    file_.read(&length, 8, 0);
    const std::string bytes = "a header of " + std::to_string(length) + " bytes";
    if (length > longest_header) fail_damaged(path, bytes + ", at most 100000000 are allowed");
    if (length > file_bytes - 8) fail_damaged(path, bytes + " in a file of " + std::to_string(file_bytes));
    std::string text(length, '\0');
    file_.read(text.data(), length, 8);
    data_ = 8 + length;

    const json header = parse_header(path, text);
    for (const auto& [name, entry] : header.items()) {
        if (name != "__metadata__") {
            tensors_.push_back(read_entry(path, name, entry, file_bytes - data_));
            continue;
        }
        if (!entry.is_object()) fail_damaged(path, "__metadata__ is not an object");
        for (const auto& [key, value] : entry.items()) {
            if (!value.is_string()) fail_damaged(path, "__metadata__ holds something that is not text");
            metadata_[key] = value.get<std::string>();
        }
    }
    std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    check_tiling(path, tensors_, file_bytes - data_);
    for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const TensorInfo& tensor, void* to) const { read(tensor, to, 0, tensor.bytes()); }

void SafetensorsFile::read(const TensorInfo& tensor, void* to, size_t from, size_t bytes) const {
    require(from <= tensor.bytes() && bytes <= tensor.bytes() - from, "safetensors: the part lies in the tensor");
    file_.read(to, bytes, data_ + tensor.begin + from);
}

Digest write_safetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                         const std::map<std::string, std::string>& metadata) {
    const std::vector<const TensorSource*> order = file_order(tensors);
    const auto text = [](const json& v) { return v.dump(-1, ' ', false, json::error_handler_t::replace); };
    std::string header = metadata.empty() ? "{" : "{\"__metadata__\":" + text(metadata);
    std::set<std::string> names;
    std::vector<size_t> sizes;
    size_t at = 0, largest = 0;
    for (const TensorSource* t : order) {
        size_t bytes = 0;
        if (!printable(t->name) || t->name == "__metadata__" || !names.insert(t->name).second)
            fail(path + ": tensor name '" + t->name + "' is used twice or cannot be used");
        const size_t width = dtype_bytes(t->dtype);
        if (!width) fail(path + ": tensor " + t->name + ": unknown dtype " + t->dtype);
        if (!byte_count(t->shape, width, bytes)) fail(path + ": tensor " + t->name + ": impossible shape");
        if (header.size() > 1) header += ',';
        header += text(t->name) + ':' +
                  text({{"dtype", t->dtype}, {"shape", t->shape}, {"data_offsets", {at, at + bytes}}});
        sizes.push_back(bytes);
        at += bytes;
        largest = std::max(largest, bytes);
    }
    header += '}';
    header.resize((header.size() + 7) / 8 * 8, ' ');
    if (header.size() > longest_header) fail(path + ": too many tensors: the header is longer than readers accept");

    OutputFile file(path);
    const uint64_t length = header.size();
    file.write(&length, 8);
    file.write(header.data(), header.size());
    std::vector<char> bytes(largest);
    for (size_t i = 0; i < order.size(); ++i) {
        order[i]->fetch(bytes.data());
        file.write(bytes.data(), sizes[i]);
    }
    return file.close();
}

void join_fetches(const std::vector<TensorSource>& tensors) {
    for (const TensorSource* t : file_order(tensors)) t->fetch(nullptr);
}

}  // namespace baretrain
