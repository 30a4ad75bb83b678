// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/codec_exchange.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

// The choice with this option at 0; unchanged if `option` is empty.
ExchangeChoice without(ExchangeChoice choice, std::string_view option) {
  if (option.empty()) return choice;
  std::erase_if(choice.settings, [&](const ExchangeSetting& setting) { return setting.option == option; });
  choice.settings.push_back({.option = option, .value = 0});
  return choice;
}

ConfigError nothing_to_compress(const ExchangeChoice& choice, const CodecRule* rule) {
  const std::string which =
      rule == nullptr
          ? fmt::format("comm.codec = \"{}\": no parameter of the model", choice.kind->name)
          : fmt::format("comm.codec_for, {}={}: no matching parameter", rule->pattern, choice.kind->name);
  const std::string dense = rule == nullptr ? "comm.codec = \"none\"" : rule->pattern + "=none";
  return ConfigError(
      fmt::format("{} can be compressed, because none has 2 dimensions or more, at least {} elements, and "
                  "fewer bytes with the codec; set {}",
                  which, kLeastCompressed, dense));
}

std::size_t bytes_of(std::int64_t elements, DType type) {
  return static_cast<std::size_t>(elements) * size_of(type);
}

}  // namespace

std::int64_t warmup_steps(const ExchangeChoice& choice) {
  const CodecKind* kind = choice.kind->codec;
  return kind == nullptr || kind->warmup_option.empty() ? 0 : choice.whole_option(kind->warmup_option);
}

ExchangeChoice without_warmup(const ExchangeChoice& choice) {
  return choice.kind->codec == nullptr ? choice : without(choice, choice.kind->codec->warmup_option);
}

bool adds_momentum(const ExchangeChoice& choice, const GradientMomentum& momentum) {
  const CodecKind* kind = choice.kind->codec;
  if (kind == nullptr || kind->adds_momentum || kind->momentum_option.empty())
    return kind != nullptr && kind->adds_momentum;
  return momentum.momentum > 0 && choice.whole_option(kind->momentum_option) != 0;
}

ExchangeChoice without_momentum(const ExchangeChoice& choice) {
  return choice.kind->codec == nullptr ? choice : without(choice, choice.kind->codec->momentum_option);
}

bool takes_large_tensors(const ExchangeChoice&, const Parameter& parameter) {
  const Shape& shape = parameter.layout.shape();
  return shape.rank() > 1 && shape.elements() >= kLeastCompressed;
}

std::unique_ptr<GradientExchange> make_codec_exchange(const ExchangeContext& context) {
  return std::make_unique<CodecExchange>(context);
}

CodecExchange::CodecExchange(const ExchangeContext& context)
    : parameters_(context.parameters),
      plan_(context.plan),
      arena_(context.arena),
      communicator_(context.communicator),
      own_groups_(std::make_unique<NodeGroups>(communicator_, context.codecs.compress_within_node)),
      groups_(*own_groups_),
      behind_(communicator_.stream().device()) {
  CodecAssignment assignment{.choices = {context.choice},
                             .of_parameter = choose_codecs(parameters_, context.codecs)};
  for (const CodecRule& rule : context.codecs.rules) assignment.choices.push_back(rule.choice);
  make_lanes(assignment, context);
  if (!groups_.several_nodes()) {
    log::info(
        "gradients are summed densely: comm.codec compresses sums between nodes, and there is one node{}",
        communicator_.size() > 1 ? " (comm.compress_within_node = true also compresses within it)" : "");
    return;
  }
  make_codecs(context);
}

CodecExchange::CodecExchange(const ExchangeContext& context, const CodecAssignment& assignment,
                             NodeGroups& groups)
    : parameters_(context.parameters),
      plan_(context.plan),
      arena_(context.arena),
      communicator_(context.communicator),
      groups_(groups),
      behind_(communicator_.stream().device()) {
  make_lanes(assignment, context);
  make_codecs(context);
}

