// What a call needs of the GPU that it runs on: a cuDNN handle, and a few functions of the CUDA driver. The driver and
// not the CUDA runtime, of which a process may have several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace jcc::cudnn {

// A cuDNN handle of a device, set to a stream, and nobody else's until it is destroyed. Handles are kept for reuse:
// they are never destroyed, which is not safe once CUDA shuts down, and there are no more than ever were in use at
// once.
class Handle {
 public:
  Handle(int64_t device, void* stream);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void* get() const { return handle_; }
  void* stream() const { return stream_; }

 private:
  int64_t device_;
  void* stream_;
  void* handle_;
};

void FillAsync(void* data, unsigned char byte, size_t bytes, void* stream);
std::string DeviceName(int64_t device);

// Measures the time between two points of a stream.
class StreamTimer {
 public:
  StreamTimer();
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  void Start(void* stream);
  float Stop(void* stream);  // milliseconds, once the stream has got there

 private:
  void *start_ = nullptr, *stop_ = nullptr;
};

}  // namespace jcc::cudnn
