#include "onednn/formulate.h"

#include <algorithm>
#include <optional>

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

bool HasAvx2Only() { return dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core; }

bool AnyOver1(const Problem& problem, const Spatial& values) {
  return std::any_of(values.begin(), values.begin() + problem.rank, [](int64_t v) { return v > 1; });
}

// The rules come from timing the layers of benchmarks/layers.py in every formulation on an AVX2 machine (docs/design.md
// has the figures). None: oneDNN's own choice.
std::optional<Formulation> ForAvx2(const Problem& problem) {
  const auto as = [&](bool blocked, const char* first) { return Formulation{problem, blocked, first}; };
  const Sizes sizes(problem);
  const double in = problem.in_features(), out = problem.out_features();
  const bool data = problem.direction == Direction::kBackwardData;
  const bool filter = problem.direction == Direction::kBackwardFilter;
  if (problem.groups > 1 && problem.in_features() == 1) {
    // Dilated depthwise weight gradients have the matrix product only, which wants an image's channel in one piece.
    if (filter && AnyOver1(problem, problem.dilation)) return as(true, nullptr);
    return std::nullopt;
  }
  const bool blocks = problem.in_features() % 8 == 0 && problem.out_features() % 8 == 0;
  if (problem.groups > 1) return blocks ? std::optional(as(true, kDirect)) : std::nullopt;
  const bool late = sizes.w > 8 * (sizes.x + sizes.y);  // then reordering the weights takes most of the time
  if (sizes.taps == 1) {
    if (data) return as(false, kGemm);
    if (!filter) return as(false, kPointwise);
    const double narrow = std::min(in, out);
    const bool square = narrow >= 128 && sizes.pixels >= 128 && sizes.pixels < 16 * narrow;
    return square && !late ? as(true, kPointwise) : as(false, kGemm);
  }
  if (late || (data && AnyOver1(problem, problem.stride))) return as(false, kGemm);
  if (filter && problem.rank == 2) {
    const bool line = problem.x.extent[2] == 1;
    if (in * out >= 256 * 256 || (line && std::min(in, out) >= 64)) return as(false, kGemm);
    if (problem.in_features() > 1 && problem.out_features() % 8 == 0) return as(true, kDirect);
  }
  return std::nullopt;
}

// With AVX-512 oneDNN's own order, channels last, is the best but for a few, timed in the same way.
std::optional<Formulation> ForAvx512(const Problem& problem) {
  const auto first = [&](const char* name) { return Formulation{problem, false, name}; };
  const Sizes sizes(problem);
  const bool data = problem.direction == Direction::kBackwardData;
  const bool filter = problem.direction == Direction::kBackwardFilter;
  if (problem.groups > 1) return std::nullopt;
  if (data && AnyOver1(problem, problem.stride) && problem.in_features() < 16) return first(kGemm);
  // A convolution works on each weight once for each pixel, and a reorder once in all.
  const bool few_pixels = sizes.pixels <= 64 && sizes.w > sizes.x + sizes.y;
  if (!few_pixels) return std::nullopt;
  if (problem.w.dtype != DType::kF32) return first(kGemm);
  if (sizes.taps == 1) return first(data ? kPointwise : kGemm);
  return filter ? std::optional(first(kGemm)) : std::nullopt;
}

// oneDNN's fast weight gradients take no wider kernel (14 with AVX-512). What is left for one is a matrix product, or
// with few features nothing.
constexpr int64_t kWidestFilterGradient = 13;

bool IsBetterSliced(const Problem& problem) {
  const int64_t width = problem.w.extent[1 + problem.rank];
  if (width <= kWidestFilterGradient || width > 32 * kWidestFilterGradient) return false;
  const Sizes sizes(problem);
  if (sizes.w > sizes.x + sizes.y) return false;  // few pixels, for each of which a slice goes through its weights
  // The matrix product is at its best from one line to many features.
  const bool line = problem.rank == 1 && problem.groups == 1 && problem.in_features() == 1;
  return !line || problem.out_features() < 64;
}

}  // namespace

std::vector<Problem> TakeApart(const Problem& trimmed) {
  Problem folded = trimmed;
  if (trimmed.direction != Direction::kBackwardFilter || FoldTaps(folded)) return {trimmed};
  const bool by_depth = trimmed.rank == 3 && HasAvx2Only() && Sizes(trimmed).taps > 1;
  const std::vector<Problem> parts = by_depth ? SliceDepth(trimmed) : std::vector{trimmed};
  if (!IsBetterSliced(trimmed)) return parts;
  std::vector<Problem> slices;
  for (const Problem& part : parts)
    for (const Problem& slice : SliceWidth(part, kWidestFilterGradient)) slices.push_back(slice);
  return slices;
}

std::vector<Formulation> Formulate(const Problem& trimmed) {
  std::vector<Formulation> formulations;
  Problem problem = trimmed;
  // Folded taps cannot be an axis of a blocked layout; the matrix product takes plain ones.
  if (FoldTaps(problem)) {
    InsertUnitAxis(problem);
    formulations.push_back({problem, false, kGemm});
  }
  problem = trimmed;
  const bool filter = problem.direction == Direction::kBackwardFilter;
  const bool narrow = std::min(problem.in_features(), problem.out_features()) < 64;
  // oneDNN's fast weight gradients take no dilation, but between wide features the matrix product is as good; the
  // other directions lose their footing when taps lie hundreds of elements apart.
  if (filter ? narrow : problem.dilation[0] >= 256) SplitDilation(problem);
  InsertUnitAxis(problem);
  auto timed = HasAvx2Only() ? ForAvx2(problem) : ForAvx512(problem);
  if (timed) formulations.push_back(*std::move(timed));
  formulations.push_back({problem, false, nullptr});
  return formulations;
}

bool IsReference(const std::string& kernel) { return kernel.rfind("ref", 0) == 0; }

XlaAdvice AdviseXla(const Problem& trimmed, const std::string& kernel) {
  if (trimmed.in_features() > 1) return {};
  const bool filter = trimmed.direction == Direction::kBackwardFilter;
  if (trimmed.groups > 1) {
    // oneDNN's depthwise weight gradient needs images at least as large as the kernel. Below that it multiplies
    // matrices of one row for each image and channel.
    bool tiny = false;
    for (int a = 0; a < trimmed.rank; ++a) tiny |= trimmed.x.extent[2 + a] < trimmed.reach(a);
    if (!filter || !tiny || trimmed.n() < 16) return {};
    return {"XLA is faster for depthwise gradients of many images below the kernel's size"};
  }
  if (trimmed.out_features() > 1) return {};
  // From one feature to one, a matrix product has a single column, and copies each input once for each tap. XLA makes
  // a fused loop of a float64 convolution, but not of a float32 one.
  const bool product = IsReference(kernel) || kernel.find(kGemm) != std::string::npos;
  bool slow = product;
  if (filter) slow = trimmed.n() == 1 && trimmed.w.extent[1 + trimmed.rank] > kWidestFilterGradient;
  if (trimmed.direction == Direction::kForward) slow = product && Sizes(trimmed).taps > 1200;
  if (!slow) return {};
  return {"one channel: XLA's loop in float64 is faster than a matrix product", true};
}

bool IsSmall(const Problem& problem) {
  const Sizes sizes(problem);
  return sizes.pixels * sizes.w < 2e5;  // multiplications
}

}  // namespace jcc::onednn
