// SPDX-License-Identifier: Apache-2.0
#include "launch/program/network/predictor.h"

#include <algorithm>
#include <cmath>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/tensor/buffer.h"
#include "core/text/text.h"
#include "core/timeline.h"
#include "kernels/loss_functors.h"
#include "launch/train/digest.h"
#include "launch/train/watch/not_finite_search.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

MemoryBudget budget_for(NetworkPlanning& planning, const Config& config, Device device) {
  const std::size_t free = available_memory(device), limit = config.device.memory_limit();
  return {MemoryShortage{.device = device,
                         .batch = config.loader.batch,
                         .available = std::min(free, limit),
                         .limited = limit < free},
          [&planning](std::int64_t batch) {
            const MemoryPlan plan = planning.memory(batch);
            return MemoryNeed{
                .activations = plan.activations,
                .parameters = plan.parameters + plan.weight_copies + plan.statistics + plan.frozen};
          }};
}

// Subtracts the largest logit first, so that exp() does not overflow.
void softmax(std::span<const float> logits, std::span<float> probabilities) {
  const float most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - most));
  for (std::size_t i = 0; i < logits.size(); ++i)
    probabilities[i] = static_cast<float>(std::exp(static_cast<double>(logits[i] - most)) / sum);
}

}  // namespace

std::vector<float> class_shares(std::span<const std::uint8_t> mask, std::size_t classes) {
  std::vector<std::int64_t> pixels(classes);
  for (const std::uint8_t label : mask) ++pixels[label];
  std::vector<float> shares;
  for (const std::int64_t count : pixels)
    shares.push_back(static_cast<float>(static_cast<double>(count) / static_cast<double>(mask.size())));
  return shares;
}

Predictor::Predictor(const Config& config, const Registry& registry, const Dataset& images,
                     Communicator& host, const Options& options)
    : images_(images),
      shard_{.rank = host.rank(), .size = host.size()},
      planning_(config, find_network(registry.networks, config.model.name), images, options.device, 1),
      stream_(options.device, StreamUse::compute) {
  backend_for(options.device).set_threads(options.threads);
  const MemoryBudget budget = budget_for(planning_, config, options.device);
  run_agreed(host, [&] {
    if (config.device.memory_gib > 0) budget.require();
  });
  network_ = planning_.plan(host, budget);
  run_agreed(host, [&] {
    if (options.state == nullptr)
      load_state(*network_, options.weights);
    else
      restore_network(*network_, *options.state);
  });
  const std::string weights = host.size() > 1 ? digest(*network_) : std::string();
  if (const Difference found = find_difference(host, weights); !found.ranks.empty())
    throw_agreed(ConfigError(fmt::format("{}: {} read other weights than rank 0; copy one file to all nodes",
                                         options.weights.string(), named_ranks(found.ranks))));
  network_->copy_weights(stream_);
  if (const std::string found = not_finite_state(*network_); !found.empty() && host.rank() == 0)
    log::warning("{} is not finite", found);
  const DeviceBatchesOptions staging{.device = options.device};
  LoaderOptions loading{.batch = network_->batch(),
                        .tail = Tail::pad,
                        .most_left_out = 1,
                        .threads = 0,
                        .most_threads = options.loader_threads,
                        .kept = DeviceBatches::loader_keeps(staging),
                        .device = options.device};
  loader_.emplace(images, Shard{}, loading);
  batches_.emplace(*loader_, staging);
  const auto outputs = static_cast<std::size_t>(network_->logits().shape[1] * network_->rows_per_sample());
  const auto batch = static_cast<std::size_t>(network_->batch());
  if (network_->has_masks()) mask_.resize(static_cast<std::size_t>(network_->rows_per_sample()));
  if (network_->logits().dtype != DType::f32)
    logits_ = Buffer(batch * outputs * sizeof(float), options.device);
  probabilities_.resize(static_cast<std::size_t>(network_->classes()));
  class_logits_.resize(probabilities_.size());
  for (std::size_t slot = 0; slot < StepSlot::kCount; ++slot) {
    Answers& each = answers_.emplace_back(options.device);
    each.logits.resize(batch * outputs);
    each.weights.resize(batch);
  }
}

