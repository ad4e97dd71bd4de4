// One call of a oneDNN primitive, and how the three tensors get to it and back.
#pragma once

#include <string>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"
#include "onednn/formulate.h"
#include "strided_copy.h"

namespace jcc::onednn {

class Kernel {
 public:
  // Takes the first formulation of the problem for which oneDNN has more than its reference kernel (a naive loop), the
  // reference where there is nothing else. Throws Unsupported where there is not even that.
  explicit Kernel(const Problem& problem);

  // The operands and the result of the problem's direction are read and written, in their place among x, w and y.
  // Any number of threads may be in it.
  void Run(void* x, void* w, void* y) const;

  // The implementation's name, such as "jit:avx2".
  const std::string& name() const { return name_; }

  // How many bytes of the result it writes.
  int64_t written() const { return written_; }

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

  void Prepare(const Formulation& formulation, bool reference);
  void Stage(const std::vector<std::vector<CopyAxis>>& axes, const Tensor& tensor, const dnnl::memory::desc& native,
             bool result, Operand& operand);
  size_t Reserve(size_t bytes);
  void Move(const Operand& operand, char* user, char* scratch, bool result) const;

  Direction direction_;
  bool serial_ = false;
  int64_t written_ = 0;
  Operand x_, w_, y_;
  dnnl::primitive primitive_;
  size_t scratch_bytes_ = 0, scratchpad_ = 0;
  dnnl::memory::desc scratchpad_desc_;
  std::string name_;
};

}  // namespace jcc::onednn
