// The Python module `_cudnn`: FFI handlers for XLA, and what Python needs to know while lowering.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <list>
#include <memory>
#include <tuple>

#include "cudnn/conv.h"
#include "cudnn/library.h"
#include "cudnn/tune.h"
#include "ffi_util.h"
#include "python_util.h"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace jcc::cudnn {
namespace {

// --- The handlers ----------------------------------------------------------------------------------------------------

Autotune ToAutotune(int64_t value) {
  if (value < 0 || value > static_cast<int64_t>(Autotune::kFastest))
    throw std::invalid_argument("jax_cudnn_conv: autotune must be 0, 1 or 2");
  return static_cast<Autotune>(value);
}

using Stage = ffi::ExecutionStage;

// One stage of a call: XLA initializes all calls of a program before it executes the first.
template <Direction direction, Stage stage>
void Act(const Context& context, int32_t device, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::RemainingArgs bias,
         ffi::Result<ffi::AnyBuffer> out, Ints x_dims, Ints w_dims, Ints y_dims, Ints strides, Ints dilation,
         Ints pad_low, int64_t groups, bool allow_narrow, bool relu, bool deterministic, int64_t workspace_limit,
         int64_t autotune) {
  Problem problem;
  problem.spec = MakeConvSpec(direction, {ToArray(lhs), ToArray(rhs), ToArray(*out), x_dims, w_dims, y_dims, strides,
                                          dilation, pad_low, groups, allow_narrow});
  problem.relu = relu;
  problem.deterministic = deterministic;
  problem.workspace_limit = workspace_limit;
  problem.autotune = ToAutotune(autotune);
  problem.device = device;
  constexpr auto kPlaces = Places(direction);
  void* const given[] = {lhs.untyped_data(), rhs.untyped_data(), out->untyped_data()};
  Pointers pointers{given[kPlaces[0]], given[kPlaces[1]], given[kPlaces[2]], nullptr};
  if (!bias.empty()) {
    const auto buffer = bias.get<ffi::AnyBuffer>(0);
    if (direction != Direction::kForward || !buffer || buffer->element_type() != out->element_type() ||
        buffer->dimensions().size() != 1 || buffer->dimensions()[0] != problem.spec.y.extent[1])
      throw std::invalid_argument("jax_cudnn_conv: the bias must have one entry per output feature");
    problem.bias = 1;
    pointers.bias = buffer->untyped_data();
  }
  WithProblemInErrors(problem.spec, [&] {
    if (stage == Stage::kInitialize) {
      Initialize(problem, context);
    } else {
      Execute(problem, context, pointers);
    }
  });
}

template <Direction direction, Stage stage, typename... Rest>
ffi::Error HandleOnGpu(void* stream, int32_t device, ffi::ScratchAllocator& scratch, Rest... rest) {
  return Fence([&] {
    const Context context{stream, [&](size_t bytes) { return scratch.Allocate(bytes, 256).value_or(nullptr); }};
    Act<direction, stage>(context, device, rest...);
  });
}

std::atomic<int64_t> host_memory = std::numeric_limits<int64_t>::max();

// For tests without a GPU: both stages in one, with the workspace on the host, below a cuDNN that runs there.
template <Direction direction, typename... Rest>
ffi::Error HandleOnHost(Rest... rest) {
  return Fence([&] {
    std::list<std::unique_ptr<void, decltype(&std::free)>> blocks;
    const Context context{nullptr, [&](size_t bytes) -> void* {
                            if (static_cast<int64_t>(bytes) > host_memory) return nullptr;
                            return blocks.emplace_back(std::malloc(bytes), &std::free).get();
                          }};
    Act<direction, Stage::kInitialize>(context, 0, rest...);
    Act<direction, Stage::kExecute>(context, 0, rest...);
  });
}

template <typename Binding>
auto WithArguments(Binding binding) {
  return WithGeometry(std::move(binding)
                          .template Arg<ffi::AnyBuffer>()
                          .template Arg<ffi::AnyBuffer>()
                          .RemainingArgs()
                          .template Ret<ffi::AnyBuffer>())
      .template Attr<bool>("relu")
      .template Attr<bool>("deterministic")
      .template Attr<int64_t>("workspace_limit")
      .template Attr<int64_t>("autotune");
}

template <Direction direction, Stage stage>
XLA_FFI_Error* OnGpu(XLA_FFI_CallFrame* frame) {
  static auto* const handler =
      WithArguments(ffi::Ffi::Bind<stage>()
                        .template Ctx<ffi::PlatformStream<void*>>()
                        .template Ctx<ffi::DeviceOrdinal>()
                        .template Ctx<ffi::ScratchAllocator>())
          .To([](void* stream, int32_t device, ffi::ScratchAllocator scratch, auto... arguments) {
            return HandleOnGpu<direction, stage>(stream, device, scratch, arguments...);
          })
          .release();
  return handler->Call(frame);
}

template <Direction direction>
XLA_FFI_Error* OnHost(XLA_FFI_CallFrame* frame) {
  static auto* const handler = WithArguments(ffi::Ffi::Bind())
                                   .To([](auto... arguments) { return HandleOnHost<direction>(arguments...); })
                                   .release();
  return handler->Call(frame);
}

template <Direction direction>
nb::dict Stages() {
  nb::dict stages;
  stages["initialize"] = ToCapsule(OnGpu<direction, Stage::kInitialize>);
  stages["execute"] = ToCapsule(OnGpu<direction, Stage::kExecute>);
  return stages;
}

// --- For Python ------------------------------------------------------------------------------------------------------

constexpr const char* kForwardTarget = "jax_cudnn_conv_cudnn_fwd_v1";
constexpr const char* kBackwardDataTarget = "jax_cudnn_conv_cudnn_dgrad_v1";
constexpr const char* kBackwardFilterTarget = "jax_cudnn_conv_cudnn_wgrad_v1";

nb::dict Targets() {
  nb::dict targets;
  targets[kForwardTarget] = Stages<Direction::kForward>();
  targets[kBackwardDataTarget] = Stages<Direction::kBackwardData>();
  targets[kBackwardFilterTarget] = Stages<Direction::kBackwardFilter>();
  return targets;
}

nb::dict HostTargets() {
  nb::dict targets;
  targets[kForwardTarget] = ToCapsule(OnHost<Direction::kForward>);
  targets[kBackwardDataTarget] = ToCapsule(OnHost<Direction::kBackwardData>);
  targets[kBackwardFilterTarget] = ToCapsule(OnHost<Direction::kBackwardFilter>);
  return targets;
}

// The plan of a problem on the GPU that the JSON describes: (name, workspace in bytes, notes, ""), or ("", 0, "", why
// there is none).
std::tuple<std::string, int64_t, std::string, std::string> Describe(
    const std::string& result, const std::vector<Vector>& shapes, const std::vector<std::string>& dtypes,
    const Vector& x_dims, const Vector& w_dims, const Vector& y_dims, const Vector& strides, const Vector& dilation,
    const Vector& pad_low, int64_t groups, bool allow_narrow, bool bias, bool relu, bool deterministic,
    int64_t workspace_limit, const std::string& device) {
  Problem problem;
  problem.spec =
      SpecFromPython(result, shapes, dtypes, x_dims, w_dims, y_dims, strides, dilation, pad_low, groups, allow_narrow);
  problem.bias = bias;
  problem.relu = relu;
  problem.deterministic = deterministic;
  problem.workspace_limit = workspace_limit;
  try {
    const Plan plan = Choose(problem, device);
    return {plan.name(), plan.workspace(), plan.notes(), ""};
  } catch (const Unsupported& error) {
    return {"", 0, "", error.what()};
  }
}

nb::dict Info() {
  nb::dict info;
  const LibraryInfo library = GetLibraryInfo();
  info["version"] = VersionText(library.version);
  info["path"] = library.path;
  info["plans kept"] = Plans().GetInfo().capacity;
  return info;
}

// Lets the trials find and keep their winners with functions of Python.
void SetWinnerFunctions(nb::callable find, nb::callable keep, nb::callable log) {
  // Never destroyed: a computation may still run while the process exits.
  auto& functions = *new std::array<nb::callable, 3>{std::move(find), std::move(keep), std::move(log)};
  SetWinnerStore({[&](const std::string& key) {
                    nb::gil_scoped_acquire gil;
                    return nb::cast<std::string>(functions[0](key));
                  },
                  [&](const std::string& key, const std::string& name) {
                    nb::gil_scoped_acquire gil;
                    functions[1](key, name);
                  },
                  [&](const std::string& message) {
                    nb::gil_scoped_acquire gil;
                    functions[2](message);
                  }});
}

}  // namespace
}  // namespace jcc::cudnn

