// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/cudnn_engines.h"

#include <algorithm>
#include <random>

#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator::cudnn {
namespace {

enum Index : std::int64_t {
  kDirect = 0,
  kSplit = 1,
  kWindows = 3,
  kTensorCores = 6,
  kTensorCoresSplit = 7,
  kAtomic = 9,
  kDownConvert = 11,
  kRuntimeCompiled = 13,
  kTooLarge = 17,
  kFused = 20,
};

bool of_type(const Graph& graph, Element type) {
  return std::ranges::all_of(graph.io, [&](const auto& entry) { return entry.second->type == type; });
}

bool is_alone(const Graph& graph) { return graph.operations.size() == 1 && graph.convolution() != nullptr; }

bool is_per_channel(const Tensor& tensor) {
  return tensor.sizes[0] == 1 && tensor.sizes[2] == 1 && tensor.sizes[3] == 1;
}

// The fusions with a precompiled engine: a forward convolution in fp16, followed by the statistics of its
// result, or by a bias in fp16 and ReLU.
bool is_known_fusion(const Graph& graph) {
  const auto& operations = graph.operations;
  const Operation& first = operations.front();
  if (operations.size() < 2 || first.kind != OperationKind::convolution ||
      first.direction != Direction::forward || first.inputs[0]->type != Element::f16) {
    return false;
  }
  if (operations[1].kind == OperationKind::statistics) {
    return operations.size() == 2 && !first.outputs[0]->is_virtual && first.outputs[0]->type == Element::f16;
  }
  if (operations[1].kind != OperationKind::pointwise || operations[1].pointwise.mode != CUDNN_POINTWISE_ADD ||
      !is_per_channel(*operations[1].inputs[1]) || !of_type(graph, Element::f16)) {
    return false;
  }
  return operations.size() == 2 ||
         (operations.size() == 3 && operations[2].pointwise.mode == CUDNN_POINTWISE_RELU_FWD &&
          operations[2].kind == OperationKind::pointwise);
}

// The graphs for which mode B proposes other engines than mode A, as in cuDNN 9.
bool is_unusual(const Graph& graph) {
  const Operation* convolution = graph.convolution();
  if (convolution == nullptr) return false;
  const ConvolutionSizes& sizes = convolution->sizes;
  return sizes.groups > 1 || sizes.dilation_down > 1 || sizes.dilation_right > 1;
}

bool is_aligned(const Graph& graph) {
  return std::ranges::all_of(graph.io, [](const auto& entry) { return entry.second->alignment >= 16; });
}

void check_tensor_cores(const Graph& graph, const Target& target) {
  const bool new_types = !of_type(graph, Element::f16);
  require(target.compute_capability >= (new_types ? 800 : 700), CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
          "the device's tensor cores do not support this type");
  require(is_aligned(graph), CUDNN_STATUS_NOT_SUPPORTED, "tensors are aligned to less than 16 bytes");
}

// This limits the whole device, not only tensor cores: no bf16 arithmetic before compute capability 8.0.
void check_types(const Engine& engine, const Graph& graph, const Target& target) {
  bool equal = true;
  for (const auto& [id, tensor] : graph.io) {
    equal = equal && tensor->type == graph.io.begin()->second->type;
    require(tensor->type != Element::bf16 || target.compute_capability >= 800,
            CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "the device does not compute in bf16");
  }
  const bool takes_any = engine.index == kRuntimeCompiled || engine.index == kFused;
  require(equal || takes_any, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "the engine needs tensors of one type");
}

void check_support(const Engine& engine, const Graph& graph, const Target& target) {
  check_types(engine, graph, target);
  if (engine.index == kFused) {
    require(is_known_fusion(graph), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
            "the engine does not support this fusion");
  } else if (engine.index != kRuntimeCompiled) {
    require(is_alone(graph), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
            "the engine supports only a single convolution");
  }
  if (engine.notes(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) || engine.index == kTooLarge)
    check_tensor_cores(graph, target);
  if (engine.index == kDownConvert) {
    require(of_type(graph, Element::f32), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
            "the engine supports only fp32");
  }
}

std::shared_ptr<const Configuration> configure(const std::shared_ptr<const Graph>& graph,
                                               const Target& target, std::int64_t engine,
                                               std::map<cudnnBackendKnobType_t, std::int64_t> knobs = {}) {
  return std::make_shared<const Configuration>(
      Configuration{.graph = graph, .target = target, .engine = engine, .knobs = std::move(knobs)});
}

std::int64_t knob_value(const Configuration& configuration, cudnnBackendKnobType_t type) {
  if (const auto found = configuration.knobs.find(type); found != configuration.knobs.end())
    return found->second;
  const Engine& engine = *std::ranges::find(engines(), configuration.engine, &Engine::index);
  return std::ranges::find(engine.knobs, type, &Knob::type)->otherwise;
}

void check_knobs(const Configuration& configuration, const Engine& engine) {
  for (const auto& [type, value] : configuration.knobs) {
    const auto knob = std::ranges::find(engine.knobs, type, &Knob::type);
    require(knob != engine.knobs.end(), CUDNN_STATUS_BAD_PARAM, "the engine does not have this knob");
    require(value >= knob->least && value <= knob->most && (value - knob->least) % knob->step == 0,
            CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "the value is outside the knob's range");
  }
}

// True for the configurations that the seed selects to fail at this moment; the same in every process.
bool fails(const Configuration& configuration, std::uint64_t moment) {
  if (machine().plan_failures == 0) return false;
  std::seed_seq::result_type mixed[1];
  std::vector<std::int64_t> words = {static_cast<std::int64_t>(machine().seed + moment),
                                     configuration.engine};
  for (const auto& [type, value] : configuration.knobs) {
    words.push_back(type);
    words.push_back(value);
  }
  if (const Operation* convolution = configuration.graph->convolution()) {
    const ConvolutionSizes& s = convolution->sizes;
    for (const std::int64_t size : {s.batch, s.groups, s.in_channels, s.out_channels, s.height, s.width,
                                    s.kernel_height, static_cast<std::int64_t>(convolution->direction)})
      words.push_back(size);
  }
  std::seed_seq(words.begin(), words.end()).generate(mixed, mixed + 1);
  return static_cast<int>(mixed[0] % 100) < machine().plan_failures;
}

// The workspace of one operation.
std::size_t workspace_bytes(const Operation& operation, const Algorithm& algorithm) {
  const auto floats = [](std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); };
  if (operation.kind == OperationKind::statistics)
    return floats(kStatisticsParts * 2 * operation.inputs[0]->sizes[1]);
  if (operation.kind != OperationKind::convolution) return 0;
  if (algorithm.windows_in_workspace) return floats(kPixelsAtATime * operation.sizes.window());
  return algorithm.split > 1 ? floats(algorithm.split * operation.outputs[0]->elements()) : 0;
}

}  // namespace

