// A test double for libcudnn.so.9 on machines without a GPU.
//
// It is linked to the real cuDNN, so that dlsym() on it finds cuDNN's own function for every name that is not defined
// here: graphs are checked, planned and filtered by the real library. What differs:
// - A handle needs no GPU, and the GPU that handles and ordinals stand for is one that a test describes.
// - cudnnBackendExecute computes on the CPU, with plain loops over host memory, what the operation graph describes: a
//   convolution or one of its two gradients, then any pointwise additions of a broadcast tensor and ReLUs. Sums are
//   taken in double and rounded once. The workspace is overwritten first.
// - Misuse is refused with a line on stderr: a missing workspace or tensor, extents that the padding does not give, a
//   handle in two threads at once.
//
// cuDNN does not tell what an operation graph or a variant pack holds (nor a pointwise mode, nor, in 9.12, the mode of
// a convolution), so all is recorded while it is described. The record of an operation graph follows it into its
// heuristics, engines, engine configurations and plans.
//
// Control, from any thread:
//   void double_set_device(const char* json)        The GPU, in the JSON form of cuDNN's device properties; needed
//   first. int64_t double_executions()                     The plans executed with success so far; the last of them:
//   int64_t double_last_workspace()                 - its workspace in bytes,
//   int64_t double_last_engine()                    - the global index of its engine; both -1 before the first.
//   void double_fail_engine(int64_t engine, int status)
//                                                   Plans of `engine` return `status` without computing; 0 clears.
//                                                   Engine -1: every engine; (-1, 0) clears all.
//   void double_delay_engine(int64_t engine, int64_t microseconds)
//                                                   Plans of `engine` take that much longer; engine -1: those engines
//                                                   that have no delay of their own. A negative delay clears.
//   void double_fail_create(int status)             cudnnCreate returns `status`; 0 clears.
//   int64_t double_handles()                        The handles created and not destroyed.
//   int64_t double_records()                        The descriptors recorded and not destroyed.
//   void double_swap_padding(int on)                A mutation: executes with pre and post padding swapped.
//   void double_reset()                             Clears failures, delays, the mutation, and the last execution and
//                                                   count; keeps the device and the handles.

#include <cudnn.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Descriptor = cudnnBackendDescriptor_t;
using Name = cudnnBackendAttributeName_t;
using Type = cudnnBackendAttributeType_t;

// ---- The real library, found by SONAME: the copy that this one is linked to.

void* RealFunction(const char* name) {
  static void* const library = dlopen("libcudnn.so.9", RTLD_NOW);
  void* function = library ? dlsym(library, name) : nullptr;
  if (!function) {
    std::fprintf(stderr, "cuDNN double: no %s in libcudnn.so.9\n", name);
    std::abort();
  }
  return function;
}

