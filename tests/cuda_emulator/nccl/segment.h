// SPDX-License-Identifier: Apache-2.0
//
// Segment: the memory that the ranks of one communicator share. It is an unnamed file. The process that
// created the communicator's id keeps it open, and its peers open it through /proc until all have joined, so
// that the kernel releases it even after crashes. The id contains its location. Each rank has its own
// mapping, even if ranks are threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <nccl.h>

#include "tests/cuda_emulator/nccl/call.h"
#include "tests/cuda_emulator/nccl/process.h"

namespace lockstep::emulator {

// A rank's memory for each of the two chunks that can be in use at the same time.
inline constexpr std::size_t kChunkBytes = std::size_t{512} << 10;

enum class Presence : std::uint32_t { absent, arriving, here, left, aborted };

struct alignas(64) Member {
  std::atomic<Presence> presence;
  Process process;
  std::uint64_t host;
  int device;
  std::atomic<std::uint32_t> host_meetings;  // of which this rank has arrived
  int colour, key;                           // of ncclCommSplit
  ncclUniqueId split_id;                     // from the first rank of a colour, or of those that remain
  std::atomic<std::uint32_t> shrinks;        // that this rank has begun; split_id is then set
  Call calls[2];                             // by parity: the call whose first chunk this is
};

// The meeting point of all ranks. Waiting ranks sleep on `passed`.
struct alignas(64) Meeting {
  std::uint64_t secret;  // as in the id
  std::atomic<std::uint32_t> ranks;
  std::atomic<std::uint32_t> refused;  // a rank cannot join
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> passed;
};

class Segment {
 public:
  // Throws NcclError.
  static ncclUniqueId create();
  Segment(const ncclUniqueId& id, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::uint64_t secret() const { return meeting().secret; }
  Meeting& meeting() const { return *static_cast<Meeting*>(memory_); }
  Member& member(int rank) const;
  std::byte* slot(int rank, int parity) const;

  // Called when all ranks have joined: no other process can join any more.
  static void close(const ncclUniqueId& id);

  void wake_all() const;
  // Sleeps while meeting().passed is `seen`, at most this long.
  void sleep(std::uint32_t seen, std::chrono::milliseconds longest) const;

 private:
  std::size_t slots_offset() const;

  int ranks_;
  void* memory_ = nullptr;
  std::size_t bytes_;
};

}  // namespace lockstep::emulator
