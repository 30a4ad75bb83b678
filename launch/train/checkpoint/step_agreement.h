// SPDX-License-Identifier: Apache-2.0
//
// StepAgreement: agrees between steps, at almost no cost, on requests that any rank may have. The numbers of
// a step are sent after its last gradients and read after the next step, when they have arrived: no rank
// waits, and all ranks read the same values after the same step. If steps are short, ranks exchange only
// after every few steps, at most about every 20 ms. The batches of an evaluation count separately:
// hundreds of them may take as long as one step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class StepAgreement {
 public:
  static constexpr std::size_t kWishes = 4;
  using Wishes = std::array<std::int32_t, kWishes>;  // 0: none

  // Collective over host memory; `host` outlives this.
  explicit StepAgreement(Communicator& host);
  // Waits for an exchange under way.
  ~StepAgreement();
  StepAgreement(const StepAgreement&) = delete;
  StepAgreement& operator=(const StepAgreement&) = delete;

  // Collective, once after each step. Returns the largest of all ranks' wishes of an earlier step, once for
  // each exchange; else nothing. With one rank, returns `mine`.
  std::optional<Wishes> after_step(const Wishes& mine) { return after(steps_, mine); }
  // The same after a batch of an evaluation.
  std::optional<Wishes> after_evaluated_batch(const Wishes& mine) { return after(batches_, mine); }
  // Collective, in place of after_step() where ranks wait for each other anyway: the largest of these wishes.
  // Wishes of an earlier step that were not returned yet are dropped.
  Wishes at_once(const Wishes& mine);

 private:
  // How often ranks exchange, counted in steps or in an evaluation's batches.
  struct Pace {
    std::int64_t stride = 1;  // from one exchange to the next
    std::int64_t waited = 0;  // since the last exchange
    std::int64_t sent_ns = 0;
  };

  std::optional<Wishes> after(Pace& pace, const Wishes& mine);
  void send(Pace& pace, const Wishes& mine);
  Wishes receive();

  Communicator& host_;
  Buffer memory_;  // wishes, then the stride that rank 0 chooses
  Event arrived_;
  Pace steps_, batches_;
  Pace* under_way_ = nullptr;  // the pace of the exchange under way; null: none is
};

}  // namespace lockstep
