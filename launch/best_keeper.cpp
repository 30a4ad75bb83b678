// SPDX-License-Identifier: Apache-2.0
#include "launch/best_keeper.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace lockstep {

// A training that goes on may have stopped before.
BestKeeper::BestKeeper(BestEvaluation& best, Trainer& trainer, Report& report, std::function<void()> save,
                       FitObserver& then)
    : best_(best), trainer_(trainer), report_(report), save_(std::move(save)), then_(then) {
  end_where_it_stops();
}

void BestKeeper::epoch_over(const std::optional<Evaluation>& evaluation) {
  if (evaluation) {
    if (best_.add(*evaluation, trainer_.epochs() + (trainer_.reported_early() ? 1 : 0)) && save_) keep();
    end_where_it_stops();
  }
  then_.epoch_over(evaluation);
}

void BestKeeper::end_where_it_stops() {
  if (!best_.stops()) return;
  if (!trainer_.done()) report_.line(best_.reason());
  trainer_.end();
}

// The file before stays where it cannot be written.
void BestKeeper::keep() {
  try {
    save_();
    problem_.clear();
  } catch (const IoError& error) {
    if (problem_.empty()) log::warning("{}; training goes on, and an earlier best stays", error.what());
    problem_ = error.what();
  }
}

}  // namespace lockstep
