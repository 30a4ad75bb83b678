// SPDX-License-Identifier: Apache-2.0
//
// Helpers for codec tests: parameters as matrices and vectors, and a backward pass with given gradients.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "comm/codecs/codec.h"
#include "comm/gradients/buckets.h"
#include "core/tensor/buffer.h"
#include "tests/comm/thread_ranks.h"
#include "tests/thinning.h"

namespace lockstep {

// Parameters with gradients of one type in flat order, aligned as a network aligns them.
inline std::vector<Parameter> shaped_parameters(std::span<const Shape> shapes, DType type = DType::f32) {
  std::vector<Parameter> parameters;
  std::int64_t offset = 0;
  const auto line = static_cast<std::int64_t>(kAlignment / size_of(type));
  for (const Shape& shape : shapes) {
    parameters.push_back({.name = fmt::format("p{}", parameters.size()),
                          .layout = Layout(shape, DType::f32),
                          .gradient_type = type,
                          .offset = offset});
    offset += (shape.elements() + line - 1) / line * line;
  }
  return parameters;
}

// Matrices with biases. Some are too small to compress.
inline std::vector<Parameter> some_parameters(DType type = DType::f32) {
  static const Shape shapes[] = {{10, 300}, {10},   {40, 40},  {40}, {40},   {16, 8, 3, 3},
                                 {16},      {4, 4}, {100, 33}, {33}, {5000}, {7, 211}};
  return shaped_parameters(shapes, type);
}

// A value in [-1, 1] that differs for each rank, step and element.
inline float made_up_gradient(int rank, int step, std::int64_t element) {
  std::uint64_t x = static_cast<std::uint64_t>(element) * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(rank * 7919 + step * 104729 + 1) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 29;
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-52 - 1.0);
}

using MakeGradient = std::function<float(int rank, std::int64_t element)>;

inline MakeGradient made_up_gradients(int step) {
  return [step](int rank, std::int64_t element) { return made_up_gradient(rank, step, element); };
}

// Stores the value in the gradient's type.
inline void set_gradient(const Parameter& parameter, std::int64_t i, float value) {
  if (parameter.gradient_type == DType::f32) static_cast<float*>(parameter.gradient)[i] = value;
  if (parameter.gradient_type == DType::f16) static_cast<Half*>(parameter.gradient)[i] = Half(value);
  if (parameter.gradient_type == DType::bf16) static_cast<BFloat16*>(parameter.gradient)[i] = BFloat16(value);
}

// Writes gradient(element). Padding keeps its values.
template <typename Gradient>
void write_gradients(std::span<const Parameter> parameters, Gradient gradient) {
  for (const Parameter& parameter : parameters) {
    for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i)
      set_gradient(parameter, i, gradient(parameter.offset + i));
  }
}

inline void run_pass(GradientBuckets& buckets, std::span<const Parameter> parameters, int rank,
                     const MakeGradient& gradient, const GradientUnit& unit = {}) {
  Stream stream(Device{}, StreamUse::compute);
  write_gradients(parameters, [&](std::int64_t element) { return gradient(rank, element); });
  buckets.begin(stream, {}, unit);
  for (std::size_t i = 0; i < parameters.size(); ++i) buckets.gradient_ready(i);
  buckets.wait(stream);
}

inline float gradient_at(const Parameter& parameter, std::int64_t i) {
  if (parameter.gradient_type == DType::f16)
    return static_cast<float>(static_cast<Half*>(parameter.gradient)[i]);
  if (parameter.gradient_type == DType::bf16)
    return static_cast<float>(static_cast<BFloat16*>(parameter.gradient)[i]);
  return static_cast<float*>(parameter.gradient)[i];
}

// All gradients without padding, one parameter after the other.
inline std::vector<float> gradients_of(std::span<const Parameter> parameters) {
  std::vector<float> all;
  for (const Parameter& parameter : parameters) {
    const std::int64_t elements = parameter.layout.shape().elements();
    if (parameter.gradient_type == DType::f32) {
      const auto* gradient = static_cast<const float*>(parameter.gradient);
      all.insert(all.end(), gradient, gradient + elements);
      continue;
    }
    for (std::int64_t i = 0; i < elements; ++i) all.push_back(gradient_at(parameter, i));
  }
  return all;
}

// The gradients of this rank. Fails if any rank has different bits. Collective.
inline std::vector<float> agreed_gradients(Communicator& communicator,
                                           std::span<const Parameter> parameters) {
  const std::vector<float> mine = gradients_of(parameters);
  std::vector<float> all(mine.size() * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(mine.data(), all.data(), mine.size(), DType::f32);
  communicator.stream().synchronize();
  for (std::size_t begin = 0; begin < all.size(); begin += mine.size()) {
    if (std::memcmp(&all[begin], mine.data(), mine.size() * sizeof(float)) == 0) continue;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      CHECK(std::memcmp(&all[begin + i], &mine[i], sizeof(float)) == 0,
            "element {} of rank {} is {}, of rank {} it is {}", i, begin / mine.size(), all[begin + i],
            communicator.rank(), mine[i]);
    }
  }
  return mine;
}

// The choice without a warm-up, unless the settings include the warm-up option.
inline ExchangeChoice steady(const ExchangeKind& kind, std::vector<ExchangeSetting> settings = {}) {
  const bool warms_up =
      kind.codec != nullptr && std::ranges::any_of(settings, [&](const ExchangeSetting& each) {
        return each.option == kind.codec->warmup_option;
      });
  const ExchangeChoice choice{.kind = &kind, .settings = std::move(settings)};
  return warms_up ? choice : without_warmup(choice);
}

inline BucketOptions codec_buckets(const ExchangeKind& kind, std::vector<ExchangeSetting> settings = {}) {
  BucketOptions options{.first_bytes = 8192, .middle_bytes = 24 << 10, .last_bytes = 4096};
  options.exchange = steady(kind, std::move(settings));
  return options;
}

// Assignments of ranks to nodes: the node of each rank.
inline const std::vector<std::vector<int>>& node_dealings() {
  static const std::vector<std::vector<int>> dealings = {
      {0}, {0, 1}, {0, 0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1}, {0, 1, 2, 3, 4}};
  static const std::vector<std::vector<int>> few = {{0, 1}, {0, 0, 1, 1}};
  return kOneOf == 1 ? dealings : few;
}

}  // namespace lockstep