NB_MODULE(_cudnn, m) {
  using namespace nb::literals;
  namespace jc = jcc::cudnn;
  m.def("targets", &jc::Targets, "The FFI handlers by target name and stage.");
  m.def("host_targets", &jc::HostTargets, "The same for XLA's CPU, below a cuDNN that runs there: for tests.");
  m.def("set_library_path", &jc::SetLibraryPath, "path"_a, "only"_a = false,
        "Where to look for libcudnn.so.9 if the process has none yet; with `only`, look nowhere else.");
  m.def("describe", &jc::Describe, "result"_a, "shapes"_a, "dtypes"_a, "x_dims"_a, "w_dims"_a, "y_dims"_a, "strides"_a,
        "dilation"_a, "pad_low"_a, "groups"_a, "allow_narrow"_a, "bias"_a, "relu"_a, "deterministic"_a,
        "workspace_limit"_a, "device"_a, nb::call_guard<nb::gil_scoped_release>(),
        "The plan of a problem on a described GPU: (name, workspace, notes, ''), or ('', 0, '', why there is none).");
  m.def("describe_device", &jc::DescribeDevice, "ordinal"_a, "cuDNN's description of a GPU of this machine, as JSON.");
  m.def("info", &jc::Info, "The version and path of cuDNN, which is loaded if it is not yet.");
  m.def("deny_engines", &jc::DenyEngines, "engines"_a, "Plans that are never used, by the beginning of their names.");
  m.def(
      "set_host_memory", [](int64_t bytes) { jc::host_memory = bytes; }, "bytes"_a,
      "For tests: the largest block of scratch memory that a host target gets.");
  m.def("set_winner_functions", &jc::SetWinnerFunctions, "find"_a, "keep"_a, "log"_a,
        "How trials find a winner by its key, keep one, and report.");
  jcc::DefineCommon(m, &jc::Plans);
}
