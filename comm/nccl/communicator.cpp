// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>
#include <utility>

#include "comm/gradients/partition.h"
#include "comm/nccl/check.h"
#include "comm/nccl/configuration.h"
#include "comm/nccl/plugins.h"
#include "comm/nccl/tuner.h"
#include "core/backend_factories.h"
#include "core/cuda/check.h"
#include "core/cuda/release.h"
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

// ncclAvg is not used: NCCL scales before it adds, and NVLink SHARP cannot scale.
ncclRedOp_t nccl_op(ReduceOp op) {
  constexpr ncclRedOp_t ops[] = {ncclSum, ncclMax, ncclMin};
  return ops[static_cast<std::size_t>(op)];
}

cudaStream_t cuda_stream(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

// NCCL reads these variables once; values of the environment are kept. The first one makes the collectives of
// several communicators in one recorded step (batch norm across ranks, codecs) run in the order of their
// calls on every rank. Otherwise the devices may start different collectives first, and deadlock.
void set_variables(const DeviceCommunicatorOptions& options, int version) {
  static std::once_flag once;
  std::call_once(once, [&] {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    if (version < kHasPlugins) return;
    if (options.ctas_beside_compute > 0) setenv(kTunerVariable, kPluginOfProgram, 0);
    if (options.kernel_times) setenv(kProfilerVariable, kPluginOfProgram, 0);
  });
}

// Collective. NCCL does not report why it does not use a plugin. True if all ranks use it.
bool all_use(bool used, const char* key, const char* variable, Communicator& host) {
  const int first_without = first_rank_where(host, !used);
  if (first_without == host.rank()) {
    const char* value = std::getenv(variable);
    log::warning(
        "{} has no effect: NCCL did not load this program's plugin on {} ({} is \"{}\", expected \"{}\"). "
        "Unset the variable; a program of your own must link Lockstep::comm, which exports the symbols",
        key, current_place(), variable, value == nullptr ? "" : value, kPluginOfProgram);
  }
  return first_without < 0;
}

void log_failure(const char* call, ncclResult_t status) {
  if (status != ncclSuccess) log::warning("{}: {}", call, nccl_words(status));
}

// A rank that fails aborts its communicator, which is a lost peer for the other ranks, and reports its error
// after that. Waits for that rank to end the job with its own exit code.
void let_failed_peer_end_first(ncclResult_t status) {
  if (exit_code_of(status) == exit_code::resumable)
    std::this_thread::sleep_for(NcclConnection::kLongestAbort + std::chrono::seconds(1));
}

void deregister(ncclComm_t communicator, RegisteredMemory kind, void* handle) noexcept {
  if (communicator == nullptr || handle == nullptr) return;
  if (kind == RegisteredMemory::window)
    log_failure("ncclCommWindowDeregister", deregister_window(communicator, handle));
  else
    log_failure("ncclCommDeregister", ncclCommDeregister(communicator, handle));
}

// ncclMemFree unmaps the memory without waiting for the streams that use it (cuMemUnmap), unlike cudaFree.
// Waits for the device. Collectives of this communicator may wait for ever for a peer: aborts them first.
// Collectives of others end, because every rank enqueues them before it frees the same memory.
void release(NcclConnection& connection, JobState& job, void* data, RegisteredMemory kind,
             void* handle) noexcept {
  if (connection.busy()) {
    job.abandon("memory was freed while collectives (nccl) were using it");
    connection.abort();
  }
  const auto wait = [](void*) { return cudaDeviceSynchronize(); };
  release_on(connection.device(), "cudaDeviceSynchronize", wait, data);
  deregister(connection.get(), kind, handle);
  log_failure("ncclMemFree", ncclMemFree(data));
}

// Bytes that one rank of a ring sends in an all_reduce: first all parts except the one whose sum it
// completes, then all sums except the one that its neighbour completed.
std::size_t ring_all_reduce_bytes(std::size_t count, DType dtype, int rank, int size) {
  const Partition partition = Partition::even(count, size, size_of(dtype));
  return (2 * count - partition.size(rank) - partition.size((rank + 1) % size)) * size_of(dtype);
}

}  // namespace

