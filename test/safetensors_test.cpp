// safetensors_test.cpp - files made by hand, byte for byte: good ones load exactly, damaged ones are one line each.
#include "safetensors.h"
#include "host.h"
#include <cstring>
#include <set>

using namespace baretrain;

namespace {

using namespace baretrain::test;

std::string length_word(uint64_t n) {
    std::string s;
    for (int i = 0; i < 8; ++i) s += char(n >> (8 * i) & 0xFF);
    return s;
}
std::string image(const std::string& header, const std::string& data) {
    return length_word(header.size()) + header + data;
}

// Opens and reads everything; the message of the error, or nothing.
std::string read_error(const std::string& path) {
    const std::string error = error_of([&] {
        const SafetensorsFile f(path);
        for (const TensorInfo& t : f.tensors()) {
            std::vector<char> bytes(t.bytes());        // exactly: a sanitizer sees a byte too many
            f.read(t, bytes.data());
        }
    });
    CHECK((error.empty() || error.starts_with(path + ": ")));
    return error;
}

std::string row(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& span) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + span + "]}";
}
const std::string good_header = "{\"__metadata__\":{\"format\":\"pt\"}," + row("a", "U8", "2,1", "4,6") + "," +
                                row("b", "F32", "1", "0,4") + "}  ";
const std::string good_data("\x00\x00\xC0\x3F\x07\x08", 6);

TensorSource source(const std::string& name, const std::string& dtype, std::vector<long> shape, std::string bytes) {
    return {name, dtype, std::move(shape), [bytes](void* to) { std::memcpy(to, bytes.data(), bytes.size()); }};
}

}  // namespace

TEST_SUITE("safetensors") {

TEST_CASE("a file made by hand is read as it says, in the order of the data") {
    const TempFolder temp;
    put((temp / "x"), image(good_header, good_data));
    const SafetensorsFile f((temp / "x"));
    REQUIRE(f.tensors().size() == 2);
    const TensorInfo &b = f.tensors()[0], &a = f.tensors()[1];
    CHECK(b.name == "b");
    CHECK(b.dtype == "F32");
    CHECK(b.shape == std::vector<long>{1});
    CHECK(a.name == "a");
    CHECK(a.shape == std::vector<long>{2, 1});
    CHECK(a.begin == 4);
    CHECK(a.end == 6);
    CHECK(f.find("a") == &a);
    CHECK(f.find("c") == nullptr);
    CHECK(f.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
    float number = 0;
    f.read(b, &number);
    CHECK(number == 1.5f);
    char bytes[3] = {0, 0, 42};
    f.read(a, bytes);
    CHECK(bytes[0] == 7);
    CHECK(bytes[1] == 8);
    CHECK(bytes[2] == 42);
}

TEST_CASE("what is written is read back bit for bit, aligned, metadata included") {
    const TempFolder temp;
    const std::string odd = "\x01\x02\x03\x04\x05\x06", wide(16, '\x81'), path = (temp / "x");
    const std::vector<TensorSource> tensors = {source("half", "BF16", {3}, odd), source("byte", "U8", {}, "z"),
                                               source("wide", "F64", {2, 1}, wide), source("none", "F32", {0, 7}, ""),
                                               source("also \"half\" \xC3\xA9", "F16", {1, 3, 1}, odd)};
    const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", "a \"b\""}};
    const Digest written = write_safetensors(path, tensors, metadata);
    const std::string bytes = get(path);
    CHECK(written.bytes == bytes.size());
    CHECK(written == digest_of_file(path));

    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    CHECK(length % 8 == 0);
    CHECK(bytes.size() == 8 + length + 16 + 6 + 6 + 1);
    CHECK(bytes.substr(8 + length) == wide + odd + odd + "z");                   // widest first, else as given
    const SafetensorsFile f(path);
    CHECK(f.metadata() == metadata);
    REQUIRE(f.tensors().size() == tensors.size());
    for (const TensorSource& t : tensors) {
        CAPTURE(t.name);
        const TensorInfo* info = f.find(t.name);
        REQUIRE(info);
        CHECK(info->dtype == t.dtype);
        CHECK(info->shape == t.shape);
        std::string expected(info->bytes(), '?'), found(info->bytes(), '!');
        t.fetch(expected.data());
        f.read(*info, found.data());
        CHECK(found == expected);
    }
}

TEST_CASE("a tensor longer than the write buffer arrives whole") {
    const TempFolder temp;
    std::string big((3 << 20) + 5, '\0');
    for (size_t i = 0; i < big.size(); ++i) big[i] = char(i * 2654435761u >> 13);
    const Digest written = write_safetensors((temp / "x"), {source("big", "U8", {long(big.size())}, big)}, {});
    CHECK(written == digest_of_file((temp / "x")));
    const SafetensorsFile f((temp / "x"));
    std::string back(big.size(), '\0');
    f.read(f.tensors().at(0), back.data());
    CHECK(back == big);
}

