// shards.h - token ids in 16 or 32 bits: in memory, and in files (shards) of llm.c's layout that are read on demand.
// Copy with: shards.cpp, files.h and what they name
// A shard is a header of 256 32-bit integers, then the ids. llm.c reads fields 0 to 2 and leaves the others 0:
//   0 magic, 1 version   20240520, 1: ids of 16 bits; 20240801, 7: ids of 32 bits (llm.c's Llama 3)
//   2 ids, low word      7 high word: from 2^31 ids on only we can read a shard
//   3 bits of an id      4 size of the vocabulary      5, 6 hash of the tokenizer, low and high word
// Where 3 to 6 are 0 (a file of llm.c), nothing is known but the width. 32 bits are for vocabularies above 65,536.
// An id that the vocabulary does not have stops whoever reads it: it is never wrapped or clamped.
#pragma once
#include "files.h"
#include <memory>

namespace baretrain {

struct Vocabulary {                                    // what ids mean
    long size;
    uint64_t tokenizer = 0;                            // hash of the tokenizer; 0: not known, fits any
    int id_bytes() const { return size > 65536 ? 4 : 2; }
};

struct Shard {
    std::string path;
    long tokens;
    int id_bytes;
};

// Checks all but the ids: these are checked when they are read.
Shard open_shard(const std::string& path, const Vocabulary& vocabulary);

// Writes under a name of this process; close() gives it its header and its name. Without close() nothing stays.
class ShardWriter {
public:
    ShardWriter(const std::string& path, const Vocabulary& vocabulary);
    ~ShardWriter();
    void append(const std::vector<int>& ids);
    long close();                                      // how many ids the shard holds
private:
    std::string path_, building_;
    Vocabulary vocabulary_;
    OutputFile file_;
    long tokens_ = 0;
};

// A sequence of ids. What was text is held in memory, once; what lies in shards stays there, opened for each read (so
// their number has no limit). Copies and ranges share the ids.
class Tokens {
public:
    explicit Tokens(long vocab, const std::vector<int>& ids = {});
    long size() const { return pieces_.empty() ? 0 : pieces_.back().end; }
    void append(const std::vector<int>& ids);
    void append(const Shard& shard);
    Tokens range(long begin, long end) const;
    std::vector<int> read(long begin, long end) const;
private:
    struct Piece {
        long end;                                      // of the sequence: where the next piece begins
        Shard shard;                                   // its path is empty in memory
        std::shared_ptr<std::vector<char>> memory;
        long skipped;                                  // ids of the shard or memory before this piece
    };
    size_t piece_at(long position) const;
    bool has_room() const;
    long begin_of(size_t piece) const { return piece ? pieces_[piece - 1].end : 0; }
    long vocab_;
    std::vector<Piece> pieces_;
};

}  // namespace baretrain
