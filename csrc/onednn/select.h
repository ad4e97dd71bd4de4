// Which of oneDNN's implementations computes a (reduced) convolution.
#pragma once

#include <stdexcept>
#include <string>

#include "conv_spec.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace jcc::onednn {

// What oneDNN cannot run well; the message says why.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Selection {
  dnnl::primitive primitive;
  dnnl::memory::desc weights, scratchpad;
  std::string name;
};

inline dnnl::memory::data_type ToOneDnn(DType dtype) {
  using Type = dnnl::memory::data_type;
  return dtype == DType::kF32 ? Type::f32 : dtype == DType::kBF16 ? Type::bf16 : Type::f16;
}

// One spatial axis more, of extent 1: oneDNN's 2-D kernels are better than its 1-D ones.
void InsertUnitAxis(ConvSpec& spec);

// Is the problem so small that waking a second thread costs more than it saves?
bool IsSmall(const ConvSpec& spec);

// Throws Unsupported where only the reference kernel (a naive loop) would take the problem.
Selection Select(const dnnl::engine& engine, const ConvSpec& spec, const dnnl::memory::desc& x,
                 const dnnl::memory::desc& y);

}  // namespace jcc::onednn
