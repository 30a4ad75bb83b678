// SPDX-License-Identifier: Apache-2.0
//
// NeighbourSlots: lets ranks of one node average with their neighbours on a ring without waiting. Each rank
// publishes its values in shared memory, in two alternating slots; a reader gets the last complete version. A
// writer never waits for readers. A reader retries a few times if the slot was overwritten meanwhile, and
// then returns without values. A shared counter hands out the steps of an epoch, so faster ranks take more
// steps.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/tensor/buffer.h"

namespace lockstep {

// The ranks that a rank averages with.
enum class Topology {
  all,
  ring,  // the rank before and the one after it
};
inline constexpr std::string_view kTopologyWords[] = {"all", "ring"};
constexpr std::span<const std::string_view> words_of(Topology) { return kTopologyWords; }

class NeighbourSlots {
 public:
  // Collective. count: fp32 values per rank. Throws ConfigError on every rank if ranks share no memory.
  NeighbourSlots(Communicator& communicator, std::int64_t count);
  NeighbourSlots(const NeighbourSlots&) = delete;
  NeighbourSlots& operator=(const NeighbourSlots&) = delete;
  // Bytes of shared memory per rank.
  static std::size_t planned_bytes(std::int64_t count);

  // The ring neighbours: none for one rank, one for two ranks, else two.
  std::span<const int> neighbours() const { return neighbours_; }

  // Publishes a copy of the values. One thread of this rank at a time.
  void show(const float* values);
  // Copies the version that `rank` published last if it is newer than version `seen`, and returns its number,
  // from 1. Returns 0, with `to` undefined, if there is none or the rank publishes faster than this reads.
  // Any rank but this one, at any time.
  std::int64_t look(int rank, std::int64_t seen, float* to) const;

  // Takes one of the steps 0, 1, ... that all ranks share; each is given once. Returns false if the next step
  // is `end` or later, or if a rank gave up the steps before `end`. Steps count from construction.
  bool take_step(std::int64_t end);
  // From now on take_step(end) returns false on every rank; a concurrent call may still succeed.
  void give_up_steps(std::int64_t end);
  // Steps taken by all ranks so far.
  std::int64_t steps_taken() const;
  // Steps taken by one rank.
  std::int64_t steps_taken(int rank) const;

 private:
  struct Segment;

  std::int64_t count_;
  int rank_;
  std::vector<int> neighbours_;
  Buffer memory_;  // this rank's segment, visible to the others
  std::vector<Segment*> segments_;
};

}  // namespace lockstep
