// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/piece_flow.h"

#include <algorithm>

#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{4} << 20;

// The size of the largest piece, and how many pieces are under way.
struct Dealing {
  std::size_t bytes;
  std::size_t under_way;  // about the bytes of all ranks' terms of one part
  std::size_t fewest;
  std::size_t most;
};

// More data on a wire only waits in the queues of switches, or is dropped when they are full: between three
// nodes at 200 Mb/s 2 MiB under way were slower than 1 MiB.
Dealing dealing_of(Link link) {
  if (link == Link::wire) {
    return {.bytes = kWirePieceBytes, .under_way = std::size_t{1} << 20, .fewest = 4, .most = 16};
  }
  return {.bytes = std::size_t{1} << 20, .under_way = kStagingBytes, .fewest = 2, .most = 4};
}

}  // namespace

PieceFlow::PieceFlow(MPI_Comm communicator, std::span<const PartialSum> terms, Link link, int first_tag,
                     const WaitPlace& place)
    : communicator_(communicator), place_(place), link_(link), first_tag_(first_tag) {
  MPI_CHECK(MPI_Comm_rank(communicator_, &rank_));
  MPI_CHECK(MPI_Comm_size(communicator_, &size_));
  std::vector<std::size_t> brought(static_cast<std::size_t>(size_), 0);  // terms of each rank
  for (const PartialSum& term : terms) {
    std::size_t& before = term.node == rank_ ? brought[static_cast<std::size_t>(rank_)] : foreign_terms_;
    terms_.push_back({.rank = term.node, .place = before});
    ends_.push_back(term.end);
    ++before;
    if (term.node != rank_) ++brought[static_cast<std::size_t>(term.node)];
  }
  own_terms_ = brought[static_cast<std::size_t>(rank_)];
  sources_.resize(terms_.size());
  own_.resize(own_terms_);
  // The rank with the fewest terms receives the most from others: all have slots for as many.
  const std::size_t most = std::max<std::size_t>(terms_.size() - std::ranges::min(brought), 1);
  const Dealing dealing = dealing_of(link);
  const std::size_t slots =
      std::clamp(dealing.under_way / (most * dealing.bytes), dealing.fewest, dealing.most);
  piece_bytes_ = std::min(dealing.bytes,
                          std::max(kStagingBytes / (most * slots) / kAlignment, std::size_t{1}) * kAlignment);
  staging_ = Buffer(std::max(slots * foreign_terms_ * piece_bytes_, kAlignment), Device{});
  slots_.resize(slots);
  const auto peers = static_cast<std::size_t>(size_ - 1);
  requests_of_slot_ = foreign_terms_ + (own_terms_ + 2) * peers;
  requests_.assign(slots * requests_of_slot_, MPI_REQUEST_NULL);
  kinds_.resize(requests_.size());
  peers_.resize(requests_.size());
  completed_.resize(requests_.size());
}

std::size_t PieceFlow::length(int rank, std::size_t piece) const {
  const std::size_t all = work_->partition.size(rank);
  const std::size_t at = piece * step_;
  return at < all ? std::min(step_, all - at) : 0;
}

std::size_t PieceFlow::begin(int rank, std::size_t piece) const {
  return work_->partition.begin(rank) + piece * step_;
}

MPI_Request& PieceFlow::next_request(std::size_t slot, Kind kind, int peer) {
  const std::size_t request = slot * requests_of_slot_ + slots_[slot].used++;
  kinds_[request] = kind;
  peers_[request] = peer;
  ++slots_[slot].pending;
  return requests_[request];
}

void PieceFlow::send(std::size_t slot, Kind kind, const void* data, std::size_t bytes, int to) {
  MPI_CHECK(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag(slot, kind == Kind::result_out),
                      communicator_, &next_request(slot, kind, to)));
  sent_bytes_ += bytes;
}

void PieceFlow::receive(std::size_t slot, Kind kind, void* data, std::size_t bytes, int from) {
  MPI_CHECK(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag(slot, kind == Kind::result_in),
                      communicator_, &next_request(slot, kind, from)));
}

std::span<const void* const> PieceFlow::terms_of(std::size_t slot, int of) {
  const std::size_t piece = slots_[slot].piece;
  const std::size_t place = slot * static_cast<std::size_t>(size_) + static_cast<std::size_t>(of);
  if (work_->ends != nullptr) return work_->ends->bring(begin(of, piece), length(of, piece), place);
  for (std::size_t k = 0; k < own_.size(); ++k) {
    own_[k] =
        static_cast<const std::byte*>(work_->terms[k]) + begin(of, piece) * size_of(work_->reduction.from);
  }
  return own_;
}

void PieceFlow::deliver(int of, std::size_t piece) {
  if (work_->ends != nullptr) work_->ends->deliver(begin(of, piece), length(of, piece));
}

