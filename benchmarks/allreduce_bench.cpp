// SPDX-License-Identifier: Apache-2.0
//
// How fast are all_reduce and the other collectives? With the flags, columns and bus bandwidth of nccl-tests:
// Lockstep's in memory of the communicator (a shared window inside a node) and in plain memory, in turns with
// those of MPI, Gloo and NCCL. Every result is verified.
//   mpirun -np 2 --bind-to none allreduce_bench -b 4K -e 64M -f 4 --json FILE
#include <cstdio>
#include <vector>

#include "benchmarks/collective_bench.h"
#include "benchmarks/collective_options.h"
#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

struct Options : CollectiveOptions {
  bool record_cost = false;
  std::string json;
};

// Nanoseconds to record one all_reduce of a bucket, with all its timestamps, for each repeat.
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

// Measures and prints the cost of recording a collective; runs instead of the table.
void tell_record_cost(const Options& options, World& world, nlohmann::json& result) {
  const Spread nanoseconds = spread_of(measure_log(options.iters));
  result["log_ns"] = nanoseconds.typical;
  result["log_ns_spread"] = {nanoseconds.least, nanoseconds.most};
  if (world.rank() == 0) fmt::print("recording a collective takes {:.0f} ns\n", nanoseconds.typical);
}

std::vector<BandwidthRow> run_collective(const Options& options, Ways& ways, CollectiveKind kind,
                                         bool speaks) {
  const int ranks = ways.host().size();
  if (speaks) fmt::print("#\n# {}\n{}\n", name_of(kind), table_header());
  std::vector<BandwidthRow> rows;
  const bool sized = kind != CollectiveKind::barrier;
  const std::vector<std::size_t> sizes = sized ? options.sizes() : std::vector<std::size_t>{0};
  // A way that supports the largest size supports all sizes.
  const std::vector<Way*> able = ways.for_case(case_of(kind, options.dtype, options.op, ranks, sizes.back()));
  for (const std::size_t bytes : sizes) {
    const CollectiveCase c = case_of(kind, options.dtype, options.op, ranks, bytes);
    const auto timings =
        time_ways(ways.host(), able, c,
                  {.timed = options.iters, .warmup = options.warmup_iters, .check = options.check});
    for (const BandwidthRow& row : rows_of(c, timings)) {
      rows.push_back(row);
      if (speaks) fmt::print("{}\n", table_line(row));
    }
    std::fflush(stdout);
  }
  if (speaks) fmt::print("{}\n", table_footer(rows, options.check));
  return rows;
}

int run(const Options& options, World& world) {
  const bool speaks = world.rank() == 0;
  nlohmann::json result{{"benchmark", "allreduce"},
                        {"machine", describe_machine()},
                        {"ranks", world.size()},
                        {"iters", options.iters}};
  std::uint64_t wrong = 0;
  if (options.record_cost) {
    tell_record_cost(options, world, result);
  } else {
    if (speaks) {
      fmt::print("# ranks: {}, nodes: {}; median of {} turns after {} warm-up turns; {}\n", world.size(),
                 world.nodes(), options.iters, options.warmup_iters,
                 options.check ? "results are verified" : "results are not verified");
    }
    Ways ways(world, options.ways, options.sizes().back());
    result["nodes"] = world.nodes();
    result["warmup_iters"] = options.warmup_iters;
    result["rows"] = nlohmann::json::array();
    for (const CollectiveKind kind : options.collectives) {
      const auto rows = run_collective(options, ways, kind, speaks);
      for (const BandwidthRow& row : rows) result["rows"].push_back(to_json(row));
      wrong += wrong_in(rows);
    }
  }
  if (speaks && wrong == 0) write_json(options.json, result);
  if (speaks && wrong > 0) fmt::print(stderr, "allreduce_bench: {} elements are wrong, see #wrong\n", wrong);
  return wrong == 0 ? exit_code::done : exit_code::failed;
}

// Rank 0 prints errors that every rank has.
int run_and_leave(const Options& options) {
  World world = World::join();
  int code = exit_code::done;
  try {
    code = run(options, world);
  } catch (const UsageError& error) {
    code = error.exit_code();
    if (world.rank() == 0) fmt::print(stderr, "allreduce_bench: {}; see --help\n", error.what());
  } catch (const ConfigError& error) {
    code = error.exit_code();
    if (world.rank() == 0) fmt::print(stderr, "allreduce_bench: {}\n", error.what());
  }
  world.leave();
  return code;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  lockstep::BenchProgram program(
      "allreduce_bench",
      "Times collectives with the flags and columns of nccl-tests, in ways that take turns: Lockstep's in "
      "memory that the communicator allocated (window) and in other memory (plain), MPI's (mpi), Gloo's "
      "over the loopback (gloo), and NCCL's through Lockstep's communicator (nccl).\n\n"
      "size: bytes of the whole; for all_gather, reduce_scatter and all_to_all the shares of all ranks "
      "together. count: elements, for these three of one share. time: median over the turns of the mean "
      "over ranks. algbw: size / time, in GB/s of 1e9 bytes. busbw: the rate that the slowest link must "
      "carry, for n ranks algbw * 2 (n - 1) / n for all_reduce, algbw * (n - 1) / n for reduce_scatter, "
      "all_gather and all_to_all, and algbw for broadcast. #wrong: number of wrong elements over all turns "
      "and ranks; if there are any, the program ends with exit code 70. vs mpi: speed in place relative to "
      "mpi's, the median of the turns' ratios.\n\n"
      "In window, plain and nccl, all_reduce and broadcast work only in place, so their times out of place "
      "include the copy of the input, as those of mpi's broadcast do. all_to_all works only out of place, "
      "so its times in place include a copy. A barrier has only a time.");
  options.add_flags(program.app());
  program.flag("--record-cost", options.record_cost,
               "measure only the cost of recording a collective (comm/collective_log.h), including its "
               "readings of the clock, without running it");
  program.json(options.json);
  return program.run(argc, argv, [&] { return lockstep::run_and_leave(options); });
}
