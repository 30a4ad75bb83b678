// SPDX-License-Identifier: Apache-2.0
//
// failing_rank KIND RANK: a training job in which one rank fails after some steps. Also an example of a
// program that trains its own network with the library. It never ends by itself, except with KIND parameter.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "launch/train/digest.h"
#include "launch/train/job_end.h"
#include "launch/train/trainer.h"
#include "launch/train/watch/replicas.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

// Limits memory to what this process has now.
void exhaust_memory() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  const std::vector<char> memory(std::size_t{1} << 30, 'x');
  CHECK(memory.empty(), "there is memory beyond the limit");
}

void get_into_trouble(const std::string& kind) {
  if (kind == "data") throw DataError("sample is broken");
  if (kind == "exception") throw std::runtime_error("not an Error of Lockstep");
  if (kind == "stopped") std::raise(SIGSTOP);
  if (kind == "memory") exhaust_memory();
}

class BreakingDataset final : public Dataset {
 public:
  explicit BreakingDataset(std::string kind) : kind_(std::move(kind)) {}
  std::int64_t size() const override { return 4096; }
  ImageShape image_shape() const override { return {8, 8, 1}; }
  std::int64_t classes() const override { return 4; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    if (++reads_ > 200) get_into_trouble(kind_);
    std::fill(image.begin(), image.end(), static_cast<std::uint8_t>(index));
    return static_cast<std::int32_t>(index % 4);
  }

 private:
  std::string kind_;
  mutable std::atomic<int> reads_ = 0;
};

int train(World& world, const std::string& kind, int rank) {
  Graph graph({.batch = 8, .height = 8, .width = 8, .channels = 1, .classes = 4});
  mlp(graph);
  const bool troubled = world.rank() == rank;
  const BreakingDataset dataset(troubled ? kind : "");
  const BreakingDataset whole("");
  const Shard shard{.rank = world.rank(), .size = world.size()};
  const std::unique_ptr<Communicator> communicator = world.communicator();
  return run_or_abort(world, [&] {
    Network network(graph, {});
    GradientBuckets buckets(network.parameters(), *communicator, {});
    const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
    BatchLoader train_loader(dataset, shard, {.batch = 8, .on_error = OnError::stop});
    BatchLoader test_loader(whole, shard, {.batch = 8, .tail = Tail::pad});
    Trainer trainer({network, buckets, *optimizer, train_loader, test_loader, *communicator}, {.base = 0.01},
                    {.epochs = 1'000'000, .max_steps = kind == "parameter" ? 3 : 0});
    // Set after the start, which may take longer.
    if (kind == "stopped") world.set_timeout(std::chrono::seconds(1));
    return run_or_abort(world, [&] {
      trainer.fit();
      if (kind == "parameter" && troubled) network.values().front() += 1e-7f;
      require_same_state(*communicator, digest(network, *optimizer));
      return 0;
    });
  });
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  World world = World::join();
  int code = exit_code::done;
  try {
    CHECK(argc == 3, "failing_rank KIND RANK");
    code = train(world, argv[1], std::atoi(argv[2]));
  } catch (const Error& error) {  // on every rank
    if (world.rank() == 0) print_error(error.what());
    code = error.exit_code();
  }
  leave_or_abort(world, code);
  return code;
}
