// SPDX-License-Identifier: Apache-2.0
//
// The passes of Network: forward, loss and backward, and what observers of a pass ask for.
#include "core/error.h"
#include "core/profiler_range.h"
#include "core/timeline.h"
#include "models/network.h"

namespace lockstep {
namespace {

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

void require_ranks(const Pass& pass, int batch_norm_ranks) {
  CHECK(pass.mode == Mode::evaluation || batch_norm_ranks == 1 || pass.across != nullptr,
        "batch norm is planned for {} ranks, so training passes need Pass::across", batch_norm_ranks);
}

}  // namespace

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

  require_ranks(pass, options_.batch_norm_ranks);

  const bool trains = pass.mode == Mode::training;
  take_samples(batch, pass);
  const auto* samples = reinterpret_cast<const SampleId*>(samples_.data());
  auto* shares = reinterpret_cast<float*>(shares_.data());  // null if images are not mixed
  plan_.image_input->run(pass.stream, colored(batch, pass), block_data(plan_.values[0].data_block),
                         trains ? samples : nullptr,
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
  require_ranks(pass, options_.batch_norm_ranks);
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
