// SPDX-License-Identifier: Apache-2.0
//
// Training: the parts of a run, built from a Config in the order they depend on each other. What `lockstep
// train`, `lockstep plan` and `lockstep profile` share.
#pragma once

#include <memory>
#include <optional>

#include "comm/buckets.h"
#include "comm/communicator_gather.h"
#include "comm/world.h"
#include "core/timeline.h"
#include "data/batch_loader.h"
#include "data/dataset.h"
#include "launch/config.h"
#include "launch/device_choice.h"
#include "launch/memory_need.h"
#include "launch/trainer.h"
#include "models/network.h"
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

// Collective. Errors are agreed by all ranks. Ranks agree over `host`, a communicator of host memory that
// outlives this; gradients are reduced by it, too, or by one of the devices that this makes.
class Training {
 public:
  struct Options {
    std::string init;    // safetensors to start from, rank 0's for all; empty: random
    bool trace = false;  // record a timeline
    Registry registry = {};
  };
  Training(const Config& config, World& world, Communicator& host, const Options& options);

  Dataset& train_set() { return *train_set_; }
  Dataset& test_set() { return *test_set_; }
  const Graph& graph() const { return *graph_; }
  Network& network() { return *network_; }
  GradientBuckets& buckets() { return *buckets_; }
  Optimizer& optimizer() { return *optimizer_; }
  BatchLoader& train_loader() { return *train_loader_; }
  BatchLoader& test_loader() { return *test_loader_; }
  const KernelChoices& kernels() const { return kernels_; }
  // With train.reproducible; else null.
  StepStatistics* step_statistics() { return step_statistics_.get(); }
  Timeline* timeline() { return timeline_.get(); }
  // How far training goes: all epochs, or as much of them as train.steps allows.
  struct Length {
    std::int64_t epochs = 0;  // that are begun
    std::int64_t steps = 0;
  };
  Length length() const;
  // Of that length; its warm-up and milestones are where train.epochs puts them.
  Schedule schedule() const;
  int threads() const { return threads_; }
  // Of the batches that a Trainer copies to a GPU.
  std::size_t device_batch_bytes() const { return device_batch_bytes(config_.train.batch); }
  // What a Trainer works with; valid as long as this and `host` are.
  Trainer::Parts parts(LayerObserver* observer = nullptr);

 private:
  // Optimizer steps of all epochs.
  std::int64_t steps_of_epochs() const;
  void open_data(const World& world, Device device);
  Graph build_graph(std::int64_t batch) const;
  NetworkOptions network_options();
  void plan_network();
  std::size_t device_batch_bytes(std::int64_t batch) const;
  // Without allocating it.
  MemoryNeed memory_need(std::int64_t batch);
  std::size_t sums_bytes(const MemoryPlan& plan) const;
  void require_memory();
  [[noreturn]] void throw_shortage(std::size_t available);
  // Says more of memory that ran out than which allocation it was.
  void within_memory(const std::function<void()>& work);
  void connect(World& world, const DeviceChoice& choice);

  Config config_;
  Registry registry_;
  Communicator& host_;
  Communicator* communicator_;
  std::unique_ptr<Communicator> device_communicator_;
  std::unique_ptr<Communicator> layers_communicator_;  // where batch norm is synchronised
  std::optional<CommunicatorGather> across_;           // over that
  std::unique_ptr<Dataset> train_set_;
  std::unique_ptr<Dataset> test_set_;
  std::unique_ptr<BatchLoader> train_loader_;
  std::unique_ptr<BatchLoader> test_loader_;
  std::unique_ptr<Timeline> timeline_;
  KernelChoices kernels_;
  std::optional<Graph> graph_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<StepStatistics> step_statistics_;
  std::unique_ptr<Optimizer> optimizer_;
  int threads_ = 1;
  Device device_;
  int sharing_ = 1;                  // ranks that share the device's memory
  std::size_t memory_at_start_ = 0;  // of the device, for each of them
};

}  // namespace lockstep
