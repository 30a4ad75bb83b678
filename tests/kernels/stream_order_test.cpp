// SPDX-License-Identifier: Apache-2.0
//
// Functions over flat memory on a stream with a worker: they run in its order, with its threads, beside the
// compute stream.
#include <filesystem>
#include <iterator>
#include <latch>
#include <string>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/kept_threads.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

constexpr std::int64_t kManyElements = 50'000;  // enough for several threads

Values many_ones() { return Values(static_cast<std::size_t>(kManyElements), 1.0f); }

TEST(StreamOrder, WorkersRunKernelsInStreamOrder) {
  Backend& backend = cpu_backend();
  Stream communication(Device{}, StreamUse::communication);
  Stream compute(Device{}, StreamUse::compute);
  const GuardedMemory values(many_ones()), halves(kManyElements * 2, DType::f16), computed(many_ones());
  std::int32_t finite = 7;
  std::latch held(1), reached(1);
  communication.enqueue([&held, &reached] {
    reached.count_down();
    held.wait();
  });
  reached.wait();
  backend.scale(communication, {.count = kManyElements, .factor = 3.0f, .values = values.data()});
  backend.add(communication,
              {.count = kManyElements, .a = values.data(), .b = values.data(), .sum = values.data()});
  backend.cast(communication, {.count = kManyElements,
                               .from_type = DType::f32,
                               .to_type = DType::f16,
                               .from = values.data(),
                               .to = halves.data()});
  backend.all_finite(communication, {.count = kManyElements, .values = values.data(), .finite = &finite});
  backend.scale(compute, {.count = kManyElements, .factor = 5.0f, .values = computed.data()});
  EXPECT_EQ(values.values(), many_ones()) << "kernels must wait for earlier tasks of their stream";
  EXPECT_EQ(finite, 7);
  EXPECT_EQ(computed.values(), Values(kManyElements, 5.0f)) << "the compute stream must not wait";
  held.count_down();
  communication.synchronize();
  EXPECT_EQ(values.values(), Values(kManyElements, 6.0f));
  EXPECT_EQ(halves.values(), Values(kManyElements, 6.0f));
  EXPECT_EQ(finite, 1);
}

TEST(StreamOrder, WorkersRunOptimizersWithTheSameResults) {
  Backend& backend = cpu_backend();
  const UpdateSegment segment{.begin = 0, .count = kManyElements, .adaptive = true};
  const UpdateTable table({}, {&segment, 1});
  const auto updated = [&](StreamUse use) {
    Stream stream(Device{}, use);
    const GuardedMemory value(random_values(kManyElements, "value")),
        gradient(random_values(kManyElements, "gradient"));
    const GuardedMemory first(Values(kManyElements, 0.0f)), second(Values(kManyElements, 0.0f));
    StepControl control{.learning_rate = 0.01};
    const Update update{
        .table = table, .value = value.floats(), .gradient = gradient.data(), .control = &control};
    std::vector<SquaredNorms> norms(table.chunks().size());
    std::vector<float> ratios(1);
    backend.update(stream, update, SgdUpdate{.momentum_buffer = first.floats(), .momentum = 0.9f});
    backend.update(stream, update,
                   AdamWUpdate{.first_moment = first.floats(), .second_moment = second.floats()});
    backend.update(stream, update,
                   LarsUpdate{.momentum_buffer = first.floats(), .norms = norms, .trust_ratios = ratios});
    backend.finish_step(stream, {}, &control);
    stream.synchronize();
    EXPECT_EQ(control.step, 2);
    return value.values();
  };
  EXPECT_EQ(updated(StreamUse::communication), updated(StreamUse::compute));
}

// identity() reports the threads of its caller.
std::string identity_on(Stream& stream) {
  Backend& backend = cpu_backend();
  std::string identity;
  backend.scale(stream, {});
  stream.enqueue([&backend, &identity] { identity = backend.identity(); });
  stream.synchronize();
  return identity;
}

TEST(StreamOrder, EachStreamHasItsOwnThreads) {
  Stream communication(Device{}, StreamUse::communication);
  const std::string before = cpu_backend().identity();
  const std::string one = identity_on(communication);
  EXPECT_TRUE(one.ends_with(", 1 threads")) << one;
  communication.set_threads(3);
  const std::string three = identity_on(communication);
  EXPECT_TRUE(three.ends_with(", 3 threads")) << three;
  EXPECT_EQ(cpu_backend().identity(), before) << "the threads of the compute stream must not change";
}

// The team's threads wait for further work, so they can be counted after the copy.
TEST(StreamOrder, LargeCopiesOnTheComputeStreamUseItsThreads) {
  const KeptThreads kept;
  cpu_backend().set_threads(5);
  Stream compute(Device{}, StreamUse::compute);
  const Values from = random_values(std::int64_t{1} << 18, "copied");
  Values to(from.size());
  compute.copy(to.data(), from.data(), from.size() * sizeof(float));
  EXPECT_EQ(to, from);
  const std::filesystem::directory_iterator threads("/proc/self/task");
  EXPECT_GE(std::distance(threads, std::filesystem::directory_iterator()), 5);
}

}  // namespace
}  // namespace lockstep
