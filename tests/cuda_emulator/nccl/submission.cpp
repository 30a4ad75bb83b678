// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/submission.h"

#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/cuda_emulator/nccl/errors.h"
#include "tests/cuda_emulator/nccl/exchange.h"
#include "tests/cuda_emulator/nccl/handles.h"
#include "tests/cuda_emulator/nccl/transfers.h"
#include "tests/cuda_emulator/runtime/residence.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {
namespace {

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 48;  // their bytes can still be counted

// An operation's entry in the ledger of its communicator, while a stream or a graph holds its work.
class Submitted {
 public:
  Submitted(std::shared_ptr<EmulatedCommunicator> communicator, const Operation& operation)
      : communicator_(std::move(communicator)), entry_{.operation = operation} {
    communicator_->ledger().add(entry_);
  }
  ~Submitted() { communicator_->ledger().remove(entry_); }
  Submitted(const Submitted&) = delete;
  Submitted& operator=(const Submitted&) = delete;

  // Runs on a thread of the runtime.
  void run() {
    if (!begin()) return;
    const End end{*this};
    const Operation& operation = entry_.operation;
    if (communicator_->uses_copy_engines(operation.call)) {
      {
        const Unseen unseen;
        count_copied_collective();
      }
      return Exchange(*communicator_, operation).run();
    }
    const Residence blocks(communicator_->device(), Residence::Kind::collective,
                           static_cast<std::size_t>(operation.blocks), name_of(operation.call.kind),
                           [this] { return communicator_->ledger().aborted(); });
    if (!blocks.granted()) return;
    const Plugins::Events events(communicator_->plugins(), operation, operation.blocks,
                                 communicator_->rank());
    if (operation.call.kind == Kind::transfers) return TransferExchange(*communicator_, operation).run();
    Exchange(*communicator_, operation).run();
  }

 private:
  struct End {
    Submitted& of;
    ~End() { of.end(); }
  };

  // A communicator's operations run one after another in any stream. This order is announced to
  // ThreadSanitizer.
  bool begin() {
    {
      const Unseen unseen;
      if (!communicator_->ledger().begin(entry_)) return false;
    }
    follow(communicator_->turns());
    return true;
  }
  void end() {
    announce(communicator_->turns());
    const Unseen unseen;
    communicator_->ledger().end(entry_);
  }

