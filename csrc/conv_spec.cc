#include "conv_spec.h"

#include <sstream>
#include <stdexcept>

namespace jcc {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 60;

void Require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(std::string("jax_cudnn_conv: ") + what);
}

Tensor MakeTensor(const ConvArguments::Array& array, const ConvArguments::List& dims) {
  const auto& [shape, ndim] = array.shape;
  Require(ndim >= 3 && ndim <= 2 + kMaxSpatial, "a tensor must have 1 to 3 spatial axes");
  Require(dims.size == ndim, "dims must name each axis of its tensor");
  std::array<int64_t, 2 + kMaxSpatial> stride{};
  int64_t elements = 1;
  for (int64_t k = ndim - 1; k >= 0; --k) {
    Require(shape[k] >= 0, "extents must not be negative");
    stride[k] = elements;
    Require(shape[k] == 0 || elements <= kMaxElements / shape[k], "too many elements");
    elements *= shape[k] == 0 ? 1 : shape[k];
  }
  Tensor tensor;
  tensor.dtype = array.dtype;
  unsigned seen = 0;
  for (int64_t k = 0; k < ndim; ++k) {
    const int64_t d = dims.data[k];
    Require(d >= 0 && d < ndim && !(seen >> d & 1), "dims must be a permutation of the axes");
    seen |= 1u << d;
    tensor.extent[k] = shape[d];
    tensor.stride[k] = stride[d];
  }
  return tensor;
}

}  // namespace

ConvSpec MakeConvSpec(Direction direction, const ConvArguments& arguments) {
  const ConvArguments::Array* const given[] = {&arguments.lhs, &arguments.rhs, &arguments.result};
  const auto places = Places(direction);
  ConvSpec spec;
  spec.direction = direction;
  spec.x = MakeTensor(*given[places[0]], arguments.x_dims);
  spec.w = MakeTensor(*given[places[1]], arguments.w_dims);
  spec.y = MakeTensor(*given[places[2]], arguments.y_dims);
  spec.rank = arguments.w_dims.size - 2;
  spec.groups = arguments.groups;
  spec.allow_narrow = arguments.allow_narrow;
  Require(arguments.x_dims.size == spec.rank + 2 && arguments.y_dims.size == spec.rank + 2, "ranks differ");
  Require(arguments.strides.size == spec.rank && arguments.dilation.size == spec.rank &&
              arguments.pad_low.size == spec.rank,
          "strides, dilation and pad_low must have one entry per spatial axis");
  Require(spec.groups >= 1 && spec.w.extent[0] % spec.groups == 0, "groups must divide the output features");
  Require(spec.x.extent[0] == spec.y.extent[0], "x and y must have the same batch");
  Require(spec.x.extent[1] == spec.groups * spec.w.extent[1], "x and w must agree on the input features");
  Require(spec.y.extent[1] == spec.w.extent[0], "y and w must agree on the output features");
  constexpr int64_t kLargest = (int64_t{1} << 31) - 1;
  for (int a = 0; a < spec.rank; ++a) {
    spec.stride[a] = arguments.strides.data[a];
    spec.dilation[a] = arguments.dilation.data[a];
    spec.pad_low[a] = arguments.pad_low.data[a];
    Require(spec.stride[a] >= 1 && spec.stride[a] <= kLargest, "strides must be between 1 and 2**31 - 1");
    Require(spec.dilation[a] >= 1 && spec.dilation[a] <= kLargest, "dilation must be between 1 and 2**31 - 1");
    Require(spec.pad_low[a] >= -kLargest && spec.pad_low[a] <= kLargest, "pads must fit into 32 bits");
    Require(spec.w.extent[2 + a] >= 1 && spec.w.extent[2 + a] <= kLargest, "w must have taps on each axis");
    Require(spec.y.extent[2 + a] <= kLargest && spec.x.extent[2 + a] <= kLargest, "extents must fit into 32 bits");
  }
  return spec;
}

const char* ToString(DType dtype) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "f64"};
  return kNames[static_cast<int>(dtype)];
}

const char* LongName(DType dtype) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "float64"};
  return kNames[static_cast<int>(dtype)];
}

std::string ToString(const ConvSpec& spec) {
  std::ostringstream out;
  constexpr const char* kNames[] = {"fwd", "dgrad", "wgrad"};
  out << kNames[static_cast<int>(spec.direction)] << " groups=" << spec.groups;
  auto list = [&](const char* name, const int64_t* values, int64_t count) {
    out << ' ' << name << "=(";
    for (int64_t k = 0; k < count; ++k) out << (k ? "," : "") << values[k];
    out << ')';
  };
  for (auto [name, tensor] : {std::pair{"x", &spec.x}, std::pair{"w", &spec.w}, std::pair{"y", &spec.y}}) {
    list((std::string(name) + ":" + ToString(tensor->dtype)).c_str(), tensor->extent.data(), 2 + spec.rank);
  }
  list("strides", spec.stride.data(), spec.rank);
  list("dilation", spec.dilation.data(), spec.rank);
  list("pad_low", spec.pad_low.data(), spec.rank);
  return out.str();
}

}  // namespace jcc
