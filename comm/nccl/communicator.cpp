// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/communicator.h"

#include <chrono>
#include <exception>
#include <utility>

#include "comm/nccl/check.h"
#include "comm/partition.h"
#include "core/cuda/check.h"
#include "core/log.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kWatchInterval{100};

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::u8:
      return ncclUint8;
    case DType::i32:
      return ncclInt32;
  }
  CHECK(false, "type {}", static_cast<int>(dtype));
  return ncclNumTypes;
}

// Never ncclAvg: NCCL would scale before it adds, which the switch cannot.
ncclRedOp_t nccl_op(ReduceOp op) {
  constexpr ncclRedOp_t ops[] = {ncclSum, ncclMax, ncclMin};
  return ops[static_cast<std::size_t>(op)];
}

cudaStream_t cuda_stream(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

ncclComm_t connect(Device device, Communicator& host, int max_ctas) {
  make_current(device);
  ncclUniqueId id = {};
  if (host.rank() == 0) NCCL_CHECK(ncclGetUniqueId(&id));
  host.broadcast(&id, sizeof(id), DType::u8, 0);
  host.stream().synchronize();

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (max_ctas > 0) config.maxCTAs = max_ctas;
  ncclComm_t communicator = nullptr;
  const ncclResult_t status = ncclCommInitRankConfig(&communicator, host.size(), id, host.rank(), &config);
  if (status == ncclInvalidUsage) {
    throw ConfigError(
        fmt::format("NCCL refuses to connect {} of rank {}: {}. Two ranks on one GPU, or on "
                    "MIG slices of one, need world.share_device = true",
                    to_string(device), host.rank(), nccl_words(status)));
  }
  NCCL_CHECK(status);
  return communicator;
}

void log_failure(const char* call, ncclResult_t status) {
  if (status != ncclSuccess) log::warning("{}: {}", call, nccl_words(status));
}

// What a ring sends from one rank in an all_reduce: every part but the one it finishes, then every part but
// the one its neighbour finished.
std::size_t ring_all_reduce_bytes(std::size_t count, DType dtype, int rank, int size) {
  const Partition partition = Partition::even(count, size, size_of(dtype));
  return (2 * count - partition.size(rank) - partition.size((rank + 1) % size)) * size_of(dtype);
}

}  // namespace

NcclCommunicator::NcclCommunicator(Device device, Communicator& host,
                                   const DeviceCommunicatorOptions& options, EndJob end_job)
    : Communicator("nccl", host.rank(), host.size()),
      device_(device),
      host_(host),
      options_(options),
      end_job_(std::move(end_job)),
      exceptions_(std::uncaught_exceptions()),
      flag_(sizeof(std::int32_t), device),
      stream_(device, StreamUse::communication),
      communicator_(connect(device, host, options.max_ctas)) {
  watch_.emplace(kWatchInterval, [this] { return healthy(); });
}

NcclCommunicator::~NcclCommunicator() {
  bool sound = !unwinding();
  try {
    if (sound) stream_.synchronize();
  } catch (const std::exception& error) {
    log::warning("a communicator (nccl) ends after an error: {}", error.what());
    // A task's error leaves the device sound, and peers may still be receiving from this rank.
    sound = cudaStreamQuery(cuda_stream(stream_)) == cudaSuccess;
  }
  if (!sound) abort();
  watch_.reset();
  if (communicator_ != nullptr) log_failure("ncclCommDestroy", ncclCommDestroy(communicator_));
}

bool NcclCommunicator::unwinding() const { return std::uncaught_exceptions() > exceptions_; }

void NcclCommunicator::abort() noexcept {
  watch_.reset();
  if (communicator_ != nullptr) log_failure("ncclCommAbort", ncclCommAbort(communicator_));
  communicator_ = nullptr;
}

bool NcclCommunicator::healthy() {
  ncclResult_t found = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &found);
  if (asked != ncclSuccess) found = asked;
  if (found == ncclSuccess || found == ncclInProgress) return true;
  end_job_(describe("went wrong after", found));
  return false;
}

