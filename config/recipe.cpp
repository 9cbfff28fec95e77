// recipe.cpp - body of recipe.h: the door to toml++.
// Copy with: config.h, config/recipe.h and what they name
#include "config/recipe.h"
#include "config/keys.h"
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
// The library takes "[.]" for impossible and would abort the program: it is an error in a file like any other.
constexpr void expect_toml(bool ok) { if (!ok) throw std::logic_error("not TOML"); }
#define TOML_ASSERT(expr) expect_toml(static_cast<bool>(expr))
#include <toml++/toml.h>

namespace baretrain {

namespace {

using namespace keys;

// A TOML value as the text that a flag would have, and as it stands in the file.
std::pair<std::string, std::string> toml_texts(const toml::node& node) {
    if (const auto v = node.value_exact<std::string>()) return {*v, '"' + *v + '"'};
    std::string text = "a table, array or date";
    if (const auto v = node.value_exact<bool>()) text = value_text(*v);
    else if (const auto v = node.value_exact<int64_t>()) text = value_text(*v);
    else if (const auto v = node.value_exact<double>()) text = value_text(*v);
    return {text, text};
}

// Is it a comment, or name = "text" or 'text' with nothing but a comment behind it?
bool is_plain_line(std::string_view line) {
    const auto skip = [&](const char* characters) {
        line.remove_prefix(std::min(line.find_first_not_of(characters), line.size()));
    };
    skip(" \t");
    if (line.starts_with('#')) return true;
    skip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    skip(" \t");
    if (!line.starts_with('=')) return false;
    line.remove_prefix(1);
    skip(" \t");
    if (line.empty() || (line[0] != '"' && line[0] != '\'')) return false;
    size_t end = 1;
    while (end < line.size() && line[end] != line[0]) end += line[0] == '"' && line[end] == '\\' ? 2 : 1;
    line.remove_prefix(std::min(end + 1, line.size()));
    skip(" \t\r");
    return line.empty() || line[0] == '#';
}

// toml++ 3.3 asks of a character outside of strings and comments whether it is white space, and its answer for some
// beyond ASCII is undefined. So they may stand in plain lines only: a recipe needs no others.
void require_plain_lines(const std::string& path, std::string_view text) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    for (long number = 1; !text.empty(); ++number) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        const bool ascii = std::all_of(line.begin(), line.end(), [](char c) { return c >= 0; });
        const bool triple = line.find("\"\"\"") != line.npos || line.find("'''") != line.npos;
        if (!ascii && (triple || !is_plain_line(line)))
            throw Usage(path, ":", number,
                        ": a character beyond ASCII stands outside of name = \"text\" and # comments");
    }
}

}  // namespace

std::vector<TomlValue> read_toml(const std::string& path) {
    if (!std::filesystem::is_regular_file(path)) throw Usage("--config ", path, ": no such file");
    std::ifstream in(path, std::ios::binary);
    const std::string file(std::istreambuf_iterator<char>(in), {});
    require_plain_lines(path, file);
    std::vector<TomlValue> values;
    try {
        for (const auto& [key, node] : toml::parse(file, path)) {
            const auto [text, shown] = toml_texts(node);
            const long line = long(key.source().begin.line);
            values.push_back({std::string(key.str()), text, shown, line, node.is_string(), node.is_number()});
        }
    } catch (const toml::parse_error& e) {
        throw Usage(path, ":", e.source().begin.line, ": ", e.description());
    } catch (const std::logic_error&) {
        throw Usage(path, ": not TOML: a table, [name], begins with something that is no name");
    }
    return values;
}

std::string toml_string(const std::string& name, const std::string& value) {
    std::ostringstream quoted;
    quoted << toml::toml_formatter(toml::table{{name, value}}, toml::format_flags::none);
    return quoted.str();
}

}  // namespace baretrain
