// SPDX-License-Identifier: Apache-2.0
//
// NcclCommunicator: the collectives of ranks that compute on CUDA devices. One NCCL communicator, in blocking
// mode, used by the thread that made it; its stream has the highest priority, so that its few thread blocks
// find room among compute's. Sums and maxima only: an average would cost NVLink SHARP.
//
// Errors: one that a call returns is thrown. One that NCCL finds later (a lost peer, a network error) leaves
// kernels waiting for ever, and the host with them, so a Watch finds it and ends the job. It also ends the
// job when the device has waited in a collective for longer than the job's timeout. Nothing here waits for
// peers when it ends: a communicator with collectives under way is aborted.
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
#include "comm/watch.h"
#include "comm/world.h"

namespace lockstep {

// NCCL's communicator, shared with the memory that is registered with it.
class NcclConnection {
 public:
  static constexpr std::chrono::seconds kLongestAbort{5};

  NcclConnection(ncclComm_t communicator, Device device)
      : device_(device), communicator_(communicator), done_(device) {}

  // Null when it has ended.
  ncclComm_t get() const { return communicator_; }
  // What is on the stream now are the last collectives asked for.
  void asked(Stream& stream);
  // How often that was, and whether the device has not done them.
  std::uint64_t asked() const { return asked_; }
  bool busy();
  // What NCCL found behind calls that have returned.
  ncclResult_t async_error();
  // Kernels that wait for a peer end. Returns after kLongestAbort at most: NCCL goes on waiting where a graph
  // that holds its kernels is destroyed only later.
  void abort() noexcept;
  void end() noexcept;

 private:
  Device device_;
  std::atomic<ncclComm_t> communicator_;
  std::mutex mutex_;  // the Watch asks, and must not ask what is being ended
  Event done_;
  std::atomic<std::uint64_t> asked_{0};
};

class NcclCommunicator final : public Communicator {
 public:
  // Ends the job after saying why. From the Watch's thread.
  using EndJob = std::function<void(const std::string& reason)>;

  // Collective over the ranks of `host`, which outlives this. Shares its job.
  NcclCommunicator(Device device, Communicator& host, const DeviceCommunicatorOptions& options,
                   EndJob end_job);
  ~NcclCommunicator() override;

  std::string_view name() const override { return "nccl"; }
  Stream& stream() override { return stream_; }
  Communicator& host() override { return host_; }
  // Registered with NCCL; plain device memory when that is switched off or fails on any rank.
  Buffer allocate(std::size_t bytes) override;
  std::unique_ptr<Communicator> split(int colour, int key) override;
  void abandon(std::string_view reason) noexcept override;
  bool rounds_partial_sums() const override { return true; }

 private:
  // On the device. Errors that the call returns are thrown.
  void run(const Collective& collective) override;
  ncclResult_t call(const Collective& collective, cudaStream_t stream);
  ncclResult_t all_to_all(const Collective& collective, ncclDataType_t type, cudaStream_t stream);
  // Whether the stream is being captured into a graph.
  bool recording() override;
  // Payload as a ring sends it, counted here: NCCL tells nobody what it sent, and its other algorithms
  // (trees, reduction in the switch) send other amounts.
  std::uint64_t bytes_sent_by(const Collective& collective) const override;
  void replayed_on(Stream& stream) override { connection_->asked(stream); }
  // Of the Watch.
  bool healthy();
  bool late();
  std::string describe(const char* event, ncclResult_t status);
  std::string last_call();

  NcclCommunicator(Device device, std::unique_ptr<Communicator> host,
                   const DeviceCommunicatorOptions& options, EndJob end_job);

  Device device_;
  std::unique_ptr<Communicator> own_host_;  // a group's
  Communicator& host_;
  DeviceCommunicatorOptions options_;
  EndJob end_job_;
  std::mutex mutex_;
  Collective last_;  // guarded: the Watch reads it
  Buffer flag_;
  Stream stream_;
  std::shared_ptr<NcclConnection> connection_;
  std::uint64_t awaited_ = 0;  // the Watch's
  WaitClock waited_;           // for that
  bool told_late_ = false;     // to the job's watchdog
  std::optional<Watch> watch_;
};

}  // namespace lockstep
