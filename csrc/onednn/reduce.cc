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
