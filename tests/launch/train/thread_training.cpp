// SPDX-License-Identifier: Apache-2.0
#include "tests/launch/train/thread_training.h"

#include <algorithm>

#include "comm/communicator_gather.h"
#include "launch/train/digest.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/grays.h"
#include "tests/launch/train/state_of.h"

namespace lockstep {
namespace {

TrainedRank train_rank(const ThreadTraining& training, const Dataset& dataset, Communicator& communicator,
                       Communicator& for_layers) {
  const Grays evaluated(training.image, std::min(training.samples, kMostEvaluated));
  Graph graph({.batch = training.batch,
               .height = training.image.height,
               .width = training.image.width,
               .channels = training.image.channels,
               .classes = dataset.classes()});
  if (training.build != nullptr)
    training.build(graph);
  else if (kOneOf > 1 && training.network.name == "resnet20")
    cifar_resnet(graph, 1);
  else
    build_network(graph, training.network);
  backend_for({}).set_threads(1);  // for this rank
  KernelChoices first;             // no timed choices: all trainings must round alike
  Network network(graph, {.precision = training.precision,
                          .seed = training.seed,
                          .augmentation = training.augmentation,
                          .label_smoothing = training.label_smoothing,
                          .recompute = training.recompute,
                          .batch_norm_ranks = training.sync_batch_norm ? training.ranks : 1,
                          .choices = &first});
  BucketOptions bucket_options = training.buckets;
  bucket_options.micro_batches = training.accumulation;
  bucket_options.along_tree = training.reproducible;
  GradientBuckets buckets(network.parameters(), communicator, bucket_options);
  StepStatistics step_statistics(network, communicator, training.accumulation);
  const auto optimizer =
      make_optimizer(trained_memory(network, buckets.gradients()), training.optimizer, training.loss_scale);
  const Shard shard{.rank = communicator.rank(), .size = communicator.size()};
  BatchLoader train(dataset, shard,
                    {.batch = training.batch,
                     .accumulation = training.accumulation,
                     .tail = training.tail,
                     .seed = training.seed,
                     .threads = 2});
  BatchLoader test(evaluated, shard, {.batch = training.batch, .tail = Tail::pad});
  CommunicatorGather across(for_layers);
  Trainer trainer({.network = network,
                   .buckets = buckets,
                   .optimizer = *optimizer,
                   .train = train,
                   .test = test,
                   .communicator = communicator,
                   .across = training.sync_batch_norm ? &across : nullptr,
                   .step_statistics = training.reproducible ? &step_statistics : nullptr},
                  {.base = training.learning_rate},
                  {.accumulation = training.accumulation,
                   .average_every = training.average_every,
                   .average_after = training.average_after,
                   .clip_norm = training.clip_norm,
                   .max_skipped_steps = training.max_skipped_steps,
                   .last_good = training.last_good});
  for (int step = 1; step <= training.steps; ++step) {
    trainer.step();
    if (training.after_step) training.after_step(communicator.rank(), step, trainer, network, *optimizer);
  }
  const Evaluation evaluation = trainer.evaluate();  // averages the running statistics over the ranks
  return {.digest = digest(network, *optimizer), .evaluation = evaluation};
}

}  // namespace

std::vector<TrainedRank> train_on_threads(const ThreadTraining& training) {
  const Grays dataset(training.image, training.samples);
  std::vector<TrainedRank> trained(static_cast<std::size_t>(training.ranks));
  const std::shared_ptr<ThreadHub> layers_hub = make_thread_hub(training.ranks);
  run_thread_ranks(
      training.ranks,
      [&](Communicator& communicator) {
        const auto for_layers = make_thread_communicator(layers_hub, communicator.rank());
        trained[static_cast<std::size_t>(communicator.rank())] =
            train_rank(training, dataset, communicator, *for_layers);
      },
      training.node_of);
  return trained;
}

// If two statistics have the same name, the rank's own comes last.
TrainedState trained_state(Network& network) {
  TrainedState values;
  const StateCopy state = state_of(network);
  for (const auto& tensor : state.tensors) values[tensor.name] = tensor.values;
  return values;
}

std::map<int, TrainedState> states_after(ThreadTraining training, const std::vector<int>& steps) {
  std::map<int, TrainedState> states;
  training.steps = *std::ranges::max_element(steps);
  training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
    if (rank == 0 && std::ranges::count(steps, step) > 0) states[step] = trained_state(network);
  };
  train_on_threads(training);
  return states;
}

}  // namespace lockstep
