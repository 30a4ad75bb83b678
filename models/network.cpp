// SPDX-License-Identifier: Apache-2.0
#include "models/network.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"
#include "models/network_state.h"
#include "models/recompute_choice.h"

namespace lockstep {
namespace {

// Bytes of the color-jittered images of a batch; 0 without color jitter.
std::size_t colored_bytes(const GraphInput& input, const NetworkOptions& options) {
  if (!options.augmentation.color.any()) return 0;
  return static_cast<std::size_t>(input.batch * input.height * input.width * input.channels);
}

// Bytes of a batch beside the arena.
std::size_t batch_bytes(const GraphInput& input, const NetworkOptions& options) {
  const std::size_t colored = colored_bytes(input, options);
  if (!input.masks) return colored;
  const std::int64_t pixels = input.batch * input.height * input.width;
  return colored + static_cast<std::size_t>(pixels) * (sizeof(std::int32_t) + sizeof(float)) +
         backend_for(options.device).loss_scratch_bytes(pixels);
}

// Without memory.
NetworkPlan plan_with(KernelChoices& choices, const Graph& graph, Backend& backend,
                      const NetworkOptions& options) {
  CHECK(options.precision != Precision::automatic, "choose a precision before planning");
  const std::vector<float> mean(options.mean.begin(), options.mean.end());
  const std::vector<float> deviation(options.deviation.begin(), options.deviation.end());
  PlanOptions wanted{.precision = options.precision,
                     .mean = mean,
                     .deviation = deviation,
                     .augmentation = options.augmentation,
                     .batch_norm_ranks = options.batch_norm_ranks};
  wanted.augmentation.key = augmentation_key(options.seed);
  return plan_network(graph, backend, choices, wanted);
}

NetworkPlan plan_for(const Graph& graph, Backend& backend, const NetworkOptions& options) {
  KernelChoices in_order;
  NetworkPlan plan =
      plan_with(options.choices != nullptr ? *options.choices : in_order, graph, backend, options);
  plan_memory(plan, options.recompute, options.sharing);
  return plan;
}

// Without contests between kernels: a missing choice is assumed to be the first candidate.
NetworkPlan expected_plan(const Graph& graph, const NetworkOptions& options) {
  KernelChoices none;
  KernelChoices& given = options.choices != nullptr ? *options.choices : none;
  KernelChoices choices = KernelChoices::without_contests(given);
  NetworkPlan plan = plan_with(choices, graph, backend_for(options.device), options);
  given.expect_contests(choices.unknown());
  return plan;
}

// Only LoaderOptions::augmentation moves masks with their images.
const NetworkOptions& checked(const NetworkOptions& options, const GraphInput& input) {
  CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
        "the label smoothing is {}, must be from 0 to 1", options.label_smoothing);
  const Augmentation& augmentation = options.augmentation;
  const bool moves = augmentation.crop_padding > 0 || augmentation.horizontal_flip || augmentation.mixes();
  CHECK(!input.masks || !moves,
        "NetworkOptions::augmentation would crop, flip or mix images without their masks; crop and flip both "
        "with LoaderOptions::augmentation");
  return options;
}

// Elements that the tensor takes in the flat memory of its kind, including padding.
std::int64_t flat_elements(const ParameterSpec& spec) {
  return static_cast<std::int64_t>(align_up(spec.layout.bytes()) / size_of(spec.layout.dtype()));
}

MemoryPlan memory_of(const NetworkPlan& plan, const GraphInput& input, const NetworkOptions& options) {
  const std::size_t beside = batch_bytes(input, options);
  MemoryPlan memory{.activations = plan.arena.bytes + beside,
                    .activations_unshared = plan.unshared_bytes + beside,
                    .activations_kept = plan.kept_bytes + beside};
  memory.frozen = FrozenMemory::planned_bytes(plan, storage_type(options.precision));
  if (plan.scratch_block >= 0)
    memory.workspace = plan.blocks[static_cast<std::size_t>(plan.scratch_block)].bytes;
  for (const PlannedNode& node : plan.nodes) {
    if (node.frozen) continue;
    for (const ParameterSpec& spec : node.layer->parameter_specs()) {
      const auto elements = static_cast<std::size_t>(flat_elements(spec));
      const DType type = spec.layout.dtype();
      memory.parameters += elements * sizeof(float);
      memory.gradients += elements * size_of(type);
      if (type != DType::f32) memory.weight_copies += elements * size_of(type);
    }
    for (const ParameterSpec& spec : node.layer->statistic_specs())
      memory.statistics += 3 * static_cast<std::size_t>(flat_elements(spec)) * sizeof(float);
  }
  return memory;
}

void set_initial(const ParameterSpec& spec, const Random& random, std::span<float> values) {
  if (spec.uniform_bound > 0) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = random.uniform(i, -spec.uniform_bound, spec.uniform_bound);
  } else if (spec.deviation > 0) {
    random.normals(values);
    for (float& value : values) value *= spec.deviation;
  } else {
    std::ranges::fill(values, spec.constant);
  }
}

}  // namespace

