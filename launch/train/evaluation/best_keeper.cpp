// SPDX-License-Identifier: Apache-2.0
#include "launch/train/evaluation/best_keeper.h"

#include <utility>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"

namespace lockstep {

// A resumed training may fulfil the stop condition already.
BestKeeper::BestKeeper(const Parts& parts, std::function<void()> save)
    : parts_(parts), save_(std::move(save)) {
  end_if_stopped();
}

void BestKeeper::epoch_over(const EpochRecord& record) {
  if (!record.evaluation) return;
  if (parts_.best.add(*record.evaluation, record.epoch) && save_) keep();
  end_if_stopped();
}

void BestKeeper::end_if_stopped() {
  if (!parts_.best.stops()) return;
  if (!parts_.trainer.done()) parts_.say(parts_.best.reason());
  parts_.trainer.end();
}

// If writing fails, the earlier file stays. The other ranks wait here and not within a step, whose timeout is
// shorter.
void BestKeeper::keep() {
  if (parts_.host.rank() == 0) {
    try {
      save_();
      problem_.clear();
    } catch (const IoError& error) {
      if (problem_.empty())
        log::warning("{}; training continues, and the file of an earlier best is kept", error.what());
      problem_ = error.what();
    }
  }
  first_rank_where(parts_.host, !problem_.empty());
}

}  // namespace lockstep
