// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>

#include "tests/cuda_emulator/nccl/errors.h"

namespace lockstep::emulator {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNap{50};         // interval at which a waiting rank checks for an abort
constexpr milliseconds kHostNap{2};      // the same, outside of streams
constexpr milliseconds kLookEvery{200};  // interval of checks for lost peers
constexpr milliseconds kPatience{2000};  // limit for destroyed graphs that still run
constexpr milliseconds kSayAfter{200};   // time after which waiting for graphs is reported
constexpr double kMemory = 0.25;         // share of a context's memory

int current_device_of_thread() {
  int device = 0;
  // Also creates the device's context.
  if (cudaGetDevice(&device) != cudaSuccess || cudaFree(nullptr) != cudaSuccess) {
    throw NcclError(ncclUnhandledCudaError, "no CUDA device for the communicator");
  }
  return device;
}

// The order of a communicator, shared by its ranks in this process.
std::shared_ptr<MeetingOrder> order_of(std::uint64_t secret, int ranks) {
  static std::mutex mutex;
  static auto& orders = *new std::map<std::uint64_t, std::weak_ptr<MeetingOrder>>;
  const std::lock_guard lock(mutex);
  std::shared_ptr<MeetingOrder> order = orders[secret].lock();
  if (order == nullptr) orders[secret] = order = std::make_shared<MeetingOrder>(ranks);
  return order;
}

std::int64_t now_in_milliseconds() {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

EmulatedCommunicator::EmulatedCommunicator(const ncclUniqueId& id, int rank, int ranks,
                                           const CommunicatorSettings& settings)
    : rank_(rank),
      ranks_(ranks),
      settings_(settings),
      device_(current_device_of_thread()),
      memory_(device_),
      segment_(id, ranks),
      async_fault_(AsyncFault::from_environment(rank)),
      order_(order_of(segment_.secret(), ranks)) {
  if (memory_.grow(kMemory) != cudaSuccess)
    throw NcclError(ncclUnhandledCudaError, "the device has no memory for the communicator's channels");
  join();
  Segment::close(id);
  refuse_shared_devices();
  ring_ = Ring::from_environment(ranks_, count_nodes());
}

void EmulatedCommunicator::join() {
  Member& me = segment_.member(rank_);
  Presence before = Presence::absent;
  if (!me.presence.compare_exchange_strong(before, Presence::arriving)) {
    segment_.meeting().refused = 1;
    throw NcclError(ncclInvalidUsage, fmt::format("rank {} of {} has joined twice", rank_, ranks_));
  }
  me.process = this_process();
  me.host = host_identity();
  me.device = place_of(device_);
  me.presence = Presence::here;
  joined_ = arrive();
  if (joined_) return;
  me.presence = Presence::aborted;
  throw NcclError(ncclRemoteError,
                  fmt::format("rank {} cannot join: {}", rank_, find_lost_peer(Need::to_go_on)));
}

// The message begins like NCCL's, which users search for.
void EmulatedCommunicator::refuse_shared_devices() const {
  for (int a = 0; a < ranks_; ++a) {
    for (int b = a + 1; b < ranks_; ++b) {
      const Member& first = segment_.member(a);
      const Member& second = segment_.member(b);
      if (first.host != second.host || first.device != second.device) continue;
      const bool mine = rank_ == a || rank_ == b;
      throw NcclError(
          mine ? ncclInvalidUsage : ncclRemoteError,
          fmt::format("Duplicate GPU detected : rank {} and rank {} both on CUDA device {} of one host", a, b,
                      first.device));
    }
  }
}

int EmulatedCommunicator::count_nodes() const {
  std::set<std::uint64_t> hosts;
  for (int rank = 0; rank < ranks_; ++rank) hosts.insert(segment_.member(rank).host);
  return static_cast<int>(hosts.size());
}

bool EmulatedCommunicator::arrive() {
  Meeting& meeting = segment_.meeting();
  const std::uint32_t seen = meeting.passed;
  if (meeting.arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks_)) {
    meeting.arrived = 0;
    ++meeting.passed;
    segment_.wake_all();
    return true;
  }
  while (meeting.passed == seen) {
    if (ledger_.aborted() || !worth_waiting(seen)) return false;
    segment_.sleep(seen, kNap);
  }
  return true;
}

// While ranks join, a lost rank ends the wait. Later it is an asynchronous error, and the wait continues.
bool EmulatedCommunicator::worth_waiting(std::uint32_t seen) {
  if (!joined_) return find_lost_peer(Need::to_go_on).empty() || segment_.meeting().passed != seen;
  const std::string lost = look_for_lost_peer(Need::to_go_on);
  if (!lost.empty() && segment_.meeting().passed == seen) fail(ncclRemoteError, lost);
  return true;
}

// Reports a peer only if a second check confirms it: a rank that ends together with its peers is no error.
std::string EmulatedCommunicator::look_for_lost_peer(Need need) {
  const std::lock_guard lock(lookout_mutex_);
  Lookout& lookout = need == Need::to_go_on ? waiting_ : asking_;
  const std::int64_t now = now_in_milliseconds();
  if (now - lookout.at < kLookEvery.count()) return "";
  lookout.at = now;
  std::string lost = find_lost_peer(need);
  lookout.times = lost.empty() ? 0 : lookout.times + 1;
  return lookout.times < 2 ? "" : lost;
}

std::string EmulatedCommunicator::find_lost_peer(Need need) const {
  if (segment_.meeting().refused != 0) return "another rank was refused";
  for (int peer = 0; peer < ranks_; ++peer) {
    const Member& member = segment_.member(peer);
    const Presence presence = member.presence;
    if (peer == rank_ || presence == Presence::absent || presence == Presence::arriving) continue;
    if (need == Need::to_go_on && presence != Presence::here) {
      return fmt::format("rank {} waits for rank {}, which has {} the communicator", rank_, peer,
                         presence == Presence::left ? "destroyed" : "aborted");
    }
    if (presence == Presence::here && !alive(member.process)) {
      return fmt::format("rank {} has lost rank {}: process {} has ended", rank_, peer,
                         member.process.number);
    }
  }
  return "";
}

bool EmulatedCommunicator::meet() { return arrive(); }

void EmulatedCommunicator::meet_on_host(const char* function) {
  const std::uint32_t mine = ++segment_.member(rank_).host_meetings;
  for (int peer = 0; peer < ranks_; ++peer) {
    while (segment_.member(peer).host_meetings < mine) {
      const std::string lost =
          ledger_.aborted() ? "the communicator was aborted" : find_lost_peer(Need::to_go_on);
      if (!lost.empty() && segment_.member(peer).host_meetings < mine)
        throw NcclError(ncclRemoteError, fmt::format("{} of rank {}: {}", function, rank_, lost));
      segment_.sleep(segment_.meeting().passed, kHostNap);
    }
  }
}

void EmulatedCommunicator::count() {
  ++collectives_;
  if (!async_fault_ || collectives_ != async_fault_->after) return;
  fail(async_fault_->status,
       fmt::format("LOCKSTEP_EMULATED_NCCL_ASYNC requests an error of rank {} after collective {}", rank_,
                   collectives_));
}

void EmulatedCommunicator::fail(ncclResult_t status, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (error_ != ncclSuccess) return;
  complain(status, message);  // before other threads can see the error and read its message
  error_ = status;
  error_message_ = message;
}

ncclResult_t EmulatedCommunicator::async_error() {
  {
    const std::lock_guard lock(mutex_);
    if (error_ != ncclSuccess) return error_;
  }
  const std::string lost = look_for_lost_peer(Need::to_look);
  if (!lost.empty()) fail(ncclRemoteError, lost);
  const std::lock_guard lock(mutex_);
  return error_;
}

std::string EmulatedCommunicator::async_error_message() {
  const std::lock_guard lock(mutex_);
  return error_message_;
}

// NCCL counts the graphs with its kernels (localPersistentRefs), and polls until they are destroyed.
void EmulatedCommunicator::wait_for_graphs(const char* function) {
  const std::size_t captured = ledger_.captured_after(kSayAfter);
  if (captured == 0) return;
  complain(
      ncclInProgress,
      fmt::format("{} of rank {} waits for CUDA graphs that hold {} of its operations: destroy the graphs "
                  "before the communicator",
                  function, rank_, captured));
  ledger_.wait_until_none_is_captured();
}

void EmulatedCommunicator::finalize() {
  finalized_ = true;
  ledger_.wait_until_none_is_pending();
  wait_for_graphs("ncclCommFinalize");
}

void EmulatedCommunicator::leave() {
  ledger_.wait_until_none_is_pending();
  if (ledger_.aborted()) return;
  wait_for_graphs("ncclCommDestroy");
  segment_.member(rank_).presence = Presence::left;
}

void EmulatedCommunicator::abort() {
  ledger_.abort();
  segment_.member(rank_).presence = Presence::aborted;
  segment_.wake_all();
  ledger_.wait_until_none_runs();
  wait_for_graphs("ncclCommAbort");
}

void* EmulatedCommunicator::add(const Range& range) {
  const std::lock_guard lock(mutex_);
  void* handle = reinterpret_cast<void*>(++handles_);
  registrations_[handle] = range;
  return handle;
}

void* EmulatedCommunicator::add_registration(const void* data, std::size_t bytes, HandleKind kind) {
  return add({.data = static_cast<const std::byte*>(data), .bytes = bytes, .kind = kind});
}

void* EmulatedCommunicator::add_window(const void* data, std::size_t bytes) {
  meet_on_host("ncclCommWindowRegister");
  return add({.data = static_cast<const std::byte*>(data),
              .bytes = bytes,
              .kind = HandleKind::window,
              .window = windows_++});
}

std::int64_t EmulatedCommunicator::place_in_windows(const void* data, std::size_t bytes) {
  constexpr std::int64_t kApart = std::int64_t{1} << 40;
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, range] : registrations_) {
    if (range.window >= 0 && range.data <= begin && begin + bytes <= range.data + range.bytes)
      return range.window * kApart + (begin - range.data);
  }
  return -1;
}

