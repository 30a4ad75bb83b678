// SPDX-License-Identifier: Apache-2.0
//
// What a run's files come to: its figures, its account, its advice, and in what runs differ.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launch/html_report/run_files.h"
#include "launch/html_report/thinning.h"

namespace lockstep {

// NaN for what the files do not tell.
struct RunHeadline {
  double busy = kNotTold, peak = kNotTold;                                       // of the whole training
  double samples_per_second = kNotTold;                                          // the same
  double test_accuracy = kNotTold, test_loss = kNotTold, train_loss = kNotTold;  // the last told
  double top5 = kNotTold, f1_macro = kNotTold;                                   // likewise
  double train_seconds = kNotTold, evaluation_seconds = kNotTold;
  double steps = 0;
  std::size_t epochs = 0;  // that have ended
};
RunHeadline headline_of(const RunFolder& run);

// Of epochs and within them; ascending.
std::vector<EvaluationPoint> evaluation_points(const RunFolder& run);

// Of steps.jsonl, else of epochs.
std::vector<AccountPoint> account_points(const RunFolder& run);

// Where all of the time went, and in how many steps: of epochs, else of steps.jsonl.
struct WholeAccount {
  StepAccount account;
  double steps = 0;
};
WholeAccount whole_account(const RunFolder& run);

// The same advice of several epochs; the newest first.
struct GivenAdvice {
  AdviceLine advice;  // as it was given last
  double last_epoch = 0;
  std::size_t times = 0;
};
std::vector<GivenAdvice> advice_of(const RunFolder& run);

// All of communication, of the epochs that had the buckets of the last.
CommunicationLine whole_communication(const RunFolder& run);
// The mean over epochs; empty: not told.
std::vector<double> busy_by_rank(const RunFolder& run);

// A key, or a fact, of each run; a dash where a run does not have it.
struct FactRow {
  std::string key;
  std::vector<std::string> values;  // of each run
  bool differs = false;             // among runs that have the file
};
std::vector<FactRow> fact_rows(std::span<const RunFolder> runs, std::vector<RunFact> RunFolder::*facts);

// The names of folders, or as much of their paths as tells them apart.
std::vector<std::string> run_names(std::span<const RunFolder> runs);

}  // namespace lockstep
