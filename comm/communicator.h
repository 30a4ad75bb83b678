// SPDX-License-Identifier: Apache-2.0
//
// Communicator: a group of ranks and the collectives they run, in the order they were enqueued. Every
// operation is enqueued on stream() and returns at once; completion is stream order (record an Event and wait
// for it). All ranks must enqueue the same operations in the same order.
//
// Results are the same bits on every rank. On the CPU a sum is taken element by element along one tree over
// the ranks, ((0+1)+(2+3))+((4+5)+(6+7)) (comm/sum_tree.h), whatever the size, alignment or kind of memory,
// and however ranks are dealt to nodes, so splitting one all_reduce into several changes nothing. Between
// devices the order is NCCL's, and depends on size and topology.
//
// Pointers are to memory of stream()'s device: host memory on the CPU, device memory on CUDA. What ranks
// agree on in host memory goes through host().
//
// A communicator that ends waits for no peer. Collectives that are under way then will perhaps never end: the
// job is abandoned (comm/job_state.h). So wait for what was enqueued first, as one does to see its results.
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
#include "comm/job_state.h"
#include "core/buffer.h"
#include "core/dtype.h"
#include "core/stream.h"

namespace lockstep {

// How often ranks compare what they are about to do together. A difference is an error on every rank, which
// names the first collective that differs, before a wrong sum is used.
enum class CallCheck {
  off,
  plan,        // in the first step of every new plan: whoever drives the communicator says when (check_calls)
  step,        // in every step
  collective,  // before each collective, which then waits for all ranks: to find a mistake
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
  // The same ranks, for a few bytes in host memory: this one on the CPU, the one over MPI beside a device's.
  virtual Communicator& host() { return *this; }

  // Which node each rank is on, by rank; nodes are numbered by their lowest rank. Without a word from the
  // transport all are on one.
  std::span<const int> node_of_rank() const { return node_of_rank_; }

  // Collective. Zeroed memory on which in-place collectives are fastest (shared window, registered memory).
  // Freeing it waits for nobody and may come after the communicator's end; memory that ranks share is given
  // back to the system when all of them have freed it and next allocate, or make a communicator.
  virtual Buffer allocate(std::size_t bytes) = 0;

  // Collective. By rank, as addresses in this process, what each rank got from one call of allocate(); `own`
  // is where this rank's begins. Empty, on every rank, where ranks do not share it, as those of other nodes
  // and devices do not. Valid as long as all ranks hold theirs.
  virtual std::vector<std::byte*> shared_places(void* own) {
    static_cast<void>(own);
    return {};
  }

  // Collective. A communicator of the ranks that give the same colour, in the order of (key, rank); null for
  // a colour below 0. For the same kind of memory, and of the same job. It may outlive this one.
  virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;

  // Checks, numbers, counts, records, and enqueues; returns its number. Throws Error for what no rank can do,
  // and, as CallCheck says, where ranks differ. The methods below are this with names.
  std::uint64_t enqueue(Collective collective);
  // The same, and waits for it and all before it, as synchronizing stream() does. On the CPU the calling
  // thread runs it where nothing is before it: for a few bytes, where waking stream()'s worker takes longer.
  std::uint64_t complete(Collective collective);

  // What collectives that do not say it are for, from now on.
  void set_purpose(const CollectivePurpose& purpose) { purpose_ = purpose; }
  const CollectivePurpose& purpose() const { return purpose_; }

  // In place over `count` elements; f32, f16, bf16, i32. 16-bit floats are added in fp32 and rounded once,
  // unless rounds_partial_sums().
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  // send holds size() * count elements; recv takes this rank's share of the reduction, `count` elements, and
  // may be that share's place in send.
  void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op);
  // send holds `count` elements; recv takes size() * count, in rank order; send may be its own place in recv.
  // Any type.
  void all_gather(const void* send, void* recv, std::size_t count, DType dtype);
  // send holds size() * count elements, of which rank k gets the k-th `count`; recv takes as many, the k-th
  // `count` from rank k. The two are apart. Any type.
  void all_to_all(const void* send, void* recv, std::size_t count, DType dtype);
  // From root's `data` to everybody's. Any type.
  void broadcast(void* data, std::size_t count, DType dtype, int root);
  // No rank's later work starts before all ranks' earlier work is done.
  void barrier();

