// SPDX-License-Identifier: Apache-2.0
//
// BestKeeper: acts on the evaluations after epochs. If one is the best so far, rank 0 writes the evaluated
// network to a file (run.keep_best). If none was better for run.stop_after_epochs epochs, all ranks end the
// training.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "launch/best_evaluation.h"
#include "launch/fit_observer.h"
#include "launch/run_files/report.h"
#include "launch/trainer.h"

namespace lockstep {

class BestKeeper final : public PassingObserver {
 public:
  struct Parts {
    BestEvaluation& best;
    Trainer& trainer;
    Communicator& host;  // over host memory
    Report& report;
  };
  // save: writes the evaluated network, or throws IoError; called on rank 0. Null, on all ranks: nothing is
  // saved. All parts, and `then`, outlive this.
  BestKeeper(const Parts& parts, std::function<void()> save, FitObserver& then);

  // Calls `then` last, so that a checkpoint written there includes the result.
  void epoch_over(const std::optional<Evaluation>& evaluation) override;

  // Why the last write failed, on rank 0; empty: it succeeded.
  const std::string& problem() const { return problem_; }

 private:
  void end_where_it_stops();
  void keep();

  Parts parts_;
  std::function<void()> save_;
  std::string problem_;
};

}  // namespace lockstep
