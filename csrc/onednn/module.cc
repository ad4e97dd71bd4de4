// The Python module `_onednn`: FFI handlers for XLA, and what Python needs to know while lowering.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "ffi_util.h"
#include "onednn/conv.h"
#include "onednn/select.h"
#include "parallel.h"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace jcc::onednn {
namespace {

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

// --- The handlers ----------------------------------------------------------------------------------------------------

using Ints = ffi::Span<const int64_t>;

ConvArguments::Array ToArray(const ffi::AnyBuffer& buffer, Ints dims) {
  const auto dtype = FromFfi(buffer.element_type());
  if (!dtype) throw std::invalid_argument("jax_cudnn_conv: operands must be f32, bf16 or f16");
  const auto shape = buffer.dimensions();
  return {shape.begin(), static_cast<int64_t>(shape.size()), dims.begin(), static_cast<int64_t>(dims.size()), *dtype};
}

template <Direction direction>
ffi::Error Handle(ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::Result<ffi::AnyBuffer> out, Ints x_dims, Ints w_dims,
                  Ints y_dims, Ints strides, Ints dilation, Ints pad_low, int64_t groups, bool allow_bf16) {
  return Fence([&] {
    constexpr auto kPlaces = Places(direction);
    const ffi::AnyBuffer given[] = {lhs, rhs, *out};
    const ffi::AnyBuffer &x = given[kPlaces[0]], &w = given[kPlaces[1]], &y = given[kPlaces[2]];
    const ConvSpec spec = MakeConvSpec(
        direction, {ToArray(x, x_dims), ToArray(w, w_dims), ToArray(y, y_dims), strides.begin(), dilation.begin(),
                    pad_low.begin(), static_cast<int64_t>(strides.size()), static_cast<int64_t>(dilation.size()),
                    static_cast<int64_t>(pad_low.size()), groups, allow_bf16});
    try {
      GetPlan(spec)->Run(x.untyped_data(), w.untyped_data(), y.untyped_data());
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(error.what()) + " [" + ToString(spec) + "]");
    }
  });
}

auto Binding() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<Ints>("x_dims")
      .Attr<Ints>("w_dims")
      .Attr<Ints>("y_dims")
      .Attr<Ints>("strides")
      .Attr<Ints>("dilation")
      .Attr<Ints>("pad_low")
      .Attr<int64_t>("groups")
      .Attr<bool>("allow_bf16");
}

XLA_FFI_DEFINE_HANDLER(kForwardHandler, Handle<Direction::kForward>, Binding());
XLA_FFI_DEFINE_HANDLER(kBackwardDataHandler, Handle<Direction::kBackwardData>, Binding());
XLA_FFI_DEFINE_HANDLER(kBackwardFilterHandler, Handle<Direction::kBackwardFilter>, Binding());

// --- For Python ------------------------------------------------------------------------------------------------------

nb::dict Targets() {
  nb::dict targets;
  const auto add = [&](const char* name, XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
    targets[name] = nb::capsule(reinterpret_cast<void*>(handler));
  };
  add("jax_cudnn_conv_onednn_fwd_v1", kForwardHandler);
  add("jax_cudnn_conv_onednn_dgrad_v1", kBackwardDataHandler);
  add("jax_cudnn_conv_onednn_wgrad_v1", kBackwardFilterHandler);
  return targets;
}

using Vector = std::vector<int64_t>;

DType DTypeNamed(const std::string& name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    if (name == LongName(dtype)) return dtype;
  throw std::invalid_argument("no such dtype: " + name);
}

Direction DirectionNamed(const std::string& result) {
  if (result == "y") return Direction::kForward;
  if (result == "x") return Direction::kBackwardData;
  if (result == "w") return Direction::kBackwardFilter;
  throw std::invalid_argument("no such tensor: " + result);
}

