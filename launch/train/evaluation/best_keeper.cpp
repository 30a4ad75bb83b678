// SPDX-License-Identifier: Apache-2.0
#include "launch/train/evaluation/best_keeper.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/files/safetensors.h"
#include "core/log.h"

namespace lockstep {

// A resumed training may fulfil the stop condition already.
BestKeeper::BestKeeper(const Parts& parts, std::function<void(std::int64_t)> save)
    : parts_(parts), save_(std::move(save)) {
  const std::int64_t best = parts_.best.best_epoch();
  if (save_ && parts_.host.rank() == 0 && best > 0 && (parts_.best.unkept_epoch() > 0 || file_lacks(best))) {
    problem_ = fmt::format("{} lacks the network of epoch {}, which was the best before training resumed",
                           parts_.file.string(), best);
    log::warning("{}; a better one replaces it", problem_);
  }
  end_if_stopped();
}

// A training that resumed from an earlier checkpoint may find the file of the abandoned one. Files of earlier
// versions do not name their epoch.
bool BestKeeper::file_lacks(std::int64_t epoch) const {
  try {
    const SafetensorsReader file(parts_.file);
    const auto named = file.metadata().find(kEpochKey);
    return named != file.metadata().end() && named->second != std::to_string(epoch);
  } catch (const Error&) {
    return true;
  }
}

std::string BestKeeper::problem() const {
  if (save_ && problem_.empty() && parts_.best.only_nan())
    return fmt::format(
        "{} was not written, because the test loss was NaN in each evaluation; the evaluations' warnings "
        "name the origin",
        parts_.file.string());
  return problem_;
}

void BestKeeper::epoch_over(const EpochRecord& record) {
  if (!record.evaluation) return;
  if (parts_.best.add(*record.evaluation, record.epoch) && save_) keep(record.epoch);
  end_if_stopped();
}

void BestKeeper::end_if_stopped() {
  if (!parts_.best.stops()) return;
  if (!parts_.trainer.done()) parts_.say(parts_.best.reason());
  parts_.trainer.end();
}

// If writing fails, the earlier file stays. The other ranks wait here and not within a step, whose timeout is
// shorter.
void BestKeeper::keep(std::int64_t epoch) {
  if (parts_.host.rank() == 0) {
    try {
      save_(epoch);
      problem_.clear();
    } catch (const IoError& error) {
      if (problem_ != error.what())
        log::warning("{}; training continues, and the file of an earlier best is kept", error.what());
      problem_ = error.what();
    }
  }
  if (first_rank_where(parts_.host, !problem_.empty()) < 0) parts_.best.kept();
}

}  // namespace lockstep
