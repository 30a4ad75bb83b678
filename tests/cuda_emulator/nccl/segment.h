// SPDX-License-Identifier: Apache-2.0
//
// Segment: the memory that the ranks of one communicator share. It is a file without a name, which the
// process that made the communicator's id holds open and the others open through /proc until all are in; so
// whoever crashes, the kernel takes everything back. The id says where it is. Each rank has its own mapping,
// also where ranks are threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <nccl.h>

#include "tests/cuda_emulator/nccl/call.h"
#include "tests/cuda_emulator/nccl/process.h"

namespace lockstep::emulator {

// A rank's memory for each of the two chunks that can be under way.
inline constexpr std::size_t kChunkBytes = std::size_t{512} << 10;

enum class Presence : std::uint32_t { absent, arriving, here, left, aborted };

struct alignas(64) Member {
  std::atomic<Presence> presence;
  Process process;
  std::uint64_t host;
  int device;
  Call calls[2];  // of the chunks of these parities, where they are an operation's first
};

// All ranks' meeting place. `passed` is what those who wait sleep on.
struct alignas(64) Meeting {
  std::uint64_t secret;  // as in the id
  std::atomic<std::uint32_t> ranks;
  std::atomic<std::uint32_t> refused;  // some rank cannot come
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

  // All ranks are in: nobody else can come any more.
  static void close(const ncclUniqueId& id);

  void wake_all() const;
  // Sleeps while meeting().passed is `seen`, at most so long.
  void sleep(std::uint32_t seen, std::chrono::milliseconds longest) const;

 private:
  std::size_t slots_offset() const;

  int ranks_;
  void* memory_ = nullptr;
  std::size_t bytes_;
};

}  // namespace lockstep::emulator