Network::Network(const Graph& graph, const NetworkOptions& options)
    : options_(checked(options, graph.input_shape())),
      input_(graph.input_shape()),
      backend_(backend_for(options.device)),
      plan_(plan_for(graph, backend_, options)),
      memory_(memory_of(plan_, input_, options_)),
      frozen_(plan_, options_.device, storage_type(options_.precision)) {
  head_ = graph.head().name;
  place_parameters();
  place_state();
  activation_arena_ = Buffer(plan_.arena.bytes, options_.device,
                             options_.computes ? MemoryKind::device : MemoryKind::untouched);
  loss_ = Buffer(sizeof(LossSums), options_.device);
  const std::int64_t rows = input_.batch * rows_per_sample();
  loss_scratch_ = Buffer(backend_.loss_scratch_bytes(rows), options_.device);
  if (input_.masks) {
    pixel_labels_ = Buffer(static_cast<std::size_t>(rows) * sizeof(std::int32_t), options_.device);
    pixel_weights_ = Buffer(static_cast<std::size_t>(rows) * sizeof(float), options_.device);
  }
  samples_ = Buffer(static_cast<std::size_t>(input_.batch) * sizeof(SampleId), options_.device);
  if (options_.augmentation.mixes())
    shares_ = Buffer(static_cast<std::size_t>(input_.batch) * sizeof(float), options_.device);
  colored_ = Buffer(colored_bytes(input_, options_), options_.device);
  bind_memory();
  initialize();
}

MemoryPlan Network::planned_memory(const Graph& graph, const NetworkOptions& options) {
  NetworkPlan plan = expected_plan(graph, options);
  plan_memory(plan, options.recompute, options.sharing);
  return memory_of(plan, graph.input_shape(), options);
}

Recompute Network::chosen_recompute(const Graph& graph, const NetworkOptions& options,
                                    std::size_t most_activations) {
  NetworkPlan plan = expected_plan(graph, options);
  const std::size_t outside = batch_bytes(graph.input_shape(), options);
  return choose_recompute(graph, plan,
                          {.arena_bytes = most_activations > outside ? most_activations - outside : 0,
                           .precision = options.precision,
                           .sharing = options.sharing});
}

// Assigns offsets in the flat order: half before fp32, each in backward order.
void Network::place_parameters() {
  std::int64_t end = 0;
  parameters_of_.resize(plan_.nodes.size());
  const auto place_all = [&](auto wanted) {
    for (std::size_t node = plan_.nodes.size(); node-- > 0;) {
      if (plan_.nodes[node].frozen) continue;
      for (const ParameterSpec& spec : plan_.nodes[node].layer->parameter_specs()) {
        if (!wanted(spec.layout.dtype())) continue;
        parameters_of_[node].push_back(parameters_.size());
        parameters_.push_back({.name = plan_.nodes[node].name + "." + spec.suffix,
                               .layout = spec.layout.as_type(DType::f32),
                               .gradient_type = spec.layout.dtype(),
                               .offset = end,
                               .l2 = spec.l2,
                               .of_norm = spec.of_norm});
        end += flat_elements(spec);
      }
    }
  };
  const DType type = storage_type(options_.precision);
  if (type != DType::f32) place_all([](DType dtype) { return dtype != DType::f32; });
  copied_elements_ = end;
  place_all([](DType dtype) { return dtype == DType::f32; });

  parameter_arena_ = Buffer(memory_.parameters, options_.device);
  copy_arena_ = Buffer(memory_.weight_copies, options_.device);
  for (Parameter& parameter : parameters_) {
    parameter.value = values().data() + parameter.offset;
    parameter.weights =
        parameter.offset < copied_elements_ ? weight_copies().at(parameter.offset) : parameter.value;
  }
}

