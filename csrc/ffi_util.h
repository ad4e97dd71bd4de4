// The border between XLA's FFI and the library: buffers to a problem, and a fence that no exception passes.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "conv_spec.h"
#include "errors.h"
#include "xla/ffi/api/ffi.h"

namespace jcc {

using Ints = xla::ffi::Span<const int64_t>;

inline ConvArguments::Array ToArray(const xla::ffi::AnyBuffer& buffer) {
  const auto dtype = [&] {
    switch (buffer.element_type()) {
      case xla::ffi::DataType::F32:
        return DType::kF32;
      case xla::ffi::DataType::BF16:
        return DType::kBF16;
      case xla::ffi::DataType::F16:
        return DType::kF16;
      case xla::ffi::DataType::F64:
        return DType::kF64;
      default:
        throw std::invalid_argument("jax_cudnn_conv: operands must be f32, bf16, f16 or f64");
    }
  }();
  return {buffer.dimensions(), dtype};
}

// Adds the attributes that every handler takes, in the order in which it takes them.
template <typename Binding>
auto WithGeometry(Binding binding) {
  return std::move(binding)
      .template Attr<Ints>("x_dims")
      .template Attr<Ints>("w_dims")
      .template Attr<Ints>("y_dims")
      .template Attr<Ints>("strides")
      .template Attr<Ints>("dilation")
      .template Attr<Ints>("pad_low")
      .template Attr<int64_t>("groups")
      .template Attr<bool>("allow_narrow");
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
  } catch (const Unsupported& error) {
    return Error(ErrorCode::kUnimplemented, error.what());
  } catch (const Unavailable& error) {
    return Error(ErrorCode::kFailedPrecondition, error.what());
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "jax_cudnn_conv: out of memory");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  } catch (...) {
    return Error(ErrorCode::kInternal, "jax_cudnn_conv: an exception of unknown type");
  }
}

// The same, with the problem at the end of every message.
template <typename Body>
void WithProblemInErrors(const ConvSpec& spec, const Body& body) {
  const auto text = [&](const std::exception& error) {
    return std::string(error.what()) + " [" + ToString(spec) + "]";
  };
  try {
    body();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const Unavailable&) {
    throw;
  } catch (const Unsupported& error) {
    throw Unsupported(text(error));
  } catch (const std::exception& error) {
    throw std::runtime_error(text(error));
  }
}

}  // namespace jcc
