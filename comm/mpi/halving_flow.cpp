// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/halving_flow.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

constexpr std::size_t kSlots = 16;
// Elements of a block, whose first halves are the largest messages. Terms, sums and results have at most four
// bytes.
constexpr std::size_t kElementsInBlock = 2 * kWirePieceBytes / sizeof(float);
// The most messages, to or from several ranks, that one step has under way.
constexpr int kMostMessages = 8;

using Kind = HalvingStep::Kind;

int messages_of(const HalvingStep& step) { return step.kind == Kind::exchange ? 2 : step.peers; }

struct Summand {
  const std::byte* data;
  DType type;
};

// result = left + right, where the right one may be a term that has not been widened yet.
void add_pair(Summand left, Summand right, std::byte* result, std::size_t count, const Reduction& reduction) {
  const auto add = [&](const void* a, const void* b, void* to, std::size_t elements) {
    const std::array<const void*, 2> sources = {a, b};
    reduce_along_tree(sources, {&to, 1}, elements,
                      {.from = left.type, .to = reduction.to, .op = reduction.op});
  };
  if (left.type == right.type) return add(left.data, right.data, result, count);
  constexpr std::size_t kAtATime = 2048;
  alignas(kAlignment) std::array<float, kAtATime> wide;
  for (std::size_t at = 0; at < count; at += kAtATime) {
    const std::size_t elements = std::min(kAtATime, count - at);
    const void* narrow = right.data + at * size_of(right.type);
    void* widened = wide.data();
    reduce_along_tree({&narrow, 1}, {&widened, 1}, elements, {.from = right.type, .to = left.type});
    add(left.data + at * size_of(left.type), widened, result + at * size_of(reduction.to), elements);
  }
}

}  // namespace

HalvingFlow::HalvingFlow(MPI_Comm communicator, int first_tag, const WaitPlace& place)
    : communicator_(communicator), place_(place), first_tag_(first_tag) {
  MPI_CHECK(MPI_Comm_rank(communicator_, &rank_));
  MPI_CHECK(MPI_Comm_size(communicator_, &size_));
  schedule_ = halving_schedule(rank_, size_);
  int most = 1;
  for (const HalvingStep& step : schedule_) most = std::max(most, messages_of(step));
  requests_of_slot_ = static_cast<std::size_t>(std::min(most, kMostMessages));
  slots_.resize(kSlots);
  requests_.assign(kSlots * requests_of_slot_, MPI_REQUEST_NULL);
  completed_.resize(requests_.size());
  // For each slot: received data, and a sum whose type differs from the result's.
  staging_ = Buffer(kSlots * 2 * kWirePieceBytes, Device{});
}

std::size_t HalvingFlow::places() { return kSlots; }
std::size_t HalvingFlow::place_bytes() { return kElementsInBlock * sizeof(float); }

const HalvingStep& HalvingFlow::step_of(const Slot& slot) const {
  return schedule_[upwards(slot) ? slot.step : 2 * schedule_.size() - 1 - slot.step];
}

std::byte* HalvingFlow::result_at(const Slot& slot, std::size_t element) const {
  return static_cast<std::byte*>(work_->result) + (slot.begin + element) * size_of(work_->reduction.to);
}

std::byte* HalvingFlow::received(const Slot& slot) const {
  return staging_.data() + 2 * index_of(slot) * kWirePieceBytes;
}

// In the result's place, or in staging_, which then holds what is left after the first halving.
std::byte* HalvingFlow::sum_at(const Slot& slot, std::size_t element) const {
  if (sum_type() == work_->reduction.to) return result_at(slot, element);
  const std::size_t first = halved(rank_, 1, slot.count).begin;
  return received(slot) + kWirePieceBytes + (element - first) * size_of(sum_type());
}

const std::byte* HalvingFlow::held_at(const Slot& slot, std::size_t element) const {
  if (slot.added) return sum_at(slot, element);
  return slot.term + element * size_of(work_->reduction.from);
}

MPI_Request& HalvingFlow::free_request(Slot& slot) {
  ++slot.pending;
  const auto first = requests_.begin() + static_cast<std::ptrdiff_t>(index_of(slot) * requests_of_slot_);
  return *std::find(first, first + static_cast<std::ptrdiff_t>(requests_of_slot_), MPI_REQUEST_NULL);
}

void HalvingFlow::send(Slot& slot, const void* data, std::size_t bytes, int to) {
  if (bytes == 0) return;
  MPI_CHECK(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to,
                      first_tag_ + static_cast<int>(index_of(slot)), communicator_, &free_request(slot)));
  sent_bytes_ += bytes;
}

void HalvingFlow::receive(Slot& slot, void* data, std::size_t bytes, int from) {
  if (bytes == 0) return;
  MPI_CHECK(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from,
                      first_tag_ + static_cast<int>(index_of(slot)), communicator_, &free_request(slot)));
}

void HalvingFlow::start(Slot& slot) {
  const auto place = index_of(slot);
  slot.term = static_cast<const std::byte*>(work_->ends->bring(slot.begin, slot.count, place)[0]);
  if (!schedule_.empty()) return advance(slot);
  const void* term = slot.term;  // the only rank
  void* result = result_at(slot, 0);
  reduce_along_tree({&term, 1}, {&result, 1}, slot.count, work_->reduction);
  work_->ends->deliver(slot.begin, slot.count);
}

