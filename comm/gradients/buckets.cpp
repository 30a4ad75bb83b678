// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/buckets.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "comm/agreement.h"
#include "comm/codecs/auto_exchange.h"
#include "comm/codecs/codec.h"
#include "core/error.h"
#include "core/log.h"
#include "core/profiler_range.h"
#include "core/random.h"
#include "core/text/enum_words.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

ExchangeChoice choice_of(std::string_view name, const GradientSettings& settings,
                         const std::vector<const ExchangeKind*>& table) {
  ExchangeChoice choice{.kind = &exchange_kind(name, table)};
  for (const NumberOption& option : choice.kind->options)
    choice.settings.push_back({option.name, settings.own.of(choice.kind->name, option)});
  return choice;
}

// Parses "PATTERN=CODEC, PATTERN=CODEC".
std::vector<CodecRule> read_rules(const GradientSettings& settings,
                                  const std::vector<const ExchangeKind*>& table) {
  std::vector<CodecRule> rules;
  std::vector<std::string_view> parts = split_text(settings.codec_for, ',');
  if (parts.back().empty()) parts.pop_back();  // a comma may end the list
  for (const std::string_view part : parts) {
    const std::string_view rule = trimmed(part);
    const std::size_t equals = rule.find('=');
    if (equals == 0 || equals == std::string_view::npos) {
      throw ConfigError(fmt::format(
          "comm.codec_for = \"{}\": \"{}\" is not PATTERN=CODEC, as in \"fc.*=none, layer4.*=int8\"",
          settings.codec_for, rule));
    }
    const std::string_view name = trimmed(rule.substr(equals + 1));
    ExchangeChoice choice = choice_of(name, settings, table);
    if (choice.kind != &kDenseSum && choice.kind->codec == nullptr) {
      throw ConfigError(
          fmt::format("comm.codec_for: \"{}\" cannot be used for some parameters only; name a codec, or set "
                      "it as comm.codec",
                      name));
    }
    rules.push_back({.pattern = std::string(trimmed(rule.substr(0, equals))), .choice = choice});
  }
  return rules;
}

void check_exchange(const BucketOptions& options) {
  const ExchangeKind& kind = *options.exchange.kind;
  const bool has_rules = !options.codecs.rules.empty();
  options.exchange.check();
  for (const CodecRule& rule : options.codecs.rules) rule.choice.check();
  if (&kind == &kShardedExchange && (options.along_tree || options.delayed || options.one_by_one)) {
    throw ConfigError(
        "comm.exchange = \"sharded\" requires train.reproducible = false, train.staleness = 0 and "
        "comm.cross_barrier = false");
  }
  if (options.along_tree && (&kind != &kDenseSum || has_rules)) {
    throw ConfigError(
        fmt::format("train.reproducible = true requires comm.codec = \"none\" (it is \"{}\"{}): the result "
                    "of any other depends on how micro-batches are divided among ranks",
                    kind.name, has_rules ? ", with comm.codec_for" : ""));
  }
  if (options.along_tree && options.delayed) {
    throw ConfigError(
        "train.staleness = 1 requires train.reproducible = false: reproducible sums need the memory in which "
        "the previous step's gradients are sent");
  }
  if (options.one_by_one && (options.along_tree || options.delayed || !options.overlap)) {
    throw ConfigError(
        "comm.cross_barrier = true requires train.reproducible = false, train.staleness = 0 and comm.overlap "
        "= true");
  }
  const bool takes_rules = &kind == &kDenseSum || &kind == &kAutoCodec || kind.codec != nullptr;
  if (has_rules && !takes_rules) {
    throw ConfigError(fmt::format(
        "comm.codec_for requires a codec, \"auto\" or \"none\" as comm.codec, not \"{}\"", kind.name));
  }
}

}  // namespace

