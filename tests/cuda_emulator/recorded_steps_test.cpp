// SPDX-License-Identifier: Apache-2.0
//
// What a training tells of steps that are replayed, on ranks that are threads with a device each.
#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>

#include "comm/codecs/auto_exchange.h"
#include "comm/nccl/communicator.h"
#include "launch/digest.h"
#include "launch/trainer.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/grays.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kBatch = 4, kSide = 16, kSteps = 7;

// What is done behind the fourth step; null: nothing.
using Change = void (*)(Trainer& trainer, GradientBuckets& buckets);

struct Ways {
  Change change = nullptr;
  std::int64_t average_every = 0;
};

struct Trained {
  Traffic traffic;
  std::string digest;
};

Trained train(Communicator& host, bool record, const BucketOptions& bucket_options, Report& report,
              const Ways& ways) {
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
                   .average_every = ways.average_every});
  if (ways.change != nullptr) {
    for (int step = 0; step < 4; ++step) trainer.step();
    ways.change(trainer, buckets);
  }
  trainer.fit(report);
  nccl.stream().synchronize();
  EXPECT_EQ(nccl.log().read().size(), nccl.traffic().operations) << "replays are in the log like other steps";
  return {.traffic = nccl.traffic(), .digest = digest(network, *optimizer)};
}

struct Told {
  std::vector<Traffic> traffic = std::vector<Traffic>(kRanks);
  std::vector<std::string> digests = std::vector<std::string>(kRanks);
  std::string output;  // of rank 0
  std::string log;
};

// On a node each.
Told train(bool record, const BucketOptions& buckets = {}, const Ways& ways = {}) {
  const TemporaryFolder folder("recorded_steps");
  Told told;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const std::vector<std::string> errors = try_thread_ranks(
      kRanks,
      [&](Communicator& host) {
        Report report({.speaks = host.rank() == 0, .directory = folder.path(), .total_steps = kSteps});
        const Trained trained = train(host, record, buckets, report, ways);
        told.traffic[static_cast<std::size_t>(host.rank())] = trained.traffic;
        told.digests[static_cast<std::size_t>(host.rank())] = trained.digest;
      },
      std::vector<int>{0, 1});
  told.output = testing::internal::GetCapturedStdout();
  told.log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  return told;
}

TEST(RecordedSteps, SendAsManyBytesAsOthers) {
  std::uint64_t most = ~std::uint64_t{0};
  for (const ExchangeKind* codec : {&kDenseSum, &kFp16Codec, &kInt8Codec, &kSignCodec}) {
    const BucketOptions buckets{.exchange = {.kind = codec}};
    const Told recorded = train(true, buckets), eager = train(false, buckets);
    EXPECT_NE(recorded.log.find("steps are recorded and replayed"), std::string::npos) << recorded.log;
    EXPECT_EQ(eager.log.find("recorded"), std::string::npos) << eager.log;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_GT(eager.traffic[rank].sent_bytes, 0u);
      EXPECT_EQ(recorded.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes) << "rank " << rank;
      EXPECT_EQ(recorded.traffic[rank].operations, eager.traffic[rank].operations) << "rank " << rank;
    }
    EXPECT_LT(eager.traffic[0].sent_bytes, most) << codec->name;
    most = eager.traffic[0].sent_bytes;
  }
}

// Local steps and averaging ones are two recordings: 3 of 7 steps average.
TEST(RecordedSteps, OfLocalSgdSendAsManyBytesAsOthers) {
  for (const ExchangeKind* codec : {&kDenseSum, &kInt8Codec}) {
    const BucketOptions buckets{.exchange = {.kind = codec}};
    const Told recorded = train(true, buckets, {.average_every = 2}),
               eager = train(false, buckets, {.average_every = 2});
    const Told synchronous = train(false, buckets);
    for (const char* part :
         {"local steps are recorded and replayed", "averaging steps are recorded and replayed"})
      EXPECT_NE(recorded.log.find(part), std::string::npos) << recorded.log;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(recorded.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes) << "rank " << rank;
      EXPECT_EQ(recorded.traffic[rank].operations, eager.traffic[rank].operations) << "rank " << rank;
      EXPECT_LT(eager.traffic[rank].sent_bytes, synchronous.traffic[rank].sent_bytes) << "rank " << rank;
    }
  }
}

// Steps that were recorded with the codecs before are never replayed again: those that are recorded behind
// the choice have the bits, and send the bytes, of steps that are enqueued one by one.
TEST(RecordedSteps, AreRecordedAnewForOtherCodecs) {
  BucketOptions buckets{.exchange = {.kind = &kAutoCodec}};
  buckets.codecs.candidates = {{.kind = &kBf16Codec}, {.kind = &kInt8Codec}};
  const Change to_int8 = [](Trainer& trainer, GradientBuckets& of) {
    trainer.choose_codecs(std::vector<int>(of.buckets().size(), 2));
    CHECK(!of.exchange().state().empty(), "int8 remembers what it did not send");
  };
  const Change to_nothing_else = [](Trainer& trainer, GradientBuckets& of) {
    trainer.choose_codecs(std::vector<int>(of.buckets().size(), 0));
  };
  const Told recorded = train(true, buckets, {.change = to_int8}),
             eager = train(false, buckets, {.change = to_int8});
  const Told dense = train(true, buckets, {.change = to_nothing_else});
  const std::string said = "steps are recorded and replayed";
  EXPECT_NE(recorded.log.find(said), recorded.log.rfind(said)) << "once again: " << recorded.log;
  EXPECT_EQ(dense.log.find(said), dense.log.rfind(said)) << "nothing has changed: " << dense.log;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(recorded.digests[rank], eager.digests[0]);
    EXPECT_EQ(recorded.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes);
    EXPECT_EQ(recorded.traffic[rank].operations, eager.traffic[rank].operations);
    EXPECT_LT(recorded.traffic[rank].sent_bytes, dense.traffic[rank].sent_bytes);
  }
  EXPECT_NE(recorded.digests[0], dense.digests[0]);
}

// The first step has nothing to send yet.
TEST(RecordedSteps, OfDelayedGradientsSendAsManyBytesAsOthers) {
  const BucketOptions late{.delayed = true};
  const Told recorded = train(true, late), eager = train(false, late), in_time = train(false);
  EXPECT_NE(recorded.log.find("steps are recorded and replayed"), std::string::npos) << recorded.log;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(recorded.traffic[rank].sent_bytes, eager.traffic[rank].sent_bytes) << "rank " << rank;
    EXPECT_EQ(recorded.traffic[rank].operations, eager.traffic[rank].operations) << "rank " << rank;
    EXPECT_LT(eager.traffic[rank].sent_bytes, in_time.traffic[rank].sent_bytes) << "rank " << rank;
    EXPECT_EQ(kSteps * eager.traffic[rank].sent_bytes, (kSteps - 1) * in_time.traffic[rank].sent_bytes)
        << "rank " << rank;
  }
}

// When the host reports its first step the device has not told of any.
TEST(RecordedSteps, AreCountedWhenTheyAreDone) {
  std::istringstream lines(train(true).output);
  int steps = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("train loss") != std::string::npos) break;  // of the epoch, and what follows
    ++steps;
    EXPECT_EQ(line.find("samples/s") != std::string::npos, steps > 1) << line;
    EXPECT_EQ(line.find("loss ") != std::string::npos, steps > 1) << line;
  }
  EXPECT_EQ(steps, kSteps);
}

}  // namespace
}  // namespace lockstep