std::shared_ptr<EmulatedCommunicator> EmulatedCommunicator::split(int colour, int key,
                                                                  const CommunicatorSettings& settings) {
  Member& me = segment_.member(rank_);
  me.colour = colour;
  me.key = key;
  meet_on_host("ncclCommSplit");
  std::vector<std::pair<int, int>> group;  // keys and ranks
  for (int rank = 0; rank < ranks_; ++rank) {
    const Member& member = segment_.member(rank);
    if (member.colour == colour) group.emplace_back(member.key, rank);
  }
  std::sort(group.begin(), group.end());
  const bool grouped = colour != NCCL_SPLIT_NOCOLOR;
  if (grouped && group.front().second == rank_) me.split_id = Segment::create();
  meet_on_host("ncclCommSplit");
  if (!grouped) return nullptr;
  const auto place = std::find(group.begin(), group.end(), std::pair(key, rank_)) - group.begin();
  const ncclUniqueId id = segment_.member(group.front().second).split_id;
  return std::make_shared<EmulatedCommunicator>(id, static_cast<int>(place), static_cast<int>(group.size()),
                                                settings);
}

std::shared_ptr<EmulatedCommunicator> EmulatedCommunicator::shrink(const std::vector<int>& excluded,
                                                                   const CommunicatorSettings& settings) {
  const auto is_excluded = [&](int rank) {
    return std::find(excluded.begin(), excluded.end(), rank) != excluded.end();
  };
  if (is_excluded(rank_)) throw NcclError(ncclInvalidArgument, fmt::format("rank {} excludes itself", rank_));
  std::vector<int> rest;
  for (int rank = 0; rank < ranks_; ++rank)
    if (!is_excluded(rank)) rest.push_back(rank);
  Member& me = segment_.member(rank_);
  const Member& first = segment_.member(rest.front());
  if (rest.front() == rank_) me.split_id = Segment::create();
  const std::uint32_t mine = ++me.shrinks;
  segment_.wake_all();
  while (first.shrinks < mine) {
    if (!alive(first.process) && first.shrinks < mine)
      throw NcclError(ncclRemoteError, fmt::format("rank {} has lost rank {}", rank_, rest.front()));
    segment_.sleep(segment_.meeting().passed, kHostNap);
  }
  const auto place = std::find(rest.begin(), rest.end(), rank_) - rest.begin();
  return std::make_shared<EmulatedCommunicator>(first.split_id, static_cast<int>(place),
                                                static_cast<int>(rest.size()), settings);
}

