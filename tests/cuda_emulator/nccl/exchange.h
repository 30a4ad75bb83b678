// SPDX-License-Identifier: Apache-2.0
//
// Exchange: one collective as it runs on a thread of the runtime. The ranks' memory is cut into chunks; for
// each, every rank copies what it gives into its slot, they meet, and every rank takes what it receives out
// of the others' slots. An all-reduce meets once more: each rank reduces its share of the chunk within its
// own slot before all take all shares. The device's memory is read and written by plain copies and loops, so
// sanitizers see every access.
//
// At the first meeting of an operation the ranks' calls are compared.
#pragma once

#include <cstddef>
#include <string>

#include "tests/cuda_emulator/nccl/communicator.h"

namespace lockstep::emulator {

// At the first meeting of an operation: throws DeviceFault where the ranks' calls differ. All ranks see the
// same calls, so either none of them goes on or all do.
void compare_calls(EmulatedCommunicator& communicator, const Call& mine);
// Of what all ranks see alike.
[[noreturn]] void end_with_mistake(EmulatedCommunicator& communicator, const std::string& message);
// Throws DeviceFault where an operation's memory is gone.
void require_memory(const EmulatedCommunicator& communicator, const Call& call, const void* data,
                    std::size_t bytes);

class Exchange {
 public:
  Exchange(EmulatedCommunicator& communicator, const Operation& operation);

  // Returns when this rank's part is done or the communicator is aborted, which leaves what was received
  // undefined. Throws DeviceFault where the ranks' calls differ or the memory is gone.
  void run();

 private:
  bool run_chunks();
  bool meet();
  void publish(std::size_t first, std::size_t count);
  // False when aborted.
  bool collect(std::size_t first, std::size_t count);
  bool all_reduce(std::size_t first, std::size_t count);
  void gather(std::size_t first, std::size_t count);
  // Of all ranks' slots, from `offset` bytes on, into `to`.
  void reduce_slots(std::size_t offset, std::byte* to, std::size_t count);
  // What ThreadSanitizer is told: who receives comes after who contributes.
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
