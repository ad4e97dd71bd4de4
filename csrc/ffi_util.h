// The border between XLA's FFI and the library: dtypes, and a fence that no exception passes.
#pragma once

#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "conv_spec.h"
#include "xla/ffi/api/ffi.h"

namespace jcc {

inline std::optional<DType> FromFfi(xla::ffi::DataType dtype) {
  switch (dtype) {
    case xla::ffi::DataType::F32:
      return DType::kF32;
    case xla::ffi::DataType::BF16:
      return DType::kBF16;
    case xla::ffi::DataType::F16:
      return DType::kF16;
    default:
      return std::nullopt;
  }
}

// Runs `body` and turns whatever it throws into an error that JAX raises in Python.
template <typename Body>
xla::ffi::Error Fence(const Body& body) {
  using xla::ffi::Error;
  using xla::ffi::ErrorCode;
  try {
    body();
    return Error::Success();
  } catch (const std::invalid_argument& error) {
    return Error(ErrorCode::kInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "jax_cudnn_conv: out of memory");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  } catch (...) {
    return Error(ErrorCode::kInternal, "jax_cudnn_conv: an exception of unknown type");
  }
}

}  // namespace jcc
