// config.cpp - body of config.h: loops over the table of keys that read, check, print and save a configuration.
// Copy with: config.h and what it names
#include "config.h"
#include "config/keys.h"
#include "config/recipe.h"
#include <CLI/CLI.hpp>
#include <climits>
#include <filesystem>
#include <set>

namespace baretrain {

namespace {

using namespace keys;

[[noreturn]] void unknown(const std::string& subject, const std::string& name, bool flag) {
    Config c;
    std::vector<std::string> names;
    for (const Key& k : all_keys(c)) names.push_back(k.name);
    for (const Later& l : later_keys) names.push_back(l.name);
    if (flag) names.insert(names.end(), {"config", "help", "help-all", "version"});
    throw Usage(subject, ": unknown; the nearest is ", flag ? "--" : "", nearest(name, names));
}

// Is it a key without code behind it? Then it may only say what is so anyway.
bool is_later(const std::string& name, const Given& g) {
    for (const Later& l : later_keys) {
        if (l.name != name) continue;
        if (*l.neutral && g.text == l.neutral) return true;
        throw Usage(g.subject, ": not built yet", *l.neutral ? concat("; only ", l.neutral, " works so far") : "");
    }
    return false;
}

// ---- the recipe ----

Values read_recipe(const std::string& path, unsigned command) {
    Config c;
    const std::vector<Key> keys = all_keys(c);
    Values values;
    for (const TomlValue& v : read_toml(path)) {
        const std::string at = concat(path, ":", v.line);
        const Given g{v.text, at, at + ": " + v.name + " = " + v.shown};
        if (is_later(v.name, g)) continue;
        const auto key = std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.name == v.name; });
        if (key == keys.end()) unknown(at + ": " + v.name, v.name, false);
        const bool wants_string = std::holds_alternative<std::string*>(key->slot);
        // --val is a path or a number, so its key may be either.
        if (v.is_string != wants_string && !(v.name == "val" && v.is_number))
            throw Usage(g.subject, ": expected ", expected(*key));
        if (key->commands & command) values[v.name] = g;  // one recipe serves several commands
    }
    return values;
}

// ---- the command line ----

struct CommandLine {
    std::string command = "train", recipe = {};
    bool help = false, help_all = false, version = false;
    Values flags = {};
    std::vector<std::string> inputs = {};
};

// What stands on the line of a command without a flag; null: nothing.
const char* inputs_of(const std::string& command) {
    return command == "tokenize" ? " IN..." : command == "report" ? " RUN..." : nullptr;
}

CommandLine read_command_line(std::vector<std::string> words) {
    CommandLine line;
    if (!words.empty() && !words[0].starts_with('-')) {
        line.command = words[0];
        words.erase(words.begin());
        if (!std::count(commands.begin(), commands.end(), line.command))
            throw Usage(line.command, ": no such command; the nearest is ", nearest(line.command, commands));
    }
    CLI::App app;
    app.set_help_flag();
    app.allow_extras();
    app.add_flag("-h,--help", line.help);
    app.add_flag("--help-all", line.help_all);
    app.add_flag("--version", line.version);
    app.add_option("--config", line.recipe);
    Config c;
    std::map<std::string, CLI::Option*> options;
    const std::set<std::string> truths = {"true", "false"};
    std::set<std::string> booleans;
    const auto add = [&](const std::string& name, bool boolean) {
        options[name] = app.add_option((name == "output" ? "-o,--" : "--") + name)->expected(1);
        if (boolean) booleans.insert("--" + name);
    };
    for (const Key& k : all_keys(c)) add(k.name, std::holds_alternative<bool*>(k.slot));
    for (const Later& l : later_keys) add(l.name, truths.count(l.neutral) > 0);
    for (size_t i = 0; i < words.size(); ++i) {        // a boolean that stands alone is true
        const std::string next = i + 1 < words.size() ? words[i + 1] : "--";
        if (booleans.count(words[i]) && (next.starts_with('-') || (inputs_of(line.command) && !truths.count(next))))
            words.insert(words.begin() + long(i) + 1, "true");
    }
    try {
        app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    } catch (const CLI::ArgumentMismatch& e) {
        const std::string what = e.what();
        throw Usage(what.substr(0, what.find(':')), ": expected exactly one value");
    } catch (const CLI::ParseError& e) {
        throw Usage(e.what());
    }
    for (const std::string& word : app.remaining()) {
        const std::string flag = word.substr(0, word.find('='));
        if (!word.starts_with('-') && inputs_of(line.command)) line.inputs.push_back(word);
        else if (!word.starts_with('-')) throw Usage(word, ": expected a flag, which starts with --");
        else unknown(flag, flag.substr(std::min(flag.find_first_not_of('-'), flag.size())), true);
    }
    for (const auto& [name, option] : options)
        if (option->count() > 0) {
            const std::string text = option->results()[0];
            line.flags[name] = {text, "flag", "--" + name + " " + text};
        }
    return line;
}

