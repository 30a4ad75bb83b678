// SPDX-License-Identifier: Apache-2.0
//
// A training loop without Trainer, on CPUs: forward, backward while full buckets of gradients are exchanged,
// wait for the last bucket, optimizer step. The images are synthetic: mpirun -np 2 own_loop
#include "comm/agreement.h"
#include "comm/gradients/buckets.h"
#include "core/log.h"
#include "data/batch_loader.h"
#include "data/formats/synthetic.h"
#include "launch/train/job_end.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"

using namespace lockstep;

int train(World& world) {
  constexpr std::int64_t kBatch = 32, kSteps = 50;
  const auto images = open_synthetic({.height = 16, .width = 16, .channels = 1, .classes = 4}, Split::train);
  BatchLoader loader(*images, {.rank = world.rank(), .size = world.size()}, {.batch = kBatch});
  Graph graph({.batch = kBatch, .height = 16, .width = 16, .channels = 1, .classes = 4});
  cnn(graph, {.width = 8, .hidden = 32});
  Network network(graph, {});  // the same seed on every rank, so the same initial weights
  const std::unique_ptr<Communicator> communicator = world.communicator();
  GradientBuckets buckets(network.parameters(), *communicator, {.first_bytes = 4096, .last_bytes = 4096});
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  Stream stream(network.device(), StreamUse::compute);
  const float scale = 1.0f / static_cast<float>(loader.global_batch());  // sums over ranks are then means
  const Pass pass{.stream = stream, .gradient_scale = scale, .listener = &buckets};

  return run_or_abort(world, [&] {  // a failed rank ends here, before it frees what its peers use
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      network.forward(loader.next(), pass);
      const LossSums loss = network.loss(stream);
      buckets.begin(stream);
      network.backward(pass);  // calls the listener for each final gradient, which sends full buckets
      buckets.wait(stream);
      optimizer->check_gradients(stream);
      if (optimizer->read_control(stream).finite == 0)  // on all ranks alike: they hold the same bits
        throw_agreed(Error(exit_code::failed, fmt::format("step {}: gradients are not finite", step)));
      optimizer->step(stream, 0.05);
      float sums[] = {loss.loss, loss.weight};
      communicator->all_reduce(sums, std::size(sums), DType::f32, ReduceOp::sum);
      communicator->stream().synchronize();
      log::info("step {}: loss {:.4f}", step, sums[0] / sums[1]);  // prints on rank 0
    }
    return exit_code::done;
  });
}

int main() {
  return run_job([](World& world) { return train(world); });
}
