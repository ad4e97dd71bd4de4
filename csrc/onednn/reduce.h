// Brings a convolution into the form that every oneDNN kernel takes, without changing what it computes.
#pragma once

#include "conv_spec.h"

namespace jcc::onednn {

// Trims each axis:
//  - outputs whose whole window lies in padding are left out (they are zero, and add nothing to a gradient);
//  - inputs before the first and after the last window are left out (their gradient is zero);
//  - a kernel of one tap reads every stride-th input: a unit-stride convolution over a strided view.
// After it 0 <= pad_low < reach and -stride < pad_high < reach. Returns false where nothing is left to sum over: the
// result is all zero. (oneDNN refuses negative pads; its AVX2 weight gradient of a strided 1x1 is wrong.)
inline bool Reduce(ConvSpec& spec) {
  for (int a = 0; a < spec.rank; ++a) {
    int64_t &in = spec.x.extent[2 + a], &out = spec.y.extent[2 + a];
    int64_t &low = spec.pad_low[a], &stride = spec.stride[a];
    if (spec.w.extent[2 + a] == 1) spec.dilation[a] = 1;
    if (in <= 0 || out <= 0) return false;

    const int64_t excess = low - (spec.reach(a) - 1);
    const int64_t skipped = excess > 0 ? (excess + stride - 1) / stride : 0;
    spec.y.offset += skipped * spec.y.stride[2 + a];
    low -= skipped * stride;
    out -= skipped;
    if (in - 1 + low < 0) return false;
    out = std::min(out, (in - 1 + low) / stride + 1);
    if (out <= 0) return false;

    if (low < 0) {
      spec.x.offset -= low * spec.x.stride[2 + a];
      in += low;
      low = 0;
    }
    const int64_t unread = -spec.pad_high(a);
    if (unread >= stride) in -= unread;

    if (spec.w.extent[2 + a] == 1 && stride > 1) {
      in = out;
      spec.x.stride[2 + a] *= stride;
      stride = 1;
    }
  }
  return spec.n() > 0 && spec.groups * spec.in_features() > 0 && spec.out_features() > 0;
}

}  // namespace jcc::onednn