void HalvingFlow::advance(Slot& slot) {
  while (slot.step < 2 * schedule_.size()) {
    post(slot);
    if (slot.owed.size() > 0) {  // while posted messages are under way
      work_->ends->deliver(slot.begin + slot.owed.begin, slot.owed.size());
      slot.owed = {};
    }
    if (slot.pending > 0) return;
    complete(slot);
    ++slot.step;
    slot.next = 0;
  }
  if (slot.owed.size() > 0) work_->ends->deliver(slot.begin + slot.owed.begin, slot.owed.size());
  slot.owed = {};
}

void HalvingFlow::post(Slot& slot) {
  const HalvingStep& step = step_of(slot);
  while (slot.next < messages_of(step) && slot.pending < static_cast<int>(requests_of_slot_)) {
    upwards(slot) ? post_up(slot, step, slot.next) : post_down(slot, step, slot.next);
    ++slot.next;
  }
}

void HalvingFlow::post_up(Slot& slot, const HalvingStep& step, int message) {
  const std::size_t element = size_of(step.leaf ? work_->reduction.from : sum_type());
  const bool receives = step.kind == Kind::take || (step.kind == Kind::exchange && message == 0);
  if (receives) {
    return receive(slot, received(slot), received_by(step, rank_, slot.count).size() * element, step.peer);
  }
  const int k = step.kind == Kind::exchange ? 0 : message;
  const Stretch stretch = sent_to(step, k, slot.count);
  send(slot, held_at(slot, stretch.begin), stretch.size() * element, step.peer + k * step.stride);
}

void HalvingFlow::post_down(Slot& slot, const HalvingStep& step, int message) {
  const std::size_t element = size_of(work_->reduction.to);
  const bool receives = step.kind == Kind::give || (step.kind == Kind::exchange && message == 0);
  const int k = step.kind == Kind::exchange ? 0 : message;
  const Stretch stretch = receives ? sent_to(step, k, slot.count) : received_by(step, rank_, slot.count);
  std::byte* data = result_at(slot, stretch.begin);
  const int peer = step.peer + k * step.stride;
  receives ? receive(slot, data, stretch.size() * element, peer)
           : send(slot, data, stretch.size() * element, peer);
}

void HalvingFlow::complete(Slot& slot) {
  const HalvingStep& step = step_of(slot);
  if (upwards(slot)) {
    if (step.kind != Kind::give) add(slot, step);
    return;
  }
  // The results received: after an exchange the half that this rank had sent, after a give all that it had
  // held.
  if (step.kind == Kind::exchange) slot.owed = sent_to(step, 0, slot.count);
  if (step.kind == Kind::give) slot.owed = halved(rank_, step.halvings, slot.count);
  if (met_ns_ == 0 && slot.owed.size() > 0) met_ns_ = now_ns();  // the sender of a result has heard from all
}

void HalvingFlow::add(Slot& slot, const HalvingStep& step) {
  const Stretch stretch = received_by(step, rank_, slot.count);
  const bool last = slot.step + 1 == schedule_.size();
  Reduction reduction = work_->reduction;
  reduction.to = last ? work_->reduction.to : sum_type();
  const Summand held = {held_at(slot, stretch.begin), slot.added ? sum_type() : work_->reduction.from};
  const Summand other = {received(slot), step.leaf ? work_->reduction.from : sum_type()};
  std::byte* to = last ? result_at(slot, stretch.begin) : sum_at(slot, stretch.begin);
  if (stretch.size() > 0) {
    add_pair(step.lower ? held : other, step.lower ? other : held, to, stretch.size(), reduction);
    if (last && met_ns_ == 0) met_ns_ = now_ns();
  }
  slot.added = true;
  if (last) slot.owed = stretch;
}

int HalvingFlow::take_arrived() {
  int count = 0;
  MPI_CHECK(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, completed_.data(),
                         MPI_STATUSES_IGNORE));
  for (int i = 0; i < count; ++i) {
    const auto request = static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]);
    Slot& slot = slots_[request / requests_of_slot_];
    --slot.pending;
    advance(slot);
  }
  return count;
}

std::int64_t HalvingFlow::run(const Work& work) {
  work_ = &work;
  met_ns_ = size_ == 1 ? now_ns() : 0;
  const std::size_t blocks = (work.count + kElementsInBlock - 1) / kElementsInBlock;
  const auto through = [&](std::size_t block) {
    const Slot& slot = slots_[block % kSlots];
    return slot.step >= 2 * schedule_.size() && slot.pending == 0;
  };
  const std::size_t bytes = work.count * size_of(work.reduction.to);
  std::size_t started = 0;
  FlowWait wait(place_, Link::wire, bytes);
  for (std::size_t done = 0; done < blocks;) {
    const bool starts = started < std::min(blocks, done + kSlots);
    if (starts) {  // one at a time, so that earlier blocks make progress
      Slot& slot = slots_[started % kSlots];
      slot = {.begin = started * kElementsInBlock};
      slot.count = std::min(kElementsInBlock, work.count - slot.begin);
      ++started;
      start(slot);
    }
    const int arrivals = take_arrived();
    while (done < started && through(done)) ++done;
    wait.after_look(arrivals, starts || done == blocks);
  }
  return met_ns_;
}

}  // namespace lockstep
