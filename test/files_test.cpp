// files_test.cpp - files written and read whole, the digest, and numbers as text and back.
#include "files.h"
#include "host.h"
#include <cmath>

using namespace baretrain;
using namespace baretrain::test;

TEST_SUITE("files") {

TEST_CASE("what is being built goes when it is given up, stays under another name, and takes nothing else along") {
    const TempFolder temp;
    temp.put("kept", "");
    for (const bool done : {false, true}) {
        const Building building{temp / "new.tmp"};
        temp.put("new.tmp/inner/file", "x");
        if (done) fs::rename(building.path, temp / "new");
        CHECK(fs::exists(building.path) == !done);
        if (!done) CHECK(!fs::exists(temp / "new"));
    }
    CHECK(!fs::exists(temp / "new.tmp"));
    CHECK(get(temp / "new/inner/file") == "x");
    CHECK(fs::exists(temp / "kept"));
    CHECK(error_of([&] { change_folders([&] { fs::create_directories(temp / "kept/below"); }); }) ==
          temp / "kept/below" + ": cannot be created, renamed or removed: Not a directory");
}


TEST_CASE("a file written whole is read back byte for byte, and replaces what was there at once") {
    const TempFolder temp;
    const std::string x = (temp / "x"), text("a\0b\r\n\xFF", 6);
    write_whole(x, "before, and longer");
    write_whole(x, text);
    CHECK(read_text(x) == text);
    CHECK(!fs::exists(x + ".tmp"));
    if (fs::exists("/dev/full")) {
        fs::create_symlink("/dev/full", x + ".tmp");
        CHECK(error_of([&] { write_whole(x, "new"); }) == x + ".tmp: cannot be written: No space left on device");
        CHECK(read_text(x) == text);
    }
    fs::create_directories((temp / "folder/inner"));
    CHECK(error_of([&] { write_whole((temp / "folder"), "x"); }).starts_with((temp / "folder: cannot be replaced")));
}

TEST_CASE("a file that is not there is one line, in the caller's words if it has some") {
    const TempFolder temp;
    const std::string x = (temp / "x");
    CHECK(error_of([&] { read_text(x); }) == x + ": cannot be opened: No such file or directory");
    CHECK(error_of([&] { read_text(x, "give another"); }) == x + ": give another");
    CHECK(error_of([&] { read_text(temp.path.string()); }) == temp.path.string() + ": cannot be read; is it a file?");
    CHECK(error_of([&] { InputFile file(x); }) == x + ": cannot be opened: No such file or directory");
    CHECK(error_of([&] { InputFile file(temp.path.string()); }).find(": is not a file; ") != std::string::npos);
    std::ofstream(x) << "abc";
    const InputFile file(x);
    CHECK(file.bytes() == 3);
    char bytes[2] = {};
    file.read(bytes, 2, 1);
    CHECK(std::string(bytes, 2) == "bc");
    CHECK(error_of([&] { file.read(bytes, 2, 2); }) == x + ": became shorter while it was read");
}

TEST_CASE("the digest sees every flipped bit, pairs of top bits, and swapped words") {
    const TempFolder temp;
    const std::string x = (temp / "x"), good = "0123456789abcdefghijklmnopqrs";
    write_whole(x, good);
    const Digest digest = digest_of_file(x);
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
        std::string bad = good;
        bad[bit / 8] = char(bad[bit / 8] ^ 1 << bit % 8);
        write_whole(x, bad);
        CHECK(digest_of_file(x) != digest);
    }
    std::string signs = good;
    signs[7] = char(signs[7] ^ 0x80), signs[15] = char(signs[15] ^ 0x80);
    for (const std::string& bad : {signs, good.substr(8, 8) + good.substr(0, 8) + good.substr(16), good + '\0'}) {
        write_whole(x, bad);
        CHECK(digest_of_file(x) != digest);
    }
}

TEST_CASE("numbers are shortened with three or more digits left") {
    const std::pair<double, const char*> cases[] = {{0, "0"},          {999, "999"},     {1000, "1.0k"},
                                                    {31234, "31.2k"},  {1.25e6, "1.2M"}, {-2500, "-2.5k"},
                                                    {3.5e12, "3500.0G"}};
    for (const auto& [value, text] : cases) CHECK(short_number(value) == text);
}

TEST_CASE("a text is a number if the whole of it is one, to the last bit") {
    CHECK(number_in("0.1") == 0.1);
    CHECK(number_in("-2e3") == -2000.0);
    CHECK(number_in(".5") == 0.5);
    CHECK(number_in("2.2250738585072014e-308") == 2.2250738585072014e-308);
    CHECK(std::isnan(number_in("nan").value()));
    for (const char* text : {"", "-", "1e-3x", " 1", "1 ", "\t1", "+1", "0x1p-9", "1,5", "held.txt", "1.5/x"}) {
        CAPTURE(text);
        CHECK(!number_in(text));
    }
}

}
