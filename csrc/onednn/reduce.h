// Brings a convolution into a form that oneDNN computes well, without changing what it computes.
#pragma once

#include <vector>

#include "conv_spec.h"
#include "strided_copy.h"

namespace jcc::onednn {

// A reduced convolution. Axes may be made of several of the caller's, given as extents and strides (dst is not used).
struct Problem : ConvSpec {
  explicit Problem(const ConvSpec& spec) : ConvSpec(spec) {}

  std::vector<CopyAxis> x_taps, w_taps;      // outer factors of the input features: see FoldTaps
  std::vector<CopyAxis> x_frames, y_frames;  // inner factors of the batch: see SliceDepth
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

// A weight gradient of volumes, one tap of the first axis at a time: gradients of images, the frames of a volume being
// a part of the batch. Taps that meet only padding are left out. (oneDNN's 3-D weight gradient on AVX2 is a matrix
// product on copies of each volume.)
std::vector<Problem> SliceDepth(const Problem& problem);

// A weight gradient in parts of about equal width, none over `widest` taps of the last axis: weights that do not depend
// on each other. Parts that meet only padding are left out. Needs a trimmed problem, and gives trimmed ones.
std::vector<Problem> SliceWidth(const Problem& problem, int64_t widest);

// Makes one spatial axis two, the first of extent 1: oneDNN's 2-D kernels are better than its 1-D ones.
void InsertUnitAxis(Problem& problem);

}  // namespace jcc::onednn
