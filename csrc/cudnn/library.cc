#include "cudnn/library.h"

#include <cudnn_version.h>
#include <dlfcn.h>

#include <mutex>

#include "errors.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // cudnn-frontend looks up every function of cuDNN in it
}

namespace jcc::cudnn {
namespace {

constexpr const char* kName = "libcudnn.so.9";

std::mutex mutex;
std::string wheel_path;
bool only_wheel_path = false;
LibraryInfo info;

template <typename Function>
Function* Find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void* Open(std::string& errors) {
  const auto open = [&](const char* path) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) errors += std::string("; ") + dlerror();
    return library;
  };
  void* library = only_wheel_path ? nullptr : dlopen(kName, RTLD_NOW | RTLD_NOLOAD);  // JAX's, as a rule
  if (!library && !wheel_path.empty()) library = open(wheel_path.c_str());
  if (!library && !only_wheel_path) library = open(kName);
  return library;
}

std::string Wanted() {
  return "wanted: cuDNN 9, " + VersionText(kOldestVersion) + " or later (built with the headers of " +
         VersionText(CUDNN_VERSION) + ")";
}

}  // namespace

std::string VersionText(int64_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

void SetLibraryPath(const std::string& path, bool only) {
  std::lock_guard lock(mutex);
  wheel_path = path;
  only_wheel_path = only;
}

void LoadLibrary() {
  std::lock_guard lock(mutex);
  if (cudnn_frontend::cudnn_dlhandle) return;
  std::string errors;
  void* const library = Open(errors);
  if (!library) throw Unavailable("cuDNN was not found; " + Wanted() + errors);
  const auto version = Find<size_t()>(library, "cudnnGetVersion");
  if (!version) throw Unavailable("what was loaded as " + std::string(kName) + " is not cuDNN; " + Wanted());
  LibraryInfo found{kName, static_cast<int64_t>(version())};
  if (Dl_info where; dladdr(reinterpret_cast<void*>(version), &where) && where.dli_fname) found.path = where.dli_fname;
  if (found.version < kOldestVersion || found.version >= 100000)
    throw Unavailable("found cuDNN " + VersionText(found.version) + " in " + found.path + "; " + Wanted());
  info = found;
  cudnn_frontend::cudnn_dlhandle = library;
}

LibraryInfo GetLibraryInfo() {
  LoadLibrary();
  return info;
}

std::string StatusText(int status) {
  void* const library = cudnn_frontend::cudnn_dlhandle;
  std::string text = Find<const char*(int)>(library, "cudnnGetErrorString")(status);
  char detail[1024] = "";
  Find<void(char*, size_t)>(library, "cudnnGetLastErrorString")(detail, sizeof detail);
  return *detail ? text + ": " + detail : text;
}

}  // namespace jcc::cudnn