void NcclCommunicator::connect() {
  make_current(device_);
  const int version = nccl_library_version();
  set_variables(options_, version);
  // A network that NCCL cannot use fails like a lost one, but a new start would not help.
  const auto require_connection = [&](ncclResult_t status) {
    if (status == ncclSuccess) return;
    throw Error(exit_code::failed, fmt::format("NCCL cannot connect {} of rank {}: {}", to_string(device_),
                                               rank(), nccl_words(status)));
  };
  ncclUniqueId id = {};
  if (rank() == 0) require_connection(ncclGetUniqueId(&id));
  host_.broadcast(&id, sizeof(id), DType::u8, 0);
  host_.stream().synchronize();

  ncclConfig_t config = nccl_configuration(options_, "lockstep", version);
  ncclComm_t communicator = nullptr;
  take_tuner_use();
  const ncclResult_t status = [&] {
    const KernelTimes::Scope scope(times_);
    const HostCall host_call(*this, "ncclCommInitRankConfig");
    return ncclCommInitRankConfig(&communicator, size(), id, rank(), &config);
  }();
  if (status == ncclInvalidUsage) {
    throw ConfigError(
        fmt::format("NCCL refuses to connect {} of rank {}: {}. Ranks that share a GPU, or MIG slices of one "
                    "GPU, need world.share_device = true",
                    to_string(device_), rank(), nccl_words(status)));
  }
  require_connection(status);
  connection_->set(communicator);
  for (const std::string& missing : missing_in_nccl(options_, version)) log::shared_warning("{}", missing);
  if (version < kHasPlugins) return;  // missing_in_nccl() names the plugins' options
  if (times_ != nullptr) all_use(times_->used(), "comm.kernel_times", kProfilerVariable, host_);
  if (options_.ctas_beside_compute == 0) return;
  // Ranks with and without a limit would start kernels that do not fit together.
  const bool tuned = all_use(take_tuner_use(), "comm.ctas_beside_compute", kTunerVariable, host_);
  if (!tuned) options_.ctas_beside_compute = 0;
  const bool one_node = std::ranges::all_of(node_of_rank(), [](int node) { return node == 0; });
  if (tuned && one_node && options_.memory == RegisteredMemory::window)
    log::shared_warning(
        "comm.ctas_beside_compute has no effect on sums in symmetric windows: set comm.gradient_memory = "
        "\"registered\"");
}

void NcclConnection::asked(Stream& stream) {
  const std::lock_guard lock(mutex_);
  stream.record(done_);
  ++asked_;
}

bool NcclConnection::busy() {
  const std::lock_guard lock(mutex_);
  try {
    return !done_.ready();
  } catch (const std::exception&) {  // a caller that waits for the device gets its error
    return false;
  }
}

ncclResult_t NcclConnection::async_error() {
  const std::lock_guard lock(mutex_);
  const ncclComm_t communicator = communicator_;
  if (communicator == nullptr) return ncclSuccess;
  ncclResult_t found = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator, &found);
  return asked == ncclSuccess ? found : asked;
}

// ncclCommAbort ends kernels at once, but returns only when all graphs with kernels of the communicator are
// destroyed (its persistent references). While an exception unwinds, that may happen only after this call.
void NcclConnection::abort() noexcept {
  const std::lock_guard lock(mutex_);
  const ncclComm_t communicator = communicator_.exchange(nullptr);
  if (communicator == nullptr) return;
  try {
    std::promise<ncclResult_t> promise;
    std::future<ncclResult_t> ended = promise.get_future();
    std::thread([communicator, device = device_, promise = std::move(promise)]() mutable {
      set_current(device);
      promise.set_value(ncclCommAbort(communicator));
    }).detach();
    if (ended.wait_for(kLongestAbort) == std::future_status::ready) {
      log_failure("ncclCommAbort", ended.get());
    } else {
      log::warning(
          "ncclCommAbort has not returned after {} s: it waits until CUDA graphs that contain collectives "
          "are destroyed",
          kLongestAbort.count());
    }
  } catch (const std::exception& error) {  // no thread could be started
    log::warning("ncclCommAbort: {}", error.what());
  }
}

void NcclConnection::end() noexcept {
  const std::lock_guard lock(mutex_);
  const ncclComm_t communicator = communicator_.exchange(nullptr);
  if (communicator != nullptr) log_failure("ncclCommDestroy", ncclCommDestroy(communicator));
}

