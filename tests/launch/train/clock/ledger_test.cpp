// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/ledger.h"

#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "launch/observe/run_files/metric_lines.h"
#include "launch/train/clock/communication.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMs = 1'000'000;

CollectiveMoments moments(std::int64_t final, std::int64_t started, std::int64_t met, std::int64_t finished) {
  return {.final_ns = final * kMs,
          .enqueued_ns = final * kMs,
          .started_ns = started * kMs,
          .met_ns = met * kMs,
          .finished_ns = finished * kMs};
}

// Backward runs from 100 ms to 200 ms; compute resumes at 260 ms.
constexpr ComputeMoments kCompute{.backward_ns = 100 * kMs, .waited_ns = 200 * kMs, .resumed_ns = 260 * kMs};

void expect_parts_are_the_whole(const LedgerSums& sums) {
  EXPECT_NEAR(sums.exposed, sums.exposed_starved + sums.exposed_late + sums.exposed_wire + sums.exposed_rest,
              1e-9);
  double hidden = 0;
  for (const BucketSums& bucket : sums.buckets) {
    EXPECT_NEAR(bucket.exposed + bucket.hidden, bucket.late + bucket.wire, bucket.starved + 1e-9);
    hidden += bucket.hidden;
  }
  EXPECT_NEAR(sums.hidden, hidden, 1e-9);
}

TEST(Ledger, DividesExposedTimeByCause) {
  Ledger ledger(3, nullptr);
  ledger.add(0, moments(120, 120, 130, 150), 10);  // hidden
  ledger.add(1, moments(160, 170, 190, 220),
             20);                                  // starts 10 ms late; 20 ms of its wire time are exposed
  ledger.add(2, moments(200, 225, 235, 255), 30);  // after bucket 1, started 5 ms late
  ledger.end_step(kCompute);
  const LedgerSums sums = ledger.sums();
  EXPECT_EQ(sums.steps, 1);
  EXPECT_NEAR(sums.backward, 0.1, 1e-9);
  EXPECT_NEAR(sums.exposed, 0.060, 1e-9);
  EXPECT_NEAR(sums.exposed_starved, 0.005, 1e-9);
  EXPECT_NEAR(sums.exposed_late, 0.010, 1e-9);
  EXPECT_NEAR(sums.exposed_wire, 0.040, 1e-9);
  EXPECT_NEAR(sums.exposed_rest, 0.005, 1e-9) << "compute was not woken yet";
  EXPECT_NEAR(sums.hidden, 0.030 + 0.030, 1e-9);
  EXPECT_NEAR(sums.buckets[0].lead, 0.080, 1e-9);
  EXPECT_NEAR(sums.buckets[1].starved, 0.010, 1e-9);
  EXPECT_NEAR(sums.buckets[1].late, 0.020, 1e-9);
  EXPECT_NEAR(sums.buckets[1].wire, 0.030, 1e-9);
  EXPECT_NEAR(sums.buckets[2].exposed, 0.035, 1e-9);
  EXPECT_EQ(sums.buckets[2].sent_bytes, 30);
  expect_parts_are_the_whole(sums);
}

// Compute waits for single buckets in the next step, in an order other than theirs.
TEST(Ledger, CountsWaitsForSingleBuckets) {
  Ledger ledger(3, nullptr);
  ledger.add(0, moments(120, 120, 120, 190), 10);  // hidden
  ledger.add(2, moments(180, 190, 195, 230), 30);  // compute waits until 230
  ledger.add(1, moments(150, 232, 232, 300), 20);  // compute runs for 40 ms, then waits for 26 ms
  const BucketWait waits[] = {{.bucket = 0, .begin_ns = 200 * kMs, .end_ns = 200 * kMs},
                              {.bucket = 2, .begin_ns = 200 * kMs, .end_ns = 230 * kMs},
                              {.bucket = 1, .begin_ns = 274 * kMs, .end_ns = 302 * kMs}};
  ledger.end_step(
      {.backward_ns = 100 * kMs, .waited_ns = 200 * kMs, .resumed_ns = 200 * kMs, .waits = waits});
  const LedgerSums sums = ledger.sums();
  EXPECT_NEAR(sums.exposed, 0.058, 1e-9);
  EXPECT_NEAR(sums.exposed_wire, 0.056, 1e-9);
  EXPECT_NEAR(sums.exposed_rest, 0.002, 1e-9) << "compute was not woken yet";
  EXPECT_NEAR(sums.exposed_starved, 0, 1e-9);
  EXPECT_NEAR(sums.buckets[1].starved, 0.002, 1e-9) << "queued after the previous bucket";
  EXPECT_NEAR(sums.buckets[1].hidden, 0.042, 1e-9);
  EXPECT_NEAR(sums.buckets[2].exposed, 0.030, 1e-9);
  EXPECT_EQ(ledger.compute().waits.size(), 3u);
  expect_parts_are_the_whole(sums);
  ledger.end_step(kCompute);
  EXPECT_TRUE(ledger.compute().waits.empty()) << "the waits belong to the previous step";
}

