// SPDX-License-Identifier: Apache-2.0
//
// Ledger: what became of each bucket of gradients in each step of this rank, and what compute paid for it. It
// is fed with moments, of the records that collectives leave behind (comm/collective_log.h) or of a GPU's
// events, and adds up how long buckets waited for a thread to run them, for a late rank, and for the wire,
// and how much of that compute stood waiting for. Nothing is allocated behind the constructor. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/collective_log.h"

namespace lockstep {

// Of one bucket in one step: what its collectives took, one after another. By the host's clock, in ns; 0: not
// known.
struct BucketPassage {
  std::int64_t final_ns = 0;     // its last gradient was final
  std::int64_t enqueued_ns = 0;  // it was its turn
  std::int64_t started_ns = 0;   // the first collective ran
  std::int64_t met_ns = 0;       // all ranks were in the first; 0 on a GPU
  std::int64_t finished_ns = 0;  // the last one ended
  std::int64_t late_ns = 0;      // in them, before all ranks were there
  std::uint64_t sent_bytes = 0;
};

// Compute waited for one bucket, and for no other. In ns by the host's clock.
struct BucketWait {
  std::size_t bucket = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// What compute did meanwhile. In ns by the host's clock.
struct ComputeMoments {
  std::int64_t backward_ns = 0;  // the pass that finishes gradients began
  std::int64_t waited_ns = 0;    // it ended, and compute began to wait for buckets
  std::int64_t resumed_ns = 0;   // compute went on
  // Behind that, where buckets are waited for one by one within the next step
  // (launch/step_ends/cross_barrier.h).
  std::span<const BucketWait> waits = {};
};

// Sums over steps, in seconds.
struct BucketSums {
  double lead = 0;     // from its last gradient to the moment compute began to wait
  double starved = 0;  // it could have run, and did not: no thread took it up
  double late = 0;     // until all ranks were there
  double wire = 0;     // from then on
  double exposed = 0;  // how much of these three lies in compute's wait
  double hidden = 0;   // how much of late and wire lies outside of it
  double sent_bytes = 0;
};

struct LedgerSums {
  std::int64_t steps = 0;
  std::int64_t without_exchange = 0;  // of them
  double backward = 0;                // from its beginning to the wait
  double exposed = 0;                 // compute waited: the sum of the next four
  double exposed_starved = 0;
  double exposed_late = 0;
  double exposed_wire = 0;
  double exposed_rest = 0;  // no bucket was under way: compute was not woken yet, or ranks compared calls
  double hidden = 0;
  std::vector<BucketSums> buckets;

  // Of as many buckets.
  LedgerSums& operator+=(const LedgerSums& more);
  // The sums over `all` steps like these, which are all >= steps of them.
  void scale_to(std::int64_t all);
};

class Ledger {
 public:
  // log: of the communicator that sums gradients, where the host's records tell all moments; null where add()
  // is told. It outlives this.
  Ledger(std::size_t buckets, const CollectiveLog* log);
  // Of another communicator that buckets travel by.
  void read_also(const CollectiveLog& log);

  // Of the step under way.
  void add(std::size_t bucket, const CollectiveMoments& moments, std::uint64_t sent_bytes);
  // All that is newer in the logs than what was read before, as far as they go back.
  void read_log();
  // The sums of the step's gradients are there. What no bucket was told of stays out of the sums.
  void end_step(const ComputeMoments& compute);
  // A step of which nothing was added: on a GPU moments are taken in some steps only.
  void skip_step() { ++skipped_; }
  // True if a step has ended since take(): only then are there sums.
  bool has_steps() const { return sums_.steps > 0; }
  // Of the step that ended last.
  std::span<const BucketPassage> passages() const { return ended_; }
  const ComputeMoments& compute() const { return compute_; }

  const LedgerSums& sums() const { return sums_; }
  // Since the last call, over all steps: those of which nothing was added are taken to be like the others.
  LedgerSums take();
  // The same steps for somebody else: since the last begin_window().
  void begin_window() { clear(window_); }
  const LedgerSums& window() const { return window_; }

 private:
  struct Source {
    const CollectiveLog* log;
    std::uint64_t read;  // sequences up to this
  };
  void read(Source& source);
  // Into the sums of the step that ended.
  void account(const BucketPassage& passage, std::int64_t before_ns, BucketSums& sums);
  // How much of [begin, end] compute waited.
  std::int64_t waited_within(std::int64_t begin, std::int64_t end) const;
  static void clear(LedgerSums& sums);

  std::vector<Source> sources_;
  std::vector<BucketPassage> under_way_;  // by bucket
  std::vector<BucketPassage> ended_;
  ComputeMoments compute_;
  std::vector<BucketWait> waits_;      // its
  std::vector<std::size_t> finished_;  // buckets, as they did
  LedgerSums step_;                    // the last one's
  LedgerSums sums_;
  LedgerSums window_;
  std::int64_t skipped_ = 0;  // steps since the last take()
};

}  // namespace lockstep
