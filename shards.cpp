// shards.cpp - the body of shards.h.
#include "shards.h"
#include "device/error.h"
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <unistd.h>

namespace baretrain {

namespace {

static_assert(std::endian::native == std::endian::little, "ids are little-endian and are copied as they are");

constexpr size_t header_bytes = 256 * 4;
constexpr long memory_piece = 1 << 20;                 // ids; pieces never grow, so memory holds each id once

struct Layout { int id_bytes; uint32_t magic, version; };
constexpr Layout layouts[] = {{2, 20240520, 1}, {4, 20240801, 7}};
enum Field { magic, version, count, id_bits, vocab_size, hash_low, hash_high, count_high, fields };

[[noreturn]] void fail_shard(const std::string& path, const std::string& why, const char* or_else = "") {
    fail(path, ": ", why, "; ", or_else, "make it again: train_gpt tokenize --tokenizer T IN... -o ", path);
}

// The low bytes of an int come first: these are the id.
void copy_id(void* to, const void* from, size_t bytes) {
    bytes == 2 ? std::memcpy(to, from, 2) : std::memcpy(to, from, 4);
}
void narrow(const int* ids, size_t n, size_t bytes, char* to) {
    for (size_t i = 0; i < n; ++i) copy_id(to + i * bytes, ids + i, bytes);
}

// first: number of the first id in its file, for the message. A negative id has wrapped.
void check_ids(const int* ids, long n, long vocab, const std::string& path, long first) {
    const int* bad = std::find_if(ids, ids + n, [&](int id) { return id < 0 || id >= vocab; });
    if (bad != ids + n)
        fail(path, ": token ", first + (bad - ids), " is id ", unsigned(*bad), ", but the vocabulary has ", vocab,
             " ids (from 0); give the --tokenizer that it was made with (none: ids alone), or make it again");
}

}  // namespace

Shard open_shard(const std::string& path, const Vocabulary& vocabulary) {
    const InputFile file(path);
    if (file.bytes() < header_bytes)
        fail_shard(path, concat(file.bytes(), " bytes are no token shard: its header alone has 1024"));
    uint32_t h[fields];
    file.read(h, sizeof h, 0);
    const auto layout = std::ranges::find(layouts, h[magic], &Layout::magic);
    if (layout == std::end(layouts))
        fail_shard(path, concat("magic ", h[magic], " is not a token shard's: 20240520 (16-bit ids) or 20240801 "
                                "(32-bit ids); text needs a name that does not end in .bin"));
    if (h[version] != layout->version) fail_shard(path, concat("version ", h[version], ", expected ", layout->version));
    const uint32_t bits = uint32_t(8 * layout->id_bytes);
    if (h[id_bits] != 0 && h[id_bits] != bits)
        fail_shard(path, concat("ids of ", h[id_bits], " bits, but its magic says ", bits));
    const uint64_t tokens = h[count] | uint64_t(h[count_high]) << 32, body = file.bytes() - header_bytes,
                   room = body / uint64_t(layout->id_bytes);
    if (tokens > room)
        fail_shard(path, concat("the header says ", tokens, " ids, the file holds ", room, ": it is cut off"));
    if (const uint64_t extra = body - tokens * uint64_t(layout->id_bytes))
        fail_shard(path, concat(extra, " bytes behind its ", tokens, " ids"));
    const uint64_t hash = h[hash_low] | uint64_t(h[hash_high]) << 32;
    if (hash && vocabulary.tokenizer && hash != vocabulary.tokenizer)
        fail_shard(path, concat("made with tokenizer ", hex(hash), " of ", h[vocab_size], " ids, but this one is ",
                                hex(vocabulary.tokenizer), " of ", vocabulary.size),
                   "give the --tokenizer that it was made with, or ");
    return {path, long(tokens), layout->id_bytes};
}

ShardWriter::ShardWriter(const std::string& path, const Vocabulary& vocabulary)
    : path_(path), building_(concat(path, ".", getpid(), ".tmp")), vocabulary_(vocabulary), file_(building_) {
    const char blank[header_bytes] = {};
    file_.write(blank, header_bytes);
}

ShardWriter::~ShardWriter() { std::remove(building_.c_str()); }   // after close() there is none

void ShardWriter::append(const std::vector<int>& ids) {
    check_ids(ids.data(), long(ids.size()), vocabulary_.size, path_, tokens_);
    std::vector<char> bytes(ids.size() * size_t(vocabulary_.id_bytes()));
    narrow(ids.data(), ids.size(), size_t(vocabulary_.id_bytes()), bytes.data());
    file_.write(bytes.data(), bytes.size());
    tokens_ += long(ids.size());
}

long ShardWriter::close() {
    file_.close();
    const Layout& layout = layouts[vocabulary_.id_bytes() == 4];
    const uint64_t n = uint64_t(tokens_), hash = vocabulary_.tokenizer;
    const uint32_t h[fields] = {layout.magic, layout.version, uint32_t(n), uint32_t(8 * layout.id_bytes),
                                uint32_t(vocabulary_.size), uint32_t(hash), uint32_t(hash >> 32), uint32_t(n >> 32)};
    std::fstream file(building_, std::ios::binary | std::ios::in | std::ios::out);
    file.write(reinterpret_cast<const char*>(h), sizeof h);
    file.close();
    if (!file || std::rename(building_.c_str(), path_.c_str()) != 0)
        fail(path_, ": cannot be written: ", std::strerror(errno));
    return tokens_;
}

Tokens::Tokens(long vocab, const std::vector<int>& ids) : vocab_(vocab) { append(ids); }

// Memory that others see too, or see more of, stays as it is.
bool Tokens::has_room() const {
    if (pieces_.empty() || !pieces_.back().memory || pieces_.back().memory.use_count() > 1) return false;
    const Piece& p = pieces_.back();
    const long held = long(p.memory->size()) / p.shard.id_bytes;
    return held < memory_piece && held == p.skipped + p.end - begin_of(pieces_.size() - 1);
}

void Tokens::append(const std::vector<int>& ids) {
    check_ids(ids.data(), long(ids.size()), vocab_, "text", size());
    const int bytes = Vocabulary{vocab_}.id_bytes();
    for (long done = 0, n = long(ids.size()); done < n;) {
        if (!has_room()) {
            pieces_.push_back({size(), {"", 0, bytes}, std::make_shared<std::vector<char>>(), 0});
            pieces_.back().memory->reserve(size_t(memory_piece * bytes));
        }
        Piece& p = pieces_.back();
        const size_t held = p.memory->size();
        const long fits = std::min(n - done, memory_piece - long(held) / bytes);
        p.memory->resize(held + size_t(fits * bytes));
        narrow(ids.data() + done, size_t(fits), size_t(bytes), p.memory->data() + held);
        p.end += fits, done += fits;
    }
}

void Tokens::append(const Shard& shard) {
    if (shard.tokens > 0) pieces_.push_back({size() + shard.tokens, shard, nullptr, 0});
}

size_t Tokens::piece_at(long position) const {
    return size_t(std::ranges::upper_bound(pieces_, position, {}, &Piece::end) - pieces_.begin());
}

Tokens Tokens::range(long begin, long end) const {
    require(0 <= begin && begin <= end && end <= size(), "tokens: a range inside the sequence");
    Tokens part(vocab_);
    for (size_t i = piece_at(begin); begin < end; begin = pieces_[i++].end) {
        Piece p = pieces_[i];
        p.skipped += begin - begin_of(i);
        p.end = part.size() + std::min(end, pieces_[i].end) - begin;
        part.pieces_.push_back(p);
    }
    return part;
}

std::vector<int> Tokens::read(long begin, long end) const {
    require(0 <= begin && begin <= end && end <= size(), "tokens: a range inside the sequence");
    std::vector<int> ids(static_cast<size_t>(end - begin));
    std::vector<char> buffer;
    for (size_t i = piece_at(begin), done = 0; done < ids.size(); ++i) {
        const Piece& p = pieces_[i];
        const long at = begin + long(done), n = std::min(end, p.end) - at, first = p.skipped + at - begin_of(i);
        const size_t bytes = size_t(p.shard.id_bytes), from = size_t(first) * bytes;
        if (!p.memory) {
            buffer.resize(size_t(n) * bytes);
            InputFile(p.shard.path).read(buffer.data(), buffer.size(), header_bytes + from);
        }
        const char* data = p.memory ? p.memory->data() + from : buffer.data();
        for (long id = 0; id < n; ++id) copy_id(&ids[done + size_t(id)], data + size_t(id) * bytes, bytes);
        check_ids(&ids[done], n, vocab_, p.memory ? "text" : p.shard.path, first);
        done += size_t(n);
    }
    return ids;
}

}  // namespace baretrain
