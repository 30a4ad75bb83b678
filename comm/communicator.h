// SPDX-License-Identifier: Apache-2.0
//
// Communicator: a group of ranks and the collectives they run, in the order they were enqueued. Every
// operation is enqueued on stream() and returns at once; completion is stream order (record an Event and wait
// for it). All ranks must enqueue the same operations in the same order.
//
// Results are the same bits on every rank. On the CPU a sum is taken element by element along one tree over
// the ranks, ((0+1)+(2+3))+((4+5)+(6+7)) (comm/sums/sum_tree.h), whatever the size, alignment or kind of
// memory, and however ranks are dealt to nodes, so splitting one all_reduce into several changes nothing.
// Between devices the order is NCCL's, and depends on size and topology.
//
// Pointers are to memory of stream()'s device: host memory on the CPU, device memory on CUDA. Agreements
// between ranks in host memory use host().
//
// The destructor does not wait for peers. If collectives are still under way it abandons the job
// (comm/job/job_state.h), because they may never end. Wait for enqueued collectives before you destroy a
// communicator.
//
// On the CPU stream() is one worker thread, which runs the collectives one after another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/collective.h"
#include "comm/collective_log.h"
#include "comm/job/job_state.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "core/tensor/dtype.h"

namespace lockstep {

// How often ranks compare their collectives. A difference is an error on every rank that names the first
// collective that differs, before a wrong sum is used.
enum class CallCheck {
  off,
  plan,        // in the first step of every new plan, where the caller calls check_calls()
  step,        // in every step
  collective,  // before each collective, which then waits for all ranks; for debugging. Recorded ones are not
               // compared until the caller calls check_calls().
};
inline constexpr std::string_view kCallCheckWords[] = {"off", "plan", "step", "collective"};
constexpr std::span<const std::string_view> words_of(CallCheck) { return kCallCheckWords; }

class Communicator {
 public:
  virtual ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view name() const = 0;  // "self", "threads", "mpi", "nccl"
  virtual Stream& stream() = 0;
  // The same ranks for host memory: this communicator on the CPU, one over MPI for devices.
  virtual Communicator& host() { return *this; }

  // The node of each rank, by rank; nodes are numbered by their lowest rank. By default all ranks are on one
  // node.
  std::span<const int> node_of_rank() const { return node_of_rank_; }

  // Collective. Zeroed memory on which in-place collectives are fastest (shared window, registered memory).
  // Freeing it does not wait for other ranks and may follow the communicator's end. Shared memory returns to
  // the system once all ranks have freed it and next allocate or make a communicator.
  virtual Buffer allocate(std::size_t bytes) = 0;

  // Collective. Addresses in this process, by rank, of the memory that each rank got from one call of
  // allocate(); `own` is this rank's. Empty on every rank if they do not share it (other nodes, devices).
  // Valid while all ranks hold their memory.
  virtual std::vector<std::byte*> shared_places(void* own) {
    static_cast<void>(own);
    return {};
  }

  // Collective. A communicator of the ranks that pass the same colour, ordered by (key, rank); null for a
  // colour below 0. It uses the same kind of memory and the same job, and may outlive this one.
  virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;

  // Checks, numbers, counts, records and enqueues a collective; returns its sequence number. Throws Error for
  // an invalid collective and, as CallCheck says, if ranks differ. The methods below call this.
  std::uint64_t enqueue(Collective collective);
  // Like enqueue(), then waits for it and all earlier ones, as synchronizing stream() does. On the CPU the
  // calling thread runs it if nothing is before it, which is faster for a few bytes than waking the worker.
  std::uint64_t complete(Collective collective);

  // The purpose of later collectives that set none.
  void set_purpose(const CollectivePurpose& purpose) { purpose_ = purpose; }
  const CollectivePurpose& purpose() const { return purpose_; }

  // In place over `count` elements; f32, f16, bf16, i32. 16-bit floats are added in fp32 and rounded once,
  // unless rounds_partial_sums(). All ranks pass the same place in memory of one allocate(), or all pass
  // other memory.
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  // send holds size() * count elements; recv takes this rank's share of the reduction, `count` elements, and
  // may be that share's place in send.
  void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op);
  // send holds `count` elements; recv takes size() * count, in rank order. send may be this rank's place in
  // recv. Any type.
  void all_gather(const void* send, void* recv, std::size_t count, DType dtype);
  // send holds size() blocks of `count` elements, block k for rank k; recv takes as many, block k from rank
  // k. They must not overlap. Any type.
  void all_to_all(const void* send, void* recv, std::size_t count, DType dtype);
  // Copies root's `data` to every rank. Any type.
  void broadcast(void* data, std::size_t count, DType dtype, int root);
  // No rank's later work starts before all ranks' earlier work is done.
  void barrier();

