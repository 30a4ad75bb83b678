// SPDX-License-Identifier: Apache-2.0
//
// MpiSession: what World and its communicators share: where this rank stands, the state of the job, and what
// communicators that have ended leave to be freed. Freeing is collective, and who unwinds must wait for no
// peer: so it is put off until all ranks meet anyway. Includes MPI, so only comm's sources include it.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "comm/communicator.h"
#include "comm/placement.h"
#include "comm/world.h"

namespace lockstep {

namespace detail {
// Throws Error naming the rank, the call and MPI's own words, unless code is MPI_SUCCESS.
void check_mpi(int code, const char* call, const char* file, int line);
}  // namespace detail

#define MPI_CHECK(call) ::lockstep::detail::check_mpi((call), #call, __FILE__, __LINE__)

class NodeWindow;

struct LeftCommunicator {
  std::uint64_t transport;  // its number
  MPI_Comm communicator;
};

// What decides which of two ways of a sum between nodes is the faster: ranks that exchange messages, the
// nodes they are on, and how many such exchanges share each node's link.
struct WireShape {
  int ranks = 1;
  int nodes = 1;
  int parts = 1;
  auto operator<=>(const WireShape&) const = default;
};

// Whether halving is faster than the direct way, for small and for large sums.
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

  std::mutex mutex;  // of what follows: several communicators have threads
  // What ended communicators leave. Windows may still be held by whoever allocated them.
  std::vector<std::shared_ptr<NodeWindow>> windows;
  std::vector<LeftCommunicator> communicators;
  std::uint64_t transports = 0;  // made so far
  bool told_of_plain_memory = false;

  // Held by nobody who waits for another rank.
  std::mutex faster_mutex;
  std::map<WireShape, FasterWay> faster_ways;  // as this rank has measured them, with others
};

// Collective over the ranks of each window, in their order. Frees those that none of its ranks holds any
// more, but for the list.
void free_unheld(std::vector<std::shared_ptr<NodeWindow>>& windows, const WaitPlace& place);
// Collective over all ranks. Frees what has been left by then, on all ranks alike.
void free_left(MpiSession& session);

// Collective. Whether it is so on any rank. Waits as wait_for does.
bool on_any_rank(bool mine, MPI_Comm communicator, const WaitPlace& place, std::string_view what);
// What the slowest messages go through.
enum class Link { memory, wire };

// One wait for messages. Polls at first, then lets others run, then sleeps: MPI's own waiting would burn a
// core that computes. On a wire it sleeps after a few polls, the longer the longer it waits: what the
// system's own buffers hold keeps the wire busy meanwhile. Of little data they hold all, and each sleep makes
// it later: there others run for about half a millisecond before it sleeps.
class MessageWait {
 public:
  // what: see PeerWait. bytes: of all that is being sent together.
  MessageWait(const WaitPlace& place, std::string_view what, Link link = Link::memory, std::size_t bytes = 0);
  // For whoever has looked in vain. Throws GaveUp.
  void pause();
  // The same, where it is known how long a sleep on a wire pays.
  void sleep_us(int microseconds);

 private:
  PeerWait wait_;
  Link link_;
  int spins_;   // polls before it yields
  int yields_;  // polls before it sleeps
  int polls_ = 0;
};

// The waits of an exchange in pieces, many of which are under way. Of much data on a wire it sleeps by the
// pace of arrivals, until several have come: with many under way the wire stays busy, and each look for them
// costs some microseconds of a core that computes.
class FlowWait {
 public:
  // bytes: of all pieces. place outlives this.
  FlowWait(const WaitPlace& place, Link link, std::size_t bytes);
  // After each look at what is under way, which found so many messages to be through. busy: there is
  // something to do at once. Waits where there is nothing; throws GaveUp.
  void after_look(int arrivals, bool busy);

 private:
  void keep_pace(int arrivals);

  const WaitPlace& place_;
  Link link_;
  std::size_t bytes_;
  std::optional<MessageWait> wait_;  // since the last arrival
  std::int64_t last_ns_ = 0;         // when that was
  double gap_us_ = 0;                // between two, smoothed
};

// Waits for the requests, looking at the place's job; throws GaveUp. For the rest see MessageWait.
void wait_for(std::span<MPI_Request> requests, const WaitPlace& place, std::string_view what,
              Link link = Link::memory, std::size_t bytes = 0);
// Collective. Returns when all ranks of the communicator are here: MPI's own collective calls, which wait
// without a limit, follow.
void meet_all(MPI_Comm communicator, const WaitPlace& place, std::string_view what);

// Throws ConfigError for what is not enough of MPI_THREAD_..: several communicators of a rank have a thread
// each, and all of them call MPI.
void require_thread_support(int provided, const std::string& library);

// Starts MPI; collective over all processes.
std::shared_ptr<MpiSession> start_mpi(const WorldOptions& options);
// Collective. Ends MPI. Throws GaveUp where the job is abandoned: there is no end in order then.
void stop_mpi(MpiSession& session);
// Ends every process of the job, on the spot. Any thread.
[[noreturn]] void abort_mpi(MpiSession& session, int exit_code) noexcept;

// The same by whoever has told why, while other threads of this process are stuck, perhaps in MPI: says
// nothing to them, and ends this process where the launcher does not in three seconds.
[[noreturn]] void abort_stuck_job(int exit_code) noexcept;

// Collective. placement: as if ranks were placed so, for tests.
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiSession> session);
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiSession> session, Placement placement);

}  // namespace lockstep