unsigned bit_of(const std::string& command) {
    return 1u << (std::find(commands.begin(), commands.end(), command) - commands.begin());
}

// Later keys are checked and dropped; what this command does not use is refused.
void check_flags(Values& flags, const std::string& command) {
    std::erase_if(flags, [](const auto& flag) { return is_later(flag.first, flag.second); });
    Config c;
    for (const Key& k : all_keys(c))
        if (flags.count(k.name) && !(k.commands & bit_of(command)))
            throw Usage("--", k.name, ": ", command, " does not use it");
}

// ---- values that depend on others ----

// The shape before any shape flag, and where it comes from.
std::string start_shape(Config& c, const Values& values) {
    const auto model = values.find("model");
    if (model != values.end()) c.model = model->second.text;
    if (c.model.empty()) {
        c.shape = preset("llama-tiny");
        return "default";
    }
    c.model_is_folder = std::filesystem::is_directory(c.model);
    if (!c.model_is_folder) {
        if (c.model.find('/') != std::string::npos) fail("--model ", c.model, ": no such folder");
        c.shape = preset(c.model);
        return "default (" + c.model + ")";
    }
    const std::string file = (std::filesystem::path(c.model) / "config.json").string();
    c.shape = from_hf_config(read_text(file, "not found, and a model folder needs it"), file);
    return "default (" + file + ")";
}

void resolve_shape(Config& c, const Values& values, const ModelShape& start) {
    const auto given = [&](const char* name) { return values.count(name) > 0; };
    if (!c.model.empty() && c.shape.family != start.family)
        fail("--family ", c.shape.family, ": ", c.model, " is ", start.family);
    if (given("dim") || given("heads") || given("family")) {         // what is derived from these is derived anew
        if (!given("kv-heads")) c.shape.kv_heads = 0;
        if (!given("head-dim")) c.shape.head_dim = 0;
        if (!given("ffn")) c.shape.ffn = 0;
    }
    if (c.model_is_folder) {
        if (!given("tokenizer")) c.tokenizer = c.model, c.origin["tokenizer"] = "default (" + c.model + ")";
        c.seq = given("seq") ? c.seq : std::min(1024L, start.seq);
        if (c.seq > start.seq) fail("--seq ", c.seq, ": ", c.model, " holds at most ", start.seq);
    } else {
        c.seq = c.shape.seq = given("seq") ? c.seq : start.seq;
        if (c.tokenizer != "byte" && !given("vocab") && start.vocab == 257) c.shape.vocab = 0;
    }
    c.shape = with_defaults(c.shape);
    ModelShape checked = c.shape;
    if (checked.vocab == 0) checked.vocab = 2;
    check_shape(checked);
    if ((c.command == "train" || c.command == "plan") && c.tokenizer == "byte") set_vocab(c, 257);
}

