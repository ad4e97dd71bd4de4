#include "cudnn/device.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <type_traits>
#include <vector>

#include "cudnn/library.h"
#include "errors.h"

namespace cudnn_frontend {
extern void* cudnn_dlhandle;
}

namespace jcc::cudnn {
namespace {

std::mutex mutex;
// Never destroyed: a computation may still run while the process exits.
auto& free_handles = *new std::map<int64_t, std::vector<void*>>;  // by device

void* TakeFreeHandle(int64_t device) {
  std::lock_guard lock(mutex);
  auto& handles = free_handles[device];
  if (handles.empty()) return nullptr;
  void* const handle = handles.back();
  handles.pop_back();
  return handle;
}

void Release(int64_t device, void* handle) {
  std::lock_guard lock(mutex);
  free_handles[device].push_back(handle);
}

// A function of cuDNN, in the types of its ABI.
template <typename Function>
Function* FindInCudnn(const char* name) {
  return reinterpret_cast<Function*>(dlsym(cudnn_frontend::cudnn_dlhandle, name));
}

struct Driver {
  int (*error_name)(int error, const char** name);
  int (*memset)(uintptr_t data, unsigned char byte, size_t bytes, void* stream);
  int (*device_get)(int* device, int ordinal);
  int (*device_name)(char* name, int size, int device);
  int (*event_create)(void** event, unsigned flags);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_synchronize)(void* event);
  int (*event_elapsed)(float* milliseconds, void* start, void* stop);
};

const Driver& GetDriver() {
  static const Driver driver = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) throw Unavailable(std::string("the CUDA driver was not found: ") + dlerror());
    Driver found;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (!function) throw Unavailable(std::string("the CUDA driver has no ") + name);
    };
    find(found.error_name, "cuGetErrorName");
    find(found.memset, "cuMemsetD8Async");
    find(found.device_get, "cuDeviceGet");
    find(found.device_name, "cuDeviceGetName");
    find(found.event_create, "cuEventCreate");
    find(found.event_destroy, "cuEventDestroy_v2");
    find(found.event_record, "cuEventRecord");
    find(found.event_synchronize, "cuEventSynchronize");
    find(found.event_elapsed, "cuEventElapsedTime");
    return found;
  }();
  return driver;
}

void Check(int error, const char* what) {
  if (error == 0) return;
  const char* name = nullptr;
  GetDriver().error_name(error, &name);
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + (name ? name : std::to_string(error)));
}

}  // namespace

Handle::Handle(int64_t device, void* stream) : device_(device), stream_(stream), handle_(TakeFreeHandle(device)) {
  if (!handle_)
    if (const int status = FindInCudnn<int(void**)>("cudnnCreate")(&handle_))
      throw Unavailable("cuDNN cannot be used on this GPU: cudnnCreate: " + StatusText(status));
  if (const int status = FindInCudnn<int(void*, void*)>("cudnnSetStream")(handle_, stream)) {
    Release(device, handle_);
    throw std::runtime_error("cuDNN: cudnnSetStream: " + StatusText(status));
  }
}

Handle::~Handle() { Release(device_, handle_); }

void FillAsync(void* data, unsigned char byte, size_t bytes, void* stream) {
  Check(GetDriver().memset(reinterpret_cast<uintptr_t>(data), byte, bytes, stream), "cuMemsetD8Async");
}

std::string DeviceName(int64_t ordinal) {
  int device = 0;
  char name[256] = "";
  Check(GetDriver().device_get(&device, static_cast<int>(ordinal)), "cuDeviceGet");
  Check(GetDriver().device_name(name, sizeof name, device), "cuDeviceGetName");
  return name;
}

StreamTimer::StreamTimer() {
  Check(GetDriver().event_create(&start_, 0), "cuEventCreate");
  if (const int error = GetDriver().event_create(&stop_, 0)) {
    GetDriver().event_destroy(start_);
    Check(error, "cuEventCreate");
  }
}

StreamTimer::~StreamTimer() {
  GetDriver().event_destroy(start_);
  GetDriver().event_destroy(stop_);
}

void StreamTimer::Start(void* stream) { Check(GetDriver().event_record(start_, stream), "cuEventRecord"); }

float StreamTimer::Stop(void* stream) {
  float milliseconds = 0;
  Check(GetDriver().event_record(stop_, stream), "cuEventRecord");
  Check(GetDriver().event_synchronize(stop_), "cuEventSynchronize");
  Check(GetDriver().event_elapsed(&milliseconds, start_, stop_), "cuEventElapsedTime");
  return milliseconds;
}

}  // namespace jcc::cudnn
