// SPDX-License-Identifier: Apache-2.0
//
// EmulatedCommunicator: one rank's end of what ncclCommInitRank makes. Ranks meet in shared memory
// (segment.h): each puts what it gives into its slot, waits until all have, and takes what it needs
// (exchange.h runs that, on a thread of the runtime). Whoever waits sleeps, and looks after its peers a few
// times a second.
//
// A rank that was killed, that has aborted or destroyed the communicator while others need it, leaves them an
// asynchronous error (ncclRemoteError), and their work waiting until ncclCommAbort, as kernels would. Ranks
// that ask for different things, which NCCL answers with a hang or with wrong data, all get ncclInvalidUsage
// as their asynchronous error, say on stderr who asked for what, and end their devices' work.
//
// All of it but next_number() is to be called while an Unseen lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/cuda_emulator/nccl/call.h"
#include "tests/cuda_emulator/nccl/ledger.h"
#include "tests/cuda_emulator/nccl/model.h"
#include "tests/cuda_emulator/nccl/segment.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {

// What ThreadSanitizer is told on between the ranks of one process: an address for each rank and parity of
// chunks.
class MeetingOrder {
 public:
  explicit MeetingOrder(int ranks) : addresses_(static_cast<std::size_t>(2 * ranks)) {}
  void* of(int rank, int parity) { return &addresses_[static_cast<std::size_t>(2 * rank + parity)]; }

 private:
  std::vector<char> addresses_;
};

class EmulatedCommunicator {
 public:
  // On the calling thread's device. Returns when all ranks are in. Throws NcclError.
  // channels: blocks of each of its operations.
  EmulatedCommunicator(const ncclUniqueId& id, int rank, int ranks, int channels);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }
  std::size_t channels() const { return channels_; }
  const Segment& segment() const { return segment_; }
  const Ring& ring() const { return ring_; }
  Ledger& ledger() { return ledger_; }
  MeetingOrder& order() { return *order_; }
  // The address for ThreadSanitizer that one operation announces and the next follows.
  void* turns() { return &turns_; }

  // The number of the next call outside of graphs. Not hidden from ThreadSanitizer: two threads may not call
  // collectives of one communicator without an order of their own.
  std::uint64_t next_number() { return ++numbers_; }

  // For the operation that runs. All ranks come to its meetings; false when this rank aborts instead. Which
  // of its slots each rank uses is the parity, since the others may still be reading the last chunk.
  bool meet();
  int parity() const { return parity_; }
  void next_chunk() { parity_ ^= 1; }
  // Another collective has run.
  void count();

  // The asynchronous error, unless there is one already; says it on stderr.
  void fail(ncclResult_t status, const std::string& message);
  // Looks for peers whose processes are gone, first.
  ncclResult_t async_error();
  std::string async_error_message();
  // Ranks did not ask for the same: nothing more can run.
  bool broken() const { return broken_; }
  void set_broken() { broken_ = true; }

  // Each of these waits until no graph holds operations of the communicator, as long as that takes, and says
  // so on stderr.
  // Waits for what was given to streams; no collective can be called from now on.
  void finalize();
  bool finalized() const { return finalized_; }
  // Waits for what was given to streams.
  void leave();
  // Nothing waits for peers any more, from its beginning; returns when nothing runs.
  void abort();

  // Throws NcclError.
  void* add_registration(const void* data, std::size_t bytes);
  void remove_registration(void* handle);
  bool registered(const void* data, std::size_t bytes);
  bool overlaps_registration(const void* data, std::size_t bytes);

 private:
  struct Range {
    const std::byte* data;
    std::size_t bytes;
  };
  // Who asks for a peer: a wait cannot go on without one that has destroyed or aborted its end; one that only
  // looks is interested in processes that are gone.
  enum class Need { to_go_on, to_look };
  struct Lookout {
    std::int64_t at = 0;  // in milliseconds
    int times = 0;        // that somebody was missing, in a row
  };

  void join();
  void refuse_shared_devices() const;
  int count_nodes() const;
  bool arrive();
  bool worth_waiting(std::uint32_t seen);
  void wait_for_graphs(const char* function);
  std::string look_for_lost_peer(Need need);
  std::string find_lost_peer(Need need) const;

  int rank_;
  int ranks_;
  std::size_t channels_;
  int device_;
  LibraryMemory memory_;  // of its channels
  Segment segment_;
  Ring ring_;
  std::optional<AsyncFault> async_fault_;
  std::shared_ptr<MeetingOrder> order_;
  Ledger ledger_;
  std::uint64_t numbers_ = 0;
  std::uint64_t collectives_ = 0;
  int parity_ = 0;
  char turns_ = 0;
  bool joined_ = false;
  std::atomic<bool> finalized_ = false;
  std::atomic<bool> broken_ = false;

  std::mutex lookout_mutex_;
  Lookout waiting_;
  Lookout asking_;

  std::mutex mutex_;
  ncclResult_t error_ = ncclSuccess;
  std::string error_message_;
  std::map<void*, Range> registrations_;
  std::uintptr_t handles_ = 0;
};

}  // namespace lockstep::emulator
