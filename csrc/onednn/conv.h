// One convolution prepared for oneDNN: built once per problem, run from any number of threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conv_spec.h"
#include "onednn/formulate.h"
#include "onednn/kernel.h"
#include "plan_cache.h"

namespace jcc::onednn {

// How many plans are kept unless the user says otherwise. A plan holds generated code and tables, 50 to 200 KiB.
inline constexpr size_t kDefaultPlans = 512;

class ConvPlan {
 public:
  explicit ConvPlan(const ConvSpec& spec);

  // The operands and the result of the spec's direction are read and written, in their place among x, w and y.
  void Run(void* x, void* w, void* y) const;

  // The name of oneDNN's implementation, such as "jit:avx2".
  std::string kernel() const;

  // Has oneDNN but its reference kernel, a naive loop?
  bool is_naive() const { return is_naive_; }

  // Should XLA compute the problem, and why?
  const XlaAdvice& advice() const { return advice_; }

 private:
  Direction direction_;
  int64_t result_bytes_;
  bool is_naive_ = false;
  XlaAdvice advice_;
  bool zero_first_ = false;      // the kernels write only a part of the result; the rest is zero
  std::vector<Kernel> kernels_;  // several where a gradient is taken apart; none where the whole result is zero
};

// The bounded cache of plans, which all calls share.
PlanCache<ConvSpec, ConvPlan>& Plans();

std::shared_ptr<const ConvPlan> GetPlan(const ConvSpec& spec);

}  // namespace jcc::onednn
