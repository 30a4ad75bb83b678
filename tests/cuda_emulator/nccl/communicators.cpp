// SPDX-License-Identifier: Apache-2.0
//
// NCCL's functions: the library, communicators and their errors.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nccl.h>

#include "tests/cuda_emulator/nccl/errors.h"
#include "tests/cuda_emulator/nccl/handles.h"
#include "tests/cuda_emulator/nccl/submission.h"

namespace lockstep::emulator {
namespace {

void check_number(int value, int least, int most, const char* name) {
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= least && value <= most)) return;
  throw NcclError(ncclInvalidArgument, fmt::format("{} = {}", name, value));
}

// Accepts options that only affect times, and refuses options that would change the behaviour. Like NCCL, it
// refuses minCTAs without maxCTAs, which it reads as the smallest integer.
void check_config(const ncclConfig_t& config) {
  if (config.magic != 0xcafebeef || config.size != sizeof(ncclConfig_t)) {
    throw NcclError(ncclInvalidArgument,
                    "the configuration was not initialized with NCCL_CONFIG_INITIALIZER");
  }
  check_number(config.blocking, 0, 1, "blocking");
  check_number(config.cgaClusterSize, 0, 8, "cgaClusterSize");
  check_number(config.minCTAs, 1, 64, "minCTAs");
  check_number(config.maxCTAs, 1, 64, "maxCTAs");
  check_number(config.nvlsCTAs, 1, 64, "nvlsCTAs");
  check_number(config.CTAPolicy, NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_ZERO, "CTAPolicy");
  check_number(config.splitShare, 0, 1, "splitShare");
  if (config.minCTAs > config.maxCTAs) throw NcclError(ncclInvalidArgument, "minCTAs is larger than maxCTAs");
  if (config.blocking == 0) throw NcclError(ncclInvalidUsage, "blocking = 0 is not emulated");
  if (config.netName != nullptr && std::string(config.netName) != "Socket") {
    throw NcclError(ncclInvalidUsage, fmt::format("the network {} is not emulated", config.netName));
  }
}

CommunicatorSettings settings_of(const ncclConfig_t& config) {
  CommunicatorSettings settings;
  int& channels = settings.channels;
  if (config.minCTAs != NCCL_CONFIG_UNDEF_INT) channels = std::max(channels, config.minCTAs);
  if (config.maxCTAs != NCCL_CONFIG_UNDEF_INT) channels = std::min(channels, config.maxCTAs);
  if (config.CTAPolicy != NCCL_CONFIG_UNDEF_INT) settings.cta_policy = config.CTAPolicy;
  return settings;
}

ncclResult_t init(const char* function, ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                  const ncclConfig_t* config) {
  if (const ncclResult_t fault = requested_fault(function)) return fault;
  const Unseen unseen;
  try {
    if (comm == nullptr) throw NcclError(ncclInvalidArgument, "the pointer for the communicator is null");
    *comm = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks) {
      throw NcclError(ncclInvalidArgument, fmt::format("rank {} is invalid for {} ranks", rank, ranks));
    }
    if (in_group()) throw NcclError(ncclInvalidUsage, "creating communicators in a group is not emulated");
    if (config != nullptr) check_config(*config);
    *comm = add_handle(std::make_shared<EmulatedCommunicator>(
        id, rank, ranks, config == nullptr ? CommunicatorSettings{} : settings_of(*config)));
    return ncclSuccess;
  } catch (const NcclError& error) {
    return complain(error.status, fmt::format("{}: {}", function, error.what()));
  }
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* new_comm, const ncclConfig_t* config) {
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommSplit", comm);
  const Unseen unseen;
  try {
    if (new_comm == nullptr) throw NcclError(ncclInvalidArgument, "the pointer for the communicator is null");
    *new_comm = nullptr;
    if (color < NCCL_SPLIT_NOCOLOR) throw NcclError(ncclInvalidArgument, fmt::format("color {}", color));
    if (in_group()) throw NcclError(ncclInvalidUsage, "splitting communicators in a group is not emulated");
    if (config != nullptr) check_config(*config);
    const CommunicatorSettings settings = config == nullptr ? communicator->settings() : settings_of(*config);
    if (std::shared_ptr<EmulatedCommunicator> part = communicator->split(color, key, settings))
      *new_comm = add_handle(std::move(part));
    return ncclSuccess;
  } catch (const NcclError& error) {
    return complain(error.status, fmt::format("ncclCommSplit: {}", error.what()));
  }
}

