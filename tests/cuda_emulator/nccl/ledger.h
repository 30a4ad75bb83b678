// SPDX-License-Identifier: Apache-2.0
//
// Ledger: the operations of one communicator on one rank that are in streams, or in graphs that may run them
// again. Like NCCL, it lets them run one at a time, and those outside graphs in call order, in any stream.
// ThreadSanitizer must not see its lock: call its functions while an Unseen lives.
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
    std::uint64_t turn = 0;  // position in call order
    bool running = false;
    bool over = false;  // has run and will not run again

    bool pending() const { return !operation.call.captured && !over; }
  };

  void add(Entry& entry);
  // Called when its stream or graph has released it.
  void remove(Entry& entry);
  // Waits for the operation's turn. Returns false if the communicator is aborted.
  bool begin(Entry& entry);
  void end(Entry& entry);

  // Ends all current and later waits.
  void abort();
  bool aborted() const { return aborted_; }
  // Returns false if aborted meanwhile.
  bool sleep_until(std::chrono::steady_clock::time_point time);

  void wait_until_none_runs();
  // Waits until all operations outside graphs have run or are released, or the communicator is aborted.
  void wait_until_none_is_pending();
  // The number of operations in graphs that still exist after this time. Destroyed graphs may still be
  // running.
  std::size_t captured_after(std::chrono::milliseconds patience);
  void wait_until_none_is_captured();
  // Returns whether an operation that has not run yet, or may run again, uses some of these bytes. Polls for
  // this time.
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
