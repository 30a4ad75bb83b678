// SPDX-License-Identifier: Apache-2.0
//
// Optimizer updates. Compiled with -fno-math-errno: a square root that may set errno is not vectorised.
#include <algorithm>

#include <omp.h>

#include "kernels/cpu/kernels.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

// body(chunk, its index). Each thread takes the chunks of one stretch of memory, the same in every step:
// small chunks don't unbalance the threads, and what fits into a core's cache stays there.
template <typename Body>
void for_each_chunk(const UpdateTable& table, Body body) {
  const std::span<const UpdateChunk> chunks = table.chunks();
  if (chunks.empty()) return;
  const std::int64_t begin = chunks.front().begin;
  const std::int64_t extent = chunks.back().begin + chunks.back().count - begin;
#pragma omp parallel if (table.elements() >= kParallelElements)
  {
    const std::int64_t threads = omp_get_num_threads();
    const auto first_of = [&](std::int64_t thread) {
      const std::int64_t element = begin + extent * thread / threads;
      return std::ranges::lower_bound(chunks, element, {}, &UpdateChunk::begin) - chunks.begin();
    };
    const std::int64_t end = first_of(omp_get_thread_num() + 1);
    for (std::int64_t i = first_of(omp_get_thread_num()); i < end; ++i)
      body(chunks[static_cast<std::size_t>(i)], i);
  }
}

// step_of(segment) gives the function object for all elements of a chunk.
template <typename StepOf, typename... State>
void update_elements(const UpdateTable& table, StepOf step_of, float* value, const float* gradient,
                     State*... state) {
  for_each_chunk(table, [=](const UpdateChunk& chunk, std::int64_t) {
    const auto step = step_of(chunk.segment);
    const std::int64_t end = chunk.begin + chunk.count;
#pragma omp simd
    for (std::int64_t i = chunk.begin; i < end; ++i) step(value[i], gradient[i], state[i]...);
  });
}

SquaredNorms squared_norms(const UpdateChunk& chunk, const float* value, const float* gradient) {
  double values = 0;
  double gradients = 0;
  const std::int64_t end = chunk.begin + chunk.count;
#pragma omp simd reduction(+ : values, gradients)
  for (std::int64_t i = chunk.begin; i < end; ++i) {
    values += static_cast<double>(value[i]) * static_cast<double>(value[i]);
    gradients += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
  }
  return {.value = values, .gradient = gradients};
}

void measure_trust(const LarsUpdate& arguments) {
  const std::span<const UpdateSegment> segments = arguments.table.segments();
  for_each_chunk(arguments.table, [&, segments](const UpdateChunk& chunk, std::int64_t i) {
    if (!segments[static_cast<std::size_t>(chunk.segment)].adaptive) return;
    arguments.norms[static_cast<std::size_t>(i)] = squared_norms(chunk, arguments.value, arguments.gradient);
  });
  for (std::size_t i = 0; i < segments.size(); ++i) {
    arguments.trust_ratios[i] = 1;
    if (!segments[i].adaptive) continue;
    const std::int64_t chunks = (segments[i].count + kUpdateChunk - 1) / kUpdateChunk;
    SquaredNorms sum;
    for (std::int64_t chunk = segments[i].first_chunk; chunk < segments[i].first_chunk + chunks; ++chunk) {
      sum.value += arguments.norms[static_cast<std::size_t>(chunk)].value;
      sum.gradient += arguments.norms[static_cast<std::size_t>(chunk)].gradient;
    }
    const TrustRatio ratio{arguments.trust_coefficient, segments[i].weight_decay, arguments.epsilon};
    arguments.trust_ratios[i] = ratio(sum);
  }
}

}  // namespace

void cpu_sgd_update(const SgdUpdate& arguments) {
  const UpdateSegment* segments = arguments.table.segments().data();
  const SgdStep plain{.learning_rate = arguments.learning_rate,
                      .momentum = arguments.momentum,
                      .nesterov = arguments.nesterov};
  const auto step_of = [=](std::int32_t segment) {
    SgdStep step = plain;
    step.weight_decay = segments[segment].weight_decay;
    return step;
  };
  update_elements(arguments.table, step_of, arguments.value, arguments.gradient, arguments.momentum_buffer);
}

void cpu_adamw_update(const AdamWUpdate& arguments) {
  const UpdateSegment* segments = arguments.table.segments().data();
  const auto step_of = [segments, plain = AdamWStep::from(arguments)](std::int32_t segment) {
    AdamWStep step = plain;
    step.weight_decay = segments[segment].weight_decay;
    return step;
  };
  update_elements(arguments.table, step_of, arguments.value, arguments.gradient, arguments.first_moment,
                  arguments.second_moment);
}

void cpu_lars_update(const LarsUpdate& arguments) {
  measure_trust(arguments);
  const UpdateSegment* segments = arguments.table.segments().data();
  const float* trust_ratios = arguments.trust_ratios.data();
  const LarsStep plain{.learning_rate = arguments.learning_rate, .momentum = arguments.momentum};
  const auto step_of = [=](std::int32_t segment) {
    LarsStep step = plain;
    step.weight_decay = segments[segment].weight_decay;
    step.trust_ratio = trust_ratios[segment];
    return step;
  };
  update_elements(arguments.table, step_of, arguments.value, arguments.gradient, arguments.momentum_buffer);
}

}  // namespace lockstep
