// SPDX-License-Identifier: Apache-2.0
//
// Exchange: runs one collective on a thread of the runtime. The memory is divided into chunks. For each
// chunk, every rank copies its data into its slot, the ranks meet, and every rank reads its result from the
// slots of its peers. An all-reduce meets twice: each rank reduces its share of the chunk in its own slot
// before all ranks copy all shares. Device memory is read and written by plain copies and loops, so that
// sanitizers see every access.
//
// The first meeting of an operation compares the ranks' calls.
#pragma once

#include <cstddef>
#include <string>

#include "tests/cuda_emulator/nccl/communicator.h"

namespace lockstep::emulator {

// Called at the first meeting of an operation. Throws DeviceFault if the ranks' calls differ. All ranks see
// the same calls, so either all of them continue or none.
void compare_calls(EmulatedCommunicator& communicator, const Call& mine);
// Breaks the communicator because of a mistake that all ranks detect.
[[noreturn]] void end_with_mistake(EmulatedCommunicator& communicator, const std::string& message);
// Throws DeviceFault if the memory of an operation was freed.
void require_memory(const EmulatedCommunicator& communicator, const Call& call, const void* data,
                    std::size_t bytes);

class Exchange {
 public:
  Exchange(EmulatedCommunicator& communicator, const Operation& operation);

  // Returns when this rank's part is done or the communicator is aborted; after an abort the received data
  // are undefined. Throws DeviceFault if the ranks' calls differ or the memory was freed.
  void run();

 private:
  bool run_chunks();
  bool meet();
  void publish(std::size_t first, std::size_t count);
  // Returns false if aborted.
  bool collect(std::size_t first, std::size_t count);
  bool all_reduce(std::size_t first, std::size_t count);
  void gather(std::size_t first, std::size_t count);
  // Reduces the slots of all ranks, from `offset` bytes on, into `to`.
  void reduce_slots(std::size_t offset, std::byte* to, std::size_t count);
  // Announce to ThreadSanitizer that receivers come after contributors.
  void announce_contribution();
  void follow_contributions();
  std::byte* slot(int rank);

  EmulatedCommunicator& communicator_;
  const Operation& operation_;
  const Call& call_;
  int rank_;
  int ranks_;
  std::size_t element_bytes_;
  std::size_t chunk_;  // elements
};

}  // namespace lockstep::emulator