std::string NcclCommunicator::describe(const char* event, ncclResult_t status) {
  const std::lock_guard lock(mutex_);
  const std::string what = last_.sequence == 0 ? "it was connected" : lockstep::describe(last_);
  return fmt::format("the communication stream of {} {} {} on {}: {}", to_string(device_), event, what,
                     current_place(), nccl_words(status));
}

bool NcclCommunicator::recording() {
  make_current(device_);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(stream_), &capture));
  return capture != cudaStreamCaptureStatusNone;
}

void NcclCommunicator::run(const Collective& collective) {
  CHECK(communicator_ != nullptr, "{} after the communicator was aborted", lockstep::describe(collective));
  {
    const std::lock_guard lock(mutex_);
    last_ = collective;
  }
  const ncclResult_t status = call(collective, cuda_stream(stream_));
  if (status == ncclSuccess) return;
  watch_.reset();  // thrown here; told once
  throw Error(exit_code::failed, describe("failed in", status));
}

ncclResult_t NcclCommunicator::call(const Collective& c, cudaStream_t stream) {
  const ncclDataType_t type = nccl_type(c.dtype);
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return ncclAllReduce(c.recv, c.recv, c.count, type, nccl_op(c.op), communicator_, stream);
    case CollectiveKind::reduce_scatter:
      return ncclReduceScatter(c.send, c.recv, c.count, type, nccl_op(c.op), communicator_, stream);
    case CollectiveKind::all_gather:
      return ncclAllGather(c.send, c.recv, c.count, type, communicator_, stream);
    case CollectiveKind::broadcast:
      return ncclBroadcast(c.recv, c.recv, c.count, type, c.root, communicator_, stream);
    case CollectiveKind::barrier:  // NCCL has none: the smallest all_reduce, on memory nobody looks at
      return ncclAllReduce(flag_.data(), flag_.data(), 1, ncclInt32, ncclMax, communicator_, stream);
  }
  return ncclInvalidArgument;
}

std::uint64_t NcclCommunicator::bytes_sent_by(const Collective& c) const {
  const std::uint64_t bytes = c.count * size_of(c.dtype);
  const bool passes_on = (rank() + 1) % size() != c.root;  // the last of a broadcast's ring does not
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return ring_all_reduce_bytes(c.count, c.dtype, rank(), size());
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
      return static_cast<std::uint64_t>(size() - 1) * bytes;
    case CollectiveKind::broadcast:
      return passes_on ? bytes : 0;
    case CollectiveKind::barrier:
      return 0;
  }
  return 0;
}

Buffer NcclCommunicator::allocate(std::size_t bytes) {
  if (bytes == 0 || !options_.register_memory) return Buffer(bytes, device_);
  CHECK(communicator_ != nullptr, "allocation after the communicator was aborted");
  make_current(device_);
  void* data = nullptr;
  void* registration = nullptr;
  ncclResult_t status = ncclMemAlloc(&data, bytes);
  if (status == ncclSuccess) status = ncclCommRegister(communicator_, data, bytes, &registration);
  const bool failed = status != ncclSuccess;
  if (failed) cudaGetLastError();  // whoever checks next must not find it
  const int first_failed = first_rank_where(host_, failed);
  if (first_failed >= 0) {  // NCCL needs all ranks' memory registered, or none's
    if (first_failed == rank()) {
      log::warning(
          "memory for collectives is not registered with NCCL, which may slow compute beside them: {}",
          nccl_words(status));
    }
    options_.register_memory = false;
    if (data != nullptr) release(data, registration);
    return Buffer(bytes, device_);
  }
  Buffer buffer = Buffer::adopt(data, bytes, device_,
                                [this, registration](void* memory) { release(memory, registration); });
  CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, cuda_stream(stream_)));
  stream_.synchronize();  // zeroed before another stream can see it
  return buffer;
}

void NcclCommunicator::release(void* data, void* registration) noexcept {
  // Freeing waits for the device, and a collective on it perhaps for a peer that will not come.
  if (unwinding()) abort();
  if (communicator_ != nullptr && registration != nullptr) {
    log_failure("ncclCommDeregister", ncclCommDeregister(communicator_, registration));
  }
  log_failure("ncclMemFree", ncclMemFree(data));
}

}  // namespace lockstep
