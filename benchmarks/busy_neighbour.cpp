// SPDX-License-Identifier: Apache-2.0
//
// Measures the cost of a busy neighbour. Zero, one or two counting processes share the machine with a
// training, in turns, so that all three cases see the same machine. On two cores the fair share of a training
// with two threads is all, two thirds and a half of them; its speed depends on how its threads wait for each
// other.
#include <atomic>
#include <csignal>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/timeline.h"
#include "launch/train/trainer.h"

namespace lockstep {
namespace {

struct Options : BenchOptions {
  Options() {
    model = "cnn";
    image = 28;
    channels = 1;
  }
  int neighbours = 2;
  int rounds = 5;
  double seconds = 2;
};

// Counting processes, stopped at first. Create them before this process has threads.
class Neighbours {
 public:
  explicit Neighbours(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t process = fork();
      CHECK(process >= 0, "cannot start a process for a neighbour");
      if (process == 0) count_until_ended();
      processes_.push_back(process);
      kill(process, SIGSTOP);
    }
  }
  ~Neighbours() {
    for (const pid_t process : processes_) {
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
    }
  }
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  int size() const { return static_cast<int>(processes_.size()); }
  // Lets the first `busy` processes run and stops the others.
  void let_run(int busy) const {
    for (int i = 0; i < size(); ++i)
      kill(processes_[static_cast<std::size_t>(i)], i < busy ? SIGCONT : SIGSTOP);
  }

 private:
  [[noreturn]] static void count_until_ended() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (std::atomic<std::uint64_t> count = 0;; ++count) continue;
  }
  std::vector<pid_t> processes_;
};

// Measures steps per second for `seconds`.
double rate(Trainer& trainer, double seconds) {
  const std::int64_t begin = now_ns();
  int steps = 0;
  for (; seconds_since(begin) < seconds; ++steps) trainer.step();
  return steps / seconds_since(begin);
}

int run(const Options& o) {
  const Neighbours neighbours(o.neighbours);
  BenchNetwork bench(o);
  const RandomImages images(o, 64 * o.batch);
  BenchTraining training(bench, images);
  std::vector<std::vector<double>> rates(static_cast<std::size_t>(o.neighbours) + 1);
  rate(training.trainer, 0.5);
  for (int round = 0; round < o.rounds; ++round) {
    for (int busy = 0; busy <= o.neighbours; ++busy) {
      neighbours.let_run(busy);
      rate(training.trainer, 0.2);  // lets the scheduler settle
      rates[static_cast<std::size_t>(busy)].push_back(static_cast<double>(o.batch) *
                                                      rate(training.trainer, o.seconds));
    }
  }
  const double alone = median(rates[0]);
  nlohmann::json turns = nlohmann::json::array();
  fmt::print("{} batch {} {} threads, {} turns of {} s\n", o.model, o.batch, o.threads, o.rounds, o.seconds);
  for (std::size_t busy = 0; busy < rates.size(); ++busy) {
    const Spread speed = spread_of(rates[busy]);
    fmt::print("  {} busy neighbours: {:.0f} samples/s ({:.0f} to {:.0f}), {:.0f} % of the speed alone\n",
               busy, speed.typical, speed.least, speed.most, 100 * speed.typical / alone);
    turns.push_back({{"busy_neighbours", busy},
                     {"samples_per_second", speed.typical},
                     {"of_alone", speed.typical / alone},
                     {"turns", rates[busy]}});
  }
  write_json(o.json, {{"benchmark", "busy_neighbour"},
                      {"machine", describe_machine()},
                      {"options", o.to_json()},
                      {"seconds", o.seconds},
                      {"results", turns}});
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  lockstep::BenchProgram program(
      "busy_neighbour",
      "Trains a network beside busy processes: samples per second beside 0, 1, 2, .. of them, in turns. "
      "Reports medians with the least and the most.");
  options.add_flags(program);
  program.not_negative("--neighbours", options.neighbours, "largest number of busy processes");
  program.positive("--rounds", options.rounds, "turns for each number of neighbours");
  program.positive("--seconds", options.seconds, "length of a turn");
  return program.run(argc, argv, [&] { return lockstep::run(options); });
}
