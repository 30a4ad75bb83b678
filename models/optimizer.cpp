// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/text/named_entries.h"

namespace lockstep {
namespace {

bool is_norm_or_bias(const Parameter& parameter) {
  return parameter.layout.shape().rank() <= 1 || parameter.of_norm;
}

// Adjacent parameters with the same decay form one segment, including the padding between them: padding and
// its gradient are zero, and every update keeps it zero. decoupled: weight decay is not part of the gradient,
// but L2 penalties are.
std::vector<UpdateSegment> decay_segments(std::span<const Parameter> parameters, double weight_decay,
                                          bool decay_norm_and_bias, bool decoupled) {
  std::vector<UpdateSegment> segments;
  for (const Parameter& parameter : parameters) {
    const bool decays = decay_norm_and_bias || !is_norm_or_bias(parameter);
    const double own = decays ? weight_decay : 0.0, penalty = 2 * static_cast<double>(parameter.l2);
    const UpdateSegment segment{.begin = parameter.offset,
                                .weight_decay = static_cast<float>(decoupled ? own : own + penalty),
                                .penalty = static_cast<float>(decoupled ? penalty : 0.0),
                                .gradient_has_momentum = parameter.gradient_has_momentum};
    if (segments.empty() || segments.back().weight_decay != segment.weight_decay ||
        segments.back().penalty != segment.penalty ||
        segments.back().gradient_has_momentum != segment.gradient_has_momentum) {
      segments.push_back(segment);
    }
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
                        .weight_decay = static_cast<float>((adaptive ? weight_decay : 0.0) +
                                                           2 * static_cast<double>(parameter.l2)),
                        .adaptive = adaptive});
  }
  return segments;
}

// The parts of the segments that lie in a range.
std::vector<UpdateSegment> segments_in(const FlatRange& range, std::span<const UpdateSegment> segments) {
  std::vector<UpdateSegment> inside;
  for (UpdateSegment segment : segments) {
    const std::int64_t end = std::min(range.end, segment.begin + segment.count);
    segment.begin = std::max(range.begin, segment.begin);
    segment.count = end - segment.begin;
    if (segment.count > 0) inside.push_back(segment);
  }
  return inside;
}

class Sgd final : public Optimizer {
 public:
  using Options = SgdOptions;
  static std::vector<std::string> state_names() { return {"momentum_buffer"}; }

  Sgd(const TrainedMemory& memory, const SgdOptions& options, const LossScaleOptions& loss_scale)
      : Optimizer(memory,
                  decay_segments(memory.parameters, options.weight_decay, options.decay_norm_and_bias, false),
                  state_names(), loss_scale),
        options_(options) {
    CHECK(!options.nesterov || options.momentum > 0, "Nesterov momentum requires momentum > 0, not {}",
          options.momentum);
  }

 private:
  void update(Stream& stream, const Update& update, std::size_t piece) override {
    backend().update(stream, update,
                     SgdUpdate{.momentum_buffer = state(0, piece),
                               .momentum = static_cast<float>(options_.momentum),
                               .nesterov = options_.nesterov});
  }

  SgdOptions options_;
};

class AdamW final : public Optimizer {
 public:
  using Options = AdamWOptions;
  static std::vector<std::string> state_names() { return {"exp_avg", "exp_avg_sq"}; }

  AdamW(const TrainedMemory& memory, const AdamWOptions& options, const LossScaleOptions& loss_scale)
      : Optimizer(memory,
                  decay_segments(memory.parameters, options.weight_decay, options.decay_norm_and_bias, true),
                  state_names(), loss_scale),
        options_(options) {
    CHECK(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
          "beta1 is {} and beta2 is {}, both must be at least 0 and below 1", options.beta1, options.beta2);
    CHECK(static_cast<float>(options.epsilon) > 0, "epsilon is {}, must be above 0 as a float",
          options.epsilon);
  }

 private:
  void update(Stream& stream, const Update& update, std::size_t piece) override {
    backend().update(stream, update,
                     AdamWUpdate{.first_moment = state(0, piece),
                                 .second_moment = state(1, piece),
                                 .beta1 = options_.beta1,
                                 .beta2 = options_.beta2,
                                 .epsilon = options_.epsilon});
  }

  AdamWOptions options_;
};

class Lars final : public Optimizer {
 public:
  using Options = LarsOptions;
  static std::vector<std::string> state_names() { return {"momentum_buffer"}; }

