// SPDX-License-Identifier: Apache-2.0
//
// A reference of ClassCounts by sorting, for tests of every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/class_counts.h"
#include "tests/kernels/affine_reference.h"

namespace lockstep {

struct CountedClasses {
  explicit CountedClasses(std::int64_t count)
      : classes(count),
        by_class(static_cast<std::size_t>(3 * count)),
        confusion(static_cast<std::size_t>(count * count)) {}

  std::int32_t confused(std::int64_t label, std::int64_t prediction) const {
    return confusion[static_cast<std::size_t>(label * classes + prediction)];
  }
  friend bool operator==(const CountedClasses&, const CountedClasses&) = default;

  std::int64_t classes;
  std::int32_t in_top = 0;
  std::vector<std::int32_t> by_class, confusion;
};

struct CountedBatch {
  DType type = DType::f32;
  std::int64_t classes = 0;
  Values logits;
  std::vector<std::int32_t> labels;
  Values weights;
  bool single_output = false;
  Loss loss = Loss::cross_entropy;

  // Few distinct values, so that many logits are equal. Every fourth sample is padding.
  static CountedBatch random(DType type, std::int64_t samples, std::int64_t classes) {
    CountedBatch batch{.type = type,
                       .classes = classes,
                       .logits = random_values(samples * classes, "counted logits"),
                       .weights = Values(static_cast<std::size_t>(samples), 1.0f)};
    for (float& logit : batch.logits) logit = std::round(8 * logit) / 4;
    for (std::int64_t i = 0; i < samples; ++i) {
      batch.labels.push_back(static_cast<std::int32_t>(i * 7 % classes));
      if (i % 4 == 3) batch.weights[static_cast<std::size_t>(i)] = 0;
    }
    return batch;
  }

  ClassCounts arguments(const void* from, const std::int32_t* label, const float* weight,
                        CountedClasses& counts) const {
    return {.batch = static_cast<std::int64_t>(labels.size()),
            .classes = classes,
            .single_output = single_output,
            .loss = loss,
            .type = type,
            .logits = from,
            .labels = label,
            .weights = weight,
            .in_top = single_output ? nullptr : &counts.in_top,
            .by_class = counts.by_class.data(),
            .confusion = counts.confusion.data()};
  }
};

inline CountedClasses reference_counts(const CountedBatch& batch) {
  CountedClasses counts(batch.classes);
  const auto classes = static_cast<std::size_t>(batch.classes);
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    if (batch.weights[i] == 0) continue;
    const auto label = static_cast<std::size_t>(batch.labels[i]);
    ++counts.by_class[label];
    const auto row = batch.logits.begin() + static_cast<std::ptrdiff_t>(i * classes);
    const std::vector<float> logits(row, row + batch.classes);
    if (std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); })) continue;
    if (std::isinf(*std::ranges::max_element(logits))) continue;
    std::vector<std::size_t> order(classes);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    const std::size_t prediction = order[0];
    ++counts.by_class[classes + prediction];
    if (prediction == label) ++counts.by_class[2 * classes + label];
    ++counts.confusion[label * classes + prediction];
    if (std::find(order.begin(), order.end(), label) - order.begin() < 5) ++counts.in_top;
  }
  return counts;
}

// A single output for each sample, and the classes that it means; -1: none.
inline std::vector<std::pair<CountedBatch, std::vector<std::int32_t>>> single_output_batches() {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  CountedBatch numbers{.classes = 4,
                       .logits = {0.25f, -3, 1.5f, 2.75f, 9, nan, infinity},
                       .labels = {0, 1, 2, 3, 0, 1, 2},
                       .weights = Values(7, 1.0f),
                       .single_output = true,
                       .loss = Loss::mean_squared_error};
  CountedBatch halves = numbers;
  halves.classes = 2;
  halves.labels = {1, 0, 1, 0, 1, 0, 1};
  halves.loss = Loss::binary_cross_entropy;
  return {{numbers, {0, 0, 2, 3, 3, -1, -1}}, {halves, {1, 0, 1, 1, 1, -1, -1}}};
}

inline CountedClasses counts_of(const CountedBatch& batch, const std::vector<std::int32_t>& predictions) {
  CountedClasses counts(batch.classes);
  const auto classes = static_cast<std::size_t>(batch.classes);
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const auto label = static_cast<std::size_t>(batch.labels[i]);
    ++counts.by_class[label];
    if (predictions[i] < 0) continue;
    const auto prediction = static_cast<std::size_t>(predictions[i]);
    ++counts.by_class[classes + prediction];
    if (prediction == label) ++counts.by_class[2 * classes + label];
    ++counts.confusion[label * classes + prediction];
  }
  return counts;
}

// Ties, infinities and NaNs, with labels before, among and after them.
inline std::vector<CountedBatch> hard_batches() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  std::vector<CountedBatch> batches;
  for (const std::int64_t classes : {1, 2, 6, 40}) {
    for (const float value : {nan, kInfinity, -kInfinity, 1.0f}) {
      for (const std::int64_t place : {std::int64_t{-1}, std::int64_t{0}, classes / 2, classes - 1}) {
        CountedBatch batch{.classes = classes};
        for (std::int64_t label = 0; label < classes; ++label) {
          for (std::int64_t k = 0; k < classes; ++k)
            batch.logits.push_back(place < 0 || k == place ? value : static_cast<float>((k + label) % 3));
          batch.labels.push_back(static_cast<std::int32_t>(label));
          batch.weights.push_back(1);
        }
        batches.push_back(batch);
      }
    }
  }
  return batches;
}

}  // namespace lockstep
