// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/processor.h"

#include <algorithm>
#include <map>
#include <new>

#include <fmt/format.h>

#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

constexpr std::size_t kWarp = 32;

std::string text(Site site) {
  const std::string_view file = site.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), site.line());
}
std::string text(const Size3& index) { return fmt::format("({}, {}, {})", index.x, index.y, index.z); }

// The index of this place in a box of this size.
Size3 index_in(const Size3& size, std::size_t place) {
  Size3 index;
  index.x = static_cast<unsigned>(place % size.x);
  index.y = static_cast<unsigned>(place / size.x % size.y);
  index.z = static_cast<unsigned>(place / size.x / size.y);
  return index;
}

}  // namespace

bool Processor::Thread::waits_with(const Thread& other) const {
  return state == other.state && mask == other.mask && site.line() == other.site.line() &&
         site.column() == other.site.column() &&
         (site.file_name() == other.site.file_name() ||
          std::string_view(site.file_name()) == other.site.file_name());
}

Processor::Processor(KernelOrder& order)
    : order_(order),
      here_(*new (stacks_.header()) Here{.position = {}, .processor = this}),
      fibers_(stacks_, [this] { run_threads(); }) {
  static_assert(sizeof(Here) <= Stacks::kHeaderBytes);
}

void Processor::run(const Launch& launch, const std::function<void()>& thread,
                    const std::function<Walk(std::size_t count)>& make_walk) {
  function_ = &thread;
  count_ = launch.block.volume();
  if (threads_.size() < count_) threads_ = std::vector<Thread>(count_);
  for (std::size_t i = 0; i < count_; ++i) threads_[i].index = index_in(launch.block, i);
  const std::size_t warps = (count_ + kWarp - 1) / kWarp;
  warps_ = make_walk(warps);
  lanes_ = make_walk(kWarp);
  last_lanes_ = make_walk(count_ - (warps - 1) * kWarp);
  here_.position.block_size = launch.block;
  here_.position.grid = launch.grid;
  shared_.begin(launch.shared_bytes);
  Walk block = make_walk(launch.grid.volume());
  try {
    for (std::size_t i = 0; i < block.count; ++i, block.advance()) {
      here_.position.block = index_in(launch.grid, block.place);
      run_block();
      if (shared_.intact()) continue;
      throw KernelError(fmt::format("block {} writes beyond its {} bytes of dynamic shared memory",
                                    text(here_.position.block), launch.shared_bytes));
    }
  } catch (...) {
    end_block();
    fibers_.forget();
    shared_.end();
    throw;
  }
  shared_.end();
}

void Processor::run_block() {
  begin_block();
  while (true) {
    bool advanced = false;
    Walk warp = warps_;
    for (std::size_t i = 0; i < warp.count; ++i, warp.advance()) advanced |= run_warp(warp.place);
    if (advanced || release_block()) continue;
    const auto end = threads_.begin() + static_cast<std::ptrdiff_t>(count_);
    if (std::all_of(threads_.begin(), end, [](const Thread& t) { return t.state == State::ended; })) break;
    throw KernelError(deadlock());
  }
  end_block();
}

void Processor::begin_block() {
  shared_.begin_block();
  waiting_.fill(0);
  fibers_.begin_block();
  for (std::size_t i = 0; i < count_; ++i) {
    Thread& t = threads_[i];
    t.state = State::fresh;
    if (!Fibers::kOnePerThread) continue;
    t.fiber = &fibers_.take();
    t.fenced = false;
    t.atomics.clear();
    t.fiber->follow_for(&order_.begin);
  }
}

void Processor::end_block() {
  if (!Fibers::kOnePerThread) return;
  for (std::size_t i = 0; i < count_; ++i) threads_[i].fiber->announce_for(&order_.end);
}

// Runs the warp until it waits for other warps. Returns whether any of its threads ran.
bool Processor::run_warp(std::size_t warp) {
  warp_begin_ = warp * kWarp;
  const Walk& lanes = warp + 1 == warps_.count ? last_lanes_ : lanes_;
  bool ran = false;
  for (bool advanced = true; advanced; ran |= advanced) {
    advanced = false;
    lane_ = lanes;
    lanes_left_ = lanes.count;
    while (lanes_left_ > 0) {
      Thread& t = threads_[warp_begin_ + lane_.place];
      lane_.advance();
      --lanes_left_;
      if (t.state != State::fresh && t.state != State::ready) continue;
      advanced = true;
      resume(t);
    }
  }
  return ran;
}

void Processor::resume(Thread& thread) {
  if (thread.state == State::fresh && !Fibers::kOnePerThread) thread.fiber = &fibers_.take();
  Fiber& fiber = *thread.fiber;
  become(thread);
  fiber.resume();
  if (fiber.done()) fibers_.give_back(fiber);
  if (running_->state == State::waits_for_warp) release_warp(*running_);
}

void Processor::become(Thread& thread) {
  running_ = &thread;
  here_.position.thread = thread.index;
}

// Runs on a fiber: the thread for which it was resumed, and then threads that have not begun, until one
// waits.
void Processor::run_threads() {
  do {
    (*function_)();
    running_->state = State::ended;
  } while (!Fibers::kOnePerThread && next_in_warp());
}

// If the thread of the next lane has not begun, makes it the running thread on this fiber and returns true.
bool Processor::next_in_warp() {
  if (lanes_left_ == 0) return false;
  Thread& next = threads_[warp_begin_ + lane_.place];
  if (next.state != State::fresh) return false;
  next.fiber = running_->fiber;
  become(next);
  lane_.advance();
  --lanes_left_;
  return true;
}

