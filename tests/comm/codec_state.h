// SPDX-License-Identifier: Apache-2.0
//
// Helpers for tests of codecs with state: the state by name, on this rank and summed over all ranks.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "comm/gradients/buckets.h"
#include "tests/comm/codec_ranks.h"

namespace lockstep {

using CodecState = std::map<std::string, std::vector<float>>;

inline CodecState state_of(GradientBuckets& buckets) {
  CodecState all;
  for (const ExchangeState& state : buckets.exchange().state()) {
    const std::span<const float> values = state.memory.as<float>();
    CHECK(all.emplace(state.name, std::vector(values.begin(), values.end())).second, "{} twice", state.name);
  }
  return all;
}

inline void restore_state(GradientBuckets& buckets, const CodecState& saved) {
  for (const ExchangeState& state : buckets.exchange().state()) {
    const std::vector<float>& values = saved.at(state.name);
    CHECK(values.size() == state.memory.as<float>().size());
    std::memcpy(state.memory.data, values.data(), values.size() * sizeof(float));
  }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same_bits(const CodecState& a, const CodecState& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, values] : a) {
    if (!b.contains(name) || !same_bits(values, b.at(name))) return false;
  }
  return true;
}

// The sum over all ranks of the residuals (gradients not yet sent) of a parameter. Collective.
inline std::vector<float> unsent(Communicator& communicator, GradientBuckets& buckets,
                                 const Parameter& parameter) {
  std::vector<float> sum(static_cast<std::size_t>(parameter.layout.shape().elements()));
  for (const auto& [which, values] : state_of(buckets)) {
    for (const std::string& name : {parameter.name + ".residual", parameter.name + ".update_residual"}) {
      if (!which.starts_with(name)) continue;
      std::size_t begin = 0;  // "p3.residual[256:512]" covers a part of the parameter
      if (which.size() > name.size()) begin = std::stoul(which.substr(name.size() + 1));
      std::memcpy(sum.data() + begin, values.data(), values.size() * sizeof(float));
    }
  }
  communicator.all_reduce(sum.data(), sum.size(), DType::f32, ReduceOp::sum);
  communicator.stream().synchronize();
  return sum;
}

// A training step as the exchange sees it: a pass, then the check that all gradients are finite.
inline void run_step(GradientBuckets& buckets, std::span<const Parameter> parameters, int rank,
                     const MakeGradient& gradient, const GradientUnit& unit = {}) {
  run_pass(buckets, parameters, rank, gradient, unit);
  Stream stream(Device{}, StreamUse::compute);
  std::int32_t finite = 1;
  for (const float value : gradients_of(parameters)) {
    if (!std::isfinite(value)) finite = 0;
  }
  buckets.agree_finite(stream, &finite);
}

inline bool is_compressed(const ExchangeChoice& choice, const Parameter& parameter) {
  return choice.kind->codec->takes(choice, parameter);
}

}  // namespace lockstep
