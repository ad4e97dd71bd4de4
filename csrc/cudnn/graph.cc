// The only file that includes cudnn-frontend, which takes half a minute to compile.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING 1
#include "cudnn/graph.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "cudnn/library.h"
#include "errors.h"

namespace fe = cudnn_frontend;

namespace jcc::cudnn {
namespace {

// The names of the tensors in a graph, in the order of Pointers.
enum Uid : int64_t { kX = 1, kW, kY, kBias };

// cuDNN's messages run over many lines, with a list of engines and their settings: the status and the reasons in them.
std::string Shorten(const std::string& message) {
  std::string text;
  for (const std::string mark : {"CUDNN_STATUS_", "Reason: "}) {
    const auto at = message.rfind(mark);
    if (at == std::string::npos) continue;
    const auto end = message.find_first_of(mark == "Reason: " ? "\n" : "\n ;,", at);
    const std::string found = message.substr(at, end - at);
    if (found != "CUDNN_STATUS_SUCCESS") text += (text.empty() ? "" : ": ") + found;
  }
  return text.empty() ? message.substr(0, message.find('\n')) : text;
}

[[noreturn]] void Throw(const std::string& what, fe::error_t error) {
  const std::string& message = error.get_message();
  const std::string text = "cuDNN: " + what + ": " + Shorten(message);
  const auto says = [&](const char* status) { return message.find(status) != std::string::npos; };
  if (says("ALLOCATION_FAILED") || says("ALLOC_FAILED")) throw std::bad_alloc();
  if (says("STATUS_SUBLIBRARY") || says("NOT_INITIALIZED")) throw Unavailable(text);
  switch (error.get_code()) {
    case fe::error_code_t::GRAPH_NOT_SUPPORTED:
    case fe::error_code_t::HEURISTIC_QUERY_FAILED:
    case fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED:
      throw Unsupported(text);
    default:
      if (says("NOT_SUPPORTED")) throw Unsupported(text);
      throw std::runtime_error(text);
  }
}

void Check(const std::string& what, const fe::error_t& error) {
  if (error.is_bad()) Throw(what, error);
}

fe::DataType_t ToCudnn(DType dtype) {
  constexpr fe::DataType_t kTypes[] = {fe::DataType_t::FLOAT, fe::DataType_t::BFLOAT16, fe::DataType_t::HALF,
                                       fe::DataType_t::DOUBLE};
  return kTypes[static_cast<int>(dtype)];
}

using Vector = std::vector<int64_t>;

// cuDNN has more engines for images than for lines: a line is an image of one row.
constexpr int kUnitAxis = 2;

Vector WithUnitAxis(Vector values, int64_t rank, int at, int64_t value) {
  if (rank == 1) values.insert(values.begin() + at, value);
  return values;
}

fe::graph::Tensor_attributes ToAttributes(Uid uid, const Tensor& tensor, int64_t rank) {
  const Vector extent(tensor.extent.begin(), tensor.extent.begin() + 2 + rank);
  const Vector stride(tensor.stride.begin(), tensor.stride.begin() + 2 + rank);
  return fe::graph::Tensor_attributes()
      .set_uid(uid)
      .set_data_type(ToCudnn(tensor.dtype))
      .set_dim(WithUnitAxis(extent, rank, kUnitAxis, 1))
      .set_stride(WithUnitAxis(stride, rank, kUnitAxis, extent[2] * stride[2]));
}

template <typename Attributes>
Attributes Geometry(const ConvSpec& spec) {
  const auto list = [&](const Spatial& values, int64_t unit) {
    return WithUnitAxis(Vector(values.begin(), values.begin() + spec.rank), spec.rank, 0, unit);
  };
  // The high pad may leave a remainder of less than a stride, so it can often equal the low one: cuDNN has more
  // engines for even pads.
  Spatial high{};
  for (int a = 0; a < spec.rank; ++a) {
    const int64_t least = spec.pad_high(a), low = spec.pad_low[a];
    high[a] = least <= low && low < least + spec.stride[a] ? low : std::max<int64_t>(least, 0);
  }
  return Attributes()
      .set_pre_padding(list(spec.pad_low, 0))
      .set_post_padding(list(high, 0))
      .set_stride(list(spec.stride, 1))
      .set_dilation(list(spec.dilation, 1));
}

// Set once, before the first plan, and never destroyed.
auto& denied_engines = *new std::vector<std::string>;

bool IsDenied(const std::string& plan) {
  return std::any_of(denied_engines.begin(), denied_engines.end(), [&](const std::string& engine) {
    return plan.compare(0, engine.size(), engine) == 0 && (plan.size() == engine.size() || plan[engine.size()] == '_');
  });
}

}  // namespace

void DenyEngines(const std::vector<std::string>& engines) { denied_engines = engines; }

// Opens what cudnn-frontend keeps to itself.
struct Graph::Impl : fe::graph::Graph {
  using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