void EmulatedCommunicator::remove_registration(void* handle, HandleKind kind) {
  Range range{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = registrations_.find(handle);
    if (found == registrations_.end() || found->second.kind != kind) {
      throw NcclError(ncclInvalidArgument,
                      "deregistration: the handle does not belong to this communicator, was deregistered, or "
                      "mixes registrations and windows");
    }
    range = found->second;
  }
  if (ledger_.uses_after(range.data, range.bytes, kPatience)) {
    throw NcclError(ncclInvalidUsage,
                    fmt::format("deregistration: operations of rank {} that have not run, or are "
                                "in CUDA graphs, use the memory",
                                rank_));
  }
  const std::lock_guard lock(mutex_);
  registrations_.erase(handle);
}

bool EmulatedCommunicator::registered(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  return std::any_of(registrations_.begin(), registrations_.end(), [&](const auto& entry) {
    const Range& range = entry.second;
    return range.data <= begin && begin + bytes <= range.data + range.bytes;
  });
}

bool EmulatedCommunicator::overlaps_registration(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  return std::any_of(registrations_.begin(), registrations_.end(), [&](const auto& entry) {
    const Range& range = entry.second;
    return range.data < begin + bytes && begin < range.data + range.bytes;
  });
}

}  // namespace lockstep::emulator
