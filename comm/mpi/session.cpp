// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/job/build_id.h"
#include "comm/job/dead_segments.h"
#include "comm/job/launcher.h"
#include "comm/job/start_guard.h"
#include "comm/mpi/node/window.h"
#include "core/error.h"
#include "core/log.h"
#include "core/system/last_words.h"
#include "core/timeline.h"

namespace lockstep {

void detail::check_mpi(int code, const char* call, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(exit_code::failed,
              fmt::format("{}: {} failed: {} ({}:{})", current_place(), call,
                          std::string_view(text.data(), static_cast<std::size_t>(length)), file, line));
}

namespace {

// Settings of Open MPI 4.1 for a rank that was started without mpirun. It starts no daemon, which would take
// a third of a second and outlive the rank, and no session folder, which all such ranks would share.
// Variables that the user set are kept; the destructor removes the others, so child processes do not inherit
// them.
class AloneSettings {
 public:
  AloneSettings() {
    set("OMPI_MCA_ess_singleton_isolated", "1");  // without effect on ranks that a launcher connects
    const bool by_pmix = std::getenv("PMIX_NAMESPACE") != nullptr;  // it may not set the number of ranks
    if (find_launch(&std::getenv).launcher == Launcher::none && !by_pmix)
      set("OMPI_MCA_orte_create_session_dirs", "0");
  }
  ~AloneSettings() {
    for (const char* name : set_) unsetenv(name);
  }
  AloneSettings(const AloneSettings&) = delete;
  AloneSettings& operator=(const AloneSettings&) = delete;

 private:
  void set(const char* name, const char* value) {
    if (std::getenv(name) != nullptr) return;
    setenv(name, value, 0);
    set_.push_back(name);
  }

  std::vector<const char*> set_;
};

void initialize() {
  int initialized = 0;
  MPI_CHECK(MPI_Initialized(&initialized));
  CHECK(!initialized, "World::join() was called twice, or other code has started MPI");
  const AloneSettings settings;
  int provided = MPI_THREAD_SINGLE;
  MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  require_thread_support(provided, mpi_version());
}

std::string processor_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name = {};
  int length = 0;
  MPI_CHECK(MPI_Get_processor_name(name.data(), &length));
  return {name.data(), static_cast<std::size_t>(length)};
}

// The device of /dev/shm: the same for all processes that have the same one mounted.
std::uint64_t shared_memory_device() {
  struct stat status = {};
  return stat("/dev/shm", &status) == 0 ? status.st_dev : 0;
}

// A rank's node, as the ranks of its machine determine it.
struct Neighbourhood {
  int leader = 0;         // the lowest rank of its node
  int shares_memory = 1;  // with all ranks of its machine; 0: it does not
};

// A rank of one machine, and the device of the /dev/shm that it sees.
struct Member {
  std::uint64_t rank;
  std::uint64_t device;
};

Neighbourhood find_neighbourhood(int rank, int ranks_per_node) {
  MPI_Comm shared = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &shared));
  std::array<int, 2> place = {0, 1};  // rank and size among those that share memory
  MPI_CHECK(MPI_Comm_rank(shared, &place[0]));
  MPI_CHECK(MPI_Comm_size(shared, &place[1]));
  const Member mine = {.rank = static_cast<std::uint64_t>(rank), .device = shared_memory_device()};
  std::vector<Member> members(static_cast<std::size_t>(place[1]));
  MPI_CHECK(MPI_Allgather(&mine, 2, MPI_UINT64_T, members.data(), 2, MPI_UINT64_T, shared));
  MPI_CHECK(MPI_Comm_free(&shared));
  const int first = ranks_per_node > 0 ? place[0] / ranks_per_node * ranks_per_node : 0;
  return {.leader = static_cast<int>(members[static_cast<std::size_t>(first)].rank),
          .shares_memory = std::ranges::count(members, mine.device, &Member::device) == std::ssize(members)};
}

Placement find_place(int rank, int size, int ranks_per_node, const std::string& host) {
  const Neighbourhood mine = find_neighbourhood(rank, ranks_per_node);
  std::vector<Neighbourhood> all(static_cast<std::size_t>(size));
  MPI_CHECK(MPI_Allgather(&mine, 2, MPI_INT, all.data(), 2, MPI_INT, MPI_COMM_WORLD));
  std::vector<int> leaders, apart;
  for (std::size_t each = 0; each < all.size(); ++each) {
    leaders.push_back(all[each].leader);
    if (all[each].shares_memory == 0) apart.push_back(static_cast<int>(each));
  }
  if (apart.empty()) return place_ranks(rank, leaders);
  MPI_Finalize();
  throw ConfigError(fmt::format(
      "ranks {} are on one machine ({}) but share no /dev/shm, as in separate containers. Ranks of one "
      "machine need shared memory: share it between the containers (docker run --ipc=host, apptainer exec "
      "without --contain and --containall), or start mpirun inside one container",
      fmt::join(apart, ", "), host));
}