TEST_CASE("a file without tensors is a file") {
    const TempFolder temp;
    write_safetensors((temp / "x"), {}, {});
    CHECK(get((temp / "x")) == image("{}      ", ""));
    CHECK(SafetensorsFile((temp / "x")).tensors().empty());
}

TEST_CASE("E12: each kind of damage in the header has its own line") {
    struct Damage { std::string header; size_t data_bytes; const char* line; };
    const std::string huge = "4611686018427387904", F = "F32";
    const std::vector<Damage> table = {
        {"", 0, "does not begin with {"},
        {"[]", 0, "does not begin with {"},
        {" {}", 0, "does not begin with {"},
        {"{\"a\"", 0, "not JSON"},
        {"{} {}", 0, "not JSON"},
        {std::string("{}\0", 3), 0, "not JSON"},
        {"{\"\xFF\":1}", 0, "not JSON"},
        {"{\"a\":[[[[1]]]]}", 0, "nests too deeply"},
        {"{" + row("a", F, "1", "0,4") + "," + row("a", F, "1", "4,8") + "}", 8, "stands twice in the header: a"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1]}}", 4, "stands twice in the header: dtype"},
        {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "stands twice"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "not text"},
        {"{\"__metadata__\":7}", 0, "not an object"},
        {"{\"a\":1}", 0, "expected dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "expected dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "nothing else"},
        {"{" + row("a", "F33", "1", "0,4") + "}", 4, "tensor a: unknown dtype F33"},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype"},
        {"{" + row("a\\n", F, "1", "0,4") + "}", 4, "not printable"},
        {"{" + row("", F, "1", "0,4") + "}", 4, "is empty"},
        {"{" + row("a", F, "-1", "0,4") + "}", 4, "shape is not a list of sizes"},
        {"{" + row("a", F, "1.0", "0,4") + "}", 4, "shape is not a list of sizes"},
        {"{" + row("a", F, "18446744073709551617", "0,4") + "}", 4, "shape is not a list of sizes"},
        {"{" + row("a", F, "18446744073709551615", "0,4") + "}", 4, "shape is not a list of sizes"},
        {"{" + row("a", F, "1e999", "0,4") + "}", 4, "not JSON"},
        {"{" + row("a", F, "NaN", "0,4") + "}", 4, "not JSON"},
        {"{" + row("a", F, "true", "0,4") + "}", 4, "shape is not a list of sizes"},
        {"{" + row("a", F, huge + ",4", "0,0") + "}", 0, "size of its shape overflows"},
        {"{" + row("a", F, huge + "," + huge + ",0", "0,0") + "}", 0, "size of its shape overflows"},
        {"{" + row("a", F, "2", "0,8") + "," + row("z", F, "0", "4,4") + "}", 8, "tensor z overlaps"},
        {"{" + row("a", F, "1", "0") + "}", 4, "not two sizes"},
        {"{" + row("a", F, "1", "-4,0") + "}", 4, "not two sizes"},
        {"{" + row("a", F, "1", "4,0") + "}", 4, "tensor a: begins at byte 4, behind its end 0"},
        {"{" + row("a", F, "2", "0,8") + "}", 4, "ends at byte 8 of 4 bytes of data"},
        {"{" + row("a", F, "1", "0,9223372036854775807") + "}", 4, "ends at byte 9223372036854775807 of 4"},
        {"{" + row("a", F, "2", "0,4") + "}", 4, "spans 4 bytes, its shape and dtype need 8"},
        {"{" + row("a", "BF16", "1", "0,4") + "}", 4, "spans 4 bytes, its shape and dtype need 2"},
        {"{" + row("a", F, "2", "0,8") + "," + row("b", F, "1", "4,8") + "}", 8, "tensor b overlaps"},
        {"{" + row("a", F, "1", "0,4") + "," + row("b", F, "1", "0,4") + "}", 4, "tensor b overlaps"},
        {"{" + row("a", F, "1", "0,4") + "," + row("b", F, "1", "6,10") + "}", 10, "a gap of 2 bytes before tensor b"},
        {"{" + row("a", F, "1", "2,6") + "}", 6, "a gap of 2 bytes before tensor a"},
        {"{" + row("a", F, "1", "0,4") + "}", 5, "1 bytes behind the last tensor"},
        {"{}", 1, "1 bytes behind the last tensor"},
    };
    const TempFolder temp;
    for (const Damage& d : table) {
        CAPTURE(d.header);
        put((temp / "x"), image(d.header, std::string(d.data_bytes, 'd')));
        const std::string error = read_error((temp / "x"));
        CAPTURE(error);
        CHECK(error.find(d.line) != std::string::npos);
    }
}