// The kernel that would run a problem: (name, ""), or ("", why there is none). Prepares its plan on the way.
// `shapes` and `dtypes` are those of the two operands and the result.
std::pair<std::string, std::string> Describe(const std::string& result, const std::vector<Vector>& shapes,
                                             const std::vector<std::string>& dtypes, const Vector& x_dims,
                                             const Vector& w_dims, const Vector& y_dims, const Vector& strides,
                                             const Vector& dilation, const Vector& pad_low, int64_t groups,
                                             bool allow_bf16) {
  const Direction direction = DirectionNamed(result);
  const Vector* const dims[] = {&x_dims, &w_dims, &y_dims};
  std::array<ConvArguments::Array, 3> arrays;  // x, w, y
  for (int k = 0; k < 3; ++k) {
    const int place = Places(direction)[k];
    const Vector& shape = shapes.at(k);
    arrays[place] = {shape.data(), static_cast<int64_t>(shape.size()), dims[place]->data(),
                     static_cast<int64_t>(dims[place]->size()), DTypeNamed(dtypes.at(k))};
  }
  const ConvSpec spec =
      MakeConvSpec(direction, {arrays[0], arrays[1], arrays[2], strides.data(), dilation.data(), pad_low.data(),
                               static_cast<int64_t>(strides.size()), static_cast<int64_t>(dilation.size()),
                               static_cast<int64_t>(pad_low.size()), groups, allow_bf16});
  try {
    const auto plan = GetPlan(spec);
    if (plan->why_xla() != nullptr) return {"", plan->why_xla()};
    return {plan->kernel(), ""};
  } catch (const Unsupported& error) {
    return {"", error.what()};
  }
}

std::string Version(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::string IsaName(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::sse41:
      return "SSE4.1";
    case dnnl::cpu_isa::avx:
      return "AVX";
    case dnnl::cpu_isa::avx2:
      return "AVX2";
    case dnnl::cpu_isa::avx512_core:
      return "AVX512_CORE";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "AVX512_CORE_VNNI";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "AVX512_CORE_BF16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "AVX512_CORE_AMX";
    default:
      return "code " + std::to_string(static_cast<int>(isa));
  }
}

nb::dict Info() {
  nb::dict info;
  const dnnl_version_t* loaded = dnnl_version();
  info["version"] = Version(loaded->major, loaded->minor, loaded->patch);
  info["compiled against"] = Version(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
  info["isa"] = IsaName(dnnl::get_effective_cpu_isa());
  WithThreads(false, [&] { info["threads"] = NumThreads(); });
  info["plans kept"] = Plans().GetInfo().capacity;
  return info;
}

nb::dict PlanCacheInfo() {
  const auto info = Plans().GetInfo();
  nb::dict result;
  result["size"] = info.size;
  result["capacity"] = info.capacity;
  result["hits"] = info.hits;
  result["misses"] = info.misses;
  return result;
}

}  // namespace
}  // namespace jcc::onednn

NB_MODULE(_onednn, m) {
  using namespace nb::literals;
  namespace jo = jcc::onednn;
  m.def("targets", &jo::Targets, "The FFI handlers by target name.");
  m.def("describe", &jo::Describe, "result"_a, "shapes"_a, "dtypes"_a, "x_dims"_a, "w_dims"_a, "y_dims"_a, "strides"_a,
        "dilation"_a, "pad_low"_a, "groups"_a, "allow_bf16"_a,
        "The kernel of a problem as (name, ''), or ('', why there is none).");
  m.def("info", &jo::Info, "Versions loaded and compiled against, instruction set, threads.");
  m.def(
      "ffi_api_version", [] { return std::pair<int, int>(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
      "The version of XLA's FFI that the handlers were built for.");
  m.def("plan_cache_info", &jo::PlanCacheInfo, "Size, capacity, hits and misses of the cache of plans.");
  m.def(
      "set_plan_cache_capacity", [](size_t capacity) { jo::Plans().SetCapacity(capacity); }, "capacity"_a,
      "Keep at most this many plans; the least recently used go first.");
  m.def(
      "set_num_threads", [](int limit) { jcc::thread_limit = limit; }, "limit"_a,
      "Use at most this many threads. Once, before the first convolution: plans are made for a number of threads.");
  // Our cache is the bound: oneDNN's own would keep every primitive a second time.
  dnnl::set_primitive_cache_capacity(0);
}
