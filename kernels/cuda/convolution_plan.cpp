// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/convolution_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>

namespace lockstep {
namespace {

constexpr std::int64_t kX = 'x', kW = 'w', kY = 'y';  // ids of the tensors in a variant pack
// Upper limits of what one engine has, with room for later versions of cuDNN.
constexpr std::size_t kMostNotes = 32, kMostKnobs = 64;

cudnnDataType_t to_cudnn(DType type) {
  switch (type) {
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      throw ConfigError(
          fmt::format("convolution: the type is {}, expected fp32, fp16 or bf16", name_of(type)));
  }
}

// sizes: [N, C, H, W] or [K, C, R, S]. In memory C varies fastest.
CudnnDescriptor tensor(std::int64_t id, DType type, const std::array<std::int64_t, 4>& sizes) {
  const auto [n, c, h, w] = sizes;
  const std::array<std::int64_t, 4> strides = {h * w * c, 1, w * c, c};
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, to_cudnn(type))
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, static_cast<std::int64_t>(kPlanAlignment))
      .set_all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)
      .set_all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES, strides)
      .finalize();
  return tensor;
}

CudnnDescriptor convolution(const ConvolutionShape& s) {
  const auto both = [](std::int64_t value) { return std::array{value, value}; };
  CudnnDescriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, both(s.padding))
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, both(s.padding))
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS, both(s.dilation))
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, both(s.stride))
      .finalize();
  return convolution;
}

// The attribute names of one direction's operation.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t convolution, x, w, y, alpha, beta;
};

OperationNames names_of(AffineDirection direction) {
  switch (direction) {
    case AffineDirection::forward:
      return {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              .convolution = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              .x = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              .w = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              .y = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case AffineDirection::backward_data:
      return {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              .convolution = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              .x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              .w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              .y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case AffineDirection::backward_weights:
      break;
  }
  return {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          .convolution = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          .x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          .w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          .y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

bool adds(const ConvolutionProblem& problem) {
  return problem.direction == AffineDirection::backward_data && problem.shape.adds_input_gradient;
}

CudnnDescriptor graph_of(const ConvolutionProblem& problem, const CudnnTarget& target) {
  const ConvolutionShape& s = problem.shape;
  const OperationNames names = names_of(problem.direction);
  CudnnDescriptor operation(names.type);
  operation.set(names.convolution, convolution(s))
      .set(names.x, tensor(kX, problem.dtype, {s.batch, s.in_channels, s.in_height, s.in_width}))
      .set(names.w, tensor(kW, problem.dtype, {s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel}))
      .set(names.y, tensor(kY, problem.dtype, {s.batch, s.out_channels, s.out_height(), s.out_width()}))
      .set(names.alpha, 1.0f)
      .set(names.beta, adds(problem) ? 1.0f : 0.0f)
      .finalize();
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  target.set_graph_target(graph);
  graph.finalize();
  return graph;
}

std::vector<CudnnDescriptor> proposals(const CudnnDescriptor& graph, const CudnnTarget& target,
                                       cudnnBackendHeurMode_t mode) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph).set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  target.set_heuristics_target(heuristics);
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) return {};  // no candidate for this problem
  return heuristics.descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                heuristics.count_descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS));
}

CudnnDescriptor engine_of(const CudnnDescriptor& configuration) {
  auto engines = configuration.descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  CHECK(engines.size() == 1);
  return std::move(engines.front());
}

bool is_allowed(const CudnnDescriptor& engine, const ConvolutionProblem& problem) {
  const auto numerics =
      engine.values<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kMostNotes);
  const auto behavior =
      engine.values<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, kMostNotes);
  const auto notes = [](const auto& all, auto note) { return std::ranges::count(all, note) > 0; };
  const bool exact_products = problem.dtype == DType::f32 && !problem.shape.tf32;
  // For 5x5 kernels with one channel this engine's results are off by 7e-4 on an H200 (cuDNN 9.14 and 9.19),
  // although none of its notes says so.
  const bool inexact = problem.direction == AffineDirection::backward_weights &&
                       engine.value<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == 17;
  return !notes(numerics, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) &&
         !notes(numerics, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) &&
         !notes(numerics, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) &&
         !(exact_products && (inexact || notes(numerics, CUDNN_NUMERICAL_NOTE_TENSOR_CORE))) &&
         !notes(behavior, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION);
}