  Lars(const TrainedMemory& memory, const LarsOptions& options, const LossScaleOptions& loss_scale)
      : Optimizer(memory, lars_segments(memory.parameters, options.weight_decay), state_names(), loss_scale),
        options_(options) {
    CHECK(!shares_elements(), "LARS needs whole layers on every rank, so ranks cannot share the update");
    for (std::size_t piece = 0; piece < pieces(); ++piece) {
      norms_.emplace_back(table(piece).chunks().size() * sizeof(SquaredNorms), memory.device);
      trust_ratios_.emplace_back(table(piece).segments().size() * sizeof(float), memory.device);
    }
  }

 private:
  void update(Stream& stream, const Update& update, std::size_t piece) override {
    backend().update(stream, update,
                     LarsUpdate{.momentum_buffer = state(0, piece),
                                .norms = {reinterpret_cast<SquaredNorms*>(norms_[piece].data()),
                                          table(piece).chunks().size()},
                                .trust_ratios = {reinterpret_cast<float*>(trust_ratios_[piece].data()),
                                                 table(piece).segments().size()},
                                .momentum = static_cast<float>(options_.momentum),
                                .trust_coefficient = static_cast<float>(options_.trust_coefficient),
                                .epsilon = static_cast<float>(options_.epsilon)});
  }

  LarsOptions options_;
  std::vector<Buffer> norms_;  // by piece
  std::vector<Buffer> trust_ratios_;
};

// options: selects the rule's options from the settings.
template <typename Rule>
OptimizerKind kind(const char* name, typename Rule::Options (*options)(const OptimizerSettings&),
                   const GentleRate& gentle_rate, bool by_element, std::span<const NumberOption> own = {}) {
  return {.name = name,
          .state_names = Rule::state_names(),
          .make =
              [options](const TrainedMemory& memory, const OptimizerSettings& settings,
                        const LossScaleOptions& loss_scale) {
                return std::make_unique<Rule>(memory, options(settings), loss_scale);
              },
          .gentle_rate = gentle_rate,
          .options = own,
          .by_element = by_element};
}

}  // namespace

TrainedMemory trained_memory(Network& network, std::span<const FlatRange> gradients,
                             std::function<void(float* flat)> complete) {
  return {.device = network.device(),
          .parameters = network.parameters(),
          .values = network.values(),
          .copies = network.weight_copies(),
          .gradients = gradients,
          .complete = std::move(complete)};
}

Optimizer::Optimizer(const TrainedMemory& memory, std::span<const UpdateSegment> segments,
                     std::vector<std::string> state_names, const LossScaleOptions& loss_scale)
    : backend_(backend_for(memory.device)),
      memory_(memory),
      loss_scale_(loss_scale),
      state_names_(std::move(state_names)),
      control_(sizeof(StepControl), memory.device),
      learning_rates_(StepSlot::kCount * sizeof(double), memory.device, MemoryKind::pinned_host) {
  CHECK(static_cast<float>(loss_scale.initial) > 0,
        "the initial loss scale is {}, must be above 0 as a float", loss_scale.initial);
  const bool shares = shares_elements();
  std::int64_t end = 0;
  for (const FlatRange& range : memory_.gradients) {
    CHECK(shares || range.begin == end, "a range of gradients begins at element {}, expected {}", range.begin,
          end);
    CHECK(range.type == DType::f32 || range.end <= memory.copies.end,
          "half gradients end at element {}, their copies at {}", range.end, memory.copies.end);
    end = range.end;
    tables_.emplace_back(memory.device, segments_in(range, segments));
    state_offsets_.push_back(static_cast<std::int64_t>(state_elements_));
    state_elements_ += static_cast<std::size_t>(range.count());
  }
  state_ = Buffer(state_names_.size() * state_elements_ * sizeof(float), memory.device);
  const auto values = static_cast<std::int64_t>(memory.values.size());
  CHECK(shares || end == values, "the number of values is {}, the number of gradients {}", values, end);
  for (const Parameter& parameter : memory.parameters) {
    const std::int64_t last = parameter.offset + parameter.layout.physical_elements();
    CHECK(last <= values, "{} ends at element {}, the number of values is {}", parameter.name, last, values);
  }
  Stream stream(memory.device, StreamUse::compute);
  restore_control(stream, {.loss_scale = static_cast<float>(loss_scale.initial)});
}

void Optimizer::check_gradients(Stream& stream) {
  Write write = loss_scale_.dynamic() || each_step_ ? Write::overwrite : Write::accumulate;
  for (std::size_t piece = 0; piece < pieces(); ++piece)
    check_range(stream, piece, std::exchange(write, Write::accumulate));
}