// The thread waits for peers in another collective, such as the agreement after a step, while a bucket is
// ready.
TEST(Ledger, CountsAWaitBehindAnotherCollectiveAsItsOwn) {
  Ledger ledger(2, nullptr);
  ledger.add(0, moments(190, 225, 230, 240), 10, moments(150, 160, 220, 224));
  ledger.add(1, moments(180, 240, 240, 250), 10);
  ledger.end_step(kCompute);
  const LedgerSums sums = ledger.sums();
  EXPECT_NEAR(sums.buckets[0].starved, 0.001, 1e-9);
  EXPECT_NEAR(sums.buckets[0].late, 0.030 + 0.005, 1e-9);
  EXPECT_NEAR(sums.buckets[0].wire, 0.004 + 0.010, 1e-9);
  EXPECT_NEAR(sums.buckets[0].hidden, 0.010, 1e-9) << "backward ends at 200 ms";
  EXPECT_NEAR(sums.exposed_starved, 0.001, 1e-9);
  EXPECT_NEAR(sums.exposed_late, 0.020 + 0.005, 1e-9);
  EXPECT_NEAR(sums.exposed_wire, 0.004 + 0.010 + 0.010, 1e-9);
  EXPECT_NEAR(sums.exposed_rest, 0.010, 1e-9);
  expect_parts_are_the_whole(sums);
}

// A device does not see when its peers enter. The last rank, whose sums take 20 and 30 ms, tells the others
// that they waited for 40 ms in the first sum.
TEST(Ledger, FindsWaitsForALateRankByTheLeastDurations) {
  Ledger first(2, nullptr, true), last(2, nullptr, true);
  for (int step = 0; step < 2; ++step) {
    first.add(0, moments(150, 150, 0, 210), 8);
    first.add(1, moments(200, 210, 0, 240), 8);
    first.end_step(kCompute);
    last.add(0, moments(190, 190, 0, 210), 8);
    last.add(1, moments(200, 210, 0, 240), 8);
    last.end_step(kCompute);
  }
  const std::vector<float> durations = first.durations();
  ASSERT_EQ(durations.size(), 4u);
  EXPECT_NEAR(durations[0], 0.060f, 1e-6f);
  first.skip_step();
  const LedgerSums sums = first.take(last.durations());
  EXPECT_EQ(sums.steps, 3);
  EXPECT_NEAR(sums.buckets[0].late, 3 * 0.040, 1e-6);
  EXPECT_NEAR(sums.buckets[0].wire, 3 * 0.020, 1e-6);
  EXPECT_NEAR(sums.buckets[1].late, 0, 1e-6);
  EXPECT_NEAR(sums.exposed_late, 0, 1e-6) << "the wait was over when backward ended";
  expect_parts_are_the_whole(sums);
  EXPECT_TRUE(first.durations().empty());
  EXPECT_NEAR(last.take(last.durations()).buckets[0].late, 0, 1e-6);
}

