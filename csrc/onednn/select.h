// Which of oneDNN's implementations computes a formulation.
#pragma once

#include <string>

#include "errors.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "onednn/formulate.h"

namespace jcc::onednn {

struct Selection {
  dnnl::primitive primitive;
  dnnl::memory::desc x, w, y, scratchpad;  // the layouts the kernel takes
  std::string name;
};

inline dnnl::memory::data_type ToOneDnn(DType dtype) {
  using Type = dnnl::memory::data_type;
  return dtype == DType::kF32 ? Type::f32 : dtype == DType::kBF16 ? Type::bf16 : Type::f16;
}

// Prepares the first of oneDNN's implementations that works, or with `reference` the first of its reference kernels
// (naive loops). Throws Unsupported or dnnl::error where there is none.
Selection Select(const dnnl::engine& engine, const Formulation& formulation, bool reference);

}  // namespace jcc::onednn