NcclCommunicator::NcclCommunicator(Device device, Communicator& host,
                                   const DeviceCommunicatorOptions& options, EndJob end_job)
    : NcclCommunicator(device, host, options, std::move(end_job),
                       Parts{.times = options.kernel_times ? std::make_shared<KernelTimes>() : nullptr}) {
  connect();
  options_.memory = usable_memory(options.memory, nccl_library_version());
}

NcclCommunicator::NcclCommunicator(Device device, Communicator& host,
                                   const DeviceCommunicatorOptions& options, EndJob end_job, Parts parts)
    : Communicator("nccl", host.rank(), host.size(), host.job()),
      device_(device),
      host_(host),
      options_(options),
      end_job_(std::move(end_job)),
      flag_(sizeof(std::int32_t), device),
      stream_(device, StreamUse::communication),
      connection_(std::make_shared<NcclConnection>(parts.communicator, device)),
      times_(std::move(parts.times)) {
  set_nodes(host.node_of_rank());
  if (times_ != nullptr) {
    times_->listen([this](std::uint64_t sequence, KernelTimes::Moment moment) {
      const Collective collective{.sequence = sequence};
      moment == KernelTimes::Moment::began ? started(collective) : finished(collective);
    });
  }
  watch_.emplace(kWatchInterval, [this] { return healthy(); });
}

NcclCommunicator::~NcclCommunicator() {
  watch_.reset();
  if (told_late_) job()->set_overdue(std::nullopt, this);
  if (connection_->busy()) {
    abandon(fmt::format("{} destroyed its communicator (nccl) with unfinished collectives", current_place()));
  }
  try {
    stream_.synchronize();
  } catch (const std::exception& error) {
    log::warning("a collective of the communicator nccl failed: {}", error.what());
    // After the error of a host task the device still works, and peers may be receiving from this rank.
    if (cudaStreamQuery(cuda_stream(stream_)) != cudaSuccess) connection_->abort();
  }
  connection_->end();
  if (times_ == nullptr) return;
  times_->listen(nullptr);
  for (const auto& [way, sums] : times_->sums())
    log::info("NCCL{}: {}", own_host_ == nullptr ? "" : " (group)", lockstep::describe(way, sums));
}

void NcclCommunicator::abandon(std::string_view reason) noexcept {
  job()->abandon(reason);
  connection_->abort();
}

// The group does not share its parent's resources (splitShare), because their collectives would then wait for
// each other.
std::unique_ptr<Communicator> NcclCommunicator::split(int colour, int key) {
  std::unique_ptr<Communicator> host = host_.split(colour, key);
  make_current(device_);
  ncclConfig_t config = nccl_configuration(options_, "lockstep group", nccl_library_version());
  Parts part;
  if (times_ != nullptr) part.times = std::make_shared<KernelTimes>();
  {
    const KernelTimes::Scope scope(part.times);
    const HostCall host_call(*this, "ncclCommSplit");
    NCCL_CHECK(ncclCommSplit(connection_->get(), colour < 0 ? NCCL_SPLIT_NOCOLOR : colour, key,
                             &part.communicator, &config));
  }
  if (host == nullptr) return nullptr;
  std::unique_ptr<NcclCommunicator> group(new NcclCommunicator(device_, *host, options_, end_job_, part));
  group->own_host_ = std::move(host);
  return group;
}

bool NcclCommunicator::healthy() {
  const ncclResult_t found = connection_->async_error();
  if (found == ncclSuccess || found == ncclInProgress) return !late();
  const std::string reason = describe("failed after", found);
  let_failed_peer_end_first(found);
  job()->abandon(reason, exit_code_of(found));
  end_job_(reason);
  return false;
}

