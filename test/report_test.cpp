#include "report.h"
#include "host.h"
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

using namespace baretrain;
using namespace baretrain::test;

namespace {

using nlohmann::json;

struct Folder : TempFolder {
    std::string run() const { return *this / "run"; }
    std::string read(const std::string& name) const { return get(path / "run" / name); }
    std::vector<json> lines(const std::string& name) const {
        std::vector<json> parsed;
        std::ifstream in(path / "run" / name);
        for (std::string line; std::getline(in, line);) parsed.push_back(json::parse(line));
        return parsed;
    }
};

StepLog step_log(long step, double loss) {
    return {.step = step, .loss = loss, .grad_norm = 0.5, .lr = 3e-4, .tokens = 64 * step, .tokens_per_s = 31234,
            .mfu = 0.412, .val_loss = {}, .ms = {}, .bytes = {}, .skipped = {}};
}

// The data of the curves that show something, in the order of the page.
std::vector<std::string> curves(const std::string& page) {
    std::vector<std::string> found;
    const std::string mark = "<path class=\"curve ";
    for (size_t at = page.find(mark); at != std::string::npos; at = page.find(mark, at + 1)) {
        const size_t begin = page.find(" d=\"", at) + 4;
        found.push_back(page.substr(begin, page.find('"', begin) - begin));
    }
    return found;
}

size_t points_of(const std::string& curve) { return count(curve, "M") + count(curve, "L"); }

}  // namespace

