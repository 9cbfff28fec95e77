// style_test.cpp - the architecture as a test: layers, closures, budgets, and what may stand where.
// It reads the sources of the working directory. A new header needs a row in `layers`; a broken budget, less code.
#include <doctest/doctest.h>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

// A header may include headers of a smaller number only; x/part.h and x.cpp count as x.h, "kernels.h" is kernels/.
// Host-only headers see no kernel at all.
const std::map<std::string, int> layers = {
    {"device.h", 10}, {"memory.h", 15}, {"mesh.h", 16}, {"comm.h", 18}, {"kernels.h", 20}, {"shape.h", 30}, {"params.h", 35}, {"lease.h", 40}, {"wire.h", 42}, {"zero.h", 45}, {"fsdp.h", 45},
    {"fp8_wire.h", 44}, {"fp8.h", 45}, {"linear.h", 50}, {"tp.h", 55}, {"gpt.h", 60}, {"state.h", 65}, {"stats.h", 70}, {"generate.h", 70}, {"gradcheck.h", 70}, {"trainer.h", 80}, {"plan.h", 85}, {"traffic.h", 85},
    {"commands.h", 90}, {"train_gpt.cu", 100},
};
const std::map<std::string, int> host_layers = {
    {"bpe.h", 25}, {"files.h", 25}, {"shape.h", 30}, {"schedule.h", 30}, {"tokenizer.h", 30}, {"safetensors.h", 30},
    {"doctor.h", 30}, {"page.h", 30}, {"trace.h", 30}, {"holdings.h", 30}, {"report.h", 35}, {"shards.h", 35}, {"tokenize.h", 37}, {"dataloader.h", 40},
    {"checkpoint.h", 40}, {"model_folder.h", 40}, {"blackbox.h", 45}, {"config.h", 50},
};
const Names host_may_use = {"device/error.h", "device/types.h", "device/random.h", "device/watch.h"};
// The core is what a training step runs. Not of it: adapters and FP8, engines between ranks, the other commands, and all
// host-only files.
const Names not_core = {"lora.h", "fp8.h", "fp8_wire.h", "kernels/quantize.h", "kernels/fp8.h", "generate.h", "gradcheck.h", "plan.h", "traffic.h", "commands.h", "commands/compare.h", "commands/costs.h",
                       "commands/infer.h", "commands/shared.h"};

bool starts(const std::string& s, const std::string& with) { return s.rfind(with, 0) == 0; }
bool ends(const std::string& s, const std::string& with) {
    return s.size() >= with.size() && s.compare(s.size() - with.size(), with.size(), with) == 0;
}
std::string stem(const std::string& file) { return file.substr(0, file.rfind('.')); }

// The header that a body (x.cpp) or a part (x/part.h) belongs to: x.h.
std::string front_of(const std::string& file) {
    const size_t folder = file.find('/');
    if (folder != std::string::npos) return file.substr(0, folder) + ".h";
    return ends(file, ".cpp") ? stem(file) + ".h" : file;
}

// ---- the lexer

enum class Strings { keep, blank };

// Where a literal that begins at i ends (one past): "..." or '...', with escapes, or a raw string that begins at R.
size_t end_of_literal(const std::string& s, size_t i) {
    if (s[i] == 'R') {
        const size_t open = s.find('(', i);
        const size_t close = s.find(")" + s.substr(i + 2, open - i - 2) + "\"", open);
        return close == std::string::npos ? s.size() : close + (open - i);
    }
    const char quote = s[i++];
    while (i < s.size() && s[i] != quote && s[i] != '\n') i += s[i] == '\\' ? 2 : 1;
    return std::min(s.size(), i + 1);
}

