// SPDX-License-Identifier: Apache-2.0
//
// A training job on a ring with one slow rank. Its peers take the remaining steps. All ranks meet at the end
// of an epoch, and the evaluation is the same on all and shows that training learns.
#include <numeric>
#include <string>

#include "comm/agreement.h"
#include "comm/world.h"
#include "core/error.h"
#include "launch/train/digest.h"
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
    const std::string mine = digest(rank.network());
    for (const std::string& other : gather_texts(*communicator, mine))
      CHECK(other == mine, "ranks evaluate different parameters");
    return 0;
  });
}

}  // namespace
}  // namespace lockstep

int main() { return lockstep::run_job(lockstep::train); }