void Predictor::run(const Answer& answer) {
  const std::int64_t begin = now_ns();
  waited_ = 0;
  const std::int64_t steps = loader_->steps_in_epoch(0);
  const std::int64_t first = steps * shard_.rank / shard_.size;
  const std::int64_t last = steps * (shard_.rank + 1) / shard_.size;
  if (first < last) batches_->seek(0, first);
  for (std::int64_t step = first; step < last; ++step) {
    enqueue(step);
    if (step > first) tell(step - 1, answer);
  }
  if (first < last) tell(last - 1, answer);
  seconds_ = seconds_between(begin, now_ns());
}

void Predictor::enqueue(std::int64_t step) {
  const std::int64_t begin = now_ns();
  batches_->begin(stream_, StepSlot::of(step));
  const Batch& batch = batches_->next();
  waited_ += seconds_between(begin, now_ns());
  network_->forward(batch, {.stream = stream_, .mode = Mode::evaluation});
  const Tensor logits = network_->logits();
  const void* values = logits.data;
  if (logits.dtype != DType::f32) {
    network_->backend().cast(stream_, {.count = logits.shape.elements(),
                                       .from_type = logits.dtype,
                                       .to_type = DType::f32,
                                       .from = logits.data,
                                       .to = logits_.data()});
    values = logits_.data();
  }
  Answers& told = answers(step);
  stream_.copy(told.logits.data(), values, told.logits.size() * sizeof(float));
  stream_.copy(told.weights.data(), batch.weights.data, told.weights.size() * sizeof(float));
  stream_.record(told.done);
  batches_->prefetch(StepSlot::of(step + 1));
}

void Predictor::tell(std::int64_t step, const Answer& answer) {
  Answers& told = answers(step);
  told.done.synchronize();
  const std::int64_t begin = now_ns();
  const std::size_t outputs = told.logits.size() / told.weights.size();
  const std::int64_t first = step * network_->batch();
  const std::int64_t count = std::min(network_->batch(), images_.size() - first);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<std::size_t>(i);
    const bool decoded = told.weights[place] > 0;
    const std::span<const float> logits = std::span(told.logits).subspan(place * outputs, outputs);
    if (network_->has_masks()) {
      score_pixels(logits);
      answer(first + i,
             decoded ? Scores{.probabilities = probabilities_, .logits = logits, .mask = mask_} : Scores{});
      continue;
    }
    score(logits);
    answer(first + i,
           decoded ? Scores{.probabilities = probabilities_, .logits = class_logits_, .counted = counted_}
                   : Scores{});
  }
  waited_ += seconds_between(begin, now_ns());
}

// Sets the mask and the shares of the classes.
void Predictor::score_pixels(std::span<const float> outputs) {
  const std::size_t classes = probabilities_.size();
  for (std::size_t pixel = 0; pixel < mask_.size(); ++pixel) {
    const std::span<const float> logits = outputs.subspan(pixel * classes, classes);
    const auto label = static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
    mask_[pixel] = static_cast<std::uint8_t>(label);
  }
  probabilities_ = class_shares(mask_, classes);
}

// Sets the logits and the probabilities of the classes, and counted_.
void Predictor::score(std::span<const float> outputs) {
  const Loss loss = network_->loss_kind();
  const bool single = outputs.size() != class_logits_.size();
  counted_ = single ? class_of_output(loss, outputs[0], network_->classes()) : -1;
  for (std::size_t k = 0; k < class_logits_.size(); ++k)
    class_logits_[k] = !single                                        ? outputs[k]
                       : loss == Loss::binary_cross_entropy && k == 0 ? -outputs[0]
                                                                      : outputs[0];
  if (loss == Loss::cross_entropy) return softmax(class_logits_, probabilities_);
  const auto last = static_cast<float>(class_logits_.size() - 1);
  for (std::size_t k = 0; k < class_logits_.size(); ++k) {
    const float logit = class_logits_[k];
    if (loss == Loss::binary_cross_entropy)
      probabilities_[k] = 1.0f / (1.0f + std::exp(-logit));
    else if (single)
      probabilities_[k] = std::max(0.0f, 1 - std::abs(std::clamp(logit, 0.0f, last) - static_cast<float>(k)));
    else
      probabilities_[k] = std::clamp(logit, 0.0f, 1.0f);
  }
}

}  // namespace lockstep
