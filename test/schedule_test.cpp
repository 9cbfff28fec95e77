// schedule_test.cpp - exact learning rates at the ends of each phase, and phases of no length.
#include "schedule.h"
#include <doctest/doctest.h>

using namespace baretrain;

namespace {

const char* const curves[] = {"cosine", "linear", "wsd", "constant"};

Schedule schedule(const std::string& curve, long warmup, long steps) {
    return {curve, 1.0, 0.1, warmup, steps, decay_steps(curve, warmup, steps)};
}

}  // namespace

TEST_SUITE("schedule") {

TEST_CASE("B1: a warm-up of four steps starts at a quarter and ends at the full rate") {
    for (const char* curve : curves) {
        const Schedule s = schedule(curve, 4, 20);
        const double expected[] = {0.25, 0.5, 0.75, 1.0};
        for (long step = 0; step < 4; ++step) CHECK(learning_rate(s, step) == expected[step]);
    }
}

TEST_CASE("B1: the first step after warm-up is already below the full rate, and the last has exactly min_lr") {
    const Schedule linear = schedule("linear", 4, 13);               // nine steps of decay, 0.1 each
    CHECK(learning_rate(linear, 4) == doctest::Approx(0.9));
    CHECK(learning_rate(linear, 8) == doctest::Approx(0.5));
    const Schedule cosine = schedule("cosine", 4, 14);               // ten steps: the fifth is half way
    CHECK(learning_rate(cosine, 8) == doctest::Approx(0.55));
    CHECK(learning_rate(cosine, 4) == doctest::Approx(0.1 + 0.9 * 0.5 * (1 + std::cos(0.314159265358979))));
    for (const char* curve : {"cosine", "linear", "wsd"}) {
        const Schedule s = schedule(curve, 4, 23);
        CHECK(learning_rate(s, 21) > 0.1);
        CHECK(learning_rate(s, 22) == 0.1);
        CHECK(learning_rate(s, 23) == 0.1);
        CHECK(learning_rate(s, 1000) == 0.1);
    }
}

TEST_CASE("wsd holds the rate until the last fifth") {
    const Schedule s = schedule("wsd", 5, 50);
    for (long step = 4; step < 40; ++step) CHECK(learning_rate(s, step) == 1.0);
    CHECK(learning_rate(s, 40) == doctest::Approx(0.91));
    CHECK(learning_rate(s, 44) == doctest::Approx(0.55));
    CHECK(learning_rate(s, 49) == 0.1);
}

TEST_CASE("constant never decays") {
    const Schedule s = schedule("constant", 2, 10);
    for (long step = 1; step < 30; ++step) CHECK(learning_rate(s, step) == 1.0);
}

TEST_CASE("B1: no warm-up, nothing but warm-up, and one step: the full rate is reached, nothing is divided by zero") {
    for (const char* curve : curves) {
        CHECK(learning_rate(schedule(curve, 0, 10), 0) == 1.0);
        CHECK(learning_rate(schedule(curve, 10, 10), 9) == 1.0);
        CHECK(learning_rate(schedule(curve, 0, 1), 0) == 1.0);
        CHECK(learning_rate(schedule(curve, 1, 1), 0) == 1.0);
        CHECK(std::isfinite(learning_rate(schedule(curve, 0, 0), 0)));
    }
}

TEST_CASE("B2: with any of the three phases of no length every rate is finite, positive and at most lr") {
    for (long warmup : {0, 3})
        for (long plateau : {0, 3})
            for (long decay : {0, 3})
                for (const char* curve : curves) {
                    const Schedule s{curve, 1.0, 0.1, warmup, warmup + plateau + decay, decay};
                    for (long step = 0; step < s.steps + 3; ++step) {
                        CAPTURE(step);
                        const double lr = learning_rate(s, step);
                        CHECK(std::isfinite(lr));
                        CHECK(lr <= 1.0);
                        CHECK(lr >= (step < warmup ? 1.0 / 3 : 0.1));
                    }
                }
}

TEST_CASE("rates never rise after warm-up") {
    for (const char* curve : curves)
        for (long steps : {5, 6, 7, 99}) {
            const Schedule s = schedule(curve, 3, steps);
            for (long step = 2; step < steps + 2; ++step) CHECK(learning_rate(s, step + 1) <= learning_rate(s, step));
        }
}

TEST_CASE("a longer run that resumes follows the new curve from its step on") {
    const Schedule old_run = schedule("linear", 10, 100), longer = schedule("linear", 10, 200);
    CHECK(learning_rate(old_run, 99) == 0.1);
    CHECK(learning_rate(longer, 100) == doctest::Approx(0.1 + 0.9 * (99.0 / 190)));
}

TEST_CASE("an unknown curve is a broken contract") { CHECK_THROWS_AS(decay_steps("cosin", 1, 2), Error); }

}
