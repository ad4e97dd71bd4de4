// A test double for libcudnn.so.9 on machines without a GPU.
//
// It is linked to the real cuDNN, so that dlsym() on it finds cuDNN's own function for every name that is not defined
// here: graphs are checked, planned and filtered by the real library. What differs:
// - A handle needs no GPU, and the GPU that handles and ordinals stand for is one that a test describes.
// - cudnnBackendExecute computes on the CPU, on host memory, what the operation graph says. The workspace is
//   overwritten first.
// - A missing workspace or tensor, and a handle in two threads at once, are refused with a line on stderr.
//
// cuDNN does not tell what an operation graph or a variant pack holds, so all is recorded while it is described, and
// from the record of a plan leads a way to that of its graph: configuration, heuristic, graph.

#include "double.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

#include "compute.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Descriptor = cudnnBackendDescriptor_t;
using Type = cudnnBackendAttributeType_t;

// ---- The real library.

#define REAL(function) (reinterpret_cast<decltype(&function)>(dlsym(RTLD_NEXT, #function)))

void Check(cudnnStatus_t status) {
  if (status != CUDNN_STATUS_SUCCESS) throw Refusal(status);
}

std::shared_ptr<void> NewDescriptor(cudnnBackendDescriptorType_t type) {
  Descriptor made = nullptr;
  Check(REAL(cudnnBackendCreateDescriptor)(type, &made));
  return {made, REAL(cudnnBackendDestroyDescriptor)};
}

void Set(Descriptor descriptor, Name name, Type type, int64_t count, const void* values) {
  Check(REAL(cudnnBackendSetAttribute)(descriptor, name, type, count, values));
}

void Get(Descriptor descriptor, Name name, Type type, void* value) {
  int64_t count = 0;
  Check(REAL(cudnnBackendGetAttribute)(descriptor, name, type, 1, &count, value));
}

int64_t EngineOf(Descriptor configuration) {
  const auto engine = NewDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  Descriptor descriptor = engine.get();
  int64_t index = -1;
  Get(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &descriptor);
  Get(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &index);
  return index;
}

// ---- The state.

struct Handle {
  cudaStream_t stream = nullptr;
  bool is_busy = false;
};

// What double_reset clears.
struct Control {
  std::map<int64_t, cudnnStatus_t> failures;  // by engine, as are the delays
  std::map<int64_t, int64_t> delays;
  cudnnStatus_t create_failure = CUDNN_STATUS_SUCCESS;
  bool swaps_padding = false;
  int64_t executions = 0, last_workspace = -1, last_engine = -1;
};

struct State {
  std::mutex mutex;  // guards all that follows
  Control control;
  std::map<Descriptor, std::shared_ptr<Record>> records;
  std::map<cudnnHandle_t, Handle> handles;
  uintptr_t last_handle = 0;
  std::string device;  // as JSON

  const std::shared_ptr<Record>& RecordOf(Descriptor descriptor) {
    auto& record = records[descriptor];
    if (!record) record = std::make_shared<Record>();
    return record;
  }
  Handle& IdleHandle(cudnnHandle_t handle) {
    const auto found = handles.find(handle);
    if (found == handles.end()) throw Refusal(CUDNN_STATUS_BAD_PARAM, "no such handle");
    if (found->second.is_busy) throw Refusal(CUDNN_STATUS_EXECUTION_FAILED, "another thread is using this handle");
    return found->second;
  }
};

State& the_state = *new State;  // never destroyed: threads may outlive the end of main

// The state, locked.
class Access {
 public:
  State* operator->() { return &the_state; }

 private:
  const std::lock_guard<std::mutex> lock_{the_state.mutex};
};

// ---- The described device.

void Describe(Descriptor properties) {
  const std::string json = Access()->device;
  if (json.empty()) throw Refusal(CUDNN_STATUS_NOT_INITIALIZED, "no device is described");
  Set(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json.size(), json.data());
}

// Gives a descriptor the device that a handle would have given it.
void SetDevice(Descriptor descriptor, Name attribute) {
  const auto device = NewDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  const Descriptor properties = device.get();
  Describe(properties);
  Check(REAL(cudnnBackendFinalize)(properties));
  Access()->RecordOf(descriptor)->device = device;
  Set(descriptor, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
}

// ---- Recording.

size_t BytesOf(Type type) {
  if (type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR) return 8;
  if (type == CUDNN_TYPE_DATA_TYPE) return sizeof(cudnnDataType_t);
  if (type == CUDNN_TYPE_POINTWISE_MODE) return sizeof(cudnnPointwiseMode_t);
  if (type == CUDNN_TYPE_CONVOLUTION_MODE) return sizeof(cudnnConvolutionMode_t);
  return 0;  // of no use here
}

void RecordAttribute(Descriptor descriptor, Name name, Type type, int64_t count, const void* values) {
  Access state;
  Record& record = *state->RecordOf(descriptor);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* const descriptors = static_cast<const Descriptor*>(values);
    auto& parts = record.parts[name];
    parts.clear();
    for (int64_t i = 0; i < count; ++i) parts.push_back(state->RecordOf(descriptors[i]));
  } else if (const size_t bytes = BytesOf(type)) {
    Numbers& numbers = record.numbers[name];
    numbers.assign(count, 0);
    for (int64_t i = 0; i < count; ++i) std::memcpy(&numbers[i], static_cast<const char*>(values) + i * bytes, bytes);
  }
}

