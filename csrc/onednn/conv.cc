#include "onednn/conv.h"

#include <cstring>

#include "errors.h"
#include "onednn/reduce.h"

namespace jcc::onednn {

ConvPlan::ConvPlan(const ConvSpec& spec)
    : direction_(spec.direction), result_bytes_(NumBytes(spec.result(), spec.rank)) {
  for (const Tensor* tensor : {&spec.x, &spec.w, &spec.y})
    if (tensor->dtype == DType::kF64) throw Unsupported("oneDNN has no f64");
  Problem problem(spec);
  int64_t written = 0;
  if (result_bytes_ > 0 && Trim(problem)) {
    for (const Problem& part : TakeApart(problem)) {
      kernels_.emplace_back(part);
      written += kernels_.back().written();
      is_naive_ |= IsReference(kernels_.back().name());
    }
    if (!kernels_.empty()) advice_ = AdviseXla(problem, kernels_.front().name());
  }
  // Reduced problems leave out what is zero.
  zero_first_ = written != result_bytes_;
}

void ConvPlan::Run(void* x, void* w, void* y) const {
  if (zero_first_) {
    const bool forward = direction_ == Direction::kForward, data = direction_ == Direction::kBackwardData;
    std::memset(forward ? y : data ? x : w, 0, result_bytes_);
  }
  for (const Kernel& kernel : kernels_) kernel.Run(x, w, y);
}

std::string ConvPlan::kernel() const {
  if (kernels_.empty()) return "zero";
  return kernels_.size() == 1 ? kernels_[0].name() : std::to_string(kernels_.size()) + "x " + kernels_[0].name();
}

PlanCache<ConvSpec, ConvPlan>& Plans() {
  // Never destroyed: a computation may still run while the process exits.
  static auto& plans = *new PlanCache<ConvSpec, ConvPlan>(kDefaultPlans);
  return plans;
}

std::shared_ptr<const ConvPlan> GetPlan(const ConvSpec& spec) {
  return Plans().Get(spec, [&] { return std::make_shared<const ConvPlan>(spec); });
}

}  // namespace jcc::onednn
