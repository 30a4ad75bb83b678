// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/residual.h"

#include <utility>

#include <fmt/format.h>

#include "kernels/backend.h"

namespace lockstep {

Residual::Residual(std::string_view suffix, std::span<const CodecShare> shares,
                   std::span<const Parameter> parameters, Device device)
    : suffix_(suffix), shares_(shares), parameters_(parameters) {
  constexpr std::int64_t kLine = kAlignment / sizeof(float);
  for (const CodecShare& share : shares) {
    begin_.push_back(count_);
    count_ += (share.count + kLine - 1) / kLine * kLine;
  }
  memory_ = Buffer(2 * static_cast<std::size_t>(count_) * sizeof(float), device);
  now_ = reinterpret_cast<float*>(memory_.data());
  next_ = now_ + count_;
}

// A CPU swaps the memories; a GPU copies, because recorded work contains addresses.
void Residual::settle(Stream& compute, const std::int32_t* finite) {
  if (compute.runs_on_host()) {
    if (*finite != 0) std::swap(now_, next_);
    return;
  }
  backend_for(compute.device())
      .keep_if_finite(compute, {.finite = finite, .count = count_, .from = next_, .to = now_});
}

void Residual::add_state(std::vector<ExchangeState>& state) const {
  for (std::size_t bucket = 0; bucket < shares_.size(); ++bucket) {
    for (const CodecPiece& piece : shares_[bucket].pieces) {
      const Parameter& parameter = parameters_[piece.parameter];
      std::string name = fmt::format("{}.{}", parameter.name, suffix_);
      if (!piece.whole(parameter)) name += fmt::format("[{}:{}]", piece.range.begin, piece.range.end);
      state.push_back({.name = std::move(name),
                       .scope = StateScope::per_rank,
                       .memory = {.data = now_ + begin_[bucket] + piece.place,
                                  .shape = {piece.range.count()},
                                  .dtype = DType::f32},
                       .unsent = true});
    }
  }
}

}  // namespace lockstep
