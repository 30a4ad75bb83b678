// SPDX-License-Identifier: Apache-2.0
//
// Fibers: the fibers of one processor, reused across blocks and launches. A fiber that has ended runs the
// next thread of any block. Under ThreadSanitizer, for which each fiber is a thread, every thread of a block
// has its own fiber, and neighbouring blocks, which are unordered, have different ones.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/stacks.h"

namespace lockstep::emulator {

class Fibers {
 public:
#if defined(LOCKSTEP_THREAD_SANITIZER)
  static constexpr bool kOnePerThread = true;
#else
  static constexpr bool kOnePerThread = false;
#endif

  // All fibers run this function.
  Fibers(const Stacks& stacks, std::function<void()> function)
      : stacks_(stacks), function_(std::move(function)), all_(Stacks::kMost) {}

  void begin_block() {
    if (!kOnePerThread) return;
    half_ = all_.size() / 2 - half_;
    taken_ = 0;
  }
  Fiber& take() {
    if (!idle_.empty()) {
      Fiber& fiber = *idle_.back();
      idle_.pop_back();
      return fiber;
    }
    const std::size_t thread = taken_++, place = half_ + thread;
    if (!all_.at(place)) {
      const std::string name = "CUDA thread " + std::to_string(thread) + " of a block";
      all_[place] = std::make_unique<Fiber>(function_, stacks_.stack(place), name);
    }
    return *all_[place];
  }
  // Returns a fiber that has ended.
  void give_back(Fiber& fiber) {
    if (!kOnePerThread) idle_.push_back(&fiber);
  }
  // Destroys all fibers, also suspended ones.
  void forget() {
    idle_.clear();
    for (auto& fiber : all_) fiber.reset();
    taken_ = 0;
  }

 private:
  const Stacks& stacks_;
  const std::function<void()> function_;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> idle_;
  std::size_t taken_ = 0;
  std::size_t half_ = 0;
};

}  // namespace lockstep::emulator