// Each rank of --tp has whole heads and hidden units, and some ids.
void check_tp(const Config& c) {
    const ModelShape& s = c.shape;
    const auto fits = [&](long t) {
        const long ids = (s.vocab + t - 1) / t;        // of each rank but the last; vocab 0: not known yet
        return s.heads % t == 0 && s.kv_heads % t == 0 && s.ffn % t == 0 && (s.vocab == 0 || (t - 1) * ids < s.vocab);
    };
    std::vector<std::string> good;
    for (long t = 1; t <= s.kv_heads; ++t)
        if (fits(t)) good.push_back(std::to_string(t));
    if (!fits(c.tp))
        fail("--tp ", c.tp, ": does not divide ", s.heads, " heads, ", s.kv_heads, " key-value heads and ", s.ffn,
             " hidden units, or leaves a rank without one of ", s.vocab, " ids; these do: ", joined(good));
    if (c.ranks % c.tp != 0)
        fail("--tp ", c.tp, ": does not divide --ranks ", c.ranks, "; take --ranks ", (c.ranks / c.tp + 1) * c.tp);
    if (c.sp && c.batch * c.seq % c.tp != 0)
        fail("--sp: --batch ", c.batch, " x --seq ", c.seq, " rows do not divide by --tp ", c.tp);
}

void check_layout(const Config& c) {
    const std::string all = c.tp > 1 ? concat(c.ranks, " / --tp ", c.tp) : std::to_string(c.ranks);
    if (c.shard == "none" && c.replicate != 1 && c.replicate != c.dp())
        fail("--replicate ", c.replicate, ": without --shard each of the ", all, " ranks is a replica");
    if (c.dp() % c.replicate != 0)
        fail("--replicate ", c.replicate, ": does not divide --ranks ", all);
    if (c.gather_dtype == "same" || c.gather_dtype == c.dtype) return;
    const bool codes = c.gather_dtype == "fp8";
    if (codes && c.fp8 != "tensorwise") fail("--gather-dtype fp8: --fp8 is ", c.fp8, "; it needs tensorwise");
    if (c.dtype == "bf16" && !codes) fail("--gather-dtype ", c.gather_dtype, ": wider than weights of --dtype bf16");
    if (c.shard != "fsdp")
        fail("--gather-dtype ", c.gather_dtype, ": only --shard fsdp gathers weights that it does not keep; with ",
             c.shard, " they would lose what the optimizer knows");
}

void resolve_run(Config& c, const Values& values) {
    if (c.master == "none" && c.dtype != "bf16")
        fail("--master none: for --dtype bf16; ", c.dtype, " weights are their own master");
    if (c.fp8 != "off" && c.dtype != "bf16")
        fail("--fp8 ", c.fp8, ": for --dtype bf16; what is not in FP8 is in bf16");
    if (!values.count("lr")) c.lr = 0.5 / double(c.shape.dim);   // 3.9e-3 at dim 128, 6.5e-4 for GPT-2 124M
    if (!values.count("min-lr")) c.min_lr = c.lr / 10;
    if (c.min_lr > c.lr) fail("--min-lr ", value_text(c.min_lr), " is larger than --lr ", value_text(c.lr));
    check_tp(c);
    check_layout(c);
    if (!c.compare.empty() && (c.origin["compare"] != "flag" || !c.resume.empty() || c.replay > 0))
        fail("--compare ", c.compare, ": of the command line alone, and of new runs");
    const long window = c.batch * c.seq;               // a row is an int on the device
    if (window > INT_MAX)
        fail("--batch ", c.batch, " x --seq ", c.seq, ": ", window, " tokens at once, at most ", INT_MAX,
             "; take a smaller --batch");
    const long least = window * c.dp();
    if (!values.count("tokens-per-step")) c.tokens_per_step = least;
    if (c.tokens_per_step % least != 0)
        fail("--tokens-per-step ", c.tokens_per_step, " is not a multiple of --batch ", c.batch, " x --seq ", c.seq,
             c.ranks > 1 ? concat(" x --ranks ", c.ranks) : "", c.tp > 1 ? concat(" / --tp ", c.tp) : "",
             "; the next is ", (c.tokens_per_step / least + 1) * least);
    const double part = number_in(c.val).value_or(0);  // else a path
    if (c.val.empty() || !(part >= 0 && part < 1))
        fail("--val ", c.val, ": expected a path, a fraction between 0 and 1, or 0 for no validation");
    if (c.epochs > 0 && c.steps > 0 && values.count("steps"))
        fail("--steps ", c.steps, " and --epochs ", value_text(c.epochs), ": give one of them, or 0 for the other");
    if (c.epochs > 0) c.steps = 0;                     // until set_steps()
    else set_steps(c, c.steps);
}