  std::shared_ptr<EmulatedCommunicator> communicator_;
  Ledger::Entry entry_;
};

struct Pending {
  CommunicatorPointer communicator;
  Operation operation;
  cudaStream_t stream;
};

struct Group {
  int depth = 0;
  ncclResult_t refused = ncclSuccess;  // status of the first refused call
  std::vector<Pending> calls;
};

Group& group() {
  static thread_local Group of_thread;
  return of_thread;
}

// Makes a communicator's device the calling thread's current device for a scope, like NCCL.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&before_);
    if (before_ != device) cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// Records the refusal of a call in the group.
ncclResult_t refuse(ncclResult_t status) {
  if (in_group() && group().refused == ncclSuccess) group().refused = status;
  return status;
}

void require(bool condition, ncclResult_t status, const std::string& message) {
  if (!condition) throw NcclError(status, message);
}

void check_call(const Call& call, int ranks) {
  require(size_of_type(call.type) > 0, ncclInvalidArgument,
          fmt::format("type {} is invalid or not emulated", call.type));
  require(!is_reduction(call.kind) || (call.op >= 0 && call.op < ncclNumOps), ncclInvalidArgument,
          fmt::format("operation {} is invalid or not emulated", call.op));
  require(!has_root(call.kind) || (call.root >= 0 && call.root < ranks), ncclInvalidArgument,
          fmt::format("root {} is invalid for {} ranks", call.root, ranks));
  require(call.count <= kMostElements, ncclInvalidArgument, fmt::format("{} elements", call.count));
}

void check_range(const void* data, std::size_t bytes, std::size_t element_bytes, int device) {
  if (bytes == 0) return;
  require(data != nullptr, ncclInvalidArgument, "a null pointer");
  require(is_device_memory(data, bytes, device), ncclInvalidArgument,
          fmt::format("{} bytes at {} are not in one allocation of device {}", bytes, data, device));
  require(reinterpret_cast<std::uintptr_t>(data) % element_bytes == 0, ncclInvalidArgument,
          fmt::format("{} is not aligned to elements of {} bytes", data, element_bytes));
}

void check_stream(cudaStream_t stream, const EmulatedCommunicator& communicator) {
  require(device_of(stream) == communicator.device(), ncclUnhandledCudaError,
          fmt::format("the stream belongs to device {}, the communicator to device {}", device_of(stream),
                      communicator.device()));
}

void check_memory(const Operation& operation, EmulatedCommunicator& communicator, cudaStream_t stream) {
  const OnDevice on_device(communicator.device());
  const std::size_t element_bytes = size_of_type(operation.call.type);
  check_range(operation.send, operation.send_bytes, element_bytes, communicator.device());
  check_range(operation.recv, operation.recv_bytes, element_bytes, communicator.device());
  require(well_placed(operation, communicator.rank()), ncclInvalidArgument,
          "sent and received memory overlap, but not like in-place operations");
  check_stream(stream, communicator);
}

// A communicator with an error refuses all later calls.
void check_state(EmulatedCommunicator& communicator) {
  const Unseen unseen;
  const ncclResult_t error = communicator.async_error();
  require(error == ncclSuccess, error, "after an asynchronous error: " + communicator.async_error_message());
  require(!communicator.finalized(), ncclInvalidUsage, "the communicator was finalized");
}

bool all_registered(EmulatedCommunicator& communicator, const Operation& operation) {
  if (operation.call.kind == Kind::transfers) return false;  // ranks need not agree on it
  const Unseen unseen;
  return (operation.send_bytes == 0 || communicator.registered(operation.send, operation.send_bytes)) &&
         (operation.recv_bytes == 0 || communicator.registered(operation.recv, operation.recv_bytes));
}

// NCCL has kernels for symmetric windows for these collectives, if both buffers are in windows.
bool has_symmetric_kernel(const Call& call) {
  if (call.kind == Kind::all_gather) return true;
  const bool sums = call.op == ncclSum &&
                    (call.type == ncclFloat32 || call.type == ncclFloat16 || call.type == ncclBfloat16);
  return sums && (call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter);
}

// Peers read what a rank sends to a reduction, and write what it receives except in a reduce-scatter.
void find_windows(EmulatedCommunicator& communicator, Operation& operation) {
  Call& call = operation.call;
  if (!has_symmetric_kernel(call)) return;
  const Unseen unseen;
  const std::int64_t send = communicator.place_in_windows(operation.send, operation.send_bytes);
  const std::int64_t recv = communicator.place_in_windows(operation.recv, operation.recv_bytes);
  if (send < 0 || recv < 0) return;
  call.send_place = call.kind == Kind::all_gather ? 0 : send;
  call.recv_place = call.kind == Kind::reduce_scatter ? 0 : recv;
}

// Read once, like in NCCL.
bool orders_launches() {
  static const bool orders = [] {
    const char* value = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return value != nullptr && std::atoi(value) != 0;
  }();
  return orders;
}
std::array<char, 64> launch_order;  // an address for each device

ncclResult_t give_to_stream(const CommunicatorPointer& communicator, Operation operation,
                            cudaStream_t stream) {
  const OnDevice on_device(communicator->device());
  Call& call = operation.call;
  call.captured = is_captured(stream);
  call.number = call.captured ? 0 : communicator->next_number();
  call.registered = all_registered(*communicator, operation);
  find_windows(*communicator, operation);
  operation.blocks =
      communicator->plugins().blocks(operation, communicator->ranks(), communicator->settings().channels);
  const Hidden<std::shared_ptr<Submitted>> submitted = [&] {
    const Unseen unseen;
    return Hidden(std::make_shared<Submitted>(communicator.get(), operation));
  }();
  // NCCL captures every operation after the communicator's last one in the graph, in any stream. If it orders
  // launches, then after the last one of any communicator on the device.
  const void* chain = &*communicator;
  if (orders_launches()) chain = &launch_order.at(static_cast<std::size_t>(communicator->device()));
  const cudaError_t status = enqueue(
      stream, name_of(call.kind), [submitted] { submitted->run(); }, chain);
  if (status == cudaSuccess) return ncclSuccess;
  return complain(ncclUnhandledCudaError,
                  fmt::format("{}: {}", name_of(call.kind), cudaGetErrorString(status)));
}

void add_to_group(const CommunicatorPointer& communicator, const Operation& operation, cudaStream_t stream) {
  for (const Pending& pending : group().calls) {
    require(&*pending.communicator != &*communicator || pending.stream == stream, ncclInvalidUsage,
            "several streams for one communicator in one group are not emulated");
    require(&*pending.communicator != &*communicator ||
                (operation.call.kind != Kind::transfers && pending.operation.call.kind != Kind::transfers),
            ncclInvalidUsage,
            "collectives together with sends and receives of one communicator in one group are not emulated");
  }
  group().calls.push_back({communicator, operation, stream});
}

ncclResult_t submit_checked(const Call& call, const void* send, void* recv,
                            const CommunicatorPointer& communicator, cudaStream_t stream) {
  check_state(*communicator);
  check_call(call, communicator->ranks());
  if (call.count == 0) {  // nothing to do; but all ranks must pass 0 elements
    if (!is_captured(stream)) communicator->next_number();
    return ncclSuccess;
  }
  const Operation operation = make_operation(call, send, recv, communicator->rank(), communicator->ranks());
  check_memory(operation, *communicator, stream);
  if (!in_group()) return give_to_stream(communicator, operation, stream);
  add_to_group(communicator, operation, stream);
  return ncclSuccess;
}

// The group's operation to which the communicator's transfers belong.
Operation& transfers_of(const CommunicatorPointer& communicator, cudaStream_t stream) {
  for (Pending& pending : group().calls) {
    if (&*pending.communicator == &*communicator && pending.stream == stream &&
        pending.operation.call.kind == Kind::transfers)
      return pending.operation;
  }
  add_to_group(communicator, {.call = {.kind = Kind::transfers}}, stream);
  return group().calls.back().operation;
}

bool overlap(const Transfer& a, const Transfer& b) {
  return a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
}

// Received memory must not overlap other memory of the group.
void add_transfer(Direction direction, const Transfer& transfer, Operation& operation) {
  std::vector<Transfer>& same = direction == Direction::out ? operation.sends : operation.receives;
  for (const Transfer& other : same) {
    require(other.peer != transfer.peer, ncclInvalidUsage,
            fmt::format("several transfers with rank {} in one group are not emulated", transfer.peer));
    require(direction == Direction::out || !overlap(other, transfer), ncclInvalidArgument,
            fmt::format("received memory of ranks {} and {} overlaps", other.peer, transfer.peer));
  }
  for (const Transfer& other : direction == Direction::out ? operation.receives : operation.sends) {
    require(!overlap(other, transfer), ncclInvalidArgument,
            fmt::format("sent and received memory of ranks {} and {} overlap", other.peer, transfer.peer));
  }
  same.push_back(transfer);
}

void submit_checked(Direction direction, const Transfer& transfer, const CommunicatorPointer& communicator,
                    cudaStream_t stream) {
  check_state(*communicator);
  check_call({.kind = Kind::transfers, .type = transfer.type, .count = transfer.count},
             communicator->ranks());
  require(transfer.peer >= 0 && transfer.peer < communicator->ranks(), ncclInvalidArgument,
          fmt::format("peer {} is invalid for {} ranks", transfer.peer, communicator->ranks()));
  const OnDevice on_device(communicator->device());
  check_range(transfer.data, transfer.bytes(), size_of_type(transfer.type), communicator->device());
  check_stream(stream, *communicator);
  add_transfer(direction, transfer, transfers_of(communicator, stream));
}

}  // namespace

