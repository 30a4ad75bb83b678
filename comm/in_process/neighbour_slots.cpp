// SPDX-License-Identifier: Apache-2.0
#include "comm/in_process/neighbour_slots.h"

#include <atomic>
#include <cstring>
#include <new>

#include "comm/agreement.h"
#include "core/error.h"

namespace lockstep {
namespace {

// Values are copied two at a time, each pair atomically: a reader may read a slot that is being written, and
// then discards it.
using ValuePair = std::uint64_t;
static_assert(std::atomic_ref<ValuePair>::is_always_lock_free);
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "counters in memory that processes share");

constexpr int kTries = 3;

std::size_t slot_bytes(std::int64_t count) {
  return align_up(static_cast<std::size_t>(count) * sizeof(float), kAlignment);
}

void store_values(ValuePair* slot, const float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count / 2; ++i) {
    ValuePair pair = 0;
    std::memcpy(&pair, values + 2 * i, sizeof(pair));
    std::atomic_ref(slot[i]).store(pair, std::memory_order_release);
  }
  if (count % 2 == 0) return;
  ValuePair last = 0;
  std::memcpy(&last, values + count - 1, sizeof(float));
  std::atomic_ref(slot[count / 2]).store(last, std::memory_order_release);
}

void load_values(ValuePair* slot, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count / 2; ++i) {
    const ValuePair pair = std::atomic_ref(slot[i]).load(std::memory_order_acquire);
    std::memcpy(to + 2 * i, &pair, sizeof(pair));
  }
  if (count % 2 == 0) return;
  const ValuePair last = std::atomic_ref(slot[count / 2]).load(std::memory_order_acquire);
  std::memcpy(to + count - 1, &last, sizeof(float));
}

}  // namespace

// A rank's segment of the memory; its two slots follow it. Versions count from 1; odd ones are in the second
// slot.
struct NeighbourSlots::Segment {
  alignas(kAlignment) std::atomic<std::int64_t> begun;  // version that is being written, or was last
  std::atomic<std::int64_t> shown;                      // the newest complete version
  std::atomic<std::int64_t> own_steps;
  alignas(kAlignment) std::atomic<std::int64_t> steps;  // of all ranks; only in rank 0's segment
  std::atomic<std::int64_t> given_up;                   // the end whose steps were given up; only in rank 0's

  ValuePair* slot(std::int64_t version, std::int64_t count) {
    auto* behind = reinterpret_cast<std::byte*>(this) + align_up(sizeof(Segment), kAlignment);
    return reinterpret_cast<ValuePair*>(behind + static_cast<std::size_t>(version % 2) * slot_bytes(count));
  }
};

std::size_t NeighbourSlots::planned_bytes(std::int64_t count) {
  return align_up(sizeof(Segment), kAlignment) + 2 * slot_bytes(count);
}

NeighbourSlots::NeighbourSlots(Communicator& communicator, std::int64_t count)
    : count_(count), rank_(communicator.rank()), memory_(communicator.allocate(planned_bytes(count))) {
  CHECK(count > 0, "{} values", count);
  const int size = communicator.size();
  for (const int other : {(rank_ + size - 1) % size, (rank_ + 1) % size}) {
    const bool known = !neighbours_.empty() && neighbours_.front() == other;
    if (other != rank_ && !known) neighbours_.push_back(other);
  }
  const std::vector<std::byte*> places = communicator.shared_places(memory_.data());
  if (first_rank_where(communicator, places.empty()) >= 0) {
    throw_agreed(
        ConfigError("comm.topology = \"ring\" requires memory that all ranks share: run on one node, and "
                    "make /dev/shm large enough (containers often have 64 MiB: set --shm-size)"));
  }
  new (memory_.data()) Segment{};  // each rank makes its own before others read it
  communicator.barrier();
  communicator.stream().synchronize();
  for (std::byte* place : places) segments_.push_back(reinterpret_cast<Segment*>(place));
}

// A seqlock (Boehm, "Can seqlocks get along with programming language memory models?", 2012) over two slots:
// the slot being written is never the newest complete one. A reader that sees a value of a later version also
// sees its `begun`: values are released after `begun`, and acquired before `begun` is read again.
void NeighbourSlots::show(const float* values) {
  Segment& own = *segments_[static_cast<std::size_t>(rank_)];
  const std::int64_t version = own.shown.load(std::memory_order_relaxed) + 1;
  own.begun.store(version, std::memory_order_relaxed);
  store_values(own.slot(version, count_), values, count_);
  own.shown.store(version, std::memory_order_release);
}

std::int64_t NeighbourSlots::look(int rank, std::int64_t seen, float* to) const {
  CHECK(rank != rank_, "look() was called for this rank, {}", rank);
  Segment& theirs = *segments_[static_cast<std::size_t>(rank)];
  for (int tries = 0; tries < kTries; ++tries) {
    const std::int64_t version = theirs.shown.load(std::memory_order_acquire);
    if (version <= seen) return 0;
    load_values(theirs.slot(version, count_), to, count_);
    if (theirs.begun.load(std::memory_order_relaxed) < version + 2) return version;
  }
  return 0;
}

bool NeighbourSlots::take_step(std::int64_t end) {
  std::atomic<std::int64_t>& next = segments_.front()->steps;
  const std::atomic<std::int64_t>& given_up = segments_.front()->given_up;
  std::int64_t step = next.load(std::memory_order_relaxed);
  do {
    if (step >= end || given_up.load(std::memory_order_relaxed) == end) return false;
  } while (!next.compare_exchange_weak(step, step + 1, std::memory_order_relaxed));
  segments_[static_cast<std::size_t>(rank_)]->own_steps.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void NeighbourSlots::give_up_steps(std::int64_t end) {
  segments_.front()->given_up.store(end, std::memory_order_relaxed);
}

std::int64_t NeighbourSlots::steps_taken() const {
  return segments_.front()->steps.load(std::memory_order_relaxed);
}

std::int64_t NeighbourSlots::steps_taken(int rank) const {
  return segments_[static_cast<std::size_t>(rank)]->own_steps.load(std::memory_order_relaxed);
}

}  // namespace lockstep
