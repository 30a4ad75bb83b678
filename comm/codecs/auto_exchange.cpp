// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/auto_exchange.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "comm/codecs/codec_exchange.h"
#include "comm/exchanges/exchanges.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/named_entries.h"

namespace lockstep {
namespace {

// Copies by name and size, because the two exchanges may divide a parameter among ranks differently.
void copy_state(GradientExchange& from, GradientExchange& to, Stream& stream) {
  std::map<std::string, Tensor> known;
  for (const ExchangeState& state : from.state()) known[state.name] = state.memory;
  for (const ExchangeState& state : to.state()) {
    const auto found = known.find(state.name);
    if (found == known.end() || found->second.shape.elements() != state.memory.shape.elements()) continue;
    stream.copy(state.memory.data, found->second.data,
                static_cast<std::size_t>(state.memory.shape.elements()) * sizeof(float));
  }
  stream.synchronize();
}

}  // namespace

std::span<const ExchangeKind* const> codecs_by_loss() {
  static constexpr const ExchangeKind* kByLoss[] = {&kDenseSum,      &kFp16Codec, &kBf16Codec, &kInt8Codec,
                                                    &kPowerSgdCodec, &kSignCodec, &kTopKCodec};
  return kByLoss;
}

std::vector<std::string> codec_limits() { return names_in(codecs_by_loss()); }

std::vector<const ExchangeKind*> codecs_within(std::string_view limit) {
  const auto all = codecs_by_loss();
  const auto last = std::ranges::find(all, limit, &ExchangeKind::name);
  if (last == all.end()) {
    throw ConfigError(
        fmt::format("comm.codec_limit = \"{}\": allowed are {}", limit, fmt::join(codec_limits(), ", ")));
  }
  std::vector<const ExchangeKind*> within(std::next(all.begin()), std::next(last));
  if (limit == kDenseSum.name) within.clear();
  if (limit != kFp16Codec.name) std::erase(within, &kFp16Codec);
  return within;
}

AutoExchange::AutoExchange(const ExchangeContext& context)
    : context_(context),
      groups_(context.communicator, context.codecs.compress_within_node),
      choices_{{.kind = &kDenseSum}},
      rule_of_(choose_codecs(context.parameters, context.codecs)),
      chosen_(context.plan.buckets().size(), 0) {
  for (const ExchangeChoice& candidate : context.codecs.candidates) choices_.push_back(candidate);
  if (!groups_.several_nodes()) {
    log::info("comm.codec = \"auto\": gradients are summed densely because there is one node{}",
              context.communicator.size() > 1
                  ? " (comm.compress_within_node = true treats each rank as a node)"
                  : "");
  } else if (!finds_something()) {
    log::info("comm.codec = \"auto\": gradients are summed densely because {}",
              choices_.size() > 1 ? "no codec within comm.codec_limit makes any gradient smaller"
                                  : "comm.codec_limit excludes every codec");
  } else {
    open_ = true;
  }
  current_ = make(chosen_);
}

bool AutoExchange::finds_something() const {
  for (std::size_t i = 0; i < rule_of_.size(); ++i) {
    if (rule_of_[i] != 0) continue;
    for (const ExchangeChoice& choice : choices_) {
      if (has_estimate(choice) && choice.kind->codec->takes(choice, context_.parameters[i])) return true;
    }
  }
  return false;
}

CodecAssignment AutoExchange::assignment(std::span<const int> by_bucket) const {
  CodecAssignment made{.choices = choices_, .of_parameter = {}};
  for (const CodecRule& rule : context_.codecs.rules) made.choices.push_back(rule.choice);
  for (std::size_t i = 0; i < rule_of_.size(); ++i) {
    const std::size_t bucket = context_.plan.bucket_of(i);
    made.of_parameter.push_back(rule_of_[i] == 0 ? static_cast<std::size_t>(by_bucket[bucket])
                                                 : choices_.size() + rule_of_[i] - 1);
  }
  return made;
}

// With one node rules are checked as without "auto".
std::unique_ptr<GradientExchange> AutoExchange::make(std::span<const int> by_bucket) {
  const bool dense = std::ranges::count(by_bucket, 0) == std::ssize(by_bucket);
  if (dense && context_.codecs.rules.empty()) return kDenseSum.make(context_);
  return std::make_unique<CodecExchange>(context_, assignment(by_bucket), groups_);
}

void AutoExchange::choose(std::span<const int> by_bucket) {
  CHECK(open_, "choose() was called without a choice: to_choose() is null");
  CHECK(by_bucket.size() == chosen_.size(), "choices for {} buckets, expected {}", by_bucket.size(),
        chosen_.size());
  for (const int number : by_bucket)
    CHECK(number >= 0 && number < std::ssize(choices_), "codec {} of {}", number, choices_.size());
  if (std::ranges::equal(by_bucket, chosen_)) return;
  Stream& stream = context_.communicator.stream();
  stream.synchronize();
  std::unique_ptr<GradientExchange> next = make(by_bucket);
  copy_state(*current_, *next, stream);
  current_ = std::move(next);
  chosen_.assign(by_bucket.begin(), by_bucket.end());
}

std::vector<BucketTravel> AutoExchange::travel(std::span<const int> by_bucket,
                                               std::span<const double> seconds_per_element) const {
  std::vector<double> seconds(seconds_per_element.begin(), seconds_per_element.end());
  seconds.resize(choices_.size() + context_.codecs.rules.size());  // the rules' are in every choice
  const DType weight_type =
      dense_type(context_.sum_type, context_.plan.gradient_type(), context_.communicator);
  return travel_of(context_.plan.buckets(), context_.parameters, weight_type, assignment(by_bucket), nodes(),
                   seconds);
}

std::size_t AutoExchange::memory_bytes() const {
  std::size_t bytes = current_->memory_bytes();
  for (const Communicator* communicator : groups_.own()) bytes += communicator->memory_bytes();
  return bytes;
}

// `codec` is null: the codec is not known at the start.
constinit const ExchangeKind kAutoCodec = {
    .name = "auto",
    .meaning = "for each bucket the fastest of none and the codecs within comm.codec_limit, as measured",
    .options = {},
    .make = [](const ExchangeContext& context) -> std::unique_ptr<GradientExchange> {
      return std::make_unique<AutoExchange>(context);
    }};

}  // namespace lockstep
