// SPDX-License-Identifier: Apache-2.0
//
// Summaries of a run's files: key figures, step account, advice, and differences between runs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launch/program/html_report/charts/thinning.h"
#include "launch/program/html_report/files/run_files.h"

namespace lockstep {

// Values missing from the files are NaN.
struct RunHeadline {
  double busy = kNotTold, peak = kNotTold;                                       // mean of the training
  double samples_per_second = kNotTold;                                          // the same
  double test_accuracy = kNotTold, test_loss = kNotTold, train_loss = kNotTold;  // last values
  double top5 = kNotTold, f1_macro = kNotTold, iou_mean = kNotTold;              // last values
  double train_seconds = kNotTold, evaluation_seconds = kNotTold;
  double steps = 0;
  std::size_t epochs = 0;  // completed epochs
};
RunHeadline headline_of(const RunFolder& run);

// NaN: not measured.
double metric_of(const Evaluation& evaluation, std::optional<double> EvaluationMetrics::*metric);

// Evaluations after and within epochs, ascending by step.
std::vector<EvaluationRecord> evaluation_points(const RunFolder& run);

// From steps.jsonl, else from epochs.
std::vector<AccountPoint> account_points(const RunFolder& run);

// The account of the folder's steps. Each epoch's part is from steps.jsonl, or from metrics.jsonl if that
// covers more of its steps.
struct WholeAccount {
  StepAccount account;
  double steps = 0;
  double seconds = kNotTold;  // wall time without evaluations
};
WholeAccount whole_account(const RunFolder& run);

// Advice with the epochs that repeat it merged; the newest first.
struct GivenAdvice {
  Advice advice;  // as last given
  double last_epoch = 0;
  std::size_t times = 0;
};
std::vector<GivenAdvice> advice_of(const RunFolder& run);

// Total communication of the epochs that had the same buckets and ranks as the last. mine.steps 0: none.
EpochCommunication whole_communication(const RunFolder& run);
// The mean over epochs by rank; empty: unknown.
std::vector<double> busy_by_rank(const RunFolder& run);

// A key or fact with its value in each run; a dash if a run lacks it.
struct FactRow {
  std::string key;
  std::vector<std::string> values;  // by run
  bool differs = false;             // between runs that have the file
};
std::vector<FactRow> fact_rows(std::span<const RunFolder> runs, std::vector<RunFact> RunFolder::*facts);

// The names of the folders, or their paths if names are equal.
std::vector<std::string> run_names(std::span<const RunFolder> runs);

}  // namespace lockstep
