// SPDX-License-Identifier: Apache-2.0
//
// BestEvaluation: remembers the best evaluation after an epoch, and decides when training stops for lack of a
// better one. It only compares: BestKeeper (best_keeper.h) acts on the result. Its state is saved with the
// training. Evaluations are equal on every rank, so all ranks decide alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/state.h"
#include "models/state_copy.h"

namespace lockstep {

struct Evaluation;

// The figure by which evaluations are compared.
enum class BestBy { accuracy, loss };
inline constexpr std::string_view kBestByWords[] = {"accuracy", "loss"};
constexpr std::span<const std::string_view> words_of(BestBy) { return kBestByWords; }

// Settings of the configuration.
struct BestSettings {
  // Training stops after this number of epochs without a better evaluation; 0: never.
  std::int64_t stop_after_epochs = 0;
  double stop_min_delta = 0;  // least improvement that counts for stop_after_epochs
  BestBy by = BestBy::accuracy;
  bool keep = false;  // save the best network to a file

  bool any() const { return stop_after_epochs > 0 || keep; }
};

class BestEvaluation {
 public:
  explicit BestEvaluation(const BestSettings& settings) : settings_(settings) {}

  // epochs: number trained, including one that was cut short. Returns true if this evaluation is better than
  // all before. An evaluation with NaN as its accuracy or loss is never better.
  bool add(const Evaluation& evaluation, std::int64_t epochs);
  bool stops() const;
  // The network of the best evaluation was saved to the file.
  void kept() { seen_.kept_epoch = seen_.best_epoch; }
  // The epoch of the best evaluation, if its network is not in the file; else 0.
  std::int64_t unkept_epoch() const { return seen_.kept_epoch == seen_.best_epoch ? 0 : seen_.best_epoch; }
  std::int64_t best_epoch() const { return seen_.best_epoch; }
  // True if there were evaluations, and each had NaN as its accuracy or loss.
  bool only_nan() const { return seen_.last_epoch > 0 && seen_.best_epoch == 0; }
  // Why training stops, as one line for the log.
  std::string reason() const;

  void visit_state(StateVisitor& visitor);
  // Restores the values that visit_state() saved, if there are any. Returns false, and changes nothing, if
  // they are of the other figure.
  bool take(const StateCopy& saved);

 private:
  bool better(double value, double than, double by) const;

  // Epochs count from 1; 0: none.
  struct Seen {
    double best = 0, reference = 0;  // reference: best that was better by more than stop_min_delta
    std::int64_t best_epoch = 0, last_epoch = 0;
    std::int64_t reference_epoch = 0;  // without a best: the epoch before the first evaluation
    std::int64_t kept_epoch = 0;       // whose network is in the file
  };

  BestSettings settings_;
  Seen seen_;
};

}  // namespace lockstep