void PieceFlow::start(std::size_t piece) {
  const std::size_t slot = piece % slots_.size();
  slots_[slot] = {.piece = piece};
  if (!sums()) {
    send_results(slot);
    return receive_results(slot);
  }
  const std::size_t term = size_of(work_->reduction.from);
  const std::size_t own = length(rank_, piece);
  for (const Term& t : terms_) {
    if (t.rank == rank_ || own == 0) continue;
    receive(slot, Kind::term_in, staged(slot, t.place), own * term, t.rank);
    ++slots_[slot].pending_terms;
  }
  for (int k = 1; k < size_; ++k) {
    const int to = (rank_ + k) % size_;
    const std::size_t theirs = length(to, piece);
    if (theirs == 0) continue;
    for (const void* data : terms_of(slot, to)) {
      send(slot, Kind::term_out, data, theirs * term, to);
      ++slots_[slot].pending_sends;
    }
  }
  if (slots_[slot].pending_terms == 0) add(slot);
  if (slots_[slot].pending_sends == 0) receive_results(slot);
}

void PieceFlow::add(std::size_t slot) {
  const std::size_t piece = slots_[slot].piece;
  const std::size_t own = length(rank_, piece);
  if (own == 0) return;
  const std::span<const void* const> mine = terms_of(slot, rank_);
  for (std::size_t i = 0; i < terms_.size(); ++i) {
    const Term& t = terms_[i];
    sources_[i] = t.rank == rank_ ? mine[t.place] : staged(slot, t.place);
  }
  void* result = static_cast<std::byte*>(work_->own) + piece * step_ * work_->element;
  Reduction reduction = work_->reduction;
  reduction.ends = ends_;
  reduce_along_tree(sources_, {&result, 1}, own, reduction);
  send_results(slot);
  deliver(rank_, piece);
}

void PieceFlow::send_results(std::size_t slot) {
  const std::size_t piece = slots_[slot].piece;
  const std::size_t own = length(rank_, piece);
  if (work_->all == nullptr || own == 0) return;
  const auto* result = static_cast<const std::byte*>(work_->own) + piece * step_ * work_->element;
  for (int k = 1; k < size_; ++k)
    send(slot, Kind::result_out, result, own * work_->element, (rank_ + k) % size_);
}

// Receives results in their place: this rank's terms there have been sent.
void PieceFlow::receive_results(std::size_t slot) {
  if (work_->all == nullptr) return;
  const std::size_t piece = slots_[slot].piece;
  for (int k = 1; k < size_; ++k) {
    const int from = (rank_ + k) % size_;
    const std::size_t theirs = length(from, piece);
    if (theirs == 0) continue;
    receive(slot, Kind::result_in, static_cast<std::byte*>(work_->all) + begin(from, piece) * work_->element,
            theirs * work_->element, from);
  }
}

void PieceFlow::arrived(std::size_t request) {
  const std::size_t slot = request / requests_of_slot_;
  Slot& of = slots_[slot];
  --of.pending;
  if (kinds_[request] == Kind::term_in && --of.pending_terms == 0) {
    if (met_ns_ == 0) met_ns_ = now_ns();  // the terms of all ranks have arrived
    add(slot);
  }
  if (kinds_[request] == Kind::result_in) {
    // A rank that sends a sum has heard from all.
    if (met_ns_ == 0 && (sums() || (of.piece == 0 && ++heard_ == size_ - 1))) met_ns_ = now_ns();
    deliver(peers_[request], of.piece);
  }
  if (kinds_[request] == Kind::term_out && --of.pending_sends == 0) receive_results(slot);
}

int PieceFlow::take_arrived() {
  int count = 0;
  MPI_CHECK(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, completed_.data(),
                         MPI_STATUSES_IGNORE));
  for (int i = 0; i < count; ++i) arrived(static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]));
  return count;
}

std::int64_t PieceFlow::run(const Work& work) {
  CHECK(work.terms.empty() || work.terms.size() == own_terms_, "{} terms, expected {}", work.terms.size(),
        own_terms_);
  work_ = &work;
  step_ = piece_bytes_ / std::max(work.element, sums() ? size_of(work.reduction.from) : 1);
  met_ns_ = size_ == 1 ? now_ns() : 0;
  heard_ = 0;
  const std::size_t pieces = (work.partition.size(0) + step_ - 1) / step_;
  const std::size_t bytes = work.partition.count * work.element;
  std::size_t started = 0;
  FlowWait wait(place_, link_, bytes);
  for (std::size_t done = 0; done < pieces;) {
    const bool starts = started < std::min(pieces, done + slots_.size());
    if (starts) start(started++);  // one at a time, so that earlier pieces make progress
    const int arrivals = take_arrived();
    while (done < started && slots_[done % slots_.size()].pending == 0) ++done;
    wait.after_look(arrivals, starts);
  }
  return met_ns_;
}

}  // namespace lockstep
