// report_test.cpp - what a run says: its lines, its folder and its logs.
#include "runs.h"
#include <atomic>
#include <bit>
#include <cmath>
#include <random>
#include <thread>

using namespace baretrain;
using namespace baretrain::test;
using nlohmann::json;

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
    const RunLab f;
    RunFolder run(f.run());
    StepLog s = step_log(1, 1.0 / 3);
    s.lr = 0.1, s.grad_norm = 1, s.val_loss = 2.5, s.resident = 4096;
    s.ms = {{"forward", 1.5}, {"a \"b\"", 0.25}}, s.bytes = {{"gather", 1000000000}};
    run.log(s);
    CHECK(f.read("log.jsonl") ==
          "{\"step\":1,\"loss\":0.3333333333333333,\"grad_norm\":1.0,\"lr\":0.1,\"tokens\":64,\"tokens_per_s\":31234.0,"
          "\"mfu\":0.412,\"resident\":4096,\"val_loss\":2.5,"
          "\"ms\":{\"a \\\"b\\\"\":0.25,\"forward\":1.5},\"bytes\":{\"gather\":1000000000}}\n");
    CHECK(f.lines("log.jsonl")[0]["loss"].get<double>() == 1.0 / 3);
    s = step_log(2, 5e-324), s.mfu = -1, s.resident = -1;
    run.log(s);                                        // on disk at once, while the folder is open
    REQUIRE(f.lines("log.jsonl").size() == 2);
    const json second = f.lines("log.jsonl")[1];
    CHECK(second["loss"].get<double>() == 5e-324);
    CHECK(second["mfu"].is_null());
    for (const char* absent : {"resident", "val_loss", "ms", "bytes", "nonfinite", "skipped"}) CHECK(!second.contains(absent));
    s.loss = 1;                                        // a shorter line
    CHECK_THROWS_AS(run.log(s), Error);
    CHECK(f.lines("log.jsonl").size() == 2);
}

TEST_CASE("any number of a log reads back as the same bits") {
    const RunLab f;
    RunFolder run(f.run());
    std::mt19937_64 bits(1);
    StepLog s = step_log(1, 1);
    for (int i = 0; i < 2000; ++i)
        if (const double v = std::bit_cast<double>(bits()); std::isfinite(v)) s.ms[std::to_string(i)] = v;
    run.log(s);
    CHECK(f.lines("log.jsonl")[0].at("ms").get<std::map<std::string, double>>() == s.ms);
}

TEST_CASE("NaN and infinity stay visible in a log that is still JSON") {
    const RunLab f;
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
    const RunLab f;
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
    const RunLab f;
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
    const RunLab f;
    fs::create_directories(f.path / "run");
    const std::string text = "{\"step\":1}\nhello\n{\"step\":2}\n";
    std::ofstream(f / "run/log.jsonl") << text;
    CHECK(error_of([&] { RunFolder(f.run(), 5); }) ==
          f.run() + "/log.jsonl: line 2 is not a line of a run's log; move the file away to go on without it");
    CHECK(f.read("log.jsonl") == text);
}

TEST_CASE("a new run never takes a folder that is in use") {
    const RunLab f;
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
    const RunLab f;
    const RunFolder run(f.run());
    CHECK(!run.stop_requested());
    std::ofstream(f / "run/stop");
    CHECK(run.stop_requested());
}

TEST_CASE("a full disk is one line that names the file") {
    if (!fs::exists("/dev/full")) return;
    const RunLab f;
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
    const RunLab f;
    RunFolder run(f.run());
    run.write_config("lr = 0.1   # default\n");
    CHECK(f.read("config.toml") == "lr = 0.1   # default\n");
    run.write_run_json({{"compiler", "g++ \"12\"\xFF"}, {"seed", 42L}, {"peak", 0.1}, {"none", NAN},
                        {"commit", "12e4"}});
    CHECK(f.read("run.json") == "{\n  \"compiler\": \"g++ \\\"12\\\"\xEF\xBF\xBD\",\n  \"seed\": 42,\n"
                                "  \"peak\": 0.1,\n  \"none\": null,\n  \"commit\": \"12e4\"\n}\n");
    CHECK(!fs::exists(f.path / "run/run.json.tmp"));
}

