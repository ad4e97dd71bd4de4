// Copies between two layouts of the same elements: crops, sub-sampling, transposes, blocked weights.
#pragma once

#include <cstdint>
#include <vector>

namespace jcc {

// One loop of a copy: how many elements, and how far apart they lie on either side (in elements).
struct CopyAxis {
  int64_t extent, src, dst;
};

class StridedCopy {
 public:
  StridedCopy() = default;
  StridedCopy(std::vector<CopyAxis> axes, int64_t element_size);

  void Run(const void* src, void* dst) const;
  StridedCopy Reversed() const;

 private:
  template <typename T>
  void RunAs(const T* src, T* dst) const;

  std::vector<CopyAxis> axes_;  // outermost first; the last two are the kernel's
  int64_t element_size_ = 4;
};

}  // namespace jcc
