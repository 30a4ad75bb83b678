// SPDX-License-Identifier: Apache-2.0
//
// EpochCommunication: this rank's ledger of an epoch (launch/train/clock/ledger.h) and the sums of all ranks,
// for the report. Ranks exchange a few numbers once an epoch and need no common clock: the late rank is the
// one that does not wait while its peers do.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "launch/train/clock/ledger.h"

namespace lockstep {

// Seconds of an epoch.
struct RankCommunication {
  double exposed = 0;  // compute waited
  double hidden = 0;   // communication ran and compute did not wait
  double waited = 0;   // in collectives, until all ranks had entered
  double wire = 0;     // in collectives, after all ranks had entered
  double starved = 0;  // buckets were ready, and no thread ran them
  double no_core = 0;  // the communication thread was ready without a core; 0 where not known
};

struct EpochCommunication {
  LedgerSums mine;  // this rank's; reports show rank 0's
  std::vector<RankCommunication> by_rank;
  std::vector<double> bucket_bytes;                    // bytes that travel for each bucket
  std::vector<std::vector<double>> exposed_by_bucket;  // [rank][bucket]: BucketSums::exposed
  double sent_bytes = 0;                               // by this rank

  // Sums of `mine`, in seconds of the epoch. wire: time in collectives without waits for a late rank.
  double exposed() const { return mine.exposed; }
  double hidden() const { return mine.hidden; }
  double overlap() const;
  double wire() const;
  double wire_bytes_per_second() const;
  // late_rank: -1 if none is known. late: mean time that its peers wait for it, beyond the wait of all ranks.
  int late_rank() const;
  double late() const;
};

// Collective. sums: this rank's epoch; no_core: see RankCommunication.
EpochCommunication gather_communication(Communicator& host, LedgerSums sums, std::vector<double> bucket_bytes,
                                        double no_core);

}  // namespace lockstep
