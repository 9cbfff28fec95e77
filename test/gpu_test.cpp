// gpu_test.cpp - what `make gpu-check` writes, by the CPU build in small and by programs that fail, and the README's table.
#include "host.h"
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

using namespace baretrain::test;
using nlohmann::json;

namespace {

// Of a command: its exit code, and what it printed on both outputs.
struct Said { int code; std::string text; };
Said say(const TempFolder& dir, const std::string& command) {
    const int status = std::system((command + " > " + dir / "said" + " 2>&1 < /dev/null").c_str());
    return {status >> 8, get(dir / "said")};
}
// A machine whose nvidia-smi answers so; nothing: there is no GPU.
std::string with_gpu(const TempFolder& dir, const std::map<std::string, std::string>& answers) {
    std::string script = "#!/bin/bash\ncase ${1#--query-gpu=} in\n";
    for (const auto& [name, answer] : answers) script += name + ") echo '" + answer + "' ;;\n";
    fs::permissions(dir.put("bin/nvidia-smi", script + "*) exit 9 ;;\nesac\n"), fs::perms::owner_all);
    return "PATH=" + (dir / "bin") + ":$PATH ";
}
const std::map<std::string, std::string> h100 = {{"name", "NVIDIA H100 80GB HBM3"}, {"compute_cap", "9.0"},
                                                 {"driver_version", "550.54.15"}, {"memory.free", "80000"}};
std::string table(const TempFolder& dir) { return say(dir, "gpu/table.sh " + dir.path.string()).text; }

// What every file has, whatever went wrong; its lines are what gpu/table.sh reads.
void check_schema(const json& j) {
    CHECK(j.at("schema") == 1);
    for (const char* key : {"note", "card", "driver", "compute", "clocks", "power", "cuda", "date", "commit"}) CHECK(j.at(key).is_string());
    CHECK(std::regex_match(j.at("date").get<std::string>(), std::regex("\\d{4}-\\d\\d-\\d\\d")));
    for (const json& s : j.at("stages")) {
        CHECK(std::set<std::string>{"passed", "failed", "skipped"}.count(s.at("state")) == 1);
        CHECK(s.at("seconds").is_number());
        if (s.at("state") != "passed") CHECK(s.at("says") != "");
    }
    CHECK(j.at("targets").size() == 5);
    for (const json& t : j.at("targets")) {
        CHECK(t.at("wanted").is_number());
        CHECK(t.at("met").is_null() == t.at("found").is_null());
        if (!t.at("met").is_null()) CHECK(t.at("met") == (t.at("found").get<double>() >= t.at("wanted").get<double>()));
    }
    for (const json& r : j.at("rows")) {
        CHECK(r.at("group").is_string());
        CHECK(r.at("name").is_string());
    }
}

}  // namespace

