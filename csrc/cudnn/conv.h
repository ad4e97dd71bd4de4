// One convolution on a GPU: its plan is chosen once per problem and run from any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cudnn/graph.h"
#include "plan_cache.h"

namespace jcc::cudnn {

// How many plans are kept unless the user says otherwise.
inline constexpr size_t kDefaultPlans = 1024;

// What a call gets from XLA.
struct Context {
  void* stream;
  std::function<void*(size_t bytes)> allocate;  // for the duration of the call; nullptr where there is no memory
};

// A graph and the one of its plans that was chosen.
class Plan {
 public:
  Plan(std::shared_ptr<const Graph> graph, int index)
      : graph_(std::move(graph)), index_(index), workspace_(graph_->Workspace(index)) {}

  int64_t workspace() const { return workspace_; }  // in bytes
  std::string name() const { return graph_->Name(index_); }
  std::string notes() const { return graph_->Notes(index_); }
  void Run(void* handle, const Pointers& pointers, void* workspace) const {
    graph_->Run(index_, handle, pointers, workspace);
  }

 private:
  std::shared_ptr<const Graph> graph_;
  int index_;
  int64_t workspace_;
};

// The bounded cache of plans, which all calls share.
PlanCache<Problem, Plan>& Plans();

// The plan that would run a problem on the GPU that the JSON describes; `tuned` is the name of a plan to prefer.
Plan Choose(const Problem& problem, const std::string& device, const std::string& tuned = "");

// Chooses the plan of a problem, with trials if its options say so: before XLA runs anything, and on scratch memory.
void Initialize(const Problem& problem, const Context& context);

void Execute(const Problem& problem, const Context& context, const Pointers& pointers);

}  // namespace jcc::cudnn
