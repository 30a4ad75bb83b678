// SPDX-License-Identifier: Apache-2.0
//
// How fast do ranks add up gradients? All-reduce in place over fp32, from memory the communicator made (a
// shared window inside a node) and from plain memory, in turns with MPI_Allreduce and Gloo, for growing
// sizes. Every result is verified.
//   mpirun -np 2 --bind-to none allreduce_bench --json FILE
#include <algorithm>
#include <cstdio>
#include <limits>
#include <vector>

#include <mpi.h>

#include "benchmarks/measure.h"
#include "benchmarks/peer_all_reduce.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

struct Options {
  std::size_t smallest = std::size_t{4} << 10;
  std::size_t largest = std::size_t{64} << 20;
  int repeats = 21;
  std::string json;
};

// Small integers: their sum is exact in fp32 in any order.
float input(int rank, std::size_t i) {
  return static_cast<float>((i + 3 * static_cast<std::size_t>(rank)) % 17);
}

void fill(float* data, std::size_t count, int rank) {
  for (std::size_t i = 0; i < count; ++i) data[i] = input(rank, i);
}

void verify(const float* data, std::size_t count, int ranks) {
  for (std::size_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int rank = 0; rank < ranks; ++rank) expected += input(rank, i);
    CHECK(data[i] == expected, "element {} of {} is {}, expected {}", i, count, data[i], expected);
  }
}

// One way of adding up, in one kind of memory.
struct Way {
  const char* name;
  float* data;
  AllReduce sum;
};

std::vector<Way> ways_of(World& world, Communicator& communicator, const Buffer& window,
                         const Buffer& plain) {
  const auto floats = [](const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
  const AllReduce own = [&communicator](float* data, std::size_t count) {
    communicator.all_reduce(data, count, DType::f32, ReduceOp::sum);
    communicator.stream().synchronize();
  };
  std::vector<Way> ways = {{"window", floats(window), own},
                           {"plain", floats(plain), own},
                           {"MPI", floats(plain), [](float* data, std::size_t count) {
                              MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                                            MPI_COMM_WORLD);
                            }}};
  if (const auto gloo = gloo_all_reduce(world)) ways.push_back({"Gloo", floats(plain), *gloo});
  return ways;
}

// Seconds of each way's turns on this rank; ways take turns, and every turn begins with another one.
std::vector<std::vector<double>> measure(Communicator& communicator, const std::vector<Way>& ways,
                                         std::size_t count, int repeats) {
  std::vector<std::vector<double>> seconds(ways.size());
  for (int repeat = -2; repeat < repeats; ++repeat) {  // two to warm up
    for (std::size_t turn = 0; turn < ways.size(); ++turn) {
      const std::size_t which = (turn + static_cast<std::size_t>(repeat + 2)) % ways.size();
      const Way& way = ways[which];
      fill(way.data, count, communicator.rank());
      communicator.barrier();
      communicator.stream().synchronize();
      const std::int64_t begin = now_ns();
      way.sum(way.data, count);
      if (repeat >= 0) seconds[which].push_back(static_cast<double>(now_ns() - begin) * 1e-9);
      verify(way.data, count, communicator.size());
    }
  }
  return seconds;
}

// Nanoseconds that the log takes for a bucket's sum, with all its moments.
std::vector<double> measure_log(int repeats) {
  constexpr std::uint64_t kCollectives = 100'000;
  CollectiveLog log("bench", 0, 1);
  std::uint64_t sequence = 0;
  std::vector<double> nanoseconds;
  for (int repeat = -2; repeat < repeats; ++repeat) {  // two to warm up
    const std::int64_t begin = now_ns();
    for (std::uint64_t i = 0; i < kCollectives; ++i) {
      const std::int64_t now = now_ns();
      log.begin({.kind = CollectiveKind::all_reduce,
                 .count = i,
                 .purpose = {.bucket = 0, .final_ns = now, .enqueued_ns = now},
                 .sequence = ++sequence});
      log.started(sequence);
      log.met(sequence, now_ns());
      log.sent(sequence, i);
      log.finished(sequence);
    }
    if (repeat >= 0) nanoseconds.push_back(static_cast<double>(now_ns() - begin) / kCollectives);
  }
  return nanoseconds;
}