// If ranks are on several nodes, only some may see that their launch was split: the largest size counts.
void require_whole_launch(int size) {
  Launch launch = find_launch(&std::getenv);
  MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, &launch.size, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
  const std::string problem = describe_split_launch(launch, size, mpi_version());
  if (const std::string doubt = describe_first_task(launch); problem.empty() && !doubt.empty())
    log::shared_warning("{}", doubt);
  if (problem.empty()) return;
  MPI_Finalize();
  throw ConfigError(problem);
}

// The record that all ranks compare first; its size is the same in all versions.
struct RankBuild {
  std::array<char, 64> build = {}, host = {};
};

void require_one_build(int size, const std::string& host) {
  RankBuild mine;
  build_id(&std::getenv).copy(mine.build.data(), mine.build.size() - 1);
  host.copy(mine.host.data(), mine.host.size() - 1);
  std::vector<RankBuild> all(static_cast<std::size_t>(size));
  MPI_CHECK(MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, MPI_COMM_WORLD));
  const auto other =
      std::ranges::find_if(all, [&](const RankBuild& each) { return each.build != all[0].build; });
  if (other == all.end()) return;
  MPI_Finalize();
  throw ConfigError(fmt::format(
      "rank {} on {} runs Lockstep {}, rank 0 on {} runs {}: all ranks must run the same build; install one "
      "build on all machines, or start it from a shared folder",
      other - all.begin(), other->host.data(), other->build.data(), all[0].host.data(), all[0].build.data()));
}

// A wait on a wire: polls before the first sleep, and the length of that sleep; later ones are up to eight
// times as long. At 1 Gb/s a piece arrives every 0.5 ms, and each poll for it costs some microseconds of a
// core that computes.
constexpr int kWireSpins = 4;
constexpr int kYieldsForLittle = 400;
constexpr std::size_t kLittleBytes = std::size_t{512} << 10;
constexpr int kShortestSleepUs = 20;
// Arrivals in one sleep, of the at least four, mostly sixteen pieces that are under way (PieceFlow).
constexpr double kArrivalsASleep = 2;
constexpr double kLongestSleepUs = 500;

// Sleeps without the 50 us of timer slack that the system adds by default.
void sleep_for_us(int microseconds) {
  thread_local const bool exact = prctl(PR_SET_TIMERSLACK, 1000UL) == 0;
  static_cast<void>(exact);
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

// The largest of the values that the ranks of each communicator pass; values[k] is for communicators[k]. All
// are under way together, so they take one round. Those of one communicator start in the same order on all
// its ranks; those of different communicators do not wait for one another.
std::vector<std::int32_t> largest_of_ranks(std::span<const MPI_Comm> communicators,
                                           std::vector<std::int32_t> values, const WaitPlace& place,
                                           std::string_view what) {
  auto shared = std::make_unique<std::vector<std::int32_t>>(std::move(values));
  std::vector<MPI_Request> requests(communicators.size(), MPI_REQUEST_NULL);
  try {
    for (std::size_t k = 0; k < communicators.size(); ++k) {
      MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, &(*shared)[k], 1, MPI_INT32_T, MPI_MAX, communicators[k],
                               &requests[k]));
    }
    wait_for(requests, place, what);
  } catch (...) {
    static_cast<void>(shared.release());  // MPI may still write there
    throw;
  }
  return std::move(*shared);
}

// Collective over the ranks of each window, in the order of the list. For each window 1 if one of its ranks
// holds it outside the list, else 0.
std::vector<std::int32_t> held_on_any_rank(const std::vector<std::shared_ptr<NodeWindow>>& windows,
                                           const WaitPlace& place) {
  std::vector<MPI_Comm> communicators;
  std::vector<std::int32_t> held;
  for (const std::shared_ptr<NodeWindow>& window : windows) {
    communicators.push_back(window->communicator());
    held.push_back(window.use_count() > 1 ? 1 : 0);
  }
  return largest_of_ranks(communicators, std::move(held), place, "the ranks of its node, to free memory");
}

// MPI's own call waits for the ranks of each window without a limit.
void free_all_but(const std::vector<std::int32_t>& held, std::vector<std::shared_ptr<NodeWindow>>& windows) {
  std::size_t next = 0;
  std::erase_if(windows, [&](const std::shared_ptr<NodeWindow>& window) {
    if (held[next++] != 0) return false;
    window->free();
    return true;
  });
}

}  // namespace

void free_unheld(std::vector<std::shared_ptr<NodeWindow>>& windows, const WaitPlace& place) {
  free_all_but(held_on_any_rank(windows, place), windows);
}

void free_left(MpiSession& session) {
  const std::lock_guard lock(session.mutex);
  const WaitPlace place{.job = session.job};
  constexpr std::string_view kWhat = "the other ranks, to free the memory of ended communicators";
  const bool has_any = !session.windows.empty() || !session.communicators.empty();
  if (!on_any_rank(has_any, MPI_COMM_WORLD, place, kWhat)) return;
  // All ranks that share windows have made them in one order, whatever the order in which they were left.
  std::ranges::sort(session.windows, {}, [](const auto& window) { return window->number(); });
  const std::vector<std::int32_t> held = held_on_any_rank(session.windows, place);
  // A rank of two groups may still wait for the other group.
  meet_all(MPI_COMM_WORLD, place, kWhat);
  free_all_but(held, session.windows);
  if (on_any_rank(!session.windows.empty(), MPI_COMM_WORLD, place, kWhat)) return;  // they use these
  std::ranges::stable_sort(session.communicators, {}, &LeftCommunicator::transport);
  for (LeftCommunicator& left : session.communicators) MPI_CHECK(MPI_Comm_free(&left.communicator));
  session.communicators.clear();
}

