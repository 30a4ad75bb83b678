// SPDX-License-Identifier: Apache-2.0
//
// BestKeeper: acts on the results of the evaluations after epochs. Where one is the best so far, rank 0
// writes the network that was evaluated to a file (run.keep_best); where none was better for long, all ranks
// end the training (run.stop_after_epochs).
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
    Communicator& host;  // of host memory
    Report& report;
  };
  // save: writes the network as it was evaluated, or throws IoError; rank 0 calls it. Null, on every rank
  // alike: nothing is kept. All outlive this.
  BestKeeper(const Parts& parts, std::function<void()> save, FitObserver& then);

  // The other observer comes last: what it saves has what was found here.
  void epoch_over(const std::optional<Evaluation>& evaluation) override;

  // Why the best is not in its file, on rank 0; empty: it is.
  const std::string& problem() const { return problem_; }

 private:
  void end_where_it_stops();
  void keep();

  Parts parts_;
  std::function<void()> save_;
  std::string problem_;
};

}  // namespace lockstep
