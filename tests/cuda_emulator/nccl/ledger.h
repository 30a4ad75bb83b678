// SPDX-License-Identifier: Apache-2.0
//
// Ledger: the operations of one communicator on one rank that were given to streams, or to graphs that may
// run them again. As NCCL does, it lets them run one at a time, and those outside of graphs in the order of
// their calls, whatever streams they are on. ThreadSanitizer must not see its lock: call it while an Unseen
// lives.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

#include "tests/cuda_emulator/nccl/call.h"

namespace lockstep::emulator {

class Ledger {
 public:
  struct Entry {
    Operation operation;
    std::uint64_t turn = 0;  // in the order of calls
    bool running = false;
    bool over = false;  // ran, and will not again

    bool pending() const { return !operation.call.captured && !over; }
  };

  void add(Entry& entry);
  // Its stream or graph has dropped it.
  void remove(Entry& entry);
  // Waits for the operation's turn. False when the communicator is aborted.
  bool begin(Entry& entry);
  void end(Entry& entry);

  // Nothing waits any more, from now on.
  void abort();
  bool aborted() const { return aborted_; }
  // False when aborted meanwhile.
  bool sleep_until(std::chrono::steady_clock::time_point time);

  void wait_until_none_runs();
  // Until all operations outside of graphs have run, or are dropped, or the communicator is aborted.
  void wait_until_none_is_pending();
  // How many operations are in graphs that still live a while later: graphs that were destroyed may be
  // running still.
  std::size_t captured_after(std::chrono::milliseconds patience);
  void wait_until_none_is_captured();
  // Whether an operation that has not run yet, or may run again, uses some of these bytes; asked again for a
  // while.
  bool uses_after(const std::byte* data, std::size_t bytes, std::chrono::milliseconds patience);

 private:
  bool may_run(const Entry& entry) const;
  std::size_t captured() const;
  bool uses(const std::byte* data, std::size_t bytes) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> aborted_ = false;
  std::set<Entry*> entries_;
  std::uint64_t turns_ = 0;
};

}  // namespace lockstep::emulator
