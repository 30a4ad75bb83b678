// SPDX-License-Identifier: Apache-2.0
//
// A training job on a ring with one slow rank. Its peers take the remaining steps. All ranks meet at the end
// of an epoch, and the evaluation is the same on all and shows that training learns.
#include <functional>
#include <numeric>
#include <string_view>

#include "comm/agreement.h"
#include "comm/world.h"
#include "core/error.h"
#include "launch/train/job_end.h"
#include "tests/launch/train/on_ring.h"

namespace lockstep {
namespace {

constexpr int kSlow = 2;

int train(World& world) {
  const std::unique_ptr<Communicator> communicator = world.communicator();
  return run_or_abort(world, [&] {
    backend_for({}).set_threads(1);
    OnRing rank({.ranks = world.size(), .epochs = 4}, *communicator);
    SlowRank slow(*communicator, kSlow);
    const double before = rank.trainer().evaluate().loss;
    rank.fit({&slow});
    const std::vector<std::int64_t> steps = rank.trainer().steps_by_rank();
    CHECK(std::accumulate(steps.begin(), steps.end(), std::int64_t{0}) == world.size() * kRingSteps,
          "the steps of all ranks are not those of an epoch");
    CHECK(steps[kSlow] <= 1, "the slow rank took {} steps", steps[kSlow]);
    const Evaluation evaluation = rank.trainer().evaluate();
    // How far it falls depends on the order in which the steps of the ranks happen.
    CHECK(evaluation.loss < before, "the loss is {}, and was {} before", evaluation.loss, before);
    const std::vector<double> losses = gather_values(*communicator, evaluation.loss);
    for (const double loss : losses) CHECK(loss == losses[0], "ranks evaluate different parameters");
    const std::span<const float> values = rank.network().values();
    const std::uint64_t mine =
        std::hash<std::string_view>()({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
    for (const std::uint64_t other : gather_values(*communicator, mine))
      CHECK(other == mine, "ranks publish different parameters");
    return 0;
  });
}

}  // namespace
}  // namespace lockstep

int main() { return lockstep::run_job(lockstep::train); }
