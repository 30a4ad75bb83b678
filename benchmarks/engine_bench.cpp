// SPDX-License-Identifier: Apache-2.0
//
// Measures the cost of the engine. Blocks of steps of the bare network (forward, loss, backward, update on
// one batch in memory) alternate with blocks of Trainer steps on one rank, which add the loader, buckets, the
// check for infinities and the account. The result is the median of the ratios of each pair of blocks; it is
// as noisy as the machine. The Trainer's account is less noisy: the share of its steps that is neither
// forward, backward nor optimizer.
#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/timeline.h"
#include "launch/train/trainer.h"

namespace lockstep {
namespace {

struct Options : BenchOptions {
  int blocks = 61;
  int steps = 1;
};

void bare_step(BenchNetwork& bench, const FixedBatch& batch, Stream& stream) {
  const Pass pass{.stream = stream,
                  .gradient_scale = 1.0f / static_cast<float>(bench.network->batch()),
                  .loss_scale = bench.optimizer->loss_scale()};
  bench.network->forward(batch.input(), pass);
  bench.network->loss(stream);
  bench.network->backward(pass);
  bench.optimizer->step(stream, kBenchRate);
}

// wait: returns when the device has done the steps.
template <typename Step, typename Wait>
double milliseconds(int steps, Step step, Wait wait) {
  const std::int64_t begin = now_ns();
  for (int i = 0; i < steps; ++i) step();
  wait();
  return 1e3 * seconds_since(begin) / steps;
}

int run(const Options& o) {
  BenchNetwork bench(o);
  const RandomImages images(o, 8 * o.batch);
  const FixedBatch batch(images, o.batch, o.where());
  BenchTraining training(bench, images);
  Trainer& trainer = training.trainer;
  Stream stream(o.where(), StreamUse::compute);
  std::vector<double> bare, engine, ratios, shares;
  for (int block = -1; block < o.blocks; ++block) {  // one to warm up
    const double one = milliseconds(
        o.steps, [&] { bare_step(bench, batch, stream); }, [&] { stream.synchronize(); });
    trainer.take_account();
    const double other = milliseconds(
        o.steps, [&] { trainer.step(); }, [&] { trainer.finish_steps(); });
    const StepAccount account = trainer.take_account();
    if (block < 0) continue;
    shares.push_back(
        (account[Phase::data_wait] + account[Phase::exposed_communication] + account[Phase::rest]) /
        account.total());
    bare.push_back(one);
    engine.push_back(other);
    ratios.push_back(other / one);
  }
  fmt::print(
      "{} batch {} {} threads: bare {:.2f} ms, Trainer {:.2f} ms, ratio {:.4f} (median of {}); of the "
      "Trainer's step {:.3f} % outside forward, backward and optimizer\n",
      o.model, o.batch, o.threads, median(bare), median(engine), median(ratios), o.blocks,
      100 * median(shares));
  write_json(o.json, {{"benchmark", "engine"},
                      {"machine", describe_machine()},
                      {"options", o.to_json()},
                      {"blocks", o.blocks},
                      {"steps_per_block", o.steps},
                      {"bare_ms", median(bare)},
                      {"trainer_ms", median(engine)},
                      {"ratio", median(ratios)},
                      {"share_outside_kernels", median(shares)}});
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  lockstep::BenchProgram program(
      "engine_bench",
      "Measures the cost of the engine around the kernels: steps of the Trainer and of the bare network, in "
      "turns. Reports the median of the ratios of their times.");
  options.add_flags(program);
  program.positive("--blocks", options.blocks, "pairs of blocks");
  program.positive("--steps", options.steps, "steps in a block");
  return program.run(argc, argv, [&] { return lockstep::run(options); });
}