  Tensor Operations(const Problem& problem) {
    const ConvSpec& spec = problem.spec;
    const auto operand = [&](Uid uid, const jcc::Tensor& t) { return tensor(ToAttributes(uid, t, spec.rank)); };
    switch (spec.direction) {
      case Direction::kBackwardData:
        return conv_dgrad(operand(kY, spec.y), operand(kW, spec.w), Geometry<fe::graph::Conv_dgrad_attributes>(spec));
      case Direction::kBackwardFilter:
        return conv_wgrad(operand(kY, spec.y), operand(kX, spec.x), Geometry<fe::graph::Conv_wgrad_attributes>(spec));
      default:
        break;
    }
    Tensor y = conv_fprop(operand(kX, spec.x), operand(kW, spec.w), Geometry<fe::graph::Conv_fprop_attributes>(spec));
    const auto then = [&](fe::PointwiseMode_t mode) { return fe::graph::Pointwise_attributes().set_mode(mode); };
    if (problem.bias) y = pointwise(y, operand(kBias, BiasOf(spec)), then(fe::PointwiseMode_t::ADD));
    if (problem.relu) y = pointwise(y, then(fe::PointwiseMode_t::RELU_FWD));
    return y;
  }

  const std::vector<fe::NumericalNote_t>& NumericalNotes(int plan) const { return plans.numeric_notes.at(plan); }
};

Tensor BiasOf(const ConvSpec& spec) {
  Tensor bias;
  bias.dtype = spec.y.dtype;
  bias.extent.fill(1);
  bias.stride.fill(spec.y.extent[1]);
  bias.extent[1] = spec.y.extent[1];
  bias.stride[1] = 1;
  return bias;
}

Graph::Graph(const Problem& problem, void* handle, const std::string& device) : impl_(std::make_unique<Impl>()) {
  const ConvSpec& spec = problem.spec;
  const auto cudnn_handle = static_cast<cudnnHandle_t>(handle);
  if (!handle) {
    const auto properties = std::make_shared<fe::DeviceProperties>();
    Check("device description", properties->deserialize({device.begin(), device.end()}));
    impl_->set_device_properties(properties);
  }
  const bool f64 = spec.y.dtype == DType::kF64;
  const auto compute = f64 ? fe::DataType_t::DOUBLE : fe::DataType_t::FLOAT;
  impl_->set_io_data_type(ToCudnn(spec.y.dtype)).set_intermediate_data_type(compute).set_compute_data_type(compute);
  const Uid uid = spec.direction == Direction::kForward ? kY : spec.direction == Direction::kBackwardData ? kX : kW;
  const auto attributes = ToAttributes(uid, spec.result(), spec.rank);
  impl_->Operations(problem)
      ->set_output(true)
      .set_uid(uid)
      .set_data_type(attributes.get_data_type())
      .set_dim(attributes.get_dim())
      .set_stride(attributes.get_stride());
  Check("validate", impl_->validate());
  Check("build the graph", handle ? impl_->build_operation_graph(cudnn_handle) : impl_->build_operation_graph());
  // FALLBACK has engines that take every shape; A alone is empty for uneven pads before cuDNN 9.10.
  const auto planned = impl_->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
  if (planned.is_bad() && spec.y.dtype == DType::kBF16)
    throw Unsupported("cuDNN has no plan: bf16 takes a GPU of compute capability 8.0 or later");
  Check("no plan", planned);
  impl_->deselect_workspace_greater_than(problem.autotune == Autotune::kFastest ? std::numeric_limits<int64_t>::max()
                                                                                : problem.workspace_limit);
  if (problem.deterministic) impl_->deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
  using Note = fe::NumericalNote_t;
  impl_->deselect_numeric_notes({Note::REDUCED_PRECISION_REDUCTION});  // sums are f32 at least
  // In f32, tensor cores mean TF32; and Winograd's and Fourier's transforms lose digits.
  if (spec.y.dtype == DType::kF32 && !spec.allow_narrow)
    impl_->deselect_numeric_notes({Note::TENSOR_CORE, Note::DOWN_CONVERT_INPUTS, Note::FFT, Note::WINOGRAD,
                                   Note::WINOGRAD_TILE_4x4, Note::WINOGRAD_TILE_6x6, Note::WINOGRAD_TILE_13x13});
}

Graph::~Graph() = default;

int Graph::size() const { return static_cast<int>(impl_->get_execution_plan_count()); }

bool Graph::Prepare(int plan) { return !IsDenied(Name(plan)) && impl_->build_plan_at_index(plan).is_good(); }

bool Graph::CompilesAtRunTime(int plan) const {
  std::vector<fe::BehaviorNote_t> notes;
  Check("notes of a plan", impl_->get_behavior_notes_for_plan_at_index(plan, notes));
  return std::find(notes.begin(), notes.end(), fe::BehaviorNote_t::RUNTIME_COMPILATION) != notes.end();
}

int64_t Graph::Workspace(int plan) const {
  int64_t bytes = 0;
  Check("workspace", impl_->get_workspace_size_plan_at_index(plan, bytes));
  return bytes;
}

std::string Graph::Name(int plan) const {
  std::string name;
  Check("name of a plan", impl_->get_plan_name_at_index(plan, name));
  return name;
}

std::string Graph::Notes(int plan) const {
  std::string text;
  const auto add = [&](const char* note) { text += (text.empty() ? "" : ", ") + std::string(note); };
  for (const auto note : impl_->NumericalNotes(plan)) {
    if (note == fe::NumericalNote_t::TENSOR_CORE) add("tensor cores");
    if (note == fe::NumericalNote_t::DOWN_CONVERT_INPUTS) add("narrowed inputs");
    if (note == fe::NumericalNote_t::NONDETERMINISTIC) add("not deterministic");
    if (note == fe::NumericalNote_t::FFT) add("FFT");
    if (note == fe::NumericalNote_t::WINOGRAD) add("Winograd");
  }
  if (CompilesAtRunTime(plan)) add("compiled at run time");
  return text;
}

void Graph::Run(int plan, void* handle, const Pointers& pointers, void* workspace) const {
  void* pack[] = {pointers.x, pointers.w, pointers.y, pointers.bias};  // in the order of Uid
  const auto error =
      impl_->execute_plan_at_index(static_cast<cudnnHandle_t>(handle), pack, pointers.bias ? 4 : 3, workspace, plan);
  if (error.is_bad()) Throw("execute " + Name(plan), error);
}

std::string DescribeDevice(int64_t ordinal) {
  LoadLibrary();
  fe::DeviceProperties properties;
  Check("device properties", properties.set_device_id(static_cast<int32_t>(ordinal)).build());
  std::vector<uint8_t> json;
  Check("device properties", properties.serialize(json));
  return {json.begin(), json.end()};
}

}  // namespace jcc::cudnn
