// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/emulator.h"

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/shared_memory.h"

namespace lockstep::emulator {

Size3 thread_index;
Size3 block_index;
Size3 block_size;
Size3 grid_size;

namespace {

constexpr std::size_t kWarp = 32;

enum class Waiting { no, block, warp };

// A thread of a block.
struct Thread {
  Fiber fiber;
  Size3 index;
  Waiting waiting = Waiting::no;
  Site site;
  unsigned mask = 0;        // whom it waits for in its warp
  std::uint64_t value = 0;  // what it brings
  WarpValues received = {};
  int count = 0;

  bool waits_with(const Thread& other) const {
    return waiting == other.waiting && mask == other.mask && site.line() == other.site.line() &&
           site.column() == other.site.column() &&
           std::string_view(site.file_name()) == other.site.file_name();
  }
};

Order order = Order::ascending;

// Memory of threads is kept from block to block and from launch to launch.
std::vector<Thread>& threads() {
  static std::vector<Thread> all;
  return all;
}
std::size_t running = 0;  // which of them

Thread& current() { return threads()[running]; }

std::string text(Site site) {
  const std::string_view file = site.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), site.line());
}
std::string text(const Size3& index) { return fmt::format("({}, {}, {})", index.x, index.y, index.z); }

class Block {
 public:
  Block(std::size_t count, const std::function<void()>& thread) : count_(count) {
    for (std::size_t i = 0; i < count_; ++i) {
      Thread& t = threads()[i];
      t.fiber.prepare(thread);
      t.index.x = static_cast<unsigned>(i) % block_size.x;
      t.index.y = static_cast<unsigned>(i) / block_size.x % block_size.y;
      t.index.z = static_cast<unsigned>(i) / block_size.x / block_size.y;
      t.waiting = Waiting::no;
    }
  }

  void run() {
    const std::size_t warps = (count_ + kWarp - 1) / kWarp;
    while (true) {
      bool advanced = false;
      for (std::size_t i = 0; i < warps; ++i) advanced |= run_warp(in_order(i, warps));
      if (advanced || release_block()) continue;
      if (std::all_of(threads().begin(), end(), [](const Thread& t) { return t.fiber.done(); })) return;
      throw KernelError(deadlock());
    }
  }

 private:
  std::vector<Thread>::iterator end() const {
    return threads().begin() + static_cast<std::ptrdiff_t>(count_);
  }

  static std::size_t in_order(std::size_t i, std::size_t count) {
    return order == Order::ascending ? i : count - 1 - i;
  }

  // As far as it gets without the other warps. Whether any of its threads ran.
  bool run_warp(std::size_t warp) {
    const std::size_t first = warp * kWarp;
    const std::size_t lanes = std::min(kWarp, count_ - first);
    bool ran = false;
    for (bool advanced = true; advanced; ran |= advanced) {
      advanced = false;
      for (std::size_t i = 0; i < lanes; ++i) {
        const std::size_t place = first + in_order(i, lanes);
        Thread& t = threads()[place];
        if (t.fiber.done() || t.waiting != Waiting::no) continue;
        advanced = true;
        running = place;
        thread_index = t.index;
        t.fiber.resume();
        if (t.waiting == Waiting::warp) release_warp(place);
      }
    }
    return ran;
  }