// What a command cannot do without.
void require_given(const Config& c, const Values& values) {
    const unsigned command = bit_of(c.command);
    const auto need = [&](unsigned commands, bool given, const char* what) {
        if ((command & commands) && !given) fail(c.command, ": needs ", what);
    };
    need(generate | eval | dump | exports, c.model_is_folder, "trained weights; give --model DIR");
    need(eval, !c.data.empty(), "a text; give --data F");
    need(dump, !c.ids.empty(), "a batch; give --ids F");
    need(dump | exports, !c.output.empty(), "a place for the result; give -o F");
    need(tokenize, c.train_vocab > 0 || values.count("tokenizer"), "a tokenizer; give --tokenizer T");
    const bool stream = c.lines || c.decode;           // standard input to standard output
    need(tokenize, stream || !c.inputs.empty(), "texts; name files or folders");
    need(report, !c.inputs.empty(), "runs; name their folders");
    need(report, c.inputs.size() <= 1 || !c.output.empty(), "a place for the page of several runs; give -o F");
    need(tokenize, stream || !c.output.empty(), "a place for the result; give -o F");
    const int ways = c.lines + c.decode + (c.train_vocab > 0);
    need(tokenize, ways <= 1, "one of --lines, --decode and --train-vocab at most");
    need(tokenize, !stream || (c.inputs.empty() && c.output.empty()),
         "neither files nor -o with --lines or --decode: they read standard input");
}

Config build(const CommandLine& line, const Values& values) {
    Config c;
    c.command = line.command, c.inputs = line.inputs;
    const std::string shape_origin = start_shape(c, values);
    const ModelShape start = c.shape;
    for (const Key& k : all_keys(c)) {
        c.origin[k.name] = (k.commands & of_shape) || k.name == std::string("seq") ? shape_origin : "default";
        const auto given = values.find(k.name);
        if (given == values.end()) continue;
        const std::string before = text_of(k.slot);
        assign(k, given->second);
        c.origin[k.name] = given->second.origin;
        if (c.model_is_folder && (k.commands & of_shape) && text_of(k.slot) != before)
            fail(given->second.subject, ": ", c.model, "/config.json says ", before);
    }
    require_given(c, values);
    if (c.command == "doctor" || inputs_of(c.command)) return c;
    if (bit_of(c.command) & of_tp) c.ranks = c.tp;
    resolve_shape(c, values, start);
    resolve_run(c, values);
    return c;
}

// ---- help ----

std::string flag_line(const std::string& flag, const std::string& value, const std::string& help) {
    std::string left = "  --" + flag + " " + value;
    left.resize(std::max<size_t>(left.size() + 1, 32), ' ');
    return left + help + "\n";
}

std::string help_text(const std::string& command, bool all) {
    const char* const inputs = inputs_of(command);
    std::string text = "train_gpt [" + joined(commands) + "] [--flag value ...]    train is the default\n\nFlags of " +
                       command + (inputs ? inputs : "") + ", each with its default:\n";
    Config c = command == "train" || command == "plan" ? build({command}, {}) : Config{};
    for (const auto& [group, rows] : table(c)) {
        std::string lines;
        for (const Key& k : rows)
            if ((k.commands & bit_of(command)) && (all || k.show == often))
                lines += flag_line(k.name, text_of(k.slot).empty() ? "\"\"" : text_of(k.slot),
                                   k.help + (k.domain.words.empty() ? "" : ": " + joined(k.domain.words)));
        if (!lines.empty()) text += "\n" + std::string(group) + "\n" + lines;
    }
    text += "\nother\n" + flag_line("config", "FILE", "TOML with the same names; flags win") +
            flag_line("help", "", "this text") + flag_line("help-all", "", "every flag") +
            flag_line("version", "", "the version");
    if (!all) return text;
    text += "\nnot built yet: only the value shown is accepted\n";
    for (const Later& l : later_keys) text += flag_line(l.name, *l.neutral ? l.neutral : "-", l.help);
    return text;
}

}  // namespace

