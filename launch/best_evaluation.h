// SPDX-License-Identifier: Apache-2.0
//
// BestEvaluation: which evaluation behind an epoch was the best so far, and whether it has been so long ago
// that training is to stop. It only compares: BestKeeper (best_keeper.h) acts on it. What it remembers is
// saved with the training. Evaluations are the same on every rank, so all decide alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/state.h"
#include "models/state_copy.h"

namespace lockstep {

struct Evaluation;

// By what one evaluation is better than another.
enum class BestBy { accuracy, loss };
inline constexpr std::string_view kBestByWords[] = {"accuracy", "loss"};
constexpr std::span<const std::string_view> words_of(BestBy) { return kBestByWords; }

// What a configuration says of them.
struct BestSettings {
  // Training stops when the best evaluation was followed by so many epochs without a better one; 0: never.
  std::int64_t stop_after_epochs = 0;
  double stop_min_delta = 0;  // by how much a better one must be better, for that alone
  BestBy by = BestBy::accuracy;
  bool keep = false;  // whether the best is kept as a file

  bool any() const { return stop_after_epochs > 0 || keep; }
};

class BestEvaluation {
 public:
  explicit BestEvaluation(const BestSettings& settings) : settings_(settings) {}

  // Behind so many epochs, of which the last may have been cut short. Returns whether it is better than all
  // before; one whose loss is not a number never is.
  bool add(const Evaluation& evaluation, std::int64_t epochs);
  bool stops() const;
  // Why, as a line for people.
  std::string reason() const;

  void visit_state(StateVisitor& visitor);
  // What visit_state() showed, out of a saved training; nothing is remembered where it is not there, or was
  // of the other figure.
  void take(const StateCopy& saved);

 private:
  bool better(double value, double than, double by) const;

  // Epochs count from 1; 0: none.
  struct Seen {
    double best = 0, reference = 0;  // the latter moves by stop_min_delta or more
    std::int64_t best_epoch = 0, reference_epoch = 0, last_epoch = 0;
  };

  BestSettings settings_;
  Seen seen_;
};

}  // namespace lockstep