// A loop may train for long before it takes the sums. The bucket takes 60 ms in the first half of the steps
// and 80 ms in the second.
TEST(Ledger, KeepsEvenlySpacedStepsWithinALimit) {
  constexpr int kSteps = 5000;
  Ledger ledger(1, nullptr, true);
  for (int step = 0; step < kSteps; ++step) {
    ledger.add(0, moments(150, 150, 0, step < kSteps / 2 ? 210 : 230), 8);
    ledger.end_step(kCompute);
  }
  ASSERT_LT(ledger.durations().size(), Ledger::kMostKept);
  const std::vector<float> least(ledger.durations().size(), 0.020f);
  const LedgerSums sums = ledger.take(least);
  EXPECT_EQ(sums.steps, kSteps);
  EXPECT_NEAR(sums.buckets[0].late / kSteps, 0.050, 1e-3);
  EXPECT_NEAR(sums.buckets[0].wire / kSteps, 0.020, 1e-6);
  expect_parts_are_the_whole(sums);
  ledger.end_step(kCompute);
  ledger.end_step(kCompute);
  EXPECT_EQ(ledger.durations().size(), 2u) << "all steps are kept again";
}

TEST(Ledger, AddsUpStepsUntilTake) {
  Ledger ledger(1, nullptr);
  for (int step = 0; step < 3; ++step) {
    ledger.add(0, moments(150, 150, 160, 240), 8);
    ledger.end_step(kCompute);
  }
  EXPECT_EQ(ledger.passages()[0].finished_ns, 240 * kMs);
  const LedgerSums sums = ledger.take();
  EXPECT_EQ(sums.steps, 3);
  EXPECT_NEAR(sums.buckets[0].wire, 3 * 0.080, 1e-9);
  expect_parts_are_the_whole(sums);
  EXPECT_EQ(ledger.sums().steps, 0);
  EXPECT_EQ(ledger.sums().buckets.size(), 1u);
}

// An exchange may run several collectives for one bucket. A broadcast does not record when all ranks met.
TEST(Ledger, CountsAllCollectivesOfABucketAsOne) {
  Ledger ledger(1, nullptr);
  ledger.add(0, moments(150, 150, 160, 210), 8);
  ledger.add(0, moments(0, 210, 0, 230), 4);
  ledger.end_step(kCompute);
  EXPECT_NEAR(ledger.sums().buckets[0].late, 0.010, 1e-9);
  EXPECT_NEAR(ledger.sums().buckets[0].wire, 0.070, 1e-9);
  EXPECT_EQ(ledger.sums().buckets[0].sent_bytes, 12);
  EXPECT_NEAR(ledger.sums().buckets[0].lead, 0.050, 1e-9);
  expect_parts_are_the_whole(ledger.sums());
}

TEST(Ledger, BucketWithoutRecordsCostsNothing) {
  Ledger ledger(2, nullptr);
  ledger.add(1, moments(150, 150, 160, 210), 8);
  ledger.end_step(kCompute);
  EXPECT_EQ(ledger.sums().buckets[0].hidden + ledger.sums().buckets[0].exposed, 0);
  expect_parts_are_the_whole(ledger.sums());
}

// A step has more collectives than the log keeps, and some that belong to no bucket.
TEST(Ledger, ReadsEachRecordOnce) {
  const auto self = make_self_communicator();
  float value = 1;
  const auto sum = [&](int bucket) {
    self->set_purpose({.bucket = bucket});
    self->all_reduce(&value, 1, DType::f32, ReduceOp::sum);
  };
  sum(0);
  self->stream().synchronize();
  Ledger ledger(2, &self->log());  // ignores earlier records
  std::int64_t previous = now_ns();
  for (int step = 0; step < 2; ++step) {
    for (const int bucket : {0, -1, 1}) sum(bucket);
    self->stream().synchronize();
    ledger.read_log();
    ledger.read_log();
    ledger.end_step(kCompute);
    for (const BucketPassage& passage : ledger.passages()) {
      EXPECT_GE(passage.started_ns, previous) << "a record of an earlier step";
      EXPECT_GE(passage.finished_ns, passage.started_ns);
    }
    previous = ledger.passages()[1].finished_ns;
  }
  sum(0);
  for (std::size_t i = 0; i < CollectiveLog::kRecords; ++i) sum(1);
  self->stream().synchronize();
  ledger.read_log();
  ledger.end_step(kCompute);
  EXPECT_EQ(ledger.passages()[0].finished_ns, 0) << "overwritten";
  EXPECT_GT(ledger.passages()[1].finished_ns, previous);
}

