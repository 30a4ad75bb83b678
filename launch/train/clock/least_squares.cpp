// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/least_squares.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep {
namespace {

// Normal equations of the used terms. Each term is scaled to at most 1, as terms differ by many orders of
// magnitude.
class NormalEquations {
 public:
  NormalEquations(std::span<const FitEquation> equations, FitTermSet set) {
    for (std::size_t i = 0; i < kMostFitTerms; ++i)
      if ((set >> i & 1U) != 0) used_.push_back(i);
    for (const FitEquation& equation : equations)
      for (const std::size_t i : used_) scale_[i] = std::max(scale_[i], std::abs(equation.terms[i]));
    for (const FitEquation& equation : equations) add(equation);
    least_pivot_ = 1e-9 * static_cast<double>(equations.size());
  }

  // Returns nothing if the equations do not determine the terms.
  std::optional<FitTerms> solve() {
    for (std::size_t pivot = 0; pivot < used_.size(); ++pivot) {
      if (!(std::abs(matrix_[pivot][pivot]) > least_pivot_)) return std::nullopt;
      for (std::size_t row = 0; row < used_.size(); ++row)
        if (row != pivot) clear(row, pivot);
    }
    FitTerms solution = {};
    for (std::size_t i = 0; i < used_.size(); ++i)
      solution[used_[i]] = matrix_[i][used_.size()] / matrix_[i][i] / scale_[used_[i]];
    return solution;
  }

 private:
  double scaled(const FitEquation& equation, std::size_t place) const {
    const std::size_t term = used_[place];
    return scale_[term] > 0 ? equation.terms[term] / scale_[term] : 0;
  }
  void add(const FitEquation& equation) {
    for (std::size_t row = 0; row < used_.size(); ++row) {
      const double value = scaled(equation, row);
      for (std::size_t column = 0; column < used_.size(); ++column)
        matrix_[row][column] += value * scaled(equation, column);
      matrix_[row][used_.size()] += value * equation.value;
    }
  }
  void clear(std::size_t row, std::size_t pivot) {
    const double factor = matrix_[row][pivot] / matrix_[pivot][pivot];
    for (std::size_t column = pivot; column <= used_.size(); ++column)
      matrix_[row][column] -= factor * matrix_[pivot][column];
  }

  std::vector<std::size_t> used_;
  FitTerms scale_ = {};
  double matrix_[kMostFitTerms][kMostFitTerms + 1] = {};
  double least_pivot_ = 0;
};

double squared_error(std::span<const FitEquation> equations, const FitTerms& solution) {
  double error = 0;
  for (const FitEquation& equation : equations) {
    double left = -equation.value;
    for (std::size_t i = 0; i < kMostFitTerms; ++i) left += equation.terms[i] * solution[i];
    error += left * left;
  }
  return error;
}

}  // namespace

std::optional<FitTerms> fit_terms(std::span<const FitEquation> equations, std::span<const FitTermSet> sets) {
  double squares = 0;
  for (const FitEquation& equation : equations) squares += equation.value * equation.value;
  constexpr double kAlike = 1e-12;
  std::optional<FitTerms> best;
  double least = 0;
  for (const FitTermSet set : sets) {
    const std::optional<FitTerms> solution = NormalEquations(equations, set).solve();
    if (!solution || std::ranges::any_of(*solution, [](double value) { return value < 0; })) continue;
    const double error = squared_error(equations, *solution);
    if (best && error >= least - kAlike * squares) continue;
    best = solution;
    least = error;
  }
  return best;
}

}  // namespace lockstep
