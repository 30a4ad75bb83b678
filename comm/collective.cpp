// SPDX-License-Identifier: Apache-2.0
#include "comm/collective.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 6> kCollectiveNames = {"all_reduce", "reduce_scatter", "all_gather",
                                                              "broadcast",  "barrier",        "all_to_all"};

constexpr std::array<std::string_view, 3> kOpNames = {"sum", "max", "min"};

// Bits of CollectiveIdentity::call, from the lowest: kind 4, type 4, operation 4, root 20, purpose 32: 31 for
// a bucket or layer + 1, and 1 for which of the two.
constexpr int kTypeAt = 4;
constexpr int kOpAt = 8;
constexpr int kRootAt = 12;
constexpr int kPurposeAt = 32;
constexpr int kOfLayerAt = 63;

std::uint64_t field(std::uint64_t call, int at, int bits) {
  return (call >> at) & ((std::uint64_t{1} << bits) - 1);
}

std::uint64_t packed(const CollectivePurpose& purpose) {
  const bool of_layer = purpose.layer >= 0;
  return static_cast<std::uint64_t>((of_layer ? purpose.layer : purpose.bucket) + 1) << kPurposeAt |
         std::uint64_t{of_layer} << kOfLayerAt;
}

CollectivePurpose purpose_of(std::uint64_t call) {
  const auto number = static_cast<std::int32_t>(field(call, kPurposeAt, 31)) - 1;
  return field(call, kOfLayerAt, 1) != 0 ? CollectivePurpose{.layer = number}
                                         : CollectivePurpose{.bucket = number};
}

std::uint64_t mixed(std::uint64_t hash,
                    std::uint64_t value) {  // FNV-1a over 64 bits, mixed as splitmix64 does
  hash = (hash ^ value) * 0x100000001b3u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  return hash ^ (hash >> 27);
}

}  // namespace

std::string_view name_of(CollectiveKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kCollectiveNames.size() ? kCollectiveNames[index] : "?";
}

std::string describe(const Collective& collective) {
  std::string text(name_of(collective.kind));
  if (collective.sequence > 0) text += fmt::format(" {}", collective.sequence);
  if (collective.kind == CollectiveKind::barrier) return text;
  text += fmt::format(" of {} {}", collective.count, name_of(collective.dtype));
  std::string more;
  if (collective.kind == CollectiveKind::broadcast) more = fmt::format("from rank {}", collective.root);
  if (collective.kind == CollectiveKind::all_reduce || collective.kind == CollectiveKind::reduce_scatter)
    more = kOpNames[static_cast<std::size_t>(collective.op) % kOpNames.size()];
  const std::int32_t bucket = collective.purpose.bucket, layer = collective.purpose.layer;
  if (bucket >= 0 || layer >= 0) {
    more += fmt::format("{}{} {}", more.empty() ? "" : ", ", layer >= 0 ? "layer" : "bucket",
                        std::max(bucket, layer));
  }
  return more.empty() ? text : fmt::format("{} ({})", text, more);
}

CollectiveIdentity identity_of(const Collective& collective) {
  const auto call =
      static_cast<std::uint64_t>(collective.kind) | static_cast<std::uint64_t>(collective.dtype) << kTypeAt |
      static_cast<std::uint64_t>(collective.op) << kOpAt |
      field(static_cast<std::uint64_t>(collective.root), 0, 20) << kRootAt | packed(collective.purpose);
  return {.sequence = collective.sequence, .call = call, .count = collective.count};
}

Collective collective_of(const CollectiveIdentity& identity) {
  return {.kind = static_cast<CollectiveKind>(field(identity.call, 0, 4)),
          .dtype = static_cast<DType>(field(identity.call, kTypeAt, 4)),
          .op = static_cast<ReduceOp>(field(identity.call, kOpAt, 4)),
          .root = static_cast<std::int32_t>(field(identity.call, kRootAt, 20)),
          .count = identity.count,
          .purpose = purpose_of(identity.call),
          .sequence = identity.sequence};
}

std::uint64_t chained_hash(std::uint64_t before, const CollectiveIdentity& identity) {
  return mixed(mixed(mixed(before, identity.sequence), identity.call), identity.count);
}

}  // namespace lockstep
