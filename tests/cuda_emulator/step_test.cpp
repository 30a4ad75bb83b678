// SPDX-License-Identifier: Apache-2.0
//
// The account of a step by the times of the device, and copies of batches for which the host does not wait.
#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "data/device_batches.h"
#include "launch/train/clock/step_times.h"
#include "tests/data/numbered_dataset.h"

namespace lockstep {
namespace {

constexpr Device kDevice{.kind = DeviceKind::cuda, .index = 0};
constexpr StepSlot kSlot;

using std::chrono::milliseconds;

void work(Stream& stream, int time_ms) {
  stream.enqueue([time_ms] { std::this_thread::sleep_for(milliseconds(time_ms)); });
}

TEST(StepTimes, MeasureThePhasesOfStepsAndTheIdleTimeBetweenThem) {
  Stream stream(kDevice, StreamUse::compute);
  StepTimes times(stream, 2);
  StepAccount account;
  for (int step = 0; step < 3; ++step) {
    if (step > 0) {
      stream.synchronize();
      std::this_thread::sleep_for(milliseconds(20));  // the host is late
    }
    const StepSlot slot = StepSlot::of(step);
    times.begun(stream, slot, step, 8e-3);  // the host waited for data for this time
    work(stream, 3);
    times.has_data(stream, slot);
    for (int micro = 0; micro < 2; ++micro) {
      work(stream, 5);
      times.done(stream, slot, Phase::forward, micro);
      work(stream, 8);
      times.done(stream, slot, Phase::backward, micro);
    }
    work(stream, 6);
    times.done(stream, slot, Phase::exposed_communication);
    work(stream, 4);
    times.ended(stream, slot);
    stream.synchronize();
    times.account(slot, account);
  }
  const std::pair<Phase, double> expected[] = {
      {Phase::data_wait, 9e-3 + 16e-3},      {Phase::forward, 30e-3},   {Phase::backward, 48e-3},
      {Phase::exposed_communication, 18e-3}, {Phase::optimizer, 12e-3}, {Phase::idle, 40e-3 - 16e-3}};
  for (const auto& [phase, seconds] : expected) EXPECT_GE(account[phase], seconds) << name_of(phase);
  EXPECT_EQ(account[Phase::device_wait], 0);
}

// For any delay of the device when the two clocks are compared.
TEST(StepTimes, UseTheClockOfTheHostInATimeline) {
  Stream stream(kDevice, StreamUse::compute);
  work(stream, 30);
  StepTimes times(stream, 1);
  std::int64_t before = 0;
  stream.enqueue([at = &before] { *at = now_ns(); });
  times.begun(stream, kSlot, 0, 0);
  times.has_data(stream, kSlot);
  times.done(stream, kSlot, Phase::forward);
  times.done(stream, kSlot, Phase::backward);
  times.done(stream, kSlot, Phase::exposed_communication);
  times.ended(stream, kSlot);
  stream.synchronize();
  StepAccount account;
  Timeline timeline;
  times.account(kSlot, account, &timeline);
  ASSERT_EQ(timeline.spans().size(), 6u);
  for (const Span& span : timeline.spans()) EXPECT_GE(span.begin_ns, before) << span.name;
}

TEST(StepTimes, MeasureTheReplayOfARecordedStep) {
  Stream stream(kDevice, StreamUse::compute);
  const Buffer memory(std::size_t{32} << 20, kDevice);
  StepTimes times(stream, 1);
  times.begun(stream, kSlot, 0, 0);
  times.has_data(stream, kSlot);
  std::string reason;
  Recording recording = stream.record_work(
      [&] {
        times.done(stream, kSlot, Phase::forward);
        for (int i = 0; i < 4; ++i)
          stream.copy(memory.data(), memory.data() + memory.bytes() / 2, memory.bytes() / 2);
        times.done(stream, kSlot, Phase::backward);
        times.done(stream, kSlot, Phase::exposed_communication);
      },
      reason);
  ASSERT_FALSE(recording.empty()) << reason;
  stream.replay(recording);
  times.ended(stream, kSlot);
  stream.synchronize();
  StepAccount account;
  times.account(kSlot, account);
  EXPECT_GT(account[Phase::backward], 0);
  EXPECT_GT(account[Phase::backward], account[Phase::exposed_communication]);
}

// The device runs a step until the host has prepared the next two. A host that waits for the device would
// never finish; a timer then releases the device.
TEST(DeviceBatches, AreCopiedWithoutWaitingForTheDevice) {
  const NumberedDataset dataset(64);
  BatchLoader loader(dataset, {}, {.batch = 4, .kept = 2, .slots = 5, .device = kDevice});
  DeviceBatches batches(loader, {.device = kDevice});
  Stream compute(kDevice, StreamUse::compute);
  std::atomic<bool> free{false};
  std::atomic<bool> late{false};
  batches.begin(compute, StepSlot::of(0));
  compute.enqueue([&free] {
    while (!free) std::this_thread::yield();
  });
  batches.prefetch(StepSlot::of(1));
  std::atomic<bool> done{false};
  std::thread timer([&] {
    for (int i = 0; i < 1000 && !done; ++i) std::this_thread::sleep_for(milliseconds(5));
    late = !done;
    free = true;
  });
  batches.begin(compute, StepSlot::of(1));
  batches.prefetch(StepSlot::of(2));
  done = true;
  timer.join();
  EXPECT_FALSE(late) << "the host must not wait for the device";
  compute.synchronize();
}

// After a seek the loader refills its memory at once, including the memory of a batch that is not copied yet.
// The device delays the copy until the refill has happened or had enough time to happen.
TEST(DeviceBatches, AreCopiedBeforeASeekRefillsTheirMemory) {
  struct Watched final : NumberedDataset {
    using NumberedDataset::NumberedDataset;
    std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
      if (index == last_of_first_batch) filled_again = sought.load();
      return NumberedDataset::read(index, image);
    }
    std::int64_t last_of_first_batch = -1;
    std::atomic<bool> sought{false};
    mutable std::atomic<bool> filled_again{false};
  } dataset(64);
  const LoaderOptions options{.batch = 4, .slots = 2, .device = kDevice};
  std::vector<Samples> wanted;  // the first three batches
  {
    BatchLoader loader(dataset, {}, options);
    for (int i = 0; i < 3; ++i) wanted.push_back(samples_of(loader.next()));
  }
  dataset.last_of_first_batch = wanted[0].back();
  BatchLoader loader(dataset, {}, options);
  DeviceBatches batches(loader, {.device = kDevice});
  Stream compute(kDevice, StreamUse::compute);
  batches.begin(compute, StepSlot::of(0));
  compute.enqueue([&dataset] {
    for (int i = 0; i < 100 && !dataset.filled_again; ++i) std::this_thread::sleep_for(milliseconds(1));
  });
  batches.begin(compute, StepSlot::of(1));
  batches.begin(compute,
                StepSlot::of(2));  // reuses the memory of the first step, which the device still runs
  const Batch& batch = batches.next();
  dataset.sought = true;
  batches.seek(0, 0);
  std::vector<std::int32_t> labels(wanted[2].size());
  compute.copy(labels.data(), batch.labels.data, labels.size() * sizeof(std::int32_t));
  compute.synchronize();
  EXPECT_EQ(Samples(labels.begin(), labels.end()), wanted[2]);
}

}  // namespace
}  // namespace lockstep