void Optimizer::sum_gradient_squares(Stream& stream, double* sums) {
  Write write = Write::overwrite;
  for (const FlatRange& range : memory_.gradients) {
    backend_.sum_squares(stream, {.type = range.type,
                                  .count = range.count(),
                                  .values = range.data,
                                  .sums = sums,
                                  .write = std::exchange(write, Write::accumulate)});
  }
}

void Optimizer::clip_gradients(Stream& stream, const double* sums, double most_norm) {
  backend_.clip_gradients(stream, {.sums = sums, .most_norm = most_norm, .control = control()});
}

void Optimizer::check_range(Stream& stream, std::size_t piece, Write write) {
  const FlatRange& range = memory_.gradients[piece];
  backend_.all_finite(stream, {.type = range.type,
                               .count = range.count(),
                               .values = range.data,
                               .finite = &control()->finite,
                               .write = write});
}

void Optimizer::set_learning_rate(StepSlot slot, double learning_rate) {
  reinterpret_cast<double*>(learning_rates_.data())[slot.index] = learning_rate;
}

void Optimizer::step(Stream& stream, StepSlot slot, const std::function<void(std::size_t range)>& updated) {
  begin_step(stream, slot);
  for (std::size_t piece = 0; piece < pieces(); ++piece) {
    update_range(stream, piece, memory_.gradients[piece], control(), false);
    if (updated) updated(piece);
  }
  finish_step(stream);
}

void Optimizer::begin_step(Stream& stream, StepSlot slot) { copy_learning_rate(stream, slot, control()); }

void Optimizer::step_range(Stream& stream, std::size_t range) {
  CHECK(!loss_scale_.dynamic(), "a dynamic loss scale may skip the step, so it cannot be split into ranges");
  CHECK(range < pieces(), "range {} does not exist; the optimizer has {}", range, pieces());
  check_range(stream, range, Write::accumulate);
  update_range(stream, range, memory_.gradients[range], control(), false);
}

void Optimizer::finish_step(Stream& stream) { backend_.finish_step(stream, loss_scale_.rule, control()); }

void Optimizer::look_ahead(Stream& stream, StepSlot slot, std::span<const FlatRange> gradients,
                           StepControl* control) {
  CHECK(gradients.size() == pieces(), "{} ranges of gradients, expected {}", gradients.size(), pieces());
  copy_learning_rate(stream, slot, control);
  stream.copy(&control->step, &this->control()->step, sizeof(control->step));
  stream.copy(&control->clip, &this->control()->clip, sizeof(control->clip));
  for (std::size_t piece = 0; piece < pieces(); ++piece)
    update_range(stream, piece, gradients[piece], control, true);
}

void Optimizer::copy_learning_rate(Stream& stream, StepSlot slot, StepControl* to) {
  stream.copy(&to->learning_rate, reinterpret_cast<double*>(learning_rates_.data()) + slot.index,
              sizeof(double));
}

void Optimizer::update_range(Stream& stream, std::size_t piece, const FlatRange& gradients,
                             const StepControl* control, bool state_stays) {
  const bool copied = gradients.type != DType::f32;
  update(stream,
         {.table = tables_[piece],
          .value = memory_.values.data(),
          .gradient = gradients.at(0),
          .gradient_type = gradients.type,
          .copy = copied ? memory_.copies.data : nullptr,
          .copy_type = copied ? memory_.copies.type : DType::f16,
          .control = control,
          .state_stays = state_stays},
         piece);
}

std::span<float> Optimizer::state() const {
  return {reinterpret_cast<float*>(state_.data()), state_.bytes() / sizeof(float)};
}

void Optimizer::visit_tensors(StateVisitor& visitor, Stream& stream) {
  const bool shares = shares_elements();
  const std::size_t elements = memory_.values.size();
  const Buffer whole(shares ? elements * sizeof(float) : 0, Device{});
  auto* const flat = reinterpret_cast<float*>(whole.data());
  const auto for_each_piece = [&](std::size_t which, auto move) {
    for (std::size_t piece = 0; piece < pieces(); ++piece) {
      const FlatRange& range = memory_.gradients[piece];
      move(flat + range.begin, state_of(which) + state_offsets_[piece],
           static_cast<std::size_t>(range.count()) * sizeof(float));
    }
    stream.synchronize();
  };
  for (std::size_t which = 0; which < state_names_.size(); ++which) {
    if (shares) {
      for_each_piece(which, [&](float* in_flat, const float* in_state, std::size_t bytes) {
        stream.copy(in_flat, in_state, bytes);
      });
      if (!visitor.writes()) memory_.complete(flat);  // else only the elements of this rank are used
    }
    visit_flat(visitor, memory_.parameters, {shares ? flat : state_of(which), elements},
               std::string(".") + state_names_[which], state_scope_);
    if (!shares || !visitor.writes()) continue;
    for_each_piece(which, [&](const float* in_flat, float* in_state, std::size_t bytes) {
      stream.copy(in_state, in_flat, bytes);
    });
  }
}

