// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

bool is_norm_or_bias(const Parameter& parameter) { return parameter.layout.shape().rank() <= 1; }

// Neighbours that decay alike become one segment, together with the padding between them: it is zero, its
// gradient is zero, and every update leaves it so.
std::vector<UpdateSegment> decay_segments(std::span<const Parameter> parameters, double weight_decay,
                                          bool decay_norm_and_bias) {
  std::vector<UpdateSegment> segments;
  for (const Parameter& parameter : parameters) {
    const bool decays = decay_norm_and_bias || !is_norm_or_bias(parameter);
    const float decay = decays ? static_cast<float>(weight_decay) : 0.0f;
    if (segments.empty() || segments.back().weight_decay != decay)
      segments.push_back({.begin = parameter.offset, .weight_decay = decay});
    segments.back().count = parameter.offset + parameter.layout.physical_elements() - segments.back().begin;
  }
  return segments;
}

std::vector<UpdateSegment> lars_segments(std::span<const Parameter> parameters, double weight_decay) {
  std::vector<UpdateSegment> segments;
  for (const Parameter& parameter : parameters) {
    const bool adaptive = !is_norm_or_bias(parameter);
    segments.push_back({.begin = parameter.offset,
                        .count = parameter.layout.physical_elements(),
                        .weight_decay = adaptive ? static_cast<float>(weight_decay) : 0.0f,
                        .adaptive = adaptive});
  }
  return segments;
}

class Sgd final : public Optimizer {
 public:
  Sgd(const TrainedMemory& memory, const SgdOptions& options)
      : Optimizer(memory,
                  decay_segments(memory.parameters, options.weight_decay, options.decay_norm_and_bias),
                  {"momentum_buffer"}),
        options_(options) {
    CHECK(!options.nesterov || options.momentum > 0, "Nesterov without momentum");
  }

 private:
  void update(Stream& stream, float learning_rate) override {
    backend().sgd_update(stream, {.table = table(),
                                  .value = values(),
                                  .gradient = gradients(),
                                  .momentum_buffer = state(0),
                                  .learning_rate = learning_rate,
                                  .momentum = static_cast<float>(options_.momentum),
                                  .nesterov = options_.nesterov});
  }

  SgdOptions options_;
};

class AdamW final : public Optimizer {
 public:
  AdamW(const TrainedMemory& memory, const AdamWOptions& options)
      : Optimizer(memory,
                  decay_segments(memory.parameters, options.weight_decay, options.decay_norm_and_bias),
                  {"exp_avg", "exp_avg_sq"}),
        options_(options) {
    CHECK(static_cast<float>(options.epsilon) > 0, "epsilon is {}", options.epsilon);
  }

 private:
  void update(Stream& stream, float learning_rate) override {
    backend().adamw_update(stream, {.table = table(),
                                    .value = values(),
                                    .gradient = gradients(),
                                    .first_moment = state(0),
                                    .second_moment = state(1),
                                    .learning_rate = learning_rate,
                                    .beta1 = options_.beta1,
                                    .beta2 = options_.beta2,
                                    .epsilon = options_.epsilon,
                                    .step = steps() + 1});
  }

  AdamWOptions options_;
};

class Lars final : public Optimizer {
 public:
  Lars(const TrainedMemory& memory, const LarsOptions& options)
      : Optimizer(memory, lars_segments(memory.parameters, options.weight_decay), {"momentum_buffer"}),
        options_(options),
        norms_(table().chunks().size() * sizeof(SquaredNorms), memory.device),
        trust_ratios_(table().segments().size() * sizeof(float), memory.device) {}

 private:
  void update(Stream& stream, float learning_rate) override {
    backend().lars_update(
        stream, {.table = table(),
                 .value = values(),
                 .gradient = gradients(),
                 .momentum_buffer = state(0),
                 .norms = {reinterpret_cast<SquaredNorms*>(norms_.data()), table().chunks().size()},
                 .trust_ratios = {reinterpret_cast<float*>(trust_ratios_.data()), table().segments().size()},
                 .learning_rate = learning_rate,
                 .momentum = static_cast<float>(options_.momentum),
                 .trust_coefficient = static_cast<float>(options_.trust_coefficient),
                 .epsilon = static_cast<float>(options_.epsilon)});
  }

  LarsOptions options_;
  Buffer norms_;
  Buffer trust_ratios_;
};

}  // namespace

Optimizer::Optimizer(const TrainedMemory& memory, std::span<const UpdateSegment> segments,
                     std::vector<std::string> state_names)
    : backend_(backend_for(memory.device)),
      memory_(memory),
      table_(memory.device, segments),
      state_names_(std::move(state_names)),
      state_(state_names_.size() * memory.values.size_bytes(), memory.device) {
  const std::size_t values = memory.values.size();
  CHECK(values == memory.gradients.size(), "{} values, {} gradients", values, memory.gradients.size());
  for (const Parameter& parameter : memory.parameters) {
    const std::int64_t end = parameter.offset + parameter.layout.physical_elements();
    CHECK(end <= static_cast<std::int64_t>(values), "{} ends at {} of {}", parameter.name, end, values);
  }
}

void Optimizer::step(Stream& stream, float learning_rate) {
  update(stream, learning_rate);
  ++steps_;
}

std::span<float> Optimizer::state() const {
  return {reinterpret_cast<float*>(state_.data()), state_.bytes() / sizeof(float)};
}

std::unique_ptr<Optimizer> make_optimizer(const TrainedMemory& memory, const OptimizerOptions& options) {
  struct Maker {
    const TrainedMemory& memory;
    std::unique_ptr<Optimizer> operator()(const SgdOptions& o) { return std::make_unique<Sgd>(memory, o); }
    std::unique_ptr<Optimizer> operator()(const AdamWOptions& o) {
      return std::make_unique<AdamW>(memory, o);
    }
    std::unique_ptr<Optimizer> operator()(const LarsOptions& o) { return std::make_unique<Lars>(memory, o); }
  };
  return std::visit(Maker{memory}, options);
}

}  // namespace lockstep