bool Engine::notes(cudnnBackendNumericalNote_t note) const {
  return std::ranges::count(numerical_notes, note) > 0;
}
bool Engine::notes(cudnnBackendBehaviorNote_t note) const {
  return std::ranges::count(behavior_notes, note) > 0;
}

const std::vector<Engine>& engines() {
  constexpr Knob kParts{CUDNN_KNOB_TYPE_SPLIT_K_SLC, 2, 8, 1, 4};
  constexpr auto kTensorCore = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
  static const std::vector<Engine> all = {
      {kDirect, {}, {}, {{CUDNN_KNOB_TYPE_KERNEL_CFG, 0, 1, 1, 0}}},
      {kSplit, {}, {}, {kParts}},
      {kWindows, {}, {}, {}},
      {kTensorCores,
       {kTensorCore},
       {},
       {{CUDNN_KNOB_TYPE_TILE_SIZE, 0, 1, 1, 0}, {CUDNN_KNOB_TYPE_STAGES, 2, 4, 1, 3}}},
      {kTensorCoresSplit, {kTensorCore}, {}, {kParts}},
      {kAtomic, {kTensorCore, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, {}, {}},
      {kDownConvert, {kTensorCore, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}, {}, {}},
      {kRuntimeCompiled, {kTensorCore}, {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION}, {}},
      {kTooLarge, {kTensorCore}, {}, {}},
      {kFused, {}, {}, {}},
  };
  return all;
}

std::int64_t engine_global_count() { return engines().back().index + 1; }

const Engine& engine_for(std::int64_t index, const Graph& graph, const Target& target) {
  require(index >= 0 && index < engine_global_count(), CUDNN_STATUS_NOT_SUPPORTED,
          "no engine has this index");
  const auto found = std::ranges::find(engines(), index, &Engine::index);
  require(found != engines().end(), CUDNN_STATUS_NOT_SUPPORTED, "the engine does not support this graph");
  check_support(*found, graph, target);
  return *found;
}

Algorithm algorithm_of(const Configuration& configuration) {
  const Engine& engine = engine_for(configuration.engine, *configuration.graph, configuration.target);
  check_knobs(configuration, engine);
  const auto value = [&](cudnnBackendKnobType_t type) { return knob_value(configuration, type); };
  Algorithm algorithm{.tensor_cores = engine.notes(CUDNN_NUMERICAL_NOTE_TENSOR_CORE),
                      .halves = engine.notes(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS),
                      .any_order = engine.notes(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)};
  switch (configuration.engine) {
    case kDirect:
      algorithm.block = 128 << value(CUDNN_KNOB_TYPE_KERNEL_CFG);
      break;
    case kSplit:
    case kTensorCoresSplit:
      algorithm.split = value(CUDNN_KNOB_TYPE_SPLIT_K_SLC);
      break;
    case kWindows:
      algorithm.windows_in_workspace = true;
      break;
    case kTensorCores:
      algorithm.block = 32 * value(CUDNN_KNOB_TYPE_STAGES) << value(CUDNN_KNOB_TYPE_TILE_SIZE);
      break;
    case kAtomic:
      algorithm.split = 4;
      break;
    default:
      algorithm.block = 64;
  }
  const Operation* convolution = configuration.graph->convolution();
  if (algorithm.split > 1 && convolution != nullptr) {
    require(depth_of(convolution->sizes, convolution->direction) >= algorithm.split,
            CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "the sums are split into more parts than they have terms");
  }
  return algorithm;
}

std::size_t workspace_bytes(const Configuration& configuration) {
  const Algorithm algorithm = algorithm_of(configuration);
  std::size_t most = 0;
  for (const Operation& operation : configuration.graph->operations) {
    most = std::max(most, workspace_bytes(operation, algorithm));
  }
  return most;
}

std::vector<std::shared_ptr<const Configuration>> propose(const std::shared_ptr<const Graph>& graph,
                                                          const Target& target, cudnnBackendHeurMode_t mode) {
  const auto with = [&](std::int64_t engine, std::map<cudnnBackendKnobType_t, std::int64_t> knobs = {}) {
    return configure(graph, target, engine, std::move(knobs));
  };
  const auto tiled = [&](std::int64_t size, std::int64_t stages) {
    return with(kTensorCores, {{CUDNN_KNOB_TYPE_TILE_SIZE, size}, {CUDNN_KNOB_TYPE_STAGES, stages}});
  };
  const auto split = [&](std::int64_t engine, std::int64_t parts) {
    return with(engine, {{CUDNN_KNOB_TYPE_SPLIT_K_SLC, parts}});
  };
  const auto direct = [&](std::int64_t kernel) {
    return with(kDirect, {{CUDNN_KNOB_TYPE_KERNEL_CFG, kernel}});
  };
  std::vector<std::shared_ptr<const Configuration>> considered;
  if (mode == CUDNN_HEUR_MODE_FALLBACK) {
    considered = {direct(0), with(kWindows)};
  } else if (mode == CUDNN_HEUR_MODE_B && is_unusual(*graph)) {
    considered = {tiled(0, 2),      direct(1), split(kTensorCoresSplit, 8), with(kAtomic), tiled(1, 3),
                  split(kSplit, 3), direct(0)};
  } else {
    considered = {with(kFused),
                  tiled(1, 3),
                  tiled(0, 4),
                  split(kTensorCoresSplit, 4),
                  with(kTooLarge),
                  with(kAtomic),
                  direct(1),
                  tiled(1, 2),
                  split(kSplit, 4),
                  with(kDownConvert),
                  split(kTensorCoresSplit, 2),
                  direct(0),
                  with(kRuntimeCompiled),
                  split(kSplit, 2)};
    // Sums over all pixels are long, so engines that split sums come first there.
    const Operation* convolution = graph->convolution();
    if (convolution != nullptr && convolution->direction == Direction::backward_filter) {
      std::ranges::stable_partition(considered, [](const auto& configuration) {
        return configuration->engine == kSplit || configuration->engine == kTensorCoresSplit;
      });
    }
  }
  std::vector<std::shared_ptr<const Configuration>> proposed;
  std::optional<Refusal> last;
  for (auto& configuration : considered) {
    try {
      algorithm_of(*configuration);
      proposed.push_back(std::move(configuration));
    } catch (const Refusal& refusal) {
      last = refusal;
    }
  }
  if (proposed.empty())
    throw Refusal(last->status, std::string("no engine supports the graph: ") + last->what());
  return proposed;
}

void check_plan(const Configuration& configuration) {
  require(configuration.engine != kTooLarge, CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
          "the engine needs more shared memory per block than the device has");
  require(!fails(configuration, 1), CUDNN_STATUS_NOT_SUPPORTED, "the plan fails: selected by the seed");
}

void check_execution(const Configuration& configuration) {
  require(!fails(configuration, 2), CUDNN_STATUS_EXECUTION_FAILED,
          "the execution fails: selected by the seed");
}

}  // namespace lockstep::emulator::cudnn
