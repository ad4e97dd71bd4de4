// A stand-in for the CUDA driver, libcuda.so.1, on machines without a GPU.
//
// It serves two callers with opposite wishes:
// - cuDNN and the CUDA runtime inside it are told that there is no device (error 100): they plan without one.
//   The names are those that any cuDNN 9 links or looks up; a missing one costs a line on stderr or an engine.
// - This project's own code finds a device whose memory is the host's and whose streams have always finished.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100 };

// ---- What both ask.

EXPORT int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

EXPORT int cuGetErrorName(int error, const char** name) {
  switch (error) {
    case kSuccess:
      *name = "CUDA_SUCCESS";
      return kSuccess;
    case kInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return kSuccess;
    case kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return kSuccess;
    case kNoDevice:
      *name = "CUDA_ERROR_NO_DEVICE";
      return kSuccess;
    default:
      *name = NULL;
      return kInvalidValue;
  }
}

EXPORT int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

// ---- What cuDNN asks: there is no device.

EXPORT int cuInit(unsigned flags) {
  (void)flags;
  return kNoDevice;
}

EXPORT int cuDeviceGetCount(int* count) {
  *count = 0;
  return kNoDevice;
}

#define NO_DEVICE(name) \
  EXPORT int name(void) { return kNoDevice; }

NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuKernelGetAttribute)
NO_DEVICE(cuKernelGetFunction)
NO_DEVICE(cuKernelSetAttribute)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryGetKernel)
NO_DEVICE(cuLibraryLoadData)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLibraryUnload)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuModuleGetFunction)
NO_DEVICE(cuModuleLoadData)
NO_DEVICE(cuModuleUnload)
NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE(cuStreamGetCtx)
NO_DEVICE(cuTensorMapEncodeIm2col)
NO_DEVICE(cuTensorMapEncodeTiled)

// ---- What this project asks: a device on host memory.

EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}

EXPORT int cuDeviceGetName(char* name, int size, int device) {
  (void)device;
  if (size <= 0) return kInvalidValue;
  strncpy(name, "Stand-in GPU", (size_t)size - 1);
  name[size - 1] = '\0';
  return kSuccess;
}

EXPORT int cuCtxGetCurrent(void** context) {
  static char the_context;
  *context = &the_context;
  return kSuccess;
}

EXPORT int cuMemsetD8Async(uintptr_t target, unsigned char value, size_t bytes, void* stream) {
  (void)stream;
  memset((void*)target, value, bytes);
  return kSuccess;
}

EXPORT int cuStreamSynchronize(void* stream) {
  (void)stream;
  return kSuccess;
}

// An event is the time at which it was recorded, as the work before it has finished by then.
typedef struct timespec Event;

EXPORT int cuEventCreate(Event** event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(Event));
  return *event ? kSuccess : kOutOfMemory;
}

EXPORT int cuEventDestroy_v2(Event* event) {
  free(event);
  return kSuccess;
}

EXPORT int cuEventRecord(Event* event, void* stream) {
  (void)stream;
  return clock_gettime(CLOCK_MONOTONIC, event) ? kInvalidValue : kSuccess;
}

EXPORT int cuEventSynchronize(Event* event) {
  (void)event;
  return kSuccess;
}

EXPORT int cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
  *milliseconds = (float)((double)(end->tv_sec - start->tv_sec) * 1e3 + (double)(end->tv_nsec - start->tv_nsec) * 1e-6);
  return kSuccess;
}
