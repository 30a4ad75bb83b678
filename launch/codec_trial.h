// SPDX-License-Identifier: Apache-2.0
//
// CodecTrial: comm.codec = "auto". After some steps whose gradients are summed densely it knows the link,
// when gradients are final and what compute waits for. It measures how long codecs compute on this machine,
// asks the model which of them pays for which bucket (launch/codec_choice.h), and has the training go on so.
// After as many steps it compares: where they were not faster the next best is tried, and none in the end.
// All these are steps of the training, at fixed numbers; rank 0 decides, and tells the others.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/codecs/auto_exchange.h"
#include "comm/communicator.h"
#include "core/state.h"
#include "launch/account/ledger.h"
#include "launch/codec_choice.h"

namespace lockstep {

struct CodecTrialOptions {
  std::int64_t steps = 6;     // timed, of each way
  std::int64_t settling = 2;  // before them, that are not
  double least_gain = 0.03;   // of a step's time; where less is exposed nothing is tried
};

class CodecTrial {
 public:
  // What is given outlives this. settling_more: steps, beside those of the options, until steps are as they
  // will be.
  CodecTrial(AutoExchange& exchange, std::span<const Bucket> buckets, Communicator& host, Device device,
             std::int64_t settling_more, const CodecTrialOptions& options);

  // Collective, behind each step, which took so long. What it returns is to be chosen before the next step.
  std::optional<std::vector<int>> step_done(double seconds, Ledger& ledger);

  bool decided() const { return decided_; }
  // Nothing is tried any more: somebody else has chosen.
  void end() { start(true); }

  // The choice and whether it is final, by parameter. Where the visitor writes, what is to be chosen; a trial
  // that was under way begins anew.
  std::optional<std::vector<int>> visit_state(StateVisitor& visitor, std::span<const Parameter> parameters,
                                              const BucketPlan& plan);

 private:
  using Choice = std::optional<std::vector<int>>;
  // Collective.
  Choice begin_trial(double seconds, const LedgerSums& sums);
  Choice judge(double seconds);
  Choice try_next(std::string found);
  std::vector<double> measure_codecs();
  // Rank 0's, to all.
  std::vector<int> told(std::vector<int> by_bucket);
  void start(bool decided);
  void decide(const std::string& text);
  std::string names_of(std::span<const int> by_bucket) const;

  AutoExchange& exchange_;
  std::span<const Bucket> buckets_;
  Communicator& host_;
  Device device_;
  std::int64_t settling_more_;
  CodecTrialOptions options_;

  bool decided_ = false;
  std::int64_t steps_ = 0;       // with what is chosen now
  std::vector<double> seconds_;  // of those that are timed
  double dense_seconds_ = 0;     // median step, of the slowest rank
  std::string measured_;         // of the link, for the log
  double expected_ = 0;          // of the choice that is tried; rank 0's
  std::optional<WaitModel> model_;
  std::vector<std::vector<BucketTravel>> ways_;  // of the codecs that may still be tried
};

}  // namespace lockstep
