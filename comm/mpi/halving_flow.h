// SPDX-License-Identifier: Apache-2.0
//
// HalvingFlow: an all_reduce by recursive halving and doubling (comm/halving_schedule.h), for ranks that
// bring one term each. The data goes through it in blocks, each of which takes its own way along the
// schedule, many at once: while one is added others are on the wire, in both directions. The largest message
// is of kWirePieceBytes, whatever the number of ranks, and so is what a rank keeps.
//
// Terms travel in their own type until they are added, sums in what they are added in, and results in
// theirs: of 16-bit floats what two ranks exchange first, and the way back, is 16 bits an element, and sums
// between are fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "comm/halving_schedule.h"
#include "comm/mpi/piece_flow.h"
#include "comm/mpi/session.h"
#include "comm/reduce.h"
#include "core/buffer.h"

namespace lockstep {

class HalvingFlow {
 public:
  // Messages have tags from first_tag on.
  HalvingFlow(MPI_Comm communicator, int first_tag, const WaitPlace& place);

  struct Work {
    std::size_t count = 0;
    PieceEnds* ends = nullptr;  // brings one term
    Reduction reduction = {};
    void* result = nullptr;  // a term may lie in its place when the types are the same
  };
  // Blocks; throws GaveUp. Returns when all ranks were known to be there, by now_ns().
  std::int64_t run(const Work& work);

  // See PieceFlow.
  static std::size_t places();
  static std::size_t place_bytes();

  std::uint64_t sent_bytes() const { return sent_bytes_; }
  std::size_t memory_bytes() const { return staging_.bytes(); }

 private:
  // A block on its way.
  struct Slot {
    std::size_t begin = 0;  // of all elements
    std::size_t count = 0;
    const std::byte* term = nullptr;
    std::size_t step = 0;  // of both ways; all: it is through
    int next = 0;          // message of the step to be posted
    int pending = 0;       // posted
    bool added = false;    // whether this rank's term has been added to another
    Stretch owed = {};     // results to be handed over
  };

  void start(Slot& slot);
  // As far as it goes without waiting.
  void advance(Slot& slot);
  void post(Slot& slot);
  void post_up(Slot& slot, const HalvingStep& step, int message);
  void post_down(Slot& slot, const HalvingStep& step, int message);
  void complete(Slot& slot);
  void add(Slot& slot, const HalvingStep& step);
  void send(Slot& slot, const void* data, std::size_t bytes, int to);
  void receive(Slot& slot, void* data, std::size_t bytes, int from);
  MPI_Request& free_request(Slot& slot);
  // Returns how many messages were through.
  int take_arrived();

  const HalvingStep& step_of(const Slot& slot) const;
  bool upwards(const Slot& slot) const { return slot.step < schedule_.size(); }
  std::size_t index_of(const Slot& slot) const { return static_cast<std::size_t>(&slot - slots_.data()); }
  DType sum_type() const { return accumulator_of(work_->reduction.from); }
  // Where an element of the block is in the result, in this rank's sum, and in what it has until then.
  std::byte* result_at(const Slot& slot, std::size_t element) const;
  std::byte* sum_at(const Slot& slot, std::size_t element) const;
  const std::byte* held_at(const Slot& slot, std::size_t element) const;
  std::byte* received(const Slot& slot) const;

  MPI_Comm communicator_;
  const WaitPlace& place_;
  int first_tag_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<HalvingStep> schedule_;
  Buffer staging_;
  std::vector<Slot> slots_;
  std::size_t requests_of_slot_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<int> completed_;
  // Of the work under way:
  const Work* work_ = nullptr;
  std::int64_t met_ns_ = 0;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
