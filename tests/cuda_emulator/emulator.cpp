// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/emulator.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "tests/cuda_emulator/processor.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

std::atomic<Order> chosen_order{Order::ascending};

Walk walk(const Launch& launch, std::uint64_t number, std::size_t count) {
  if (launch.seed != 0) return seeded_walk(count, mixed(launch.seed + number) ^ count);
  return chosen_order == Order::ascending ? ascending_walk(count) : descending_walk(count);
}

// The host thread that runs the kernels of its owner. It is separate because its thread-local variables are
// the kernels' shared memory (see SharedMemory). It starts with the first kernel and ends with its owner.
class KernelThread {
 public:
  ~KernelThread() {
    if (!thread_.joinable()) return;
    launch_ = nullptr;
    give_turn(true);
    thread_.join();
  }

  void run(const Launch& launch, const std::function<void()>& function) {
    launch_ = &launch;
    function_ = &function;
    announce(&order_.begin);
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    give_turn(true);
    wait_for_turn(false);
    follow(&order_.end);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void serve() {
    Processor processor(order_);
    while (true) {
      wait_for_turn(true);
      if (launch_ == nullptr) return;
      follow(&order_.begin);
      ++launches_;
      try {
        processor.run(*launch_, *function_,
                      [&](std::size_t count) { return walk(*launch_, launches_, count); });
      } catch (...) {
        error_ = std::current_exception();
      }
      follow(&order_.end);  // this thread may free the memory that the kernel's threads used
      announce(&order_.end);
      give_turn(false);
    }
  }

  // Not semaphores: those of libstdc++ yield before they sleep, which costs a time slice on busy cores.
  void give_turn(bool to_kernels) {
    const Unseen unseen;
    {
      const std::lock_guard lock(mutex_);
      kernels_turn_ = to_kernels;
    }
    turned_.notify_one();
  }

  void wait_for_turn(bool of_kernels) {
    const Unseen unseen;
    std::unique_lock lock(mutex_);
    turned_.wait(lock, [&] { return kernels_turn_ == of_kernels; });
  }

  KernelOrder order_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable turned_;
  bool kernels_turn_ = false;
  const Launch* launch_ = nullptr;
  const std::function<void()>* function_ = nullptr;
  std::exception_ptr error_;
  std::uint64_t launches_ = 0;
};

}  // namespace

void set_order(Order order) { chosen_order = order; }

bool allowed(const Launch& launch) {
  constexpr unsigned kMostRows = 65535;
  constexpr unsigned kMostColumns = 0x7fffffff;
  constexpr std::size_t kMostThreads = 1024;
  const std::size_t count = launch.block.volume();
  return launch.grid.volume() > 0 && launch.grid.x <= kMostColumns && launch.grid.y <= kMostRows &&
         launch.grid.z <= kMostRows && count > 0 && count <= kMostThreads && launch.block.z <= 64 &&
         launch.shared_bytes <= kMostSharedBytes;
}

void run(const Launch& launch, const std::function<void()>& thread) {
  thread_local KernelThread mine;
  mine.run(launch, thread);
}

}  // namespace lockstep::emulator