// Such as the agreement on finite gradients and the requests after a step.
TEST(Ledger, ReadsCollectivesWithoutABucketAsOne) {
  const auto self = make_self_communicator();
  Ledger ledger(2, &self->log());
  float value = 1;
  for (const int bucket : {-1, -1, 0, 1}) {
    self->set_purpose({.bucket = bucket});
    self->all_reduce(&value, 1, DType::f32, ReduceOp::sum);
  }
  self->stream().synchronize();
  ledger.read_log();
  ledger.end_step(kCompute);
  const auto moments_of = [&](int back) {
    return self->log().find_record(self->log().newest() - static_cast<std::uint64_t>(back)).value().moments;
  };
  const CollectiveMoments& other = ledger.passages()[0].other;
  EXPECT_EQ(other.started_ns, moments_of(3).started_ns);
  EXPECT_EQ(other.met_ns, moments_of(2).met_ns);
  EXPECT_EQ(other.finished_ns, moments_of(2).finished_ns);
  EXPECT_EQ(ledger.passages()[1].other.started_ns, 0) << "they count once";
}

// The rank that does not wait while its peers wait is late. Waits that all ranks share count as wire time.
TEST(Communication, NamesTheLateRank) {
  run_thread_ranks(3, [](Communicator& communicator) {
    LedgerSums sums{.steps = 2, .exposed = 0.2, .hidden = 0.8};
    sums.buckets.push_back({.late = communicator.rank() == 1 ? 0.02 : 0.22, .wire = 0.5, .sent_bytes = 1e6});
    const EpochCommunication epoch = gather_communication(communicator, sums, {5e5}, 0);
    EXPECT_EQ(epoch.late_rank(), 1);
    EXPECT_NEAR(epoch.late(), 0.2, 1e-9);
    EXPECT_NEAR(epoch.wire(), 0.52, 1e-9);
    EXPECT_NEAR(epoch.wire_bytes_per_second(), 1e6 / 0.52, 1);
    EXPECT_NEAR(epoch.overlap(), 0.8, 1e-9);
    const auto parts = communication_parts(epoch);
    EXPECT_EQ(parts, (std::vector<std::string>{"comm 500.0 ms a step", "80.0 % hidden",
                                               "| wire 260.0 ms (1.9 MB/s)", "| late rank 1: 100.0 ms"}));
  });
}

TEST(Communication, EqualWaitsReportNoLateRank) {
  run_thread_ranks(2, [](Communicator& communicator) {
    LedgerSums sums{.steps = 1, .exposed = 0.2, .hidden = 0.8};
    sums.buckets.push_back({.late = communicator.rank() == 1 ? 0.050 : 0.052, .wire = 0.5});
    const EpochCommunication epoch = gather_communication(communicator, sums, {1e6}, 0);
    EXPECT_EQ(epoch.late_rank(), -1);
    EXPECT_NEAR(epoch.sent_bytes, 1e6, 1) << "the bytes of a ring, as the log of a device has none";
  });
}

// A GPU records moments in one of several steps; the epoch's sums extrapolate to all steps.
TEST(Ledger, SumsExtrapolateToSkippedSteps) {
  Ledger ledger(1, nullptr);
  const auto step = [&] {
    ledger.add(0, {.final_ns = 10, .enqueued_ns = 10, .started_ns = 10, .finished_ns = 50}, 7);
    ledger.end_step({.backward_ns = 0, .waited_ns = 30, .resumed_ns = 60});
  };
  step();
  for (int i = 0; i < 3; ++i) ledger.skip_step();
  const LedgerSums sums = ledger.take();
  EXPECT_EQ(sums.steps, 4);
  EXPECT_NEAR(sums.exposed, 4 * 30e-9, 1e-15);
  EXPECT_NEAR(sums.hidden, 4 * 20e-9, 1e-15);
  EXPECT_NEAR(sums.buckets[0].wire, 4 * 40e-9, 1e-15);
  EXPECT_EQ(sums.buckets[0].sent_bytes, 28);
  step();
  EXPECT_EQ(ledger.take().steps, 1) << "counted once";
  ledger.skip_step();
  EXPECT_EQ(ledger.take().steps, 1);
  EXPECT_EQ(ledger.take().exposed, 0);
}

}  // namespace
}  // namespace lockstep
