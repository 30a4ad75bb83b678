// SPDX-License-Identifier: Apache-2.0
#include "models/network.h"

#include <algorithm>

#include "core/error.h"
#include "core/profiler_range.h"
#include "core/random.h"
#include "core/timeline.h"
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

// Profilers show a layer by its name, or by its number if it has none, within the range of the phase.
ProfilerRange range_of(const PlannedNode& planned, std::size_t node) {
  if (planned.name.empty()) return ProfilerRange("layer", static_cast<std::int64_t>(node));
  return ProfilerRange(planned.name.c_str());
}

template <typename Work>
void observed(const Pass& pass, const PlannedNode& planned, std::size_t node, Direction direction,
              Work work) {
  const ProfilerRange range = range_of(planned, node);
  if (pass.across != nullptr) pass.across->set_layer(static_cast<std::int32_t>(node));
  const std::int64_t begin = pass.observer == nullptr ? 0 : now_ns();
  if (pass.marker != nullptr) pass.marker->layer_begins();
  work();
  if (pass.marker != nullptr) pass.marker->layer_ends(node, direction);
  if (pass.observer == nullptr) return;
  pass.stream.synchronize();
  pass.observer->layer_ran(node, direction, begin, now_ns());
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
    : options_(options),
      input_(graph.input_shape()),
      backend_(backend_for(options.device)),
      plan_(plan_for(graph, backend_, options)),
      memory_(memory_of(plan_, input_, options_)),
      frozen_(plan_, options_.device, storage_type(options_.precision)) {
  head_ = graph.head().name;
  place_parameters();
  place_state();
  activation_arena_ = Buffer(plan_.arena.bytes, options_.device);
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
  const Buffer staging = staging_for(state_, options_.device);
  std::size_t next_state = 0;
  std::vector<float> plain;
  for (const PlannedNode& node : plan_.nodes) {
    for (const auto* specs : {&node.layer->parameter_specs(), &node.layer->statistic_specs()}) {
      for (const ParameterSpec& spec : *specs) {
        const StateTensor& tensor = state_[next_state++];
        plain.resize(static_cast<std::size_t>(spec.layout.shape().elements()));
        set_initial(spec, Random(options_.seed, "initialize " + tensor.name), plain);
        write_plain(backend_, stream, tensor, plain, staging);
        stream.synchronize();  // the next tensor reuses the same host memory
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

Tensor Network::logits() const {
  const PlannedValue& logits = plan_.values[static_cast<std::size_t>(plan_.logits)];
  return {.data = block_data(logits.data_block),
          .shape = logits.layout.shape(),
          .dtype = logits.layout.dtype(),
          .device = options_.device};
}

Network::Targets Network::targets(const Batch& batch) const {
  if (input_.masks)
    return {.labels = reinterpret_cast<const std::int32_t*>(pixel_labels_.data()),
            .weights = reinterpret_cast<const float*>(pixel_weights_.data())};
  return {.labels = batch.labels.as<std::int32_t>().data(), .weights = batch.weights.as<float>().data()};
}

std::vector<FlatRange> Network::made_by(std::size_t node, Direction direction) const {
  const PlannedNode& planned = plan_.nodes[node];
  std::vector<FlatRange> made;
  if (direction == Direction::backward_parameters) {
    for (const std::size_t index : parameters_of_[node]) {
      const Parameter& parameter = parameters_[index];
      made.push_back({.type = parameter.gradient_type,
                      .end = parameter.layout.physical_elements(),
                      .data = parameter.gradient});
    }
    return made;
  }
  const bool backward = direction == Direction::backward_inputs;
  for (const int index : backward ? planned.inputs : planned.outputs) {
    const PlannedValue& value = plan_.values[static_cast<std::size_t>(index)];
    const int block = backward ? value.gradient_block : value.data_block;
    if (block < 0) continue;
    made.push_back(
        {.type = value.layout.dtype(), .end = value.layout.physical_elements(), .data = block_data(block)});
  }
  return made;
}

// Layers read samples from the network's own memory, whose address is the same for every batch.
void Network::take_samples(const Batch& batch, const Pass& pass) {
  if (pass.mode == Mode::evaluation || !plan_.needs_samples) return;
  CHECK(static_cast<std::int64_t>(batch.samples.size()) == input_.batch,
        "dropout and augmentation need Batch::samples: expected {} entries, got {}", input_.batch,
        batch.samples.size());
  pass.stream.copy(samples_.data(), batch.samples.data(), batch.samples.size_bytes());
}

const void* Network::colored(const Batch& batch, const Pass& pass) {
  if (pass.mode == Mode::evaluation || colored_.bytes() == 0) return batch.images.data;
  auto* output = reinterpret_cast<std::uint8_t*>(colored_.data());
  backend_.color_jitter(pass.stream, {.batch = input_.batch,
                                      .height = input_.height,
                                      .width = input_.width,
                                      .channels = input_.channels,
                                      .how = options_.augmentation.color,
                                      .key = augmentation_key(options_.seed),
                                      .images = static_cast<const std::uint8_t*>(batch.images.data),
                                      .samples = reinterpret_cast<const SampleId*>(samples_.data()),
                                      .output = output});
  return output;
}

void Network::forward(const Batch& batch, const Pass& pass) {
  const Shape images{input_.batch, input_.height, input_.width, input_.channels};
  CHECK(batch.images.shape == images && batch.images.dtype == input_.type &&
            batch.weights.elements() == input_.batch,
        "the batch has images {} of type {}, the network is planned for {} of type {}",
        to_string(batch.images.shape), name_of(batch.images.dtype), to_string(images), name_of(input_.type));
  CHECK(batch.labels.dtype == (input_.masks ? DType::u8 : DType::i32) &&
            batch.labels.elements() == input_.batch * rows_per_sample(),
        "the batch has labels {} of type {}, the network is planned for {} labels per sample",
        to_string(batch.labels.shape), name_of(batch.labels.dtype), rows_per_sample());

  take_samples(batch, pass);
  const auto* samples = reinterpret_cast<const SampleId*>(samples_.data());
  auto* shares = reinterpret_cast<float*>(shares_.data());  // null if images are not mixed
  plan_.image_input->run(pass.stream, colored(batch, pass), block_data(plan_.values[0].data_block),
                         pass.mode == Mode::training ? samples : nullptr,
                         {.weights = batch.weights.as<float>().data(), .shares = shares});
  for (std::size_t node = 0; node < plan_.nodes.size(); ++node) {
    if (pass.gate != nullptr) {
      for (const std::size_t index : parameters_of_[node]) pass.gate->parameter_needed(index);
    }
    observed(pass, plan_.nodes[node], node, Direction::forward,
             [&] { plan_.nodes[node].layer->forward(pass, bindings_[node]); });
  }

  compute_loss(batch, pass);
}

void Network::compute_loss(const Batch& batch, const Pass& pass) {
  const Tensor result = logits();
  const bool trains = pass.mode == Mode::training;
  std::byte* gradient = block_data(plan_.values[static_cast<std::size_t>(plan_.logits)].gradient_block);
  if (input_.masks)
    backend_.pixel_targets(pass.stream, {.batch = input_.batch,
                                         .pixels = rows_per_sample(),
                                         .masks = batch.labels.as<std::uint8_t>().data(),
                                         .weights = batch.weights.as<float>().data(),
                                         .share_weight = trains,
                                         .labels = reinterpret_cast<std::int32_t*>(pixel_labels_.data()),
                                         .pixel_weights = reinterpret_cast<float*>(pixel_weights_.data())});
  const Targets target = targets(batch);
  const auto common = [&](auto arguments) {
    arguments.batch = input_.batch * rows_per_sample();
    arguments.classes = input_.classes;
    arguments.type = result.dtype;
    arguments.logits = result.data;
    arguments.labels = target.labels;
    arguments.weights = target.weights;
    arguments.shares = trains ? reinterpret_cast<const float*>(shares_.data()) : nullptr;
    arguments.label_smoothing = trains ? static_cast<float>(options_.label_smoothing) : 0.0f;
    arguments.gradient_scale = pass.gradient_scale;
    arguments.loss_scale = pass.loss_scale;
    arguments.logits_gradient = trains ? gradient : nullptr;
    arguments.sums = reinterpret_cast<LossSums*>(loss_.data());
    arguments.scratch = loss_scratch_.data();
    return arguments;
  };
  if (input_.loss == Loss::cross_entropy)
    backend_.softmax_cross_entropy(pass.stream, common(SoftmaxCrossEntropy{}));
  else
    backend_.output_loss(pass.stream, common(OutputLoss{.loss = input_.loss, .outputs = result.shape[1]}));
}

void Network::recompute(const NodeRange& range, const Pass& pass) {
  Pass again = pass;
  again.repeats = true;
  for (auto node = static_cast<std::size_t>(range.first); node < static_cast<std::size_t>(range.last);
       ++node) {
    if (!plan_.nodes[node].recomputed) continue;
    observed(again, plan_.nodes[node], node, Direction::recompute,
             [&] { plan_.nodes[node].layer->forward(again, bindings_[node]); });
  }
}

void Network::backward(const Pass& pass) {
  CHECK(pass.mode == Mode::training, "backward requires a forward in training mode");
  CHECK(parameters_.empty() || parameters_[0].gradient != nullptr,
        "no gradient memory is attached (GradientBuckets)");
  auto range = plan_.repeated.rbegin();
  for (std::size_t node = plan_.nodes.size(); node-- > 0;) {
    if (range != plan_.repeated.rend() && static_cast<std::size_t>(range->last) == node) {
      recompute(*range++, pass);
    }
    if (!plan_.nodes[node].goes_backward) continue;
    PlannedLayer& layer = *plan_.nodes[node].layer;
    observed(pass, plan_.nodes[node], node, Direction::backward_parameters,
             [&] { layer.backward_parameters(pass, bindings_[node]); });
    if (pass.listener != nullptr) {
      for (const std::size_t index : parameters_of_[node]) pass.listener->gradient_ready(index);
    }
    observed(pass, plan_.nodes[node], node, Direction::backward_inputs,
             [&] { layer.backward_inputs(pass, bindings_[node]); });
  }
}

LossSums Network::loss(Stream& stream) const {
  LossSums sums;
  copy_loss(stream, &sums);
  stream.synchronize();
  return sums;
}

void Network::copy_loss(Stream& stream, LossSums* host) const {
  stream.copy(host, loss_.data(), sizeof(*host));
}

}  // namespace lockstep