TEST_SUITE("gpu") {

TEST_CASE("the CPU build measures every kernel, product and step in small, into a file that says it is no result") {
    const TempFolder dir;
    const std::string file = dir / "cpu-none.json";
    const Said said = say(dir, "PROGRAM=" BT_PROGRAM " BENCH=" BT_GPU_CHECK " dev/gpu_check/check.sh --cpu --to " + file);
    CAPTURE(said.text);
    CHECK(said.code == 0);
    const json j = json::parse(get(file));
    check_schema(j);
    CHECK(j.at("note") == "cpu, not a result");
    std::map<std::string, int> groups;
    for (const json& r : j.at("rows")) {
        CAPTURE(r.dump());
        CHECK(!r.contains("failed"));
        const std::string group = r.at("group");
        ++groups[group];
        if (group == "program") CHECK(r.at("worst") == 0);
        else if (group == "step") CHECK(r.at("tokens_s") > 0);
        else CHECK(r.at("ms") > 0);
        if (group == "memory") CHECK(r.at("gb_s") > 0);
        if (r.at("name") == "copy" && group == "rate")   // each byte is read and written
            CHECK(r.at("gb_s").get<double>() * r.at("ms").get<double>() * 1e6 == doctest::Approx(2 << 16).epsilon(0.01));
        if (group == "product" || group == "attention") CHECK(r.at("tflop_s") > 0);
    }
    CHECK(groups["rate"] == 2);
    CHECK(groups["memory"] >= 23);
    CHECK(groups["product"] == 3 * 15 + 12);
    CHECK(groups["attention"] == 12);
    CHECK(groups["step"] == 3);
    CHECK(groups["program"] == 2);
    const std::string t = table(dir);
    CHECK(contains(t, "cpu-none (cpu, not a result)"));
    CHECK(contains(t, " GB/s\n"));
    CHECK(contains(t, "skipped: this is the CPU build"));
}

TEST_CASE("without a GPU there is one line, with what can be done instead") {
    const TempFolder dir;
    const Said said = say(dir, with_gpu(dir, {}) + "dev/gpu_check/check.sh");
    CHECK(said.code == 1);
    CHECK(count(said.text, "\n") == 1);
    CHECK(contains(said.text, "no NVIDIA GPU found"));
}

TEST_CASE("a stage that fails says why in one line, and the others go on") {
    const TempFolder dir;
    const std::string file = dir / "h100.json";
    const Said said = say(dir, with_gpu(dir, h100) + "PROGRAM=" BT_PROGRAM " KERNEL_SUITES='none such' LOOKS= "
                                   "dev/gpu_check/check.sh --to " + file + " kernels rates steps");
    CAPTURE(said.text);
    CHECK(said.code == 1);
    CHECK(count(said.text, "\n") == 4);                // one of each stage, and the file
    const json j = json::parse(get(file));
    check_schema(j);
    CHECK(j.at("card") == "NVIDIA H100 80GB HBM3");
    REQUIRE(j.at("stages").size() == 3);
    for (const json& s : j.at("stages")) CHECK(s.at("state") == "failed");
    CHECK(contains(j.at("stages")[0].at("says"), "0 of 2 suites"));
    CHECK(contains(table(dir), "failed: 0 of 2 suites"));
}

TEST_CASE("when the time is over, what is left is skipped and named") {
    const TempFolder dir;
    const std::string file = dir / "late.json";
    CHECK(say(dir, with_gpu(dir, h100) + "dev/gpu_check/check.sh --minutes 0 --to " + file).code == 0);
    const json j = json::parse(get(file));
    check_schema(j);
    CHECK(j.at("stages").size() == 12);
    for (const json& s : j.at("stages")) CHECK(s.at("says") == "0 minutes are over");
    CHECK(say(dir, "dev/gpu_check/check.sh nothing").code == 2);
}

TEST_CASE("the table has a column a file, and says never run for what no file covers") {
    const TempFolder dir;
    const std::string none = table(dir);
    CHECK(count(none, "never run\n") == count(none, "\n") - 1);
    CHECK(contains(get("README.md"), "gpu/table.sh\n```\n```text\n" + say(dir, "gpu/table.sh gpu").text));
    dir.put("a.json", "\"note\": \"\",\n{\"group\": \"rate\", \"name\": \"copy\", \"gb_s\": 2811.4, \"share\": 1},\n"
                      "{\"name\": \"kernels\", \"state\": \"passed\", \"seconds\": 9, \"says\": \"13 of 13 suites\"}\n"
                      "{\"name\": \"step of 1.5B in bf16\", \"wanted\": 0.60, \"found\": 0.612, \"met\": true}\n"
                      "{\"name\": \"step of 1.5B, FP8 over bf16\", \"wanted\": 1.25, \"found\": null, \"met\": false}\n"
                      "{\"group\": \"step\", \"name\": \"gpt2-124m bf16\", \"failed\": \"needs 9 MB, 8 MB are free\"}\n");
    dir.put("b.json", "{\"name\": \"kernels\", \"state\": \"failed\", \"seconds\": 9, \"says\": \"12 of 13 suites; failed: fp8\"}\n");
    const std::string t = table(dir);
    const auto line = [&](const std::string& label) {
        const size_t at = t.find("\n" + label);
        return at == t.npos ? "" : t.substr(at + 1, t.find('\n', at + 1) - at - 1);
    };
    CHECK(std::regex_match(line("copy"), std::regex("copy +2811 GB/s +never run")));
    CHECK(std::regex_match(line("suites of kernels"), std::regex("suites of kernels +13 of 13 suites +failed: 12 of 13 suites; failed: fp8")));
    CHECK(contains(line("Qwen2.5-1.5B, bf16 (60"), " 61.20 % "));
    CHECK(contains(line("GPT-2 124M, bf16"), "failed: needs 9 MB, 8 MB are free"));
    CHECK(contains(line("Qwen2.5-1.5B, FP8 over"), "nothing found"));
    CHECK(contains(line("memcheck"), "never run"));
}

TEST_CASE("the notebook is one: format 4, cells of text and of code that has not run, and it calls what is there") {
    const json j = json::parse(get("lessons/gpu.ipynb"));
    CHECK(j.at("nbformat") == 4);
    CHECK(j.at("nbformat_minor").is_number_integer());
    CHECK(j.at("metadata").at("kernelspec").at("name") == "python3");
    std::string code;
    for (const json& cell : j.at("cells")) {
        const bool runs = cell.at("cell_type") == "code";
        CHECK((runs || cell.at("cell_type") == "markdown"));
        CHECK(cell.at("metadata").is_object());
        CHECK(cell.contains("outputs") == runs);
        if (runs) CHECK(cell.at("outputs").empty());
        if (runs) CHECK(cell.at("execution_count").is_null());
        CHECK(!cell.contains("id"));                   // those came with 4.5
        for (const json& line : cell.at("source")) code += runs ? line.get<std::string>() : "";
    }
    CHECK(j.at("nbformat_minor") < 5);
    CHECK(code.starts_with("REPOSITORY = "));
    for (const char* target : {"deps", "gpu-check"}) {
        CHECK(contains(code, std::string("!make ") + target));
        CHECK(contains(get("Makefile"), std::string("\n") + target + ":"));
    }
    CHECK(contains(code, "!gpu/table.sh\n"));
}

}