#define REAL(function)                                                                       \
  ([] {                                                                                      \
    static const auto real = reinterpret_cast<decltype(&function)>(RealFunction(#function)); \
    return real;                                                                             \
  }())

// -1 where it cannot be read.
int64_t ReadInt64(Descriptor descriptor, Name name) {
  int64_t value = -1, count = 0;
  const auto status = REAL(cudnnBackendGetAttribute)(descriptor, name, CUDNN_TYPE_INT64, 1, &count, &value);
  return status == CUDNN_STATUS_SUCCESS && count == 1 ? value : -1;
}

// ---- The records of what was described.

struct Tensor {
  int64_t uid = -1;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool is_virtual = false;
  int64_t alignment = 1;
  int64_t vector_count = 1;
  std::vector<int64_t> extents, strides;
};

struct Convolution {
  std::vector<int64_t> pre_padding, post_padding, stride, dilation;
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
};

struct Pointwise {
  cudnnPointwiseMode_t mode{};
  double lower_clip = 0, upper_clip = std::numeric_limits<double>::max(), lower_clip_slope = 0;
  bool propagates_nan = false;
};

enum class Kind { kUnknown, kForward, kDataGradient, kFilterGradient, kPointwise };

// A convolution relates x, w and y whatever its direction; a pointwise operation computes y from x, and b if it has two
// operands.
struct Operation {
  Kind kind = Kind::kUnknown;
  Tensor x, w, y, b;
  Convolution convolution;
  Pointwise pointwise;
  bool is_scaled = false;  // by an alpha other than 1, or with a beta other than 0
};

struct Graph {
  std::vector<Operation> operations;
  bool has_handle = false;
};

struct Pack {
  std::vector<int64_t> uids;
  std::vector<void*> addresses;
  void* workspace = nullptr;
};

// What is known of one descriptor, in the member for its kind. Those made from an operation graph share its record,
// which so outlives it.
struct Record {
  Tensor tensor;
  Convolution convolution;
  Pointwise pointwise;
  Operation operation;
  std::shared_ptr<Graph> graph;
  int64_t engine = -1;  // of a plan
  Pack pack;
};

struct Handle {
  std::atomic<cudaStream_t> stream{nullptr};
  std::atomic<bool> is_busy{false};
};

struct State {
  std::mutex mutex;  // guards all that follows
  std::map<Descriptor, Record> records;
  std::map<cudnnHandle_t, std::shared_ptr<Handle>> handles;
  std::string device;
  std::map<std::string, Descriptor> device_descriptors;
  std::map<int64_t, cudnnStatus_t> failures;
  std::map<int64_t, int64_t> delays;
  cudnnStatus_t create_failure = CUDNN_STATUS_SUCCESS;
  bool swaps_padding = false;
  int64_t executions = 0, last_workspace = -1, last_engine = -1;
};

State& TheState() {
  static State* const state = new State;  // never destroyed: threads may outlive the end of main
  return *state;
}

using Lock = std::lock_guard<std::mutex>;

template <class... Arguments>
cudnnStatus_t Refuse(cudnnStatus_t status, const char* format, Arguments... arguments) {
  char text[512];
  std::snprintf(text, sizeof text, format, arguments...);
  std::fprintf(stderr, "cuDNN double: %s\n", text);
  return status;
}

std::shared_ptr<Handle> FindHandle(cudnnHandle_t handle) {
  State& state = TheState();
  const Lock lock(state.mutex);
  const auto found = state.handles.find(handle);
  return found == state.handles.end() ? nullptr : found->second;
}

// A handle's use by one thread; false where another is using it.
class Use {
 public:
  explicit Use(Handle& handle) : handle_(handle), is_alone_(!handle.is_busy.exchange(true)) {}
  ~Use() {
    if (is_alone_) handle_.is_busy = false;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  explicit operator bool() const { return is_alone_; }

 private:
  Handle& handle_;
  const bool is_alone_;
};

cudnnStatus_t RefuseSharedHandle(const char* function) {
  return Refuse(CUDNN_STATUS_EXECUTION_FAILED, "%s: another thread is using this handle", function);
}

// ---- The described device.

cudnnStatus_t SetDeviceJson(Descriptor properties, const std::string& json) {
  return REAL(cudnnBackendSetAttribute)(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                        static_cast<int64_t>(json.size()), json.data());
}

std::string Device() {
  State& state = TheState();
  const Lock lock(state.mutex);
  return state.device;
}

// The device as a finalized descriptor; null where there is none. One for each device ever described, never destroyed.
Descriptor DeviceDescriptor() {
  State& state = TheState();
  const Lock lock(state.mutex);
  if (state.device.empty()) return nullptr;
  Descriptor& properties = state.device_descriptors[state.device];
  if (properties) return properties;
  Descriptor made = nullptr;
  if (REAL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &made) != CUDNN_STATUS_SUCCESS) {
    return nullptr;
  }
  if (SetDeviceJson(made, state.device) == CUDNN_STATUS_SUCCESS &&
      REAL(cudnnBackendFinalize)(made) == CUDNN_STATUS_SUCCESS) {
    properties = made;
  } else {
    REAL(cudnnBackendDestroyDescriptor)(made);
  }
  return properties;
}

// Gives a descriptor the device that a handle would have given it.
cudnnStatus_t SetDevice(Descriptor descriptor, Name attribute) {
  Descriptor properties = DeviceDescriptor();
  if (!properties) return Refuse(CUDNN_STATUS_NOT_INITIALIZED, "no device, or one that cuDNN does not accept");
  return REAL(cudnnBackendSetAttribute)(descriptor, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
}

// ---- Recording.

// Hands the operation graph of `source` on to `target`.
void Inherit(Descriptor target, Descriptor source) {
  State& state = TheState();
  const Lock lock(state.mutex);
  const auto found = state.records.find(source);
  if (found != state.records.end() && found->second.graph) state.records[target].graph = found->second.graph;
}

bool HasHandle(Descriptor descriptor) {
  State& state = TheState();
  const Lock lock(state.mutex);
  const auto found = state.records.find(descriptor);
  return found != state.records.end() && found->second.graph && found->second.graph->has_handle;
}

void RecordHandle(Descriptor descriptor) {
  State& state = TheState();
  const Lock lock(state.mutex);
  auto& graph = state.records[descriptor].graph;
  if (!graph) graph = std::make_shared<Graph>();
  graph->has_handle = true;
}

int64_t EngineOf(Descriptor configuration) {
  Descriptor engine = nullptr;
  if (REAL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) return -1;
  int64_t index = -1, count = 0;
  if (REAL(cudnnBackendGetAttribute)(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                     &count, &engine) == CUDNN_STATUS_SUCCESS) {
    index = ReadInt64(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  }
  REAL(cudnnBackendDestroyDescriptor)(engine);
  return index;
}

bool IsScale(Type type, const void* value, double expected) {
  return type == CUDNN_TYPE_DOUBLE ? *static_cast<const double*>(value) == expected
                                   : *static_cast<const float*>(value) == static_cast<float>(expected);
}

// Takes down an attribute that the real cuDNN has accepted.
void RecordAttribute(Descriptor descriptor, Name name, Type type, int64_t count, const void* values) {
  State& state = TheState();
  const Lock lock(state.mutex);
  Record& record = state.records[descriptor];
  Operation& operation = record.operation;

  const auto* const numbers = static_cast<const int64_t*>(values);
  const auto list = [&] { return std::vector<int64_t>(numbers, numbers + count); };
  const auto real_number = [&] { return *static_cast<const double*>(values); };
  const auto* const descriptors = static_cast<const Descriptor*>(values);
  const auto given = [&]() -> const Record& { return state.records[descriptors[0]]; };
  const auto set_convolution = [&](Kind kind) {
    operation.kind = kind;
    operation.convolution = given().convolution;
  };

  switch (name) {
    case CUDNN_ATTR_TENSOR_UNIQUE_ID:
      record.tensor.uid = numbers[0];
      break;
    case CUDNN_ATTR_TENSOR_DATA_TYPE:
      record.tensor.type = *static_cast<const cudnnDataType_t*>(values);
      break;
    case CUDNN_ATTR_TENSOR_IS_VIRTUAL:
      record.tensor.is_virtual = *static_cast<const bool*>(values);
      break;
    case CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT:
      record.tensor.alignment = numbers[0];
      break;
    case CUDNN_ATTR_TENSOR_VECTOR_COUNT:
      record.tensor.vector_count = numbers[0];
      break;
    case CUDNN_ATTR_TENSOR_DIMENSIONS:
      record.tensor.extents = list();
      break;
    case CUDNN_ATTR_TENSOR_STRIDES:
      record.tensor.strides = list();
      break;

    case CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS:
      record.convolution.pre_padding = list();
      break;
    case CUDNN_ATTR_CONVOLUTION_POST_PADDINGS:
      record.convolution.post_padding = list();
      break;
    case CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES:
      record.convolution.stride = list();
      break;
    case CUDNN_ATTR_CONVOLUTION_DILATIONS:
      record.convolution.dilation = list();
      break;
    case CUDNN_ATTR_CONVOLUTION_CONV_MODE:
      record.convolution.mode = *static_cast<const cudnnConvolutionMode_t*>(values);
      break;

    case CUDNN_ATTR_POINTWISE_MODE:
      record.pointwise.mode = *static_cast<const cudnnPointwiseMode_t*>(values);
      break;
    case CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP:
      record.pointwise.lower_clip = real_number();
      break;
    case CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP:
      record.pointwise.upper_clip = real_number();
      break;
    case CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE:
      record.pointwise.lower_clip_slope = real_number();
      break;
    case CUDNN_ATTR_POINTWISE_NAN_PROPAGATION:
      record.pointwise.propagates_nan = *static_cast<const cudnnNanPropagation_t*>(values) == CUDNN_PROPAGATE_NAN;
      break;

    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X:
    case CUDNN_ATTR_OPERATION_POINTWISE_XDESC:
      operation.x = given().tensor;
      break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW:
      operation.w = given().tensor;
      break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY:
    case CUDNN_ATTR_OPERATION_POINTWISE_YDESC:
      operation.y = given().tensor;
      break;
    case CUDNN_ATTR_OPERATION_POINTWISE_BDESC:
      operation.b = given().tensor;
      break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC:
      set_convolution(Kind::kForward);
      break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC:
      set_convolution(Kind::kDataGradient);
      break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC:
      set_convolution(Kind::kFilterGradient);
      break;
    case CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR:
      operation.kind = Kind::kPointwise;
      operation.pointwise = given().pointwise;
      break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA:
    case CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1:
    case CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2:
      operation.is_scaled |= !IsScale(type, values, 1);
      break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA:
      operation.is_scaled |= !IsScale(type, values, 0);
      break;

    case CUDNN_ATTR_OPERATIONGRAPH_OPS:
      if (!record.graph) record.graph = std::make_shared<Graph>();
      record.graph->operations.clear();
      for (int64_t i = 0; i < count; ++i) {
        record.graph->operations.push_back(state.records[descriptors[i]].operation);
      }
      break;

    case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS:
      record.pack.uids = list();
      break;
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: {
      const auto* const addresses = static_cast<void* const*>(values);
      record.pack.addresses.assign(addresses, addresses + count);
      break;
    }
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE:
      record.pack.workspace = *static_cast<void* const*>(values);
      break;
    default:
      break;
  }
}

// Carries the record of an operation graph, and its device, to what has been made from it.
cudnnStatus_t FollowGraph(Descriptor descriptor, Name name, const void* values) {
  const auto source = [&] { return *static_cast<const Descriptor*>(values); };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
      Inherit(descriptor, source());
      return HasHandle(descriptor) ? SetDevice(descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP) : CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_OPERATION_GRAPH:
      Inherit(descriptor, source());
      return HasHandle(descriptor) ? SetDevice(descriptor, CUDNN_ATTR_ENGINE_DEVICEPROP) : CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      Inherit(descriptor, source());
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: {
      Inherit(descriptor, source());
      const int64_t engine = EngineOf(source());
      State& state = TheState();
      const Lock lock(state.mutex);
      state.records[descriptor].engine = engine;
      return CUDNN_STATUS_SUCCESS;
    }
    default:
      return CUDNN_STATUS_SUCCESS;
  }
}

// ---- Element types.

// A 16-bit binary format with one sign bit.
template <int kMantissaBits>
struct Float16Bits {
  static constexpr int kBias = (1 << (14 - kMantissaBits)) - 1;
  static constexpr int kInfinity = 0x7fff >> kMantissaBits << kMantissaBits;

  uint16_t bits;

  explicit operator double() const {
    const int magnitude = bits & 0x7fff, mantissa = magnitude & ((1 << kMantissaBits) - 1);
    const int exponent = std::max(magnitude >> kMantissaBits, 1);
    double value = 0;
    if (magnitude >= kInfinity) {
      value = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    } else {
      const int hidden = magnitude >> kMantissaBits ? 1 << kMantissaBits : 0;
      value = std::ldexp(hidden + mantissa, exponent - kBias - kMantissaBits);
    }
    return bits & 0x8000 ? -value : value;
  }

  // To nearest, ties to even.
  static Float16Bits Round(double value) {
    const int sign = std::signbit(value) ? 0x8000 : 0;
    int magnitude = kInfinity;
    if (std::isnan(value)) {
      magnitude = kInfinity | 1 << (kMantissaBits - 1);
    } else if (std::isfinite(value)) {
      const int exponent = value == 0 ? 1 - kBias : std::max(std::ilogb(value), 1 - kBias);
      // A multiple of the last place: 2^kMantissaBits and up, or less for a subnormal. A carry, in either case, counts
      // the exponent up by itself.
      const int units = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), kMantissaBits - exponent)));
      const int64_t wide = (static_cast<int64_t>(exponent + kBias - 1) << kMantissaBits) + units;
      magnitude = static_cast<int>(std::min<int64_t>(wide, kInfinity));
    }
    return {static_cast<uint16_t>(sign | magnitude)};
  }
};

