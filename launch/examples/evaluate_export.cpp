// SPDX-License-Identifier: Apache-2.0
//
// Evaluates the network that `lockstep train fashion_mnist_cnn --export FILE` wrote, on CPUs. Each rank takes
// a part of the test set: mpirun -np 2 evaluate_export FILE [FOLDER]
#include "comm/agreement.h"
#include "data/batch_loader.h"
#include "launch/train/job_end.h"
#include "models/network_state.h"
#include "models/networks/networks.h"

using namespace lockstep;

int evaluate(World& world, int argc, char** argv) {
  if (argc < 2) throw_agreed(UsageError("evaluate_export FILE [FOLDER]"));
  const std::string folder = argc > 2 ? argv[2] : "/usr/share/datasets/fashion-mnist";
  constexpr std::int64_t kBatch = 100;
  const std::unique_ptr<Communicator> communicator = world.communicator();
  std::unique_ptr<Dataset> images;  // run_agreed(): a failure on any rank is one error of all ranks
  run_agreed(*communicator, [&] { images = open_dataset({.format = "idx", .path = folder}, Split::test); });
  const ImageShape shape = images->image_shape();
  Graph graph({.batch = kBatch,
               .height = shape.height,
               .width = shape.width,
               .channels = shape.channels,
               .classes = images->classes()});
  cnn(graph);  // the network and the normalisation of launch/presets/fashion_mnist_cnn.toml
  Network network(graph, {.mean = {0.2860}, .deviation = {0.3530}});
  run_agreed(*communicator, [&] { load_state(network, argv[1]); });
  BatchLoader loader(*images, {.rank = world.rank(), .size = world.size()},
                     {.batch = kBatch, .tail = Tail::pad});
  Stream stream(network.device(), StreamUse::compute);
  std::int32_t counts[] = {0, 0};  // correct images, all images
  for (std::int64_t step = 0; step < loader.steps_in_epoch(0); ++step) {
    network.forward(loader.next(), {.stream = stream, .mode = Mode::evaluation});
    const LossSums sums = network.loss(stream);
    counts[0] += sums.correct;
    counts[1] += sums.samples;  // without those that fill up the last batch
  }
  communicator->all_reduce(counts, std::size(counts), DType::i32, ReduceOp::sum);
  communicator->stream().synchronize();
  if (world.rank() == 0)
    fmt::print("test accuracy {:.2f} % of {} images\n", 100.0 * counts[0] / counts[1], counts[1]);
  return exit_code::done;
}

int main(int argc, char** argv) {
  return run_job([&](World& world) { return evaluate(world, argc, argv); });
}
