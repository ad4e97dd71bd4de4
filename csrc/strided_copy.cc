#include "strided_copy.h"

#include <algorithm>
#include <cstring>

#include "parallel.h"

namespace jcc {
namespace {

constexpr int64_t kTile = 16;         // a tile of a transpose: one cache line of f32 either way
constexpr int64_t kGrain = 32 << 10;  // elements a thread should have to copy to be worth waking

template <typename T>
void Transpose(const T* src, T* dst, CopyAxis outer, CopyAxis inner) {
  for (int64_t a = 0; a < outer.extent; a += kTile) {
    const int64_t a_end = std::min(a + kTile, outer.extent);
    for (int64_t b = 0; b < inner.extent; b += kTile) {
      const int64_t b_end = std::min(b + kTile, inner.extent);
      for (int64_t i = a; i < a_end; ++i)
        for (int64_t j = b; j < b_end; ++j) dst[i * outer.dst + j * inner.dst] = src[i * outer.src + j * inner.src];
    }
  }
}

template <typename T, int64_t kRow>
void CopyShortRows(const T* src, T* dst, CopyAxis rows) {
  for (int64_t i = 0; i < rows.extent; ++i) std::memcpy(dst + i * rows.dst, src + i * rows.src, kRow * sizeof(T));
}

template <typename T>
void CopyPlane(const T* src, T* dst, CopyAxis outer, CopyAxis inner) {
  if (inner.src != 1 || inner.dst != 1) return Transpose(src, dst, outer, inner);
  if (inner.extent == 8) return CopyShortRows<T, 8>(src, dst, outer);
  if (inner.extent == 16) return CopyShortRows<T, 16>(src, dst, outer);
  for (int64_t i = 0; i < outer.extent; ++i)
    std::memcpy(dst + i * outer.dst, src + i * outer.src, inner.extent * sizeof(T));
}

// Drops trivial axes, orders the loops by where they write, and merges neighbours that are one loop on both sides.
std::vector<CopyAxis> Normalized(std::vector<CopyAxis> axes) {
  axes.erase(std::remove_if(axes.begin(), axes.end(), [](const CopyAxis& a) { return a.extent == 1; }), axes.end());
  std::stable_sort(axes.begin(), axes.end(), [](const CopyAxis& a, const CopyAxis& b) { return a.dst > b.dst; });
  std::vector<CopyAxis> merged;
  for (const CopyAxis& axis : axes) {
    if (!merged.empty() && merged.back().dst == axis.extent * axis.dst && merged.back().src == axis.extent * axis.src) {
      merged.back() = {merged.back().extent * axis.extent, axis.src, axis.dst};
    } else {
      merged.push_back(axis);
    }
  }
  // Where reads are not contiguous in the innermost loop, the loop in which they are comes next to it: a transpose.
  if (!merged.empty() && merged.back().src != 1) {
    const auto contiguous = std::find_if(merged.begin(), merged.end(), [](const CopyAxis& a) { return a.src == 1; });
    if (contiguous != merged.end()) std::rotate(contiguous, contiguous + 1, merged.end() - 1);
  }
  while (merged.size() < 2) merged.insert(merged.begin(), CopyAxis{1, 0, 0});
  return merged;
}

}  // namespace

StridedCopy::StridedCopy(std::vector<CopyAxis> axes, int64_t element_size)
    : axes_(Normalized(std::move(axes))), element_size_(element_size) {}

StridedCopy StridedCopy::Reversed() const {
  std::vector<CopyAxis> axes = axes_;
  for (CopyAxis& axis : axes) std::swap(axis.src, axis.dst);
  return StridedCopy(std::move(axes), element_size_);
}

template <typename T>
void StridedCopy::RunAs(const T* src, T* dst) const {
  const size_t loops = axes_.size() - 2;
  const CopyAxis outer = axes_[loops], inner = axes_[loops + 1];
  int64_t planes = 1;
  for (size_t k = 0; k < loops; ++k) planes *= axes_[k].extent;
  const int64_t plane_size = std::max<int64_t>(outer.extent * inner.extent, 1);
  // With few planes the rows are shared out instead.
  const int64_t pieces = planes >= 2 * NumThreads() ? 1 : std::min<int64_t>(outer.extent, 4 * NumThreads());
  if (pieces == 0) return;
  ParallelFor(planes * pieces, std::max<int64_t>(1, kGrain * pieces / plane_size), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      int64_t rest = task / pieces, from = 0, to = 0;
      for (size_t k = loops; k-- > 0;) {
        const int64_t index = rest % axes_[k].extent;
        rest /= axes_[k].extent;
        from += index * axes_[k].src;
        to += index * axes_[k].dst;
      }
      const int64_t piece = task % pieces;
      const int64_t first = outer.extent * piece / pieces, last = outer.extent * (piece + 1) / pieces;
      CopyPlane(src + from + first * outer.src, dst + to + first * outer.dst, {last - first, outer.src, outer.dst},
                inner);
    }
  });
}

void StridedCopy::Run(const void* src, void* dst) const {
  if (element_size_ == 2) {
    RunAs(static_cast<const uint16_t*>(src), static_cast<uint16_t*>(dst));
  } else {
    RunAs(static_cast<const uint32_t*>(src), static_cast<uint32_t*>(dst));
  }
}

}  // namespace jcc
