// SPDX-License-Identifier: Apache-2.0
//
// Measures the cost of one slow rank for its peers. Ranks of one node train with all_reduce and on a ring
// (comm.topology), with all ranks equally fast and with the last one at half speed, in turns. A rank's time
// is spent reading its batches, which sleeps: ranks then compete neither for cores nor for caches, and many
// of them fit on few cores. Computing is a small part of a step.
#include <chrono>
#include <thread>

#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/timeline.h"
#include "launch/train/job_end.h"
#include "launch/train/trainer.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

struct GossipOptions : BenchOptions {
  GossipOptions() {
    model = "mlp";
    image = 28;
    channels = 1;
    batch = 16;
    threads = 1;
    kernels = "direct";
  }
  double batch_ms = 40;
  int steps = 60;
  int rounds = 3;
};

// Images with a delay per image.
class SlowImages final : public Dataset {
 public:
  SlowImages(const BenchOptions& options, std::int64_t size, double seconds)
      : images_(options, size), sleep_(seconds) {}
  std::int64_t size() const override { return images_.size(); }
  ImageShape image_shape() const override { return images_.image_shape(); }
  std::int64_t classes() const override { return images_.classes(); }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::this_thread::sleep_for(sleep_);
    return images_.read(index, image);
  }

 private:
  RandomImages images_;
  std::chrono::duration<double> sleep_;
};

struct Turn {
  Topology topology;
  bool slowed;
};
constexpr Turn kTurns[] = {
    {Topology::all, false}, {Topology::all, true}, {Topology::ring, false}, {Topology::ring, true}};

// Returns each rank's steps per second over an epoch. Collective.
std::vector<double> rates_of(const GossipOptions& o, const Turn& turn, Communicator& communicator) {
  const int ranks = communicator.size(), rank = communicator.rank();
  const double factor = turn.slowed && rank == ranks - 1 ? 2 : 1;
  const SlowImages images(o, ranks * o.batch * o.steps,
                          1e-3 * o.batch_ms / static_cast<double>(o.batch) * factor);
  const RandomImages test_images(o, ranks * o.batch);
  Graph graph(o.input());
  build_network(graph, {.name = o.model});
  KernelChoices first;
  Network network(graph, {.choices = &first});
  GradientBuckets buckets(network.parameters(), communicator, {});
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  const Shard shard{.rank = rank, .size = ranks};
  BatchLoader train(images, shard, {.batch = o.batch, .threads = 1});
  BatchLoader test(test_images, shard, {.batch = o.batch, .tail = Tail::pad});
  Trainer trainer({network, buckets, *optimizer, train, test, communicator}, {.base = kBenchRate},
                  {.topology = turn.topology});
  communicator.barrier();
  communicator.stream().synchronize();
  const std::int64_t begin_ns = now_ns();
  trainer.fit();
  const double seconds = seconds_since(begin_ns);
  std::vector<double> rates;
  for (int each = 0; each < ranks; ++each) {
    const bool own = turn.topology == Topology::ring;
    const auto steps = own ? trainer.steps_by_rank()[static_cast<std::size_t>(each)] : trainer.steps();
    rates.push_back(static_cast<double>(steps) / seconds);
  }
  return rates;
}

// Median rate of the ranks that are never slowed.
double others_rate(const std::vector<double>& rates) { return median({rates.begin(), rates.end() - 1}); }

nlohmann::json describe(const GossipOptions& o, const std::vector<std::vector<std::vector<double>>>& all) {
  nlohmann::json rows = nlohmann::json::array();
  double alike = 0;
  for (std::size_t i = 0; i < std::size(kTurns); ++i) {
    std::vector<double> others, last;
    for (const std::vector<double>& rates : all[i]) {
      others.push_back(others_rate(rates));
      last.push_back(rates.back());
    }
    const Spread peers = spread_of(others);
    if (!kTurns[i].slowed) alike = peers.typical;
    const char* name = kTurns[i].topology == Topology::ring ? "ring" : "all";
    fmt::print("  {:<5} {:<18} peers {:5.1f} steps/s ({:.1f} to {:.1f}), {:3.0f} %; last rank {:5.1f}\n",
               name, kTurns[i].slowed ? "last rank slowed" : "equal speed", peers.typical, peers.least,
               peers.most, 100 * peers.typical / alike, median(last));
    rows.push_back({{"topology", name},
                    {"slowed", kTurns[i].slowed},
                    {"others_steps_per_second", peers.typical},
                    {"spread", {peers.least, peers.most}},
                    {"of_alike", peers.typical / alike},
                    {"last_steps_per_second", median(last)}});
  }
  nlohmann::json options = o.to_json();
  options["batch_ms"] = o.batch_ms;
  options["steps"] = o.steps;
  options["rounds"] = o.rounds;
  return {{"benchmark", "gossip"}, {"machine", describe_machine()}, {"options", options}, {"rows", rows}};
}

int run(const GossipOptions& o, World& world) {
  return run_or_abort(world, [&] {
    const std::unique_ptr<Communicator> communicator = world.communicator();
    CHECK(world.size() > 1, "one rank has no neighbours: start several ranks with mpirun");
    backend_for({}).set_threads(o.threads);
    std::vector<std::vector<std::vector<double>>> all(std::size(kTurns));
    for (int round = 0; round < o.rounds; ++round) {
      for (std::size_t i = 0; i < std::size(kTurns); ++i)
        all[i].push_back(rates_of(o, kTurns[i], *communicator));
    }
    if (world.rank() > 0) return exit_code::done;
    fmt::print("{} ranks, {:.0f} ms for a batch, {} steps a turn, {} rounds\n", world.size(), o.batch_ms,
               o.steps, o.rounds);
    nlohmann::json document = describe(o, all);
    document["ranks"] = world.size();
    write_json(o.json, document);
    return exit_code::done;
  });
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::GossipOptions options;
  lockstep::BenchProgram program(
      "gossip_bench",
      "Measures steps per second of ranks that train with all_reduce and on a ring, with all ranks equally "
      "fast and with the last one at half speed, in turns. Reports medians over the other ranks, with the "
      "least and the most. Run it with mpirun.");
  options.add_shape_flags(program);
  program.positive("--batch-ms", options.batch_ms,
                   "milliseconds that a rank sleeps for a batch; doubled for the slowed rank");
  program.positive("--steps", options.steps, "steps of a turn, the mean over the ranks");
  program.positive("--rounds", options.rounds, "number of turns");
  return program.run(argc, argv, [&] {
    lockstep::World world = lockstep::World::join();
    const int code = lockstep::run(options, world);
    if (code == 0) world.leave();
    return code;
  });
}
