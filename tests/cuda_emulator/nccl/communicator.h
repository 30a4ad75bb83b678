// SPDX-License-Identifier: Apache-2.0
//
// EmulatedCommunicator: one rank's part of a communicator of ncclCommInitRank. Ranks meet in shared memory
// (segment.h): each copies its data into its slot, waits for all ranks, and reads the data that it needs
// (exchange.h, on a thread of the runtime). Waiting ranks sleep, and check their peers a few times a second.
//
// If a rank is killed, or aborts or destroys the communicator while peers need it, the peers get an
// asynchronous error (ncclRemoteError), and their work waits until ncclCommAbort, like kernels. If ranks make
// different calls, where NCCL would hang or return wrong data, all ranks get the asynchronous error
// ncclInvalidUsage, print the calls on stderr, and break their devices.
//
// All functions except next_number() must be called while an Unseen lives.
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
#include "tests/cuda_emulator/nccl/plugins.h"
#include "tests/cuda_emulator/nccl/segment.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {

// Addresses by which the ranks of one process announce order to ThreadSanitizer: one for each rank and parity
// of chunks.
class MeetingOrder {
 public:
  explicit MeetingOrder(int ranks) : addresses_(static_cast<std::size_t>(2 * ranks)) {}
  void* of(int rank, int parity) { return &addresses_[static_cast<std::size_t>(2 * rank + parity)]; }

 private:
  std::vector<char> addresses_;
};

struct CommunicatorSettings {
  int channels = 2;  // number of blocks of each operation; NCCL's own number depends on the links
  int cta_policy = NCCL_CTA_POLICY_DEFAULT;
};

class EmulatedCommunicator {
 public:
  // Uses the calling thread's device. Returns when all ranks have joined. Throws NcclError.
  EmulatedCommunicator(const ncclUniqueId& id, int rank, int ranks, const CommunicatorSettings& settings);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }
  const CommunicatorSettings& settings() const { return settings_; }
  Plugins& plugins() { return plugins_; }
  // True if copy engines move the data of this call, which then needs no blocks.
  bool uses_copy_engines(const Call& call) const {
    return settings_.cta_policy == NCCL_CTA_POLICY_ZERO && call.kind == Kind::all_gather && call.symmetric();
  }
  const Segment& segment() const { return segment_; }
  const Ring& ring() const { return ring_; }
  Ledger& ledger() { return ledger_; }
  MeetingOrder& order() { return *order_; }
  // The address by which each operation is ordered before the next for ThreadSanitizer.
  void* turns() { return &turns_; }

  // The number of the next call outside graphs. It is visible to ThreadSanitizer, because two threads must
  // order their calls of one communicator's collectives themselves.
  std::uint64_t next_number() { return ++numbers_; }

  // For the running operation: waits for all ranks. Returns false if this rank aborts. The parity selects the
  // slot of each rank, because peers may still read the previous chunk.
  bool meet();
  int parity() const { return parity_; }
  void next_chunk() { parity_ ^= 1; }
  // Counts a collective that has run.
  void count();

  // Sets the asynchronous error, unless there is one already, and prints it on stderr.
  void fail(ncclResult_t status, const std::string& message);
  // First checks for peers whose processes have ended.
  ncclResult_t async_error();
  std::string async_error_message();
  // True if ranks made different calls: no operation can run any more.
  bool broken() const { return broken_; }
  void set_broken() { broken_ = true; }

  // The following functions wait, without a limit, until no graph holds operations of the communicator, and
  // report the wait on stderr. Waits for operations in streams. No collective can be called from then on.
  void finalize();
  bool finalized() const { return finalized_; }
  // Waits for operations in streams.
  void leave();
  // Ends all waits for peers. Returns when no operation runs.
  void abort();

  // The function that returned a handle: ncclCommRegister() or ncclCommWindowRegister().
  enum class HandleKind { registration, window };
  // Throws NcclError. add_window() returns when all ranks have called it, as NCCL does; ranks that are
  // several nodes get a plain registration.
  void* add_registration(const void* data, std::size_t bytes, HandleKind kind);
  void* add_window(const void* data, std::size_t bytes);
  void remove_registration(void* handle, HandleKind kind);
  // The place in symmetric windows, equal for equal offsets in windows that were registered in the same
  // order; -1: some of these bytes are in no window.
  std::int64_t place_in_windows(const void* data, std::size_t bytes);
  bool has_windows() const { return ring_.nodes == 1; }

  // The part of this rank in a new communicator of the ranks with the same colour, ordered by key and rank;
  // null for NCCL_SPLIT_NOCOLOR. All ranks must call it. Throws NcclError.
  std::shared_ptr<EmulatedCommunicator> split(int colour, int key, const CommunicatorSettings& settings);
  // The part of this rank in a new communicator without the excluded ranks, which may be lost; the others
  // must call it, and keep their order. Throws NcclError.
  std::shared_ptr<EmulatedCommunicator> shrink(const std::vector<int>& excluded,
                                               const CommunicatorSettings& settings);
  bool registered(const void* data, std::size_t bytes);
  bool overlaps_registration(const void* data, std::size_t bytes);

 private:
  struct Range {
    const std::byte* data;
    std::size_t bytes;
    HandleKind kind;
    std::int64_t window = -1;  // number of the symmetric window; -1: a plain registration
  };
  // The reason to check peers. to_go_on: a wait fails if a peer has destroyed or aborted the communicator.
  // to_look: only peers whose processes have ended count.
  enum class Need { to_go_on, to_look };
  struct Lookout {
    std::int64_t at = 0;  // in milliseconds
    int times = 0;        // consecutive checks that found a lost peer
  };

  void join();
  void refuse_shared_devices() const;
  int count_nodes() const;
  bool arrive();
  // Waits for all ranks outside of streams. Throws NcclError.
  void meet_on_host(const char* function);
  void* add(const Range& range);
  bool worth_waiting(std::uint32_t seen);
  void wait_for_graphs(const char* function);
  std::string look_for_lost_peer(Need need);
  std::string find_lost_peer(Need need) const;

  int rank_;
  int ranks_;
  CommunicatorSettings settings_;
  int device_;
  LibraryMemory memory_;  // memory of the channels
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
  Plugins plugins_;
  std::map<void*, Range> registrations_;
  std::uintptr_t handles_ = 0;
  std::int64_t windows_ = 0;
};

}  // namespace lockstep::emulator
