// SPDX-License-Identifier: Apache-2.0
//
// Ledger: when each bucket of gradients of this rank moved in each step, and how long compute waited for it.
// Its input is time stamps of collectives (comm/collective_log.h) or of a GPU's events. It sums how long
// buckets waited for a thread to run them, for a late rank, and for the wire, and how much of that compute
// waited for. Steps allocate no memory, unless they are kept. For use by one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/collective_log.h"
#include "core/timeline.h"

namespace lockstep {

// One bucket in one step: its collectives, one after another. In ns of the host's clock; 0: not known.
struct BucketPassage {
  std::int64_t final_ns = 0;     // its last gradient was final
  std::int64_t enqueued_ns = 0;  // the first collective was enqueued
  std::int64_t started_ns = 0;   // this rank entered the first collective
  std::int64_t met_ns = 0;       // all ranks had entered the first; 0 on a GPU
  std::int64_t finished_ns = 0;  // the last collective ended
  std::int64_t late_ns = 0;      // in collectives, before all ranks had entered
  std::uint64_t sent_bytes = 0;
  // The collectives without a bucket just before, as one: from the first one's start to the last one's
  // end. The time until all ranks had entered the last one counts as late. 0: none.
  CollectiveMoments other;
};

// Compute waited for this bucket and no other. In ns of the host's clock.
struct BucketWait {
  std::size_t bucket = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// Moments of compute in a step. In ns of the host's clock.
struct ComputeMoments {
  std::int64_t backward_ns = 0;  // the last micro-batch's backward pass began
  std::int64_t waited_ns = 0;    // it ended, and compute began to wait for buckets
  std::int64_t resumed_ns = 0;   // compute resumed
  // Waits after that, where the next step waits for buckets one by one
  // (launch/train/step_ends/cross_barrier.h).
  std::span<const BucketWait> waits = {};
};

// Sums over steps, in seconds.
struct BucketSums {
  double lead = 0;     // from its last gradient to the beginning of compute's wait
  double starved = 0;  // it was ready, and its thread ran no collective
  double late = 0;     // until all ranks had entered it, or BucketPassage::other
  double wire = 0;     // after all ranks had entered
  double exposed = 0;  // the part of these three during which compute waited
  double hidden = 0;   // the part of late and wire during which compute did not wait
  double sent_bytes = 0;
};

struct LedgerSums {
  std::int64_t steps = 0;
  std::int64_t without_exchange = 0;  // steps that exchanged nothing
  double backward = 0;                // from its beginning to the wait
  double exposed = 0;                 // compute waited: the sum of the next four
  double exposed_starved = 0;
  double exposed_late = 0;
  double exposed_wire = 0;
  double exposed_rest = 0;  // no bucket was under way: compute was not woken yet, or ranks compared calls
  double hidden = 0;
  std::vector<BucketSums> buckets;

  // Both have the same number of buckets.
  LedgerSums& operator+=(const LedgerSums& more);
  // Scales the sums to `all` steps (all >= steps), as if the added steps were like these.
  void scale_to(std::int64_t all);
};

class Ledger {
 public:
  // log: of the communicator that sums gradients, if the host's records have all moments; null if the caller
  // uses add(). The log outlives this. keeps_steps: for durations().
  Ledger(std::size_t buckets, const CollectiveLog* log, bool keeps_steps = false);
  // Adds the log of another communicator that carries buckets; it outlives this, too.
  void read_also(const CollectiveLog& log);

  // Adds to the step under way. other: see BucketPassage.
  void add(std::size_t bucket, const CollectiveMoments& moments, std::uint64_t sent_bytes,
           const CollectiveMoments& other = {});
  // Adds the records that are new in the logs since the last call, as far as the logs reach back.
  void read_log();
  // Call when the sums of the step's gradients have arrived. Buckets without moments are not summed.
  void end_step(const ComputeMoments& compute);
  // A step without moments: a GPU takes them in some steps only.
  void skip_step() { ++skipped_; }
  // True if a step has ended since take(): only then are there sums.
  bool has_steps() const { return sums_.steps > 0; }
  // Passages and compute of the step that ended last.
  std::span<const BucketPassage> passages() const { return ended_; }
  const ComputeMoments& compute() const { return compute_; }

  const LedgerSums& sums() const { return sums_; }
  // Only with keeps_steps, for devices, which do not record when all ranks have entered: the seconds of each
  // bucket in each kept step since the last take(), in the same order on every rank. The rank that enters
  // last measures the least. With kMostKept steps and more, evenly spaced ones are kept.
  std::vector<float> durations() const;
  // Returns the sums since the last call, scaled to all steps, as if skipped steps were like the summed ones.
  // least: of each of durations() over all ranks; the rest of a bucket's time was a wait for a late rank.
  LedgerSums take(std::span<const float> least = {});
  // A second, independent sum of the same steps, since the last begin_window().
  void begin_window() { clear(window_); }
  const LedgerSums& window() const { return window_; }

  static constexpr std::size_t kMostKept = 1024;

 private:
  struct Source {
    const CollectiveLog* log;
    std::uint64_t read;  // sequences up to this
  };
  void read(Source& source);
  // Adds the step that ended last to kept_, if it is among the evenly spaced ones.
  void keep_step();
  // Sums the step that ended last, in step_.
  void sum_step();
  // Sums the kept steps again, with the waits for late ranks that follow from the least durations, and scales
  // the sums to all steps.
  void sum_again(std::span<const float> least);
  // Adds to the sums of the step that ended.
  void account(const BucketPassage& passage, std::int64_t before_ns, BucketSums& sums);
  // The part of [begin, end] in which compute waited.
  std::int64_t waited_within(std::int64_t begin, std::int64_t end) const;
  static void clear(LedgerSums& sums);

  std::vector<Source> sources_;
  std::vector<BucketPassage> under_way_;  // by bucket
  std::vector<BucketPassage> ended_;
  ComputeMoments compute_;
  std::vector<BucketWait> waits_;      // of compute_
  std::vector<std::size_t> finished_;  // bucket indices in the order in which they finished
  LedgerSums step_;                    // the step that ended last
  LedgerSums sums_;
  LedgerSums window_;
  std::int64_t skipped_ = 0;  // steps since the last take()
  struct KeptStep {
    ComputeMoments compute;
    std::vector<BucketWait> waits;
    std::vector<BucketPassage> buckets;
  };
  bool keeps_steps_;
  std::vector<KeptStep> kept_;   // since the last take(); fewer than kMostKept
  std::int64_t kept_every_ = 1;  // one step in this many is kept
};

// Records the bucket arrows of the step that ended last.
void record_flows(const Ledger& ledger, Timeline& timeline);

}  // namespace lockstep
