// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/residual.h"

#include <utility>

#include <fmt/format.h>

namespace lockstep {
namespace {

// Where each bucket's residual begins, and where the last one ends.
std::vector<std::int64_t> residual_places(std::span<const CodecShare> shares) {
  constexpr std::int64_t kLine = kAlignment / sizeof(float);
  std::vector<std::int64_t> places = {0};
  for (const CodecShare& share : shares)
    places.push_back(places.back() + (share.count + kLine - 1) / kLine * kLine);
  return places;
}

}  // namespace

Residual::Residual(std::string_view suffix, std::span<const CodecShare> shares,
                   std::span<const Parameter> parameters, Device device)
    : suffix_(suffix),
      shares_(shares),
      parameters_(parameters),
      begin_(residual_places(shares)),
      memory_(begin_.back(), device) {}

void Residual::add_state(std::vector<ExchangeState>& state) const {
  for (std::size_t bucket = 0; bucket < shares_.size(); ++bucket) {
    for (const CodecPiece& piece : shares_[bucket].pieces) {
      const Parameter& parameter = parameters_[piece.parameter];
      std::string name = fmt::format("{}.{}", parameter.name, suffix_);
      if (!piece.whole(parameter)) name += fmt::format("[{}:{}]", piece.range.begin, piece.range.end);
      state.push_back({.name = std::move(name),
                       .scope = StateScope::per_rank,
                       .memory = {.data = memory_.now() + begin_[bucket] + piece.place,
                                  .shape = {piece.range.count()},
                                  .dtype = DType::f32},
                       .unsent = true});
    }
  }
}

}  // namespace lockstep
