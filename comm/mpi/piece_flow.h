// SPDX-License-Identifier: Apache-2.0
//
// PieceFlow: exchanges large data between ranks in small pieces, many of them at once. Each rank owns a part
// of the data: it receives all ranks' terms of it, adds them along the tree, and sends the result to all.
// While one piece is added, others are on the wire, terms in one direction and results in both, so that a
// link is full both ways from the first piece to the last.
//
// Pieces on a wire are small, because two large messages that pass each other on one TCP connection take
// turns: a link of 200 Mb/s carries 190 both ways with small pieces, and 117 with pieces of 8 MiB (Open MPI
// 4.1.4). They are below 64 KiB (btl_tcp_eager_limit, header included), because for larger messages Open MPI
// asks the receiver first and waits for its answer: at 10 Gb/s pieces of 64 KiB reached half the rate of 56
// KiB. In shared memory each message costs a meeting of the two ranks: pieces have 1 MiB.
//
// A rank that sends for several ranks also makes terms and takes results by the piece (PieceEnds): a piece's
// terms are requested just before they are sent, and a result is delivered as it arrives, while other pieces
// are on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <mpi.h>

#include "comm/gradients/partition.h"
#include "comm/job/job_state.h"
#include "comm/mpi/session.h"
#include "comm/sums/reduce.h"
#include "comm/sums/sum_tree.h"
#include "core/tensor/buffer.h"

namespace lockstep {

// The size of the largest message on a wire.
constexpr std::size_t kWirePieceBytes = std::size_t{56} << 10;

// Supplies a flow's terms and takes its results by the piece.
class PieceEnds {
 public:
  virtual ~PieceEnds() = default;
  // Returns this rank's terms in order, `count` elements of each from element `begin` on. They stay valid
  // until the same place is requested again, the flow ends, or the result's place is written.
  virtual std::span<const void* const> bring(std::size_t begin, std::size_t count, std::size_t place) = 0;
  // The result of these elements is in its place. Their terms are not read any more.
  virtual void deliver(std::size_t begin, std::size_t count) = 0;
};

class PieceFlow {
 public:
  // terms: those of every sum; the rank of the communicator that contributes one is its `node`. Messages have
  // tags from first_tag on. place outlives this.
  PieceFlow(MPI_Comm communicator, std::span<const PartialSum> terms, Link link, int first_tag,
            const WaitPlace& place);

  struct Work {
    Partition partition;      // of all elements, a part for each rank
    std::size_t element = 0;  // bytes of a result's element
    // This rank's terms in order, of all elements. Empty, without ends: there is nothing to add, and this
    // rank's part of the result is in place.
    std::span<const void* const> terms = {};
    PieceEnds* ends = nullptr;  // instead of terms
    Reduction reduction = {};   // run() sets its `ends`
    void* own = nullptr;        // this rank's part of the result; may be that part's place in a term
    void* all = nullptr;        // the whole result, with this rank's part at `own`; null: only that part
  };
  // Blocks; throws GaveUp. Returns the time (now_ns()) when all ranks were known to have arrived, or 0 if
  // unknown.
  std::int64_t run(const Work& work);

  // For PieceEnds: the number of places, and the most bytes of a term in one.
  std::size_t places() const { return slots_.size() * static_cast<std::size_t>(size_); }
  std::size_t place_bytes() const { return piece_bytes_; }

  std::uint64_t sent_bytes() const { return sent_bytes_; }
  std::size_t memory_bytes() const { return staging_.bytes(); }

 private:
  struct Term {
    int rank;           // that contributes it
    std::size_t place;  // among this rank's own terms, or the others' in staging
  };
  // A piece in progress.
  struct Slot {
    std::size_t piece = 0;
    std::size_t used = 0;           // of the slot's requests
    std::size_t pending = 0;        // messages of any kind
    std::size_t pending_terms = 0;  // of them, terms to receive
    std::size_t pending_sends = 0;  // of them, terms being sent
  };
  enum class Kind : std::uint8_t { term_in, term_out, result_in, result_out };

  // This rank's terms of rank `of`'s part of a piece.
  std::span<const void* const> terms_of(std::size_t slot, int of);
  bool sums() const { return work_->ends != nullptr || !work_->terms.empty(); }
  void deliver(int of, std::size_t piece);
  void start(std::size_t piece);
  void add(std::size_t slot);
  void send_results(std::size_t slot);
  void receive_results(std::size_t slot);
  void arrived(std::size_t request);
  // Returns the number of messages that completed.
  int take_arrived();
  void send(std::size_t slot, Kind kind, const void* data, std::size_t bytes, int to);
  void receive(std::size_t slot, Kind kind, void* data, std::size_t bytes, int from);
  MPI_Request& next_request(std::size_t slot, Kind kind, int peer);
  // Elements of a rank's part that belong to the piece, and the first one's index in all elements.
  std::size_t length(int rank, std::size_t piece) const;
  std::size_t begin(int rank, std::size_t piece) const;
  std::byte* staged(std::size_t slot, std::size_t place) const {
    return staging_.data() + (slot * foreign_terms_ + place) * piece_bytes_;
  }
  int tag(std::size_t slot, bool result) const {
    return first_tag_ + static_cast<int>(2 * slot) + (result ? 1 : 0);
  }

  MPI_Comm communicator_;
  const WaitPlace& place_;
  Link link_;
  int first_tag_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<Term> terms_;
  std::vector<int> ends_;
  std::size_t own_terms_ = 0;
  std::size_t foreign_terms_ = 0;
  std::size_t piece_bytes_ = 0;  // of a term; the same on every rank
  Buffer staging_;
  std::vector<Slot> slots_;
  std::size_t requests_of_slot_ = 0;
  std::vector<MPI_Request> requests_;  // of the slots, one after another
  std::vector<Kind> kinds_;
  std::vector<int> peers_;
  std::vector<int> completed_;
  std::vector<const void*> sources_;
  std::vector<const void*> own_;  // this rank's terms of a piece
  // The current run():
  const Work* work_ = nullptr;
  std::size_t step_ = 0;  // elements of a piece
  std::int64_t met_ns_ = 0;
  int heard_ = 0;  // ranks whose first result arrived
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
