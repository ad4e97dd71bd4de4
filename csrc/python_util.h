// What the Python modules of the backends share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "conv_spec.h"
#include "plan_cache.h"
#include "xla/ffi/api/c_api.h"

namespace jcc {

using Vector = std::vector<int64_t>;

// A problem as Python has it. `shapes` and `dtypes` are those of the two operands and the result.
inline ConvSpec SpecFromPython(const std::string& result, const std::vector<Vector>& shapes,
                               const std::vector<std::string>& dtypes, const Vector& x_dims, const Vector& w_dims,
                               const Vector& y_dims, const Vector& strides, const Vector& dilation,
                               const Vector& pad_low, int64_t groups, bool allow_narrow) {
  const auto direction = [&] {
    if (result == "y") return Direction::kForward;
    if (result == "x") return Direction::kBackwardData;
    if (result == "w") return Direction::kBackwardFilter;
    throw std::invalid_argument("no such tensor: " + result);
  }();
  const auto array = [&](int k) -> ConvArguments::Array {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64})
      if (dtypes.at(k) == LongName(dtype)) return {shapes.at(k), dtype};
    throw std::invalid_argument("no such dtype: " + dtypes.at(k));
  };
  return MakeConvSpec(direction, {array(0), array(1), array(2), x_dims, w_dims, y_dims, strides, dilation, pad_low,
                                  groups, allow_narrow});
}

inline nanobind::capsule ToCapsule(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
  return nanobind::capsule(reinterpret_cast<void*>(handler));
}

// The functions that each module has: the version of the FFI, and its cache of plans.
template <typename Key, typename Plan>
void DefineCommon(nanobind::module_& m, PlanCache<Key, Plan>& (*plans)()) {
  m.def(
      "ffi_api_version", [] { return std::pair<int, int>(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
      "The version of XLA's FFI that the handlers were built for.");
  m.def(
      "plan_cache_info",
      [plans] {
        const auto info = plans().GetInfo();
        nanobind::dict result;
        result["size"] = info.size;
        result["capacity"] = info.capacity;
        result["hits"] = info.hits;
        result["misses"] = info.misses;
        return result;
      },
      "Size, capacity, hits and misses of the cache of plans.");
  m.def(
      "set_plan_cache_capacity", [plans](size_t capacity) { plans().SetCapacity(capacity); }, nanobind::arg("capacity"),
      "Keep at most this many plans; the least recently used go first.");
}

}  // namespace jcc
