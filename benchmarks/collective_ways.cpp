// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/collective_ways.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <mpi.h>

#include "core/error.h"
#include "launch/program/devices/device_choice.h"

namespace lockstep {
namespace {

class OwnWay : public Way {
 public:
  OwnWay(std::string_view name, Communicator& communicator, std::shared_ptr<WayMemory> memory)
      : Way(name, std::move(memory)), communicator_(communicator) {}

  void run(const CollectiveCase& c, std::byte* send, std::byte* recv) override {
    const bool gives = c.kind != CollectiveKind::broadcast || communicator_.rank() == c.root;
    if (works_in_place(c) && gives && send != recv) copy(recv, send, c.bytes());
    const std::byte* from = send;
    if (c.kind == CollectiveKind::all_to_all && in_place(send)) {  // works only out of place
      copy(memory().send.data(), send, c.bytes());
      from = memory().send.data();
    }
    communicator_.complete({.kind = c.kind,
                            .dtype = c.dtype,
                            .op = c.op,
                            .root = c.root,
                            .send = works_in_place(c) ? nullptr : from,
                            .recv = recv,
                            .count = c.count});
  }

  void put(std::byte* to, const std::byte* from, std::size_t bytes) override {
    communicator_.stream().copy(to, from, bytes);
    communicator_.stream().synchronize();
  }

 private:
  static bool works_in_place(const CollectiveCase& c) {
    return c.kind == CollectiveKind::all_reduce || c.kind == CollectiveKind::broadcast;
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    Stream& stream = communicator_.stream();
    if (stream.runs_on_host()) {
      std::memcpy(to, from, bytes);  // on this thread, as in MpiWay
    } else {
      stream.copy(to, from, bytes);
    }
  }

  Communicator& communicator_;
};

// MPI's collectives, called on this thread.
class MpiWay : public Way {
 public:
  MpiWay(int rank, std::shared_ptr<WayMemory> memory) : Way("mpi", std::move(memory)), rank_(rank) {}

  std::string lacks(const CollectiveCase& c) const override {
    if (c.count > std::size_t{std::numeric_limits<int>::max()})
      return "MPI supports at most 2^31 - 1 elements";
    return c.reduces() && size_of(c.dtype) == 2 ? "MPI has no 16-bit floating-point type" : "";
  }

  void run(const CollectiveCase& c, std::byte* send, std::byte* recv) override {
    const MPI_Datatype type = c.dtype == DType::f32   ? MPI_FLOAT
                              : c.dtype == DType::i32 ? MPI_INT32_T
                                                      : bytes_of(c);
    const MPI_Op op = c.op == ReduceOp::sum ? MPI_SUM : c.op == ReduceOp::max ? MPI_MAX : MPI_MIN;
    const int count = static_cast<int>(c.count);
    const void* const from = in_place(send) ? MPI_IN_PLACE : send;
    switch (c.kind) {
      case CollectiveKind::all_reduce:
        MPI_Allreduce(from, recv, count, type, op, MPI_COMM_WORLD);
        break;
      case CollectiveKind::reduce_scatter:
        MPI_Reduce_scatter_block(from, recv, count, type, op, MPI_COMM_WORLD);
        break;
      case CollectiveKind::all_gather:
        MPI_Allgather(from, count, type, recv, count, type, MPI_COMM_WORLD);
        break;
      case CollectiveKind::all_to_all:
        MPI_Alltoall(from, count, type, recv, count, type, MPI_COMM_WORLD);
        break;
      case CollectiveKind::broadcast:
        if (send != recv && rank_ == c.root) std::memcpy(recv, send, c.bytes());
        MPI_Bcast(recv, count, type, c.root, MPI_COMM_WORLD);
        break;
      case CollectiveKind::barrier:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
  }

  // MPI_Reduce_scatter_block in place writes its result at the beginning of its input.
  std::size_t result_offset(const CollectiveCase&, int) const override { return 0; }

 private:
  // Type for collectives that do not reduce: bytes, or pairs of bytes for 16-bit elements.
  static MPI_Datatype bytes_of(const CollectiveCase& c) {
    return size_of(c.dtype) == 2 ? MPI_UINT16_T : MPI_UINT8_T;
  }

  int rank_;
};

std::shared_ptr<WayMemory> memory_of(Communicator& communicator, std::size_t bytes) {
  auto memory = std::make_shared<WayMemory>();
  memory->send = communicator.allocate(bytes);
  memory->recv = communicator.allocate(bytes);
  return memory;
}

}  // namespace

void Way::put(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

std::unique_ptr<Way> own_way(std::string_view name, Communicator& communicator,
                             std::shared_ptr<WayMemory> memory) {
  return std::make_unique<OwnWay>(name, communicator, std::move(memory));
}

std::vector<std::string> way_names() { return {"window", "plain", "mpi", "gloo", "nccl", "tcp"}; }

Ways::Ways(World& world, const std::vector<std::string>& wanted, std::size_t max_bytes)
    : by_name_(!wanted.empty()), max_bytes_(max_bytes), host_(world.communicator()) {
  plain_ = std::make_shared<WayMemory>(WayMemory{Buffer(max_bytes, Device{}), Buffer(max_bytes, Device{})});
  for (const std::string& name : way_names()) {
    if ((by_name_ || name == "tcp") && std::ranges::find(wanted, name) == wanted.end()) continue;
    std::string why_not;
    if (std::unique_ptr<Way> way = make(world, name, why_not)) {
      ways_.push_back(std::move(way));
    } else {
      leave_out(name, why_not);
    }
  }
}

std::unique_ptr<Way> Ways::make(World& world, const std::string& name, std::string& why_not) {
  if (name == "window") return own_way("window", *host_, memory_of(*host_, max_bytes_));
  if (name == "plain") return own_way("plain", *host_, plain_);
  if (name == "mpi") return std::make_unique<MpiWay>(world.rank(), plain_);
  if (name == "tcp") return tcp_way(world, *host_, plain_, why_not);
  if (name == "gloo") return gloo_way(world, plain_, why_not);
  if (nccl_version().empty()) {
    why_not = "this build has no NCCL; configure it with -DLOCKSTEP_CUDA=ON (preset cuda)";
    return nullptr;
  }
  const DeviceChoice choice = choose_device({}, world, *host_);
  if (choice.device.kind == DeviceKind::cpu) {
    why_not = fmt::format("not every rank has a GPU ({})", cuda_status().message);
    return nullptr;
  }
  nccl_ = world.communicator(choice.device, *host_, {.share_device = choice.shared});
  return own_way("nccl", *nccl_, memory_of(*nccl_, max_bytes_));
}

void Ways::leave_out(std::string_view name, const std::string& why) const {
  if (by_name_) throw ConfigError(fmt::format("--ways {}: {}", name, why));
  if (host_->rank() == 0) fmt::print("# {} is skipped: {}\n", name, why);
}

std::vector<Way*> Ways::for_case(const CollectiveCase& c) const {
  std::vector<Way*> able;
  for (const std::unique_ptr<Way>& way : ways_) {
    const std::string why = way->lacks(c);
    if (why.empty()) {
      able.push_back(way.get());
    } else {
      leave_out(way->name(), why);
    }
  }
  return able;
}

}  // namespace lockstep
