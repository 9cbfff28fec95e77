// parsers.h - every parser of bytes that a stranger may have written, each as one function of those bytes.
// Copy with: test/host.h, checkpoint.h, config.h, dataloader.h, model_folder.h, report.h, shards.h and what they name
// The contract: a parser loads, or throws Error with one line. test/damage_test.cpp cuts and flips good files; the
// targets in test/fuzz/ let libFuzzer write bad ones.
#pragma once
#include "checkpoint.h"
#include "config.h"
#include "dataloader.h"
#include "host.h"
#include "model_folder.h"
#include "report.h"
#include "shards.h"
#include "tokenizer.h"
#include <cstring>

namespace baretrain::test {

struct Parser {
    std::string name;
    std::vector<std::string> good;                     // what this program writes itself, and what others do
    std::function<void(const std::string& bytes)> parse;
};

// The line of the error, or nothing when it loads; what breaks the contract is thrown on.
inline std::string refusal_of(const Parser& parser, const std::string& bytes) {
    std::string line;
    try {
        parser.parse(bytes);
        return line;
    } catch (const Error& e) {
        line = e.what();
    }
    const bool one_line = !line.empty() && line.find_first_of(std::string("\n\r\0", 3)) == std::string::npos;
    if (!one_line) throw std::logic_error(parser.name + ": its error is not one line: " + line);
    return line;
}

inline TensorSource source(const std::string& name, std::vector<long> shape, const std::string& bytes) {
    return {name, "F32", std::move(shape), [bytes](void* to) { std::memcpy(to, bytes.data(), bytes.size()); }};
}
inline std::vector<TensorSource> two_tensors() {
    return {source("a.weight", {2, 3}, std::string(24, 'a')), source("b", {1}, "bbbb")};
}

// What is put where, for the parser to find; the folder lives as long as the program.
inline const std::string& folder_of_parsers() {
    static const TempFolder folder;
    static const std::string path = folder.path.string();
    return path;
}

inline Parser safetensors_parser() {
    const std::string path = folder_of_parsers() + "/x.safetensors";
    write_safetensors(path, two_tensors(), {{"format", "pt"}});
    return {"safetensors", {get(path)}, [path](const std::string& bytes) {
        put(path, bytes);
        const SafetensorsFile file(path);
        std::vector<char> to;
        for (const TensorInfo& t : file.tensors()) to.resize(t.bytes()), file.read(t, to.data());
    }};
}

inline Parser hf_config_parser() {
    std::vector<std::string> good;
    for (const char* name : {"gpt2-124m", "llama-tiny"}) good.push_back(to_hf_config(preset(name), "float32", 256));
    return {"hf_config", good, [](const std::string& bytes) { check_shape(from_hf_config(bytes, "config.json")); }};
}

inline Parser tokenizer_parser() {
    const std::string path = folder_of_parsers() + "/tokenizer.json";
    const Tokenizer trained = train_bpe({{" bears", 3}, {" bear", 2}}, 260);
    return {"tokenizer", {trained.files().at("tokenizer.json")}, [path](const std::string& bytes) {
        put(path, bytes);
        const Tokenizer tokenizer = load_tokenizer(path);
        tokenizer.decode(tokenizer.encode("Ein Bär, 12 bears\n<|endoftext|>"));
    }};
}

inline Parser recipe_parser() {
    const std::string path = folder_of_parsers() + "/recipe.toml";
    const char* const none[] = {"train_gpt"};
    const std::string all = to_toml(parse(1, none).config);
    const std::string few = "# few\nfamily = \"gpt2\"\nlayers = 2\ntied = true\nlr = 1e-3\n";
    const std::string odd = "\xEF\xBB\xBFprompt = \"é\\\\\" # ¡\ndata = '、'\nlr = 1\n# é\nval = '''\n0'''\n";
    return {"recipe", {few, all, odd}, [path](const std::string& bytes) {
        put(path, bytes);
        const char* const words[] = {"train_gpt", "--config", path.c_str()};
        to_toml(parse(3, words).config);
    }};
}

// A run with one checkpoint; `file` of it is what is read.
inline Parser checkpoint_parser(const std::string& name, const std::string& file) {
    const std::string run = folder_of_parsers() + "/" + name;
    CheckpointParts parts{"{}\n", two_tensors(), two_tensors(), {{"tokenizer.json", "{}"}}, {}};
    parts.trainer = {3, 21, 1536, {{"data", "00ff"}, {"seq", "64"}}};
    const std::string folder = save_checkpoint(run, parts, 0), path = folder + "/" + file;
    return {name, {get(path)}, [=](const std::string& bytes) {
        put(path, bytes);
        if (file == "state/trainer.json") require_same_facts(read_trainer_state(folder), parts.trainer.facts);
        else newest_run(folder_of_parsers()), newest_checkpoint(run), require_complete(folder), state_files(folder);
    }};
}
inline Parser trainer_parser() { return checkpoint_parser("trainer", "state/trainer.json"); }
inline Parser mark_parser() { return checkpoint_parser("mark", "state/complete"); }

// Tensors in pieces, of which another file holds one and one is a rectangle; what is wanted lies across them.
inline Parser pieces_parser() {
    const std::string path = folder_of_parsers() + "/pieces", other = folder_of_parsers() + "/other-pieces";
    write_safetensors(path, {source("m.w@1", {2, 1}, "bbbbdddd"), source("m.w@4", {4}, "eeeeffffgggghhhh"),
                             source("m.w@0", {1}, "aaaa"), source("v.w", {3, 2}, std::string(24, 'v'))}, {});
    write_safetensors(other, {source("m.w@2", {1}, "cccc")}, {});
    return {"pieces", {get(path)}, [=](const std::string& bytes) {
        put(path, bytes);
        std::string read(16, '?');
        const auto store = [&](const void* from) { std::memcpy(read.data(), from, read.size()); };
        load_tensors({path, other}, {{"m.w", "F32", {4, 2}, store, 2, 4}, {"v.w", "F32", {3, 2}, store, 1, 4}});
    }};
}

inline Parser index_parser() {
    const std::string folder = folder_of_parsers() + "/shards", path = folder + "/model.safetensors.index.json";
    fs::create_directories(folder);
    for (const char* shard : {"/1", "/2"})
        write_safetensors(folder + shard, {source(shard[1] == '1' ? "a" : "b", {1}, "abcd")}, {});
    const std::string good = "{\"metadata\": {\"total_size\": 8}, \"weight_map\": {\"a\": \"1\", \"b\": \"2\"}}";
    return {"index", {good}, [=](const std::string& bytes) {
        put(path, bytes);
        const auto store = [](const void*) {};
        load_model_tensors(folder, {{"a", "F32", {1}, store}, {"b", "F32", {1}, store}});
    }};
}

inline Parser log_parser() {
    const std::string folder = folder_of_parsers() + "/log";
    std::string good, samples;
    {
        RunFolder run(folder);
        StepLog log;
        log.loss = 2.5, log.val_loss = 2.25, log.ms = {{"forward", 1.5}};
        for (log.step = 1; log.step <= 3; ++log.step) run.log(log);
        good = get(folder + "/log.jsonl");
        run.sample(1, "a\n\xC3\xA4"), run.sample(2, "");
        samples = get(folder + "/samples.jsonl");
    }
    return {"log", {good, samples}, [=](const std::string& bytes) {
        put(folder + "/log.jsonl", bytes), put(folder + "/samples.jsonl", bytes);
        RunFolder(folder, 2);
    }};
}

inline Parser data_parser(const std::string& file, const std::string& good) {
    const std::string path = folder_of_parsers() + "/" + file;
    return {file, {good}, [path](const std::string& bytes) {
        put(path, bytes);
        const Corpus corpus = read_corpus(path, "0.2", Tokenizer::bytes(), 2);
        Loader(corpus.train, 2, 7).rows(0, 3);
    }};
}
inline Parser text_parser() {
    const std::string good = "One document, in the end with two characters that are not ASCII: \xC3\xA4 \xE2\x82\xAC\n";
    return data_parser("text.txt", good);
}
inline Parser jsonl_parser() {
    const std::string one = "{\"text\": \"One document\", \"more\": {\"id\": [1]}}\n";
    return data_parser("text.jsonl", one + "{\"text\": \"two \\ud83d\\ude00\"}\n");
}
inline Parser shard_parser() {
    ShardWriter shard(folder_of_parsers() + "/good.bin", vocabulary_of(Tokenizer::bytes()));
    shard.append(Tokenizer::bytes().encode("Forty ids, of which the last tenth is val")), shard.close();
    return data_parser("shard.bin", get(folder_of_parsers() + "/good.bin"));
}

inline const std::vector<Parser>& all_parsers() {
    static const std::vector<Parser> all = {
        safetensors_parser(), hf_config_parser(), tokenizer_parser(), recipe_parser(), trainer_parser(),
        mark_parser(),        index_parser(),     pieces_parser(),    log_parser(),   text_parser(),
        jsonl_parser(),       shard_parser()};
    return all;
}

}  // namespace baretrain::test
