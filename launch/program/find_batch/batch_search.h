// SPDX-License-Identifier: Apache-2.0
//
// BatchSearch: selects the batches to measure. From the start it doubles while that increases samples per
// second and the batch fits; then it halves down to one that is clearly slower; then it tries the middle
// between the smallest fast batch and the largest slow one. All but the first are multiples that suit the
// kernels. If the first is not but is fast enough, the nearest multiple is measured, too. Pure: equal
// measurements give equal batches on every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// batch: samples of a rank's micro-batch.
struct BatchFigure {
  std::int64_t batch = 0;
  double samples_per_second = 0;  // of all ranks
  double step_seconds = 0;
  double exposed_seconds = 0;  // per step: communication not overlapped with compute, the maximum over ranks
  double busy = 0;             // the mean over ranks, see busy_share()
  std::size_t bytes = 0;       // planned device memory, the maximum over ranks
  double seconds = 0;          // time spent to measure it
  std::string problem = {};    // why it cannot be trained; the other figures are 0 then

  bool measured() const { return problem.empty(); }
};

struct BatchLimits {
  std::int64_t start = 1;
  std::int64_t least = 1;     // batches are multiples of it
  std::int64_t most = 1;      // by memory plan and dataset size
  std::int64_t multiple = 1;  // suits the kernels; a multiple of least. Batches below it: multiples of least

  // The largest suitable batch up to `batch`; 0 if there is none.
  std::int64_t suited(std::int64_t batch) const;
};

class BatchSearch {
 public:
  // The share of the peak that a batch must reach.
  static constexpr double kFast = 0.95;

  explicit BatchSearch(const BatchLimits& limits) : limits_(limits) {}

  // The batch to measure next; empty if enough is known, or if the estimated time exceeds `seconds_left`.
  std::optional<std::int64_t> next(double seconds_left) const;
  void tell(const BatchFigure& figure);
  // The largest batch that may fit: limits.most, or less where a batch could not be trained.
  std::int64_t most() const { return limits_.most; }

  // Ascending by batch.
  const std::vector<BatchFigure>& figures() const { return figures_; }

 private:
  std::vector<const BatchFigure*> measured() const;
  std::optional<std::int64_t> larger() const;
  std::optional<std::int64_t> smaller() const;
  std::optional<std::int64_t> beside() const;
  std::optional<std::int64_t> between() const;
  double cost_of(std::int64_t batch) const;
  bool known(std::int64_t batch) const;

  BatchLimits limits_;
  std::vector<BatchFigure> figures_;
};

// Return the measured batch with the most samples per second, and the smallest that reaches kFast of that
// rate. Null if none was measured.
const BatchFigure* fastest_batch(const std::vector<BatchFigure>& figures);
const BatchFigure* smallest_fast_batch(const std::vector<BatchFigure>& figures);
// Null if it was not measured.
const BatchFigure* figure_of_batch(const std::vector<BatchFigure>& figures, std::int64_t batch);

}  // namespace lockstep