using Half = Float16Bits<10>;
using Bfloat16 = Float16Bits<7>;

template <class T>
T Round(double value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    return T::Round(value);
  }
}

// Calls `function` with a null pointer of the element type; false where there is none.
template <class Function>
bool WithElementType(cudnnDataType_t type, Function function) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      function(static_cast<float*>(nullptr));
      return true;
    case CUDNN_DATA_DOUBLE:
      function(static_cast<double*>(nullptr));
      return true;
    case CUDNN_DATA_HALF:
      function(static_cast<Half*>(nullptr));
      return true;
    case CUDNN_DATA_BFLOAT16:
      function(static_cast<Bfloat16*>(nullptr));
      return true;
    default:
      return false;
  }
}

// ---- Arrays: N, C and three spatial axes, the first of which have extent 1 where the tensor has fewer.

constexpr int kMaxSpatial = 3;
constexpr int kRank = kMaxSpatial + 2;
using Shape = std::array<int64_t, kRank>;
using SpatialShape = std::array<int64_t, kMaxSpatial>;

Shape Padded(const std::vector<int64_t>& values, int64_t fill) {
  Shape shape;
  shape.fill(fill);
  std::copy_n(values.begin(), 2, shape.begin());
  std::copy(values.begin() + 2, values.end(), shape.end() - (static_cast<int64_t>(values.size()) - 2));
  return shape;
}

