// SPDX-License-Identifier: Apache-2.0
//
// TransferExchange: the sends and receives of one group as they run on a thread of the runtime. All ranks of
// the communicator come, whoever sends to whom: groups in which some have no part are not emulated. Each
// rank's slot holds a table of what it sends and receives, and a part for each peer. At the first meeting
// tables are compared: what one rank sends another must receive, as many elements of the same type; NCCL
// would wait for ever, or answer wrong data. Then parts are taken, as often as the longest transfer needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/cuda_emulator/nccl/communicator.h"

namespace lockstep::emulator {

class TransferExchange {
 public:
  TransferExchange(EmulatedCommunicator& communicator, const Operation& operation);

  // As Exchange::run().
  void run();

 private:
  struct Side {
    std::int32_t type;
    std::int32_t present;
    std::uint64_t count;
  };
  struct Row {  // of a peer
    Side send;
    Side receive;
  };

  void publish_table();
  void publish(std::size_t round);
  void collect(std::size_t round);
  // Throws DeviceFault where what is sent is not what is received.
  void compare_tables();
  // How often parts are taken, and for how long at least: of the longest transfer, and the busiest rank.
  std::size_t rounds();
  double most_bytes();
  Row* table(int rank);
  // What rank `from` has for rank `to`.
  std::byte* part(int from, int to);

  EmulatedCommunicator& communicator_;
  const Operation& operation_;
  int rank_;
  int ranks_;
  std::size_t part_bytes_;
};

}  // namespace lockstep::emulator
