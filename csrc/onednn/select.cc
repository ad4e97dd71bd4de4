#include "onednn/select.h"

#include <algorithm>
#include <vector>

namespace jcc::onednn {
namespace {

using dnnl::memory;

struct Geometry {
  memory::dims strides, dilates, pad_low, pad_high;
  memory::desc x, w, y;
};

memory::dims Dims(const Tensor& tensor, int64_t rank) {
  return memory::dims(tensor.extent.begin(), tensor.extent.begin() + 2 + rank);
}

memory::desc ChannelsLast(const Tensor& tensor, int64_t rank) {
  using Tag = memory::format_tag;
  return memory::desc(Dims(tensor, rank), ToOneDnn(tensor.dtype), rank == 2 ? Tag::nhwc : Tag::ndhwc);
}

memory::desc AnyLayout(const memory::dims& dims, DType dtype) {
  return memory::desc(dims, ToOneDnn(dtype), memory::format_tag::any);
}

Geometry MakeGeometry(const Problem& problem, bool blocked) {
  Geometry g;
  memory::dims w;
  if (problem.groups > 1) w.push_back(problem.groups);
  w.push_back(problem.out_features());
  w.push_back(problem.in_features());
  for (int a = 0; a < problem.rank; ++a) {
    w.push_back(problem.w.extent[2 + a]);
    g.strides.push_back(problem.stride[a]);
    g.dilates.push_back(problem.dilation[a] - 1);  // oneDNN counts from 0
    g.pad_low.push_back(problem.pad_low[a]);
    g.pad_high.push_back(std::max<int64_t>(problem.pad_high(a), 0));
  }
  g.w = AnyLayout(w, problem.w.dtype);
  g.x = blocked ? AnyLayout(Dims(problem.x, problem.rank), problem.x.dtype) : ChannelsLast(problem.x, problem.rank);
  g.y = blocked ? AnyLayout(Dims(problem.y, problem.rank), problem.y.dtype) : ChannelsLast(problem.y, problem.rank);
  return g;
}

// What the three kinds of primitive descriptor call the layouts of x, w and y.
struct ForwardLayouts {
  template <typename Pd>
  Selection operator()(const Pd& pd) const {
    return {{}, pd.src_desc(), pd.weights_desc(), pd.dst_desc(), pd.scratchpad_desc(), pd.impl_info_str()};
  }
};
struct BackwardDataLayouts {
  template <typename Pd>
  Selection operator()(const Pd& pd) const {
    return {{}, pd.diff_src_desc(), pd.weights_desc(), pd.diff_dst_desc(), pd.scratchpad_desc(), pd.impl_info_str()};
  }
};
struct BackwardFilterLayouts {
  template <typename Pd>
  Selection operator()(const Pd& pd) const {
    return {{}, pd.src_desc(), pd.diff_weights_desc(), pd.diff_dst_desc(), pd.scratchpad_desc(), pd.impl_info_str()};
  }
};

// Makes the primitive of the first implementation that works, those named `first` before the others.
template <typename Primitive, typename Layouts, typename Pd>
Selection FirstThatWorks(const Pd& original, const char* first, bool reference) {
  std::string refused;
  for (const bool preferred : {true, false}) {
    if (preferred && first == nullptr) continue;
    Pd pd = original;
    do {
      Selection selection = Layouts()(pd);
      const bool named = first != nullptr && selection.name.find(first) != std::string::npos;
      if (named != preferred) continue;
      if (IsReference(selection.name) != reference) {
        refused += ' ' + selection.name;
        continue;
      }
      try {
        selection.primitive = Primitive(pd);
        return selection;
      } catch (const dnnl::error& error) {  // code generation may fail for odd shapes: the next may not
        refused += ' ' + selection.name + " (" + error.what() + ")";
      }
    } while (pd.next_impl());
  }
  throw Unsupported("oneDNN has no kernel but" + refused);
}

}  // namespace

Selection Select(const dnnl::engine& engine, const Formulation& formulation, bool reference) {
  using dnnl::algorithm;
  const Problem& problem = formulation.problem;
  const Geometry g = MakeGeometry(problem, formulation.blocked);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (problem.allow_narrow) attr.set_fpmath_mode(dnnl::fpmath_mode::bf16);
  using Forward = dnnl::convolution_forward;
  using BackwardData = dnnl::convolution_backward_data;
  using BackwardFilter = dnnl::convolution_backward_weights;
  const auto prop =
      problem.direction == Direction::kForward ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training;
  const Forward::primitive_desc forward(engine, prop, algorithm::convolution_direct, g.x, g.w, g.y, g.strides,
                                        g.dilates, g.pad_low, g.pad_high, attr);
  switch (problem.direction) {
    case Direction::kForward:
      return FirstThatWorks<Forward, ForwardLayouts>(forward, formulation.first, reference);
    case Direction::kBackwardData:
      return FirstThatWorks<BackwardData, BackwardDataLayouts>(
          BackwardData::primitive_desc(engine, algorithm::convolution_direct, g.x, g.w, g.y, g.strides, g.dilates,
                                       g.pad_low, g.pad_high, forward, attr),
          formulation.first, reference);
    default:
      return FirstThatWorks<BackwardFilter, BackwardFilterLayouts>(
          BackwardFilter::primitive_desc(engine, algorithm::convolution_direct, g.x, g.w, g.y, g.strides, g.dilates,
                                         g.pad_low, g.pad_high, forward, attr),
          formulation.first, reference);
  }
}

}  // namespace jcc::onednn
