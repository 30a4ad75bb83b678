// SPDX-License-Identifier: Apache-2.0
//
// World: who this process is among the processes mpirun started. Joining it starts MPI, leaving it ends MPI.
// One per process, made at the top of main and outliving everything that communicates.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/node_claims.h"
#include "core/device.h"

namespace lockstep {

struct WorldOptions {
  // Ranks that count as one node; 0: those that share memory, as MPI says. For tests of several nodes on one.
  int ranks_per_node = 0;
  // How long all processes together may take to start MPI, after which they end with exit_code::resumable
  // (StartGuard); 0: any.
  std::chrono::seconds start_limit = std::chrono::minutes(5);
};

// How ranks communicate between devices.
struct DeviceCommunicatorOptions {
  // Thread blocks a collective may occupy, and so take from compute; 0: NCCL's own choice.
  int max_ctas = 0;
  // Whether allocate() registers its memory with NCCL, which then needs fewer thread blocks.
  bool register_memory = true;
  // Lets several ranks use one device: each passes for a node of its own, and data goes over sockets. Right
  // results, meaningless times.
  bool share_device = false;
};

// How an all_reduce goes between nodes (comm/README.md); direct and halving give the same bits.
enum class AllReduceWay {
  automatic,  // direct or halving
  direct,
  halving,  // where every node brings one partial sum, else direct
  mpi,      // MPI's own: fp32 and i32, in another order of sums
};
inline constexpr std::string_view kAllReduceWayWords[] = {"auto", "direct", "halving", "mpi"};
constexpr std::span<const std::string_view> words_of(AllReduceWay) { return kAllReduceWayWords; }
constexpr std::string_view name_of(AllReduceWay way) {
  return kAllReduceWayWords[static_cast<std::size_t>(way)];
}

class Watchdog;

class World {
 public:
  // Collective over all processes. Sets the process's rank for log and errors. Throws ConfigError where the
  // launcher started more processes than MPI joined.
  static World join(const WorldOptions& options = {});
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  // Waits for nobody: a rank that does not leave() ends without the others, and its launcher ends the job. A
  // world of one needs no leave().
  ~World();

  // Collective: the end in order, when nothing communicates any more. Throws GaveUp where the job is
  // abandoned.
  void leave();

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this node
  int local_size() const;
  int node() const;  // numbered by their lowest rank
  int nodes() const;
  const std::string& host() const;
  // What this process has for itself on its node.
  NodeClaims& claims();

  // The longest wait for another rank, in what communicates and in leave(); 0: any. A rank that waits longer
  // fails, so that one which hangs ends the job. Default: JobState::kDefaultTimeout.
  void set_timeout(std::chrono::milliseconds timeout);

  // Collective, once; later calls do nothing. From now on a thread of each rank looks whether all others are
  // alive and get on, and ends the job with exit_code::resumable where they do not (comm/watchdog).
  // silence: what is not heard of a rank for longer than that.
  void watch(Communicator& host, std::chrono::milliseconds silence);
  Watchdog* watchdog();  // null: nobody watches

  // How an all_reduce of host memory goes between nodes, from the next one on; no collective is under way.
  // Every rank the same.
  void set_between_nodes(AllReduceWay way);

  // A new communicator over all ranks (collective), for host memory: MPI.
  std::unique_ptr<Communicator> communicator();
  // The same for memory of a CUDA device: NCCL, where built. `host` is what its host() returns: it also
  // carries what ranks tell each other to connect, and must outlive the new one. An error NCCL finds behind
  // calls that have returned ends the whole job. Throws ConfigError where NCCL was not built in or refuses
  // how ranks are placed on devices.
  std::unique_ptr<Communicator> communicator(Device device, Communicator& host,
                                             const DeviceCommunicatorOptions& options = {});

  // Collective. Groups of a communicator over all ranks: the ranks of this node, which share memory; and
  // those that have the same local rank on their nodes, in the order of nodes. Nodes may hold different
  // numbers of ranks: of a high local rank there are only those that are.
  std::unique_ptr<Communicator> ranks_of_node(Communicator& all);
  std::unique_ptr<Communicator> across_nodes(Communicator& all);

  // Ends the whole job at once: every rank, with this exit code. The last resort of a rank in trouble: others
  // may be waiting for it.
  [[noreturn]] void abort(int exit_code);

 private:
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The rank its launcher gave this process, before MPI is started (from the environment); 0 without a
// launcher.
int launched_rank();

// Bytes that this node's ranks can still share, from which allocate() takes: of /dev/shm. The largest number
// where that cannot be told.
std::uint64_t free_shared_memory();

// The MPI library's name and version: "Open MPI v4.1.4". Needs no World.
std::string mpi_version();

// The NCCL library's version: "2.28.9"; empty in a build without NCCL. Needs no device.
std::string nccl_version();

}  // namespace lockstep