void CodecExchange::make_codecs(const ExchangeContext& context) {
  for (Lane& lane : lanes_) {
    make_codec(lane, context);
    if (lockstep::adds_momentum(lane.choice, context.momentum)) {
      log::info(
          "{} adds the optimizer's momentum ({}) before it compresses; the optimizer adds momentum only to "
          "weight decay and to gradients that are not compressed",
          lane.choice.kind->name, context.momentum.momentum);
    }
  }
  allocate_zeros();
}

// Checks what is compressed even if there is one node, so that the same configuration is refused there.
void CodecExchange::make_lanes(const CodecAssignment& assignment, const ExchangeContext& context) {
  const std::span<const CodecRule> rules = context.codecs.rules;
  const std::size_t first_rule = assignment.choices.size() - rules.size();
  const std::vector<std::size_t>& choice_of = assignment.of_parameter;
  std::vector<bool> dense(parameters_.size(), true);
  adds_momentum_.assign(parameters_.size(), false);
  for (std::size_t number = 0; number < assignment.choices.size(); ++number) {
    const ExchangeChoice& choice = assignment.choices[number];
    const CodecKind* codec = choice.kind->codec;
    if (codec == nullptr) continue;
    std::vector<bool> chosen(parameters_.size(), false);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      chosen[i] = choice_of[i] == number && codec->takes(choice, parameters_[i]);
      if (!chosen[i]) continue;
      dense[i] = false;
      adds_momentum_[i] = lockstep::adds_momentum(choice, context.momentum);
    }
    if (std::ranges::find(chosen, true) == chosen.end()) {
      const bool wanted = std::ranges::find(choice_of, number) != choice_of.end();
      if (wanted && number >= first_rule) throw nothing_to_compress(choice, &rules[number - first_rule]);
      if (wanted && first_rule == 1) throw nothing_to_compress(choice, nullptr);
      continue;
    }
    Lane& lane = lanes_.emplace_back();
    lane.choice = choice;
    lane.stretches = stretches_of(chosen);
  }
  if (!groups_.several_nodes()) {
    lanes_.clear();
    adds_momentum_.assign(parameters_.size(), false);
    dense.assign(dense.size(), true);
  }
  dense_ = stretches_of(dense);
  allocate_dense(context);
}

std::vector<PackedStretch> CodecExchange::stretches_of(const std::vector<bool>& chosen) const {
  std::vector<PackedStretch> stretches;
  for (const Bucket& bucket : plan_.buckets()) stretches.push_back(pack_stretch(bucket, parameters_, chosen));
  return stretches;
}

void CodecExchange::allocate_dense(const ExchangeContext& context) {
  std::size_t most = 0;
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    const DType own = plan_.buckets()[i].type;
    dense_types_.push_back(dense_type(context.sum_type, own, communicator_));
    if (dense_[i].runs.size() > 1 || dense_types_[i] != own)
      most = std::max(most, bytes_of(dense_[i].packed, dense_types_[i]));
  }
  dense_memory_ = communicator_.allocate(most);
}

Buffer CodecExchange::allocate(std::int64_t elements, DType type) {
  const std::size_t bytes = bytes_of(elements, type);
  if (groups_.node() != nullptr) return groups_.node()->allocate(bytes);
  if (groups_.all_alone()) return groups_.across()->allocate(bytes);
  return Buffer(bytes, communicator_.stream().device());
}

// On a node of several ranks sums need separate memory.
bool CodecExchange::lies_ready(const Bucket& bucket, const PackedStretch& stretch, DType type) const {
  return groups_.all_alone() && stretch.runs.size() == 1 && stretch.room == stretch.packed &&
         bucket.type == type;
}

DType CodecExchange::packed_type(const Lane& lane) const {
  const CodecKind& kind = *lane.choice.kind->codec;
  if (!groups_.all_alone()) return DType::f32;
  for (std::size_t bucket = 0; bucket < lane.stretches.size(); ++bucket) {
    const bool takes = !lane.stretches[bucket].runs.empty();
    if (kind.scales && takes && plan_.buckets()[bucket].type != kind.alone) return DType::f32;
  }
  return kind.alone;
}