// The host may enqueue a step or two ahead of the device. If it enqueues nothing new for the length of the
// timeout, and the device has not finished the last collective, a peer has not entered it. The same holds if
// the host is in one call of NCCL for so long.
bool NcclCommunicator::late() {
  const std::uint64_t host_calls = host_calls_;
  const bool in_call = host_calls % 2 == 1;
  const std::uint64_t progress = connection_->asked() + host_calls;
  if (progress != awaited_ || !(in_call || connection_->busy())) {
    awaited_ = progress;
    waited_ = {};
    if (std::exchange(told_late_, false)) job()->set_overdue(std::nullopt, this);
    return false;
  }
  const auto waited = waited_.look();
  const auto timeout = job()->timeout();
  if (timeout.count() == 0 || waited < timeout) return false;
  const std::string running = times_ == nullptr ? "" : times_->describe_running();
  const std::string reason = fmt::format(
      "{} on {} waited {:.3g} s for its peers in {}{}{}: a rank hangs, or is too slow for "
      "comm.timeout_seconds",
      current_place(), to_string(device_), std::chrono::duration<double>(waited).count(), last_call(),
      running.empty() ? "" : "; ", running);
  if (job()->watched() && waited < timeout + JobState::kWatchdogGrace) {
    if (!std::exchange(told_late_, true))
      job()->set_overdue(OverdueWait{.reason = reason, .collective = last_call()}, this);
    return false;
  }
  job()->abandon(reason, exit_code::resumable);
  end_job_(reason);
  return true;
}

std::string NcclCommunicator::last_call() {
  if (const char* function = function_; function != nullptr) return function;
  const std::lock_guard lock(mutex_);
  return last_.sequence == 0 ? "connecting" : lockstep::describe(last_);
}

std::string NcclCommunicator::describe(const char* event, ncclResult_t status) {
  return fmt::format("the communication stream of {} {} {} on {}: {}", to_string(device_), event, last_call(),
                     current_place(), nccl_words(status));
}

bool NcclCommunicator::recording() {
  make_current(device_);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(stream_), &capture));
  return capture != cudaStreamCaptureStatusNone;
}

void NcclCommunicator::run(const Collective& collective) {
  CHECK(connection_->get() != nullptr, "{} was enqueued after the communicator was aborted: {}",
        lockstep::describe(collective), job()->reason());
  {
    const std::lock_guard lock(mutex_);
    last_ = collective;
  }
  if (times_ != nullptr) times_->expect(collective);
  const CtaLimit limit(collective.purpose.beside_compute ? options_.ctas_beside_compute : 0);
  const ncclResult_t status = [&] {
    const HostCall host_call(*this, nullptr);
    return call(collective, cuda_stream(stream_));
  }();
  const bool recorded = recording();  // a call that could not be recorded may be enqueued later
  if (status == ncclSuccess) {
    if (!recorded) connection_->asked(stream_);
    return;
  }
  const std::string reason = describe("failed in", status);
  if (!recorded) {
    watch_.reset();  // the error is thrown here and must not be reported twice
    let_failed_peer_end_first(status);
  }
  throw Error(exit_code_of(status), reason);
}

ncclResult_t NcclCommunicator::call(const Collective& c, cudaStream_t stream) {
  const ncclDataType_t type = nccl_type(c.dtype);
  const ncclComm_t communicator = connection_->get();
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return ncclAllReduce(c.recv, c.recv, c.count, type, nccl_op(c.op), communicator, stream);
    case CollectiveKind::reduce_scatter:
      return ncclReduceScatter(c.send, c.recv, c.count, type, nccl_op(c.op), communicator, stream);
    case CollectiveKind::all_gather:
      return ncclAllGather(c.send, c.recv, c.count, type, communicator, stream);
    case CollectiveKind::all_to_all:
      return all_to_all(c, type, stream);
    case CollectiveKind::broadcast:
      return ncclBroadcast(c.recv, c.recv, c.count, type, c.root, communicator, stream);
    case CollectiveKind::barrier:  // NCCL has no barrier: an all_reduce of one unused element
      return ncclAllReduce(flag_.data(), flag_.data(), 1, ncclInt32, ncclMax, communicator, stream);
  }
  return ncclInvalidArgument;
}

// A group of sends to and receives from every rank, this one included. The group is ended even if a call
// fails: otherwise NCCL would add later calls to it.
ncclResult_t NcclCommunicator::all_to_all(const Collective& c, ncclDataType_t type, cudaStream_t stream) {
  const ncclComm_t communicator = connection_->get();
  const std::size_t block = c.count * size_of(c.dtype);
  ncclResult_t status = ncclGroupStart();
  if (status != ncclSuccess) return status;
  for (int peer = 0; peer < size() && status == ncclSuccess; ++peer) {
    const std::size_t at = static_cast<std::size_t>(peer) * block;
    status = ncclSend(static_cast<const std::byte*>(c.send) + at, c.count, type, peer, communicator, stream);
    if (status != ncclSuccess) break;
    status = ncclRecv(static_cast<std::byte*>(c.recv) + at, c.count, type, peer, communicator, stream);
  }
  const ncclResult_t ended = ncclGroupEnd();
  return status != ncclSuccess ? status : ended;
}

