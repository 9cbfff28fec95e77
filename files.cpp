// files.cpp - the body of files.h.
#include "files.h"
#include "device/error.h"
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace baretrain {

namespace {

constexpr size_t buffer_bytes = 1 << 20;

[[noreturn]] void fail_system(const std::string& path, const char* what) {
    fail(path, ": cannot be ", what, ": ", std::strerror(errno));
}

// The last word is padded with zeros. The product carries low bits up only; the fold brings high ones down.
uint64_t hash_words(uint64_t before, const char* p, size_t bytes) {
    Hash hash{before};
    for (; bytes > 0; p += 8) {
        uint64_t word = 0;
        const size_t n = std::min<size_t>(8, bytes);
        std::memcpy(&word, p, n);
        bytes -= n;
        hash.add(word);
        hash.value ^= hash.value >> 32;
    }
    return hash.value;
}

}  // namespace

std::string read_text(const std::string& path, const std::string& complaint) {
    std::ifstream in(path, std::ios::binary);
    if (!in) complaint.empty() ? fail_system(path, "opened") : fail(path, ": ", complaint);
    try {
        return {std::istreambuf_iterator<char>(in), {}};
    } catch (const std::ios_base::failure&) {          // a folder can be opened too
        fail(path, ": ", complaint.empty() ? "cannot be read; is it a file?" : complaint);
    }
}

void replace_file(const std::string& path, const std::function<void(const std::string&)>& write) {
    const std::string building = path + ".tmp";
    try {
        write(building);
        if (std::rename(building.c_str(), path.c_str()) != 0) fail_system(path, "replaced");
    } catch (...) {
        std::remove(building.c_str());
        throw;
    }
}

void write_whole(const std::string& path, const std::string& text) {
    replace_file(path, [&](const std::string& building) {
        OutputFile file(building);
        file.write(text.data(), text.size());
        file.close();
    });
}

Building::~Building() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
}

void change_folders(const std::function<void()>& body) {
    try {
        body();
    } catch (const std::filesystem::filesystem_error& e) {
        fail(e.path1().string(), ": cannot be created, renamed or removed: ", e.code().message());
    }
}

Digest digest_of_file(const std::string& path) {
    const InputFile file(path);
    std::vector<char> buffer(buffer_bytes);
    Digest digest;
    while (digest.bytes < file.bytes()) {
        const size_t n = std::min(buffer.size(), file.bytes() - digest.bytes);
        file.read(buffer.data(), n, digest.bytes);
        digest.hash = hash_words(digest.hash, buffer.data(), n);
        digest.bytes += n;
    }
    return digest;
}

InputFile::InputFile(const std::string& path) : path_(path), file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat status{};
    if (file_ < 0) fail_system(path, "opened");
    const bool plain = fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
    if (!plain) ::close(file_);                        // a constructor that throws runs no destructor
    if (!plain) fail(path, ": is not a file; give the path of one");
    bytes_ = size_t(status.st_size);
}
InputFile::~InputFile() { ::close(file_); }

void InputFile::read(void* to, size_t bytes, size_t from) const {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = pread(file_, static_cast<char*>(to) + done, bytes - done, off_t(from + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail_system(path_, "read");
        if (n == 0) fail(path_, ": became shorter while it was read");
        done += size_t(n);
    }
}

OutputFile::OutputFile(const std::string& path)
    : path_(path), file_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (file_ < 0) fail_system(path, "created");
    buffer_.reserve(buffer_bytes);
}
OutputFile::~OutputFile() {
    if (file_ >= 0) ::close(file_);                    // an error is already under way
}

// Only whole buffers pass before close(), so the words of the hash do not depend on how write() was called.
void OutputFile::write(const void* from, size_t bytes) {
    const char* p = static_cast<const char*>(from);
    while (bytes > 0) {
        const size_t n = std::min(bytes, buffer_bytes - buffer_.size());
        buffer_.insert(buffer_.end(), p, p + n);
        p += n, bytes -= n;
        if (buffer_.size() == buffer_bytes) flush();
    }
}

void OutputFile::flush() {
    for (size_t done = 0; done < buffer_.size();) {
        const ssize_t n = ::write(file_, buffer_.data() + done, buffer_.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail_system(path_, "written");
        done += size_t(n);
    }
    digest_.hash = hash_words(digest_.hash, buffer_.data(), buffer_.size());
    digest_.bytes += buffer_.size();
    buffer_.clear();
}

Digest OutputFile::close() {
    flush();
    if (fsync(file_) != 0) fail_system(path_, "written");
    if (::close(std::exchange(file_, -1)) != 0) fail_system(path_, "written");
    return digest_;
}

std::string hex(uint64_t hash) { return format("%016llx", static_cast<unsigned long long>(hash)); }

std::string short_number(double v) {
    const char* const units[] = {"", "k", "M", "G"};
    int unit = 0;
    while (unit < 3 && std::fabs(v) >= 999.5) v /= 1000, ++unit;
    return format(unit ? "%.1f%s" : "%.0f%s", v, units[unit]);
}

// Apple's libc++ has no from_chars for double. strtod follows the locale, which is "C" unless a program sets another,
// and takes more than a number: spaces before it, a plus sign, hexadecimals.
std::optional<double> number_in(const std::string& text) {
    char* stop = nullptr;
    const double value = std::strtod(text.c_str(), &stop);
    const bool whole = !text.empty() && stop == text.data() + text.size();
    const bool plain = whole && std::string(" \t\n\v\f\r+").find(text[0]) == std::string::npos &&
                       text.find_first_of("xX") == std::string::npos;
    return plain ? std::optional(value) : std::nullopt;
}

}  // namespace baretrain