void CodecExchange::make_codec(Lane& lane, const ExchangeContext& context) {
  const CodecKind& kind = *lane.choice.kind->codec;
  const DType type = packed_type(lane);
  const ShareRule rule{.drivers = groups_.drivers(),
                       .unit = kCodecBlock * groups_.placement().nodes,
                       .whole_parameters = kind.whole_parameters};
  std::int64_t most = 0;
  for (std::size_t bucket = 0; bucket < lane.stretches.size(); ++bucket) {
    PackedStretch& stretch = lane.stretches[bucket];
    deal_shares(stretch, parameters_, rule);
    lane.in_place.push_back(lies_ready(plan_.buckets()[bucket], stretch, type));
    if (!lane.in_place.back()) most = std::max(most, stretch.room);
  }
  lane.memory = allocate(most, type);
  lane.packing = {.type = type, .memory = lane.memory.data()};
  if (!groups_.drives()) return;
  for (std::size_t bucket = 0; bucket < lane.stretches.size(); ++bucket) {
    const PackedStretch& stretch = lane.stretches[bucket];
    const ElementRange share = stretch.shares[static_cast<std::size_t>(groups_.placement().local_rank)];
    lane.shares.push_back({.values = lane.in_place[bucket] ? arena_.at(stretch.runs[0].range.begin)
                                                           : lane.packing.at(share.begin),
                           .count = share.count(),
                           .pieces = pieces_of(stretch, parameters_, share)});
  }
  lane.codec = kind.make({.choice = lane.choice,
                          .parameters = parameters_,
                          .shares = lane.shares,
                          .type = type,
                          .across = *groups_.across(),
                          .momentum = context.momentum,
                          .delayed = context.delayed});
}

void CodecExchange::allocate_zeros() {
  std::size_t most = 0;
  for (const Lane& lane : lanes_) {
    for (const PackedStretch& stretch : lane.stretches)
      most = std::max(most, bytes_of(stretch.room - stretch.packed, lane.packing.type));
  }
  zeros_ = Buffer(most, communicator_.stream().device());
}

void CodecExchange::enqueue(std::size_t bucket) {
  for (Communicator* communicator : groups_.own()) communicator->set_purpose(communicator_.purpose());
  enqueue_dense(bucket);
  for (Lane& lane : lanes_) {
    if (lane.stretches[bucket].packed > 0) enqueue_lane(bucket, lane);
  }
}

// A single stretch is summed in place if its type is that of the sum.
void CodecExchange::enqueue_dense(std::size_t index) {
  const Bucket& bucket = plan_.buckets()[index];
  const PackedStretch& stretch = dense_[index];
  if (stretch.packed == 0) return;
  const auto count = static_cast<std::size_t>(stretch.packed);
  const Packing packing{.type = dense_types_[index], .memory = dense_memory_.data()};
  if (stretch.runs.size() == 1 && packing.type == bucket.type) {
    return communicator_.all_reduce(arena_.at(stretch.runs[0].range.begin), count, bucket.type,
                                    ReduceOp::sum);
  }
  pack(bucket, stretch, packing);
  communicator_.all_reduce(packing.memory, count, packing.type, ReduceOp::sum);
  unpack(bucket, stretch, packing);
}

void CodecExchange::enqueue_lane(std::size_t index, Lane& lane) {
  const Bucket& bucket = plan_.buckets()[index];
  const PackedStretch& stretch = lane.stretches[index];
  Stream* at = &communicator_.stream();
  const auto move_to = [&](Communicator& communicator) {
    if (&communicator.stream() == at) return;
    go_on(*at, communicator.stream());
    at = &communicator.stream();
  };
  if (!lane.in_place[index]) pack(bucket, stretch, lane.packing);
  if (groups_.node() != nullptr) {
    move_to(*groups_.node());
    sum_in_node(stretch, lane.packing);
  }
  if (lane.codec != nullptr && lane.shares[index].count > 0) {
    move_to(*groups_.across());
    lane.codec->exchange(index, unit_);
  }
  if (groups_.node() != nullptr) {
    move_to(*groups_.node());
    hand_out(stretch, lane.packing);
  }
  move_to(communicator_);
  if (!lane.in_place[index]) unpack(bucket, stretch, lane.packing);
}

