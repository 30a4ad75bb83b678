// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/codec_advice.h"

#include <algorithm>
#include <memory>
#include <string>

#include "comm/codecs/codec_speed.h"
#include "core/error.h"

namespace lockstep {

std::function<std::vector<CodecAdvice>()> codecs_to_advise(const BucketOptions& options,
                                                           std::span<const Parameter> parameters,
                                                           std::span<const Bucket> buckets, DType weight_type,
                                                           Device device, int nodes) {
  const bool may =
      options.exchange.kind == &kDenseSum && options.codecs.rules.empty() && !options.along_tree && nodes > 1;
  if (!may || options.codecs.candidates.empty()) return nullptr;
  auto known = std::make_shared<std::vector<CodecAdvice>>();
  return [=, candidates = options.codecs.candidates] {
    if (!known->empty()) return *known;
    for (const ExchangeChoice& choice : candidates) {
      std::vector<double> seconds;
      try {
        seconds.push_back(codec_seconds_per_element(choice, device, nodes));
      } catch (const MemoryError&) {
        continue;  // a training that fills its device has no room for it either
      }
      const CodecAssignment all{.choices = {choice},
                                .of_parameter = std::vector<std::size_t>(parameters.size(), 0)};
      known->push_back({.codec = std::string(choice.kind->name),
                        .travel = travel_of(buckets, parameters, weight_type, all, nodes, seconds)});
    }
    return *known;
  };
}

std::size_t planned_codec_bytes(const BucketOptions& options, std::int64_t elements, const World& world) {
  const bool ranks_are_nodes = options.codecs.compress_within_node;
  const int nodes = ranks_are_nodes ? world.size() : world.nodes();
  if (nodes < 2) return 0;
  const auto all = static_cast<double>(elements);
  // A bucket is closed after the parameter that fills it, which may be large.
  const double largest = std::min(all, 2.0 * static_cast<double>(options.middle_bytes) / sizeof(float));
  const CodecLoad load{.elements = all,
                       .largest_bucket = largest,
                       .nodes = nodes,
                       .drivers = ranks_are_nodes ? 1 : std::max(1, world.size() / nodes)};
  std::size_t bytes = planned_codec_bytes(options.exchange, load);
  for (const CodecRule& rule : options.codecs.rules)
    bytes = std::max(bytes, planned_codec_bytes(rule.choice, load));
  if (options.exchange.kind != &kAutoCodec) return bytes;
  for (const ExchangeChoice& choice : options.codecs.candidates)
    bytes = std::max(bytes, planned_codec_bytes(choice, load));
  return bytes;
}

}  // namespace lockstep