TEST_CASE("the page of a run is made again from its folder, byte for byte, and nothing else is touched") {
    const RunLab f;
    {
        RunFolder run(f.run());
        run.write_config("lr = 0.1   # default\n");
        run.write_run_json({{"seed", 42L}, {"peak_flops", 0.1}, {"none", NAN}, {"compiler", "g++\xFF"}});
        for (long step = 1; step <= 9; ++step) run.log(step_log(step, step == 3 ? INFINITY : 1.0 / double(step)));
        run.sample(4, "four \xFF");
        run.trace("{}", "<figure>when</figure>\n");
        CHECK(contains(f.read("run.html"), "<figure>when</figure>"));
        CHECK(error_of([&] { write_report({f.run()}, ""); }) ==
              f.run() + ": another process is training in this folder; wait for it, or choose another name");
        CHECK(write_report({f.run()}, f / "beside.html") == f / "beside.html");
    }
    const std::string page = f.read("run.html"), log = f.read("log.jsonl");
    CHECK((get(f / "beside.html") == page));
    std::ofstream(f / "run/log.jsonl", std::ios::app) << "{\"step\":10,\"loss\":0.";   // torn
    fs::remove(f.path / "run/run.html");
    CHECK(write_report({f.run() + "/"}, "") == f.run() + "//run.html");
    CHECK((f.read("run.html") == page));
    CHECK(f.read("log.jsonl") == log + "{\"step\":10,\"loss\":0.");
    RunFolder resumed(f.run(), 9);                     // and a run that goes on has it all
    resumed.write_html();
    CHECK((f.read("run.html") == page));
}

TEST_CASE("runs are named by their folders, and by their paths where these have one name") {
    const RunLab f;
    for (const std::string name : {"run", "x/one", "y/one"}) {
        fs::create_directories((f.path / name).parent_path());
        RunFolder(f / name).log(step_log(1, 1));
    }
    write_report({f / "run", f / "x/one/", f / "y/one"}, f / "all.html");
    const std::string page = get(f / "all.html");
    for (const std::string& name : {std::string("run"), f / "x/one/", f / "y/one"})
        CHECK(count(page, "</b> " + name + "</th>") == 4);
}

TEST_CASE("a report of what is no run, or onto what is no page, is one line and writes nothing") {
    const RunLab f;
    { RunFolder(f.run()).log(step_log(1, 1)); }
    fs::create_directories(f.path / "empty");
    const std::string out = f / "out.html";
    const std::string none = ": is no run: it has neither config.toml nor log.jsonl; give the --out of a run";
    for (const std::string name : {"empty", "nowhere", "run/log.jsonl"})
        CHECK(error_of([&] { write_report({f.run(), f / name}, out); }) == f / name + none);
    CHECK(error_of([&] { write_report({f.run()}, f.run() + "/log.jsonl"); }) ==
          "-o " + f.run() + "/log.jsonl: is to be a page; give it a name that ends in .html");
    CHECK(error_of([&] { write_report({f.run()}, f / "no/out.html"); }).starts_with(f / "no/out.html.tmp: cannot be created"));
    std::ofstream(f / "run/run.json") << "[1]";
    CHECK(error_of([&] { write_report({f.run()}, out); }) ==
          f.run() + "/run.json: is not an object of JSON; move the file away to go on without it");
    fs::remove(f.path / "run/run.json");
    std::ofstream(f / "run/log.jsonl", std::ios::app) << "hello\n";
    CHECK(error_of([&] { write_report({f.run()}, out); }) ==
          f.run() + "/log.jsonl: line 2 is not a line of a run's log; move the file away to go on without it");
    CHECK(!fs::exists(out));
}

TEST_CASE("whoever reads the page while it is written sees a whole one") {
    const RunLab f;
    RunFolder run(f.run());
    run.log(step_log(1, 1));
    run.write_html();
    std::atomic<bool> done = false;
    long torn = 0, read = 0;
    std::thread reader([&] {
        for (; !done || read == 0; ++read) torn += !f.read("run.html").ends_with("</body></html>\n");
    });
    for (long step = 2; step <= 60; ++step) run.log(step_log(step, 1)), run.write_html();
    done = true;
    reader.join();
    CHECK(torn == 0);
    CHECK(read > 0);
}

}  // TEST_SUITE
