// page_test.cpp - the page of runs, as text and in a real browser.
#include "files.h"
#include "runs.h"
#include <cmath>
#include <cstdio>
#include <sstream>
#include <unistd.h>

using namespace baretrain;
using namespace baretrain::test;

TEST_SUITE("page") {

TEST_CASE("the page lays what was sent in the last step beside the formulas, and marks what is not equal") {
    const RunLab f;
    RunFolder run(f.run());
    run.write_run_json({{"sent.dp_shard.gather.weights", 3000L}, {"sent.dp_shard.sum.norm", 48L},
                        {"sent.dp_shard.scatter.gradients", 77L}, {"sent.dp_shard.sum.statistics", 5L},
                        {"sent.dp_shard.max.control", 6L}, {"ranks", 4L}, {"engine", "threads"}, {"memory.all", 20000000L}});
    StepLog s = step_log(1, 2);
    s.bytes = {{"dp_shard.gather.weights", 1}, {"dp_shard.sum.rest", 2}};   // of a step before: not shown
    run.log(s);
    s = step_log(2, 2);
    s.bytes = {{"dp_shard.gather.weights", 3000}, {"dp_shard.sum.norm", 47}, {"dp_shard.sum.extra", 2}};
    s.ms = {{"step", 9}, {"dp_shard.gather.weights", 1.25}, {"dp_shard.sum.norm", 0.5}, {"dp_shard.sum.extra", 0.5}};
    run.log(s);
    run.write_html();
    for (const std::string& page : {f.read("run.html"), get(write_report({f.run()}, f / "again.html"))}) {
        CHECK(broken_tags(page) == "");
        CHECK(contains(page, "<td>dp_shard.gather.weights</td><td>3000 bytes <small>in 1.25 ms</small></td>"));
        CHECK(contains(page, "<td>47 bytes <small>in 0.5 ms</small>, <b>48 by formula</b></td>"));
        CHECK(contains(page, "<td>2 bytes <small>in 0.5 ms</small>, <b>0 by formula</b></td>"));
        CHECK(contains(page, "<td>dp_shard.scatter.gradients</td><td>0 bytes <small>in 0 ms</small>, <b>77 by formula</b></td>"));
        CHECK(count(page, "by formula") == 3);
        CHECK(!contains(page, "statistics"));
        CHECK(!contains(page, "sent.dp_shard"));       // not among the versions
        CHECK(contains(page, "<td>all, of the 4 ranks of the process</td><td><span class=\"bar\" style=\"--part:100.0%\">80.0 MB<"));
        CHECK(contains(page, "<td>held by the process</td><td><span class=\"bar\" style=\"--part:80.0%\">64.0 MB<"));
    }
    const RunLab alone;
    RunFolder one(alone.run());
    one.log(step_log(1, 2));
    one.write_html();
    CHECK(!contains(alone.read("run.html"), "Sent between ranks"));
}

TEST_CASE("the page shows curves, numbers, memory, samples, configuration and versions, and needs no network") {
    const RunLab f;
    RunFolder run(f.run());
    run.write_config("[train]\nlr = 0.1   # <default>\n# remark = 3\n");
    run.write_run_json({{"compiler", "g++ <12>"}, {"peak_flops", 2.12e11}, {"memory.weights", 16000000L},
                        {"memory.all", 32000000L}, {"config.lr", "0.1"}});
    for (long step = 1; step <= 20; ++step) {
        StepLog s = step_log(step, 3 - 0.1 * double(step));
        if (step % 5 == 0) s.val_loss = step == 15 ? 0.75 : s.loss + 0.25;
        run.log(s);
    }
    run.sample(10, "old");
    run.sample(20, "<script>alert('x')</script> & \"more\" \x01\xFF");
    run.write_html();
    const std::string page = f.read("run.html");
    CHECK(broken_tags(page) == "");
    const auto c = curves(page);
    REQUIRE(c.size() == 6);                            // loss, validation, norm, lr, tokens/s, share of the peak
    CHECK(points_of(c[0]) == 20);
    CHECK(points_of(c[1]) == 4);
    CHECK(c[0].find("M0.0 ") == 0);                    // step 1 at the left end, step 20 at the right one
    const double lowest = 1000 * (1 - (1 - 0.75) / (2.9 - 0.75));
    CHECK(contains(c[0], format("L1000.0 %.1f", lowest)));
    for (const char* cell : {"<td>step</td><td>20</td>", "<td>loss</td><td>1.0000</td>",
                             "<td>validation loss</td><td>1.2500 <small>at 20</small></td>",
                             "<td>best validation loss</td><td>0.7500 <small>at 15</small></td>",
                             "<td>tokens/s, median</td><td>31.2k</td>",
                             "<td>share of the measured peak</td><td>41.2 % <small>of 212 GFLOP/s</small></td>",
                             "<td>weights</td><td><span class=\"bar\" style=\"--part:25.0%\">16.0 MB</span></td>",
                             "<td>all that is planned</td><td><span class=\"bar\" style=\"--part:50.0%\">32.0 MB<",
                             "<td>held by the process</td><td><span class=\"bar\" style=\"--part:100.0%\">64.0 MB<",
                             "<td>lr</td><td>0.1 <small>&lt;default&gt;</small></td>",
                             "<td>compiler</td><td>g++ &lt;12&gt;</td>"}) {
        CAPTURE(cell);
        CHECK(count(page, cell) == 1);
    }
    CHECK(!contains(page, "remark"));
    CHECK(!contains(page, "config.lr"));
    CHECK(contains(page, "<pre>&lt;script&gt;alert('x')&lt;/script&gt; &amp; &quot;more&quot; &#9217;\xEF\xBF\xBD</pre>"));
    CHECK(page.find("step 20</summary>") < page.find("step 10</summary>"));
    CHECK(contains(page, "prefers-color-scheme: dark"));
    for (const char* outside : {"http", "src=", "href=", "@import", "url("}) CHECK(count(page, outside) == 0);
    CHECK(count(page, "<script") == 1);                // its own
    CHECK(page.ends_with("</body></html>\n"));
    CHECK(!fs::exists(f.path / "run/run.html.tmp"));
}

TEST_CASE("statistics make a curve of update over weight of the ends and of five blocks, also after a resume") {
    const RunLab f;
    const auto take = [](RunFolder& run, long step) {
        run.log(step_log(step, 2));
        StatsLog s;
        s.step = step, s.tensors = {{"embed.weight", {{"weight", 4}, {"update", 2}}}};
        for (int block = 0; block < 9; ++block)        // 3 and 4 are one norm of 5; block b moves by 0.1 step b of it
            for (const double part : {3.0, 4.0})
                s.tensors.push_back({format("layers.%d.%.0f", block, part),
                                     {{"weight", part}, {"update", 0.1 * double(step) * block * part}}});
        run.stats(to_json(s));
    };
    {
        RunFolder run(f.run());
        for (long step = 1; step <= 3; ++step) take(run, step);
    }
    RunFolder run(f.run(), 2);
    take(run, 3);
    run.write_html();
    const std::string page = f.read("run.html");
    CHECK(count(f.read("stats.jsonl"), "\n") == 3);
    const size_t figure = page.find("Layers: norm of the update over that of the weight");
    REQUIRE(figure != std::string::npos);
    for (const char* name : {"ends", "block 0", "block 2", "block 4", "block 6", "block 8"})
        CHECK(count(page.substr(figure), std::string("</b> ") + name + "<") == 1);
    CHECK(count(page, "</b> block ") == 5);
    const auto c = curves(page);
    REQUIRE(c.size() >= 6);                            // of the figure: 0.5 always; 0; 0.8 of 2.4 to 2.4 of 2.4 for the last
    CHECK(contains(c[c.size() - 6], "M0.0 791.7h0L500.0 791.7L1000.0 791.7"));
    CHECK(contains(c[c.size() - 1], "M0.0 666.7h0L500.0 333.3L1000.0 0.0"));
    run.stats("");                                     // a step without statistics
    CHECK(count(f.read("stats.jsonl"), "\n") == 3);
}

TEST_CASE("what is not known is said to be so, or not drawn") {
    const RunLab f;
    RunFolder run(f.run());
    for (long step = 1; step <= 3; ++step) {
        StepLog s = step_log(step, 1);
        s.mfu = -1, s.resident = -1;
        run.log(s);
    }
    run.write_html();
    CHECK(curves(f.read("run.html")).size() == 5);     // the one of validation is empty
    CHECK(!contains(f.read("run.html"), "measured peak"));
    CHECK(contains(f.read("run.html"), "<td>held by the process</td><td>not known</td>"));
}

TEST_CASE("names, settings and samples of any bytes stay text") {
    const std::string evil = "</td></pre><script>x()</script>\"'&amp;\x02\r\xFF\xC3";
    const RunLab f;
    const std::string folder = f / "<b>\"a\xFF";
    RunFolder run(folder);
    run.write_config("data = \"" + evil + "\"   # " + evil + "\n" + evil + " = 1\n");
    run.write_run_json({{evil, evil}, {"memory." + evil, evil}, {"peak_flops", evil}});
    run.log(step_log(1, 1));
    run.sample(1, evil);
    run.write_html();
    for (const std::string& page : {get(fs::path(folder) / "run.html"), [&] {
             write_report({folder, folder}, f / "two.html");
             return get(f / "two.html");
         }()}) {
        CHECK(broken_tags(page) == "");
        CHECK(count(page, "<script") == 1);
        CHECK(!contains(page, "x()</script>"));
        CHECK(page.find_first_of(std::string("\x02\r\xFF\xC3")) == std::string::npos);
        CHECK(contains(page, "&lt;b&gt;&quot;a\xEF\xBF\xBD"));
    }
}

TEST_CASE("the page survives no point, one, two, and the same value twice") {
    for (long steps : {0, 1, 2}) {
        CAPTURE(steps);
        const RunLab f;
        RunFolder run(f.run());
        for (long step = 1; step <= steps; ++step) {
            StepLog s = step_log(step, 0);
            s.val_loss = 0;
            run.log(s);
        }
        run.write_html();
        const std::string page = f.read("run.html");
        const auto c = curves(page);
        CHECK(c.size() == (steps ? 6 : 0));
        for (const std::string& curve : c) CHECK(points_of(curve) == size_t(steps));
        CHECK(count(page, "no step yet") == (steps ? 0 : 1));
        CHECK(count(page, "nan") + count(page, "inf") == 0);
        CHECK(broken_tags(page) == "");
        if (steps) CHECK(count(page, "<i class=") >= 4);
    }
}

TEST_CASE("values that differ in their last bits are drawn too") {
    for (const double value : {1.0, 1e-300, 1e300, 5e-324, -3e15}) {
        CAPTURE(value);
        const RunLab f;
        RunFolder run(f.run());
        run.log(step_log(1, value)), run.log(step_log(2, std::nextafter(value, INFINITY)));
        run.write_html();
        const std::string page = f.read("run.html");
        CHECK(points_of(curves(page)[0]) == 2);
        CHECK(count(page, "<i class=") < 80);
    }
}

TEST_CASE("a hundred thousand steps are drawn with a thousand points and keep their spike") {
    RunPage run;
    for (long step = 1; step <= 100000; ++step) {
        const double loss = step == 50003 ? 9 : 1 + 1e-4 * double(step % 7), val = step % 100 ? NAN : loss;
        run.points.push_back({double(step), loss, loss, loss, loss, val, loss, loss});
    }
    const std::string page = html_page({&run, 1});
    const auto c = curves(page);
    REQUIRE(c.size() == 6);
    for (const std::string& curve : c) {
        CHECK(points_of(curve) <= 1000);
        CHECK(points_of(curve) >= 900);
    }
    CHECK(count(c[0], " 0.0") == 1);                   // the spike reaches the top of the chart
    CHECK(page.size() < 150000);
}

TEST_CASE("steps that were not finite leave a gap and are counted") {
    const RunLab f;
    RunFolder run(f.run());
    for (long step = 1; step <= 9; ++step)
        run.log(step_log(step, step == 3 ? NAN : step == 6 ? INFINITY : double(step)));
    run.write_html();
    const std::string page = f.read("run.html");
    CHECK(count(curves(page)[0], "M") == 3);
    CHECK(points_of(curves(page)[0]) == 7);
    CHECK(contains(page, "<td>not finite</td><td><b>2</b> steps</td>"));
    CHECK(broken_tags(page) == "");
}

TEST_CASE("of many samples the newest are open, and thirty of the older ones can be unfolded") {
    RunPage run;
    for (long step = 1; step <= 1000; ++step) run.samples.push_back({step, "text of " + std::to_string(step)});
    const std::string page = html_page({&run, 1});
    CHECK(count(page, "<details open>") == 3);
    CHECK(count(page, "<details>") == 30);
    CHECK(contains(page, "text of 998<"));
    CHECK(contains(page, "Of the older ones every 34th"));
    run.samples.resize(20);
    CHECK(count(html_page({&run, 1}), "<details>") == 17);
}

// Two runs: their settings, and `losses` of the second one; the first has 1.
std::vector<RunPage> two_runs(size_t steps) {
    std::vector<RunPage> runs(2);
    for (size_t r = 0; r < 2; ++r) {
        runs[r].name = r ? "right <2>" : "left";
        runs[r].config = format("lr = %g      # flag\nseed = 1   # %s\n", r ? 0.5 : 0.25, r ? "default" : "flag");
        runs[r].facts = {{"compiler", "g++"}, {"data", r ? "shards" : "texts"}, {"peak_flops", r ? "2e9" : "1e9"}};
        for (size_t i = 1; i <= steps; ++i) {
            const double v = double(r + i);
            runs[r].points.push_back({double(i), v, v, v, v, i % 2 ? NAN : v, 0.5, v});
        }
    }
    runs[1].config += "only = true\n";
    return runs;
}

TEST_CASE("several runs lie over one another, each in a colour; the table shows what differs between them") {
    const std::string page = html_page(two_runs(4));
    CHECK(broken_tags(page) == "");
    CHECK(contains(page, "<title>2 runs</title>"));
    const auto c = curves(page);
    REQUIRE(c.size() == 13);
    for (size_t at = 0; at < c.size(); ++at) CHECK(points_of(c[at]) == (at == 2 || at == 3 ? 2 : 4));   // validation
    CHECK(c[0].find("M0.0 1000.0") == 0);              // on the same axes
    CHECK(c[1].find("M0.0 750.0") == 0);
    CHECK(count(page, "class=\"curve color-0 ") == 6);
    CHECK(count(page, "class=\"curve color-1") == 7);
    CHECK(count(page, "</b> right &lt;2&gt;</span>") == 6);   // a legend a chart
    CHECK(count(page, "</b> right &lt;2&gt;</th>") == 4);     // and a column in each table
    CHECK(contains(page, "<td>lr</td><td>0.25</td><td>0.5</td>"));
    CHECK(contains(page, "<td>only</td><td>&ndash;</td><td>true</td>"));
    CHECK(contains(page, "<td>data</td><td>texts</td><td>shards</td>"));
    CHECK(contains(page, "<td>50.0 % <small>of 1 GFLOP/s</small></td><td>50.0 % <small>of 2 GFLOP/s</small></td>"));
    CHECK(!contains(page, "<td>seed</td>"));           // only its origin differs
    CHECK(!contains(page, "<td>compiler</td>"));
}

TEST_CASE("a seventh run has the colour of the first and dashes; a run without steps has a column too") {
    std::vector<RunPage> runs(7);
    for (size_t i = 1; i < 7; ++i) runs[i].points = two_runs(4)[0].points;
    const std::string page = html_page(runs);
    CHECK(broken_tags(page) == "");
    CHECK(count(page, "class=\"curve color-5 ") == 6);     // there is no first run to lie above
    CHECK(count(page, "class=\"curve color-0 thin dashed\"") == 1);
    CHECK(contains(page, "<td>step</td><td>no step yet</td><td>4</td>"));
}

TEST_CASE("the gap to the first run is the mean of a twentieth of the steps; another seed makes a band of its size") {
    std::vector<RunPage> runs(3);
    for (size_t r = 0; r < 3; ++r) {
        runs[r].name = concat("run", r);
        runs[r].facts = {{"seed", r == 2 ? "8" : "7"}};
        for (size_t i = 1; i <= 40; ++i) {
            const double loss = r == 0 ? 2 : r == 1 ? 2 + 0.02 * double(i % 2) : 2 - 0.06 * double(i % 2);
            runs[r].points.push_back({double(i), loss, 1, 1, 1, NAN, NAN, NAN});
        }
    }
    const std::string page = html_page(runs);
    const size_t at = page.find("<figcaption>Loss above that of run0, %");
    REQUIRE(at != std::string::npos);
    const std::string figure = page.substr(at, page.find("</figure>", at) - at);
    CHECK(contains(figure, "data-range=\"2 40 -1.5 1.5\""));   // means of two steps: 0.5 %, and 1.5 % up and down
    const auto c = curves(figure);
    REQUIRE(c.size() == 3);
    CHECK(c[0].find("M0.0 333.3") == 0);
    CHECK(c[1].find("M0.0 0.0") == 0);
    CHECK(c[2].find("M0.0 1000.0") == 0);
    CHECK(count(figure, "color-2 dashed") == 3);       // and once in the legend
}

TEST_CASE("a chart takes any curves, names that are not its own, and nothing at all") {
    CHECK(chart("t", {}) == "");
    CHECK(chart("t", {{"a", "color-0", {{1, NAN}}}}) == "");
    const std::string some = chart("<t>", {{"<a>", "color-0", {{1, 2}, {3, 4}}}, {"", "color-1", {{2, 8}}}});
    CHECK(broken_tags(some) == "");
    CHECK(curves(some) == std::vector<std::string>{"M0.0 1000.0h0L1000.0 666.7", "M500.0 0.0h0"});
    CHECK(count(some, "&lt;t&gt;") == 2);
    CHECK(count(some, "&#9632;") == 1);
    CHECK(contains(some, "data-range=\"1 3 2 8\""));
    CHECK(contains(chart("t", {{"", "color-0", {{1, 2}, {3, 4}}}}, Floor::zero), "data-range=\"1 3 0 4\""));
}

// ---- in a real browser ----------------------------------------------------------------------------------------------
std::string output_of(const std::string& command) {
    std::string text;
    FILE* pipe = popen(command.c_str(), "r");
    for (int c; pipe && (c = std::fgetc(pipe)) != EOF;) text += char(c);
    if (pipe) pclose(pipe);
    return text;
}

// Chromium, Chrome, or nothing.
const std::string& browser() {
    static const std::string found = [] {
        const std::string all = output_of("command -v chromium chromium-browser google-chrome 2>/dev/null");
        return all.substr(0, all.find('\n'));
    }();
    return found;
}

// Looks at each page at two widths, light and dark. One line a view: what is wrong, or "fine".
const char* const inspector = R"(<pre id="result"></pre>
<script>
const light = color => {                               // relative luminance of rgb(...)
  const [r, g, b] = color.match(/[\d.]+/g).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;

function inspect(frame) {
  const d = frame.contentDocument, w = frame.contentWindow, wrong = [], dark = frame.style.colorScheme == 'dark';
  const say = (ok, what) => { if (!ok) wrong.push(what); };
  const back = w.getComputedStyle(d.body).backgroundColor, color = e => w.getComputedStyle(e).color;
  say(w.innerWidth == frame.width, 'width ' + w.innerWidth);
  say(d.documentElement.scrollWidth <= d.documentElement.clientWidth, 'scrolls to ' + d.documentElement.scrollWidth);
  say((light(back) < 0.1) == dark && (light(back) > 0.9) == !dark, 'background ' + back);
  for (const e of d.querySelectorAll('body, td, th, small, i, span, summary, pre'))
    say(contrast(color(e), back) >= 4.5, 'faint text: ' + e.textContent.slice(0, 20));
  const curves = d.querySelectorAll('.curve');
  say(curves.length == frame.dataset.curves, curves.length + ' curves');
  for (const c of curves) {
    const box = c.getBoundingClientRect(), plot = c.closest('.plot').getBoundingClientRect();
    say(box.width > 100 && box.height > 10, 'a curve of ' + box.width + ' x ' + box.height);
    say(box.left >= plot.left - 3 && box.right <= plot.right + 3, 'a curve beside its plot');
    say(box.top >= plot.top - 3 && box.bottom <= plot.bottom + 3, 'a curve above or below its plot');
    say(contrast(color(c), back) >= 3, 'a faint curve: ' + color(c));
  }
  for (const figure of d.querySelectorAll('figure')) {
    const boxes = [...figure.querySelectorAll('i, figcaption')].map(e => e.getBoundingClientRect());
    boxes.forEach((a, i) => boxes.forEach((b, j) => say(i <= j || apart(a, b), 'labels over one another')));
    for (const b of boxes) say(b.left >= 0 && b.right <= w.innerWidth && b.height > 8, 'a label outside of the page');
  }
  for (const text of d.querySelectorAll('svg text')) say(text.getBoundingClientRect().height > 8, 'tiny text');
  const plot = d.querySelector('.plot'), box = plot.querySelector('svg').getBoundingClientRect();
  const [, x, y] = [...curves[0].getAttribute('d').matchAll(/[ML]([\d.]+) ([\d.]+)/g)].pop();
  plot.dispatchEvent(new w.PointerEvent('pointermove', {clientX: box.left + x * box.width / 1000,
                                                        clientY: box.top + y * box.height / 1000}));
  say(plot.querySelector('output').textContent == frame.dataset.tip, plot.querySelector('output').textContent);
  plot.dispatchEvent(new w.PointerEvent('pointerleave'));
  say(plot.querySelector('output').textContent == '', 'the tip stays');
  return [...new Set(wrong)].join('; ') || 'fine';
}
onload = () => {
  document.getElementById('result').textContent = [...document.querySelectorAll('iframe')].map(inspect).join('\n') + '\n';
  console.error('inspected');
};
</script>
)";

TEST_CASE("in a browser the curves are there, on a phone and a projector, light and dark, and nothing complains "
          "(skipped where there is no Chromium)" * doctest::skip(browser().empty())) {
    const RunLab f;
    const std::string long_name = "a-run-with-quite-a-long-name-that-somebody-gave-to-it";
    for (const std::string name : {"run", "other", long_name.c_str()}) {
        RunFolder run(f / name);
        run.write_config("lr = " + std::to_string(name.size()) + "  # flag\ndata = \"" + std::string(300, 'x') + "\"\n");
        run.write_run_json({{"compiler", "g++"}, {"memory.weights", 1000000L}, {"memory.all", 2000000L}});
        for (long step = 1; step <= 12000; ++step) {
            const double apart = double(name.size() % 7) * (1 - double(step) / 12000);   // and at the end equal
            StepLog s = step_log(step, 12 / (1 + 0.001 * double(step)) + double(step * 5 % 12) / 50 + apart);
            s.grad_norm = s.loss / 5, s.lr = 1e-4 * s.loss, s.tokens_per_s = 1e5 / s.loss, s.mfu = 1 / s.loss;
            if (step % 500 == 0) s.val_loss = s.loss + 0.5;
            run.log(s);
        }
        run.trace("{}", "<figure class=\"trace\"><svg viewBox=\"0 0 720 99\"><text y=\"50\">when</text></svg></figure>");
        for (long step : {1, 2, 3, 4, 5}) run.sample(step, "<b>" + std::string(500, 'y'));
        run.write_html();
    }
    write_report({f.run(), f / "other", f / long_name}, f / "three.html");
    std::string views = "<!doctype html>\n";
    const auto view = [&](const char* page, int curves) {
        for (const char* scheme : {"light", "dark"})
            for (int width : {360, 1920})
                views += format("<iframe src=\"%s\" width=\"%d\" height=\"900\" style=\"color-scheme: %s\" ", page, width,
                                scheme) + format("data-curves=\"%d\" data-tip=\"step 12000: 0.9231\"></iframe>\n", curves);
    };
    view("run/run.html", 6), view("three.html", 20);
    f.put("views.html", views + inspector);
    const std::string command = "cd '" + f.path.string() + "' && $(command -v timeout >/dev/null && echo timeout 120) '" +
                                browser() + "' --headless --disable-gpu --disable-dev-shm-usage --enable-logging=stderr "
                                "--allow-file-access-from-files " + (geteuid() == 0 ? "--no-sandbox " : "") +
                                "--dump-dom \"file://$PWD/views.html\" 2>errors";
    const std::string page = output_of(command), mark = "<pre id=\"result\">", errors = get(f / "errors");
    const size_t begin = page.find(mark);
    REQUIRE_MESSAGE(begin != std::string::npos, errors);
    std::istringstream found(page.substr(begin + mark.size(), page.find("</pre>", begin) - begin - mark.size()));
    size_t seen = 0;
    for (std::string line; std::getline(found, line); ++seen) {
        CAPTURE(seen);
        CHECK(line == "fine");
    }
    CHECK(seen == 8);
    CHECK(count(errors, "CONSOLE") == 1);              // the inspector's own word: it would have heard the pages
    CHECK(contains(errors, "inspected"));
}

}  // TEST_SUITE
