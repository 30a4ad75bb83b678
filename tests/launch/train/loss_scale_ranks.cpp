// SPDX-License-Identifier: Apache-2.0
//
// A training job with a dynamic loss scale. On one rank gradients overflow in two steps, in either
// micro-batch. Every rank must skip these steps, keep its state unchanged by them, and continue. Then all
// steps overflow, which ends the training: the last good state is saved outside of the time limit of a step.
#include <chrono>
#include <limits>
#include <string>

#include "comm/agreement.h"
#include "comm/job/job_state.h"
#include "core/error.h"
#include "launch/train/digest.h"
#include "launch/train/job_end.h"
#include "launch/train/trainer.h"
#include "launch/train/watch/step_watch.h"
#include "models/networks/networks.h"
#include "tests/launch/train/grays.h"

namespace lockstep {
namespace {

constexpr int kAccumulation = 2;
constexpr float kInitialScale = 1024;
constexpr int kInterval = 4;

// Makes one gradient infinite in the given micro-batch, counted over all steps, or in every micro-batch.
class Overflow final : public LayerObserver {
 public:
  explicit Overflow(Network& network) : network_(network) {}
  void in_micro_batch(std::int64_t which) { which_ = which; }
  void in_every_micro_batch() { every_ = true; }
  void layer_ran(std::size_t node, Direction direction, std::int64_t, std::int64_t) override {
    if (direction != Direction::backward_parameters || node != 0) return;
    if (seen_++ != which_ && !every_) return;
    static_cast<float*>(network_.parameters().back().gradient)[0] = std::numeric_limits<float>::infinity();
  }

 private:
  Network& network_;
  std::int64_t which_ = -1;
  std::int64_t seen_ = 0;
  bool every_ = false;
};

// Reads the time limit of a step, and the one while the last good state is saved.
struct LimitReader final : TrainingObserver {
  explicit LimitReader(const JobState& of_job) : job(of_job) {}
  void before_step() override { in_step = job.timeout(); }
  std::string save_last_good() override {
    while_saving = job.timeout();
    return {};
  }

  const JobState& job;
  std::chrono::milliseconds in_step = JobState::kDefaultTimeout, while_saving{0};
};

void expect_time_to_save_last_good(World& world, Trainer& trainer, const JobState& job) {
  LimitReader limits(job);
  StepWatch watch(world, trainer, 0);
  bool failed = false;
  try {
    trainer.fit({&limits, &watch});  // before_step() is called in reverse order
  } catch (const Error& error) {
    if (!error.agreed()) throw;
    failed = true;
  }
  CHECK(failed, "gradients that are not finite did not end the training");
  CHECK(limits.in_step < JobState::kDefaultTimeout, "steps were not measured");
  CHECK(limits.while_saving == JobState::kDefaultTimeout, "the limit while saving was {} ms",
        limits.while_saving.count());
}

// This rank's running statistics.
std::vector<float> statistics_of(const Network& network) {
  return {network.statistics().begin(), network.statistics().end()};
}

struct Expected {
  bool overflows;
  std::int64_t micro_batch;  // the micro-batch that overflows
  float scale;               // after the step
};
constexpr Expected kSteps[] = {
    {false, 0, kInitialScale},     {false, 0, kInitialScale},     {true, 0, kInitialScale / 2},
    {true, 1, kInitialScale / 4},  {false, 0, kInitialScale / 4}, {false, 0, kInitialScale / 4},
    {false, 0, kInitialScale / 4}, {false, 0, kInitialScale / 2}, {false, 0, kInitialScale / 2},
    {false, 0, kInitialScale / 2}, {false, 0, kInitialScale / 2}, {false, 0, kInitialScale},
};

int train(World& world) {
  Graph graph({.batch = 8, .height = 8, .width = 8, .channels = 1, .classes = 4});
  cnn(graph);
  const Grays dataset({8, 8, 1});
  const Shard shard{.rank = world.rank(), .size = world.size()};
  const std::unique_ptr<Communicator> communicator = world.communicator();
  return run_or_abort(world, [&] {
    backend_for({}).set_threads(1);
    Network network(graph, {});
    GradientBuckets buckets(network.parameters(), *communicator, {});
    const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{},
                                          {.initial = kInitialScale, .rule = {.interval = kInterval}});
    BatchLoader train_loader(dataset, shard, {.batch = 8, .accumulation = kAccumulation});
    BatchLoader test_loader(dataset, shard, {.batch = 8, .tail = Tail::pad});
    Overflow overflow(network);
    Trainer trainer({.network = network,
                     .buckets = buckets,
                     .optimizer = *optimizer,
                     .train = train_loader,
                     .test = test_loader,
                     .communicator = *communicator,
                     .observer = &overflow},
                    {.base = 0.01}, {.accumulation = kAccumulation});
    Stream stream({}, StreamUse::compute);
    const double before = trainer.evaluate().loss;
    std::int64_t done = 0;
    for (std::size_t step = 0; step < std::size(kSteps); ++step) {
      const auto [overflows, micro_batch, scale] = kSteps[step];
      const bool here = overflows && world.rank() == 1;
      overflow.in_micro_batch(here ? static_cast<std::int64_t>(step) * kAccumulation + micro_batch : -1);
      const std::string state = digest(network, *optimizer);
      const std::vector<float> statistics = statistics_of(network);
      trainer.step();
      const std::string after = digest(network, *optimizer);
      CHECK((after == state) == overflows, "step {}", step);
      for (const std::string& other : gather_texts(*communicator, after))
        CHECK(other == after, "ranks differ");
      CHECK((statistics_of(network) == statistics) == overflows,
            "step {}: only a skipped step may keep its running statistics", step);
      done += overflows ? 0 : 1;
      const StepControl control = optimizer->read_control(stream);
      CHECK(control.loss_scale == scale, "step {}: the loss scale is {}", step, control.loss_scale);
      CHECK(control.step == done + 1, "step {}: the optimizer counts {} steps", step, control.step);
    }
    CHECK(trainer.evaluate().loss < 0.8 * before, "the loss does not fall");
    overflow.in_every_micro_batch();
    expect_time_to_save_last_good(world, trainer, *communicator->job());
    return 0;
  });
}

}  // namespace
}  // namespace lockstep

int main() { return lockstep::run_job(lockstep::train); }
