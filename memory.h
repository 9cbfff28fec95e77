// memory.h - Arena: one allocation, handed out in order. Scratch: the part of it that a scope gives back.
// Copy with: device.h and what it names
// Without memory behind it an arena only measures: run the step once dry, then allocate peak() bytes and run for real.
#pragma once
#include "device.h"
#include <utility>
#include <vector>

namespace baretrain {

// Owns bytes of device memory; fresh bytes are zero.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(size_t bytes) : bytes_(bytes), data_(bytes ? device_allocate(bytes) : nullptr) {}
    ~Buffer() { if (data_) device_free(data_, bytes_); }
    Buffer(Buffer&& b) noexcept : bytes_(std::exchange(b.bytes_, 0)), data_(std::exchange(b.data_, nullptr)) {}
    Buffer& operator=(Buffer&& b) noexcept {
        std::swap(bytes_, b.bytes_);
        std::swap(data_, b.data_);
        return *this;
    }
    void* data() const { return data_; }
    size_t bytes() const { return bytes_; }
private:
    size_t bytes_ = 0;
    void* data_ = nullptr;
};

// Bytes of one purpose.
struct ArenaPart { const char* name; size_t bytes = 0; };

// Hands out views one after the other, each at a multiple of 256 bytes. Never frees: its buffer does.
class Arena {
public:
    Arena() = default;                                 // dry: views have shapes and no memory
    explicit Arena(size_t bytes) : buffer_(bytes), dry_(false) {}

    template <class T> View<T> take(long rows, long cols, Where at = Where::current()) {
        return take<T>(rows, cols, cols, at);
    }
    template <class T> View<T> take(long rows, long cols, long stride, Where at = Where::current()) {
        require(rows >= 0 && cols >= 0 && stride >= cols, "arena: sizes are not negative", at);
        const size_t begin = top_;
        top_ += (size_t(rows) * size_t(stride) * sizeof(T) + 255) / 256 * 256;
        peak_ = std::max(peak_, top_), high_ = std::max(high_, top_);
        if (scratch_ == 0 && !parts_.empty()) parts_.back().bytes += top_ - begin;
        if (dry_) return {nullptr, rows, cols, stride};
        if (top_ > buffer_.bytes())
            fail_at("arena too small: " + std::to_string(top_) + " bytes needed, " + std::to_string(buffer_.bytes()) +
                    " planned; the dry run and the step differ", at);
        return {reinterpret_cast<T*>(static_cast<char*>(buffer_.data()) + begin), rows, cols, stride};
    }
    size_t peak() const { return peak_; }
    size_t high() { return std::exchange(high_, top_); }   // the most in use since this was last asked
    // From here on takes count under this name, but for those of a Scratch.
    Arena& part(const char* name) {
        parts_.push_back({name});
        return *this;
    }
    const std::vector<ArenaPart>& parts() const { return parts_; }
    bool dry() const { return dry_; }
private:
    friend class Scratch;
    Buffer buffer_;
    bool dry_ = true;
    size_t top_ = 0, peak_ = 0, high_ = 0;
    int scratch_ = 0;                                  // how many are open
    std::vector<ArenaPart> parts_;
};

// Views that live until the end of the enclosing scope; scopes nest like a stack.
class Scratch {
public:
    explicit Scratch(Arena& a) : arena_(a), mark_(a.top_) { ++a.scratch_; }
    ~Scratch() { arena_.top_ = mark_, --arena_.scratch_; }
    Scratch(const Scratch&) = delete;
    template <class T> View<T> take(long rows, long cols, Where at = Where::current()) {
        return arena_.take<T>(rows, cols, cols, at);
    }
    template <class T> View<T> take(long rows, long cols, long stride, Where at = Where::current()) {
        return arena_.take<T>(rows, cols, stride, at);
    }
private:
    Arena& arena_;
    size_t mark_;
};

}  // namespace baretrain
