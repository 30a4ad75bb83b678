// SPDX-License-Identifier: Apache-2.0
#include "kernels/class_counts.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/kernels/class_counts_reference.h"
#include "tests/kernels/planned_memory.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

CountedClasses counted_by_cpu(const CountedBatch& batch) {
  CountedClasses counts(batch.classes);
  const GuardedMemory logits(batch.logits, batch.type);
  Stream stream(Device{}, StreamUse::compute);
  cpu_backend().count_classes(
      stream, batch.arguments(logits.data(), batch.labels.data(), batch.weights.data(), counts));
  return counts;
}

TEST(ClassCounts, MatchTheDefinition) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [samples, classes] :
         {std::pair{1, 1}, {5, 3}, {33, 101}, {7, 1000}, {2500, 10}, {20000, 3}}) {
      SCOPED_TRACE(fmt::format("{} samples of {} classes in {}", samples, classes, name_of(type)));
      const CountedBatch batch = CountedBatch::random(type, samples, classes);
      EXPECT_EQ(counted_by_cpu(batch), reference_counts(batch));
    }
  }
}

TEST(ClassCounts, MatchTheDefinitionForTiesInfinitiesAndNans) {
  for (const CountedBatch& batch : hard_batches()) EXPECT_EQ(counted_by_cpu(batch), reference_counts(batch));
}

TEST(ClassCounts, ASingleOutputMeansAClass) {
  for (const auto& [batch, predictions] : single_output_batches())
    EXPECT_EQ(counted_by_cpu(batch), counts_of(batch, predictions));
}

// Counts the same samples as correct as the loss kernel does.
TEST(ClassCounts, AgreeWithTheLoss) {
  std::vector<CountedBatch> batches = hard_batches();
  for (const DType type : {DType::f32, DType::f16, DType::bf16})
    batches.push_back(CountedBatch::random(type, 300, 10));
  for (const CountedBatch& batch : batches) {
    const CountedClasses counts = counted_by_cpu(batch);
    const GuardedMemory logits(batch.logits, batch.type);
    Stream stream(Device{}, StreamUse::compute);
    LossSums sums;
    cpu_backend().softmax_cross_entropy(stream, {.batch = static_cast<std::int64_t>(batch.labels.size()),
                                                 .classes = batch.classes,
                                                 .type = batch.type,
                                                 .logits = logits.data(),
                                                 .labels = batch.labels.data(),
                                                 .weights = batch.weights.data(),
                                                 .sums = &sums});
    std::int32_t right = 0, samples = 0;
    for (std::int64_t k = 0; k < batch.classes; ++k) {
      right += counts.confused(k, k);
      samples += counts.by_class[static_cast<std::size_t>(k)];
    }
    EXPECT_EQ(right, sums.correct);
    EXPECT_EQ(samples, sums.samples);
    EXPECT_GE(counts.in_top, sums.correct);
  }
}

TEST(ClassCounts, AreAddedAndNullOutputsAreSkipped) {
  const CountedBatch batch = CountedBatch::random(DType::f32, 40, 6);
  const CountedClasses once = counted_by_cpu(batch);
  CountedClasses twice = once;
  Stream stream(Device{}, StreamUse::compute);
  ClassCounts arguments =
      batch.arguments(batch.logits.data(), batch.labels.data(), batch.weights.data(), twice);
  arguments.by_class = arguments.confusion = nullptr;
  cpu_backend().count_classes(stream, arguments);
  EXPECT_EQ(twice.in_top, 2 * once.in_top);
  EXPECT_EQ(twice.by_class, once.by_class);
  EXPECT_EQ(twice.confusion, once.confusion);

  CountedClasses again = once;
  cpu_backend().count_classes(
      stream, batch.arguments(batch.logits.data(), batch.labels.data(), batch.weights.data(), again));
  EXPECT_EQ(again.in_top, 2 * once.in_top);
  for (std::size_t i = 0; i < once.by_class.size(); ++i) EXPECT_EQ(again.by_class[i], 2 * once.by_class[i]);
  for (std::size_t i = 0; i < once.confusion.size(); ++i)
    EXPECT_EQ(again.confusion[i], 2 * once.confusion[i]);
}

TEST(ClassCounts, ALabelOutsideTheClassesIsNamed) {
  CountedBatch batch = CountedBatch::random(DType::f32, 5, 6);
  batch.labels[3] = 6;
  expect_parts(message_of([&] { counted_by_cpu(batch); }), {"sample 3", "label 6"});
}

}  // namespace
}  // namespace lockstep