SpatialShape PaddedSpatial(const std::vector<int64_t>& values, int64_t fill) {
  SpatialShape shape;
  shape.fill(fill);
  std::copy(values.begin(), values.end(), shape.end() - static_cast<int64_t>(values.size()));
  return shape;
}

// Calls visit(offset) for every element, in row-major order.
template <class Visit>
void ForEachOffset(const Shape& extents, const Shape& strides, Visit visit) {
  for (int64_t n = 0; n < extents[0]; ++n) {
    for (int64_t c = 0; c < extents[1]; ++c) {
      for (int64_t i = 0; i < extents[2]; ++i) {
        for (int64_t j = 0; j < extents[3]; ++j) {
          const int64_t row = n * strides[0] + c * strides[1] + i * strides[2] + j * strides[3];
          for (int64_t k = 0; k < extents[4]; ++k) visit(row + k * strides[4]);
        }
      }
    }
  }
}

// A tensor's values, dense and row-major.
struct Array {
  Shape extents;
  std::vector<double> values;

  explicit Array(const Tensor& tensor) : extents(Padded(tensor.extents, 1)) {
    int64_t size = 1;
    for (int64_t extent : extents) size *= extent;
    values.resize(size);
  }
  int64_t stride(int axis) const {
    int64_t stride = 1;
    for (int i = axis + 1; i < kRank; ++i) stride *= extents[i];
    return stride;
  }
};

// As an array of `tensor`'s own extents, or broadcast to those of `shape`.
Array Load(const Tensor& tensor, const void* address, const Tensor& shape) {
  Array array(shape);
  Shape strides = Padded(tensor.strides, 0);
  const Shape extents = Padded(tensor.extents, 1);
  for (int i = 0; i < kRank; ++i) {
    if (extents[i] == 1) strides[i] = 0;
  }
  WithElementType(tensor.type, [&](auto* type) {
    using Element = std::remove_pointer_t<decltype(type)>;
    const auto* elements = static_cast<const Element*>(address);
    double* value = array.values.data();
    ForEachOffset(array.extents, strides, [&](int64_t offset) { *value++ = static_cast<double>(elements[offset]); });
  });
  return array;
}