  // When all lanes that the lane waits for have come.
  void release_warp(std::size_t place) {
    const Thread& last = threads()[place];
    const std::size_t first = place / kWarp * kWarp;
    WarpValues values = {};
    for (std::size_t lane = 0; lane < kWarp; ++lane) {
      if ((last.mask >> lane & 1u) == 0) continue;
      if (first + lane >= count_) return;
      const Thread& other = threads()[first + lane];
      if (other.fiber.done() || !other.waits_with(last)) return;
      values[lane] = other.value;
    }
    const unsigned mask = last.mask;
    for (std::size_t lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1u) == 0) continue;
      threads()[first + lane].received = values;
      threads()[first + lane].waiting = Waiting::no;
    }
  }

  bool release_block() {
    const Thread& first = threads()[0];
    int sum = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const Thread& t = threads()[i];
      if (t.fiber.done() || t.waiting != Waiting::block || !t.waits_with(first)) return false;
      sum += t.value != 0 ? 1 : 0;
    }
    for (std::size_t i = 0; i < count_; ++i) {
      threads()[i].count = sum;
      threads()[i].waiting = Waiting::no;
    }
    return true;
  }

  std::string deadlock() const {
    std::map<std::string, int> states;
    for (std::size_t i = 0; i < count_; ++i) {
      const Thread& t = threads()[i];
      if (t.fiber.done()) {
        ++states["have ended"];
      } else if (t.waiting == Waiting::block) {
        ++states["wait for the block at " + text(t.site)];
      } else {
        ++states[fmt::format("wait for lanes {:#x} at {}", t.mask, text(t.site))];
      }
    }
    std::string message = fmt::format("block {} cannot go on:", text(block_index));
    const char* separator = " ";
    for (const auto& [state, count] : states) {
      message += fmt::format("{}{} threads {}", separator, count, state);
      separator = ", ";
    }
    return message;
  }

  std::size_t count_;
};

// From within a thread: until released.
void wait(Waiting waiting, Site site) {
  Thread& t = current();
  t.waiting = waiting;
  t.site = site;
  t.fiber.leave();
}

void run_blocks(const Launch& launch, const std::function<void()>& thread) {
  SharedMemory shared(launch.shared_bytes);
  block_size = launch.block;
  grid_size = launch.grid;
  const std::size_t blocks = launch.grid.volume();
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t place = order == Order::ascending ? i : blocks - 1 - i;
    block_index.x = static_cast<unsigned>(place % launch.grid.x);
    block_index.y = static_cast<unsigned>(place / launch.grid.x % launch.grid.y);
    block_index.z = static_cast<unsigned>(place / launch.grid.x / launch.grid.y);
    shared.spoil();
    Block(launch.block.volume(), thread).run();
    if (!shared.intact()) {
      throw KernelError(fmt::format("block {} writes behind its {} bytes of dynamic shared memory",
                                    text(block_index), launch.shared_bytes));
    }
  }
}

}  // namespace

void set_order(Order o) { order = o; }

bool allowed(const Launch& launch) {
  constexpr unsigned kMostRows = 65535;
  constexpr std::size_t kMostThreads = 1024;
  const std::size_t count = launch.block.volume();
  return launch.grid.volume() > 0 && launch.grid.y <= kMostRows && launch.grid.z <= kMostRows && count > 0 &&
         count <= kMostThreads && launch.block.z <= 64 && launch.shared_bytes <= kMostSharedBytes;
}

void run(const Launch& launch, const std::function<void()>& thread) {
  if (threads().size() < launch.block.volume()) threads() = std::vector<Thread>(launch.block.volume());
  std::exception_ptr error;
  // A thread of its own: see SharedMemory.
  std::thread([&] {
    try {
      run_blocks(launch, thread);
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

int barrier(int predicate, Site site) {
  current().mask = 0;
  current().value = static_cast<std::uint64_t>(predicate != 0);
  wait(Waiting::block, site);
  return current().count;
}

const WarpValues& exchange(unsigned mask, std::uint64_t value, Site site) {
  if ((mask >> lane_index() & 1u) == 0) {
    throw KernelError(fmt::format("lane {} is not among the lanes {:#x} it waits for at {}", lane_index(),
                                  mask, text(site)));
  }
  current().mask = mask;
  current().value = value;
  wait(Waiting::warp, site);
  return current().received;
}

int lane_index() { return static_cast<int>(running % kWarp); }

void require_participant(unsigned mask, int lane, Site site) {
  if (lane < 32 && (mask >> lane & 1u) != 0) return;
  throw KernelError(fmt::format("lane {} reads from lane {}, which is not among the lanes {:#x}, at {}",
                                lane_index(), lane, mask, text(site)));
}

}  // namespace lockstep::emulator
