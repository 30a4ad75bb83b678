// SPDX-License-Identifier: Apache-2.0
//
// Residual: the part of this rank's values that a codec did not send, to be added to the next step's. In fp32
// and without loss scale. It takes twice the memory of the values (KeptMemory).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "comm/codecs/codec.h"
#include "comm/codecs/kept_memory.h"

namespace lockstep {

class Residual {
 public:
  // Zeros for all values of the shares. suffix: of state names, as in "conv1.weight.residual"; a part of a
  // parameter is "conv1.weight.residual[256:512]", in elements of its memory. Everything referenced outlives
  // this.
  Residual(std::string_view suffix, std::span<const CodecShare> shares, std::span<const Parameter> parameters,
           Device device);

  // A bucket's residual, from the first value of its share on: of the last step, and the memory for this
  // step's.
  const float* now(std::size_t bucket) const { return memory_.now() + begin_[bucket]; }
  float* next(std::size_t bucket) const { return memory_.next() + begin_[bucket]; }

  // See GradientExchange::settle(). Every step must write next() of all buckets first.
  void settle(Stream& compute, const std::int32_t* finite) { memory_.settle(compute, finite); }
  void add_state(std::vector<ExchangeState>& state) const;
  std::size_t memory_bytes() const { return memory_.memory_bytes(); }

 private:
  std::string_view suffix_;
  std::span<const CodecShare> shares_;
  std::span<const Parameter> parameters_;
  std::vector<std::int64_t> begin_;  // by bucket, and the end of the last one
  KeptMemory memory_;
};

}  // namespace lockstep
