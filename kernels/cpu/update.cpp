// SPDX-License-Identifier: Apache-2.0
//
// Optimizer updates. Compiled with -fno-math-errno: a square root that may set errno cannot be vectorised.
#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/spans.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

// Parts of the memory per thread. With few parts, a core finds its cached data again in the next step.
constexpr std::int64_t kPartsPerThread = 8;

// Calls body(chunk, index) for all chunks. Parts have equal numbers of elements, so that small chunks do not
// unbalance the threads.
template <typename Body>
void for_each_chunk(const UpdateTable& table, Body body) {
  const std::span<const UpdateChunk> chunks = table.chunks();
  if (chunks.empty()) return;
  const std::int64_t begin = chunks.front().begin;
  const std::int64_t extent = chunks.back().begin + chunks.back().count - begin;
  const int threads = threads_for(table.elements());
  const std::int64_t parts = threads * kPartsPerThread;
  const auto first_of = [=](std::int64_t part) {
    const std::int64_t element = begin + extent * part / parts;
    return std::ranges::lower_bound(chunks, element, {}, &UpdateChunk::begin) - chunks.begin();
  };
  deal(parts, threads, [&](std::int64_t part) {
    const std::int64_t end = first_of(part + 1);
    for (std::int64_t i = first_of(part); i < end; ++i) body(chunks[static_cast<std::size_t>(i)], i);
  });
}

// Gradients converted to fp32 at a time: few enough to stay in the cache.
constexpr std::int64_t kWidened = 1024;

// Calls body(first element, count, gradients in fp32) for consecutive parts of a chunk.
template <typename Body>
void with_wide_gradients(const Update& update, const UpdateChunk& chunk, Body body) {
  if (update.gradient_type == DType::f32) {
    return body(chunk.begin, chunk.count, static_cast<const float*>(update.gradient) + chunk.begin);
  }
  std::array<float, kWidened> wide;
  const std::int64_t end = chunk.begin + chunk.count;
  for (std::int64_t begin = chunk.begin; begin < end; begin += kWidened) {
    const std::int64_t count = std::min(kWidened, end - begin);
    cast_span({.count = count,
               .from_type = update.gradient_type,
               .to_type = DType::f32,
               .from = element_at(update.gradient, update.gradient_type, begin),
               .to = wide.data()});
    body(begin, count, wide.data());
  }
}

void write_copy(const Update& update, std::int64_t begin, std::int64_t count) {
  if (update.copy == nullptr) return;
  cast_span({.count = count,
             .from_type = DType::f32,
             .to_type = update.copy_type,
             .from = update.value + begin,
             .to = element_at(update.copy, update.copy_type, begin)});
}

// Applies the step to copies of the state, which stays unchanged.
template <typename Step>
struct StateStays {
  Step step;

  template <typename... State>
  void operator()(float& value, float gradient, State... state) const {
    step(value, gradient, state...);
  }
};

// step_of(segment) returns the function object for all elements of a chunk.
template <typename StepOf, typename... State>
void run_steps(const Update& update, StepOf step_of, State*... state) {
  for_each_chunk(update.table, [=, &update, factor = gradient_factor(*update.control)](
                                   const UpdateChunk& chunk, std::int64_t) {
    const auto step = step_of(chunk.segment);
    with_wide_gradients(update, chunk, [&](std::int64_t begin, std::int64_t count, const float* gradient) {
      float* value = update.value;
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i)
        step(value[begin + i], factor * gradient[i], state[begin + i]...);
      write_copy(update, begin, count);
    });
  });
}

template <typename StepOf, typename... State>
void run(const Update& update, StepOf step_of, State*... state) {
  if (!update.state_stays) return run_steps(update, step_of, state...);
  run_steps(
      update, [=](std::int32_t segment) { return StateStays<decltype(step_of(segment))>{step_of(segment)}; },
      state...);
}

bool skips(const Update& update) {
  CHECK(update.control != nullptr, "Update::control is not set");
  return update.control->finite == 0;
}

// Adds to norms.
void add_squares(std::int64_t count, const float* value, const float* gradient, float factor,
                 SquaredNorms& norms) {
  double values = 0;
  double gradients = 0;
#pragma omp simd reduction(+ : values, gradients)
  for (std::int64_t i = 0; i < count; ++i) {
    const auto multiplied = static_cast<double>(factor * gradient[i]);
    values += static_cast<double>(value[i]) * static_cast<double>(value[i]);
    gradients += multiplied * multiplied;
  }
  norms.value += values;
  norms.gradient += gradients;
}

void measure_norms(const Update& update, const LarsUpdate& lars) {
  const std::span<const UpdateSegment> segments = update.table.segments();
  const float factor = gradient_factor(*update.control);
  for_each_chunk(update.table, [&, segments, factor](const UpdateChunk& chunk, std::int64_t i) {
    if (!segments[static_cast<std::size_t>(chunk.segment)].adaptive) return;
    SquaredNorms norms;
    with_wide_gradients(update, chunk, [&](std::int64_t begin, std::int64_t count, const float* gradient) {
      add_squares(count, update.value + begin, gradient, factor, norms);
    });
    lars.norms[static_cast<std::size_t>(i)] = norms;
  });
}

