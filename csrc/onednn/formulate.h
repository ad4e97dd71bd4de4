// The ways in which a convolution may be put to oneDNN, the fastest first.
#pragma once

#include <vector>

#include "onednn/reduce.h"

namespace jcc::onednn {

struct Formulation {
  Problem problem;
  bool blocked = false;         // activations in blocks of channels as oneDNN likes them, or channels last?
  const char* first = nullptr;  // implementations to try before the others, by a piece of their name
};

// The problems whose results together are the problem's: itself, or slices of it.
std::vector<Problem> TakeApart(const Problem& trimmed);

// Never empty; the last one is the problem as it is, channels last, in oneDNN's own order.
std::vector<Formulation> Formulate(const Problem& trimmed);

// oneDNN's depthwise weight gradient needs images at least as large as the kernel. Below that it multiplies matrices of
// one row for each image and channel; for a batch of them XLA is several times faster.
bool IsBetterOnXla(const Problem& trimmed);

// Is the problem so small that waking a second thread costs more than it saves?
bool IsSmall(const Problem& problem);

}  // namespace jcc::onednn
