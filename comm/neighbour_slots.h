// SPDX-License-Identifier: Apache-2.0
//
// NeighbourSlots: ranks of one node that average with their neighbours on a ring and wait for nobody. Each
// rank shows its values in memory that all of them share, in two slots that take turns, and whoever looks
// gets those that were shown last as a whole. Who shows never waits for who looks; who looks tries again
// where the slot was written meanwhile, a few times, and then goes without. Beside them lies one counter,
// from which ranks take the steps of an epoch: who is faster takes more.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/buffer.h"

namespace lockstep {

// With whom a rank averages.
enum class Topology {
  all,
  ring,  // the rank before and the one after it
};
inline constexpr std::string_view kTopologyWords[] = {"all", "ring"};
constexpr std::span<const std::string_view> words_of(Topology) { return kTopologyWords; }

class NeighbourSlots {
 public:
  // Collective. `count` fp32 values. Throws ConfigError, on every rank, where ranks share no memory.
  NeighbourSlots(Communicator& communicator, std::int64_t count);
  NeighbourSlots(const NeighbourSlots&) = delete;
  NeighbourSlots& operator=(const NeighbourSlots&) = delete;
  // Of shared memory, for each rank.
  static std::size_t planned_bytes(std::int64_t count);

  // None where a rank is alone, one of two, else two.
  std::span<const int> neighbours() const { return neighbours_; }

  // Copies them. One thread of this rank at a time.
  void show(const float* values);
  // Copies what the rank showed last, where that is newer than what it showed as its number `seen`, and
  // returns its number, from 1. Returns 0, and leaves anything in `to`, where there is nothing newer, or the
  // rank shows faster than this can read. Any rank but this one, at any time.
  std::int64_t look(int rank, std::int64_t seen, float* to) const;

  // One of the steps 0, 1, ... that all ranks share, each of which is given once, in no rank's order; false
  // where the next would be `end`, or a rank gave up those before it. Steps are counted from when this was
  // made.
  bool take_step(std::int64_t end);
  // From now on take_step(end) returns false on every rank; a call at this very moment may still succeed.
  void give_up_steps(std::int64_t end);
  // Taken by all ranks so far.
  std::int64_t steps_taken() const;
  // By the rank.
  std::int64_t steps_taken(int rank) const;

 private:
  struct Segment;

  std::int64_t count_;
  int rank_;
  std::vector<int> neighbours_;
  Buffer memory_;  // of this rank, which the others see
  std::vector<Segment*> segments_;
};

}  // namespace lockstep
