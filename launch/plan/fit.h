// SPDX-License-Identifier: Apache-2.0
//
// What traces of real runs say of the model's constants: least squares over the sums of their buckets.
#pragma once

#include <span>
#include <vector>

#include "launch/plan/all_reduce_cost.h"
#include "launch/plan/step_model.h"
#include "launch/plan/step_trace.h"

namespace lockstep {

// A sum that was measured: messages one after the other, bytes on the busiest link, the link's speed as it is
// called (0: not known), and how long it took.
struct MeasuredSum {
  double messages = 0;
  double bytes = 0;
  double bytes_per_second = 0;
  double seconds = 0;
  double beside_compute = 0;  // share of them in which the last backward computed
};

// Of the runs' buckets, since all ranks met, or since the sum before it ended, which all of them were in, by
// the median of their steps. Where a trace does not tell when
// they met, since the traced rank began, by the lower quartile: in half the steps that rank waits for a late
// one, which is no time of the wire. Throws ConfigError for a run of one rank, for one of several
// nodes that have several ranks each, whose sums tell of two tiers at once, and for one of several nodes
// whose sums were MPI's own.
std::vector<MeasuredSum> measured_sums(const StepTrace& trace, double bytes_per_second);

// seconds = messages * latency + bytes * (slowness / bytes_per_second + seconds_per_byte), none below 0.
struct TierFit {
  double latency_seconds = 0;
  double slowness = 1;  // of the link over what it is called; where that is not known, of 1 byte a second
  double seconds_per_byte = 0;
  double residual = 0;  // median of |predicted / measured - 1|

  Tier at(double bytes_per_second) const {
    return {.latency_seconds = latency_seconds,
            .bytes_per_second = bytes_per_second / slowness,
            .seconds_per_byte = seconds_per_byte};
  }
  double seconds(const MeasuredSum& sum) const;
};
// Relative errors count, of each sum by its bytes, since large ones are what a step waits for, and small ones
// are often faster than their link: switches, and the limits of tests, let some bytes pass at once. Links of
// one speed alone cannot tell the wire from what is done with the bytes: all of it is then the wire's.
TierFit fit_tier(std::span<const MeasuredSum> sums);

// A link's constants while ranks compute, and while they wait for it: where messages are handled on the cores
// that compute, sums take longer beside it. Both are those of all sums where some link has too few of either
// kind.
struct LinkFit {
  TierFit waited_for;
  TierFit beside_compute;
};
LinkFit fit_link(std::span<const MeasuredSum> sums);

// How many times as long the device takes to compute as the ranks of these runs did, by the forward passes,
// which no sum disturbs. Of both as if their cores were their own (NodeCores).
double pace_beside(const ComputeModel& device, std::span<const StepTrace> runs);

// Of a run's ranks on their nodes; 1 where its trace does not tell.
double slowdown_of(const TracedRun& run);

// What sums took from compute: from the backward of runs with sums beside that of the device alone, at the
// runs' pace. By time or by bytes, or both, as fits best; where runs do not tell them apart by time on a GPU,
// and by bytes where messages are handled on cores that compute.
ComputeLoss fit_loss(const ComputeModel& alone, std::span<const StepTrace> with_sums);

}  // namespace lockstep