BucketOptions bucket_options(const GradientSettings& settings,
                             const std::vector<const ExchangeKind*>& table) {
  const auto bytes = [](double mib) { return static_cast<std::size_t>(std::llround(mib * 1024 * 1024)); };
  BucketOptions options{.first_bytes = bytes(settings.bucket_mib[0]),
                        .middle_bytes = bytes(settings.bucket_mib[1]),
                        .last_bytes = bytes(settings.bucket_mib[2]),
                        .overlap = settings.overlap,
                        .exchange = settings.exchange == ExchangeForm::sharded
                                        ? ExchangeChoice{.kind = &kShardedExchange}
                                        : choice_of(settings.codec, settings, table),
                        .codecs = {.compress_within_node = settings.compress_within_node},
                        .sum_type = settings.sum_type,
                        .delayed = settings.staleness > 0,
                        .one_by_one = settings.cross_barrier};
  for (const ExchangeKind* kind : codecs_within(settings.codec_limit)) {
    // The caller's table need not contain every codec.
    if (std::ranges::find(table, kind) != table.end())
      options.codecs.candidates.push_back(choice_of(kind->name, settings, table));
  }
  if (settings.codec_for != kDenseSum.name) options.codecs.rules = read_rules(settings, table);
  return options;
}

Span bucket_span(std::size_t bucket, std::int64_t begin_ns, std::int64_t end_ns) {
  return {.name = "bucket",
          .track = Track::communication,
          .index = static_cast<std::int32_t>(bucket),
          .numbered = true,
          .begin_ns = begin_ns,
          .end_ns = end_ns};
}

GradientBuckets::GradientBuckets(std::span<Parameter> parameters, Communicator& communicator,
                                 const BucketOptions& options, Timeline* timeline)
    : parameters_(parameters),
      communicator_(communicator),
      options_(options),
      timeline_(communicator.stream().runs_on_host() ? timeline : nullptr),
      plan_(parameters, options.capacities(), communicator.size()),
      ready_(parameters.size()),
      progress_(plan_.buckets().size()),
      order_(plan_.buckets().size()),
      produced_(communicator.stream().device()),
      reduced_(communicator.stream().device()) {
  check_exchange(options);
  compare_plans();
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  arena_ = std::make_unique<GradientArena>(parameters, plan_, communicator);
  if (options.delayed) {
    const std::span<Parameter> none;
    delayed_ = std::make_unique<GradientArena>(none, plan_, communicator);
  }
  make_exchange();
  const DType type = plan_.gradient_type();
  if (!options.along_tree && sums_in_f32(options.sum_type, type, options.micro_batches))
    running_.emplace(plan_, *arena_, communicator.stream().device());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters_[i].gradient_has_momentum = exchange_->adds_momentum(i);
  for (const Bucket& bucket : plan_.buckets()) {
    bucket_gradients_.push_back({.type = bucket.type,
                                 .begin = bucket.begin,
                                 .end = bucket.end,
                                 .data = exchanged().at(bucket.begin)});
    if (options.one_by_one) arrived_.emplace_back(communicator.stream().device());
  }
  if (sharded()) list_shares();
  if (options.one_by_one && !exchange_->same_on_every_rank()) {
    throw_agreed(ConfigError(fmt::format(
        "comm.cross_barrier = true requires the same gradients on every rank, but \"{}\" gives "
        "each rank a different part of a bucket; set another comm.codec, or comm.cross_barrier = false",
        options.exchange.kind->name)));
  }
}

void GradientBuckets::make_exchange() {
  if (options_.along_tree) {
    auto sums = std::make_unique<MicroBatchSums>(plan_, *arena_, communicator_, options_.micro_batches);
    sums_ = sums.get();
    exchange_ = std::move(sums);
    return;
  }
  const ExchangeKind& kind = *options_.exchange.kind;
  const bool own_way = options_.codecs.rules.empty() || &kind == &kAutoCodec;
  const auto make = own_way ? kind.make : make_codec_exchange;
  exchange_ = make({.choice = options_.exchange,
                    .parameters = parameters_,
                    .plan = plan_,
                    .arena = exchanged(),
                    .communicator = communicator_,
                    .codecs = options_.codecs,
                    .momentum = options_.momentum,
                    .sum_type = options_.sum_type,
                    .delayed = options_.delayed});
}

void GradientBuckets::list_shares() {
  const auto add = [&](const Bucket& bucket, const ElementRange& range) {
    if (range.count() == 0) return false;
    shares_.push_back(
        {.type = bucket.type, .begin = range.begin, .end = range.end, .data = exchanged().at(range.begin)});
    return true;
  };
  const std::span<const Bucket> buckets = plan_.buckets();
  for (std::size_t i = 0; i < buckets.size(); ++i)
    if (add(buckets[i], buckets[i].share_of(communicator_.rank()))) share_of_bucket_.push_back(i);
  for (const Bucket& bucket : buckets) add(bucket, plan_.rest_of(bucket));
}