// Each rank of the node sums its own share, if every rank drives an equal one.
void CodecExchange::sum_in_node(const PackedStretch& stretch, const Packing& packing) {
  Communicator& node = *groups_.node();
  if (stretch.equal == 0 || node.size() != groups_.drivers()) {
    return node.all_reduce(packing.memory, static_cast<std::size_t>(stretch.room), packing.type,
                           ReduceOp::sum);
  }
  node.reduce_scatter(packing.memory, packing.at(node.rank() * stretch.equal),
                      static_cast<std::size_t>(stretch.equal), packing.type, ReduceOp::sum);
}

void CodecExchange::hand_out(const PackedStretch& stretch, const Packing& packing) {
  Communicator& node = *groups_.node();
  if (stretch.equal > 0 && node.size() == groups_.drivers()) {
    return node.all_gather(packing.at(node.rank() * stretch.equal), packing.memory,
                           static_cast<std::size_t>(stretch.equal), packing.type);
  }
  for (int driver = 0; driver < groups_.drivers(); ++driver) {
    const ElementRange share = stretch.shares[static_cast<std::size_t>(driver)];
    if (share.count() == 0) continue;
    node.broadcast(packing.at(share.begin), static_cast<std::size_t>(share.count()), packing.type, driver);
  }
}

void CodecExchange::pack(const Bucket& bucket, const PackedStretch& stretch, const Packing& packing) {
  Stream& stream = communicator_.stream();
  Backend& backend = backend_for(stream.device());
  for (const PackedRun& run : stretch.runs) {
    backend.cast(stream, {.count = run.range.count(),
                          .from_type = bucket.type,
                          .to_type = packing.type,
                          .from = arena_.at(run.range.begin),
                          .to = packing.at(run.place)});
  }
  const std::size_t behind = bytes_of(stretch.room - stretch.packed, packing.type);
  if (behind > 0) stream.copy(packing.at(stretch.packed), zeros_.data(), behind);
}

void CodecExchange::unpack(const Bucket& bucket, const PackedStretch& stretch, const Packing& packing) {
  Stream& stream = communicator_.stream();
  Backend& backend = backend_for(stream.device());
  for (const PackedRun& run : stretch.runs) {
    backend.cast(stream, {.count = run.range.count(),
                          .from_type = packing.type,
                          .to_type = bucket.type,
                          .from = packing.at(run.place),
                          .to = arena_.at(run.range.begin)});
  }
}

void CodecExchange::go_on(Stream& from, Stream& to) {
  from.record(behind_);
  to.wait(behind_);
}

bool CodecExchange::uses_learning_rate() const {
  return std::ranges::any_of(lanes_,
                             [](const Lane& lane) { return lane.choice.kind->codec->uses_learning_rate; });
}

void CodecExchange::settle(Stream& compute, const std::int32_t* finite) {
  for (Lane& lane : lanes_) {
    if (lane.codec != nullptr) lane.codec->settle(compute, finite);
  }
}

std::int64_t CodecExchange::warmup_steps() const {
  std::int64_t most = 0;
  for (const Lane& lane : lanes_) most = std::max(most, lockstep::warmup_steps(lane.choice));
  return most;
}

std::vector<ExchangeState> CodecExchange::state() {
  std::vector<ExchangeState> all;
  for (Lane& lane : lanes_) {
    if (lane.codec == nullptr) continue;
    for (ExchangeState& each : lane.codec->state()) all.push_back(std::move(each));
  }
  return all;
}

std::size_t CodecExchange::memory_bytes() const {
  std::size_t bytes = dense_memory_.bytes() + zeros_.bytes();
  for (const Lane& lane : lanes_)
    bytes += lane.memory.bytes() + (lane.codec == nullptr ? 0 : lane.codec->memory_bytes());
  if (own_groups_ == nullptr) return bytes;
  for (const Communicator* communicator : groups_.own()) bytes += communicator->memory_bytes();
  return bytes;
}

}  // namespace lockstep
