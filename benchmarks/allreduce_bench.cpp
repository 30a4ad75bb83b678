// SPDX-License-Identifier: Apache-2.0
//
// How fast do ranks add up gradients? All-reduce in place over fp32, from memory the communicator made (a
// shared window inside a node) and from plain memory, for growing sizes. Every result is verified.
//   mpirun -np 2 --bind-to none allreduce_bench --json FILE
#include <cstdio>
#include <utility>
#include <vector>

#include "benchmarks/measure.h"
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

// Median seconds of one all-reduce on this rank.
double measure(Communicator& communicator, float* data, std::size_t count, int repeats) {
  std::vector<double> seconds;
  for (int repeat = -2; repeat < repeats; ++repeat) {  // two to warm up
    fill(data, count, communicator.rank());
    communicator.barrier();
    communicator.stream().synchronize();
    const std::int64_t begin = now_ns();
    communicator.all_reduce(data, count, DType::f32, ReduceOp::sum);
    communicator.stream().synchronize();
    if (repeat >= 0) seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9);
    verify(data, count, communicator.size());
  }
  return median(std::move(seconds));
}

int run(const Options& options, World& world) {
  const std::unique_ptr<Communicator> communicator = world.communicator();
  const Buffer window = communicator->allocate(options.largest);
  const Buffer plain(options.largest, Device{});
  const int n = world.size();
  const bool speaks = world.rank() == 0;
  nlohmann::json rows = nlohmann::json::array();
  if (speaks)
    std::printf("%12s  %-7s  %12s  %10s  %10s\n", "bytes", "memory", "median us", "algbw GB/s", "busbw GB/s");
  for (std::size_t bytes = options.smallest; bytes <= options.largest; bytes *= 4) {
    for (const Buffer* buffer : {&window, &plain}) {
      auto* data = reinterpret_cast<float*>(buffer->data());
      const double seconds = measure(*communicator, data, bytes / sizeof(float), options.repeats);
      const double algorithm = static_cast<double>(bytes) / seconds * 1e-9;
      const double bus = algorithm * 2.0 * (n - 1) / n;
      const char* memory = buffer == &window ? "window" : "plain";
      if (!speaks) continue;
      std::printf("%12zu  %-7s  %12.1f  %10.2f  %10.2f\n", bytes, memory, seconds * 1e6, algorithm, bus);
      rows.push_back({{"bytes", bytes},
                      {"memory", memory},
                      {"median_us", seconds * 1e6},
                      {"algbw_gb_per_s", algorithm},
                      {"busbw_gb_per_s", bus}});
    }
  }
  if (speaks) {
    write_json(options.json, {{"benchmark", "allreduce"},
                              {"machine", describe_machine()},
                              {"ranks", n},
                              {"repeats", options.repeats},
                              {"rows", rows}});
  }
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  CLI::App app(
      "All-reduce in place over fp32. algbw is bytes over time; busbw is algbw * 2 (n - 1) / n, what each "
      "rank "
      "sends and receives; memory says whether the communicator allocated it (window) or not (plain).",
      "allreduce_bench");
  app.add_option("--smallest", options.smallest, "bytes, a multiple of 4");
  app.add_option("--largest", options.largest, "bytes; sizes grow by 4");
  app.add_option("--repeats", options.repeats, "timed repetitions; the median counts");
  app.add_option("--json", options.json, "write the table here, too");
  return lockstep::run_benchmark(app, argc, argv, [&] {
    lockstep::World world = lockstep::World::join();
    return lockstep::run(options, world);
  });
}
