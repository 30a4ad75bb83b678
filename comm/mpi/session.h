// SPDX-License-Identifier: Apache-2.0
//
// MpiSession: what World and its communicators share: this rank's placement, the state of the job, and what
// ended communicators left to be freed. Freeing is collective, and a destructor must not wait for peers: it
// is put off until all ranks meet anyway. Includes MPI, so only comm's sources include it.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "comm/communicator.h"
#include "comm/job/placement.h"
#include "comm/world.h"

namespace lockstep {

namespace detail {
// Throws Error with the rank, the call and MPI's message, unless code is MPI_SUCCESS.
void check_mpi(int code, const char* call, const char* file, int line);
}  // namespace detail

#define MPI_CHECK(call) ::lockstep::detail::check_mpi((call), #call, __FILE__, __LINE__)

class NodeWindow;

struct LeftCommunicator {
  std::uint64_t transport;  // its number
  MPI_Comm communicator;
};

// The shape of a sum between nodes, which decides which algorithm is faster: the number of ranks that
// exchange messages, of their nodes, and of such exchanges that share each node's link.
struct WireShape {
  int ranks = 1;
  int nodes = 1;
  int parts = 1;
  auto operator<=>(const WireShape&) const = default;
};

// True if halving is faster than the direct algorithm, for small and for large sums.
struct FasterWay {
  bool halving_small = false;
  bool halving_large = false;
};

struct MpiSession {
  MpiSession() = default;
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  Placement placement;
  std::string host;
  std::shared_ptr<JobState> job = std::make_shared<JobState>();
  AllReduceWay between_nodes = AllReduceWay::automatic;

  std::mutex mutex;  // guards the next four members: each communicator has a thread
  // Resources of ended communicators. Buffers may still hold the windows.
  std::vector<std::shared_ptr<NodeWindow>> windows;
  std::vector<LeftCommunicator> communicators;
  std::uint64_t transports = 0;  // made so far
  bool told_of_plain_memory = false;

  // Never held during a wait for another rank.
  std::mutex faster_mutex;
  std::map<WireShape, FasterWay> faster_ways;  // as this rank has measured them with others
};

// Collective over the ranks of each window, in the order of the list. Frees the windows that none of their
// ranks holds outside the list.
void free_unheld(std::vector<std::shared_ptr<NodeWindow>>& windows, const WaitPlace& place);
// Collective over all ranks. Frees what all ranks have left so far, in the same order on all ranks.
void free_left(MpiSession& session);

// Collective. True if `mine` is true on any rank. Waits as wait_for() does.
bool on_any_rank(bool mine, MPI_Comm communicator, const WaitPlace& place, std::string_view what);
// The slowest link that messages use.
enum class Link { memory, wire };

// One wait for messages. It polls at first, then yields, then sleeps: MPI's own waiting would occupy a core
// that computes. On a wire it sleeps after a few polls, longer and longer: the system's buffers keep the wire
// busy meanwhile. They hold all of a little data, and each sleep would delay it: there it yields for about
// half a millisecond before it sleeps.
class MessageWait {
 public:
  // what: see PeerWait. bytes: of all messages that are sent together.
  MessageWait(const WaitPlace& place, std::string_view what, Link link = Link::memory, std::size_t bytes = 0);
  // Call after a poll that found nothing. Throws GaveUp.
  void pause();
  // The same with a sleep of this length, which the caller has estimated.
  void sleep_us(int microseconds);

 private:
  PeerWait wait_;
  Link link_;
  int spins_;               // polls before it yields
  int yields_;              // polls before it sleeps
  std::int64_t polls_ = 0;  // a wait may last days
};

// The waits of an exchange with many pieces under way. For much data on a wire it sleeps for the time of
// about two arrivals: with many pieces under way the wire stays busy, and each poll costs some microseconds
// of a core that computes.
class FlowWait {
 public:
  // bytes: of all pieces. place outlives this.
  FlowWait(const WaitPlace& place, Link link, std::size_t bytes);
  // Call after each poll. arrivals: messages that it found complete. busy: there is something to do at once.
  // Waits if there is neither; throws GaveUp.
  void after_look(int arrivals, bool busy);

 private:
  void keep_pace(int arrivals);

  const WaitPlace& place_;
  Link link_;
  std::size_t bytes_;
  std::optional<MessageWait> wait_;  // since the last arrival
  std::int64_t last_ns_ = 0;         // time of the last arrival
  double gap_us_ = 0;                // between two arrivals, smoothed
};

// Waits for the requests. Throws GaveUp if the place's job is abandoned. For the rest see MessageWait.
void wait_for(std::span<MPI_Request> requests, const WaitPlace& place, std::string_view what,
              Link link = Link::memory, std::size_t bytes = 0);
// Collective. Returns when all ranks of the communicator have arrived. Call it before MPI's own collective
// calls, which wait without a limit.
void meet_all(MPI_Comm communicator, const WaitPlace& place, std::string_view what);

// Throws ConfigError if `provided` is less than MPI_THREAD_MULTIPLE: each communicator of a rank has a
// thread, and all of them call MPI.
void require_thread_support(int provided, const std::string& library);

// Starts MPI; collective over all processes.
std::shared_ptr<MpiSession> start_mpi(const WorldOptions& options);
// Collective. Ends MPI. Throws GaveUp if the job is abandoned, which rules out an orderly end.
void stop_mpi(MpiSession& session);
// Ends every process of the job at once. Any thread.
[[noreturn]] void abort_mpi(MpiSession& session, int exit_code) noexcept;

// Like abort_mpi(), for a caller that has reported the reason, while other threads of this process are stuck,
// perhaps in MPI: it does not notify them, and ends this process if the launcher does not within three
// seconds.
[[noreturn]] void abort_stuck_job(int exit_code) noexcept;

// Collective. placement: a simulated one, for tests.
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiSession> session);
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiSession> session, Placement placement);

}  // namespace lockstep