TEST_CASE("E12: ten files of 100 bytes, each wrong in its own way, are ten errors, and the right one is none") {
    const TempFolder temp;
    const std::string x = temp / "x", good = row("a", "F32", "1", "0,4");
    const auto error = [&](std::string header, size_t data, size_t more = 0) {
        header.resize(92 - data, ' ');
        put(x, length_word(header.size() + more) + header + std::string(data, 'd'));
        CHECK(fs::file_size(x) == 100);
        return read_error(x);
    };
    CHECK(error("{" + good + "}", 4) == "");
    const std::set<std::string> lines = {
        error("{" + good + "}", 4, 5),                               // a header longer than the file
        error("{" + row("a", "F32", "1", "4,0") + "}", 4),           // begins behind its end
        error("{" + row("a", "F32", "2", "0,8") + "}", 4),           // ends behind the data
        error("{" + row("a", "F32", "2", "0,4") + "}", 4),           // its span is not its size
        error("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[]}}", 4),
        error("{" + row("a", "F32", "1", "4,8") + "}", 8),           // a gap
        error("{" + good + "}", 5),                                  // bytes behind the last tensor
        error("{" + row("a", "F31", "1", "0,4") + "}", 4), error("[" + good + "]", 4),
        error("{\"a\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}", 4)};
    CHECK(lines.size() == 10);
    CHECK(lines.count("") == 0);
}

TEST_CASE("a tensor without elements takes no bytes, wherever it stands") {
    const TempFolder temp;
    const std::string huge = "4611686018427387904";
    put(temp / "x", image("{" + row("a", "F32", "1", "0,4") + "," + row("b", "F32", "0," + huge, "4,4") + "," +
                          row("c", "U8", "3,0", "4,4") + "," + row("d", "F32", "", "4,8") + "}", "aaaadddd"));
    CHECK(read_error(temp / "x") == "");
}

TEST_CASE("E12: a header longer than the file, or than 100 MB, is refused before it is read") {
    const TempFolder temp;
    const std::string header = "{}", x = (temp / "x");
    put(x, length_word(2) + header);
    CHECK(read_error(x) == "");
    put(x, length_word(3) + header);
    CHECK(read_error(x).find("a header of 3 bytes in a file of 10") != std::string::npos);
    put(x, length_word(100'000'000) + header);
    CHECK(read_error(x).find("in a file of 10") != std::string::npos);
    put(x, length_word(100'000'001) + header);
    CHECK(read_error(x).find("at most 100000000") != std::string::npos);
    put(x, length_word(~uint64_t(0)) + header);
    CHECK(read_error(x).find("at most 100000000") != std::string::npos);
    CHECK(read_error((temp / "absent")).find("No such file") != std::string::npos);
    CHECK(read_error(temp.path.string()).find("is not a file") != std::string::npos);
    put(x, image("{\"a\":" + std::string(1'000'000, '['), ""));
    CHECK(read_error(x).find("nests too deeply") != std::string::npos);
}

TEST_CASE("E12: every truncation of a good file, and one byte more, is refused") {
    const TempFolder temp;
    const std::string good = image(good_header, good_data), x = (temp / "x");
    put(x, good);
    REQUIRE(read_error(x) == "");
    for (size_t n = 0; n < good.size(); ++n) {
        CAPTURE(n);
        put(x, good.substr(0, n));
        CHECK(read_error(x) != "");
    }
    put(x, good + '\0');
    CHECK(read_error(x) != "");
}

TEST_CASE("every changed byte of the header either loads or fails in one line") {
    const TempFolder temp;
    const std::string good = image(good_header, good_data), x = (temp / "x");
    int loaded = 0, refused = 0;
    for (size_t i = 0; i < good.size() - good_data.size(); ++i)
        for (const int byte : {good[i] ^ 1, good[i] ^ 2, good[i] ^ 4, good[i] ^ 8, good[i] ^ 16, good[i] ^ 32,
                               good[i] ^ 64, good[i] ^ 128, good[i] ^ 255, int('"'), int('9'), int('-'), int('}'), 0}) {
            std::string bad = good;
            bad[i] = char(byte);
            if (bad == good) continue;
            put(x, bad);
            ++(read_error(x).empty() ? loaded : refused);
        }
    CHECK(loaded > 0);                                 // such as another letter in a name
    CHECK(refused > loaded);
}

TEST_CASE("a tensor that cannot be written is refused by name, and a full disk is one line") {
    const TempFolder temp;
    const std::string x = (temp / "x");
    const TensorSource a = source("a", "U8", {1}, "a"), bad_type = source("b", "U9", {1}, "b"),
                       bad_shape = source("c", "U8", {-1}, "c");
    CHECK_THROWS_WITH_AS(write_safetensors(x, {a, a}, {}), doctest::Contains("tensor name 'a' is used twice"), Error);
    CHECK_THROWS_WITH_AS(write_safetensors(x, {bad_type}, {}), doctest::Contains("tensor b: unknown dtype U9"), Error);
    CHECK_THROWS_WITH_AS(write_safetensors(x, {bad_shape}, {}), doctest::Contains("tensor c: impossible shape"), Error);
    CHECK_THROWS_WITH_AS(write_safetensors((temp / "no/x"), {a}, {}), doctest::Contains("No such file"), Error);
    CHECK(!fs::exists(x));
    if (fs::exists("/dev/full"))
        CHECK_THROWS_WITH_AS(write_safetensors("/dev/full", {a}, {}),
                             "/dev/full: cannot be written: No space left on device", Error);
}

}
