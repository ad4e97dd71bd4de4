// A convolution as the backends see it: logical extents and element strides, channels first, whatever the order of the
// axes in memory. Plain 64-bit data without padding, so that the bytes are the key of a plan.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace jcc {

// Which of the three tensors is computed from the other two.
enum class Direction : int64_t { kForward, kBackwardData, kBackwardFilter };

enum class DType : int64_t { kF32, kBF16, kF16, kF64 };

inline constexpr int kMaxSpatial = 3;
using Spatial = std::array<int64_t, kMaxSpatial>;

// A tensor: its two leading logical axes (batch and channels; output and input features for w) and the spatial ones.
struct Tensor {
  std::array<int64_t, 2 + kMaxSpatial> extent{};
  std::array<int64_t, 2 + kMaxSpatial> stride{};  // in elements
  int64_t offset = 0;                             // of the first element, in elements
  DType dtype = DType::kF32;
};

inline int64_t ElementSize(DType dtype) { return dtype == DType::kF64 ? 8 : dtype == DType::kF32 ? 4 : 2; }

inline int64_t NumBytes(const Tensor& tensor, int64_t rank) {
  int64_t bytes = ElementSize(tensor.dtype);
  for (int64_t k = 0; k < 2 + rank; ++k) bytes *= tensor.extent[k];
  return bytes;
}

struct ConvSpec {
  Direction direction = Direction::kForward;
  int64_t rank = 0;  // spatial axes, 1 to 3
  int64_t groups = 1;
  Spatial stride{}, dilation{}, pad_low{};
  Tensor x, w, y;
  int64_t allow_narrow = 0;  // may f32 operands be narrowed before they are multiplied, as a backend can?

  int64_t n() const { return x.extent[0]; }
  int64_t in_features() const { return w.extent[1]; }            // of one group
  int64_t out_features() const { return w.extent[0] / groups; }  // of one group
  int64_t reach(int a) const { return dilation[a] * (w.extent[2 + a] - 1) + 1; }
  // The high pad that leaves no remainder. Negative where the kernel does not read the end of x.
  int64_t pad_high(int a) const { return (y.extent[2 + a] - 1) * stride[a] + reach(a) - x.extent[2 + a] - pad_low[a]; }
  const Tensor& result() const {
    return direction == Direction::kForward ? y : direction == Direction::kBackwardData ? x : w;
  }
};

// Where the two operands and the result of a direction stand among x, w, y; and, as each is its own inverse, which of
// those x, w and y are.
constexpr std::array<int, 3> Places(Direction direction) {
  switch (direction) {
    case Direction::kForward:  // (x, w) -> y
      return {0, 1, 2};
    case Direction::kBackwardData:  // (y, w) -> x
      return {2, 1, 0};
    default:  // (x, y) -> w
      return {0, 2, 1};
  }
}

// The raw form: shapes in memory order, and the positions of the logical axes in them.
struct ConvArguments {
  struct List {
    const int64_t* data;
    int64_t size;

    template <typename Container>
    List(const Container& c) : data(c.begin() == c.end() ? nullptr : &*c.begin()), size(c.size()) {}
  };
  struct Array {
    List shape;
    DType dtype;
  };
  Array lhs, rhs, result;  // of the direction
  List x_dims, w_dims, y_dims, strides, dilation, pad_low;
  int64_t groups;
  bool allow_narrow;
};

// Throws std::invalid_argument where the arguments do not describe a convolution: nothing read from outside is trusted.
ConvSpec MakeConvSpec(Direction direction, const ConvArguments& arguments);

// The problem in one line, for error messages: "dgrad g2 x=f32(2,4,9,7) w=... ".
std::string ToString(const ConvSpec& spec);

const char* ToString(DType dtype);
const char* LongName(DType dtype);  // as NumPy spells it

}  // namespace jcc
