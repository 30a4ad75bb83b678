// SPDX-License-Identifier: Apache-2.0
#include "data/formats/drug_trial.h"

#include <array>
#include <bit>
#include <vector>

#include "core/random.h"
#include "data/sample_order.h"
#include "data/sets/held_images.h"

namespace lockstep {
namespace {

constexpr std::int64_t kPeople = 2100;
constexpr std::int64_t kTrainPeople = 1890;
constexpr std::int64_t kContradicting = 50;  // of either age group
constexpr int kYoungest = 13, kFirstOlder = 65, kOldest = 100;

struct Person {
  int age = 0;
  std::int32_t label = 0;
};

// Even people are younger, odd ones older; the first pairs contradict their age.
Person person(std::int64_t index, const Random& random) {
  const bool older = index % 2 == 1, contradicts = index / 2 < kContradicting;
  const int first = older ? kFirstOlder : kYoungest, last = older ? kOldest : kFirstOlder - 1;
  const std::uint32_t word = random.bits(static_cast<std::uint64_t>(index));
  return {.age = first + static_cast<int>(word % static_cast<std::uint32_t>(last - first + 1)),
          .label = older != contradicts ? 1 : 0};
}

}  // namespace

std::unique_ptr<Dataset> open_drug_trial(Split split) {
  const SampleOrder order(kPeople, 0, 0);
  const Random random(0, "drug trial");
  const bool trains = split == Split::train;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int32_t> labels;
  for (std::int64_t place = trains ? 0 : kTrainPeople; place < (trains ? kTrainPeople : kPeople); ++place) {
    const Person each = person(order(place), random);
    const float scaled = static_cast<float>(each.age - kYoungest) / static_cast<float>(kOldest - kYoungest);
    const auto raw = std::bit_cast<std::array<std::uint8_t, sizeof(float)>>(scaled);
    bytes.insert(bytes.end(), raw.begin(), raw.end());
    labels.push_back(each.label);
  }
  return std::make_unique<HeldImages>(ImageShape{.height = 1, .width = 1, .channels = 1, .type = DType::f32},
                                      2, std::move(bytes), std::move(labels),
                                      std::vector<std::string>{"no side effects", "side effects"});
}

}  // namespace lockstep