std::span<const FlatRange> GradientBuckets::applied_gradients() const {
  if (sharded()) return shares_;
  return one_by_one() ? bucket_gradients() : gradients();
}

DType GradientBuckets::sent_type() const {
  const DType gradients = plan_.gradient_type();
  return options_.along_tree ? DType::f32 : dense_type(options_.sum_type, gradients, communicator_);
}

GradientBuckets::~GradientBuckets() {
  if (compute_ != nullptr && next_ > 0) {
    communicator_.abandon(
        fmt::format("{} destroyed its gradients while they were being summed", current_place()));
  }
  try {
    communicator_.stream().synchronize();  // a sum may still be using the arena
  } catch (const GaveUp&) {                // reported to the caller that waited
  } catch (const std::exception& error) {
    log::warning("an exchange of gradients failed: {}", error.what());
  }
}

void GradientBuckets::behind_micro_batch(Stream& compute, std::int64_t micro) {
  if (sums_ != nullptr) return sums_->keep(compute, micro);
  if (!running_) return;
  if (micro + 1 < options_.micro_batches) return running_->keep(compute, micro);
  for (const Bucket& bucket : plan_.buckets()) running_->finish(compute, bucket);
  running_->end_step();
}

void GradientBuckets::begin(Stream& compute, std::span<BucketMoments> moments, const GradientUnit& unit) {
  const std::span<const Bucket> buckets = plan_.buckets();
  CHECK(moments.empty() || moments.size() == buckets.size(), "moments for {} buckets, expected {}",
        moments.size(), buckets.size());
  exchange_->begin(unit);
  compute_ = &compute;
  moments_ = moments;
  next_ = 0;
  ready_.assign(parameters_.size(), false);
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    progress_[bucket].pending = buckets[bucket].last_parameter - buckets[bucket].first_parameter;
  }
}

void GradientBuckets::gradient_ready(std::size_t index) {
  CHECK(compute_ != nullptr, "gradient_ready() was called outside a pass: begin() starts one");
  CHECK(index < parameters_.size(), "parameter {} of {}", index, parameters_.size());
  CHECK(!ready_[index], "the gradient of {} was reported ready twice", parameters_[index].name);
  ready_[index] = true;
  Progress& progress = progress_[plan_.bucket_of(index)];
  if (--progress.pending > 0) return;
  progress.final_ns = now_ns();
  if (!options_.overlap) return;
  while (next_ < order_.size() && progress_[order_[next_]].pending == 0)
    launch(order_[next_++], progress.final_ns);
}

void GradientBuckets::set_order(std::span<const std::size_t> order) {
  CHECK(compute_ == nullptr, "set_order() was called during a pass");
  CHECK(std::ranges::is_permutation(order, order_), "{} indices are not a permutation of {} buckets",
        order.size(), order_.size());
  order_.assign(order.begin(), order.end());
}

void GradientBuckets::wait_for(Stream& compute, std::size_t bucket) {
  CHECK(compute_ == &compute && options_.one_by_one,
        "wait_for() of bucket {} needs BucketOptions::one_by_one and the stream that was passed to begin()",
        bucket);
  compute.wait(arrived_[bucket]);
}

void GradientBuckets::delay(Stream& compute) {
  CHECK(delayed_ != nullptr, "delay() needs BucketOptions::delayed");
  for (std::size_t i = 0; i < arena_->ranges().size(); ++i) {
    const FlatRange& from = arena_->ranges()[i];
    compute.copy(delayed_->ranges()[i].data, from.data, from.bytes());
  }
}

void GradientBuckets::wait(Stream& compute) {
  CHECK(compute_ == &compute, "wait() was called with another stream than begin()");
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    CHECK(ready_[i], "the gradient of {} was not reported ready", parameters_[i].name);
  }
  while (next_ < order_.size()) launch(order_[next_++], now_ns());
  communicator_.stream().record(reduced_);
  compute.wait(reduced_);
  if (running_) running_->end_step();
  compute_ = nullptr;
}

void GradientBuckets::send_values(Stream& compute, float* values, std::size_t range) {
  CHECK(sharded(), "send_values() needs the sharded exchange");
  compute.record(produced_);
  communicator_.stream().wait(produced_);
  gather_range(communicator_, values, range);
}

