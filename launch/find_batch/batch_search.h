// SPDX-License-Identifier: Apache-2.0
//
// BatchSearch: which batches are measured, one after the other. From where it begins it doubles as long as
// that makes samples faster, and there is room; then it halves down to one that is clearly slower; then it
// looks between the smallest that is fast enough and the largest that is not. But for the first all are
// multiples that suit the kernels; where the first is none and no other is faster, the multiple next to it is
// measured, too. Pure: the same measurements give the same batches, on every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// A batch is the samples of a rank's micro-batch.
struct BatchFigure {
  std::int64_t batch = 0;
  double samples_per_second = 0;  // of all ranks
  double step_seconds = 0;
  double exposed_seconds = 0;  // of a step: communication that nothing hides, the largest of any rank's
  double busy = 0;             // the mean over ranks, see busy_share()
  std::size_t bytes = 0;       // of device memory that a rank's plan needs, the largest of any
  double seconds = 0;          // that measuring it took
  std::string problem = {};    // why it cannot be trained with; the other figures are 0 then

  bool measured() const { return problem.empty(); }
};

struct BatchLimits {
  std::int64_t start = 1;
  std::int64_t least = 1;     // batches are multiples of it
  std::int64_t most = 1;      // by plan, and by the samples that there are
  std::int64_t multiple = 1;  // suits the kernels; a multiple of least. Smaller batches may be any of least's

  // The largest that suits and is no larger; 0: there is none.
  std::int64_t suited(std::int64_t batch) const;
  bool suits(std::int64_t batch) const { return suited(batch) == batch; }
};

class BatchSearch {
 public:
  // The share of the peak that a batch must reach.
  static constexpr double kFast = 0.95;
  // The next doubling is not worth its time where the last two gained less than this.
  static constexpr double kGain = 0.02;

  explicit BatchSearch(const BatchLimits& limits) : limits_(limits) {}

  // The batch to measure next; nothing where enough is known, or what it would take, about, is more than is
  // left.
  std::optional<std::int64_t> next(double seconds_left) const;
  void tell(const BatchFigure& figure);

  // By batch.
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

// Of those that were measured: the most samples per second, and the smallest batch that reaches kFast of it.
// Null: none was measured.
const BatchFigure* fastest_batch(const std::vector<BatchFigure>& figures);
const BatchFigure* smallest_fast_batch(const std::vector<BatchFigure>& figures);
// Null where it was not measured.
const BatchFigure* figure_of_batch(const std::vector<BatchFigure>& figures, std::int64_t batch);

}  // namespace lockstep
