#include "onednn/conv.h"

#include <cstdlib>
#include <cstring>

#include "onednn/reduce.h"
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

int64_t ElementSize(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

int64_t NumElements(const Tensor& tensor, int64_t rank) {
  int64_t count = 1;
  for (int64_t k = 0; k < 2 + rank; ++k) count *= tensor.extent[k];
  return count;
}

// Strides of the tensor's extents, channels last.
std::array<int64_t, 2 + kMaxSpatial> ChannelsLast(const Tensor& tensor, int64_t rank) {
  std::array<int64_t, 2 + kMaxSpatial> stride{};
  int64_t next = tensor.extent[1];
  stride[1] = 1;
  for (int64_t k = 1 + rank; k >= 2; --k) {
    stride[k] = next;
    next *= tensor.extent[k];
  }
  stride[0] = next;
  return stride;
}

// The logical axes of the kernel's weights, (groups,) output features, input features, taps, with w's strides.
std::vector<CopyAxis> WeightAxes(const ConvSpec& spec) {
  const Tensor& w = spec.w;
  std::vector<CopyAxis> axes;
  if (spec.groups > 1) axes.push_back({spec.groups, spec.out_features() * w.stride[0], 0});
  axes.push_back({spec.out_features(), w.stride[0], 0});
  for (int64_t k = 1; k < 2 + spec.rank; ++k) axes.push_back({w.extent[k], w.stride[k], 0});
  return axes;
}

// A copy from strides to a blocked layout, if the blocks divide the extents.
bool BlockedCopy(const std::vector<CopyAxis>& axes, const memory::desc& native, int64_t element_size,
                 StridedCopy& copy) {
  if (native.get_format_kind() != memory::format_kind::blocked || native.get_padded_dims() != native.get_dims() ||
      native.get_submemory_offset() != 0)
    return false;
  const auto strides = native.get_strides(), blocks = native.get_inner_blks(), places = native.get_inner_idxs();
  std::vector<int64_t> block(axes.size(), 1);  // how many consecutive elements of each axis the blocks hold
  std::vector<CopyAxis> loops;
  int64_t inner = 1;
  for (size_t k = blocks.size(); k-- > 0;) {
    int64_t& size = block[places[k]];
    loops.push_back({blocks[k], axes[places[k]].src * size, inner});
    size *= blocks[k];
    inner *= blocks[k];
  }
  for (size_t k = 0; k < axes.size(); ++k)
    loops.push_back({axes[k].extent / block[k], axes[k].src * block[k], strides[k]});
  copy = StridedCopy(std::move(loops), element_size);
  return true;
}

}  // namespace

ConvPlan::ConvPlan(const ConvSpec& original) : direction_(original.direction) {
  ConvSpec spec = original;
  result_bytes_ = NumElements(original.result(), original.rank) * ElementSize(original.result().dtype);
  if (result_bytes_ == 0) {
    empty_ = true;
    return;
  }
  empty_ = !Reduce(spec);
  if (empty_) return;
  const Tensor &before = original.result(), &after = spec.result();
  zero_first_ = direction_ != Direction::kBackwardFilter &&
                NumElements(before, spec.rank) != NumElements(after, spec.rank);
  if (spec.rank == 1) InsertUnitAxis(spec);
  serial_ = IsSmall(spec);
  if (serial_) {
    Serially([&] { Choose(spec); });
  } else {
    Choose(spec);
  }
}

size_t ConvPlan::Reserve(size_t bytes) {
  const size_t offset = scratch_bytes_;
  scratch_bytes_ += Aligned(bytes);
  return offset;
}

void ConvPlan::Choose(const ConvSpec& spec) {
  StageActivation(spec.x, spec.rank, direction_ == Direction::kBackwardData, x_);
  StageActivation(spec.y, spec.rank, direction_ == Direction::kForward, y_);
  Selection selected = Select(Engine(), spec, x_.native, y_.native);
  primitive_ = selected.primitive;
  kernel_ = selected.name;
  scratchpad_desc_ = selected.scratchpad;
  scratchpad_ = Reserve(scratchpad_desc_.get_size());
  StageWeights(spec, selected.weights);
}

void ConvPlan::StageActivation(const Tensor& tensor, int64_t rank, bool result, Operand& operand) {
  const auto native = ChannelsLast(tensor, rank);
  const memory::dims dims(tensor.extent.begin(), tensor.extent.begin() + 2 + rank);
  operand.native = memory::desc(dims, ToOneDnn(tensor.dtype), memory::dims(native.begin(), native.begin() + 2 + rank));
  operand.offset = tensor.offset * ElementSize(tensor.dtype);
  std::vector<CopyAxis> axes;
  bool same = true;
  for (int64_t k = 0; k < 2 + rank; ++k) {
    axes.push_back({tensor.extent[k], tensor.stride[k], native[k]});
    same &= tensor.extent[k] == 1 || tensor.stride[k] == native[k];
  }
  if (same) return;
  operand.move = Operand::Move::kCopy;
  operand.copy = StridedCopy(std::move(axes), ElementSize(tensor.dtype));
  if (result) operand.copy = operand.copy.Reversed();
  operand.scratch = Reserve(operand.native.get_size());
}

void ConvPlan::StageWeights(const ConvSpec& spec, const memory::desc& native) {
  const std::vector<CopyAxis> axes = WeightAxes(spec);
  const bool result = direction_ == Direction::kBackwardFilter;
  memory::dims dims, strides;
  for (const CopyAxis& axis : axes) {
    dims.push_back(axis.extent);
    strides.push_back(axis.src);
  }
  w_.native = native;
  w_.user = memory::desc(dims, ToOneDnn(spec.w.dtype), strides);
  if (w_.user == native) return;
  w_.scratch = Reserve(native.get_size());
  if (BlockedCopy(axes, native, ElementSize(spec.w.dtype), w_.copy)) {
    w_.move = Operand::Move::kCopy;
    if (result) w_.copy = w_.copy.Reversed();
    return;
  }
  w_.move = Operand::Move::kReorder;
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::reorder::primitive_desc pd(Engine(), result ? native : w_.user, Engine(), result ? w_.user : native,
                                         attr);
  w_.reorder = dnnl::reorder(pd);
  w_.reorder_scratchpad = pd.scratchpad_desc();
  reorder_scratchpad_ = Reserve(w_.reorder_scratchpad.get_size());
}

void ConvPlan::Move(const Operand& operand, char* user, char* scratch, bool result) const {
  char* const native = scratch + operand.scratch;
  if (operand.move == Operand::Move::kCopy) {
    operand.copy.Run(result ? native : user, result ? user : native);
  } else if (operand.move == Operand::Move::kReorder) {
    memory theirs(operand.user, Engine(), user), ours(operand.native, Engine(), native);
    operand.reorder.execute(Stream(), {{DNNL_ARG_FROM, result ? ours : theirs},
                                       {DNNL_ARG_TO, result ? theirs : ours},
                                       {DNNL_ARG_SCRATCHPAD,
                                        memory(operand.reorder_scratchpad, Engine(), scratch + reorder_scratchpad_)}});
  }
}

void ConvPlan::Run(void* x, void* w, void* y) const {
  const bool forward = direction_ == Direction::kForward, data = direction_ == Direction::kBackwardData;
  if (empty_ || zero_first_) std::memset(forward ? y : data ? x : w, 0, result_bytes_);
  if (empty_) return;
  const auto run = [&] {
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
  };
  if (serial_) {
    Serially(run);
  } else {
    run();
  }
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