void Store(const Array& array, const Tensor& tensor, void* address) {
  WithElementType(tensor.type, [&](auto* type) {
    using Element = std::remove_pointer_t<decltype(type)>;
    auto* elements = static_cast<Element*>(address);
    const double* value = array.values.data();
    ForEachOffset(array.extents, Padded(tensor.strides, 0),
                  [&](int64_t offset) { elements[offset] = Round<Element>(*value++); });
  });
}

// ---- Computing.

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b < 0); }  // b > 0

// One spatial axis.
struct Axis {
  int64_t x, w, y, pre_padding, stride, dilation;

  // The outputs [first, last) for which the tap reads within x, and where the first of them reads.
  struct Span {
    int64_t first, last, x_first;
  };
  Span At(int64_t tap) const {
    const int64_t offset = tap * dilation - pre_padding;
    const int64_t first = std::max<int64_t>(-FloorDivide(offset, stride), 0);
    const int64_t last = std::min(FloorDivide(x - 1 - offset, stride) + 1, y);
    return {first, std::max(first, last), first * stride + offset};
  }
};

// Calls inner(x_offset, x_step, w_offset, y_offset, count) for every row of the last spatial axis that one tap
// connects: y's elements y_offset + i go with x's x_offset + i * x_step, and w's w_offset, for i < count.
template <class Inner>
void ForEachRow(const Operation& operation, const Array& x, const Array& w, const Array& y, bool swaps_padding,
                Inner inner) {
  const Convolution& convolution = operation.convolution;
  const auto pre = PaddedSpatial(swaps_padding ? convolution.post_padding : convolution.pre_padding, 0);
  const auto stride = PaddedSpatial(convolution.stride, 1), dilation = PaddedSpatial(convolution.dilation, 1);
  Axis axes[kMaxSpatial];
  for (int i = 0; i < kMaxSpatial; ++i) {
    axes[i] = {x.extents[2 + i], w.extents[2 + i], y.extents[2 + i], pre[i], stride[i], dilation[i]};
  }
  const auto& [d, h, l] = axes;
  const int64_t x_planes = x.stride(2), x_rows = x.stride(3), y_planes = y.stride(2), y_rows = y.stride(3);
  const int64_t taps = d.w * h.w * l.w;
  const int64_t groups = x.extents[1] / w.extents[1], outputs_per_group = w.extents[0] / groups;
  const bool is_flipped = convolution.mode == CUDNN_CONVOLUTION;

  for (int64_t tap = 0; tap < taps; ++tap) {
    const auto at_d = d.At(tap / (h.w * l.w)), at_h = h.At(tap / l.w % h.w), at_l = l.At(tap % l.w);
    const int64_t count = at_l.last - at_l.first;
    if (count == 0) continue;
    for (int64_t n = 0; n < y.extents[0]; ++n) {
      for (int64_t k = 0; k < y.extents[1]; ++k) {
        const int64_t y_channel = n * y.stride(0) + k * y.stride(1);
        for (int64_t c = 0; c < w.extents[1]; ++c) {
          const int64_t x_channel = n * x.stride(0) + (k / outputs_per_group * w.extents[1] + c) * x.stride(1);
          const int64_t w_offset = (k * w.extents[1] + c) * taps + (is_flipped ? taps - 1 - tap : tap);
          for (int64_t i = at_d.first; i < at_d.last; ++i) {
            const int64_t x_plane = x_channel + (at_d.x_first + (i - at_d.first) * d.stride) * x_planes;
            for (int64_t j = at_h.first; j < at_h.last; ++j) {
              const int64_t x_row = x_plane + (at_h.x_first + (j - at_h.first) * h.stride) * x_rows;
              inner(x_row + at_l.x_first, l.stride, w_offset, y_channel + i * y_planes + j * y_rows + at_l.first,
                    count);
            }
          }
        }
      }
    }
  }
}

Array Convolve(const Operation& operation, const void* a, const void* b, bool swaps_padding) {
  switch (operation.kind) {
    case Kind::kForward: {
      const Array x = Load(operation.x, a, operation.x), w = Load(operation.w, b, operation.w);
      Array y(operation.y);
      ForEachRow(operation, x, w, y, swaps_padding,
                 [&](int64_t x_at, int64_t x_step, int64_t w_at, int64_t y_at, int64_t count) {
                   const double factor = w.values[w_at];
                   for (int64_t i = 0; i < count; ++i) y.values[y_at + i] += factor * x.values[x_at + i * x_step];
                 });
      return y;
    }
    case Kind::kDataGradient: {
      const Array y = Load(operation.y, a, operation.y), w = Load(operation.w, b, operation.w);
      Array x(operation.x);
      ForEachRow(operation, x, w, y, swaps_padding,
                 [&](int64_t x_at, int64_t x_step, int64_t w_at, int64_t y_at, int64_t count) {
                   const double factor = w.values[w_at];
                   for (int64_t i = 0; i < count; ++i) x.values[x_at + i * x_step] += factor * y.values[y_at + i];
                 });
      return x;
    }
    default: {
      const Array y = Load(operation.y, a, operation.y), x = Load(operation.x, b, operation.x);
      Array w(operation.w);
      ForEachRow(operation, x, w, y, swaps_padding,
                 [&](int64_t x_at, int64_t x_step, int64_t w_at, int64_t y_at, int64_t count) {
                   double sum = 0;
                   for (int64_t i = 0; i < count; ++i) sum += y.values[y_at + i] * x.values[x_at + i * x_step];
                   w.values[w_at] += sum;
                 });
      return w;
    }
  }
}

