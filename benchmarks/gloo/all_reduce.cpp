// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <unistd.h>

#include "benchmarks/peer_all_reduce.h"

namespace lockstep {
namespace {

// A folder that every rank knows, through which ranks find each other.
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

}  // namespace

std::optional<AllReduce> gloo_all_reduce(World& world) {
  if (world.nodes() > 1) return std::nullopt;
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
  return [context](float* data, std::size_t count) {
    gloo::AllreduceOptions options(context);
    options.setOutput(data, count);
    options.setReduceFunction(
        [](void* sums, const void* a, const void* b, std::size_t n) { gloo::sum<float>(sums, a, b, n); });
    gloo::allreduce(options);
  };
}

}  // namespace lockstep
