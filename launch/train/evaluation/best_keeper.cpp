// SPDX-License-Identifier: Apache-2.0
#include "launch/train/evaluation/best_keeper.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"

namespace lockstep {

// A resumed training may fulfil the stop condition already.
BestKeeper::BestKeeper(const Parts& parts, std::function<void()> save)
    : parts_(parts), save_(std::move(save)) {
  std::error_code error;
  const bool lacks = parts_.best.unkept_epoch() > 0 ||
                     (parts_.best.best_epoch() > 0 && !std::filesystem::exists(parts_.file, error));
  if (save_ && lacks && parts_.host.rank() == 0) {
    problem_ = fmt::format("{} lacks the network of epoch {}, which was the best before training resumed",
                           parts_.file.string(), parts_.best.best_epoch());
    log::warning("{}; a better one replaces it", problem_);
  }
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
  if (first_rank_where(parts_.host, !problem_.empty()) < 0) parts_.best.kept();
}

}  // namespace lockstep