// Null where the convolution is sound.
const char* Unsound(const Operation& operation) {
  const Tensor &x = operation.x, &w = operation.w, &y = operation.y;
  const Convolution& convolution = operation.convolution;
  const size_t rank = x.extents.size();
  if (rank < 3 || rank > kRank || w.extents.size() != rank || y.extents.size() != rank) return "the ranks";
  for (const auto* values :
       {&convolution.pre_padding, &convolution.post_padding, &convolution.stride, &convolution.dilation}) {
    if (values->size() != rank - 2) return "the ranks of padding, stride or dilation";
  }
  if (x.extents[0] != y.extents[0]) return "the batch sizes";
  if (w.extents[0] != y.extents[1]) return "the output channels";
  if (x.extents[1] % w.extents[1]) return "the input channels";
  if (w.extents[0] % (x.extents[1] / w.extents[1])) return "the groups";
  for (size_t i = 0; i < rank - 2; ++i) {
    const int64_t pre = convolution.pre_padding[i], post = convolution.post_padding[i];
    if (pre < 0 || post < 0) return "a negative padding";
    const int64_t padded = x.extents[2 + i] + pre + post;
    const int64_t kernel = convolution.dilation[i] * (w.extents[2 + i] - 1) + 1;
    if (padded < kernel || (padded - kernel) / convolution.stride[i] + 1 != y.extents[2 + i]) {
      return "the spatial extents or the padding";
    }
  }
  return nullptr;
}

cudnnStatus_t Check(const Operation& operation) {
  if (operation.is_scaled) return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "an alpha or beta");
  for (const Tensor* tensor : {&operation.x, &operation.w, &operation.y, &operation.b}) {
    if (tensor->vector_count != 1) return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "a vectorized tensor");
    if (tensor->extents.size() != tensor->strides.size()) return CUDNN_STATUS_BAD_PARAM;
    if (!WithElementType(tensor->type, [](auto*) {})) {
      return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "element type %d", static_cast<int>(tensor->type));
    }
  }
  if (operation.kind == Kind::kPointwise) {
    const Pointwise& pointwise = operation.pointwise;
    const bool is_relu = pointwise.mode == CUDNN_POINTWISE_RELU_FWD && pointwise.lower_clip_slope == 0;
    if (!is_relu && pointwise.mode != CUDNN_POINTWISE_ADD) {
      return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "pointwise mode %d", static_cast<int>(pointwise.mode));
    }
  } else if (const char* what = Unsound(operation)) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, "%s of a convolution do not fit", what);
  }
  return CUDNN_STATUS_SUCCESS;
}

