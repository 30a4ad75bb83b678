// SPDX-License-Identifier: Apache-2.0
//
// AutoExchange: comm.codec = "auto". Every bucket travels by one of several codecs, or as the dense sum, and
// somebody who measures steps says by which (launch/codec_trial.h): at first all are summed densely. Only
// what was chosen has memory. Parameters that comm.codec_for names keep their codecs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/codecs/bucket_travel.h"
#include "comm/codecs/codec_plan.h"
#include "comm/gradient_exchange.h"
#include "comm/node_groups.h"

namespace lockstep {

// What comm.codec_limit may be, from what loses nothing to what loses most. Those that put momentum into
// gradients are not among them: they are another optimizer.
std::span<const ExchangeKind* const> codecs_by_loss();
// The names of those.
std::vector<std::string> codec_limits();
// What may be chosen within a limit, in that order, the dense sum left out. Of the 16-bit floats bf16, as
// fp16 may overflow where fp32 does not; fp16 where it is the limit. Throws ConfigError for a limit that is
// none.
std::vector<const ExchangeKind*> codecs_within(std::string_view limit);

class AutoExchange final : public GradientExchange {
 public:
  // Collective.
  explicit AutoExchange(const ExchangeContext& context);
  ~AutoExchange() override;

  // Whether there is anything to choose: several nodes, a candidate, and a parameter that one takes. The same
  // on every rank.
  bool open() const { return open_; }
  int nodes() const { return groups_.placement().nodes; }
  // By number: 0 is the dense sum, and the others are the candidates.
  std::span<const ExchangeChoice> choices() const { return choices_; }
  // By bucket, a number each.
  std::span<const int> chosen() const { return chosen_; }
  // Collective, between two steps whose work is done on every stream, and the same on every rank. What codecs
  // remember of parameters that go on as before is kept; of others it begins anew, and what the codec before
  // had not sent yet is forgotten. What was recorded of steps must not be replayed again.
  void choose(std::span<const int> by_bucket);

  // What would travel of each bucket; seconds_per_element: by number.
  std::vector<BucketTravel> travel(std::span<const int> by_bucket,
                                   std::span<const double> seconds_per_element) const;

  void begin(const GradientUnit& unit) override { current_->begin(unit); }
  bool uses_learning_rate() const override { return current_->uses_learning_rate(); }
  void enqueue(std::size_t bucket) override;
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
  std::vector<std::size_t> rule_of_;  // by parameter; 0: none, the bucket's choice
  std::vector<int> chosen_;
  bool open_ = false;
  std::unique_ptr<GradientExchange> current_;
};

}  // namespace lockstep
