#include "onednn/reduce.h"

#include <algorithm>

namespace jcc::onednn {

bool Trim(Problem& problem) {
  for (int a = 0; a < problem.rank; ++a) {
    int64_t &in = problem.x.extent[2 + a], &out = problem.y.extent[2 + a];
    int64_t &low = problem.pad_low[a], &stride = problem.stride[a];
    if (problem.w.extent[2 + a] == 1) problem.dilation[a] = 1;
    if (in <= 0 || out <= 0) return false;

    const int64_t excess = low - (problem.reach(a) - 1);
    const int64_t skipped = excess > 0 ? (excess + stride - 1) / stride : 0;
    problem.y.offset += skipped * problem.y.stride[2 + a];
    low -= skipped * stride;
    out -= skipped;
    if (in - 1 + low < 0) return false;
    out = std::min(out, (in - 1 + low) / stride + 1);
    if (out <= 0) return false;

    if (low < 0) {
      problem.x.offset -= low * problem.x.stride[2 + a];
      in += low;
      low = 0;
    }
    const int64_t unread = -problem.pad_high(a);
    if (unread >= stride) in -= unread;

    if (problem.w.extent[2 + a] == 1 && stride > 1) {
      in = out;
      problem.x.stride[2 + a] *= stride;
      stride = 1;
    }
  }
  return problem.n() > 0 && problem.groups * problem.in_features() > 0 && problem.out_features() > 0;
}

bool FoldTaps(Problem& problem) {
  if (problem.groups > 1) return false;
  bool any = false;
  for (int a = 0; a < problem.rank; ++a) {
    const int64_t taps = problem.w.extent[2 + a];
    if (taps != problem.stride[a]) return false;  // Trim made every one-tap kernel unit-stride
    if (taps > 1 && (problem.dilation[a] != 1 || problem.pad_low[a] != 0 || problem.pad_high(a) > 0)) return false;
    any |= taps > 1;
  }
  if (!any) return false;
  for (int a = 0; a < problem.rank; ++a) {
    int64_t& taps = problem.w.extent[2 + a];
    if (taps == 1) continue;
    problem.x_taps.push_back({taps, problem.x.stride[2 + a], 0});
    problem.w_taps.push_back({taps, problem.w.stride[2 + a], 0});
    problem.x.extent[2 + a] = problem.y.extent[2 + a];
    problem.x.stride[2 + a] *= taps;
    problem.x.extent[1] *= taps;
    problem.w.extent[1] *= taps;
    taps = problem.stride[a] = 1;
  }
  return true;
}

void SplitDilation(Problem& problem) {
  const int64_t d = problem.dilation[0];
  if (problem.rank != 1 || d == 1 || problem.stride[0] != 1) return;
  if (problem.x.extent[2] % d != 0 || problem.y.extent[2] % d != 0 || problem.pad_low[0] % d != 0) return;
  for (Tensor* tensor : {&problem.x, &problem.y}) {
    tensor->extent[2] /= d;
    tensor->extent[3] = d;
    tensor->stride[3] = tensor->stride[2];
    tensor->stride[2] *= d;
  }
  problem.w.extent[3] = 1;
  problem.pad_low[0] /= d;
  problem.dilation[0] = problem.dilation[1] = problem.stride[1] = 1;
  problem.rank = 2;
}

std::vector<Problem> SliceDepth(const Problem& problem) {
  std::vector<Problem> slices;
  const int64_t stride = problem.stride[0], low = problem.pad_low[0];
  for (int64_t tap = 0; tap < problem.w.extent[2]; ++tap) {
    // The frames of y for which this tap reads a frame of x: 0 <= q*stride - low + at < depth.
    const int64_t at = tap * problem.dilation[0], reachable = problem.x.extent[2] - 1 + low - at;
    const int64_t first = std::max<int64_t>(0, (low - at + stride - 1) / stride);
    const int64_t last = reachable < 0 ? -1 : std::min(problem.y.extent[2] - 1, reachable / stride);
    if (first > last) continue;
    Problem slice = problem;
    slice.x.offset += (first * stride - low + at) * problem.x.stride[2];
    slice.y.offset += first * problem.y.stride[2];
    slice.w.offset += tap * problem.w.stride[2];
    slice.x_frames = {{last - first + 1, stride * problem.x.stride[2], 0}};
    slice.y_frames = {{last - first + 1, problem.y.stride[2], 0}};
    slice.x.extent[0] *= last - first + 1;
    slice.y.extent[0] *= last - first + 1;
    for (Tensor* tensor : {&slice.x, &slice.w, &slice.y}) {
      std::copy(tensor->extent.begin() + 3, tensor->extent.end(), tensor->extent.begin() + 2);
      std::copy(tensor->stride.begin() + 3, tensor->stride.end(), tensor->stride.begin() + 2);
    }
    for (Spatial* values : {&slice.stride, &slice.dilation, &slice.pad_low})
      std::copy(values->begin() + 1, values->end(), values->begin());
    slice.rank = problem.rank - 1;
    slices.push_back(slice);
  }
  return slices;
}

std::vector<Problem> SliceWidth(const Problem& problem, int64_t widest) {
  std::vector<Problem> slices;
  const int64_t a = problem.rank - 1, width = problem.w.extent[2 + a];
  const int64_t parts = (width + widest - 1) / widest, taps = (width + parts - 1) / parts;
  for (int64_t first = 0; first < width; first += taps) {
    Problem slice = problem;
    slice.w.offset += first * problem.w.stride[2 + a];
    slice.w.extent[2 + a] = std::min(taps, width - first);
    slice.pad_low[a] -= first * problem.dilation[a];
    if (Trim(slice)) slices.push_back(slice);
  }
  return slices;
}

void InsertUnitAxis(Problem& problem) {
  if (problem.rank > 1) return;
  for (Tensor* tensor : {&problem.x, &problem.w, &problem.y}) {
    tensor->extent[3] = tensor->extent[2];
    tensor->stride[3] = tensor->stride[2];
    tensor->extent[2] = 1;
    tensor->stride[2] = 0;
  }
  problem.stride[1] = problem.stride[0];
  problem.dilation[1] = problem.dilation[0];
  problem.pad_low[1] = problem.pad_low[0];
  problem.stride[0] = problem.dilation[0] = 1;
  problem.pad_low[0] = 0;
  problem.rank = 2;
}

}  // namespace jcc::onednn