int run(const Options& options, World& world) {
  CHECK(options.largest / sizeof(float) <= std::size_t{std::numeric_limits<int>::max()},
        "MPI_Allreduce takes no more than 2^31 - 1 elements");
  const std::unique_ptr<Communicator> communicator = world.communicator();
  const Buffer window = communicator->allocate(options.largest);
  const Buffer plain(options.largest, Device{});
  const std::vector<Way> ways = ways_of(world, *communicator, window, plain);
  const int n = world.size();
  const bool speaks = world.rank() == 0;
  nlohmann::json rows = nlohmann::json::array();
  if (speaks) {
    std::printf("%12s  %-7s  %12s  %10s  %10s  %12s\n", "bytes", "way", "median us", "algbw GB/s",
                "busbw GB/s", "times as MPI");
  }
  for (std::size_t bytes = options.smallest; bytes <= options.largest; bytes *= 4) {
    const auto seconds = measure(*communicator, ways, bytes / sizeof(float), options.repeats);
    if (!speaks) continue;
    const std::vector<double>& mpi = seconds[2];
    for (std::size_t which = 0; which < ways.size(); ++which) {
      std::vector<double> ratios;
      for (std::size_t i = 0; i < mpi.size(); ++i) ratios.push_back(mpi[i] / seconds[which][i]);
      const double typical = median(seconds[which]), ratio = median(ratios);
      const double algorithm = static_cast<double>(bytes) / typical * 1e-9;
      const double bus = algorithm * 2.0 * (n - 1) / n;
      std::printf("%12zu  %-7s  %12.1f  %10.2f  %10.2f  %12.2f\n", bytes, ways[which].name, typical * 1e6,
                  algorithm, bus, ratio);
      const auto [least, most] = std::ranges::minmax(ratios);
      rows.push_back({{"bytes", bytes},
                      {"way", ways[which].name},
                      {"median_us", typical * 1e6},
                      {"algbw_gb_per_s", algorithm},
                      {"busbw_gb_per_s", bus},
                      {"speed_over_mpi", ratio},
                      {"speed_over_mpi_spread", {least, most}}});
    }
  }
  const std::vector<double> of_log = measure_log(options.repeats);
  if (speaks) {
    std::printf("the log takes %.0f ns for a collective\n", median(of_log));
    const auto [least, most] = std::ranges::minmax(of_log);
    write_json(options.json, {{"benchmark", "allreduce"},
                              {"machine", describe_machine()},
                              {"ranks", n},
                              {"repeats", options.repeats},
                              {"log_ns", median(of_log)},
                              {"log_ns_spread", {least, most}},
                              {"rows", rows}});
  }
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  CLI::App app(
      "All-reduce in place over fp32: ours in memory that the communicator allocated (window) and in other "
      "memory (plain), MPI_Allreduce and Gloo's. algbw is bytes over time; busbw is algbw * 2 (n - 1) / n, "
      "what "
      "each rank sends and receives; \"times as MPI\" is the median of the turns' ratios. The last line is "
      "what "
      "recording a collective costs, without running it.",
      "allreduce_bench");
  app.add_option("--smallest", options.smallest, "bytes, a multiple of 4");
  app.add_option("--largest", options.largest, "bytes; sizes grow by 4");
  app.add_option("--repeats", options.repeats, "timed turns of each way; the median counts");
  app.add_option("--json", options.json, "write the table here, too");
  return lockstep::run_benchmark(app, argc, argv, [&] {
    lockstep::World world = lockstep::World::join();
    const int code = lockstep::run(options, world);
    world.leave();
    return code;
  });
}
