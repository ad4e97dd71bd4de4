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

Geometry MakeGeometry(const ConvSpec& spec, const memory::desc& x, const memory::desc& y) {
  Geometry geometry;
  memory::dims w;
  if (spec.groups > 1) w.push_back(spec.groups);
  w.push_back(spec.out_features());
  w.push_back(spec.in_features());
  for (int a = 0; a < spec.rank; ++a) {
    w.push_back(spec.w.extent[2 + a]);
    geometry.strides.push_back(spec.stride[a]);
    geometry.dilates.push_back(spec.dilation[a] - 1);  // oneDNN counts from 0
    geometry.pad_low.push_back(spec.pad_low[a]);
    geometry.pad_high.push_back(std::max<int64_t>(spec.pad_high(a), 0));
  }
  geometry.x = x;
  geometry.y = y;
  geometry.w = memory::desc(w, ToOneDnn(spec.w.dtype), memory::format_tag::any);
  return geometry;
}

template <typename Primitive, typename PrimitiveDesc, typename Weights>
Selection FirstThatWorks(PrimitiveDesc pd, const Weights& weights) {
  std::string refused;
  do {
    const std::string name = pd.impl_info_str();
    if (name.rfind("ref", 0) == 0) {
      refused += ' ' + name;
      continue;
    }
    try {
      return {Primitive(pd), weights(pd), pd.scratchpad_desc(), name};
    } catch (const dnnl::error& error) {  // code generation can fail for odd shapes; another implementation may not
      refused += ' ' + name + " (" + error.what() + ")";
    }
  } while (pd.next_impl());
  throw Unsupported("oneDNN has no kernel but" + refused);
}

}  // namespace

void InsertUnitAxis(ConvSpec& spec) {
  for (Tensor* tensor : {&spec.x, &spec.w, &spec.y}) {
    tensor->extent[3] = tensor->extent[2];
    tensor->stride[3] = tensor->stride[2];
    tensor->extent[2] = 1;
    tensor->stride[2] = 0;
  }
  spec.stride[1] = spec.stride[0];
  spec.dilation[1] = spec.dilation[0];
  spec.pad_low[1] = spec.pad_low[0];
  spec.stride[0] = spec.dilation[0] = 1;
  spec.pad_low[0] = 0;
  spec.rank = 2;
}

bool IsSmall(const ConvSpec& spec) {
  double products = static_cast<double>(spec.n()) * spec.w.extent[0] * spec.w.extent[1];
  for (int a = 0; a < spec.rank; ++a) products *= static_cast<double>(spec.w.extent[2 + a]) * spec.y.extent[2 + a];
  return products < 1e5;
}

Selection Select(const dnnl::engine& engine, const ConvSpec& spec, const memory::desc& x, const memory::desc& y) {
  using dnnl::algorithm;
  const Geometry g = MakeGeometry(spec, x, y);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (spec.allow_bf16) attr.set_fpmath_mode(dnnl::fpmath_mode::bf16);
  try {
    const auto prop = spec.direction == Direction::kForward ? dnnl::prop_kind::forward_inference
                                                            : dnnl::prop_kind::forward_training;
    dnnl::convolution_forward::primitive_desc forward(engine, prop, algorithm::convolution_direct, g.x, g.w, g.y,
                                                      g.strides, g.dilates, g.pad_low, g.pad_high, attr);
    switch (spec.direction) {
      case Direction::kForward:
        return FirstThatWorks<dnnl::convolution_forward>(forward, [](auto& pd) { return pd.weights_desc(); });
      case Direction::kBackwardData:
        return FirstThatWorks<dnnl::convolution_backward_data>(
            dnnl::convolution_backward_data::primitive_desc(engine, algorithm::convolution_direct, g.x, g.w, g.y,
                                                            g.strides, g.dilates, g.pad_low, g.pad_high, forward,
                                                            attr),
            [](auto& pd) { return pd.weights_desc(); });
      case Direction::kBackwardFilter:
        return FirstThatWorks<dnnl::convolution_backward_weights>(
            dnnl::convolution_backward_weights::primitive_desc(engine, algorithm::convolution_direct, g.x, g.w, g.y,
                                                               g.strides, g.dilates, g.pad_low, g.pad_high, forward,
                                                               attr),
            [](auto& pd) { return pd.diff_weights_desc(); });
    }
  } catch (const dnnl::error& error) {
    throw Unsupported(std::string("oneDNN refuses the problem: ") + error.what());
  }
  throw Unsupported("no such direction");
}

}  // namespace jcc::onednn
