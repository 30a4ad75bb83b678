// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/communicator.h"

#include <chrono>
#include <exception>
#include <utility>

#include "comm/nccl/check.h"
#include "comm/partition.h"
#include "comm/reduce.h"
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
ncclRedOp_t nccl_op(ReduceOp op) { return op == ReduceOp::sum ? ncclSum : ncclMax; }

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
    : Communicator(host.rank(), host.size()),
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
  return fmt::format("the communication stream of {} {} {} (operation {}, {} elements of {}) on {}: {}",
                     to_string(device_), event, last_.name, last_.number, last_.count, name_of(last_.dtype),
                     current_place(), nccl_words(status));
}

Traffic& NcclCommunicator::counted() {
  make_current(device_);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(stream_), &capture));
  return capture == cudaStreamCaptureStatusNone ? sent_ : recorded_;
}

template <typename F>
void NcclCommunicator::enqueue(Call call, std::size_t sent_bytes, F function) {
  Traffic& traffic = counted();
  ++traffic.operations;
  call.number = sent_.operations + recorded_.operations;
  if (call.count == 0) return;
  CHECK(communicator_ != nullptr, "{} after the communicator was aborted", call.name);
  {
    const std::lock_guard lock(mutex_);
    last_ = call;
  }
  traffic.sent_bytes += sent_bytes;
  const ncclResult_t status = function(communicator_, cuda_stream(stream_));
  if (status == ncclSuccess) return;
  watch_.reset();  // thrown here; told once
  throw Error(exit_code::failed, describe("failed in", status));
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

void NcclCommunicator::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  CHECK(data != nullptr || count == 0);
  CHECK(reducible(dtype), "{} cannot be reduced", name_of(dtype));
  enqueue({"ncclAllReduce", count, dtype}, ring_all_reduce_bytes(count, dtype, rank(), size()),
          [&](ncclComm_t communicator, cudaStream_t stream) {
            return ncclAllReduce(data, data, count, nccl_type(dtype), nccl_op(op), communicator, stream);
          });
}

void NcclCommunicator::reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype,
                                      ReduceOp op) {
  CHECK((send != nullptr && recv != nullptr) || count == 0);
  CHECK(reducible(dtype), "{} cannot be reduced", name_of(dtype));
  enqueue({"ncclReduceScatter", count, dtype}, static_cast<std::size_t>(size() - 1) * count * size_of(dtype),
          [&](ncclComm_t communicator, cudaStream_t stream) {
            return ncclReduceScatter(send, recv, count, nccl_type(dtype), nccl_op(op), communicator, stream);
          });
}

void NcclCommunicator::all_gather(const void* send, void* recv, std::size_t count, DType dtype) {
  CHECK((send != nullptr && recv != nullptr) || count == 0);
  enqueue({"ncclAllGather", count, dtype}, static_cast<std::size_t>(size() - 1) * count * size_of(dtype),
          [&](ncclComm_t communicator, cudaStream_t stream) {
            return ncclAllGather(send, recv, count, nccl_type(dtype), communicator, stream);
          });
}

void NcclCommunicator::broadcast(void* data, std::size_t count, DType dtype, int root) {
  CHECK(data != nullptr || count == 0);
  CHECK(root >= 0 && root < size(), "root {} of {} ranks", root, size());
  const bool passes_on = (rank() + 1) % size() != root;  // the last of the ring does not
  enqueue({"ncclBroadcast", count, dtype}, passes_on ? count * size_of(dtype) : 0,
          [&](ncclComm_t communicator, cudaStream_t stream) {
            return ncclBroadcast(data, data, count, nccl_type(dtype), root, communicator, stream);
          });
}

// NCCL has none: the smallest all_reduce, on memory nobody looks at.
void NcclCommunicator::barrier() {
  enqueue({"ncclAllReduce as a barrier", 1, DType::i32}, 0,
          [this](ncclComm_t communicator, cudaStream_t stream) {
            return ncclAllReduce(flag_.data(), flag_.data(), 1, ncclInt32, ncclMax, communicator, stream);
          });
}

}  // namespace lockstep