// Finds the caller's memory of a tensor.
cudnnStatus_t Locate(const Tensor& tensor, const Pack& pack, void** address) {
  const auto found = std::find(pack.uids.begin(), pack.uids.end(), tensor.uid);
  const auto index = static_cast<size_t>(found - pack.uids.begin());
  *address = index < pack.addresses.size() ? pack.addresses[index] : nullptr;
  const auto uid = static_cast<long long>(tensor.uid);
  if (!*address) return Refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no memory for tensor %lld", uid);
  if (reinterpret_cast<uintptr_t>(*address) % static_cast<uintptr_t>(std::max<int64_t>(tensor.alignment, 1))) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor %lld is not aligned as described", uid);
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t StoreUnlessVirtual(const Array& array, const Tensor& tensor, const Pack& pack) {
  if (tensor.is_virtual) return CUDNN_STATUS_SUCCESS;
  void* address = nullptr;
  if (const auto status = Locate(tensor, pack, &address); status != CUDNN_STATUS_SUCCESS) return status;
  Store(array, tensor, address);
  return CUDNN_STATUS_SUCCESS;
}

// Applies a pointwise operation to `array`, which is the tensor of `uid`.
cudnnStatus_t Apply(const Operation& operation, int64_t uid, const Pack& pack, Array& array) {
  if (Padded(operation.y.extents, 1) != array.extents) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "a pointwise operation changes the shape");
  }
  const Pointwise& pointwise = operation.pointwise;
  if (pointwise.mode == CUDNN_POINTWISE_ADD) {
    const Tensor& other = operation.x.uid == uid ? operation.b : operation.x;
    if (other.extents.size() != operation.y.extents.size()) {
      return Refuse(CUDNN_STATUS_BAD_PARAM, "an addend's rank");
    }
    const Shape extents = Padded(other.extents, 1);
    for (int i = 0; i < kRank; ++i) {
      if (extents[i] != 1 && extents[i] != array.extents[i]) {
        return Refuse(CUDNN_STATUS_BAD_PARAM, "an addend's extents");
      }
    }
    void* address = nullptr;
    if (const auto status = Locate(other, pack, &address); status != CUDNN_STATUS_SUCCESS) return status;
    const Array addend = Load(other, address, operation.y);
    for (size_t i = 0; i < array.values.size(); ++i) array.values[i] += addend.values[i];
  } else {
    const bool is_clipped = pointwise.upper_clip < FLT_MAX;  // the frontend's "not" is the largest float or double
    for (double& value : array.values) {
      if (std::isnan(value) && pointwise.propagates_nan) continue;
      value = value > pointwise.lower_clip ? value : pointwise.lower_clip;
      if (is_clipped) value = std::min(value, pointwise.upper_clip);
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

// Executes a graph: its convolution, and from there along the chain of pointwise operations.
cudnnStatus_t Compute(const Graph& graph, const Pack& pack, bool swaps_padding) {
  const Operation* convolution = nullptr;
  std::vector<const Operation*> pointwise;
  for (const Operation& operation : graph.operations) {
    if (const auto status = Check(operation); status != CUDNN_STATUS_SUCCESS) return status;
    if (operation.kind == Kind::kPointwise) {
      pointwise.push_back(&operation);
    } else if (operation.kind == Kind::kUnknown || convolution) {
      return Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "a graph with other than one convolution");
    } else {
      convolution = &operation;
    }
  }
  if (!convolution) return Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "a graph without a convolution");

  const auto [a, b, output] = [&]() -> std::array<const Tensor*, 3> {
    const Operation& c = *convolution;
    if (c.kind == Kind::kForward) return {&c.x, &c.w, &c.y};
    if (c.kind == Kind::kDataGradient) return {&c.y, &c.w, &c.x};
    return {&c.y, &c.x, &c.w};
  }();
  void *a_address = nullptr, *b_address = nullptr;
  if (const auto status = Locate(*a, pack, &a_address); status != CUDNN_STATUS_SUCCESS) return status;
  if (const auto status = Locate(*b, pack, &b_address); status != CUDNN_STATUS_SUCCESS) return status;
  Array array = Convolve(*convolution, a_address, b_address, swaps_padding);
  if (const auto status = StoreUnlessVirtual(array, *output, pack); status != CUDNN_STATUS_SUCCESS) return status;

  int64_t uid = output->uid;
  while (!pointwise.empty()) {
    const auto next = std::find_if(pointwise.begin(), pointwise.end(), [&](const Operation* operation) {
      return operation->x.uid == uid || operation->b.uid == uid;
    });
    if (next == pointwise.end()) {
      return Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "a graph that is not one chain");
    }
    const Operation& operation = **next;
    pointwise.erase(next);
    if (const auto status = Apply(operation, uid, pack, array); status != CUDNN_STATUS_SUCCESS) return status;
    if (const auto status = StoreUnlessVirtual(array, operation.y, pack); status != CUDNN_STATUS_SUCCESS) return status;
    uid = operation.y.uid;
  }
  return CUDNN_STATUS_SUCCESS;
}

template <class Map>
typename Map::mapped_type FindOr(const Map& map, int64_t engine, typename Map::mapped_type otherwise) {
  auto found = map.find(engine);
  if (found == map.end()) found = map.find(-1);
  return found == map.end() ? otherwise : found->second;
}

}  // namespace