TEST_SUITE("report") {

TEST_CASE("the console line is aligned and says what it knows") {
    StepLog s = step_log(7, 2.12341);
    s.mfu = -1;
    CHECK(log_line(s, 1000) == "step    7/1000 | loss  2.1234 | norm  0.50 | lr 3.0e-04 |  31.2k tok/s");
    s.step = 1000, s.loss = 11.5, s.grad_norm = 12.5, s.mfu = 0.412, s.val_loss = 2.3, s.tokens_per_s = 999;
    CHECK(log_line(s, 1000) ==
          "step 1000/1000 | loss 11.5000 | norm 12.50 | lr 3.0e-04 |    999 tok/s | mfu 41.2 % | val 2.3000");
    s.loss = NAN, s.grad_norm = INFINITY, s.val_loss = NAN, s.skipped = "not finite", s.tokens_per_s = 1.25e6;
    CHECK(log_line(s, 1000) == "step 1000/1000 | loss     nan | norm   inf | lr 3.0e-04 |   1.2M tok/s | mfu 41.2 % | "
                               "val nan | skipped: not finite");
    s = step_log(7, 0), s.grad_norm = 0, s.mfu = -1, s.skipped = "nothing to train";
    CHECK(log_line(s, 9) ==
          "step 7/9 | loss  0.0000 | norm  0.00 | lr 3.0e-04 |  31.2k tok/s | skipped: nothing to train");
}

TEST_CASE("B17: the log says that its norm is of the gradient before clipping") {
    CHECK(log_header().find("norm: of the gradient, before clipping") != std::string::npos);
    CHECK(log_header().find('\n') == std::string::npos);
}

TEST_CASE("a long wait is one line with the time that is left") {
    CHECK(progress_line("evaluating", 37, 100, 7) == "evaluating  37 %  12 s left");
    CHECK(progress_line("evaluating", 0, 100, 7) == "evaluating  0 %");
    CHECK(progress_line("evaluating", 100, 100, 7) == "evaluating  100 %");
    CHECK(progress_line("saving", 1, 11, 30) == "saving  9 %  5 min left");
    CHECK(progress_line("saving", 1, 11, 1000) == "saving  9 %  2 h 46 min left");
    CHECK(progress_line("saving", 0, 0, 0) == "saving  100 %");
}

TEST_CASE("the folder of a run is named by its time") {
    const std::string name = time_name();
    REQUIRE(name.size() == 17);
    for (size_t i = 0; i < name.size(); ++i)
        CHECK((i == 4 || i == 7 || i == 10 ? name[i] == '-' : name[i] >= '0' && name[i] <= '9'));
}

TEST_CASE("a log line has the keys of the contract in order, with numbers that read back exactly") {
    const Folder f;
    RunFolder run(f.run());
    StepLog s = step_log(1, 1.0 / 3);
    s.lr = 0.1, s.grad_norm = 1, s.val_loss = 2.5;
    s.ms = {{"forward", 1.5}, {"a \"b\"", 0.25}}, s.bytes = {{"gather", 1e9}};
    run.log(s);
    CHECK(f.read("log.jsonl") ==
          "{\"step\":1,\"loss\":0.3333333333333333,\"grad_norm\":1.0,\"lr\":0.1,\"tokens\":64,\"tokens_per_s\":31234.0,"
          "\"mfu\":0.412,\"val_loss\":2.5,"
          "\"ms\":{\"a \\\"b\\\"\":0.25,\"forward\":1.5},\"bytes\":{\"gather\":1000000000.0}}\n");
    CHECK(f.lines("log.jsonl")[0]["loss"].get<double>() == 1.0 / 3);
    s = step_log(2, 5e-324), s.mfu = -1;
    run.log(s);                                        // on disk at once, while the folder is open
    REQUIRE(f.lines("log.jsonl").size() == 2);
    const json second = f.lines("log.jsonl")[1];
    CHECK(second["loss"].get<double>() == 5e-324);
    CHECK(second["mfu"].is_null());
    for (const char* absent : {"val_loss", "ms", "bytes", "nonfinite", "skipped"}) CHECK(!second.contains(absent));
    CHECK_THROWS_AS(run.log(step_log(2, 1)), Error);
    CHECK(f.lines("log.jsonl").size() == 2);
}

TEST_CASE("any number of a log reads back as the same bits") {
    const Folder f;
    RunFolder run(f.run());
    std::mt19937_64 bits(1);
    StepLog s = step_log(1, 1);
    for (int i = 0; i < 2000; ++i)
        if (const double v = std::bit_cast<double>(bits()); std::isfinite(v)) s.ms[std::to_string(i)] = v;
    run.log(s);
    CHECK(f.lines("log.jsonl")[0].at("ms").get<std::map<std::string, double>>() == s.ms);
}

TEST_CASE("NaN and infinity stay visible in a log that is still JSON") {
    const Folder f;
    RunFolder run(f.run());
    StepLog s = step_log(1, NAN);
    s.grad_norm = INFINITY, s.val_loss = -INFINITY, s.skipped = "not finite", s.ms = {{"x", NAN}};
    run.log(s);
    const json line = f.lines("log.jsonl")[0];
    CHECK(line["loss"].is_null());
    CHECK(line["grad_norm"].is_null());
    CHECK(line["lr"] == 3e-4);
    CHECK(line["ms"]["x"].is_null());
    CHECK(line["skipped"] == "not finite");
    CHECK(line["nonfinite"] == json{{"loss", "nan"}, {"grad_norm", "inf"}, {"val_loss", "-inf"}});
}

TEST_CASE("resuming cuts both logs to the checkpoint, a torn line too, and forgets the stop") {
    const Folder f;
    std::string ten;
    {
        RunFolder run(f.run());
        for (long step = 1; step <= 10; ++step) run.log(step_log(step, 1.0 / double(step)));
        ten = f.read("log.jsonl");
        run.sample(4, "sample of four");
        run.sample(8, "sample of eight");
    }
    std::ofstream(f / "run/log.jsonl", std::ios::app) << "{\"step\":11,\"loss\":0.";
    std::ofstream(f / "run/stop");
    {
        RunFolder run(f.run(), 10);
        CHECK(f.read("log.jsonl") == ten);
        CHECK(!run.stop_requested());
    }
    {
        RunFolder run(f.run(), 7);
        CHECK(f.lines("log.jsonl").size() == 7);
        CHECK(f.lines("samples.jsonl").size() == 1);
        CHECK_THROWS_AS(run.log(step_log(6, 1)), Error);
        for (long step = 8; step <= 10; ++step) run.log(step_log(step, 1.0 / double(step)));
        CHECK(f.read("log.jsonl") == ten);
        run.write_html();                              // with the steps and samples from before
        CHECK(points_of(curves(f.read("run.html"))[0]) == 10);
        CHECK(count(f.read("run.html"), "sample of four") == 1);
        CHECK(count(f.read("run.html"), "sample of eight") == 0);
    }
    { const RunFolder again(f.run(), 0); }
    CHECK(f.read("log.jsonl").empty());
    fs::remove(f.path / "run/log.jsonl");
    RunFolder without(f.run(), 5);                     // a log that is gone is no reason to stop
    without.log(step_log(6, 1));
    CHECK(f.lines("log.jsonl").size() == 1);
}

TEST_CASE("a step that comes again with its validation loss replaces its line") {
    const Folder f;
    RunFolder run(f.run());
    run.log(step_log(1, 3)), run.log(step_log(2, 2));
    StepLog again = step_log(2, 2);
    again.val_loss = 2.5;
    run.log(again);
    run.log(step_log(3, 1));
    const std::vector<json> lines = f.lines("log.jsonl");
    REQUIRE(lines.size() == 3);
    CHECK(lines[1].at("val_loss") == 2.5);
    CHECK(!lines[2].contains("val_loss"));
}

TEST_CASE("a log that is not ours is left alone") {
    const Folder f;
    fs::create_directories(f.path / "run");
    const std::string text = "{\"step\":1}\nhello\n{\"step\":2}\n";
    std::ofstream(f / "run/log.jsonl") << text;
    CHECK(error_of([&] { RunFolder(f.run(), 5); }) ==
          f.run() + "/log.jsonl: line 2 is not a line of a run's log; move the file away to resume without it");
    CHECK(f.read("log.jsonl") == text);
}

TEST_CASE("a new run never takes a folder that is in use") {
    const Folder f;
    fs::create_directories(f.path / "run");
    CHECK(error_of([&] { RunFolder(f.run()); }) == "");   // empty is fine
    std::ofstream(f / "run/notes") << "mine";
    const std::string used = ": exists and is not empty; choose another name, or take it up with --resume auto";
    CHECK(error_of([&] { RunFolder(f.run()); }) == "--out " + f.run() + used);
    CHECK(error_of([&] { RunFolder(f / "run/notes"); }) == "--out " + (f / "run/notes") + used);
    CHECK(error_of([&] { RunFolder(f / "run/notes/x"); }).find("can't make the folder: ") != std::string::npos);
    CHECK(f.read("notes") == "mine");
    const RunFolder first(f / "locked");
    CHECK(error_of([&] { RunFolder(f / "locked", 3); }).find("another process is training in this folder") != std::string::npos);
}

TEST_CASE("a file named stop is a wish to stop") {
    const Folder f;
    const RunFolder run(f.run());
    CHECK(!run.stop_requested());
    std::ofstream(f / "run/stop");
    CHECK(run.stop_requested());
}

TEST_CASE("a full disk is one line that names the file") {
    if (!fs::exists("/dev/full")) return;
    const Folder f;
    RunFolder run(f.run());
    fs::create_symlink("/dev/full", f.path / "run/log.jsonl");
    const std::string message = error_of([&] { run.log(step_log(1, 1)); });
    CHECK(message == f.run() + "/log.jsonl: can't write: No space left on device; free some space or choose another "
                               "--out");
    fs::create_symlink("/dev/full", f.path / "run/run.html.tmp");
    std::ofstream(f / "run/run.html") << "old";
    CHECK(error_of([&] { run.write_html(); }).find("run.html.tmp: cannot be written: ") != std::string::npos);
    CHECK(f.read("run.html") == "old");                // never broken half-way
}

TEST_CASE("config.toml is kept as given, run.json is one object in the given order") {
    const Folder f;
    RunFolder run(f.run());
    run.write_config("lr = 0.1   # default\n");
    CHECK(f.read("config.toml") == "lr = 0.1   # default\n");
    run.write_run_json({{"compiler", "g++ \"12\"\xFF"}, {"seed", 42L}, {"peak", 0.1}, {"none", NAN},
                        {"commit", "12e4"}});
    CHECK(f.read("run.json") == "{\n  \"compiler\": \"g++ \\\"12\\\"\xEF\xBF\xBD\",\n  \"seed\": 42,\n"
                                "  \"peak\": 0.1,\n  \"none\": null,\n  \"commit\": \"12e4\"\n}\n");
    CHECK(!fs::exists(f.path / "run/run.json.tmp"));
}

TEST_CASE("the page shows curves, numbers, configuration and samples, and needs no network") {
    const Folder f;
    RunFolder run(f.run());
    run.write_config("[train]\nlr = 0.1   # <default>\n# remark\n");
    for (long step = 1; step <= 20; ++step) {
        StepLog s = step_log(step, 3 - 0.1 * double(step));
        if (step % 5 == 0) s.val_loss = s.loss + 0.25;
        run.log(s);
    }
    run.sample(10, "old");
    run.sample(20, "<script>alert('x')</script> & \"more\" \x01\xFF");
    run.write_html();
    const std::string page = f.read("run.html");
    const auto c = curves(page);
    REQUIRE(c.size() == 5);                            // loss, validation, norm, lr, tokens/s
    CHECK(points_of(c[0]) == 20);
    CHECK(points_of(c[1]) == 4);
    CHECK(c[0].find("M64.0 ") == 0);                   // step 1 at the left end, step 20 at the right one
    CHECK(c[0].find("L708.0 224.0") != std::string::npos);   // with the lowest loss at the bottom
    CHECK(page.find("step 20: loss <b>1.0000</b>") != std::string::npos);
    CHECK(page.find("validation loss <b>1.2500</b> at step 20") != std::string::npos);
    CHECK(page.find("<td>lr</td><td>0.1   # &lt;default&gt;</td>") != std::string::npos);
    CHECK(page.find("<th colspan=\"2\">[train]</th>") != std::string::npos);
    CHECK(page.find("<pre>&lt;script&gt;alert('x')&lt;/script&gt; &amp; &quot;more&quot; &#9217;\xEF\xBF\xBD</pre>") !=
          std::string::npos);
    CHECK(page.find("step 20</h3>") < page.find("step 10</h3>"));
    CHECK(page.find("prefers-color-scheme: dark") != std::string::npos);
    for (const char* outside : {"<script", "http", "src=", "href=", "@import", "url("})
        CHECK(count(page, outside) == 0);
    CHECK(page.substr(page.size() - 15) == "</body></html>\n");
    CHECK(!fs::exists(f.path / "run/run.html.tmp"));
}

TEST_CASE("the page survives no point, one, two, and the same value twice") {
    for (long steps : {0, 1, 2}) {
        CAPTURE(steps);
        const Folder f;
        RunFolder run(f.run());
        for (long step = 1; step <= steps; ++step) {
            StepLog s = step_log(step, 0);
            s.val_loss = 0;
            run.log(s);
        }
        run.write_html();
        const std::string page = f.read("run.html");
        const auto c = curves(page);
        CHECK(c.size() == (steps ? 5 : 0));
        for (const std::string& curve : c) CHECK(points_of(curve) == size_t(steps));
        CHECK(count(page, "<p>no step yet</p>") == (steps ? 0 : 1));
        CHECK(count(page, "nan") + count(page, "inf") == 0);
        CHECK(count(page, "<svg") == count(page, "</svg>"));
        if (steps) CHECK(count(page, "<text") >= 4);
    }
}

TEST_CASE("values that differ in their last bits are drawn too") {
    for (const double value : {1.0, 1e-300, 1e300, 5e-324, -3e15}) {
        CAPTURE(value);
        const Folder f;
        RunFolder run(f.run());
        run.log(step_log(1, value)), run.log(step_log(2, std::nextafter(value, INFINITY)));
        run.write_html();
        const std::string page = f.read("run.html");
        CHECK(points_of(curves(page)[0]) == 2);
        CHECK(count(page, "<text") < 50);
    }
}

TEST_CASE("ten thousand steps are drawn with a thousand points and keep their spike") {
    const Folder f;
    RunFolder run(f.run());
    for (long step = 1; step <= 10000; ++step) run.log(step_log(step, step == 5003 ? 9 : 1 + 1e-4 * double(step % 7)));
    run.write_html();
    const auto c = curves(f.read("run.html"));
    CHECK(points_of(c[0]) <= 1000);
    CHECK(points_of(c[0]) >= 900);
    CHECK(count(c[0], " 12.0") == 1);                  // the spike reaches the top of the chart
    CHECK(f.read("run.html").size() < 120000);
}

TEST_CASE("steps that were not finite leave a gap and are counted") {
    const Folder f;
    RunFolder run(f.run());
    for (long step = 1; step <= 9; ++step)
        run.log(step_log(step, step == 3 ? NAN : step == 6 ? INFINITY : double(step)));
    run.write_html();
    const std::string page = f.read("run.html");
    CHECK(count(curves(page)[0], "M") == 3);
    CHECK(points_of(curves(page)[0]) == 7);
    CHECK(page.find("<b>2 steps were not finite</b>") != std::string::npos);
}

}  // TEST_SUITE
