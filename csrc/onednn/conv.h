// One convolution prepared for oneDNN: built once per problem, run from any number of threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conv_spec.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "onednn/formulate.h"
#include "plan_cache.h"
#include "strided_copy.h"

namespace jcc::onednn {

// How many plans are kept unless the user says otherwise. A plan holds generated code and tables, 50 to 200 KiB.
inline constexpr size_t kDefaultPlans = 512;

class ConvPlan {
 public:
  explicit ConvPlan(const ConvSpec& spec);

  // The operands and the result of the spec's direction are read and written, in their place among x, w and y.
  void Run(void* x, void* w, void* y) const;

  // The implementation's name, such as "jit:avx2".
  const std::string& kernel() const { return kernel_; }

 private:
  // How one tensor gets from the caller's layout into the kernel's, or back.
  struct Operand {
    enum class Move { kNone, kCopy, kReorder } move = Move::kNone;
    int64_t offset = 0;         // of the caller's first element, in bytes
    dnnl::memory::desc native;  // as the kernel takes it
    dnnl::memory::desc user;    // as the caller has it, for kReorder
    StridedCopy copy;           // caller to kernel (operand) or kernel to caller (result)
    dnnl::reorder reorder;
    dnnl::memory::desc reorder_scratchpad;
    size_t scratch = 0, reorder_scratch = 0;  // where the kernel's copy and the reorder's own lie in the scratch memory
  };

  void Prepare(const Formulation& formulation);
  void Stage(const std::vector<std::vector<CopyAxis>>& axes, const Tensor& tensor, const dnnl::memory::desc& native,
             bool result, Operand& operand);
  size_t Reserve(size_t bytes);
  void Move(const Operand& operand, char* user, char* scratch, bool result) const;

  bool empty_ = false;       // the result is zero
  bool zero_first_ = false;  // the kernel writes only a part of the result; the rest is zero
  int64_t result_bytes_ = 0;
  bool serial_ = false;
  Direction direction_;
  Operand x_, w_, y_;
  dnnl::primitive primitive_;
  size_t scratch_bytes_ = 0, scratchpad_ = 0;
  dnnl::memory::desc scratchpad_desc_;
  std::string kernel_ = "none";
};

// The bounded cache of plans, which all calls share.
PlanCache<ConvSpec, ConvPlan>& Plans();

std::shared_ptr<const ConvPlan> GetPlan(const ConvSpec& spec);

}  // namespace jcc::onednn
