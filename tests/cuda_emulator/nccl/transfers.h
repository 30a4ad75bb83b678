// SPDX-License-Identifier: Apache-2.0
//
// TransferExchange: runs the sends and receives of one group on a thread of the runtime. All ranks of the
// communicator must take part; groups of some ranks are not emulated. Each rank's slot contains a table of
// its sends and receives, and a part for each peer. The first meeting compares the tables: every send needs a
// receive with the same number of elements and type, where NCCL would wait forever or return wrong data. Then
// parts are copied in as many rounds as the longest transfer needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/cuda_emulator/nccl/communicator.h"

namespace lockstep::emulator {

class TransferExchange {
 public:
  TransferExchange(EmulatedCommunicator& communicator, const Operation& operation);

  // Like Exchange::run().
  void run();

 private:
  struct Side {
    std::int32_t type;
    std::int32_t present;
    std::uint64_t count;
  };
  struct Row {  // the transfers with a peer
    Side send;
    Side receive;
  };

  void publish_table();
  void publish(std::size_t round);
  void collect(std::size_t round);
  // Throws DeviceFault if a send and its receive differ.
  void compare_tables();
  // The number of rounds, given by the longest transfer, and the most bytes that a rank sends or receives.
  std::size_t rounds();
  double most_bytes();
  Row* table(int rank);
  // The part of rank `from` for rank `to`.
  std::byte* part(int from, int to);

  EmulatedCommunicator& communicator_;
  const Operation& operation_;
  int rank_;
  int ranks_;
  std::size_t part_bytes_;
};

}  // namespace lockstep::emulator
