// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/communication.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/agreement.h"

namespace lockstep {
namespace {

// A rank is late, and its lateness no noise, when it costs this share of communication time.
constexpr double kLateShare = 0.1;

double least_waited(const std::vector<RankCommunication>& ranks) {
  return std::ranges::min(ranks, {}, &RankCommunication::waited).waited;
}

// All ranks have the same buckets.
std::vector<std::vector<double>> gather_exposed(Communicator& host, const std::vector<BucketSums>& buckets) {
  std::vector<double> mine;
  for (const BucketSums& bucket : buckets) mine.push_back(bucket.exposed);
  if (mine.empty()) return {};
  std::vector<double> all(mine.size() * static_cast<std::size_t>(host.size()));
  gather_bytes(host, mine.data(), all.data(), mine.size() * sizeof(double));
  std::vector<std::vector<double>> by_rank;
  for (auto rank = all.begin(); rank != all.end(); rank += static_cast<std::ptrdiff_t>(mine.size()))
    by_rank.emplace_back(rank, rank + static_cast<std::ptrdiff_t>(mine.size()));
  return by_rank;
}

}  // namespace

double EpochCommunication::overlap() const {
  const double all = exposed() + hidden();
  return all > 0 ? hidden() / all : 1;
}

double EpochCommunication::wire() const {
  double seconds = by_rank.empty() ? 0 : least_waited(by_rank);  // no rank's lateness explains it
  for (const BucketSums& bucket : mine.buckets) seconds += bucket.wire;
  return seconds;
}

double EpochCommunication::wire_bytes_per_second() const { return wire() > 0 ? sent_bytes / wire() : 0; }

int EpochCommunication::late_rank() const {
  if (by_rank.size() < 2) return -1;
  const auto least = std::ranges::min_element(by_rank, {}, &RankCommunication::waited);
  const int rank = static_cast<int>(least - by_rank.begin());
  return late() > kLateShare * (mine.hidden + mine.exposed + late()) ? rank : -1;
}

double EpochCommunication::late() const {
  if (by_rank.size() < 2) return 0;
  const double all =
      std::accumulate(by_rank.begin(), by_rank.end(), 0.0,
                      [](double sum, const RankCommunication& rank) { return sum + rank.waited; });
  const double least = least_waited(by_rank);
  return (all - least) / static_cast<double>(by_rank.size() - 1) - least;
}

EpochCommunication gather_communication(Communicator& host, LedgerSums sums, std::vector<double> bucket_bytes,
                                        double no_core) {
  RankCommunication mine{.exposed = sums.exposed, .hidden = sums.hidden, .no_core = no_core};
  EpochCommunication epoch;
  const double ranks = host.size();
  const auto exchanges = static_cast<double>(sums.steps - sums.without_exchange);
  for (std::size_t i = 0; i < sums.buckets.size(); ++i) {
    const BucketSums& bucket = sums.buckets[i];
    mine.waited += bucket.late;
    mine.wire += bucket.wire;
    mine.starved += bucket.starved;
    const double of_a_ring = 2 * (ranks - 1) / ranks * bucket_bytes[i] * exchanges;
    epoch.sent_bytes += bucket.sent_bytes > 0 ? bucket.sent_bytes : of_a_ring;
  }
  epoch.by_rank = gather_values(host, mine);
  epoch.exposed_by_bucket = gather_exposed(host, sums.buckets);
  epoch.mine = std::move(sums);
  epoch.bucket_bytes = std::move(bucket_bytes);
  return epoch;
}

}  // namespace lockstep
