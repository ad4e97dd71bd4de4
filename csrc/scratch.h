// Aligned memory for the duration of a call. (XLA's FFI has no scratch allocator on CPU.)
#pragma once

#include <cstddef>
#include <memory>

namespace jcc {

// A block of at least `bytes` bytes at a 64-byte boundary. Blocks are kept for reuse after release, since pages fresh
// from the system cost more than many a convolution; a bounded amount (kScratchKept) stays with the process.
class Scratch {
 public:
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

inline constexpr size_t kAlignment = 64;
inline constexpr size_t kScratchKept = size_t{256} << 20;

inline size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace jcc
