// SPDX-License-Identifier: Apache-2.0
//
// Fits the model's constants to traces of real runs: least squares over the all-reduces of their buckets,
// which are called sums here.
#pragma once

#include <span>
#include <vector>

#include "launch/program/plan/all_reduce_cost.h"
#include "launch/program/plan/step_model.h"
#include "launch/program/plan/step_trace.h"

namespace lockstep {

// A measured sum.
struct MeasuredSum {
  double messages = 0;          // sequential
  double bytes = 0;             // on the busiest link
  double bytes_per_second = 0;  // nominal speed of the link; 0: not known
  double seconds = 0;
  double beside_compute = 0;  // share of the seconds in which the last backward computed
};

// One sum for each bucket: the median over the steps of the time since all ranks have joined it, or since its
// begin where it directly follows another sum. Where the trace does not record when all ranks have joined,
// the lower quartile of the time since the traced rank began: in half of the steps that rank waits for a late
// peer, which is not time of the wire. Throws ConfigError for a run of one rank, for several nodes with
// several ranks each (two tiers at once), and for several nodes with MPI's own all-reduce.
std::vector<MeasuredSum> measured_sums(const StepTrace& trace, double bytes_per_second);

// seconds = messages * latency + bytes * (slowness / bytes_per_second + seconds_per_byte). No constant is
// negative.
struct TierFit {
  double latency_seconds = 0;
  double slowness = 1;  // nominal over real speed; a link without a nominal speed counts as 1 byte/s
  double seconds_per_byte = 0;
  double residual = 0;  // median of |predicted / measured - 1|

  Tier at(double bytes_per_second) const {
    return {.latency_seconds = latency_seconds,
            .bytes_per_second = bytes_per_second / slowness,
            .seconds_per_byte = seconds_per_byte};
  }
  double seconds(const MeasuredSum& sum) const;
};
// Minimises relative errors, weighted by bytes: a step waits for large sums, and small ones are often faster
// than their link, since switches and rate limits let bursts pass. Sums of one link speed cannot separate the
// wire from the processing of the bytes: seconds_per_byte is then 0. Throws ConfigError where nothing fits.
TierFit fit_tier(std::span<const MeasuredSum> sums);

// A link's constants while ranks compute, and while they wait for it: sums take longer beside compute where
// the same cores handle the messages. Both are fitted to all sums where a link speed has too few sums of
// either kind.
struct LinkFit {
  TierFit waited_for;
  TierFit beside_compute;
};
LinkFit fit_link(std::span<const MeasuredSum> sums);

// The device's forward time over that of these runs (median), each as if a rank had its cores to itself
// (NodeCores). No sum disturbs a forward pass.
double pace_beside(const ComputeModel& device, std::span<const StepTrace> runs);

// Slowdown of compute by ranks that share the cores of a node; 1 where the trace does not record the cores.
double slowdown_of(const TracedRun& run);

// The compute that sums cost: the backward time of runs with sums over that of the device alone, at the runs'
// pace. Fits a cost by time, by bytes or by both. Where the runs cannot separate the two, it is by time on a
// GPU, and by bytes where the cores that compute also handle the messages.
ComputeLoss fit_loss(const ComputeModel& alone, std::span<const StepTrace> with_sums);

}  // namespace lockstep