void measure_trust(const Update& update, const LarsUpdate& lars) {
  measure_norms(update, lars);
  const std::span<const UpdateSegment> segments = update.table.segments();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    lars.trust_ratios[i] = 1;
    if (!segments[i].adaptive) continue;
    const std::int64_t chunks = (segments[i].count + kUpdateChunk - 1) / kUpdateChunk;
    SquaredNorms sum;
    for (std::int64_t chunk = segments[i].first_chunk; chunk < segments[i].first_chunk + chunks; ++chunk) {
      sum.value += lars.norms[static_cast<std::size_t>(chunk)].value;
      sum.gradient += lars.norms[static_cast<std::size_t>(chunk)].gradient;
    }
    const TrustRatio ratio{lars.trust_coefficient, segments[i].weight_decay, lars.epsilon};
    lars.trust_ratios[i] = ratio(sum);
  }
}

void run_rule(const Update& update, const SgdUpdate& sgd) {
  const UpdateSegment* segments = update.table.segments().data();
  const SgdStep plain{.learning_rate = static_cast<float>(update.control->learning_rate),
                      .momentum = sgd.momentum,
                      .nesterov = sgd.nesterov};
  const auto step_of = [=](std::int32_t segment) {
    SgdStep step = plain;
    step.weight_decay = segments[segment].weight_decay;
    step.gradient_has_momentum = segments[segment].gradient_has_momentum;
    return step;
  };
  run(update, step_of, sgd.momentum_buffer);
}

void run_rule(const Update& update, const AdamWUpdate& adamw) {
  const UpdateSegment* segments = update.table.segments().data();
  const AdamWStep plain = AdamWStep::from(AdamWRates{.learning_rate = update.control->learning_rate,
                                                     .beta1 = adamw.beta1,
                                                     .beta2 = adamw.beta2,
                                                     .epsilon = adamw.epsilon,
                                                     .step = update.control->step});
  const auto step_of = [segments, plain](std::int32_t segment) {
    AdamWStep step = plain;
    step.weight_decay = segments[segment].weight_decay;
    step.penalty = segments[segment].penalty;
    return step;
  };
  run(update, step_of, adamw.first_moment, adamw.second_moment);
}

void run_rule(const Update& update, const LarsUpdate& lars) {
  measure_trust(update, lars);
  const UpdateSegment* segments = update.table.segments().data();
  const float* trust_ratios = lars.trust_ratios.data();
  const LarsStep plain{.learning_rate = static_cast<float>(update.control->learning_rate),
                       .momentum = lars.momentum};
  const auto step_of = [=](std::int32_t segment) {
    LarsStep step = plain;
    step.weight_decay = segments[segment].weight_decay;
    step.trust_ratio = trust_ratios[segment];
    return step;
  };
  run(update, step_of, lars.momentum_buffer);
}

void run_average(const AverageUpdate& a) {
  if (a.control->finite == 0) return;
  const AverageStep step = AverageStep::from(*a.control, a.decay);
  in_spans(a.count, [&](std::int64_t begin, std::int64_t count) {
    const float* value = a.value + begin;
    float* average = a.average + begin;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) step(value[i], average[i]);
  });
}

}  // namespace

void CpuBackend::average_values(Stream& stream, const AverageUpdate& arguments) {
  in_order(stream, [arguments] { run_average(arguments); });
}

void CpuBackend::swap_values(Stream& stream, const ValueSwap& arguments) {
  in_order(stream, [a = arguments] {
    in_spans(a.count, [&a](std::int64_t begin, std::int64_t count) {
      std::swap_ranges(a.values + begin, a.values + begin + count, a.others + begin);
    });
  });
}

void CpuBackend::update(Stream& stream, const Update& update, const UpdateRule& rule) {
  in_order(stream, [update, rule] {
    if (skips(update)) return;
    std::visit([&](const auto& wanted) { run_rule(update, wanted); }, rule);
  });
}

void CpuBackend::clip_gradients(Stream& stream, const GradientClip& arguments) {
  in_order(stream, [a = arguments] {
    const double squares = std::accumulate(a.sums, a.sums + kSquareSums, 0.0);
    a.control->clip = clip_of(squares, a.most_norm, a.control->loss_scale);
  });
}

void CpuBackend::restore_if_skipped(Stream& stream, const Restore& arguments) {
  in_order(stream, [a = arguments] {
    if (a.control->finite == 0) std::copy_n(a.from, a.count, a.to);
  });
}

void CpuBackend::finish_step(Stream& stream, const LossScaleRule& rule, StepControl* control) {
  in_order(stream, [rule, control] { lockstep::finish_step(rule, *control); });
}

}  // namespace lockstep