// After restoring, control()->finite is 1, whatever stopped the saved training.
void Optimizer::visit_state(StateVisitor& visitor) {
  Stream stream(memory_.device, StreamUse::compute);
  visit_tensors(visitor, stream);
  const StepControl control = read_control(stream);
  std::int64_t steps = control.step - 1, good_steps = control.good_steps;
  double loss_scale = control.loss_scale;
  visitor.value(kSteps, state_scope_, &steps);
  visitor.value("optimizer.loss_scale", state_scope_, &loss_scale);
  visitor.value("optimizer.good_steps", state_scope_, &good_steps);
  if (!visitor.writes()) return;
  restore_control(stream, {.step = steps + 1,
                           .loss_scale = within_limits(loss_scale),
                           .good_steps = static_cast<std::int32_t>(good_steps)});
}

// NaN: the first scale. Checkpoints of earlier versions may hold a dynamic scale of infinity or 0.
float Optimizer::within_limits(double loss_scale) const {
  const LossScaleRule& rule = loss_scale_.rule;
  if (std::isnan(loss_scale)) return static_cast<float>(loss_scale_.initial);
  if (!loss_scale_.dynamic()) return static_cast<float>(loss_scale);
  const double most = std::max(static_cast<double>(rule.most), loss_scale_.initial);
  return static_cast<float>(std::clamp(loss_scale, static_cast<double>(rule.least), most));
}

StepControl Optimizer::read_control(Stream& stream) const {
  StepControl control;
  stream.copy(&control, control_.data(), sizeof(control));
  stream.synchronize();
  return control;
}

void Optimizer::restore_control(Stream& stream, const StepControl& control) {
  stream.copy(control_.data(), &control, sizeof(control));
  stream.synchronize();
}

double GentleRate::of(double samples) const {
  const double share = std::min(samples / 256, 1.0);
  return for_256_samples * (growth == Growth::linear ? share : std::sqrt(share));
}

SgdOptions sgd_options(const OptimizerSettings& settings) {
  return {.momentum = settings.momentum,
          .weight_decay = settings.weight_decay,
          .nesterov = settings.nesterov,
          .decay_norm_and_bias = settings.decay_norm_and_bias};
}

AdamWOptions adamw_options(const OptimizerSettings& settings) {
  return {.beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .epsilon = settings.epsilon,
          .weight_decay = settings.weight_decay,
          .decay_norm_and_bias = settings.decay_norm_and_bias};
}

LarsOptions lars_options(const OptimizerSettings& settings) {
  return {.momentum = settings.momentum,
          .weight_decay = settings.weight_decay,
          .trust_coefficient = settings.trust_coefficient,
          .epsilon = settings.epsilon};
}

const std::vector<OptimizerKind>& optimizer_kinds() {
  static const std::vector<OptimizerKind> table = {
      kind<Sgd>("sgd", sgd_options, {.for_256_samples = 0.1, .growth = GentleRate::Growth::linear}, true),
      kind<AdamW>("adamw", adamw_options, {.for_256_samples = 1e-3}, true),
      kind<Lars>("lars", lars_options, {.for_256_samples = 1}, false),
  };
  return table;
}

const OptimizerKind& optimizer_kind(const std::string& name, const std::vector<OptimizerKind>& table) {
  return entry_named(name, table, "optimizer");
}

std::unique_ptr<Optimizer> make_optimizer(const TrainedMemory& memory, const OptimizerOptions& options,
                                          const LossScaleOptions& loss_scale) {
  if (const auto* sgd = std::get_if<SgdOptions>(&options))
    return std::make_unique<Sgd>(memory, *sgd, loss_scale);
  if (const auto* adamw = std::get_if<AdamWOptions>(&options))
    return std::make_unique<AdamW>(memory, *adamw, loss_scale);
  return std::make_unique<Lars>(memory, std::get<LarsOptions>(options), loss_scale);
}

}  // namespace lockstep
