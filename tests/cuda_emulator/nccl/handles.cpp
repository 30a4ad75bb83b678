// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/handles.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "tests/cuda_emulator/nccl/errors.h"

// The objects that handles point to. They are never freed, so that handles are never reused.
struct ncclComm {};

namespace lockstep::emulator {
namespace {

struct Handles {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<EmulatedCommunicator>> alive;
  std::vector<std::unique_ptr<ncclComm>> all;
};

Handles& handles() {
  static Handles& made = *new Handles;
  return made;
}

}  // namespace

ncclComm_t add_handle(std::shared_ptr<EmulatedCommunicator> communicator) {
  const Unseen unseen;
  const std::lock_guard lock(handles().mutex);
  const ncclComm_t handle = handles().all.emplace_back(std::make_unique<ncclComm>()).get();
  handles().alive.emplace(handle, std::move(communicator));
  return handle;
}

CommunicatorPointer find_handle(ncclComm_t handle) {
  const Unseen unseen;
  const std::lock_guard lock(handles().mutex);
  const auto found = handles().alive.find(handle);
  return found == handles().alive.end() ? CommunicatorPointer() : CommunicatorPointer(found->second);
}

void remove_handle(ncclComm_t handle) {
  const Unseen unseen;
  const std::lock_guard lock(handles().mutex);
  handles().alive.erase(handle);
}

ncclResult_t refuse_handle(const char* function, ncclComm_t handle) {
  const char* what = handle == nullptr ? "null" : "destroyed, aborted or invalid";
  return complain(ncclInvalidArgument, fmt::format("{}: the communicator is {}", function, what));
}

bool is_registered_somewhere(const void* data, std::size_t bytes) {
  const Unseen unseen;
  const std::lock_guard lock(handles().mutex);
  return std::any_of(handles().alive.begin(), handles().alive.end(),
                     [&](const auto& entry) { return entry.second->overlaps_registration(data, bytes); });
}

}  // namespace lockstep::emulator
