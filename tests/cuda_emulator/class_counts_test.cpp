// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/class_counts.h"

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/kernels/class_counts_reference.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

CountedClasses counted_by_device(const CountedBatch& batch) {
  CountedClasses counts(batch.classes);
  const DeviceMemory logits(batch.logits, batch.type), labels(batch.labels),
      weights(batch.weights, DType::f32), in_top(std::vector<std::int32_t>{0}), by_class(counts.by_class),
      confusion(counts.confusion);
  ClassCounts arguments =
      batch.arguments(logits.data(), labels.as<const std::int32_t>(), weights.as<const float>(), counts);
  arguments.in_top = in_top.as<std::int32_t>();
  arguments.by_class = by_class.as<std::int32_t>();
  arguments.confusion = confusion.as<std::int32_t>();
  Stream stream(Device{}, StreamUse::compute);
  cuda_count_classes(stream, arguments);
  counts.in_top = *in_top.as<std::int32_t>();
  counts.by_class = by_class.items<std::int32_t>();
  counts.confusion = confusion.items<std::int32_t>();
  return counts;
}

CountedClasses counted_by_cpu_backend(const CountedBatch& batch) {
  CountedClasses counts(batch.classes);
  Stream stream(Device{}, StreamUse::compute);
  const DeviceMemory logits(batch.logits, batch.type);
  backend_for(Device{}).count_classes(
      stream, batch.arguments(logits.data(), batch.labels.data(), batch.weights.data(), counts));
  return counts;
}

TEST(CudaClassCounts, EqualTheCpu) {
  Thinning thinning;
  for (const DType type : kElementTypes) {
    for (const auto& [samples, classes] :
         {std::pair{1, 1}, {1, 10}, {5, 3}, {33, 101}, {7, 1000}, {300, 10}}) {
      if (!thinning.takes()) continue;
      SCOPED_TRACE(fmt::format("{} samples of {} classes in {}", samples, classes, name_of(type)));
      const CountedBatch batch = CountedBatch::random(type, samples, classes);
      const CountedClasses expected = counted_by_cpu_backend(batch);
      EXPECT_EQ(expected, reference_counts(batch));
      for (const emulator::Order order : {emulator::Order::descending, emulator::Order::ascending}) {
        emulator::set_order(order);
        EXPECT_EQ(counted_by_device(batch), expected);
      }
    }
  }
}

TEST(CudaClassCounts, EqualTheCpuForTiesInfinitiesAndNans) {
  for (const CountedBatch& batch : hard_batches())
    EXPECT_EQ(counted_by_device(batch), counted_by_cpu_backend(batch));
}

TEST(CudaClassCounts, ASingleOutputMeansAClass) {
  for (const auto& [batch, predictions] : single_output_batches()) {
    CountedClasses counted = counted_by_device(batch);
    counted.in_top = 0;  // has no meaning
    EXPECT_EQ(counted, counts_of(batch, predictions));
  }
}

// The loss is NaN in this case. The kernel must not write outside the counts.
TEST(CudaClassCounts, ALabelOutsideTheClassesIsNotCounted) {
  CountedBatch batch = CountedBatch::random(DType::f32, 5, 6);
  CountedBatch without = batch;
  without.weights[2] = 0;
  for (const std::int32_t label : {-1, 6, 1 << 30}) {
    batch.labels[2] = label;
    EXPECT_EQ(counted_by_device(batch), reference_counts(without)) << label;
  }
}

TEST(CudaClassCounts, AnEmptyBatchCountsNothing) {
  EXPECT_EQ(counted_by_device({.classes = 3}), CountedClasses(3));
}

}  // namespace
}  // namespace lockstep
