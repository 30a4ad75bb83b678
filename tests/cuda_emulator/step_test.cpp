// SPDX-License-Identifier: Apache-2.0
//
// The account of a step by the times of the device, and copies of batches for which the host does not wait.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <cuda_runtime_api.h>
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

// Stream::enqueue() refuses host tasks in recorded work.
TEST(StepTimes, MeasureTheReplayOfARecordedStep) {
  Stream stream(kDevice, StreamUse::compute);
  StepTimes times(stream, 1);
  times.begun(stream, kSlot, 0, 0);
  times.has_data(stream, kSlot);
  std::string reason;
  Recording recording = stream.record_work(
      [&] {
        times.done(stream, kSlot, Phase::forward);
        const auto nap = [](void*) { std::this_thread::sleep_for(milliseconds(20)); };
        EXPECT_EQ(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream.native()), nap, nullptr), cudaSuccess);
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
  EXPECT_GE(account[Phase::backward], 20e-3);
}

struct LayerRuns final : LayerObserver {
  struct Run {
    std::size_t node;
    Direction direction;
    std::int64_t begin_ns, end_ns;
  };
  void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns, std::int64_t end_ns) override {
    all.push_back({node, direction, begin_ns, end_ns});
  }
  std::vector<Run> all;
};

// Each replay of a step has its own times of layers.
TEST(StepTimes, MeasureTheLayersOfReplayedSteps) {
  Stream stream(kDevice, StreamUse::compute);
  const Buffer memory(std::size_t{4} << 20, kDevice);
  const auto layer = [&](LayerMarker& marker, std::size_t node, Direction direction) {
    marker.layer_begins();
    stream.copy(memory.data(), memory.data() + memory.bytes() / 2, memory.bytes() / 2);
    marker.layer_ends(node, direction);
  };
  StepTimes times(stream, 1);
  EXPECT_EQ(times.enqueues_layers(kSlot), nullptr) << "no observer yet";
  LayerRuns runs;
  times.observe_layers(stream, &runs, 4);
  std::string reason;
  Recording recording = stream.record_work(
      [&] {
        LayerMarker* marker = times.enqueues_layers(kSlot);
        for (const std::size_t node : {0, 1}) layer(*marker, node, Direction::forward);
        times.done(stream, kSlot, Phase::forward);
        for (const std::size_t node : {1, 0}) layer(*marker, node, Direction::backward_inputs);
        times.done(stream, kSlot, Phase::backward);
        times.done(stream, kSlot, Phase::exposed_communication);
      },
      reason);
  ASSERT_FALSE(recording.empty()) << reason;
  Timeline timeline;
  const auto replay = [&](std::int64_t step) {
    times.begun(stream, kSlot, step, 0);
    times.has_data(stream, kSlot);
    stream.replay(recording);
    times.ended(stream, kSlot);
    stream.synchronize();
    StepAccount account;
    timeline.clear();
    times.account(kSlot, account, &timeline);
  };
  std::int64_t last_ns = 0;
  for (const std::int64_t step : {0, 1}) {
    runs.all.clear();
    replay(step);
    ASSERT_EQ(runs.all.size(), 4u);
    for (const auto& [node, direction, begin_ns, end_ns] : runs.all) {
      EXPECT_LE(last_ns, begin_ns);
      EXPECT_LT(begin_ns, end_ns);
      last_ns = end_ns;
    }
    EXPECT_EQ(runs.all[2].node, 1u);
    EXPECT_EQ(runs.all[2].direction, Direction::backward_inputs);
    const auto forward = std::ranges::find(timeline.spans(), std::string("forward"), &Span::name);
    ASSERT_NE(forward, timeline.spans().end());
    EXPECT_EQ(runs.all[0].end_ns, runs.all[1].begin_ns) << "layers of a pass follow each other";
    EXPECT_LE(forward->begin_ns, runs.all[0].begin_ns);
    EXPECT_LE(runs.all[1].end_ns, forward->end_ns);
    EXPECT_LE(forward->end_ns, runs.all[2].begin_ns);
  }
  times.observe_layers(stream, nullptr, 0);
  replay(2);
  EXPECT_EQ(runs.all.size(), 4u) << "no observer is called";
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
    for (int i = 0; i < 4000 && !done; ++i) std::this_thread::sleep_for(milliseconds(5));
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
