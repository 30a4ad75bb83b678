// SPDX-License-Identifier: Apache-2.0
//
// AutoExchange: comm.codec = "auto". Each bucket uses one of several codecs or the dense sum. All start with
// the dense sum; a caller measures steps and chooses (launch/train/trials/codec_trial.h). Only chosen codecs
// have memory. Parameters that comm.codec_for names keep their codecs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/codecs/bucket_travel.h"
#include "comm/codecs/codec_plan.h"
#include "comm/gradients/gradient_exchange.h"
#include "comm/node_groups.h"

namespace lockstep {

// The values of comm.codec_limit, from lossless to most lossy. dgc is not among them: with its momentum it is
// another optimizer.
std::span<const ExchangeKind* const> codecs_by_loss();
// Their names.
std::vector<std::string> codec_limits();
// The codecs that may be chosen within a limit, in that order, without the dense sum. Of the 16-bit floats
// bf16, as fp16 may overflow where fp32 does not; fp16 only if it is the limit. Throws ConfigError for an
// unknown limit.
std::vector<const ExchangeKind*> codecs_within(std::string_view limit);

class AutoExchange final : public GradientExchange {
 public:
  // Collective.
  explicit AutoExchange(const ExchangeContext& context);

  int nodes() const { return groups_.placement().nodes; }
  // Choice 0 is the dense sum; the others are the candidates.
  std::span<const ExchangeChoice> choices() const { return choices_; }
  // The number of each bucket's choice.
  std::span<const int> chosen() const { return chosen_; }
  // Only if to_choose() is not null. Collective, between two steps whose work is done on every stream; the
  // choice is the same on every rank. Codec state with the same name and size is kept. Other state starts
  // new, and what the previous codec had not sent is lost. Recorded steps must not be replayed again.
  void choose(std::span<const int> by_bucket);

  // The traffic of each bucket under these choices; seconds_per_element: by choice number.
  std::vector<BucketTravel> travel(std::span<const int> by_bucket,
                                   std::span<const double> seconds_per_element) const;

  void begin(const GradientUnit& unit) override { current_->begin(unit); }
  bool uses_learning_rate() const override { return current_->uses_learning_rate(); }
  void enqueue(std::size_t bucket) override { current_->enqueue(bucket); }
  bool same_on_every_rank() const override { return true; }
  bool adds_momentum(std::size_t parameter) const override { return current_->adds_momentum(parameter); }
  std::int64_t warmup_steps() const override { return current_->warmup_steps(); }
  void settle(Stream& compute, const std::int32_t* finite) override { current_->settle(compute, finite); }
  std::vector<ExchangeState> state() override { return current_->state(); }
  std::vector<Communicator*> communicators() override { return groups_.own(); }
  std::size_t memory_bytes() const override;
  AutoExchange* to_choose() override { return open_ ? this : nullptr; }

 private:
  CodecAssignment assignment(std::span<const int> by_bucket) const;
  // Collective.
  std::unique_ptr<GradientExchange> make(std::span<const int> by_bucket);
  bool finds_something() const;

  ExchangeContext context_;
  NodeGroups groups_;
  std::vector<ExchangeChoice> choices_;
  std::vector<std::size_t> rule_of_;  // by parameter: 1 + its rule; 0: the bucket's choice
  std::vector<int> chosen_;
  // True if there is a choice: several nodes, and a candidate that takes a parameter. The same on every rank.
  bool open_ = false;
  std::unique_ptr<GradientExchange> current_;
};

}  // namespace lockstep
