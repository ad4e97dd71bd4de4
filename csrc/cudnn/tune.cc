#include "cudnn/tune.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>
#include <sstream>
#include <vector>

#include "cudnn/library.h"

namespace jcc::cudnn {
namespace {

// cuDNN's list is in the order of its guess, so the tail is left out.
constexpr size_t kMaxCandidates = 24;
constexpr int kRuns = 5;
constexpr float kHopeless = 3;  // a first run this many times slower than the best so far ends a candidate's trial

auto& store = *new WinnerStore;

std::string Key(const Problem& problem) {
  const ConvSpec& spec = problem.spec;
  std::ostringstream key;
  key << DeviceName(problem.device) << " | cuDNN " << VersionText(GetLibraryInfo().version) << " | " << ToString(spec);
  for (const Tensor* tensor : {&spec.x, &spec.w, &spec.y}) {
    key << " strides=(";
    for (int k = 0; k < 2 + spec.rank; ++k) key << (k ? "," : "") << tensor->stride[k];
    key << ')';
  }
  key << (problem.bias ? " bias" : "") << (problem.relu ? " relu" : "") << (spec.allow_narrow ? " tf32" : "")
      << (problem.deterministic ? " deterministic" : "");
  if (problem.autotune == Autotune::kLimited) key << " workspace<=" << problem.workspace_limit;
  return key.str();
}

}  // namespace

void SetWinnerStore(WinnerStore value) { store = std::move(value); }

std::string StoredWinner(const Problem& problem) { return store.find ? store.find(Key(problem)) : ""; }

namespace {

struct Candidate {
  int plan;
  int64_t workspace;
  std::string name;
};

// The plans to try. Those that are compiled at run time take seconds to prepare: only where there is no other.
std::vector<Candidate> Candidates(Graph& graph) {
  std::vector<Candidate> candidates;
  const auto is_new = [&](const std::string& name) {  // cuDNN's two lists overlap
    return std::none_of(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.name == name; });
  };
  for (const bool compiled : {false, true}) {
    for (int k = 0; k < graph.size() && candidates.size() < kMaxCandidates; ++k)
      if (graph.CompilesAtRunTime(k) == compiled && is_new(graph.Name(k)) && graph.Prepare(k))
        candidates.push_back({k, graph.Workspace(k), graph.Name(k)});
    if (!candidates.empty()) break;
  }
  return candidates;
}

// Memory for the trials: never the operands, which may not be computed yet, nor the result.
class Trials {
 public:
  Trials(const Problem& problem, const Context& context, const std::vector<Candidate>& candidates) {
    const auto allocate = [&](const Tensor& tensor) {
      const int64_t bytes = NumBytes(tensor, problem.spec.rank);
      void* const data = context.allocate(bytes);
      if (!data) throw std::bad_alloc();
      FillAsync(data, 0x3c, bytes, context.stream);  // a small normal number in every dtype
      return data;
    };
    const ConvSpec& spec = problem.spec;
    pointers_ = {allocate(spec.x), allocate(spec.w), allocate(spec.y), nullptr};
    if (problem.bias) pointers_.bias = allocate(BiasOf(spec));
    std::vector<int64_t> sizes;
    for (const Candidate& candidate : candidates) sizes.push_back(candidate.workspace);
    std::sort(sizes.rbegin(), sizes.rend());
    for (int64_t bytes : sizes) {  // the largest that can be had serves all
      if (bytes == 0) break;
      workspace_ = context.allocate(bytes);
      if (!workspace_) continue;
      workspace_bytes_ = bytes;
      break;
    }
  }

  bool HasRoomFor(const Candidate& candidate) const { return candidate.workspace <= workspace_bytes_; }

  // The best of a few runs, in milliseconds.
  float Time(const Graph& graph, const Candidate& candidate, const Handle& handle, float best) {
    const auto run = [&] {
      timer_.Start(handle.stream());
      graph.Run(candidate.plan, handle.get(), pointers_, workspace_);
      return timer_.Stop(handle.stream());
    };
    run();  // loads the code
    float time = run();
    for (int k = 1; k < kRuns && time < kHopeless * best; ++k) time = std::min(time, run());
    return time;
  }

 private:
  Pointers pointers_;
  void* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
  StreamTimer timer_;
};

void Log(const Problem& problem, const std::string& message) {
  if (store.log) store.log(message + " [" + ToString(problem.spec) + "]");
}

}  // namespace

std::string Tune(const Problem& problem, const Handle& handle, const Context& context) {
  static std::mutex one_at_a_time;  // two trials at once would time one another
  std::lock_guard lock(one_at_a_time);
  if (const auto name = StoredWinner(problem); !name.empty()) return name;

  std::string winner;
  float best = std::numeric_limits<float>::infinity();
  Graph graph(problem, handle.get(), "");
  const auto candidates = Candidates(graph);
  try {
    Trials trials(problem, context, candidates);
    for (const Candidate& candidate : candidates) {
      if (!trials.HasRoomFor(candidate)) continue;
      try {
        const float time = trials.Time(graph, candidate, handle, best);
        if (time >= best) continue;
        best = time;
        winner = candidate.name;
      } catch (const std::exception& error) {
        Log(problem, std::string("left out of the trials: ") + error.what());
      }
    }
  } catch (const std::bad_alloc&) {
    Log(problem, "no memory for trials: cuDNN's first recommendation is used");
    return "";
  }
  if (winner.empty()) {
    Log(problem, "no candidate ran: cuDNN's first recommendation is used");
    return "";
  }
  std::ostringstream message;
  message << "tuned: " << winner << " takes " << best << " ms, the best of " << candidates.size();
  Log(problem, message.str());
  if (store.keep) store.keep(Key(problem), winner);
  return winner;
}

}  // namespace jcc::cudnn
