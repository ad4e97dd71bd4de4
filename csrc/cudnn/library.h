// Finds cuDNN when it is first needed. Nothing is linked to it, so that the module imports on any machine.
#pragma once

#include <cstdint>
#include <string>

namespace jcc::cudnn {

inline constexpr int kOldestVersion =
    90800;  // the first that plans for a described device; jax's own minimum for CUDA 12

// Where to look if no cuDNN is in the process yet, before the loader's own search: the path of a wheel's libcudnn.so.9.
// `only` looks nowhere else, and not in the process either.
void SetLibraryPath(const std::string& path, bool only);

// Loads cuDNN if that has not been done. Throws Unavailable with one line that says what was found and what is wanted.
void LoadLibrary();

struct LibraryInfo {
  std::string path;
  int64_t version;
};
LibraryInfo GetLibraryInfo();  // loads it

std::string VersionText(int64_t version);  // 91200: "9.12.0"

// cuDNN's own name for a status, with its last error message in this thread.
std::string StatusText(int status);

}  // namespace jcc::cudnn
