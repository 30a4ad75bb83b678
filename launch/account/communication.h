// SPDX-License-Identifier: Apache-2.0
//
// EpochCommunication: an epoch's ledger (launch/account/ledger.h) with the other ranks' beside it, as the
// report tells it. Ranks exchange a few numbers once an epoch, and need no common clock: who is late is who
// waits for nobody while the others wait.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/account/ledger.h"

namespace lockstep {

// Seconds of an epoch.
struct RankCommunication {
  double exposed = 0;  // compute waited
  double hidden = 0;   // under way while it did not
  double waited = 0;   // in collectives, until all ranks were there
  double wire = 0;     // in them, from then on
  double starved = 0;  // buckets could have run, and no thread took them up
  double no_core =
      0;  // the thread that runs them was ready to, and no core was free; 0 where the system does not tell
};

// What to do about it (launch/account/advice.h).
struct Advice {
  std::string cause;  // late_rank, slow_wire, last_bucket, first_bucket, no_core
  std::string text;   // sentences
  std::string key;    // of the configuration; empty: nothing there helps
  std::string value;
  double samples_per_second = 0;      // estimated, over all ranks
  std::string without_estimate = {};  // the text, but for what it gains
};

struct EpochCommunication {
  LedgerSums mine;  // rank 0's, as the step account is
  std::vector<RankCommunication> by_rank;
  std::vector<double> bucket_bytes;                    // what travels of each
  std::vector<std::vector<double>> exposed_by_bucket;  // of each rank: BucketSums::exposed
  double sent_bytes = 0;                               // by rank 0
  std::optional<Advice> advice;

  // Rank 0's, in seconds of the epoch. wire: what is left of collectives without waits for a late rank.
  double exposed() const { return mine.exposed; }
  double hidden() const { return mine.hidden; }
  double overlap() const;
  double wire() const;
  double wire_bytes_per_second() const;
  // -1: none that is known. late: how long the others waited for it on the average, beyond what all wait.
  int late_rank() const;
  double late() const;
};

// Collective. Of this epoch's sums; no_core: what the communication thread took of it (RankCommunication).
EpochCommunication gather_communication(Communicator& host, LedgerSums sums, std::vector<double> bucket_bytes,
                                        double no_core);

// "comm 31.2 ms a step, 96 % hidden", "| wire 28.0 ms (5.1 GB/s)", "| late rank 2: 1.3 ms": parts of a line.
std::vector<std::string> communication_parts(const EpochCommunication& communication);

}  // namespace lockstep
