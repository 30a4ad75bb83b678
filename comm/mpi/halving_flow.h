// SPDX-License-Identifier: Apache-2.0
//
// HalvingFlow: an all_reduce by recursive halving and doubling (comm/sums/halving_schedule.h), for ranks that
// contribute one term each. The data is split into blocks that pass through the schedule independently, many
// at once: while one is added, others are on the wire in both directions. The largest message has
// kWirePieceBytes; neither it nor the staging memory depends on the number of ranks.
//
// Terms are sent in their own type until they are added, sums in the accumulator's type, and results in
// theirs: for 16-bit floats the first exchange and the way back send 16 bits per element, and sums between
// are fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "comm/mpi/piece_flow.h"
#include "comm/mpi/session.h"
#include "comm/sums/halving_schedule.h"
#include "comm/sums/reduce.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class HalvingFlow {
 public:
  // Messages have tags from first_tag on.
  HalvingFlow(MPI_Comm communicator, int first_tag, const WaitPlace& place);

  struct Work {
    std::size_t count = 0;
    PieceEnds* ends = nullptr;  // supplies one term
    Reduction reduction = {};
    void* result = nullptr;  // a term may be in its place if the types are the same
  };
  // Blocks; throws GaveUp. Returns the time (now_ns()) when all ranks were known to have arrived.
  std::int64_t run(const Work& work);

  // See PieceFlow.
  static std::size_t places();
  static std::size_t place_bytes();

  std::uint64_t sent_bytes() const { return sent_bytes_; }
  std::size_t memory_bytes() const { return staging_.bytes(); }

 private:
  // A block in progress.
  struct Slot {
    std::size_t begin = 0;  // of all elements
    std::size_t count = 0;
    const std::byte* term = nullptr;
    std::size_t step = 0;  // of both ways; 2 * schedule_.size(): done
    int next = 0;          // the step's next message to post
    int pending = 0;       // posted messages that have not completed
    bool added = false;    // true if this rank's term has been added to another
    Stretch owed = {};     // results to deliver
  };

  void start(Slot& slot);
  // Continues as far as possible without waiting.
  void advance(Slot& slot);
  void post(Slot& slot);
  void post_up(Slot& slot, const HalvingStep& step, int message);
  void post_down(Slot& slot, const HalvingStep& step, int message);
  void complete(Slot& slot);
  void add(Slot& slot, const HalvingStep& step);
  void send(Slot& slot, const void* data, std::size_t bytes, int to);
  void receive(Slot& slot, void* data, std::size_t bytes, int from);
  MPI_Request& free_request(Slot& slot);
  // Returns the number of messages that completed.
  int take_arrived();

  const HalvingStep& step_of(const Slot& slot) const;
  bool upwards(const Slot& slot) const { return slot.step < schedule_.size(); }
  std::size_t index_of(const Slot& slot) const { return static_cast<std::size_t>(&slot - slots_.data()); }
  DType sum_type() const { return accumulator_of(work_->reduction.from); }
  // The address of a block's element in the result, in this rank's sum, and in what this rank holds so far
  // (its term, then its sum).
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
  // The current run():
  const Work* work_ = nullptr;
  std::int64_t met_ns_ = 0;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