// The same text with comments (and the insides of literals) as spaces; every line stays where it is.
std::string without_comments(const std::string& s, Strings strings) {
    std::string out = s;
    const auto blank = [&](size_t from, size_t to) {
        for (size_t k = from; k < to && k < s.size(); ++k)
            if (s[k] != '\n') out[k] = ' ';
    };
    const auto word = [&](size_t i) { return std::isalnum(static_cast<unsigned char>(s[i])) || s[i] == '_'; };
    for (size_t i = 0; i < s.size();) {
        size_t end = i + 1;
        const bool fresh = i == 0 || !word(i - 1);     // 1'000 and LR"x" begin no literal here
        if (s.compare(i, 2, "//") == 0) {
            end = std::min(s.size(), s.find('\n', i));
            blank(i, end);
        } else if (s.compare(i, 2, "/*") == 0) {
            end = std::min(s.size(), s.find("*/", i + 2) + 2);
            blank(i, end);
        } else if (s[i] == '"' || (s[i] == '\'' && fresh) || (fresh && s.compare(i, 2, "R\"") == 0)) {
            end = end_of_literal(s, i);
            if (strings == Strings::blank) blank(i + 1, end - 1);
        }
        i = end;
    }
    return out;
}

std::vector<std::string> lines_of(const std::string& s) {
    std::vector<std::string> lines;
    std::istringstream in(s);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

long code_lines(const std::string& s) {
    long n = 0;
    for (const std::string& line : lines_of(without_comments(s, Strings::keep)))
        n += line.find_first_not_of(" \t\r") != std::string::npos;
    return n;
}

struct Function { std::string head; long line, lines; };   // head: all before its brace; line: where it begins

enum class Scope { outer, function, other };           // outer: namespace or class, whose functions count

// What the brace after `head` opens. A member initialiser `: a{1}` and a braced value open `other`.
Scope scope_of(std::string head) {
    head = std::regex_replace(head, std::regex("template\\s*<[^()]*?>(?=\\s*[A-Za-z_])"), " ");
    const bool call = head.find(')') != std::string::npos;
    static const std::regex container("(^|\\s)(namespace|struct|class|union|extern)(\\s|$)");
    const bool is_enum = std::regex_search(head, std::regex("\\benum\\b"));
    if (!call) return std::regex_search(head, container) && !is_enum ? Scope::outer : Scope::other;
    static const std::regex initialiser("\\)[^()]*[^:]:[^:].*[A-Za-z0-9_]\\s*$");
    return std::regex_search(head, initialiser) ? Scope::other : Scope::function;
}

// The outermost functions of a file, members included; lambdas and blocks inside them belong to them.
std::vector<Function> functions_of(const std::string& source) {
    std::string s = without_comments(source, Strings::blank);
    bool directive = false;                            // preprocessor lines have no braces that count
    for (size_t i = 0; i < s.size(); ++i) {
        if (i == 0 || s[i - 1] == '\n') directive = s[std::min(s.find_first_not_of(" \t", i), s.size() - 1)] == '#' ||
                                                    (directive && i > 1 && source[i - 2] == '\\');
        if (directive && s[i] != '\n') s[i] = ' ';
    }
    std::vector<Function> found;
    std::vector<Scope> scopes;
    long line = 1, parens = 0, begin = 1;
    int inside = 0;                                    // depth of functions and other blocks
    std::string head;
    for (const char c : s) {
        line += c == '\n';
        parens += (c == '(') - (c == ')');
        if (parens == 0 && c == '{') {
            Scope scope = inside ? Scope::other : scope_of(head);
            if (scope == Scope::function) found.push_back({head, begin, 0});
            inside += scope != Scope::outer;
            scopes.push_back(scope);
            const bool value = scope == Scope::other && !inside;
            if (!value && scope != Scope::other) head.clear();
        } else if (parens == 0 && c == '}') {
            const Scope scope = scopes.empty() ? Scope::outer : scopes.back();
            if (!scopes.empty()) scopes.pop_back();
            inside -= scope != Scope::outer;
            if (scope == Scope::function) found.back().lines = line - found.back().line + 1;
            if (scope != Scope::other) head.clear();
        } else if (!inside) {
            if (parens == 0 && (c == ';' || (c == ':' && ends(head, "public")) || (c == ':' && ends(head, "private"))))
                head.clear();
            else if (!head.empty() || !std::isspace(static_cast<unsigned char>(c))) {
                if (head.empty()) begin = line;
                head += c == '\n' ? ' ' : c;
            }
        }
    }
    return found;
}

// The parameters in a head: what the commas of its first parentheses separate, outside of inner brackets.
std::vector<std::string> parameters_of(const std::string& head) {
    std::vector<std::string> all;
    size_t i = head.find('(');
    if (i == std::string::npos) return all;
    std::string one;
    for (int depth = 1; ++i < head.size();) {
        const char c = head[i];
        depth += (c == '(' || c == '<' || c == '{') - (c == ')' || c == '>' || c == '}');
        if (depth == 0 || (c == ',' && depth == 1)) {
            if (one.find_first_not_of(' ') != std::string::npos) all.push_back(one);
            one.clear();
            if (depth == 0) break;
        } else one += c;
    }
    return all;
}

// Kernels take raw pointers and sizes: their launchers are what has operands. The context is none.
long operands(const std::string& head) {
    static const std::regex kernel("__(global|device)__"), context("\\b(Device|Context|Where)\\b");
    if (std::regex_search(head, kernel)) return 0;
    long n = 0;
    for (const std::string& p : parameters_of(head)) n += !std::regex_search(p, context);
    return n;
}

// Bytes that continue a UTF-8 character take no column.
long columns(const std::string& line) {
    return long(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// ---- the tree

bool is_source(const std::string& file) { return ends(file, ".h") || ends(file, ".cpp") || ends(file, ".cu"); }

struct Tree {
    std::map<std::string, std::string> text;           // path from the root: contents
    Tree() {
        for (auto it = fs::recursive_directory_iterator("."); it != fs::recursive_directory_iterator(); ++it) {
            const std::string path = fs::relative(it->path(), ".").generic_string();
            const std::string name = it->path().filename().string();
            static const Names outside = {"test", "dev", "build", "third_party", "out"};
            if (it->is_directory()) {
                if (name[0] == '.' || (it.depth() == 0 && outside.count(name))) it.disable_recursion_pending();
            } else if (is_source(path) || path == "Makefile" || path == "CMakeLists.txt") {
                std::ifstream in(it->path());
                std::ostringstream all;
                all << in.rdbuf();
                text[path] = all.str();
            }
        }
    }
    Names includes(const std::string& file) const {
        Names names;
        for (const std::string& line : lines_of(text.at(file)))
            if (starts(line, "#include \"")) names.insert(line.substr(10, line.rfind('"') - 10));
        return names;
    }
    // All files of ours that `file` needs: what it includes, and the bodies of those headers. Tests do not count.
    Names closure(const std::string& file) const {
        Names seen;
        std::vector<std::string> todo = {file};
        while (!todo.empty()) {
            const std::string f = todo.back();
            todo.pop_back();
            if (!text.count(f) || !seen.insert(f).second) continue;
            for (const std::string& i : includes(f)) todo.push_back(i);
            if (ends(f, ".h")) todo.push_back(stem(f) + ".cpp");
        }
        seen.erase(file);
        return seen;
    }
};

const Tree& tree() {
    static const Tree t;
    return t;
}

// Each complaint is a failure at the line that it is about.
struct Complaints {
    void add(const std::string& file, long line, const std::string& what) {
        ADD_FAIL_CHECK_AT(file.c_str(), int(line), what);
    }
};

// Every line of every source whose text (without comments, with empty strings) matches `pattern`.
void forbid(Complaints& complaints, const char* pattern, const std::string& why, bool (*allowed)(const std::string&)) {
    const std::regex re(pattern);
    for (const auto& [file, text] : tree().text) {
        if (!is_source(file) || allowed(file)) continue;
        const std::vector<std::string> lines = lines_of(without_comments(text, Strings::blank));
        for (size_t i = 0; i < lines.size(); ++i)
            if (std::regex_search(lines[i], re)) complaints.add(file, long(i) + 1, why);
    }
}

// What line 2 of a header promises, and whether that is the truth; the complaint, or nothing.
std::string check_copy_line(const Tree& t, const std::string& file) {
    const std::vector<std::string> lines = lines_of(t.text.at(file));
    const std::string says = "// Copy with: ";
    if (lines.size() < 2 || !starts(lines[1], says)) return "line 2 must be `" + says + "...`";
    const std::string plain = std::regex_replace(lines[1].substr(says.size()), std::regex("\\([^)]*\\)"), "");
    const bool expand = std::regex_search(plain, std::regex("what (it|they) names?"));
    Names named, folders;
    static const std::regex word("[A-Za-z0-9_./]+");
    for (auto it = std::sregex_iterator(plain.begin(), plain.end(), word); it != std::sregex_iterator(); ++it) {
        const std::string w = it->str();
        if (ends(w, "/")) folders.insert(w);
        else if (ends(w, ".h") || ends(w, ".cpp")) {
            if (!t.text.count(w)) return "line 2 names " + w + ", which does not exist";
            named.insert(w);
        }
    }
    const Names truth = t.closure(file);
    const bool part = truth.empty() && named.size() == 1 && t.includes(*named.begin()).count(file);
    if (part) return "";                              // it names its front header
    Names stated = named;
    if (named.count(front_of(file))) stated.merge(t.closure(front_of(file)));   // a part comes with its front header
    if (expand) {
        for (const std::string& n : named) stated.merge(t.closure(n));
    }
    for (const auto& [f, text] : t.text)
        for (const std::string& folder : folders)
            if (starts(f, folder) && truth.count(f)) stated.insert(f), stated.merge(t.closure(f));
    stated.erase(file);
    for (const std::string& f : truth)
        if (!stated.count(f)) return "line 2 does not name " + f + ", which it needs";
    for (const std::string& f : stated)
        if (!truth.count(f)) return "line 2 names " + f + ", which it does not need";
    return "";
}

int layer_of(const std::string& file) {
    if (starts(file, "device/")) return 0;
    if (starts(file, "kernels/")) return 20;
    for (const auto* table : {&layers, &host_layers})
        if (const auto row = table->find(front_of(file)); row != table->end()) return row->second;
    return -1;
}

}  // namespace

TEST_SUITE("style") {

TEST_CASE("the lexer blanks comments and literals, and leaves every line in its place") {
    CHECK(without_comments("a // b\nc", Strings::blank) == "a     \nc");
    CHECK(without_comments("a /* { \n } */ b", Strings::blank) == "a      \n      b");
    CHECK(without_comments("x = \"{ // \\\" \" + '{';", Strings::blank) == "x = \"        \" + ' ';");
    CHECK(without_comments("n = 1'000 + 2'000;", Strings::blank) == "n = 1'000 + 2'000;");
    CHECK(without_comments("r = R\"x({)\" \n)x\"; y", Strings::blank) == "r = R" + std::string("       \n  \"; y"));
    CHECK(without_comments("\"//\"", Strings::keep) == "\"//\"");
    CHECK(code_lines("a\n\n// b\n  /* c\n d */\ne // f\n") == 2);
}

TEST_CASE("the lexer finds functions and their lengths") {
    const std::string source =
        "#define F {\n"
        "namespace a {\n"
        "enum class E { one, two };\n"
        "template <class T, class U = S<T>>\n"
        "T one(T x, U y = {}) {\n"
        "    auto f = [&] { return 1; };\n"
        "    if (x) { f(); }\n"
        "}\n"
        "struct B : C<int> {\n"
        "    int v{3}, w = 4;\n"
        "    explicit B(int x)\n"
        "        : v{x}, w(2) {}\n"
        "    bool operator==(const B&) const { return true; }\n"
        "private:\n"
        "    std::string s = \"}\";\n"
        "};\n"
        "const std::map<int, int> table = {\n"
        "    {1, 2},\n"
        "};\n"
        "int (*pointer)(int) = nullptr;\n"
        "void two();\n"
        "}  // namespace a\n"
        "int main() {\n"
        "}\n";
    const std::vector<Function> f = functions_of(source);
    REQUIRE(f.size() == 4);
    CHECK(f[0].line == 4);
    CHECK(f[0].lines == 5);
    CHECK(f[1].line == 11);
    CHECK(f[1].lines == 2);
    CHECK(f[2].lines == 1);
    CHECK(f[3].line == 23);
    CHECK(f[3].lines == 2);
    CHECK(parameters_of("void f(Device& d, View<A, B> x, int y = g(1, 2))").size() == 3);
    CHECK(parameters_of("int main()").empty());
}

TEST_CASE("files, lines and functions keep to their budgets") {
    Complaints complaints;
    CHECK(tree().text.size() > 10);
    for (const auto& [file, text] : tree().text) {
        if (!is_source(file)) continue;
        const std::vector<std::string> lines = lines_of(text);
        const size_t lines_at_most = file == "kernels/attention/mma.h" ? 600 : 400;   // tensor cores: fragments, both passes
        if (lines.size() > lines_at_most) complaints.add(file, long(lines.size()), "more than " + std::to_string(lines_at_most) + " lines in a file");
        for (size_t i = 0; i < lines.size(); ++i)
            if (columns(lines[i]) > 120)
                complaints.add(file, long(i) + 1, "wider than 120 columns");
        const long most = starts(file, "kernels/") ? 80 : 60;
        for (const Function& f : functions_of(text)) {
            if (f.lines > most)
                complaints.add(file, f.line, "a function of " + std::to_string(f.lines) + " lines, more than it may");
            if (const long n = operands(f.head); n > 6)
                complaints.add(file, f.line, std::to_string(n) + " operands of a function, at most 6");
        }
    }
}

TEST_CASE("the core has at most 5500 lines of code, all of it at most 13000") {
    long core = 0, whole = 0;
    for (const auto& [file, text] : tree().text) {
        if (!is_source(file)) continue;
        whole += code_lines(text);
        if (!not_core.count(file) && !starts(file, "comm/") && !host_layers.count(front_of(file))) core += code_lines(text);
    }
    CHECK(core <= 5500);
    CHECK(whole <= 13000);
    CHECK(core > 0);
}

TEST_CASE("the map in the README names files that exist, with as many lines as it says") {
    std::ifstream in("README.md");
    Complaints complaints;
    long rows = 0;
    static const std::regex row("\\| `([A-Za-z0-9_./]+)` \\| .* \\| ([0-9]+) \\|");   // of one file
    std::smatch m;
    for (std::string line; std::getline(in, line);) {
        if (!std::regex_match(line, m, row) || ends(m[1], "/")) continue;
        ++rows;
        const std::string file = m[1];
        const auto text = tree().text.find(file);
        const long said = std::stol(m[2]), found = text == tree().text.end() ? 0 : long(lines_of(text->second).size());
        if (std::labs(said - found) * 20 > found)
            complaints.add("README.md", 1, file + ": says " + std::to_string(said) + " lines, has " + std::to_string(found));
    }
    CHECK(rows >= 5);
}

TEST_CASE("line 1 of a header says what it is, and line 2 what must be copied with it") {
    Complaints complaints;
    for (const auto& [file, text] : tree().text) {
        if (!ends(file, ".h")) continue;
        const std::string name = fs::path(file).filename().string();
        if (!starts(text, "// " + name + " - ")) complaints.add(file, 1, "must begin `// " + name + " - `");
        if (const std::string wrong = check_copy_line(tree(), file); !wrong.empty()) complaints.add(file, 2, wrong);
    }
}

TEST_CASE("includes go down only, and host-only files see no kernel") {
    Complaints complaints;
    for (const auto& [file, text] : tree().text) {
        if (!is_source(file)) continue;
        const std::string front = front_of(file);
        const int own = layer_of(front);
        if (own < 0) complaints.add(file, 1, "has no layer: give it a row in test/style_test.cpp");
        for (const std::string& target : tree().includes(file)) {
            if (front_of(target) == front || target == front) continue;
            if (starts(target, "device/") || (file == "device.h" && target == "test/simt.h")) continue;
            if (starts(file, "kernels/") && starts(target, "kernels/")) continue;   // parts, and shared reductions
            if (!tree().text.count(target)) complaints.add(file, 1, "includes " + target + ", which does not exist");
            else if (layer_of(target) >= own) complaints.add(file, 1, "includes " + target + ", which is not below it");
        }
        if (!host_layers.count(front)) continue;
        for (const std::string& f : tree().closure(file))
            if (!host_may_use.count(f) && !host_layers.count(front_of(f)))
                complaints.add(file, 1, "is host-only and must not need " + f);
    }
}

TEST_CASE("conditions on the platform stand in the device layer and at the doors of vendor libraries") {
    Complaints complaints;
    const auto door = [](const std::string& f) {
        for (const char* place : {"device.h", "device/", "kernels/matmul", "kernels/attention", "comm", "doctor.cpp"})
            if (starts(f, place)) return true;
        return false;
    };
    forbid(complaints, "^\\s*#\\s*(if(?!ndef BT_NO_MAIN)|elif)", "#if that is not at a door: see this test", door);
    forbid(complaints, "<<<", "only launch() starts a kernel", [](const std::string& f) { return f == "device.h"; });
}

TEST_CASE("headers and their bodies do not print, exit, read the environment, or add floats atomically") {
    Complaints complaints;
    const auto program = [](const std::string& f) { return f == "train_gpt.cu" || front_of(f) == "commands.h"; };
    forbid(complaints, "\\b(printf|puts|putchar|exit|_Exit)\\s*\\(|\\babort\\s*\\(\\)|std::(cout|cerr|clog)|\\b(stdout|stderr)\\b",
           "only train_gpt.cu and commands.h print and exit", program);
    forbid(complaints, "\\b(getenv|setenv)\\b", "only train_gpt.cu and doctor.cpp look at the environment",
           [](const std::string& f) {   // cblas.h: OpenBLAS is told what the CPU is in no other way
               return f == "train_gpt.cu" || f == "doctor.cpp" || f == "kernels/matmul/cblas.h";
           });
    forbid(complaints, "\\batomicAdd\\b|atomic<(float|double)>|atomic_ref<(float|double)>|omp atomic",
           "sums have a fixed order: no atomics on floats", [](const std::string&) { return false; });
}

// The numbers of the list of known faults that this program claims to avoid.
TEST_CASE("every known fault that is claimed to be avoided has a test by its number") {
    Names tested;
    static const std::regex test("TEST_CASE(?:_TEMPLATE)?\\(\"([A-Z][0-9]+): ");
    for (const auto& entry : fs::directory_iterator("test")) {
        if (!entry.is_regular_file()) continue;
        std::ifstream in(entry.path());
        const std::string text{std::istreambuf_iterator<char>(in), {}};
        for (auto it = std::sregex_iterator(text.begin(), text.end(), test); it != std::sregex_iterator(); ++it)
            tested.insert((*it)[1]);
    }
    for (const char* fault : {"A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A10", "A11", "B1", "B2", "B3", "B4",
                              "B5", "B6", "B8", "B9", "B10", "B15", "B16", "B17", "C1", "C2", "C3", "C4", "C5", "C6",
                              "C7", "C8", "C9", "C11", "C12", "C13", "C14", "C15", "C17", "C18", "C19", "D1", "E1", "E2",
                              "E3", "E4", "E5", "E6", "E9", "E10", "E11", "E12", "F1", "F3", "F5", "F7", "J3"}) {
        CAPTURE(fault);
        CHECK(tested.count(fault) == 1);
    }
}

TEST_CASE("NaN and infinity survive: no flag or pragma assumes them away") {
    Complaints complaints;
    static const std::regex bad("-Ofast|fast-math|finite-math");
    for (const auto& [file, text] : tree().text) {
        const std::vector<std::string> lines = lines_of(text);
        for (size_t i = 0; i < lines.size(); ++i) {
            const std::string code = lines[i].substr(0, lines[i].find(is_source(file) ? "//" : "#"));
            if (std::regex_search(code, bad)) complaints.add(file, long(i) + 1, "assumes that there is no NaN");
        }
    }
}

}