// Allocates the running statistics and lists the state by name in forward order.
void Network::place_state() {
  for (Buffer* statistics : {&statistics_arena_, &kept_statistics_, &evaluation_statistics_})
    *statistics = Buffer(memory_.statistics / 3, options_.device);
  std::int64_t next = 0;
  const auto all = static_cast<std::int64_t>(values().size());
  for (std::size_t node = 0; node < plan_.nodes.size(); ++node) {
    const PlannedNode& planned = plan_.nodes[node];
    if (planned.frozen) {
      state_.insert(state_.end(), frozen_.state(node).begin(), frozen_.state(node).end());
      continue;
    }
    for (const std::size_t index : parameters_of_[node]) {
      const Parameter& parameter = parameters_[index];
      state_.push_back({.name = parameter.name,
                        .layout = parameter.layout,
                        .value = parameter.value,
                        .elements = flat_elements(parameters_, index, all)});
    }
    for (const ParameterSpec& spec : planned.layer->statistic_specs()) {
      StateTensor statistic{.name = planned.name + "." + spec.suffix,
                            .layout = spec.layout,
                            .value = evaluation_statistics().data() + next,
                            .elements = flat_elements(spec),
                            .is_statistic = true};
      state_.push_back(statistic);
      statistic.value = statistics().data() + next;
      own_statistics_.push_back(statistic);
      next += statistic.elements;
    }
  }
}

std::byte* Network::block_data(int block) const {
  return block < 0 ? nullptr
                   : activation_arena_.data() + plan_.arena.offsets[static_cast<std::size_t>(block)];
}

void Network::bind_memory() {
  const auto value = [&](int index) -> const PlannedValue& {
    return plan_.values[static_cast<std::size_t>(index)];
  };
  std::size_t next_statistic = 0;
  bindings_.resize(plan_.nodes.size());
  for (std::size_t node = 0; node < plan_.nodes.size(); ++node) {
    const PlannedNode& planned = plan_.nodes[node];
    LayerMemory& memory = bindings_[node];
    for (std::size_t i = 0; i < planned.inputs.size(); ++i) {
      memory.inputs[i] = block_data(value(planned.inputs[i]).data_block);
      memory.input_gradients[i] = block_data(value(planned.inputs[i]).gradient_block);
      if (const int addend = value(planned.inputs[i]).addend; addend >= 0)
        memory.addend = block_data(value(addend).gradient_block);
    }
    for (std::size_t i = 0; i < planned.outputs.size(); ++i) {
      memory.outputs[i] = block_data(value(planned.outputs[i]).data_block);
      memory.output_gradients[i] = block_data(value(planned.outputs[i]).gradient_block);
      if (value(planned.outputs[i]).addend >= 0) memory.addend = memory.output_gradients[i];
    }
    memory.saved = block_data(planned.saved_block);
    memory.scratch = block_data(plan_.scratch_block);
    memory.samples = reinterpret_cast<const SampleId*>(samples_.data());
    memory.seed = options_.seed;
    if (planned.frozen) {
      frozen_.bind(node, memory);
      continue;
    }
    for (const std::size_t index : parameters_of_[node]) memory.parameters.push_back(&parameters_[index]);
    for (std::size_t i = 0; i < planned.layer->statistic_specs().size(); ++i) {
      float* own = own_statistics_[next_statistic++].value;
      memory.statistics.push_back(own);
      memory.evaluation_statistics.push_back(evaluation_statistics().data() + (own - statistics().data()));
    }
  }
}

// Initial values depend only on the seed, the tensor's name and the element's plain index, not on layout or
// device.
void Network::initialize() {
  Stream stream(options_.device, StreamUse::compute);
  std::size_t next_state = 0;
  std::vector<float> plain;
  for (const PlannedNode& node : plan_.nodes) {
    for (const auto* specs : {&node.layer->parameter_specs(), &node.layer->statistic_specs()}) {
      for (const ParameterSpec& spec : *specs) {
        const StateTensor& tensor = state_[next_state++];
        plain.resize(static_cast<std::size_t>(spec.layout.shape().elements()));
        set_initial(spec, Random(options_.seed, "initialize " + tensor.name), plain);
        write_plain(backend_, stream, tensor, plain);
      }
    }
  }
  if (!statistics().empty())
    stream.copy(statistics_arena_.data(), evaluation_statistics_.data(), statistics_arena_.bytes());
  copy_weights(stream);
  stream.synchronize();
}

