// recipe.h - a TOML file as a flat list of values, each with its line; and a string as TOML writes it.
// Copy with: config/recipe.cpp, config.h, config/keys.h and what they name, toml++
#pragma once
#include <string>
#include <vector>

namespace baretrain {

struct TomlValue {
    std::string name, text, shown;                     // the value as a flag has it, and as it stands in the file
    long line;
    bool is_string, is_number;
};

// The keys of the file in the order of their names. Throws Usage with file and line where it is not TOML.
std::vector<TomlValue> read_toml(const std::string& path);

// name = "value", quoted and escaped.
std::string toml_string(const std::string& name, const std::string& value);

}  // namespace baretrain
