// SPDX-License-Identifier: Apache-2.0
//
// Traffic, records and log of replayed steps. Ranks are threads with one device each.
#include <cmath>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/codecs/auto_exchange.h"
#include "comm/nccl/communicator.h"
#include "launch/train/digest.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/grays.h"
#include "tests/message_of.h"

namespace lockstep::recorded_steps_test {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kBatch = 4, kSide = 16, kSteps = 7;

// Runs after the fourth step; may be null.
using Change = void (*)(Trainer& trainer, GradientBuckets& buckets);

struct Ways {
  Change change = nullptr;
  std::int64_t average_every = 0;
  std::int64_t enqueue_every = 0;
};

class StepRecords final : public TrainingObserver {
 public:
  void step_done(const StepRecord& record) override { all.push_back(record); }
  void epoch_trained(const EpochRecord& record) override { ledger = record.ledger; }
  std::vector<StepRecord> all;
  std::optional<LedgerSums> ledger;  // of the last epoch
};

struct Trained {
  Traffic traffic;
  std::vector<StepRecord> records;
  std::optional<LedgerSums> ledger;
  std::string digest;
};

Trained train(Communicator& host, bool record, const BucketOptions& bucket_options, const Ways& ways) {
  const ImageShape image{kSide, kSide, 1};
  const Grays train_set(image, kRanks * kBatch * kSteps), test_set(image, kRanks * kBatch);
  const Device device{.kind = DeviceKind::cuda, .index = host.rank()};
  NcclCommunicator nccl(device, host, {}, [](const std::string& reason) { ADD_FAILURE() << reason; });
  Graph graph({.batch = kBatch, .height = kSide, .width = kSide, .channels = 1, .classes = 4});
  graph.classify(graph.linear(graph.input(), {.features = 4}, "fc"));
  KernelChoices first;
  Network network(graph, {.device = device, .choices = &first});
  GradientBuckets buckets(network.parameters(), nccl, bucket_options);
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  const Shard shard{.rank = host.rank(), .size = host.size()};
  BatchLoader train_loader(train_set, shard, {.batch = kBatch, .device = device});
  BatchLoader test_loader(test_set, shard, {.batch = kBatch, .tail = Tail::pad, .device = device});
  Trainer trainer({network, buckets, *optimizer, train_loader, test_loader, nccl}, {.base = 0.02},
                  {.epochs = ways.change == nullptr ? 1 : 2,
                   .record_steps = record,
                   .enqueue_every = ways.enqueue_every,
                   .average_every = ways.average_every});
  if (ways.change != nullptr) {
    for (int step = 0; step < 4; ++step) trainer.step();
    ways.change(trainer, buckets);
  }
  StepRecords records;
  trainer.fit({&records});
  nccl.stream().synchronize();
  EXPECT_EQ(trainer.replays_steps(), record);
  EXPECT_EQ(nccl.log().read().size(), nccl.traffic().operations)
      << "the log must contain the collectives of replayed steps";
  return {.traffic = nccl.traffic(),
          .records = records.all,
          .ledger = records.ledger,
          .digest = digest(network, *optimizer)};
}

struct Told {
  std::vector<Traffic> traffic = std::vector<Traffic>(kRanks);
  std::vector<std::string> digests = std::vector<std::string>(kRanks);
  std::vector<StepRecord> records;   // records of rank 0
  std::optional<LedgerSums> ledger;  // of rank 0
  std::string log;
};

// Trains on ranks of different nodes.
Told train(bool record, const BucketOptions& buckets = {}, const Ways& ways = {}) {
  Told told;
  testing::internal::CaptureStderr();
  const std::vector<std::string> errors = try_thread_ranks(
      kRanks,
      [&](Communicator& host) {
        const Trained trained = train(host, record, buckets, ways);
        told.traffic[static_cast<std::size_t>(host.rank())] = trained.traffic;
        told.digests[static_cast<std::size_t>(host.rank())] = trained.digest;
        if (host.rank() == 0) told.records = trained.records;
        if (host.rank() == 0) told.ledger = trained.ledger;
      },
      std::vector<int>{0, 1});
  told.log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  return told;
}

// The number of recordings in the log of rank 0, which contains the number of operations of each recording.
std::ptrdiff_t recordings_in(const std::string& log) {
  static const std::regex recording(R"(\b[1-9]\d* operations\b)");
  return std::distance(std::sregex_iterator(log.begin(), log.end(), recording), {});
}

TEST(RecordedSteps, SendTheSameNumberOfBytesAsEagerSteps) {
  std::uint64_t most = ~std::uint64_t{0};
  for (const ExchangeKind* codec : {&kDenseSum, &kFp16Codec, &kInt8Codec, &kSignCodec}) {
    const BucketOptions buckets{.exchange = {.kind = codec}};
    const Told recorded = train(true, buckets), eager = train(false, buckets);
    EXPECT_EQ(recordings_in(recorded.log), 1) << recorded.log;
    EXPECT_EQ(recordings_in(eager.log), 0) << eager.log;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_GT(eager.traffic[rank].sent_bytes, 0u);
      EXPECT_EQ(recorded.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes) << "rank " << rank;
      EXPECT_EQ(recorded.traffic[rank].operations, eager.traffic[rank].operations) << "rank " << rank;
    }
    EXPECT_LT(eager.traffic[0].sent_bytes, most) << codec->name;
    most = eager.traffic[0].sent_bytes;
  }
}