bool on_any_rank(bool mine, MPI_Comm communicator, const WaitPlace& place, std::string_view what) {
  return largest_of_ranks({&communicator, 1}, {mine ? 1 : 0}, place, what).front() != 0;
}

MessageWait::MessageWait(const WaitPlace& place, std::string_view what, Link link, std::size_t bytes)
    : wait_(place, what), link_(link), spins_(500), yields_(5000) {
  if (link == Link::memory) return;
  spins_ = kWireSpins;
  yields_ = bytes <= kLittleBytes ? kYieldsForLittle : kWireSpins;
}

void MessageWait::pause() {
  ++polls_;
  if (polls_ < spins_) return;
  if (polls_ < yields_) return std::this_thread::yield();
  sleep_us(link_ == Link::wire ? kShortestSleepUs << std::min<std::int64_t>((polls_ - yields_) / 2, 3) : 50);
}

void MessageWait::sleep_us(int microseconds) {
  sleep_for_us(microseconds);
  wait_.look();
}

FlowWait::FlowWait(const WaitPlace& place, Link link, std::size_t bytes)
    : place_(place), link_(link), bytes_(bytes) {}

void FlowWait::after_look(int arrivals, bool busy) {
  if (arrivals > 0) keep_pace(arrivals);
  if (arrivals > 0 || busy) return wait_.reset();
  if (!wait_) wait_.emplace(place_, "messages", link_, bytes_);
  if (link_ == Link::memory || bytes_ <= kLittleBytes) return wait_->pause();
  wait_->sleep_us(
      static_cast<int>(std::clamp(kArrivalsASleep * gap_us_, double{kShortestSleepUs}, kLongestSleepUs)));
}

void FlowWait::keep_pace(int arrivals) {
  const std::int64_t now = now_ns();
  if (last_ns_ > 0) {
    constexpr double kNewest = 0.1;
    const double gap_us = static_cast<double>(now - last_ns_) * 1e-3 / arrivals;
    gap_us_ += kNewest * (gap_us - gap_us_);
  }
  last_ns_ = now;
}

void wait_for(std::span<MPI_Request> requests, const WaitPlace& place, std::string_view what, Link link,
              std::size_t bytes) {
  MessageWait wait(place, what, link, bytes);
  for (;;) {
    int done = 0;
    MPI_CHECK(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done != 0) return;
    wait.pause();
  }
}

void meet_all(MPI_Comm communicator, const WaitPlace& place, std::string_view what) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Ibarrier(communicator, &request));
  wait_for({&request, 1}, place, what);
}

void require_thread_support(int provided, const std::string& library) {
  if (provided >= MPI_THREAD_MULTIPLE) return;
  throw ConfigError(fmt::format(
      "{} allows one thread at a time; Lockstep needs MPI_THREAD_MULTIPLE because each communicator of a "
      "rank has a thread. Install Open MPI (4.0 or newer) or MPICH with thread support",
      library));
}

std::shared_ptr<MpiSession> start_mpi(const WorldOptions& options) {
  if (options.ranks_per_node < 0) {
    throw ConfigError(fmt::format(
        "ranks_per_node = {}: allowed are positive numbers, and 0 for the ranks that share memory",
        options.ranks_per_node));
  }
  auto session = std::make_shared<MpiSession>();
  const StartGuard guard(options.start_limit);
  initialize();
  int rank = 0;
  int size = 1;
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
  set_process_rank(rank);
  require_whole_launch(size);
  session->host = processor_name();
  require_one_build(size, session->host);
  session->placement = find_place(rank, size, options.ranks_per_node, session->host);
  if (session->placement.local_rank == 0)
    if (const std::string dead = describe(dead_segments(), session->host); !dead.empty())
      log::warning("{}", dead);
  return session;
}

void stop_mpi(MpiSession& session) {
  if (session.job->abandoned()) {
    throw GaveUp(fmt::format("the job was abandoned: {}", session.job->reason()), session.job->exit_code());
  }
  free_left(session);
  MPI_CHECK(MPI_Finalize());
}

void abort_mpi(MpiSession& session, int exit_code) noexcept {
  session.job->abandon("the job was ended");
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

[[noreturn]] void abort_stuck_job(int exit_code) noexcept {
  end_within(std::chrono::seconds(3), exit_code);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  _exit(exit_code);
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_CHECK(MPI_Get_library_version(text, &length));
  const std::string full(text, static_cast<std::size_t>(length));
  return full.substr(0, full.find_first_of(",\n"));
}

}  // namespace lockstep
