#include "onednn/kernel.h"

#include <algorithm>

#include "onednn/select.h"
#include "parallel.h"
#include "scratch.h"

namespace jcc::onednn {
namespace {

using dnnl::memory;

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& Stream() {
  thread_local dnnl::stream stream(Engine());
  return stream;
}

// A logical axis as oneDNN has it: the loops over the caller's memory that make it up, outermost first.
using Axis = std::vector<CopyAxis>;

// The axes of x or y, or of w with the groups apart. `outer` are the outer factors of the features (folded taps),
// `inner` those within the batch (frames of a volume).
std::vector<Axis> Axes(const Tensor& tensor, int64_t rank, const std::vector<CopyAxis>& outer,
                       const std::vector<CopyAxis>& inner = {}, int64_t groups = 1) {
  int64_t first = tensor.extent[0] / groups, features = tensor.extent[1];
  for (const CopyAxis& axis : inner) first /= axis.extent;
  for (const CopyAxis& axis : outer) features /= axis.extent;
  std::vector<Axis> axes;
  if (groups > 1) axes.push_back({{groups, first * tensor.stride[0], 0}});
  axes.push_back({{first, tensor.stride[0], 0}});
  axes.back().insert(axes.back().end(), inner.begin(), inner.end());
  axes.push_back(outer);
  axes.back().push_back({features, tensor.stride[1], 0});
  for (int64_t k = 2; k < 2 + rank; ++k) axes.push_back({{tensor.extent[k], tensor.stride[k], 0}});
  return axes;
}

// The loops that copy from strides to a oneDNN layout, if the layout's blocks divide the extents.
bool BlockedLoops(const std::vector<Axis>& axes, const memory::desc& native, std::vector<CopyAxis>& loops) {
  if (native.get_format_kind() != memory::format_kind::blocked || native.get_padded_dims() != native.get_dims() ||
      native.get_submemory_offset() != 0)
    return false;
  const auto strides = native.get_strides(), blocks = native.get_inner_blks(), places = native.get_inner_idxs();
  std::vector<int64_t> block(axes.size(), 1);  // how many consecutive elements of each axis the blocks hold
  int64_t inner = 1;
  for (size_t k = blocks.size(); k-- > 0;) {
    int64_t& size = block[places[k]];
    loops.push_back({blocks[k], axes[places[k]].back().src * size, inner});
    size *= blocks[k];
    inner *= blocks[k];
  }
  for (size_t k = 0; k < axes.size(); ++k) {
    CopyAxis loop = axes[k].back();
    if (loop.extent % block[k] != 0) return false;
    loops.push_back({loop.extent / block[k], loop.src * block[k], strides[k]});
    int64_t next = loop.extent / block[k] * strides[k];
    for (size_t f = axes[k].size() - 1; f-- > 0;) {
      loops.push_back({axes[k][f].extent, axes[k][f].src, next});
      next *= axes[k][f].extent;
    }
  }
  return true;
}

// Do the loops go through memory in the same order on both sides, so that there is nothing to copy?
bool AreIdentity(const std::vector<CopyAxis>& loops) {
  return std::all_of(loops.begin(), loops.end(), [](const CopyAxis& a) { return a.extent == 1 || a.src == a.dst; });
}

}  // namespace

Kernel::Kernel(const Problem& problem) : direction_(problem.direction), serial_(IsSmall(problem)) {
  std::string refused;
  for (const bool reference : {false, true}) {
    for (const Formulation& formulation : Formulate(problem)) {
      try {
        WithThreads(serial_, [&] { Prepare(formulation, reference); });
        return;
      } catch (const Unsupported& error) {
        refused = error.what();
      } catch (const dnnl::error& error) {
        refused = std::string("oneDNN refuses the problem: ") + error.what();
      }
    }
  }
  throw Unsupported(refused);
}

size_t Kernel::Reserve(size_t bytes) {
  const size_t offset = scratch_bytes_;
  scratch_bytes_ += Aligned(bytes);
  return offset;
}

void Kernel::Prepare(const Formulation& formulation, bool reference) {
  const Problem& problem = formulation.problem;
  const Selection selected = Select(Engine(), formulation, reference);
  written_ = NumBytes(problem.result(), problem.rank);
  x_ = w_ = y_ = {};
  scratch_bytes_ = 0;
  primitive_ = selected.primitive;
  name_ = selected.name;
  scratchpad_desc_ = selected.scratchpad;
  scratchpad_ = Reserve(scratchpad_desc_.get_size());
  const int64_t rank = problem.rank;
  Stage(Axes(problem.x, rank, problem.x_taps, problem.x_frames), problem.x, selected.x,
        direction_ == Direction::kBackwardData, x_);
  Stage(Axes(problem.w, rank, problem.w_taps, {}, problem.groups), problem.w, selected.w,
        direction_ == Direction::kBackwardFilter, w_);
  Stage(Axes(problem.y, rank, {}, problem.y_frames), problem.y, selected.y, direction_ == Direction::kForward, y_);
}

void Kernel::Stage(const std::vector<std::vector<CopyAxis>>& axes, const Tensor& tensor, const memory::desc& native,
                   bool result, Operand& operand) {
  operand.native = native;
  operand.offset = tensor.offset * ElementSize(tensor.dtype);
  std::vector<CopyAxis> loops;
  if (BlockedLoops(axes, native, loops)) {
    if (AreIdentity(loops)) return;
    operand.move = Operand::Move::kCopy;
    operand.copy = StridedCopy(std::move(loops), ElementSize(tensor.dtype));
    if (result) operand.copy = operand.copy.Reversed();
  } else {
    memory::dims dims, strides;
    for (const Axis& axis : axes) {
      if (axis.size() > 1) throw Unsupported("oneDNN's layout splits an axis that is made of several");
      dims.push_back(axis.back().extent);
      strides.push_back(axis.back().src);
    }
    operand.move = Operand::Move::kReorder;
    operand.user = memory::desc(dims, ToOneDnn(tensor.dtype), strides);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::reorder::primitive_desc pd(Engine(), result ? native : operand.user, Engine(),
                                           result ? operand.user : native, attr);
    operand.reorder = dnnl::reorder(pd);
    operand.reorder_scratchpad = pd.scratchpad_desc();
    operand.reorder_scratch = Reserve(operand.reorder_scratchpad.get_size());
  }
  operand.scratch = Reserve(native.get_size());
}

void Kernel::Move(const Operand& operand, char* user, char* scratch, bool result) const {
  char* const native = scratch + operand.scratch;
  if (operand.move == Operand::Move::kCopy) {
    operand.copy.Run(result ? native : user, result ? user : native);
  } else if (operand.move == Operand::Move::kReorder) {
    memory theirs(operand.user, Engine(), user), ours(operand.native, Engine(), native);
    operand.reorder.execute(
        Stream(),
        {{DNNL_ARG_FROM, result ? ours : theirs},
         {DNNL_ARG_TO, result ? theirs : ours},
         {DNNL_ARG_SCRATCHPAD, memory(operand.reorder_scratchpad, Engine(), scratch + operand.reorder_scratch)}});
  }
}

void Kernel::Run(void* x, void* w, void* y) const {
  const bool forward = direction_ == Direction::kForward, data = direction_ == Direction::kBackwardData;
  WithThreads(serial_, [&] {
    const Scratch memory_block(scratch_bytes_);
    char* const scratch = memory_block.data();
    struct Place {
      const Operand& operand;
      char* user;
      int argument;
    };
    const Place places[] = {
        {x_, static_cast<char*>(x) + x_.offset, data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC},
        {w_, static_cast<char*>(w) + w_.offset, !forward && !data ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS},
        {y_, static_cast<char*>(y) + y_.offset, forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST},
    };
    const int result = forward ? 2 : data ? 0 : 1;
    std::unordered_map<int, memory> arguments;
    arguments.reserve(4);
    for (int k = 0; k < 3; ++k) {
      const auto& [operand, user, argument] = places[k];
      if (k != result) Move(operand, user, scratch, false);
      char* const data_pointer = operand.move == Operand::Move::kNone ? user : scratch + operand.scratch;
      arguments.emplace(argument, memory(operand.native, Engine(), data_pointer));
    }
    arguments.emplace(DNNL_ARG_SCRATCHPAD, memory(scratchpad_desc_, Engine(), scratch + scratchpad_));
    primitive_.execute(Stream(), arguments);
    Move(places[result].operand, places[result].user, scratch, true);
    Stream().wait();
  });
}

}  // namespace jcc::onednn