// Local and averaging steps are separate recordings; 3 of 7 steps average.
TEST(RecordedSteps, LocalSgdSendsTheSameNumberOfBytesAsEagerSteps) {
  for (const ExchangeKind* codec : {&kDenseSum, &kInt8Codec}) {
    const BucketOptions buckets{.exchange = {.kind = codec}};
    const Told recorded = train(true, buckets, {.average_every = 2}),
               eager = train(false, buckets, {.average_every = 2});
    const Told synchronous = train(false, buckets);
    EXPECT_EQ(recordings_in(recorded.log), 2) << recorded.log;
    expect_parts(recorded.log, {"local", "averaging"});
    EXPECT_EQ(eager.ledger.value().without_exchange, 4);
    EXPECT_EQ(recorded.ledger.value().without_exchange, 4) << "the ledger must contain averaging steps";
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(recorded.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes) << "rank " << rank;
      EXPECT_EQ(recorded.traffic[rank].operations, eager.traffic[rank].operations) << "rank " << rank;
      EXPECT_LT(eager.traffic[rank].sent_bytes, synchronous.traffic[rank].sent_bytes) << "rank " << rank;
    }
  }
}

// Steps 3 and 6 of 7 are enqueued again, between replayed ones.
TEST(RecordedSteps, MayBeEnqueuedAgainForProfilers) {
  const Told mixed = train(true, {}, {.enqueue_every = 3}), eager = train(false);
  EXPECT_EQ(recordings_in(mixed.log), 1) << mixed.log;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(mixed.digests[rank], eager.digests[rank]) << "rank " << rank;
    EXPECT_EQ(mixed.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes) << "rank " << rank;
    EXPECT_EQ(mixed.traffic[rank].operations, eager.traffic[rank].operations) << "rank " << rank;
  }
  EXPECT_EQ(recordings_in(train(true, {}, {.enqueue_every = 1}).log), 0) << "no step is replayed";
}

// After a change of codecs, earlier recordings are never replayed. New recordings have the bits of eager
// steps and send the same number of bytes.
TEST(RecordedSteps, AreRecordedAgainAfterAChangeOfCodecs) {
  BucketOptions buckets{.exchange = {.kind = &kAutoCodec}};
  buckets.codecs.candidates = {{.kind = &kBf16Codec}, {.kind = &kInt8Codec}};
  const Change to_int8 = [](Trainer& trainer, GradientBuckets& of) {
    trainer.choose_codecs(std::vector<int>(of.buckets().size(), 2));
    CHECK(!of.exchange().state().empty(), "int8 must keep residuals");
  };
  const Change to_nothing_else = [](Trainer& trainer, GradientBuckets& of) {
    trainer.choose_codecs(std::vector<int>(of.buckets().size(), 0));
  };
  const Told recorded = train(true, buckets, {.change = to_int8}),
             eager = train(false, buckets, {.change = to_int8});
  const Told dense = train(true, buckets, {.change = to_nothing_else});
  EXPECT_EQ(recordings_in(recorded.log), 2) << recorded.log;
  EXPECT_EQ(recordings_in(dense.log), 1)
      << "an unchanged choice must not cause a new recording: " << dense.log;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(recorded.digests[rank], eager.digests[0]);
    EXPECT_EQ(recorded.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes);
    EXPECT_EQ(recorded.traffic[rank].operations, eager.traffic[rank].operations);
    EXPECT_LT(recorded.traffic[rank].sent_bytes, dense.traffic[rank].sent_bytes);
  }
  EXPECT_NE(recorded.digests[0], dense.digests[0]);
}

// The first step has no gradients to send.
TEST(RecordedSteps, DelayedGradientsSendTheSameNumberOfBytesAsEagerSteps) {
  const BucketOptions late{.delayed = true};
  const Told recorded = train(true, late), eager = train(false, late), in_time = train(false);
  EXPECT_EQ(recordings_in(recorded.log), 1) << recorded.log;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(recorded.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes) << "rank " << rank;
    EXPECT_EQ(recorded.traffic[rank].operations, eager.traffic[rank].operations) << "rank " << rank;
    EXPECT_LT(eager.traffic[rank].sent_bytes, in_time.traffic[rank].sent_bytes) << "rank " << rank;
    EXPECT_EQ(kSteps * eager.traffic[rank].sent_bytes, (kSteps - 1) * in_time.traffic[rank].sent_bytes)
        << "rank " << rank;
  }
}

// When the host finishes its first step, the device has not finished any.
TEST(RecordedSteps, AreReportedAfterTheDeviceHasFinishedThem) {
  const std::vector<StepRecord> records = train(true).records;
  ASSERT_EQ(std::ssize(records), kSteps);
  for (const StepRecord& record : records) {
    EXPECT_EQ(record.samples_per_second > 0, record.step > 1) << record.step;
    EXPECT_EQ(std::isfinite(record.loss), record.step > 1) << record.step;
  }
}

}  // namespace
}  // namespace lockstep::recorded_steps_test
