// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/runtime/residence.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

struct Room {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t taken = 0;
  std::size_t kernels = 0;                      // kernels that hold blocks
  std::map<std::string, int> collectives = {};  // collectives that hold blocks, by name
};

std::size_t all_blocks() {
  return static_cast<std::size_t>(machine().multiprocessors) * machine().resident_blocks;
}

Room& room_of(int device) {
  static auto& rooms = *new std::vector<Room>(static_cast<std::size_t>(std::max(1, machine().devices)));
  return rooms.at(static_cast<std::size_t>(device));
}

std::string names(const Room& room) {
  std::string all;
  for (const auto& [name, count] : room.collectives)
    all += (all.empty() ? "" : ", ") + std::to_string(count) + " x " + name;
  return all;
}

}  // namespace

Residence::Residence(int device, Kind kind, std::size_t blocks, const char* name,
                     const std::function<bool()>& given_up)
    : device_(device), kind_(kind), name_(name) {
  constexpr std::chrono::milliseconds kLook{50};
  const Unseen unseen;
  Room& room = room_of(device);
  const std::size_t wanted = std::min(blocks, all_blocks());
  const std::size_t least = kind == Kind::kernel ? 1 : wanted;
  std::unique_lock lock(room.mutex);
  auto hopeless_at = std::chrono::steady_clock::now() + kPatience;
  while (all_blocks() - room.taken < least) {
    if (given_up()) return;
    room.changed.wait_for(lock, kLook);
    const auto now = std::chrono::steady_clock::now();
    if (room.kernels > 0) hopeless_at = now + kPatience;  // kernels end and release their blocks
    if (now < hopeless_at) continue;
    throw DeviceFault("no space for " + std::to_string(least) + " blocks of " + name + ": of " +
                      std::to_string(all_blocks()) + " that device " + std::to_string(device) +
                      " can hold, " + std::to_string(room.taken) +
                      " belong to collectives that wait for their peers (" + names(room) +
                      "). Order the communicators' collectives alike on all ranks");
  }
  taken_ = std::min(wanted, all_blocks() - room.taken);
  room.taken += taken_;
  if (kind == Kind::kernel) {
    ++room.kernels;
  } else {
    ++room.collectives[name];
  }
}

Residence::~Residence() {
  if (!granted()) return;
  const Unseen unseen;
  Room& room = room_of(device_);
  const std::lock_guard lock(room.mutex);
  room.taken -= taken_;
  if (kind_ == Kind::kernel) {
    --room.kernels;
  } else if (--room.collectives[name_] == 0) {
    room.collectives.erase(name_);
  }
  room.changed.notify_all();
}

void run_resident(int device, std::size_t blocks, const char* name, const std::function<void()>& kernel) {
  const Residence residence(device, Residence::Kind::kernel, blocks, name);
  kernel();
}

std::size_t resident_blocks(int device) {
  const Unseen unseen;
  Room& room = room_of(device);
  const std::lock_guard lock(room.mutex);
  return room.taken;
}

}  // namespace lockstep::emulator
