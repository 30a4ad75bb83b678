// SPDX-License-Identifier: Apache-2.0
//
// How close are Lockstep's own kernels to memory bandwidth? Compares each kernel's bytes per second with a
// copy's on the same device in the same run, for several sizes of memory and, on a GPU, of blocks. Verifies
// results against the CPU before it reports a time.
#include "benchmarks/bench_kernels.h"
#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/text/enum_words.h"
#include "core/timeline.h"
#include "models/precision.h"

namespace lockstep {
namespace {

struct Options {
  std::string device = "cpu";
  std::string precision = "fp32";
  int threads = 2;
  std::vector<std::int64_t> mib = {1, 16, 64, 256};
  std::vector<int> block_threads = {128, 256, 512};
  std::vector<std::string> only;
  int repeats = 9;
  std::string json;
};

// Mean seconds of a call, over as many calls as take more than 2 ms.
double seconds_of(Stream& stream, const std::function<void()>& call) {
  call();
  stream.synchronize();
  int calls = 1;
  for (;;) {
    const std::int64_t begin = now_ns();
    for (int i = 0; i < calls; ++i) call();
    stream.synchronize();
    const double seconds = seconds_since(begin);
    if (seconds > 2e-3) return seconds / calls;
    calls *= 2;
  }
}

// Checks that one call on equal memory gives the CPU's result.
void verify(const BenchKernel& kernel, const std::string& precision, DType type, Device device) {
  constexpr std::int64_t kCount = 200'003;
  std::vector<float> results[2];
  for (const int which : {0, 1}) {
    const Device where = which == 0 ? device : Device{};
    Backend& backend = backend_for(where);
    BenchArena arena(where, type, kCount);
    const BenchCall call = kernel.prepare(backend, arena);
    call.call();
    results[which] = read_result(backend, arena.stream, call);
  }
  const std::optional<std::size_t> wrong = first_wrong(results[0], results[1]);
  CHECK(!wrong, "{} in {}: element {} is {}, but {} on the CPU", kernel.name, precision, *wrong,
        results[0][*wrong], results[1][*wrong]);
}

struct Speeds {
  double kernel = 0;  // GB/s
  double copy = 0;
};

Speeds measure(BenchArena& arena, const BenchCall& call, int repeats) {
  std::vector<double> speeds, copies;
  for (int i = 0; i < repeats; ++i) {  // alternates kernel and copy
    speeds.push_back(call.bytes * 1e-9 / seconds_of(arena.stream, call.call));
    copies.push_back(2e-9 * static_cast<double>(arena.tensor_bytes()) / seconds_of(arena.stream, [&] {
                       arena.stream.copy(arena.second.data(), arena.momentum.data(), arena.tensor_bytes());
                     }));
  }
  return {median(speeds), median(copies)};
}

int run(const Options& o) {
  const Device device{.kind = o.device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu};
  const DType type = storage_type(*value_of<Precision>(o.precision));
  Backend& backend = backend_for(device);
  backend.set_threads(o.threads);
  nlohmann::json rows = nlohmann::json::array();
  fmt::print("{}, {}\n{:<26} {:>6} {:>8} {:>10} {:>10} {:>8}\n", backend.describe(), o.precision, "kernel",
             "MiB", "threads", "GB/s", "copy GB/s", "of copy");
  for (const BenchKernel& kernel : bench_kernels()) {
    if (!o.only.empty() && std::ranges::find(o.only, kernel.name) == o.only.end()) continue;
    const bool varies = device.kind == DeviceKind::cuda && kernel.any_block;
    for (const int threads : varies ? o.block_threads : std::vector<int>{0}) {
      if (varies) backend.set_block_threads(threads);
      verify(kernel, o.precision, type, device);
      for (const std::int64_t mib : o.mib) {
        BenchArena arena(device, type, (mib << 20) / static_cast<std::int64_t>(size_of(type)));
        const Speeds speeds = measure(arena, kernel.prepare(backend, arena), o.repeats);
        const double ratio = speeds.kernel / speeds.copy;
        fmt::print("{:<26} {:>6} {:>8} {:>10.1f} {:>10.1f} {:>6.0f} %\n", kernel.name, mib,
                   varies ? std::to_string(threads) : "", speeds.kernel, speeds.copy, 100 * ratio);
        rows.push_back({{"kernel", kernel.name},
                        {"mib", mib},
                        {"gigabytes_per_second", speeds.kernel},
                        {"copy_gigabytes_per_second", speeds.copy},
                        {"of_copy", ratio}});
        if (varies) rows.back()["block_threads"] = threads;
      }
    }
  }
  write_json(o.json, {{"benchmark", "kernel"},
                      {"machine", describe_machine()},
                      {"device", backend.identity()},
                      {"precision", o.precision},
                      {"repeats", o.repeats},
                      {"kernels", rows}});
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  lockstep::BenchProgram program(
      "kernel_bench",
      "Compares the bytes per second of Lockstep's own kernels with a copy's on the same device, in turns. "
      "Reports medians. A kernel counts the bytes that it must at least read and write, from memory or from "
      "a cache into which they fit.");
  std::vector<std::string> names;
  for (const lockstep::BenchKernel& kernel : lockstep::bench_kernels()) names.push_back(kernel.name);
  program.one_of("--device", options.device, {"cpu", "cuda"}, "cpu or cuda");
  program.one_of("--precision", options.precision, {"fp32", "bf16", "fp16"}, "fp32, bf16 or fp16");
  program.positive("--threads", options.threads, "compute threads on a CPU");
  program.positive("--mib", options.mib, "sizes of a tensor in MiB");
  program.positive("--block-threads", options.block_threads,
                   "threads of a block on a GPU, for kernels without a fixed number");
  program.one_of("--only", options.only, names, "measure only these kernels");
  program.positive("--repeats", options.repeats, "repetitions of each measurement");
  program.json(options.json);
  return program.run(argc, argv, [&] { return lockstep::run(options); });
}