bool Config::given(const std::string& key) const {
    const auto found = origin.find(key);
    return found != origin.end() && !found->second.starts_with("default");
}

ParseResult parse(int argc, const char* const* argv, const RecipeOf& recipe_of, int processes) {
    CommandLine line = read_command_line({argv + std::min(argc, 1), argv + argc});
    if (line.version) return {{}, "baretrain 0.1.0\n"};
    if (line.help || line.help_all) return {{}, help_text(line.command, line.help_all)};
    check_flags(line.flags, line.command);
    const unsigned command = bit_of(line.command);
    if (processes && line.command != "plan" && (command & (train | of_tp))) {
        const std::string name = command & train ? "ranks" : "tp", flag = "--" + name;
        const Given given{std::to_string(processes), "launcher", flag};
        const std::string& said = line.flags.emplace(name, given).first->second.text;
        if (said != given.text) throw Usage(flag, " ", said, ": there are ", processes, " processes; leave it out");
    }
    const auto flag = [&](const char* name) { return line.flags.count(name) ? line.flags.at(name).text : ""; };
    if (line.recipe.empty() && recipe_of && (line.flags.count("resume") || line.flags.count("replay")))
        line.recipe = recipe_of(line.flags.count("resume") ? flag("resume") : "--replay", flag("out"));
    Values values;
    if (!line.recipe.empty()) values = read_recipe(line.recipe, bit_of(line.command));
    for (const auto& [name, given] : line.flags) values[name] = given;
    try {
        return {build(line, values), ""};
    } catch (const Error& e) {                         // a rule of shape.h, too, is about usage
        throw Usage(e.what());
    }
}

std::vector<std::pair<std::string, std::string>> key_values(const Config& config) {
    Config c = config;
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const Key& k : all_keys(c))
        if (k.commands & bit_of(c.command)) pairs.emplace_back(k.name, text_of(k.slot));
    return pairs;
}

std::string to_toml(const Config& config) {
    Config c = config;
    std::string text = "# train_gpt " + c.command + " --config THIS_FILE\n";
    for (const auto& [group, rows] : table(c)) {
        text += "\n# " + std::string(group) + "\n";
        for (const Key& k : rows) {
            // Not known before the data is: how many ids the tokenizer has, how many steps the epochs take. And what
            // is not of the run itself: where it lies, and what it is one of.
            const std::string name = k.name, value = text_of(k.slot);
            const bool open = (name == "vocab" && c.shape.vocab == 0) || (name == "steps" && c.epochs > 0);
            const bool place = name == "out" || name == "resume" || name == "replay" || name == "compare";
            if (open || place || !(k.commands & bit_of(c.command))) continue;
            std::string line = name + " = " + value;
            if (std::holds_alternative<std::string*>(k.slot)) line = toml_string(name, value);
            line.resize(std::max<size_t>(line.size() + 1, 32), ' ');
            text += line + "# " + c.origin[name] + "\n";
        }
    }
    return text;
}

void set_steps(Config& c, long steps) {
    c.steps = steps;
    if (!c.given("warmup")) c.warmup = std::min(50L, steps / 10);
    if (c.warmup > steps && steps > 0)
        throw Usage("--warmup ", c.warmup, " is longer than the run: ", steps, " steps");
}

void set_vocab(Config& c, long tokenizer) {
    if (c.shape.vocab == 0) c.shape.vocab = tokenizer;
    if (c.shape.vocab < tokenizer)
        throw Usage("--vocab ", c.shape.vocab, ": --tokenizer ", c.tokenizer, " has ", tokenizer, " ids");
    check_tp(c);
}

Schedule schedule_of(const Config& c) {
    return {c.schedule, c.lr, c.min_lr, c.warmup, c.steps, decay_steps(c.schedule, c.warmup, c.steps)};
}

}  // namespace baretrain