// A descriptor takes the described device in place of a handle or an ordinal.
void SetAttribute(Descriptor descriptor, Name name, Type type, int64_t count, const void* values) {
  switch (name) {
    case CUDNN_ATTR_DEVICEPROP_DEVICE_ID:
    case CUDNN_ATTR_DEVICEPROP_HANDLE:
      return Describe(descriptor);
    case CUDNN_ATTR_EXECUTION_PLAN_HANDLE:
      return SetDevice(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    case CUDNN_ATTR_OPERATIONGRAPH_HANDLE:
      return;
    default:
      Set(descriptor, name, type, count, values);
      RecordAttribute(descriptor, name, type, count, values);
  }
  // The caller's own device, where there is one, comes later and replaces this one.
  if (name == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) SetDevice(descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) {
    const int64_t engine = EngineOf(*static_cast<const Descriptor*>(values));
    RecordAttribute(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &engine);
  }
}

// ---- Executing.

template <class Value>
Value Find(const std::map<int64_t, Value>& map, int64_t engine) {
  auto found = map.find(engine);
  if (found == map.end()) found = map.find(-1);
  return found == map.end() ? Value{} : found->second;
}

void Execute(Descriptor plan, Descriptor variant_pack) {
  const std::shared_ptr<const Record> record = Access()->RecordOf(plan), pack = Access()->RecordOf(variant_pack);
  const Control control = Access()->control;
  const int64_t engine = record->number(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  Check(Find(control.failures, engine));
  std::this_thread::sleep_for(std::chrono::microseconds(Find(control.delays, engine)));

  int64_t workspace = 0;
  Get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &workspace);
  if (workspace > 0) {
    auto* const memory = reinterpret_cast<void*>(pack->number(CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
    if (!memory) throw Refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace for a plan that needs one");
    std::memset(memory, 0xA5, static_cast<size_t>(workspace));  // a smaller one shows under a sanitizer
  }
  const Record& heuristic = record->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).part(CUDNN_ATTR_ENGINEHEUR_RESULTS);
  Compute(heuristic.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH), *pack, control.swaps_padding);

  Access state;
  ++state->control.executions;
  state->control.last_workspace = workspace;
  state->control.last_engine = engine;
}

// Runs one of the functions that follow.
template <class Body>
cudnnStatus_t Guarded(const char* function, Body body) {
  try {
    body();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    if (*refusal.what()) std::fprintf(stderr, "cuDNN double: %s: %s\n", function, refusal.what());
    return refusal.status;
  }
}

}  // namespace

// ---- cuDNN's functions that differ.

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return Guarded(__func__, [&] {
    Access state;
    Check(state->control.create_failure);
    if (state->device.empty()) throw Refusal(CUDNN_STATUS_NOT_INITIALIZED, "no device is described");
    *handle = reinterpret_cast<cudnnHandle_t>(++state->last_handle);
    state->handles[*handle];
  });
}

EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  return Guarded(__func__, [&] {
    Access state;
    state->IdleHandle(handle);
    state->handles.erase(handle);
  });
}

EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return Guarded(__func__, [&] { Access()->IdleHandle(handle).stream = stream; });
}

EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return Guarded(__func__, [&] { *stream = Access()->IdleHandle(handle).stream; });
}

EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  Access()->records.erase(descriptor);  // before another thread can be given the same address
  return REAL(cudnnBackendDestroyDescriptor)(descriptor);
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(Descriptor descriptor, Name name, Type type, int64_t count,
                                              const void* values) {
  return Guarded(__func__, [&] { SetAttribute(descriptor, name, type, count, values); });
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(Descriptor const descriptor, Name name, Type type, int64_t requested,
                                              int64_t* count, void* values) {
  return Guarded(__func__, [&] {
    Check(REAL(cudnnBackendGetAttribute)(descriptor, name, type, requested, count, values));
    if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS || !values) return;
    for (int64_t i = 0; i < std::min(requested, *count); ++i)
      RecordAttribute(static_cast<const Descriptor*>(values)[i], name, type, 1, &descriptor);
  });
}

EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, Descriptor plan, Descriptor variant_pack) {
  return Guarded(__func__, [&] {
    Access()->IdleHandle(handle).is_busy = true;
    const std::shared_ptr<void> at_the_end(nullptr, [&](void*) { Access()->handles.at(handle).is_busy = false; });
    Execute(plan, variant_pack);
  });
}

// ---- Control.

void double_set_device(const char* json) { Access()->device = json; }

int64_t double_executions() { return Access()->control.executions; }
int64_t double_last_workspace() { return Access()->control.last_workspace; }
int64_t double_last_engine() { return Access()->control.last_engine; }
int64_t double_handles() { return static_cast<int64_t>(Access()->handles.size()); }
int64_t double_records() { return static_cast<int64_t>(Access()->records.size()); }

void double_fail_engine(int64_t engine, int status) {
  Access state;
  auto& failures = state->control.failures;
  if (status)
    failures[engine] = static_cast<cudnnStatus_t>(status);
  else if (engine == -1)
    failures.clear();
  else
    failures.erase(engine);
}

void double_delay_engine(int64_t engine, int64_t microseconds) {
  Access state;
  state->control.delays[engine] = microseconds;
  if (microseconds < 0) state->control.delays.erase(engine);
}

void double_fail_create(int status) { Access()->control.create_failure = static_cast<cudnnStatus_t>(status); }
void double_swap_padding(int on) { Access()->control.swaps_padding = on != 0; }
void double_reset() { Access()->control = {}; }
