// SPDX-License-Identifier: Apache-2.0
//
// StepAgreement: what any rank wants of all of them, agreed between steps at next to no cost. A step's
// numbers leave behind its last gradients and are looked at after the next step, when they have long arrived:
// nobody waits, and all ranks learn the same after the same step. Short steps are gone through several at a
// time, so that ranks ask each other at most once in some milliseconds.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "core/buffer.h"
#include "core/stream.h"

namespace lockstep {

class StepAgreement {
 public:
  static constexpr std::size_t kWishes = 4;
  using Wishes = std::array<std::int32_t, kWishes>;  // 0: none

  // Collective over host memory; `host` outlives this.
  explicit StepAgreement(Communicator& host);
  // Waits for what is under way.
  ~StepAgreement();
  StepAgreement(const StepAgreement&) = delete;
  StepAgreement& operator=(const StepAgreement&) = delete;

  // Collective, once after each step: the largest of all ranks' wishes of an earlier step, where they are
  // known now and were not before. With one rank they are this step's.
  std::optional<Wishes> after_step(const Wishes& mine);
  // Collective, instead of after_step(), where ranks wait for each other anyway: the largest of these wishes.
  // Wishes of an earlier step that have not been returned yet are dropped.
  Wishes at_once(const Wishes& mine);

 private:
  void send(const Wishes& mine);
  Wishes receive();

  Communicator& host_;
  Buffer memory_;  // wishes, then the stride that rank 0 wants
  Event arrived_;
  bool under_way_ = false;
  std::int64_t stride_ = 1;  // steps from one exchange to the next
  std::int64_t waited_ = 0;  // of them
  std::int64_t sent_ns_ = 0;
};

}  // namespace lockstep
