// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <unistd.h>

#include "benchmarks/collective_ways.h"

namespace lockstep {
namespace {

// A folder for the rendezvous of the ranks, the same on every rank.
std::filesystem::path shared_folder(Communicator& communicator) {
  std::array<char, 64> name{};
  if (communicator.rank() == 0) {
    std::snprintf(name.data(), name.size(), "lockstep_gloo_%d", static_cast<int>(getpid()));
    std::filesystem::create_directory(std::filesystem::temp_directory_path() / name.data());
  }
  communicator.broadcast(name.data(), name.size(), DType::u8, 0);
  communicator.stream().synchronize();
  return std::filesystem::temp_directory_path() / name.data();
}

template <typename T>
void reduce(ReduceOp op, void* result, const void* a, const void* b, std::size_t count) {
  if (op == ReduceOp::sum) gloo::sum<T>(result, a, b, count);
  if (op == ReduceOp::max) gloo::max<T>(result, a, b, count);
  if (op == ReduceOp::min) gloo::min<T>(result, a, b, count);
}

class GlooWay : public Way {
 public:
  GlooWay(std::shared_ptr<gloo::Context> context, std::shared_ptr<WayMemory> memory)
      : Way("gloo", std::move(memory)), context_(std::move(context)) {}

  std::string lacks(const CollectiveCase& c) const override {
    if (c.kind == CollectiveKind::reduce_scatter) return "Gloo has no reduce_scatter of equal shares";
    return c.reduces() && size_of(c.dtype) == 2 ? "Gloo's 16-bit type differs from Lockstep's" : "";
  }

  void run(const CollectiveCase& c, std::byte* send, std::byte* recv) override {
    auto* const from = reinterpret_cast<std::uint8_t*>(send);
    auto* const to = reinterpret_cast<std::uint8_t*>(recv);
    if (c.kind == CollectiveKind::all_reduce) {
      if (c.dtype == DType::f32) all_reduce<float>(c, send, recv);
      if (c.dtype == DType::i32) all_reduce<std::int32_t>(c, send, recv);
    } else if (c.kind == CollectiveKind::all_gather) {
      gloo::AllgatherOptions options(context_);
      if (!in_place(send)) options.setInput(from, c.send_bytes());
      options.setOutput(to, c.recv_bytes());
      gloo::allgather(options);
    } else if (c.kind == CollectiveKind::all_to_all) {
      if (in_place(send)) std::memcpy(memory().send.data(), send, c.bytes());
      gloo::AlltoallOptions options(context_);
      options.setInput(in_place(send) ? reinterpret_cast<std::uint8_t*>(memory().send.data()) : from,
                       c.bytes());
      options.setOutput(to, c.bytes());
      gloo::alltoall(options);
    } else if (c.kind == CollectiveKind::broadcast) {
      gloo::BroadcastOptions options(context_);
      options.setRoot(c.root);
      if (!in_place(send) && context_->rank == c.root) options.setInput(from, c.bytes());
      options.setOutput(to, c.bytes());
      gloo::broadcast(options);
    } else {
      gloo::BarrierOptions options(context_);
      gloo::barrier(options);
    }
  }

 private:
  template <typename T>
  void all_reduce(const CollectiveCase& c, std::byte* send, std::byte* recv) {
    gloo::AllreduceOptions options(context_);
    if (send != recv) options.setInput(reinterpret_cast<T*>(send), c.count);
    options.setOutput(reinterpret_cast<T*>(recv), c.count);
    options.setReduceFunction([op = c.op](void* result, const void* a, const void* b, std::size_t n) {
      reduce<T>(op, result, a, b, n);
    });
    gloo::allreduce(options);
  }

  std::shared_ptr<gloo::Context> context_;
};

}  // namespace

std::unique_ptr<Way> gloo_way(World& world, std::shared_ptr<WayMemory> memory, std::string& why_not) {
  if (world.nodes() > 1) {
    why_not = "Gloo uses the loopback, but ranks are on several nodes";
    return nullptr;
  }
  const std::unique_ptr<Communicator> communicator = world.communicator();
  const std::filesystem::path folder = shared_folder(*communicator);
  gloo::rendezvous::FileStore store(folder);
  gloo::transport::tcp::attr address;
  address.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(address);
  auto context = std::make_shared<gloo::rendezvous::Context>(world.rank(), world.size());
  context->connectFullMesh(store, device);
  communicator->barrier();
  communicator->stream().synchronize();
  if (world.rank() == 0) std::filesystem::remove_all(folder);
  return std::make_unique<GlooWay>(std::move(context), std::move(memory));
}

}  // namespace lockstep