  // This rank gives up on its peers, for good: see JobState::abandon. Collectives that wait for them end with
  // an error. For whoever must free what collectives use while an exception unwinds the stack. Any thread.
  virtual void abandon(std::string_view reason) noexcept { job_->abandon(reason); }
  const std::shared_ptr<JobState>& job() const { return job_; }

  // What has been sent so far, replays included. Bytes are counted when they are sent, so of a stream that is
  // not idle they may be few. Any thread.
  Traffic traffic() const { return {.sent_bytes = sent_bytes_.load(), .operations = operations_.load()}; }
  // What was recorded with the work around it since the last call.
  RecordedCollectives take_recorded();
  // It was replayed on that stream: it counts, is recorded in log() and compared by check_calls(), as if it
  // had been enqueued now.
  void replayed(const RecordedCollectives& recorded, Stream& stream);
  // Whether partial sums of 16-bit floats are rounded on their way from rank to rank.
  virtual bool rounds_partial_sums() const { return false; }
  // Held to pass messages through, beside what allocate() gave.
  virtual std::size_t memory_bytes() const { return 0; }

  // The last collectives and how far they got. On a GPU the host knows only when they were enqueued.
  const CollectiveLog& log() const { return log_; }

  void set_call_check(CallCheck check) { call_check_ = check; }
  CallCheck call_check() const { return call_check_; }
  // Collective. Compares what was enqueued so far with the other ranks', over host(), and waits for that.
  // Throws an agreed Error that names the first collective that differs.
  void check_calls();

 protected:
  Communicator(std::string_view name, int rank, int size, std::shared_ptr<JobState> job);

  // One number for each rank.
  void set_nodes(std::span<const int> node_of_rank) {
    node_of_rank_.assign(node_of_rank.begin(), node_of_rank.end());
  }

  // Enqueues it on stream(). count is 0 for a barrier only. What is neither counted nor in the log (a check's
  // own messages) has no sequence; the methods below ignore it.
  virtual void run(const Collective& collective) = 0;
  // And waits.
  virtual void run_to_its_end(const Collective& collective) {
    run(collective);
    stream().synchronize();
  }
  // Whether what is enqueued now is recorded with the work around it instead of run.
  virtual bool recording() { return false; }
  // Collectives that were recorded are under way on that stream.
  virtual void replayed_on(Stream&) {}
  // What this rank sends for it, where that is known beforehand; sent() tells the rest.
  virtual std::uint64_t bytes_sent_by(const Collective&) const { return 0; }

  // How a collective gets on. Any thread.
  void started(const Collective& collective) { log_.started(collective.sequence); }
  void met(const Collective& collective, std::int64_t at_ns) { log_.met(collective.sequence, at_ns); }
  void sent(const Collective& collective, std::uint64_t bytes);
  void finished(const Collective& collective) { log_.finished(collective.sequence); }

 private:
  using Run = void (Communicator::*)(const Collective&);
  std::uint64_t submit(Collective& collective, Run how);
  void check(const Collective& collective) const;
  // Gives it its number, and keeps it for check_calls().
  CollectiveIdentity number(Collective& collective);
  void begin(const Collective& collective);
  // Not counted, in the log, or checked itself. Waits.
  void gather_unseen(const void* mine, void* all, std::size_t bytes);
  // Collective. Throws an agreed Error where a rank's are not rank 0's.
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
  std::vector<CollectiveIdentity> calls_;  // the last ones, each at its sequence modulo their number
};

// Collective over host memory. The lowest rank that calls it with true, or -1 for none: the rank that speaks
// of what several may have found.
int first_rank_where(Communicator& host, bool found);

// A world of one: every collective is the identity.
std::unique_ptr<Communicator> make_self_communicator(Device device = {});

// Ranks as threads of one process, for tests: hub once, then one communicator for each rank, each used by its
// own thread. node_of_rank: where they pass for being; empty: all on one node.
class ThreadHub;
std::shared_ptr<ThreadHub> make_thread_hub(int size, std::span<const int> node_of_rank = {});
std::unique_ptr<Communicator> make_thread_communicator(std::shared_ptr<ThreadHub> hub, int rank);

}  // namespace lockstep
