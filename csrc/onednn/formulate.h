// The ways in which a convolution may be put to oneDNN, the fastest first.
#pragma once

#include <string>
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

// Is the implementation of this name a reference, a naive loop?
bool IsReference(const std::string& kernel);

// Where XLA is faster although oneDNN has a kernel.
struct XlaAdvice {
  const char* reason = nullptr;  // none: it is not
  bool in_double = false;        // XLA is to compute in float64
};
XlaAdvice AdviseXla(const Problem& trimmed, const std::string& kernel);

// Is the problem so small that waking a second thread costs more than it saves?
bool IsSmall(const Problem& problem);

}  // namespace jcc::onednn