// Called within a thread: waits until it is released.
void Processor::wait(State state, Site site) {
  running_->state = state;
  running_->site = site;
  running_->fiber->leave();
}

// Releases the lanes of the mask if all of them wait at the same place.
void Processor::release_warp(const Thread& last) {
  const std::size_t end = std::min(warp_begin_ + kWarp, count_);
  const unsigned mask = last.mask;
  unsigned& waiting = waiting_[warp_begin_ / kWarp];
  waiting |= 1u << (&last - &threads_[warp_begin_]);
  if ((mask & ~waiting) != 0) return;
  WarpValues values = {};
  for (std::size_t i = warp_begin_; i < end; ++i) {
    if ((mask >> (i - warp_begin_) & 1u) == 0) continue;
    if (!threads_[i].waits_with(last)) return;
    values[i - warp_begin_] = threads_[i].value;
  }
  const auto takes_part = [&](std::size_t i) { return (mask >> (i - warp_begin_) & 1u) != 0; };
  if (last.orders_memory) order_memory(warp_begin_, end, takes_part);
  waiting &= ~mask;
  for (std::size_t i = warp_begin_; i < end; ++i) {
    if (!takes_part(i)) continue;
    threads_[i].received = values;
    threads_[i].state = State::ready;
  }
}

bool Processor::release_block() {
  const Thread& first = threads_[0];
  int sum = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const Thread& t = threads_[i];
    if (t.state != State::waits_for_block || !t.waits_with(first)) return false;
    sum += t.value != 0 ? 1 : 0;
  }
  order_memory(0, count_, [](std::size_t) { return true; });
  for (std::size_t i = 0; i < count_; ++i) {
    threads_[i].count = sum;
    threads_[i].state = State::ready;
  }
  return true;
}

// Orders the earlier accesses of these threads before their later ones.
template <typename Each>
void Processor::order_memory(std::size_t first, std::size_t end, Each takes_part) {
  if (!Fibers::kOnePerThread) return;
  for (std::size_t i = first; i < end; ++i) {
    if (takes_part(i)) threads_[i].fiber->announce_for(&meeting_);
  }
  for (std::size_t i = first; i < end; ++i) {
    if (takes_part(i)) threads_[i].fiber->follow_for(&meeting_);
  }
  forget_order(&meeting_);
}

std::string Processor::deadlock() const {
  std::map<std::string, int> states;
  for (std::size_t i = 0; i < count_; ++i) {
    const Thread& t = threads_[i];
    if (t.state == State::ended) {
      ++states["have ended"];
    } else if (t.state == State::waits_for_block) {
      ++states["wait for the block at " + text(t.site)];
    } else {
      ++states[fmt::format("wait for lanes {:#x} at {}", t.mask, text(t.site))];
    }
  }
  std::string message = fmt::format("block {} is deadlocked:", text(here_.position.block));
  const char* separator = " ";
  for (const auto& [state, count] : states) {
    message += fmt::format("{}{} threads {}", separator, count, state);
    separator = ", ";
  }
  return message;
}

int Processor::lane_index() const {
  return static_cast<int>(running_ - threads_.data()) % static_cast<int>(kWarp);
}

int Processor::barrier(int predicate, Site site) {
  Thread& self = *running_;
  self.mask = 0;
  self.value = static_cast<std::uint64_t>(predicate != 0);
  wait(State::waits_for_block, site);
  return self.count;
}

const WarpValues& Processor::exchange(unsigned mask, std::uint64_t value, Site site, bool orders_memory) {
  if ((mask >> lane_index() & 1u) == 0) {
    throw KernelError(fmt::format("lane {} is not among the lanes {:#x} it waits for at {}", lane_index(),
                                  mask, text(site)));
  }
  Thread& self = *running_;
  self.mask = mask;
  self.value = value;
  self.orders_memory = orders_memory;
  wait(State::waits_for_warp, site);
  return self.received;
}

void Processor::before_atomic(void* place) {
  if (Fibers::kOnePerThread && running_->fenced) announce(place);
}
void Processor::after_atomic(void* place) {
  if (!Fibers::kOnePerThread) return;
  std::vector<void*>& places = running_->atomics;
  if (std::find(places.begin(), places.end(), place) != places.end()) return;
  const Unseen unseen;  // blocks share the memory of the list
  places.push_back(place);
}
void Processor::fence() {
  if (!Fibers::kOnePerThread) return;
  for (void* place : running_->atomics) follow(place);
  running_->atomics.clear();
  running_->fenced = true;
}

int barrier(int predicate, Site site) { return Processor::here().barrier(predicate, site); }
const WarpValues& exchange(unsigned mask, std::uint64_t value, Site site) {
  return Processor::here().exchange(mask, value, site, false);
}
void warp_barrier(unsigned mask, Site site) { Processor::here().exchange(mask, 0, site, true); }
int lane_index() { return Processor::here().lane_index(); }
void before_atomic(void* place) { Processor::here().before_atomic(place); }
void after_atomic(void* place) { Processor::here().after_atomic(place); }
void fence() { Processor::here().fence(); }

void require_participant(unsigned mask, int lane, Site site) {
  if (lane < 32 && (mask >> lane & 1u) != 0) return;
  throw KernelError(fmt::format("lane {} reads from lane {}, which is not among the lanes {:#x}, at {}",
                                lane_index(), lane, mask, text(site)));
}

}  // namespace lockstep::emulator
