// What a backend may throw, beside what the standard library does. The messages are for the user.
#pragma once

#include <stdexcept>

namespace jcc {

// The library cannot run this problem, or not well.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The library itself is missing, or not one that we can use.
struct Unavailable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace jcc
