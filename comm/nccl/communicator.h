// SPDX-License-Identifier: Apache-2.0
//
// NcclCommunicator: the collectives of ranks that compute on CUDA devices. One NCCL communicator, in blocking
// mode, used by the thread that made it; its stream has the highest priority, so that its few thread blocks
// find room among compute's. Sums and maxima only: an average would cost NVLink SHARP.
//
// Errors: one that a call returns is thrown. One that NCCL finds later (a lost peer, a network error) leaves
// kernels waiting for ever, and the host with them, so a Watch finds it and ends the job. While an exception
// unwinds the stack, nothing here waits for peers: the communicator is aborted.
#pragma once

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

class NcclCommunicator final : public Communicator {
 public:
  // Ends the job after saying why. From the Watch's thread.
  using EndJob = std::function<void(const std::string& reason)>;

  // Collective over the ranks of `host`, which outlives this.
  NcclCommunicator(Device device, Communicator& host, const DeviceCommunicatorOptions& options,
                   EndJob end_job);
  ~NcclCommunicator() override;

  std::string_view name() const override { return "nccl"; }
  Stream& stream() override { return stream_; }
  Communicator& host() override { return host_; }
  // Registered with NCCL; plain device memory when that is switched off or fails on any rank.
  Buffer allocate(std::size_t bytes) override;
  void abandon() noexcept override { abort(); }

 private:
  // On the device. Errors that the call returns are thrown.
  void run(const Collective& collective) override;
  ncclResult_t call(const Collective& collective, cudaStream_t stream);
  // Whether the stream is being captured into a graph.
  bool recording() override;
  // Payload as a ring sends it, counted here: NCCL tells nobody what it sent, and its other algorithms
  // (trees, reduction in the switch) send other amounts.
  std::uint64_t bytes_sent_by(const Collective& collective) const override;
  void release(void* data, void* registration) noexcept;
  void abort() noexcept;
  bool healthy();
  bool unwinding() const;
  std::string describe(const char* event, ncclResult_t status);

  Device device_;
  Communicator& host_;
  DeviceCommunicatorOptions options_;
  EndJob end_job_;
  int exceptions_;  // being handled when this was made
  std::mutex mutex_;
  Collective last_;  // guarded: the Watch reads it
  Buffer flag_;
  Stream stream_;
  ncclComm_t communicator_ = nullptr;
  std::optional<Watch> watch_;
};

}  // namespace lockstep
