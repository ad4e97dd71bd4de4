// A convolution as a graph of cuDNN's, and the plans that cuDNN offers for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conv_spec.h"

namespace jcc::cudnn {

// How a plan is chosen: cuDNN's first recommendation, or the fastest by trial, within the workspace limit or without.
enum class Autotune : int64_t { kOff, kLimited, kFastest };

// Everything that a plan depends on. Plain data without padding: the bytes are the key of a plan.
struct Problem {
  ConvSpec spec;
  int64_t bias = 0, relu = 0;  // forward only: y = relu(conv(x, w) + bias)
  int64_t deterministic = 0;
  int64_t workspace_limit = 0;  // in bytes
  Autotune autotune = Autotune::kOff;
  int64_t device = 0;  // its ordinal
};

// The bias as a tensor that stretches over y.
Tensor BiasOf(const ConvSpec& spec);

// In device memory.
struct Pointers {
  void *x = nullptr, *w = nullptr, *y = nullptr, *bias = nullptr;
};

// Any number of threads may use the const members.
class Graph {
 public:
  // For the GPU of a cuDNN handle or, where it is null, for the one that cuDNN's JSON `device` describes. Throws
  // Unsupported where cuDNN has no plan, with its reasons.
  Graph(const Problem& problem, void* handle, const std::string& device);
  ~Graph();

  // The plans, cuDNN's best guess first. Some may turn out not to be usable, or not to be allowed by the problem's
  // options: Prepare tells.
  int size() const;
  bool Prepare(int plan);

  bool CompilesAtRunTime(int plan) const;  // takes seconds to prepare
  int64_t Workspace(int plan) const;       // in bytes
  std::string Name(int plan) const;        // its engine and the engine's settings, such as "eng67_k2=3_k13=0"
  std::string Notes(int plan) const;       // such as "tensor cores, not deterministic"

  // Runs a prepared plan on the stream of the handle.
  void Run(int plan, void* handle, const Pointers& pointers, void* workspace) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Plans that are never used, each the beginning of a plan's name: "eng22" or "eng22_k2=2". Once, before the first
// graph.
void DenyEngines(const std::vector<std::string>& engines);

// What cuDNN knows of a GPU of this machine, as the JSON that describes it.
std::string DescribeDevice(int64_t ordinal);

}  // namespace jcc::cudnn
