// tokenize.h - text files to token ids on all cores: which files, what their documents are; and JSON lines in and out.
// Copy with: tokenize.cpp, shards.h, tokenizer.h and what they name, nlohmann-json
// A file is one document. A .jsonl file has one in each line: {"text": "..."}, other members are ignored. Documents
// without text are left out. A long one is cut where that changes no id; the number of threads changes none either.
#pragma once
#include "shards.h"
#include "tokenizer.h"
#include <functional>
#include <iosfwd>

namespace baretrain {

// Files in the order in which they are read, and how many of the folders' were left out: by reason.
struct Inputs {
    std::vector<std::string> files;
    std::map<std::string, long> left_out;
    std::string describe() const;                      // 3 files (2 left out: 1 binary, 1 empty)
};

// Adds what `path` means: a file; a folder; or, with * ? [ ], a pattern of glob(3) for them. A folder gives every text
// file below it, sorted by path, without hidden names, folders named out, build, third_party, node_modules, run folders
// (they hold a log.jsonl), empty files, and binary ones (.bin, a zero byte or no UTF-8 in the first 64 KB).
void add_inputs(Inputs& inputs, const std::string& flag, const std::string& path);

// Calls use(ids) for the documents of text files, in order, with end-of-text between them.
using Ids = std::vector<int>;
struct Encoder {
    const Tokenizer& tokenizer;
    Parse parse = Parse::ordinary;
    Ids operator()(std::string_view text) const { return tokenizer.encode(text, parse); }
};
void encode_files(const std::vector<std::string>& files, const Encoder& encode, int threads,
                  const std::function<void(const Ids&)>& use);

Vocabulary vocabulary_of(const Tokenizer& tokenizer);

// The tokenize command: a BPE of so many ids, learned from the documents; its files, in a folder or as out.json; the
// documents as one shard (how many ids it has); line by line, {"text": "..."} to a list of ids, and back.
Tokenizer learn_tokenizer(const Inputs& inputs, long vocab, int threads);
void write_tokenizer(const Tokenizer& tokenizer, const std::string& out);
long tokenize_files(const Inputs& inputs, const Encoder& encode, const std::string& out, int threads);
void encode_lines(std::istream& in, std::ostream& out, const Encoder& encode);
void decode_lines(std::istream& in, std::ostream& out, const Tokenizer& tokenizer);

}  // namespace baretrain
