// SPDX-License-Identifier: Apache-2.0
#include "launch/train/trials/codec_choice.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr int kSweeps = 2;

class Chooser {
 public:
  Chooser(const WaitModel& model, std::span<const std::vector<BucketTravel>> ways)
      : model_(model), ways_(ways), travel_(ways.front()) {}

  // The fastest choice of one codec for all buckets.
  CodecChoice uniform() {
    CodecChoice best;
    for (std::size_t way = 0; way < ways_.size(); ++way) {
      const double seconds = seconds_of(ways_[way]);
      if (way > 0 && seconds >= best.seconds) continue;
      best = {.by_bucket = std::vector<int>(travel_.size(), static_cast<int>(way)), .seconds = seconds};
    }
    return best;
  }

  // Chooses, bucket by bucket, the least lossy codec with which the total takes at most `limit`; if none
  // does, the fastest.
  void improve(CodecChoice& choice, double limit) {
    for (std::size_t bucket = 0; bucket < travel_.size(); ++bucket)
      travel_[bucket] = ways_[static_cast<std::size_t>(choice.by_bucket[bucket])][bucket];
    for (std::size_t bucket = 0; bucket < travel_.size(); ++bucket) {
      std::vector<double> seconds;
      for (const std::vector<BucketTravel>& way : ways_) {
        travel_[bucket] = way[bucket];
        seconds.push_back(seconds_of(travel_));
      }
      const double most = std::max(limit, *std::ranges::min_element(seconds));
      std::size_t chosen = 0;
      while (seconds[chosen] > most) ++chosen;
      travel_[bucket] = ways_[chosen][bucket];
      choice.by_bucket[bucket] = static_cast<int>(chosen);
      choice.seconds = seconds[chosen];
    }
  }

 private:
  double seconds_of(std::span<const BucketTravel> travel) const {
    const OverlappedBackward backward = model_.with(travel);
    return backward.seconds + backward.exposed_seconds;
  }

  const WaitModel& model_;
  std::span<const std::vector<BucketTravel>> ways_;
  std::vector<BucketTravel> travel_;
};

}  // namespace

CodecChoice choose_codecs(const WaitModel& model, std::span<const std::vector<BucketTravel>> ways,
                          double negligible) {
  CHECK(!ways.empty() && !ways.front().empty(), "{} codecs, and no bucket", ways.size());
  Chooser chooser(model, ways);
  CodecChoice choice = chooser.uniform();
  for (int sweep = 0; sweep < kSweeps; ++sweep) chooser.improve(choice, 0);
  chooser.improve(choice, choice.seconds + negligible);
  return choice;
}

}  // namespace lockstep