ncclResult_t submit(Direction direction, const Transfer& transfer, ncclComm_t handle, cudaStream_t stream) {
  const char* const name = direction == Direction::out ? "ncclSend" : "ncclRecv";
  if (const ncclResult_t fault = requested_fault(name)) return refuse(fault);
  const CommunicatorPointer communicator = find_handle(handle);
  if (!communicator) return refuse(refuse_handle(name, handle));
  begin_group();
  try {
    submit_checked(direction, transfer, communicator, stream);
  } catch (const NcclError& error) {
    refuse(
        complain(error.status, fmt::format("{} of rank {}: {}", name, communicator->rank(), error.what())));
    static_cast<void>(end_group());
    return error.status;
  }
  return end_group();
}

ncclResult_t submit(const Call& call, const void* send, void* recv, ncclComm_t handle, cudaStream_t stream) {
  if (const ncclResult_t fault = requested_fault(name_of(call.kind))) return refuse(fault);
  const CommunicatorPointer communicator = find_handle(handle);
  if (!communicator) return refuse(refuse_handle(name_of(call.kind), handle));
  try {
    return submit_checked(call, send, recv, communicator, stream);
  } catch (const NcclError& error) {
    const std::string message =
        fmt::format("{} of rank {}: {}", name_of(call.kind), communicator->rank(), error.what());
    return refuse(complain(error.status, message));
  }
}

void begin_group() { ++group().depth; }

bool in_group() { return group().depth > 0; }

ncclResult_t end_group() {
  if (!in_group()) return complain(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group().depth > 0) return ncclSuccess;
  const std::vector<Pending> calls = std::exchange(group().calls, {});
  if (const ncclResult_t refused = std::exchange(group().refused, ncclSuccess)) return refused;
  for (const Pending& call : calls) {
    const ncclResult_t status = give_to_stream(call.communicator, call.operation, call.stream);
    if (status != ncclSuccess) return status;
  }
  return ncclSuccess;
}

}  // namespace lockstep::emulator