  // This rank gives up on its peers for good (JobState::abandon). Collectives that wait for them end with an
  // error. For destructors that free memory of running collectives while an exception unwinds. Any thread.
  virtual void abandon(std::string_view reason) noexcept { job_->abandon(reason); }
  const std::shared_ptr<JobState>& job() const { return job_; }

  // Traffic so far, replays included. Bytes count when they are sent, so the number lags until the stream is
  // idle. Any thread.
  Traffic traffic() const { return {.sent_bytes = sent_bytes_.load(), .operations = operations_.load()}; }
  // The collectives recorded with the work around them since the last call.
  RecordedCollectives take_recorded();
  // They will never be replayed: numbers later collectives as if these had not been enqueued.
  void discard(const RecordedCollectives& recorded);
  // Call after a replay on `stream`: counts, logs and numbers the collectives as if enqueued now;
  // check_calls() compares them.
  void replayed(const RecordedCollectives& recorded, Stream& stream);
  // True if 16-bit partial sums are rounded on their way between ranks.
  virtual bool rounds_partial_sums() const { return false; }
  // Bytes of staging memory, without memory from allocate().
  virtual std::size_t memory_bytes() const { return 0; }

  // The last collectives and their progress. On a GPU the host knows only when they were enqueued,
  // unless NCCL reports more (comm.kernel_times).
  const CollectiveLog& log() const { return log_; }

  void set_call_check(CallCheck check) { call_check_ = check; }
  CallCheck call_check() const { return call_check_; }
  // Collective. Compares the collectives enqueued so far across ranks, over host(), and waits for the result.
  // Throws an agreed Error if one differs; it names the first one if that is among the last 256.
  void check_calls();

 protected:
  Communicator(std::string_view name, int rank, int size, std::shared_ptr<JobState> job);

  // The node of each rank.
  void set_nodes(std::span<const int> node_of_rank) {
    node_of_rank_.assign(node_of_rank.begin(), node_of_rank.end());
  }

  // Enqueues a collective on stream(). count is 0 only for a barrier. A check's own messages have no
  // sequence: they are not counted or logged, and the methods below ignore them.
  virtual void run(const Collective& collective) = 0;
  // run(), then waits.
  virtual void run_to_its_end(const Collective& collective) {
    run(collective);
    stream().synchronize();
  }
  // True if collectives enqueued now are recorded with the work around them instead of run.
  virtual bool recording() { return false; }
  // Recorded collectives were replayed on that stream.
  virtual void replayed_on(Stream&) {}
  // Bytes that this rank will send, if known beforehand; sent() reports the others.
  virtual std::uint64_t bytes_sent_by(const Collective&) const { return 0; }

  // Progress of a collective. Any thread.
  void started(const Collective& collective) { log_.started(collective.sequence); }
  void met(const Collective& collective, std::int64_t at_ns) { log_.met(collective.sequence, at_ns); }
  void sent(const Collective& collective, std::uint64_t bytes);
  void finished(const Collective& collective) { log_.finished(collective.sequence); }

 private:
  using Run = void (Communicator::*)(const Collective&);
  std::uint64_t submit(Collective& collective, Run how);
  void check(const Collective& collective) const;
  // Assigns the sequence number and keeps the identity for check_calls().
  CollectiveIdentity number(Collective& collective);
  void begin(const Collective& collective);
  // An all_gather over host() that is not counted, logged or checked. Waits.
  void gather_unseen(const void* mine, void* all, std::size_t bytes);
  // Collective. Throws an agreed Error if a rank's identities differ from rank 0's.
  void compare(std::span<const CollectiveIdentity> mine);

  int rank_;
  int size_;
  std::shared_ptr<JobState> job_;
  std::vector<int> node_of_rank_;
  CollectiveLog log_;
  CollectivePurpose purpose_;
  std::uint64_t sequence_ = 0;
  std::atomic<std::uint64_t> operations_{0};
  std::atomic<std::uint64_t> sent_bytes_{0};
  RecordedCollectives recorded_;
  CallCheck call_check_ = CallCheck::plan;
  std::uint64_t calls_hash_ = 0;
  std::vector<CollectiveIdentity> calls_;  // the last ones, indexed by sequence modulo size
};

// Collective over host memory. Returns the lowest rank that passes true, or -1 for none: the rank that
// reports what several may have found.
int first_rank_where(Communicator& host, bool found);

// A world of one rank: every collective is the identity. On a CPU the calling thread does it, before the call
// returns.
std::unique_ptr<Communicator> make_self_communicator(
    Device device = {}, std::shared_ptr<JobState> job = std::make_shared<JobState>());

// Ranks as threads of one process, for tests: make one hub, then one communicator per rank, each used by its
// own thread. node_of_rank: the simulated node of each rank; empty: all on one node.
class ThreadHub;
std::shared_ptr<ThreadHub> make_thread_hub(int size, std::span<const int> node_of_rank = {});
std::unique_ptr<Communicator> make_thread_communicator(std::shared_ptr<ThreadHub> hub, int rank);

}  // namespace lockstep
