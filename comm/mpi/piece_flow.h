// SPDX-License-Identifier: Apache-2.0
//
// PieceFlow: an exchange of large data between ranks in small pieces, many of them under way at once. Each
// rank owns a part of the data: it gets everybody's terms of it, adds them along the tree, and sends the
// result to all. While one piece is added others are on the wire, terms in one direction and results in both,
// so that a link is full both ways from the first piece to the last.
//
// Pieces on a wire are small, because two large messages that pass each other on one TCP connection take
// turns: so a link of 200 Mb/s carries 190 both ways, with pieces of 8 MiB 117 (Open MPI 4.1.4). And they are
// below 64 KiB, from where on Open MPI first asks the receiver, and waits for its answer each time
// (btl_tcp_eager_limit, its header included): at 10 Gb/s pieces of 64 KiB reached half of what those of
// 56 KiB do. In memory that ranks share each message costs a meeting of the two: pieces are of 1 MiB.
//
// Whoever speaks for several ranks makes terms and takes results by the piece, too (PieceEnds): a piece's
// terms are asked for just before they are sent, and a result is handed over as it arrives, while others
// travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <mpi.h>

#include "comm/job_state.h"
#include "comm/mpi/session.h"
#include "comm/partition.h"
#include "comm/reduce.h"
#include "comm/sum_tree.h"
#include "core/buffer.h"

namespace lockstep {

// Of the largest message on a wire.
constexpr std::size_t kWirePieceBytes = std::size_t{56} << 10;

// Where a flow's terms come from and its results go, where that is work of its own.
class PieceEnds {
 public:
  virtual ~PieceEnds() = default;
  // This rank's terms in their order, each from element `begin` on, `count` elements. They stay as they are
  // until the same place is asked for again or the flow ends, or what is at the result's place is written.
  virtual std::span<const void* const> bring(std::size_t begin, std::size_t count, std::size_t place) = 0;
  // The result of these elements is in its place. What was brought of them is not read any more.
  virtual void deliver(std::size_t begin, std::size_t count) = 0;
};

class PieceFlow {
 public:
  // Every sum is of these terms; the rank of the communicator that brings one is its `node`. Messages have
  // tags from first_tag on. waiting() is called each time that nothing has arrived, with how often that was
  // so since something did, and may throw.
  PieceFlow(MPI_Comm communicator, std::span<const PartialSum> terms, Link link, int first_tag,
            const WaitPlace& place);

  struct Work {
    Partition partition;      // of all elements, a part for each rank
    std::size_t element = 0;  // bytes of a result's
    // This rank's terms in their order, of all elements; empty: there is nothing to add, and this rank's part
    // of the result is in place.
    std::span<const void* const> terms = {};
    PieceEnds* ends = nullptr;  // instead of terms
    Reduction reduction = {};   // its ends are set here
    void* own = nullptr;        // this rank's part of the result. It may be that part's place in a term
    void* all = nullptr;        // all elements of the result, this rank's part at `own`; null: none but that
  };
  // Blocks; throws GaveUp. Returns when all ranks were known to be there, by now_ns(), or 0 where it was
  // never known.
  std::int64_t run(const Work& work);

  // Of PieceEnds: places are numbered below this, and one takes up to so many bytes of a term.
  std::size_t places() const { return slots_.size() * static_cast<std::size_t>(size_); }
  std::size_t place_bytes() const { return piece_bytes_; }

  std::uint64_t sent_bytes() const { return sent_bytes_; }
  std::size_t memory_bytes() const { return staging_.bytes(); }

 private:
  struct Term {
    int rank;           // that brings it
    std::size_t place;  // among this rank's own, or the others' in staging
  };
  // Of a piece on its way.
  struct Slot {
    std::size_t piece = 0;
    std::size_t pending = 0;        // messages of any kind
    std::size_t pending_terms = 0;  // of them, to arrive
    std::size_t pending_sends = 0;  // of them, terms on their way out
  };
  enum class Kind : std::uint8_t { term_in, term_out, result_in, result_out };

  // Rank `of`'s part of a piece, as this rank brings it.
  std::span<const void* const> terms_of(std::size_t slot, int of);
  bool sums() const { return work_->ends != nullptr || !work_->terms.empty(); }
  void deliver(int of, std::size_t piece);
  void start(std::size_t piece);
  void add(std::size_t slot);
  void send_results(std::size_t slot);
  void receive_results(std::size_t slot);
  void arrived(std::size_t request);
  // Returns how many there were.
  int take_arrived();
  void send(std::size_t slot, Kind kind, const void* data, std::size_t bytes, int to);
  void receive(std::size_t slot, Kind kind, void* data, std::size_t bytes, int from);
  MPI_Request& next_request(std::size_t slot, Kind kind, int peer);
  // Elements of a rank's part that belong to the piece, and where they begin in all elements.
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
  std::size_t piece_bytes_ = 0;  // of a term; as many on every rank
  Buffer staging_;
  std::vector<Slot> slots_;
  std::size_t requests_of_slot_ = 0;
  std::vector<MPI_Request> requests_;  // of the slots, one after another
  std::vector<Kind> kinds_;
  std::vector<int> peers_;
  std::vector<std::size_t> used_;  // of a slot's requests
  std::vector<int> completed_;
  std::vector<const void*> sources_;
  std::vector<const void*> own_;  // this rank's terms of a piece
  // Of the work under way:
  const Work* work_ = nullptr;
  std::size_t step_ = 0;  // elements of a piece
  std::int64_t met_ns_ = 0;
  int heard_ = 0;  // ranks whose first result arrived
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