std::span<float> Network::values() const {
  return {reinterpret_cast<float*>(parameter_arena_.data()), memory_.parameters / sizeof(float)};
}

void Network::move_values(Buffer memory) {
  CHECK(memory.bytes() == parameter_arena_.bytes(), "{} bytes for parameters of {}", memory.bytes(),
        parameter_arena_.bytes());
  Stream stream(options_.device, StreamUse::compute);
  stream.copy(memory.data(), parameter_arena_.data(), memory.bytes());
  stream.synchronize();
  const std::span<const float> before = values();
  const auto move = [&](float*& place) {
    if (place >= before.data() && place < before.data() + before.size())
      place = reinterpret_cast<float*>(memory.data()) + (place - before.data());
  };
  for (Parameter& parameter : parameters_) {
    const bool reads_value = parameter.weights == parameter.value;
    move(parameter.value);
    if (reads_value) parameter.weights = parameter.value;
  }
  for (StateTensor& tensor : state_) move(tensor.value);
  parameter_arena_ = std::move(memory);
}

FlatRange Network::weight_copies() const {
  return {.type = storage_type(options_.precision), .end = copied_elements_, .data = copy_arena_.data()};
}

void Network::copy_weights(Stream& stream) {
  frozen_.copy_weights(backend_, stream);
  copy_trained_weights(stream);
}

void Network::copy_trained_weights(Stream& stream) {
  if (copied_elements_ == 0) return;
  backend_.cast(stream, {.count = copied_elements_,
                         .from_type = DType::f32,
                         .to_type = weight_copies().type,
                         .from = values().data(),
                         .to = copy_arena_.data()});
}

void Network::keep_statistics(Stream& stream) {
  if (statistics().empty()) return;
  stream.copy(kept_statistics_.data(), statistics_arena_.data(), statistics_arena_.bytes());
}

void Network::restore_statistics(Stream& stream) {
  if (statistics().empty()) return;
  stream.copy(statistics_arena_.data(), kept_statistics_.data(), statistics_arena_.bytes());
}

void Network::restore_statistics_if_skipped(Stream& stream, const StepControl* control) {
  if (statistics().empty()) return;
  backend_.restore_if_skipped(stream, {.control = control,
                                       .count = static_cast<std::int64_t>(statistics().size()),
                                       .from = reinterpret_cast<const float*>(kept_statistics_.data()),
                                       .to = statistics().data()});
}

void Network::keep_unless_skipped(Stream& stream, const StepControl* control, std::span<float> statistics) {
  if (statistics.empty()) return;
  backend_.restore_if_skipped(stream, {.control = control,
                                       .count = static_cast<std::int64_t>(statistics.size()),
                                       .from = reinterpret_cast<const float*>(kept_statistics_.data()),
                                       .to = statistics.data()});
  stream.copy(kept_statistics_.data(), statistics.data(), statistics.size_bytes());
}

std::span<float> Network::statistics() const {
  return {reinterpret_cast<float*>(statistics_arena_.data()), statistics_arena_.bytes() / sizeof(float)};
}

std::span<float> Network::evaluation_statistics() const {
  return {reinterpret_cast<float*>(evaluation_statistics_.data()),
          evaluation_statistics_.bytes() / sizeof(float)};
}

void Network::copy_statistics(Stream& stream) {
  if (statistics().empty()) return;
  stream.copy(evaluation_statistics_.data(), statistics_arena_.data(), statistics_arena_.bytes());
}

void Network::visit_state(StateVisitor& visitor) {
  for (const StateTensor& tensor : state_) visitor.tensor(tensor, StateScope::replicated);
  for (const StateTensor& tensor : own_statistics_) visitor.tensor(tensor, StateScope::per_rank);
  if (!visitor.writes()) return;
  Stream stream(options_.device, StreamUse::compute);
  copy_weights(stream);
  stream.synchronize();
}

}  // namespace lockstep
