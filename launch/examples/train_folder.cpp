// SPDX-License-Identifier: Apache-2.0
//
// Trains a ResNet-18 on the images of FOLDER/train/CLASS/ and evaluates it on FOLDER/test/CLASS/ (or val/),
// on one GPU per rank, or on CPUs if this machine has no GPU: mpirun -np 2 train_folder FOLDER [EPOCHS]
#include "core/log.h"
#include "launch/train/job_end.h"
#include "launch/train/trainer.h"
#include "models/networks/networks.h"

using namespace lockstep;

class EpochPrinter final : public TrainingObserver {
  void epoch_over(const EpochRecord& record) override {  // on every rank; log::info() prints on rank 0
    log::info("epoch {}: train loss {:.3f}, test accuracy {:.2f} %", record.epoch, record.train_loss,
              100 * record.evaluation.value().accuracy);
  }
};

int train(World& world, const std::string& folder, std::int64_t epochs) {
  constexpr std::int64_t kBatch = 32, kSide = 128;
  const auto gpus = static_cast<int>(cuda_status().devices.size());
  const Device device = gpus == 0 ? Device{} : Device{DeviceKind::cuda, world.local_rank() % gpus};
  const std::unique_ptr<Communicator> host = world.communicator();
  const std::unique_ptr<Communicator> nccl = gpus > 0 ? world.communicator(device, *host) : nullptr;
  Communicator& communicator = gpus > 0 ? *nccl : *host;

  DatasetOptions images{.format = "image_folder", .path = folder, .images = {.channels = 3}};
  images.resize = {.size = kSide, .random_crop = true};
  const auto train_set = open_dataset(images, Split::train), test_set = open_dataset(images, Split::test);
  const std::int64_t classes = train_set->classes();
  Graph graph({.batch = kBatch, .height = kSide, .width = kSide, .channels = 3, .classes = classes});
  resnet18(graph);
  Network network(graph, {.device = device, .augmentation = {.horizontal_flip = true}});
  GradientBuckets buckets(network.parameters(), communicator, {});
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  const Shard shard{.rank = world.rank(), .size = world.size()};
  LoaderOptions loading{.batch = kBatch, .tail = Tail::exact, .threads = 4, .device = device};
  BatchLoader train_loader(*train_set, shard, loading);
  loading.tail = Tail::pad;
  BatchLoader test_loader(*test_set, shard, loading);
  const std::int64_t steps = epochs * train_loader.steps_in_epoch(0);
  Trainer trainer({network, buckets, *optimizer, train_loader, test_loader, communicator},
                  {.kind = schedule_kind("cosine"), .base = 0.05, .total_steps = steps}, {.epochs = epochs});
  EpochPrinter printer;
  return run_or_abort(world, [&] {  // a failed rank ends here, before it frees what its peers use
    trainer.fit({&printer});
    return exit_code::done;
  });
}

int main(int argc, char** argv) {
  return run_job([&](World& world) {
    return train(world, argc > 1 ? argv[1] : ".", argc > 2 ? std::stoll(argv[2]) : 30);
  });
}
