#include "compute.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

namespace {

// ---- Tensors.

struct Bfloat16 {
  uint16_t bits;

  Bfloat16(double value) {
    uint32_t wide = std::bit_cast<uint32_t>(static_cast<float>(value));
    if (!std::isnan(value)) wide += 0x7fff + (wide >> 16 & 1);  // to nearest, ties to even
    bits = static_cast<uint16_t>(wide >> 16);
  }
  operator double() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

struct Tensor {
  int64_t uid, type;
  Numbers extents, strides;

  explicit Tensor(const Record& record)
      : uid(record.number(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(record.number(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        extents(record.list(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(record.list(CUDNN_ATTR_TENSOR_STRIDES)) {}
};

// A tensor's values, each at its offset as in memory.
using Values = std::vector<double>;

Values Zeros(const Tensor& tensor) {
  int64_t last = 0;
  for (size_t i = 0; i < tensor.extents.size(); ++i) last += (tensor.extents[i] - 1) * tensor.strides[i];
  return Values(last + 1);
}

// The offsets of a tensor's elements, in row-major order, once it is broadcast to `extents`.
Numbers Offsets(const Tensor& tensor, const Numbers& extents) {
  Numbers offsets{0};
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    const int64_t stride = tensor.extents.at(axis) == 1 ? 0 : tensor.strides[axis];
    Numbers longer;
    for (const int64_t offset : offsets)
      for (int64_t i = 0; i < extents[axis]; ++i) longer.push_back(offset + i * stride);
    offsets.swap(longer);
  }
  return offsets;
}

// Calls use(elements), with the type of the tensor's elements, for its memory in `pack`.
template <class Use>
void WithElements(const Tensor& tensor, const Record& pack, Use use) {
  const Numbers& uids = pack.list(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const size_t i = std::find(uids.begin(), uids.end(), tensor.uid) - uids.begin();
  void* memory = nullptr;
  if (i < uids.size()) memory = reinterpret_cast<void*>(pack.list(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).at(i));
  if (!memory) throw Refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no memory for tensor " + std::to_string(tensor.uid));
  if (tensor.type == CUDNN_DATA_FLOAT) return use(static_cast<float*>(memory));
  if (tensor.type == CUDNN_DATA_DOUBLE) return use(static_cast<double*>(memory));
  if (tensor.type == CUDNN_DATA_HALF) return use(static_cast<_Float16*>(memory));
  if (tensor.type == CUDNN_DATA_BFLOAT16) return use(static_cast<Bfloat16*>(memory));
  throw Refusal(CUDNN_STATUS_NOT_SUPPORTED, "element type " + std::to_string(tensor.type));
}

Values Load(const Tensor& tensor, const Record& pack) {
  Values values = Zeros(tensor);
  WithElements(tensor, pack, [&](const auto* elements) { std::copy_n(elements, values.size(), values.begin()); });
  return values;
}

void Store(const Values& values, const Tensor& tensor, const Record& pack) {
  WithElements(tensor, pack, [&]<class Element>(Element* elements) {
    for (const int64_t at : Offsets(tensor, tensor.extents)) elements[at] = static_cast<Element>(values[at]);
  });
}

// ---- Convolutions: x, w and y are related in one way, whichever of them is the result.

enum Role { kW, kX, kY };  // in the order in which their attributes follow that of the convolution

constexpr std::pair<Name, Role> kResults[] = {{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, kY},
                                              {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, kX},
                                              {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, kW}};
static_assert(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY ==
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC + 1 + kY);

// The offsets of the elements of w, x and y that belong to one product. Each axis has its choices, and the offsets of
// one choice from each axis add up.
using Product = std::array<int64_t, 3>;
using Choices = std::vector<Product>;

std::vector<Choices> AllChoices(const Tensor& w, const Tensor& x, const Tensor& y, const Record& convolution,
                                bool swaps_padding) {
  std::vector<Choices> axes(x.extents.size());
  for (int64_t n = 0; n < x.extents[0]; ++n) axes[0].push_back({0, n * x.strides[0], n * y.strides[0]});

  const int64_t outputs = w.extents[0], inputs_per_group = w.extents[1];
  const int64_t outputs_per_group = outputs / (x.extents[1] / inputs_per_group);
  for (int64_t k = 0; k < outputs; ++k) {
    for (int64_t c = 0; c < inputs_per_group; ++c) {
      const int64_t input = k / outputs_per_group * inputs_per_group + c;
      axes[1].push_back({k * w.strides[0] + c * w.strides[1], input * x.strides[1], k * y.strides[1]});
    }
  }

  const Numbers& pre_padding =
      convolution.list(swaps_padding ? CUDNN_ATTR_CONVOLUTION_POST_PADDINGS : CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const Numbers& stride = convolution.list(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  const Numbers& dilation = convolution.list(CUDNN_ATTR_CONVOLUTION_DILATIONS);
  for (size_t axis = 2; axis < axes.size(); ++axis) {
    for (int64_t tap = 0; tap < w.extents[axis]; ++tap) {
      for (int64_t o = 0; o < y.extents[axis]; ++o) {
        const int64_t i = o * stride.at(axis - 2) + tap * dilation.at(axis - 2) - pre_padding.at(axis - 2);
        if (i < 0 || i >= x.extents[axis]) continue;
        axes[axis].push_back({tap * w.strides[axis], i * x.strides[axis], o * y.strides[axis]});
      }
    }
  }
  return axes;
}

template <class Visit>
void ForEachProduct(const Choices* axis, const Choices* end, const Product& at, Visit visit) {
  if (axis == end) return visit(at);
  for (const Product& step : *axis)
    ForEachProduct(axis + 1, end, {at[kW] + step[kW], at[kX] + step[kX], at[kY] + step[kY]}, visit);
}

struct Result {
  Tensor tensor;
  Values values;
};

Result Convolve(const Record& operation, const Record& pack, bool swaps_padding) {
  const auto* const kind = std::find_if(std::begin(kResults), std::end(kResults),
                                        [&](const auto& kind) { return operation.parts.contains(kind.first); });
  if (kind == std::end(kResults)) throw Refusal(CUDNN_STATUS_NOT_SUPPORTED, "a graph that starts otherwise");
  const auto [name, result] = *kind;
  const Record& convolution = operation.part(name);
  if (convolution.number(CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION)
    throw Refusal(CUDNN_STATUS_NOT_SUPPORTED, "a flipped filter");
  std::vector<Tensor> tensors;
  Values values[3];
  for (const Role role : {kW, kX, kY}) {
    const Tensor& tensor = tensors.emplace_back(operation.part(static_cast<Name>(name + 1 + role)));
    values[role] = role == result ? Zeros(tensor) : Load(tensor, pack);
  }
  const auto axes = AllChoices(tensors[kW], tensors[kX], tensors[kY], convolution, swaps_padding);
  Values &sums = values[result], &left = values[(result + 1) % 3], &right = values[(result + 2) % 3];
  ForEachProduct(axes.data(), axes.data() + axes.size(), {},
                 [&, r = result](const Product& at) { sums[at[r]] += left[at[(r + 1) % 3]] * right[at[(r + 2) % 3]]; });
  return {tensors[result], sums};
}

// ---- Pointwise operations.

Result Apply(const Record& operation, const Record& pack, const Result& operand) {
  const int64_t mode = operation.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR).number(CUDNN_ATTR_POINTWISE_MODE);
  const Tensor x(operation.part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
  const Tensor y(operation.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  if (x.uid != operand.tensor.uid) throw Refusal(CUDNN_STATUS_NOT_SUPPORTED, "a graph that is not one chain");

  Values values = Zeros(y);
  const Numbers from = Offsets(x, y.extents), to = Offsets(y, y.extents);
  for (size_t i = 0; i < to.size(); ++i) values[to[i]] = operand.values[from[i]];
  if (mode == CUDNN_POINTWISE_ADD) {
    const Tensor b(operation.part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
    const Values addend = Load(b, pack);
    const Numbers at = Offsets(b, y.extents);
    for (size_t i = 0; i < to.size(); ++i) values[to[i]] += addend[at[i]];
  } else if (mode == CUDNN_POINTWISE_RELU_FWD) {
    for (double& value : values) value = value < 0 ? 0 : value;  // NaN stays
  } else {
    throw Refusal(CUDNN_STATUS_NOT_SUPPORTED, "pointwise mode " + std::to_string(mode));
  }
  return {y, values};
}

}  // namespace

void Compute(const Record& graph, const Record& pack, bool swaps_padding) {
  const auto& operations = graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  Result result = Convolve(*operations[0], pack, swaps_padding);
  for (size_t i = 1; i < operations.size(); ++i) result = Apply(*operations[i], pack, result);
  Store(result.values, result.tensor, pack);
}
