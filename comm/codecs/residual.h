// SPDX-License-Identifier: Apache-2.0
//
// Residual: what a codec did not send of this rank's values, to be added to the next step's. In fp32 and
// unscaled. Twice as much memory as there are values: what a step leaves takes the place of what it found
// only when the step is known not to be skipped.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "comm/codecs/codec.h"
#include "core/buffer.h"

namespace lockstep {

class Residual {
 public:
  Residual() = default;
  // Zeros for all values of the shares. suffix: of names, as in "conv1.weight.residual"; a parameter of which
  // only a part is here is "conv1.weight.residual[256:512]", in elements of its memory. What is pointed to
  // outlives this.
  Residual(std::string_view suffix, std::span<const CodecShare> shares, std::span<const Parameter> parameters,
           Device device);

  // Of a bucket, from the first value of its share on: what the last step left, and where this one's goes.
  const float* now(std::size_t bucket) const { return now_ + begin_[bucket]; }
  float* next(std::size_t bucket) const { return next_ + begin_[bucket]; }

  // See GradientExchange::settle(). Every step writes next() of all buckets before.
  void settle(Stream& compute, const std::int32_t* finite);
  void add_state(std::vector<ExchangeState>& state) const;
  std::size_t memory_bytes() const { return memory_.bytes(); }

 private:
  std::string_view suffix_;
  std::span<const CodecShare> shares_;
  std::span<const Parameter> parameters_;
  std::vector<std::int64_t> begin_;  // by bucket
  std::int64_t count_ = 0;
  Buffer memory_;
  float* now_ = nullptr;
  float* next_ = nullptr;
};

}  // namespace lockstep
