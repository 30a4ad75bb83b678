// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/step_agreement.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/log.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

// 20 ms: too short for a user or a scheduler to notice, and long compared with the cost of an exchange.
constexpr double kIntervalNs = 20e6;
constexpr std::int64_t kMostStride = 1000;

}  // namespace

StepAgreement::StepAgreement(Communicator& host)
    : host_(host), memory_(host.allocate((kWishes + 1) * sizeof(std::int32_t))), arrived_(Device{}) {}

StepAgreement::~StepAgreement() {
  if (under_way_ == nullptr) return;
  try {
    arrived_.synchronize();
  } catch (const std::exception& error) {
    log::debug("the last exchange of requests failed: {}", error.what());
  }
}

std::optional<StepAgreement::Wishes> StepAgreement::after(Pace& pace, const Wishes& mine) {
  if (host_.size() == 1) return mine;
  std::optional<Wishes> known;
  if (under_way_ != nullptr) known = receive();
  if (++pace.waited >= pace.stride) send(pace, mine);
  return known;
}

StepAgreement::Wishes StepAgreement::at_once(const Wishes& mine) {
  if (host_.size() == 1) return mine;
  if (under_way_ != nullptr) receive();
  ++steps_.waited;
  send(steps_, mine);
  return receive();
}

void StepAgreement::send(Pace& pace, const Wishes& mine) {
  auto* numbers = reinterpret_cast<std::int32_t*>(memory_.data());
  std::ranges::copy(mine, numbers);
  numbers[kWishes] = 0;
  const std::int64_t now = now_ns();
  if (host_.rank() == 0 && pace.sent_ns != 0) {
    const double each_ns = static_cast<double>(now - pace.sent_ns) / static_cast<double>(pace.waited);
    const double stride = std::ceil(kIntervalNs / std::max(each_ns, 1.0));
    numbers[kWishes] = static_cast<std::int32_t>(std::min(stride, static_cast<double>(kMostStride)));
  }
  pace.sent_ns = now;
  pace.waited = 0;
  host_.all_reduce(numbers, kWishes + 1, DType::i32, ReduceOp::max);
  host_.stream().record(arrived_);
  under_way_ = &pace;
}

StepAgreement::Wishes StepAgreement::receive() {
  arrived_.synchronize();
  const auto* numbers = reinterpret_cast<const std::int32_t*>(memory_.data());
  std::exchange(under_way_, nullptr)->stride = std::max<std::int64_t>(1, numbers[kWishes]);
  Wishes wishes;
  std::copy_n(numbers, kWishes, wishes.begin());
  return wishes;
}

}  // namespace lockstep
