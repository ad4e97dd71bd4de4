#include "onednn/formulate.h"

#include <algorithm>

#include "oneapi/dnnl/dnnl.hpp"

namespace jcc::onednn {
namespace {

constexpr const char* kGemm = "gemm";  // takes plain weights: no reorder
constexpr const char* kDirect = "jit:avx2";
constexpr const char* kPointwise = "jit_1x1";

struct Sizes {
  double pixels = 1, taps = 1, x, w, y;  // output positions of the batch; elements

  explicit Sizes(const Problem& problem) {
    double inputs = problem.n();
    pixels = problem.n();
    for (int a = 0; a < problem.rank; ++a) {
      pixels *= problem.y.extent[2 + a];
      inputs *= problem.x.extent[2 + a];
      taps *= problem.w.extent[2 + a];
    }
    x = inputs * problem.x.extent[1];
    y = pixels * problem.y.extent[1];
    w = taps * problem.w.extent[0] * problem.w.extent[1];
  }
};

// The rules come from timing the layers of benchmarks/layers.py in every formulation on an AVX2 machine (docs/design.md
// has the figures).
Formulation ForAvx2(const Problem& problem) {
  const auto as = [&](bool blocked, const char* first) { return Formulation{problem, blocked, first}; };
  const Sizes sizes(problem);
  const bool data = problem.direction == Direction::kBackwardData;
  const bool filter = problem.direction == Direction::kBackwardFilter;
  if (problem.groups > 1) {
    const bool blocks = problem.in_features() % 8 == 0 && problem.out_features() % 8 == 0;
    return blocks ? as(true, kDirect) : as(false, nullptr);
  }
  const bool late = sizes.w > 8 * (sizes.x + sizes.y);  // then reordering the weights takes most of the time
  if (sizes.taps == 1) {
    const bool wide = std::min(problem.in_features(), problem.out_features()) >= 256 && sizes.pixels >= 512;
    if (filter) return wide ? as(true, kPointwise) : as(false, kGemm);
    return as(false, late && data ? kGemm : kPointwise);
  }
  const bool strided = std::any_of(problem.stride.begin(), problem.stride.begin() + problem.rank,
                                   [](int64_t stride) { return stride > 1; });
  if (late || (data && strided)) return as(false, kGemm);
  if (filter && problem.rank == 2 && problem.out_features() % 8 == 0) return as(true, kDirect);
  return as(false, nullptr);
}

}  // namespace

std::vector<Formulation> Formulate(const Problem& trimmed) {
  std::vector<Formulation> formulations;
  Problem problem = trimmed;
  // Folded taps cannot be an axis of a blocked layout; the matrix product takes plain ones.
  if (FoldTaps(problem)) {
    InsertUnitAxis(problem);
    formulations.push_back({problem, false, kGemm});
  }
  problem = trimmed;
  if (problem.direction == Direction::kBackwardFilter) SplitDilation(problem);
  InsertUnitAxis(problem);
  // With AVX-512 oneDNN's own order, channels last, was the best for nearly all layers.
  if (dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core) formulations.push_back(ForAvx2(problem));
  formulations.push_back({problem, false, nullptr});
  return formulations;
}

bool IsSmall(const Problem& problem) {
  const Sizes sizes(problem);
  return sizes.pixels * sizes.w < 2e5;  // multiplications
}

}  // namespace jcc::onednn
