// SPDX-License-Identifier: Apache-2.0
//
// World: this process's place among the processes that mpirun started. Joining it starts MPI, leaving it ends
// MPI. One per process, made at the top of main; it outlives everything that communicates.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/job/node_claims.h"
#include "core/device.h"

namespace lockstep {

struct WorldOptions {
  // Ranks that count as one node, for tests of several nodes on one; 0: those that share memory, as MPI
  // reports.
  int ranks_per_node = 0;
  // The time limit for all processes to start MPI, after which they end with exit_code::resumable
  // (StartGuard); 0: unlimited.
  std::chrono::seconds start_limit = std::chrono::minutes(5);
};

// How NCCL may use the memory from Communicator::allocate(). window: as symmetric memory, which peers of the
// same node read and write directly; between nodes as registered. registered: without copies. plain: with
// copies. See comm/nccl/README.md.
enum class RegisteredMemory { window, registered, plain };
inline constexpr std::string_view kRegisteredMemoryWords[] = {"window", "registered", "plain"};
constexpr std::span<const std::string_view> words_of(RegisteredMemory) { return kRegisteredMemoryWords; }

// NCCL_CTA_POLICY_DEFAULT, _EFFICIENCY and _ZERO.
enum class CtaPolicy { standard, efficiency, zero };
inline constexpr std::string_view kCtaPolicyWords[] = {"default", "efficiency", "zero"};
constexpr std::span<const std::string_view> words_of(CtaPolicy) { return kCtaPolicyWords; }

// How ranks communicate between devices.
struct DeviceCommunicatorOptions {
  // Thread blocks that a collective occupies at least and at most, and so takes from compute, and those of
  // reductions in the switch (NVLink SHARP); 0: NCCL's own choice.
  int min_ctas = 0;
  int max_ctas = 0;
  int nvls_ctas = 0;
  // Largest number of thread blocks of a collective beside compute; 0: NCCL's own choice.
  int ctas_beside_compute = 0;
  // Thread blocks of a cluster; 0: no clusters; -1: NCCL's own choice.
  int cga_cluster_size = -1;
  CtaPolicy cta_policy = CtaPolicy::standard;
  // Service level of InfiniBand, or type of service of RoCE; -1: NCCL's own choice.
  int traffic_class = -1;
  RegisteredMemory memory = RegisteredMemory::window;
  // NCCL reports when the kernels of collectives begin and end.
  bool kernel_times = false;
  // Lets several ranks use one device: NCCL treats each as a separate node, and data goes over sockets.
  // Results are right, times are meaningless.
  bool share_device = false;
};

// The algorithm of an all_reduce between nodes (comm/mpi/between_nodes.md); direct and halving give the same
// bits.
enum class AllReduceWay {
  automatic,  // direct or halving
  direct,
  halving,  // if every node has one partial sum, else direct
  mpi,      // MPI's own, for fp32 and i32: sums in another order
};
inline constexpr std::string_view kAllReduceWayWords[] = {"auto", "direct", "halving", "mpi"};
constexpr std::span<const std::string_view> words_of(AllReduceWay) { return kAllReduceWayWords; }

class Watchdog;

class World {
 public:
  // Collective over all processes. Sets the process's rank for log and errors. Throws ConfigError if the
  // launcher started more processes than MPI joined.
  static World join(const WorldOptions& options = {});
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  // Does not wait for other ranks: if a rank ends without leave(), its launcher ends the job. A world of one
  // needs no leave().
  ~World();

  // Collective: the orderly end, after all communication. Throws GaveUp if the job is abandoned.
  void leave();

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this node
  int local_size() const;
  int node() const;  // nodes are numbered by their lowest rank
  int nodes() const;
  const std::string& host() const;
  // The claims of this process on its node.
  NodeClaims& claims();

  // The longest wait for another rank, in collectives and in leave(); 0: unlimited. A rank that waits longer
  // fails, so a rank that hangs ends the job. Default: JobState::kDefaultTimeout.
  void set_timeout(std::chrono::milliseconds timeout);

  // Collective, once; later calls do nothing. From now on a thread of each rank checks that all peers are
  // alive and make progress, and ends the job with exit_code::resumable if not (comm/watchdog). silence: how
  // long a rank may send no sign of life.
  void watch(Communicator& host, std::chrono::milliseconds silence);
  Watchdog* watchdog();  // null before watch()

  // The algorithm of an all_reduce of host memory between nodes, from the next one on; no collective is under
  // way. The same on every rank.
  void set_between_nodes(AllReduceWay way);

  // Collective. A new communicator over all ranks, for host memory: MPI.
  std::unique_ptr<Communicator> communicator();
  // Collective. A new communicator for memory of a CUDA device: NCCL. `host` is what its host() returns: it
  // carries the messages that connect ranks, and must outlive the new communicator. An error that NCCL finds
  // after a call has returned ends the whole job. Throws ConfigError if NCCL was not built in or refuses the
  // placement of ranks on devices.
  std::unique_ptr<Communicator> communicator(Device device, Communicator& host,
                                             const DeviceCommunicatorOptions& options = {});

  // Ends every rank of the job at once, with this exit code. For a failing rank that others may wait for.
  [[noreturn]] void abort(int exit_code);

 private:
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The rank that the launcher gave this process, from the environment, before MPI starts; 0 without a
// launcher.
int launched_rank();

// Bytes of /dev/shm that this node's ranks can still share; allocate() takes from it. The largest number if
// unknown.
std::uint64_t free_shared_memory();

// The MPI library's name and version: "Open MPI v4.1.4". Needs no World.
std::string mpi_version();

// The NCCL library's version: "2.28.9"; empty in a build without NCCL. Needs no device.
std::string nccl_version();

}  // namespace lockstep