std::uint64_t NcclCommunicator::bytes_sent_by(const Collective& c) const {
  const std::uint64_t bytes = c.count * size_of(c.dtype);
  const bool passes_on = (rank() + 1) % size() != c.root;  // the last rank of a broadcast's ring does not
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return ring_all_reduce_bytes(c.count, c.dtype, rank(), size());
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all:  // not a ring: directly to each peer
      return static_cast<std::uint64_t>(size() - 1) * bytes;
    case CollectiveKind::broadcast:
      return passes_on ? bytes : 0;
    case CollectiveKind::barrier:
      return 0;
  }
  return 0;
}

bool NcclCommunicator::succeeded(ncclResult_t status, std::string_view failure) {
  const bool failed = status != ncclSuccess;
  if (failed) cudaGetLastError();  // clears the error, which a later cudaGetLastError() would return
  const int first_failed = first_rank_where(host_, failed);
  if (first_failed == rank()) log::warning("NCCL {}: {}", failure, nccl_words(status));
  return first_failed < 0;
}

// NCCL needs memory registered in the same way on all ranks.
void* NcclCommunicator::register_memory(void* data, std::size_t bytes) {
  const ncclComm_t communicator = connection_->get();
  while (options_.memory != RegisteredMemory::plain) {
    const bool as_window = options_.memory == RegisteredMemory::window;
    void* handle = nullptr;
    const ncclResult_t status = [&] {
      const HostCall host_call(*this, as_window ? "ncclCommWindowRegister" : "ncclCommRegister");
      return as_window ? register_window(communicator, data, bytes, &handle)
                       : ncclCommRegister(communicator, data, bytes, &handle);
    }();
    const bool registered =
        succeeded(status, as_window ? "makes no symmetric window of the memory of collectives, which is "
                                      "registered instead"
                                    : "cannot register the memory of collectives, which may slow down "
                                      "concurrent computation");
    // Where it has no windows, as on several nodes, NCCL 2.28 registers the memory. 2.29 does nothing, and
    // returns success.
    const bool lacks_window = as_window && status == ncclSuccess && handle == nullptr;
    if (registered && first_rank_where(host_, lacks_window) < 0) return handle;
    if (status == ncclSuccess) deregister(communicator, options_.memory, handle);
    options_.memory = as_window ? RegisteredMemory::registered : RegisteredMemory::plain;
  }
  return nullptr;
}

Buffer NcclCommunicator::allocate(std::size_t bytes) {
  if (bytes == 0 || options_.memory == RegisteredMemory::plain) return Buffer(bytes, device_);
  CHECK(connection_->get() != nullptr, "allocate() was called after the communicator was aborted");
  make_current(device_);
  void* data = nullptr;
  void* handle = nullptr;
  if (succeeded(ncclMemAlloc(&data, bytes),
                "cannot allocate the memory of collectives, which may slow them down"))
    handle = register_memory(data, bytes);
  else
    options_.memory = RegisteredMemory::plain;
  if (options_.memory == RegisteredMemory::plain) {
    if (data != nullptr) release(*connection_, *job(), data, options_.memory, nullptr);
    return Buffer(bytes, device_);
  }
  const auto counted = static_cast<std::ptrdiff_t>(bytes);
  detail::count_cuda_memory(device_, counted);
  Buffer buffer = Buffer::adopt(data, bytes, device_,
                                [connection = connection_, job = job(), kind = options_.memory, handle,
                                 device = device_, counted](void* memory) {
                                  detail::count_cuda_memory(device, -counted);
                                  release(*connection, *job, memory, kind, handle);
                                });
  CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, cuda_stream(stream_)));
  stream_.synchronize();  // the memory is zeroed before another stream uses it
  return buffer;
}

}  // namespace lockstep
