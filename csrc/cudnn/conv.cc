#include "cudnn/conv.h"

#include <new>
#include <optional>

#include "cudnn/device.h"
#include "cudnn/library.h"
#include "cudnn/tune.h"
#include "errors.h"

namespace jcc::cudnn {
namespace {

// The first plan that cuDNN can prepare; one that is compiled at run time only where there is no other.
std::optional<int> FirstPlan(Graph& graph) {
  for (const bool compiled : {false, true})
    for (int k = 0; k < graph.size(); ++k)
      if (graph.CompilesAtRunTime(k) == compiled && graph.Prepare(k)) return k;
  return std::nullopt;
}

std::optional<int> PlanNamed(Graph& graph, const std::string& name) {
  for (int k = 0; k < graph.size(); ++k)
    if (graph.Name(k) == name && graph.Prepare(k)) return k;
  return std::nullopt;
}

Plan Choose(const Problem& problem, void* handle, const std::string& device, const std::string& tuned) {
  const auto graph = std::make_shared<Graph>(problem, handle, device);
  std::optional<int> plan;
  if (!tuned.empty()) plan = PlanNamed(*graph, tuned);
  if (!plan) plan = FirstPlan(*graph);
  if (!plan) throw Unsupported("cuDNN has no plan that the options allow");
  return {graph, *plan};
}

// The sum over nothing is zero, and cuDNN takes no tensor without elements.
bool IsEmpty(const Tensor& tensor, int64_t rank) { return NumBytes(tensor, rank) == 0; }

std::shared_ptr<const Plan> GetPlan(const Problem& problem, const Context& context, bool may_tune) {
  return Plans().Get(problem, [&] {
    const Handle handle(problem.device, context.stream);
    std::string name;
    if (problem.autotune != Autotune::kOff) {
      name = StoredWinner(problem);
      if (name.empty() && may_tune) name = Tune(problem, handle, context);
    }
    return std::make_shared<const Plan>(Choose(problem, handle.get(), "", name));
  });
}

// Goes on to the next plan when cuDNN refuses one only as it runs. Throws what the last of them does.
void RunAnother(const Problem& problem, const Handle& handle, const Context& context, const Pointers& pointers,
                const std::string& refused) {
  const auto graph = std::make_shared<Graph>(problem, handle.get(), "");
  std::string error = refused + " was refused, and there is no other plan";
  for (int k = 0; k < graph->size(); ++k) {
    if (graph->Name(k) == refused || !graph->Prepare(k)) continue;
    const int64_t bytes = graph->Workspace(k);
    void* const workspace = bytes ? context.allocate(bytes) : nullptr;
    if (bytes && !workspace) continue;
    try {
      graph->Run(k, handle.get(), pointers, workspace);
      Plans().Replace(problem, std::make_shared<const Plan>(graph, k));
      return;
    } catch (const Unsupported& reason) {
      error = reason.what();
    }
  }
  throw Unsupported(error);
}

}  // namespace

PlanCache<Problem, Plan>& Plans() {
  // Never destroyed: a computation may still run while the process exits.
  static auto& plans = *new PlanCache<Problem, Plan>(kDefaultPlans);
  return plans;
}

Plan Choose(const Problem& problem, const std::string& device, const std::string& tuned) {
  LoadLibrary();
  return Choose(problem, nullptr, device, tuned);
}

void Initialize(const Problem& problem, const Context& context) {
  const ConvSpec& spec = problem.spec;
  for (const Tensor* tensor : {&spec.x, &spec.w, &spec.y})
    if (IsEmpty(*tensor, spec.rank)) return;
  LoadLibrary();
  GetPlan(problem, context, true);
}

void Execute(const Problem& problem, const Context& context, const Pointers& pointers) {
  const ConvSpec& spec = problem.spec;
  if (IsEmpty(spec.result(), spec.rank)) return;
  for (const Tensor* operand : {&spec.x, &spec.w, &spec.y}) {
    if (!IsEmpty(*operand, spec.rank)) continue;
    if (problem.bias) throw Unsupported("cuDNN adds no bias to a convolution without input channels");
    void* const results[] = {pointers.y, pointers.x, pointers.w};
    FillAsync(results[static_cast<int>(spec.direction)], 0, NumBytes(spec.result(), spec.rank), context.stream);
    return;
  }
  LoadLibrary();
  auto plan = GetPlan(problem, context, false);
  void* workspace = plan->workspace() ? context.allocate(plan->workspace()) : nullptr;
  if (plan->workspace() && !workspace) {  // the best plan that needs none
    Problem frugal = problem;
    frugal.workspace_limit = 0;
    frugal.autotune = Autotune::kOff;
    plan = GetPlan(frugal, context, false);
  }
  const Handle handle(problem.device, context.stream);
  try {
    plan->Run(handle.get(), pointers, workspace);
  } catch (const Unsupported&) {
    RunAnother(problem, handle, context, pointers, plan->name());
  }
}

}  // namespace jcc::cudnn