std::string tag_of(const CudnnDescriptor& engine, const CudnnDescriptor& configuration) {
  std::map<int, std::int64_t> knobs;  // sorted: cuDNN does not guarantee an order
  for (const CudnnDescriptor& choice : configuration.descriptors(
           CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMostKnobs)) {
    knobs[choice.value<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)] =
        choice.value<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
  }
  std::string tag = fmt::format("eng{}", engine.value<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  for (const auto& [knob, value] : knobs) tag += fmt::format("_k{}={}", knob, value);
  return tag;
}

// Yields the allowed candidates one by one, best guess first and without duplicates: those of cuDNN's
// heuristics modes A and B in turns, beginning with A, then the fallback engines. For groups and dilations
// mode B of cuDNN 9 proposes other candidates than mode A, otherwise the same. A mode is queried when its
// first candidate is requested: a query takes milliseconds, for some problems in mode B a quarter of a
// second.
class Candidates {
 public:
  Candidates(const ConvolutionProblem& problem, const CudnnTarget& target)
      : problem_(problem), target_(target), graph_(graph_of(problem, target)) {}

  std::optional<ConvolutionCandidate> next() {
    const bool first = turn_++ % 2 == 0;
    for (Mode* mode : {first ? &a_ : &b_, first ? &b_ : &a_, &fallback_}) {
      if (auto candidate = next_of(*mode)) return candidate;
    }
    return std::nullopt;
  }

 private:
  struct Mode {
    cudnnBackendHeurMode_t mode;
    std::optional<std::vector<CudnnDescriptor>> proposed = {};
    std::size_t taken = 0;
  };

  std::optional<ConvolutionCandidate> next_of(Mode& mode) {
    if (!mode.proposed) mode.proposed = proposals(graph_, target_, mode.mode);
    while (mode.taken < mode.proposed->size()) {
      CudnnDescriptor& configuration = (*mode.proposed)[mode.taken++];
      const CudnnDescriptor engine = engine_of(configuration);
      if (!is_allowed(engine, problem_)) continue;
      std::string tag = tag_of(engine, configuration);
      if (!seen_.insert(tag).second) continue;
      return ConvolutionCandidate{
          .tag = std::move(tag),
          .configuration = std::make_shared<CudnnDescriptor>(std::move(configuration))};
    }
    return std::nullopt;
  }

  const ConvolutionProblem& problem_;
  const CudnnTarget& target_;
  CudnnDescriptor graph_;
  Mode a_{CUDNN_HEUR_MODE_A}, b_{CUDNN_HEUR_MODE_B}, fallback_{CUDNN_HEUR_MODE_FALLBACK};
  int turn_ = 0;
  std::set<std::string> seen_;
};

}  // namespace

std::string describe(const ConvolutionProblem& problem) {
  const ConvolutionShape& s = problem.shape;
  return fmt::format(
      "convolution {}{} {}, {} x {} x {}x{} to {} channels, kernel {} stride {} padding {} dilation {} "
      "groups {}",
      name_of(problem.direction), adds(problem) ? ", added," : "", name_of_precision(problem.dtype, s.tf32),
      s.batch, s.in_channels, s.in_height, s.in_width, s.out_channels, s.kernel, s.stride, s.padding,
      s.dilation, s.groups);
}

std::vector<ConvolutionCandidate> convolution_candidates(const ConvolutionProblem& problem,
                                                         const CudnnTarget& target) {
  Candidates proposed(problem, target);
  std::vector<ConvolutionCandidate> candidates;
  while (auto candidate = proposed.next()) candidates.push_back(std::move(*candidate));
  return candidates;
}

std::optional<ConvolutionPlan> ConvolutionPlan::build(const ConvolutionCandidate& candidate,
                                                      const CudnnTarget& target) {
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  target.set_plan_target(plan);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *candidate.configuration);
  if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) return std::nullopt;
  return ConvolutionPlan(candidate, std::make_shared<CudnnDescriptor>(std::move(plan)));
}

