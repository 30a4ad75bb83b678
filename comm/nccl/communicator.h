// SPDX-License-Identifier: Apache-2.0
//
// NcclCommunicator: the collectives of ranks that compute on CUDA devices. It owns one NCCL communicator in
// blocking mode, which one thread uses. Its stream has the highest priority, so that its few thread blocks
// are scheduled before those of compute streams. Averages are not used, because they would disable NVLink
// SHARP.
//
// Errors that a call returns are thrown. After an error that NCCL finds later (a lost peer, a network error),
// kernels and the host would wait for ever: a Watch polls for such errors and ends the job. It also ends the
// job if the device has waited in a collective, or the host in a call of NCCL, for longer than the job's
// timeout. The destructor does not wait for peers: it aborts a communicator with unfinished collectives.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "comm/communicator.h"
#include "comm/job/watch.h"
#include "comm/nccl/kernel_times.h"
#include "comm/world.h"

namespace lockstep {

// An NCCL communicator, shared with the buffers that are registered with it.
class NcclConnection {
 public:
  static constexpr std::chrono::seconds kLongestAbort{5};

  // communicator: null if set() follows.
  NcclConnection(ncclComm_t communicator, Device device)
      : device_(device), communicator_(communicator), done_(device) {}

  Device device() const { return device_; }
  void set(ncclComm_t communicator) { communicator_ = communicator; }
  // Null before set(), and after abort() or end().
  ncclComm_t get() const { return communicator_; }
  // Call after collectives were enqueued on the stream: records that they are the last ones.
  void asked(Stream& stream);
  // The number of calls of asked(stream).
  std::uint64_t asked() const { return asked_; }
  // True if the device has not finished the last collectives.
  bool busy();
  // The error that NCCL found after a call had returned, or ncclSuccess.
  ncclResult_t async_error();
  // Ends kernels that wait for a peer. Returns after kLongestAbort at most: NCCL continues to wait on another
  // thread until all graphs with its kernels are destroyed.
  void abort() noexcept;
  void end() noexcept;

 private:
  Device device_;
  std::atomic<ncclComm_t> communicator_;
  std::mutex mutex_;  // the Watch must not query a communicator that is being destroyed
  Event done_;
  std::atomic<std::uint64_t> asked_{0};
};

class NcclCommunicator final : public Communicator {
 public:
  // Reports the reason and ends the job, with the exit code of its JobState. Called on the Watch's thread.
  using EndJob = std::function<void(const std::string& reason)>;

  // Collective over the ranks of `host`, which outlives this. Uses the job of `host`. Logs options that this
  // version of NCCL lacks.
  NcclCommunicator(Device device, Communicator& host, const DeviceCommunicatorOptions& options,
                   EndJob end_job);
  ~NcclCommunicator() override;

  std::string_view name() const override { return "nccl"; }
  Stream& stream() override { return stream_; }
  Communicator& host() override { return host_; }
  // Memory in a symmetric window; registered memory if windows are disabled or fail on any rank; plain device
  // memory if that is, too.
  Buffer allocate(std::size_t bytes) override;
  std::unique_ptr<Communicator> split(int colour, int key) override;
  void abandon(std::string_view reason) noexcept override;
  bool rounds_partial_sums() const override { return true; }

 private:
  // Enqueues the collective on the device. Throws errors that NCCL's call returns.
  void run(const Collective& collective) override;
  ncclResult_t call(const Collective& collective, cudaStream_t stream);
  ncclResult_t all_to_all(const Collective& collective, ncclDataType_t type, cudaStream_t stream);
  // True if the stream is being captured into a graph.
  bool recording() override;
  // An estimate, the payload of a ring: NCCL does not report what it sends, and its other algorithms (trees,
  // reduction in the switch) send different amounts.
  std::uint64_t bytes_sent_by(const Collective& collective) const override;
  void replayed_on(Stream& stream) override { connection_->asked(stream); }
  // Called on the Watch's thread: false if the job is being ended because of an error or a timeout.
  bool healthy();
  bool late();
  std::string describe(const char* event, ncclResult_t status);
  std::string last_call();

  // The scope of a call of NCCL in which the host may wait for peers: late() limits that wait, too. NCCL
  // waits when it connects ranks, also in the first collectives (from 2.22 on).
  class HostCall {
   public:
    // function: a string literal, its name in messages; null: the collective last_.
    HostCall(NcclCommunicator& communicator, const char* function) : communicator_(communicator) {
      communicator_.function_ = function;
      ++communicator_.host_calls_;
    }
    ~HostCall() {
      ++communicator_.host_calls_;
      communicator_.function_ = nullptr;
    }
    HostCall(const HostCall&) = delete;
    HostCall& operator=(const HostCall&) = delete;

   private:
    NcclCommunicator& communicator_;
  };

  struct Parts {
    ncclComm_t communicator = nullptr;   // null: connect() makes it
    std::shared_ptr<KernelTimes> times;  // null: NCCL reports none
  };
  // Owns the communicator, and starts the Watch.
  NcclCommunicator(Device device, Communicator& host, const DeviceCommunicatorOptions& options,
                   EndJob end_job, Parts parts);
  void connect();
  // Collective. Registers the memory as options_.memory says, or, if that fails on any rank, in the next
  // simpler way, which becomes options_.memory. Returns NCCL's handle.
  void* register_memory(void* data, std::size_t bytes);
  // Collective: true if the call succeeded on every rank. Else a rank where it failed logs why.
  bool succeeded(ncclResult_t status, std::string_view failure);

  Device device_;
  std::unique_ptr<Communicator> own_host_;  // null unless split() made this
  Communicator& host_;
  DeviceCommunicatorOptions options_;
  EndJob end_job_;
  std::mutex mutex_;
  Collective last_;  // guarded by mutex_: the Watch reads it
  Buffer flag_;
  Stream stream_;
  std::shared_ptr<NcclConnection> connection_;
  std::shared_ptr<KernelTimes> times_;          // null: NCCL reports none
  std::atomic<const char*> function_{nullptr};  // of the HostCall
  std::atomic<std::uint64_t> host_calls_{0};    // begun and ended; odd: one is under way
  std::uint64_t awaited_ = 0;  // progress of the host at the last look; used only on the Watch's thread
  WaitClock waited_;           // since awaited_ changed
  bool told_late_ = false;     // the wait was reported to the job's watchdog
  std::optional<Watch> watch_;
};

}  // namespace lockstep