ncclResult_t shrink(ncclComm_t comm, const int* excluded, int excluded_count, ncclComm_t* new_comm,
                    const ncclConfig_t* config, int flags) {
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommShrink", comm);
  const Unseen unseen;
  try {
    if (new_comm == nullptr) throw NcclError(ncclInvalidArgument, "the pointer for the communicator is null");
    *new_comm = nullptr;
    if (excluded == nullptr || excluded_count <= 0)
      throw NcclError(ncclInvalidArgument, "the list of excluded ranks is empty");
    const std::vector<int> ranks(excluded, excluded + excluded_count);
    for (const int rank : ranks) {
      if (rank < 0 || rank >= communicator->ranks())
        throw NcclError(ncclInvalidArgument, fmt::format("there is no rank {}", rank));
    }
    if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)
      throw NcclError(ncclInvalidArgument, fmt::format("flags {}", flags));
    if (in_group()) throw NcclError(ncclInvalidUsage, "shrinking communicators in a group is not emulated");
    if (config != nullptr) check_config(*config);
    if (flags == NCCL_SHRINK_ABORT) communicator->abort();
    const CommunicatorSettings settings = config == nullptr ? communicator->settings() : settings_of(*config);
    *new_comm = add_handle(communicator->shrink(ranks, settings));
    return ncclSuccess;
  } catch (const NcclError& error) {
    return complain(error.status, fmt::format("ncclCommShrink: {}", error.what()));
  }
}

// Makes a new communicator known to the program's plugins. Returns the status with which it was made.
ncclResult_t with_plugins(ncclResult_t status, const ncclComm_t* comm, const ncclConfig_t* config) {
  if (status != ncclSuccess || *comm == nullptr) return status;
  const CommunicatorPointer communicator = find_handle(*comm);
  communicator->plugins().begin(reinterpret_cast<std::uintptr_t>(*comm),
                                config == nullptr ? nullptr : config->commName, communicator->ring().nodes,
                                communicator->ranks(), communicator->rank());
  return status;
}

// Runs a query. Refuses a null pointer for the result and an invalid communicator.
template <typename T, typename F>
ncclResult_t ask(const char* function, ncclComm_t comm, T* result, F answer) {
  if (const ncclResult_t fault = requested_fault(function)) return fault;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle(function, comm);
  if (result == nullptr)
    return complain(ncclInvalidArgument, fmt::format("{}: the pointer for the result is null", function));
  *result = [&] {
    const Unseen unseen;
    return answer(*communicator);
  }();
  return ncclSuccess;
}

}  // namespace
}  // namespace lockstep::emulator

using namespace lockstep::emulator;

ncclResult_t ncclGetVersion(int* version) {
  if (const ncclResult_t fault = requested_fault("ncclGetVersion")) return fault;
  if (version == nullptr)
    return complain(ncclInvalidArgument, "ncclGetVersion: the pointer for the version is null");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kWords[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "a remote process has ended or the network failed",
                                    "in progress"};
  return result >= 0 && result < ncclNumResults ? kWords[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_complaint(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t fault = requested_fault("ncclGetUniqueId")) return fault;
  if (id == nullptr) return complain(ncclInvalidArgument, "ncclGetUniqueId: the pointer for the id is null");
  const Unseen unseen;
  try {
    host_identity();  // is fixed from the first call on
    *id = Segment::create();
    return ncclSuccess;
  } catch (const NcclError& error) {
    return complain(error.status, fmt::format("ncclGetUniqueId: {}", error.what()));
  }
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return with_plugins(init("ncclCommInitRank", comm, ranks, id, rank, nullptr), comm, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return with_plugins(init("ncclCommInitRankConfig", comm, ranks, id, rank, config), comm, config);
}

// Without a configuration the new communicator has its parent's.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* new_comm, ncclConfig_t* config) {
  if (const ncclResult_t fault = requested_fault("ncclCommSplit")) return fault;
  return with_plugins(split(comm, color, key, new_comm, config), new_comm, config);
}

// With NCCL_SHRINK_ABORT the parent's operations end first, and only ncclCommAbort() can follow on it.
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* new_comm,
                            ncclConfig_t* config, int flags) {
  if (const ncclResult_t fault = requested_fault("ncclCommShrink")) return fault;
  return with_plugins(shrink(comm, excluded, excluded_count, new_comm, config, flags), new_comm, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t fault = requested_fault("ncclCommFinalize")) return fault;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommFinalize", comm);
  const Unseen unseen;
  communicator->finalize();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (const ncclResult_t fault = requested_fault("ncclCommDestroy")) return fault;
  if (comm == nullptr) return ncclSuccess;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommDestroy", comm);
  {
    const Unseen unseen;
    communicator->leave();
  }
  communicator->plugins().end();
  remove_handle(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (const ncclResult_t fault = requested_fault("ncclCommAbort")) return fault;
  if (comm == nullptr) return ncclSuccess;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommAbort", comm);
  {
    const Unseen unseen;
    communicator->abort();
  }
  communicator->plugins().end();
  remove_handle(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return ask("ncclCommGetAsyncError", comm, error,
             [](EmulatedCommunicator& found) { return found.async_error(); });
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return ask("ncclCommCount", comm, count, [](EmulatedCommunicator& found) { return found.ranks(); });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return ask("ncclCommCuDevice", comm, device, [](EmulatedCommunicator& found) { return found.device(); });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return ask("ncclCommUserRank", comm, rank, [](EmulatedCommunicator& found) { return found.rank(); });
}
