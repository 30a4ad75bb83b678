// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/bucket_travel.h"

namespace lockstep {

bool has_estimate(const ExchangeChoice& choice) {
  return choice.kind->codec != nullptr && choice.kind->codec->sent_share != nullptr;
}

std::vector<BucketTravel> travel_of(std::span<const Bucket> buckets, std::span<const Parameter> parameters,
                                    DType weight_type, const CodecAssignment& assignment, int nodes,
                                    std::span<const double> seconds_per_element) {
  std::vector<BucketTravel> travels;
  for (const Bucket& bucket : buckets) {
    BucketTravel& travel = travels.emplace_back();
    std::vector<bool> used(assignment.choices.size(), false);
    double dense_bytes = 0;
    for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
      const std::size_t number = assignment.of_parameter[i];
      const ExchangeChoice& choice = assignment.choices[number];
      const auto elements = static_cast<double>(parameters[i].layout.physical_elements());
      if (!has_estimate(choice) || !choice.kind->codec->takes(choice, parameters[i])) {
        dense_bytes += elements * static_cast<double>(bucket.sent_size(weight_type));
        continue;
      }
      used[number] = true;
      travel.bytes += elements * sizeof(float) * choice.kind->codec->sent_share(choice, parameters[i], nodes);
      travel.codec_seconds += elements * seconds_per_element[number];
    }
    travel.bytes += dense_bytes;
    travel.round_trips += dense_bytes > 0 ? 1 : 0;
    for (std::size_t number = 0; number < used.size(); ++number) {
      if (used[number]) travel.round_trips += assignment.choices[number].kind->codec->round_trips;
    }
  }
  return travels;
}

// Packed values, in fp32 if a node has summed them; half of that again to send and to receive, unless they
// are sent from where they are packed; and the codec's state.
std::size_t planned_codec_bytes(const ExchangeChoice& choice, const CodecLoad& load) {
  if (choice.kind->codec == nullptr) return 0;
  const CodecKind& kind = *choice.kind->codec;
  const double kept = kind.kept == nullptr ? 0 : kind.kept(choice, load.nodes);
  const DType type = load.drivers == 1 && !kind.scales ? kind.alone : DType::f32;
  const double packed = load.largest_bucket * static_cast<double>(size_of(type));
  const double sent = type == DType::f32 ? load.largest_bucket / load.drivers * sizeof(float) / 2 : 0;
  return static_cast<std::size_t>(packed + sent + kept * sizeof(float) * load.elements / load.drivers);
}

}  // namespace lockstep