// ---- cuDNN's functions that differ.

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  State& state = TheState();
  const Lock lock(state.mutex);
  if (state.create_failure != CUDNN_STATUS_SUCCESS) return state.create_failure;
  if (state.device.empty()) return Refuse(CUDNN_STATUS_NOT_INITIALIZED, "cudnnCreate before double_set_device");
  auto made = std::make_shared<Handle>();
  *handle = reinterpret_cast<cudnnHandle_t>(made.get());
  state.handles[*handle] = std::move(made);
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  const auto found = FindHandle(handle);
  if (!found) return Refuse(CUDNN_STATUS_BAD_PARAM, "cudnnDestroy: no such handle");
  const Use use(*found);
  if (!use) return RefuseSharedHandle("cudnnDestroy");
  State& state = TheState();
  const Lock lock(state.mutex);
  state.handles.erase(handle);
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const auto found = FindHandle(handle);
  if (!found) return Refuse(CUDNN_STATUS_BAD_PARAM, "cudnnSetStream: no such handle");
  const Use use(*found);
  if (!use) return RefuseSharedHandle("cudnnSetStream");
  found->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  const auto found = FindHandle(handle);
  if (!found) return Refuse(CUDNN_STATUS_BAD_PARAM, "cudnnGetStream: no such handle");
  *stream = found->stream;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  {
    State& state = TheState();
    const Lock lock(state.mutex);
    state.records.erase(descriptor);  // before another thread can be given the same address
  }
  return REAL(cudnnBackendDestroyDescriptor)(descriptor);
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(Descriptor descriptor, Name name, Type type, int64_t count,
                                              const void* values) {
  switch (name) {
    case CUDNN_ATTR_DEVICEPROP_DEVICE_ID:
    case CUDNN_ATTR_DEVICEPROP_HANDLE: {
      const std::string device = Device();
      if (device.empty()) return Refuse(CUDNN_STATUS_NOT_INITIALIZED, "device properties before double_set_device");
      return SetDeviceJson(descriptor, device);
    }
    case CUDNN_ATTR_OPERATIONGRAPH_HANDLE:
      if (!FindHandle(*static_cast<const cudnnHandle_t*>(values))) {
        return Refuse(CUDNN_STATUS_BAD_PARAM, "an operation graph: no such handle");
      }
      RecordHandle(descriptor);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_HANDLE:
      return SetDevice(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    default:
      break;
  }
  const auto status = REAL(cudnnBackendSetAttribute)(descriptor, name, type, count, values);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  RecordAttribute(descriptor, name, type, count, values);
  return FollowGraph(descriptor, name, values);
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(Descriptor const descriptor, Name name, Type type, int64_t requested,
                                              int64_t* count, void* values) {
  const auto status = REAL(cudnnBackendGetAttribute)(descriptor, name, type, requested, count, values);
  if (status != CUDNN_STATUS_SUCCESS || !values) return status;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE ||
      name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) {
    const int64_t given = std::min(requested, count ? *count : requested);
    for (int64_t i = 0; i < given; ++i) Inherit(static_cast<Descriptor*>(values)[i], descriptor);
  }
  return status;
}

EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, Descriptor plan, Descriptor variant_pack) {
  const auto found = FindHandle(handle);
  if (!found) return Refuse(CUDNN_STATUS_BAD_PARAM, "cudnnBackendExecute: no such handle");
  const Use use(*found);
  if (!use) return RefuseSharedHandle("cudnnBackendExecute");

  State& state = TheState();
  std::shared_ptr<Graph> graph;
  Pack pack;
  int64_t engine = -1, delay = 0;
  bool swaps_padding = false;
  cudnnStatus_t failure = CUDNN_STATUS_SUCCESS;
  {
    const Lock lock(state.mutex);
    if (const auto record = state.records.find(plan); record != state.records.end()) {
      graph = record->second.graph;
      engine = record->second.engine;
    }
    if (const auto record = state.records.find(variant_pack); record != state.records.end()) pack = record->second.pack;
    failure = FindOr(state.failures, engine, CUDNN_STATUS_SUCCESS);
    delay = FindOr(state.delays, engine, 0);
    swaps_padding = state.swaps_padding;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(delay);
  if (!graph) return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "a plan that was not described in this process");
  if (failure != CUDNN_STATUS_SUCCESS) return failure;

  const int64_t workspace = ReadInt64(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  if (workspace < 0) return Refuse(CUDNN_STATUS_BAD_PARAM, "a plan without a workspace size");
  if (workspace > 0) {
    if (!pack.workspace) {
      return Refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace for a plan that needs %lld bytes",
                    static_cast<long long>(workspace));
    }
    std::memset(pack.workspace, 0xA5, static_cast<size_t>(workspace));  // a smaller one shows under a sanitizer
  }
  if (const auto status = Compute(*graph, pack, swaps_padding); status != CUDNN_STATUS_SUCCESS) return status;
  if (delay > 0) std::this_thread::sleep_until(deadline);

  const Lock lock(state.mutex);
  ++state.executions;
  state.last_workspace = workspace;
  state.last_engine = engine;
  return CUDNN_STATUS_SUCCESS;
}

// ---- Control.

EXPORT void double_set_device(const char* json) {
  State& state = TheState();
  const Lock lock(state.mutex);
  state.device = json;
}

EXPORT int64_t double_executions() {
  State& state = TheState();
  const Lock lock(state.mutex);
  return state.executions;
}

EXPORT int64_t double_last_workspace() {
  State& state = TheState();
  const Lock lock(state.mutex);
  return state.last_workspace;
}

EXPORT int64_t double_last_engine() {
  State& state = TheState();
  const Lock lock(state.mutex);
  return state.last_engine;
}

EXPORT void double_fail_engine(int64_t engine, int status) {
  State& state = TheState();
  const Lock lock(state.mutex);
  if (status) {
    state.failures[engine] = static_cast<cudnnStatus_t>(status);
  } else if (engine == -1) {
    state.failures.clear();
  } else {
    state.failures.erase(engine);
  }
}

EXPORT void double_delay_engine(int64_t engine, int64_t microseconds) {
  State& state = TheState();
  const Lock lock(state.mutex);
  if (microseconds < 0) {
    state.delays.erase(engine);
  } else {
    state.delays[engine] = microseconds;
  }
}

EXPORT void double_fail_create(int status) {
  State& state = TheState();
  const Lock lock(state.mutex);
  state.create_failure = static_cast<cudnnStatus_t>(status);
}

EXPORT int64_t double_handles() {
  State& state = TheState();
  const Lock lock(state.mutex);
  return static_cast<int64_t>(state.handles.size());
}

EXPORT int64_t double_records() {
  State& state = TheState();
  const Lock lock(state.mutex);
  return static_cast<int64_t>(state.records.size());
}

EXPORT void double_swap_padding(int on) {
  State& state = TheState();
  const Lock lock(state.mutex);
  state.swaps_padding = on != 0;
}

EXPORT void double_reset() {
  State& state = TheState();
  const Lock lock(state.mutex);
  state.failures.clear();
  state.delays.clear();
  state.create_failure = CUDNN_STATUS_SUCCESS;
  state.swaps_padding = false;
  state.executions = 0;
  state.last_workspace = state.last_engine = -1;
}