ConvolutionPlan::ConvolutionPlan(ConvolutionCandidate candidate, std::shared_ptr<const CudnnDescriptor> plan)
    : tag_(std::move(candidate.tag)),
      configuration_(std::move(candidate.configuration)),
      plan_(std::move(plan)),
      workspace_bytes_(
          static_cast<std::size_t>(plan_->value<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE))) {}

ConvolutionPlan ConvolutionPlan::share() const {
  return ConvolutionPlan({.tag = tag_, .configuration = configuration_}, plan_);
}

void ConvolutionPlan::execute(cudnnHandle_t handle, const AffineOperands& operands) {
  if (!variant_pack_ || operands != operands_) {
    const std::array<std::int64_t, 3> ids = {kX, kW, kY};
    const std::array<const void*, 3> pointers = {operands.x, operands.w, operands.y};
    CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set_all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)
        .set_all<const void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers)
        .set<const void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, operands.scratch)
        .finalize();
    variant_pack_ = std::move(pack);
    operands_ = operands;
  }
  CUDNN_CHECK(cudnnBackendExecute(handle, plan_->get(), variant_pack_->get()));
}

std::vector<ConvolutionPlan> plan_convolution(const ConvolutionProblem& problem, const CudnnTarget& target,
                                              const PlanLimits& limits) {
  CHECK(limits.plans > 0);
  std::vector<ConvolutionPlan> plans;
  std::size_t least_workspace = std::numeric_limits<std::size_t>::max();
  Candidates candidates(problem, target);
  while (plans.size() < limits.plans) {
    const auto candidate = candidates.next();
    if (!candidate) break;
    auto plan = ConvolutionPlan::build(*candidate, target);
    if (!plan) continue;
    least_workspace = std::min(least_workspace, plan->workspace_bytes());
    if (plan->workspace_bytes() <= limits.workspace_bytes) plans.push_back(std::move(*plan));
  }
  if (!plans.empty()) return plans;
  if (least_workspace == std::numeric_limits<std::size_t>::max()) {
    throw ConfigError(
        fmt::format("{}: cuDNN {} has no deterministic engine for it on this device; try another precision. "
                    "Its last error: {}",
                    describe(problem), cudnnGetVersion(), last_cudnn_error()));
  }
  throw ConfigError(
      fmt::format("{}: cuDNN needs {} MiB of workspace, {} MiB are allowed; use a smaller batch",
                  describe(problem), (least_workspace >> 20) + 1, limits.workspace_bytes >> 20));
}

std::optional<ConvolutionPlan> find_convolution_plan(const ConvolutionProblem& problem,
                                                     const CudnnTarget& target, std::string_view tag,
                                                     const PlanLimits& limits) {
  Candidates candidates(problem, target);
  while (const auto candidate = candidates.next()) {
    if (candidate->tag != tag) continue;
    auto plan = ConvolutionPlan::build(*candidate, target);
    if (plan && plan->workspace_bytes() > limits.workspace_bytes) plan.reset();
    return plan;
  }
  return std::nullopt;
}

// Keeps the plans of at most kMostProblems problems, enough for the largest networks: a search over batch
// sizes plans many problems once, and memory must stay bounded.
ConvolutionPlans::Known& ConvolutionPlans::known(const ConvolutionProblem& problem) {
  constexpr std::size_t kMostProblems = 512;
  const std::string key = describe(problem);
  if (known_.size() >= kMostProblems && !known_.contains(key)) known_.clear();
  return known_[key];
}

std::vector<ConvolutionPlan> ConvolutionPlans::all(const ConvolutionProblem& problem) {
  Known& known = this->known(problem);
  if (!known.complete) known.plans = plan_convolution(problem, target_, limits_);
  known.complete = true;
  std::vector<ConvolutionPlan> plans;
  for (const ConvolutionPlan& plan : known.plans) plans.push_back(plan.share());
  return plans;
}

std::optional<ConvolutionPlan> ConvolutionPlans::find(const ConvolutionProblem& problem,
                                                      std::string_view tag) {
  Known& known = this->known(problem);
  auto plan = std::ranges::find(known.plans, tag, &ConvolutionPlan::tag);
  if (plan == known.plans.end()) {
    auto found = find_convolution_plan(problem, target_, tag, limits_);
    if (!found) return std::nullopt;
    known.complete = false;
    plan = known.plans.insert(plan, std::move(*found));
  }
  return plan->share();
}

}  // namespace lockstep
