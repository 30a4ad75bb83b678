// SPDX-License-Identifier: Apache-2.0
#include "data/sample_places.h"

#include "data/sample_order.h"

namespace lockstep {

SamplePlaces::SamplePlaces(std::int64_t samples, int ranks, const LoaderOptions& options)
    : samples_(samples),
      batch_(options.batch),
      micro_batches_(ranks * options.accumulation),
      tail_(options.tail),
      seed_(options.seed) {}

std::int64_t SamplePlaces::steps_before(std::int64_t epoch, std::int64_t global_batch) const {
  switch (tail_) {
    case Tail::drop:
      return epoch * (samples_ / global_batch);
    case Tail::carry:
      return epoch * samples_ / global_batch;
    case Tail::repeat:
    case Tail::exact:
    case Tail::pad:
      return epoch * ((samples_ + global_batch - 1) / global_batch);
  }
  return 0;
}

SamplePlace SamplePlaces::at(std::int64_t step, std::int64_t micro_batch, std::int64_t index) const {
  const std::int64_t place = micro_batch * batch_ + index;
  if (tail_ == Tail::pad) {
    const std::int64_t position = step % steps_before(1) * global_batch() + place;
    return {.sample = position < samples_ ? position : -1};
  }
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  if (tail_ == Tail::carry) {  // one stream over all epochs
    const std::int64_t global = step * global_batch() + place;
    epoch = global / samples_;
    position = global % samples_;
  } else if (tail_ == Tail::exact && tail_samples() > 0 && (step + 1) % steps_before(1) == 0) {
    return in_tail(step / steps_before(1), micro_batch, index);
  } else {
    epoch = step / steps_before(1);
    position = (step % steps_before(1) * global_batch() + place) % samples_;
  }
  return {.epoch = epoch, .sample = sample_at(epoch, position), .alone = batch_ == 1};
}

SamplePlace SamplePlaces::without_samples(std::int64_t epoch, std::int64_t index) const {
  return {.epoch = epoch, .sample = sample_at(epoch, index % samples_), .weight = 0};
}

SamplePlace SamplePlaces::in_tail(std::int64_t epoch, std::int64_t micro_batch, std::int64_t index) const {
  const std::int64_t begin = tail_samples() * micro_batch / micro_batches_;
  const std::int64_t count = tail_samples() * (micro_batch + 1) / micro_batches_ - begin;
  if (count == 0) return without_samples(epoch, index);
  const std::int64_t position = samples_ - tail_samples() + begin + index % count;
  const float weight = static_cast<float>(global_batch()) / static_cast<float>(tail_samples());
  return {.epoch = epoch,
          .sample = sample_at(epoch, position),
          .weight = index < count ? weight : 0.0f,
          .alone = count == 1};
}

std::int64_t SamplePlaces::sample_at(std::int64_t epoch, std::int64_t position) const {
  return SampleOrder(samples_, seed_, static_cast<std::uint64_t>(epoch))(position);
}

}  // namespace lockstep