// The rest is not sent: every rank has it.
void GradientBuckets::gather_range(Communicator& communicator, float* values, std::size_t range) {
  if (range >= share_of_bucket_.size()) return;
  const Bucket& bucket = plan_.buckets()[share_of_bucket_[range]];
  communicator.all_gather(values + bucket.share_of(communicator.rank()).begin, values + bucket.begin,
                          static_cast<std::size_t>(bucket.share), DType::f32);
}

void GradientBuckets::wait_for_values(Stream& compute) {
  communicator_.stream().record(reduced_);
  compute.wait(reduced_);
}

std::function<void(float* values)> GradientBuckets::completion() {
  if (!sharded()) return nullptr;
  return [this](float* values) {
    Communicator& host = communicator_.host();
    for (std::size_t range = 0; range < shares_.size(); ++range) gather_range(host, values, range);
    host.stream().synchronize();
  };
}

void GradientBuckets::agree_finite(Stream& compute, std::int32_t* finite) {
  if (!exchange_->same_on_every_rank()) agree(compute, finite, ReduceOp::min);
  exchange_->settle(compute, finite);
}

void GradientBuckets::agree_largest(Stream& compute, std::int32_t* value) {
  agree(compute, value, ReduceOp::max);
}

void GradientBuckets::agree(Stream& compute, std::int32_t* value, ReduceOp op) {
  Stream& stream = communicator_.stream();
  compute.record(produced_);
  stream.wait(produced_);
  communicator_.all_reduce(value, 1, DType::i32, op);
  stream.record(reduced_);
  compute.wait(reduced_);
}

// Exchanges a bucket on the communication stream after its gradients are final. The span begins when the
// exchange may start.
void GradientBuckets::launch(std::size_t index, std::int64_t enqueued_ns) {
  const ProfilerRange range("bucket", static_cast<std::int64_t>(index));
  Stream& stream = communicator_.stream();
  if (sums_ != nullptr) sums_->finish(*compute_, plan_.buckets()[index]);
  if (running_ && running_->under_way()) running_->finish(*compute_, plan_.buckets()[index]);
  if (!moments_.empty()) compute_->record(moments_[index].produced);
  compute_->record(produced_);
  stream.wait(produced_);
  Progress* progress = &progress_[index];
  const bool traced = timeline_ != nullptr && timeline_->recording();
  if (traced) stream.enqueue([progress] { progress->started_ns = now_ns(); });
  if (!moments_.empty()) stream.record(moments_[index].begun);
  const bool on_host = stream.runs_on_host();  // else the host does not know when gradients become final
  const bool more_compute = options_.one_by_one || options_.delayed ||
                            std::ranges::any_of(progress_, [](const Progress& p) { return p.pending > 0; });
  communicator_.set_purpose({.bucket = static_cast<std::int32_t>(index),
                             .beside_compute = more_compute,
                             .final_ns = on_host ? progress->final_ns : 0,
                             .enqueued_ns = enqueued_ns});
  exchange_->enqueue(index);
  communicator_.set_purpose({});
  if (!moments_.empty()) stream.record(moments_[index].ended);
  if (options_.one_by_one) stream.record(arrived_[index]);
  if (!traced) return;
  stream.enqueue([timeline = timeline_, progress, index] {
    timeline->record(bucket_span(index, progress->started_ns, now_ns()));
  });
}

void GradientBuckets::compare_plans() {
  std::string candidates;
  for (const ExchangeChoice& each : options_.codecs.candidates) candidates += "or " + each.describe() + "\n";
  const std::uint64_t mine =
      hash_name(plan_.describe(parameters_) +
                fmt::format("exchange {} {}, {} micro-batches{}, summed in {}{}\n",
                            options_.exchange.describe(), options_.codecs.describe(), options_.micro_batches,
                            options_.along_tree ? " along the tree" : "", word_of(options_.sum_type),
                            options_.delayed      ? ", a step late"
                            : options_.one_by_one ? ", one by one"
                                                  : "") +
                candidates);
  const std::vector<std::uint64_t> hashes = gather_values(communicator_.host(), mine);
  const std::vector<int> differing = ranks_without(hashes[0], hashes);
  if (differing.empty()) return;
  throw_agreed(
      ConfigError(fmt::format("{}: parameters, layouts, buckets or exchanges differ from rank 0; start all "
                              "ranks with the same configuration, libraries and type of processor",
                              named_ranks(differing))));
}

}  // namespace lockstep
