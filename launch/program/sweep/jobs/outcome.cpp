// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/jobs/outcome.h"

namespace lockstep {

std::int64_t SweepOutcome::steps() const {
  std::int64_t steps = 0;
  for (const SweepRow& row : rows) steps += row.steps;
  return steps;
}

std::int64_t SweepOutcome::steps_of_all() const {
  std::int64_t steps = 0;
  for (const SweepRow& row : rows)
    if (row.epochs > 0) steps += row.complete ? row.steps : row.steps * epochs / row.epochs;
  return steps;
}

const SweepRow* SweepOutcome::best() const {
  for (const SweepRow& row : rows)
    if (row.complete && row.problem.empty()) return &row;
  return nullptr;
}

const SweepRow* SweepOutcome::failure() const {
  for (const SweepRow& row : rows)
    if (!row.problem.empty()) return &row;
  return nullptr;
}

}  // namespace lockstep
