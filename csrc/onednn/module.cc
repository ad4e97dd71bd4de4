// The Python module `_onednn`: FFI handlers for XLA, and what Python needs to know while lowering.
#include <nanobind/stl/tuple.h>

#include "ffi_util.h"
#include "onednn/conv.h"
#include "onednn/select.h"
#include "parallel.h"
#include "python_util.h"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace jcc::onednn {
namespace {

// --- The handlers ----------------------------------------------------------------------------------------------------

template <Direction direction>
ffi::Error Handle(ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::Result<ffi::AnyBuffer> out, Ints x_dims, Ints w_dims,
                  Ints y_dims, Ints strides, Ints dilation, Ints pad_low, int64_t groups, bool allow_narrow) {
  return Fence([&] {
    const ConvSpec spec = MakeConvSpec(direction, {ToArray(lhs), ToArray(rhs), ToArray(*out), x_dims, w_dims, y_dims,
                                                   strides, dilation, pad_low, groups, allow_narrow});
    constexpr auto kPlaces = Places(direction);
    void* const given[] = {lhs.untyped_data(), rhs.untyped_data(), out->untyped_data()};
    WithProblemInErrors(spec, [&] { GetPlan(spec)->Run(given[kPlaces[0]], given[kPlaces[1]], given[kPlaces[2]]); });
  });
}

auto Binding() {
  return WithGeometry(ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
}

XLA_FFI_DEFINE_HANDLER(kForwardHandler, Handle<Direction::kForward>, Binding());
XLA_FFI_DEFINE_HANDLER(kBackwardDataHandler, Handle<Direction::kBackwardData>, Binding());
XLA_FFI_DEFINE_HANDLER(kBackwardFilterHandler, Handle<Direction::kBackwardFilter>, Binding());

// --- For Python ------------------------------------------------------------------------------------------------------

nb::dict Targets() {
  nb::dict targets;
  targets["jax_cudnn_conv_onednn_fwd_v1"] = ToCapsule(kForwardHandler);
  targets["jax_cudnn_conv_onednn_dgrad_v1"] = ToCapsule(kBackwardDataHandler);
  targets["jax_cudnn_conv_onednn_wgrad_v1"] = ToCapsule(kBackwardFilterHandler);
  return targets;
}

// The kernel that would run a problem, "" if there is none; why XLA should run it, "" if it should not; and whether XLA
// should in float64. Prepares the plan on the way.
std::tuple<std::string, std::string, bool> Describe(const std::string& result, const std::vector<Vector>& shapes,
                                                    const std::vector<std::string>& dtypes, const Vector& x_dims,
                                                    const Vector& w_dims, const Vector& y_dims, const Vector& strides,
                                                    const Vector& dilation, const Vector& pad_low, int64_t groups,
                                                    bool allow_narrow) {
  const ConvSpec spec =
      SpecFromPython(result, shapes, dtypes, x_dims, w_dims, y_dims, strides, dilation, pad_low, groups, allow_narrow);
  try {
    const auto plan = GetPlan(spec);
    const std::string name = plan->is_naive() ? "" : plan->kernel();
    const XlaAdvice& advice = plan->advice();
    if (advice.reason != nullptr) return {name, advice.reason, advice.in_double};
    return {name, plan->is_naive() ? "oneDNN has only its reference kernel, a naive loop" : "", false};
  } catch (const Unsupported& error) {
    return {"", error.what(), false};
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

}  // namespace
}  // namespace jcc::onednn

NB_MODULE(_onednn, m) {
  using namespace nb::literals;
  namespace jo = jcc::onednn;
  m.def("targets", &jo::Targets, "The FFI handlers by target name.");
  m.def("describe", &jo::Describe, "result"_a, "shapes"_a, "dtypes"_a, "x_dims"_a, "w_dims"_a, "y_dims"_a, "strides"_a,
        "dilation"_a, "pad_low"_a, "groups"_a, "allow_narrow"_a,
        "The kernel of a problem ('' if there is none), why XLA is the better choice ('' if it is not), and whether in "
        "float64.");
  m.def("info", &jo::Info, "Versions loaded and compiled against, instruction set, threads.");
  jcc::DefineCommon(m, &jo::Plans);
  m.def(
      "set_num_threads", [](int limit) { jcc::thread_limit = limit; }, "limit"_a,
      "Use at most this many threads. Once, before the first convolution: plans are made for a number of threads.");
  // Our cache is the bound: oneDNN's own would keep every primitive a second time.
  dnnl::set_primitive_cache_capacity(0);
}
