// docs_test.cpp - when `make docs-check` calls a page of lessons/ stale, and that its exercises still fit the source.
#include "host.h"
#include <cstdlib>

using namespace baretrain::test;

namespace {

bool same(const std::string& page, const std::string& now) {
    const TempFolder dir;
    const std::string a = dir.put("page", page), b = dir.put("now", now);
    return std::system(("dev/docs.sh --same " + a + " " + b + " > /dev/null").c_str()) == 0;
}

}  // namespace

TEST_SUITE("docs") {

TEST_CASE("a page is stale when a word, a whole number or the fourth digit of another number is different") {
    const std::string page = "| zero1 | 1774080 bytes | loss 3.5581 | lr 7.8e-03 |\nM64.00 1.500h0\n";
    const auto with = [&](const std::string& old, const std::string& fresh) {
        std::string text = page;
        text.replace(text.find(old), old.size(), fresh);
        return same(page, text);
    };
    CHECK(same(page, page));
    CHECK(with("3.5581", "3.5582"));                   // as another machine may round
    CHECK(with("3.5581", "3.558"));
    CHECK(with("1.500", "1.50001"));
    CHECK_FALSE(with("3.5581", "3.5591"));
    CHECK_FALSE(with("3.5581", "4"));
    CHECK_FALSE(with("7.8e-03", "7.9e-03"));
    CHECK_FALSE(with("7.8e-03", "7.8e-04"));
    CHECK_FALSE(with("1774080", "1774081"));
    CHECK_FALSE(with("zero1", "zero2"));
    CHECK_FALSE(with("loss ", "loss -"));
    CHECK_FALSE(with("bytes", "Bytes"));
    CHECK_FALSE(with("h0\n", "h0\nh0\n"));
    CHECK_FALSE(with("\nM64.00 1.500h0", ""));
    CHECK_FALSE(same(page, ""));
    CHECK_FALSE(same("", page));
}

TEST_CASE("each exercise takes lines that are there, once") {
    CHECK(std::system("lessons/exercise.sh --fits > /dev/null") == 0);
}

}
