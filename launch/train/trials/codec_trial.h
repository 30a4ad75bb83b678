// SPDX-License-Identifier: Apache-2.0
//
// CodecTrial: comm.codec = "auto". A few steps with dense sums show the link's speed, when gradients are
// final and what compute waits for. The trial then measures how long codecs compute on this machine, lets the
// model choose one per bucket (launch/train/trials/codec_choice.h), and times as many steps with that choice.
// If they are not faster, it tries less lossy codecs, and in the end uses none. All these are steps of the
// training, at fixed numbers. Rank 0 decides and broadcasts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/codecs/auto_exchange.h"
#include "comm/communicator.h"
#include "core/state.h"
#include "launch/train/clock/ledger.h"
#include "launch/train/clock/wait_model.h"

namespace lockstep {

struct CodecTrialOptions {
  std::int64_t steps = 6;     // timed steps per choice
  std::int64_t settling = 2;  // untimed steps before them
  double least_gain = 0.03;   // fraction of a step; with less exposed, nothing is tried
};

class CodecTrial {
 public:
  // All references outlive this. settling_more: further untimed steps per choice, until steps take their
  // usual time.
  CodecTrial(AutoExchange& exchange, std::span<const Bucket> buckets, Communicator& host, Device device,
             std::int64_t settling_more, const CodecTrialOptions& options);

  // Collective; call after each step with its seconds. Returns the codecs to choose before the next step;
  // nullopt: keep the current ones.
  std::optional<std::vector<int>> step_done(double seconds, Ledger& ledger);

  bool decided() const { return decided_; }
  // Ends the trial: the caller chooses the codecs.
  void end() { start(true); }

  // Visits each parameter's codec and whether the choice is final. A visitor that writes: returns the codecs
  // to choose; a trial that was not finished starts again with dense sums.
  std::optional<std::vector<int>> visit_state(StateVisitor& visitor, std::span<const Parameter> parameters,
                                              const BucketPlan& plan);

 private:
  using Choice = std::optional<std::vector<int>>;
  // Collective.
  Choice begin_trial(double seconds, std::span<const LedgerSums> windows);
  Choice judge(double seconds);
  Choice try_next(std::string found);
  std::vector<double> measure_codecs();
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
  std::int64_t steps_ = 0;           // with the current choice
  std::vector<double> seconds_;      // of the timed steps
  std::vector<LedgerSums> windows_;  // sums of each timed step; on a GPU some are empty
  double dense_seconds_ = 0;         // median step of the slowest rank
  std::string measured_;             // text about the link, for the log
  double expected_ = 0;              // predicted step of the current choice; set on rank 0
  std::optional<WaitModel> model_;
  std::vector<std::vector<BucketTravel>> ways_;  // [codec][bucket], of the codecs left to try
};

}  // namespace lockstep
