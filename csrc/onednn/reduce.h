// Brings a convolution into a form that oneDNN computes well, without changing what it computes.
#pragma once

#include <vector>

#include "conv_spec.h"
#include "strided_copy.h"

namespace jcc::onednn {

// A reduced convolution. The kernel taps that became input features (see FoldTaps) are outer factors of the feature
// axis of x and w: their extents, and their strides in either tensor.
struct Problem : ConvSpec {
  explicit Problem(const ConvSpec& spec) : ConvSpec(spec) {}

  std::vector<CopyAxis> x_taps, w_taps;  // dst is not used
};

// Trims each axis:
//  - outputs whose whole window lies in padding are left out (they are zero, and add nothing to a gradient);
//  - inputs before the first and after the last window are left out (their gradient is zero);
//  - a kernel of one tap reads every stride-th input: a unit-stride convolution over a strided view.
// After it 0 <= pad_low < reach and -stride < pad_high < reach. Returns false where nothing is left to sum over: the
// result is all zero. (oneDNN refuses negative pads; its AVX2 weight gradient of a strided 1x1 is wrong.)
bool Trim(Problem& problem);

// Where the windows neither overlap nor leave gaps (kernel = stride, no padding: the down- and up-sampling of U-Nets),
// each input element meets one tap only: taps are features, and the convolution is one matrix product.
// Returns whether it did.
bool FoldTaps(Problem& problem);

// One axis dilated by d is d interleaved axes that are not: l = d*h + r makes (L) the same memory as (L/d, d), and a
// dilated kernel (K) a plain one (K, 1). Done where d divides the extents and the pad.
void SplitDilation(Problem& problem);

// Makes one spatial axis two, the first of extent 1: oneDNN's 2-D kernels are better than its 1-D ones.
void InsertUnitAxis(Problem& problem);

}  // namespace jcc::onednn
