// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of the test process, without a launcher.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace lockstep {

// Runs body once for each rank, each on its own thread with its own communicator. Returns each rank's error
// message ("" if it did not throw). When a rank throws, peers that wait for it throw too.
inline std::vector<std::string> try_thread_ranks(int ranks, const std::function<void(Communicator&)>& body,
                                                 std::span<const int> node_of_rank = {}) {
  const std::shared_ptr<ThreadHub> hub = make_thread_hub(ranks, node_of_rank);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      RankScope scope(rank);
      try {
        const std::unique_ptr<Communicator> communicator = make_thread_communicator(hub, rank);
        body(*communicator);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Like try_thread_ranks(), but fails if a rank throws.
inline void run_thread_ranks(int ranks, const std::function<void(Communicator&)>& body,
                             std::span<const int> node_of_rank = {}) {
  const std::vector<std::string> errors = try_thread_ranks(ranks, body, node_of_rank);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    CHECK(errors[rank].empty(), "rank {} threw: {}", rank, errors[rank]);
  }
}

}  // namespace lockstep
