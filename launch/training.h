// SPDX-License-Identifier: Apache-2.0
//
// Training: the parts of a run, built from a Config in the order they depend on each other. What `lockstep
// train`, `lockstep plan` and `lockstep profile` share.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/buckets.h"
#include "comm/communicator_gather.h"
#include "comm/world.h"
#include "core/timeline.h"
#include "launch/config/config.h"
#include "launch/devices/device_choice.h"
#include "launch/devices/memory_need.h"
#include "launch/network_planning.h"
#include "launch/plan/step_trace.h"
#include "launch/trainer.h"
#include "launch/training_data.h"
#include "launch/training_length.h"
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

// Collective. Errors are agreed by all ranks. Ranks agree over `host`, a communicator of host memory that
// outlives this; gradients are reduced by it, too, or by one of the devices that this makes.
class Training {
 public:
  struct Options {
    std::string init;          // safetensors to start from, rank 0's for all; empty: random
    bool trace = false;        // record a timeline
    std::string kernels = {};  // to use again: see NetworkPlanning::prefer(); empty: none
    Registry registry = {};
    Datasets datasets = {};    // of another training on the same data; null: opened and compared over ranks
    bool reads_images = true;  // false: who trains nothing has room for a set on the device, and no set
  };
  Training(const Config& config, World& world, Communicator& host, const Options& options);
  Training(Training&&) = delete;  // parts refer to each other

  const Datasets& datasets() const { return data_->sets; }
  // How images come to the loaders, for people; empty where there was nothing to choose.
  const std::string& told_of_data() const { return told_of_data_; }
  // GPUs that this job sees and no rank uses: "4 of 8 on node7"; empty: none.
  const std::string& unused_devices() const { return unused_devices_; }
  Dataset& train_set() { return *data_->sets.train; }
  Dataset& test_set() { return *data_->sets.test; }
  const Graph& graph() const { return planning_->graph(); }
  Network& network() { return *network_; }
  GradientBuckets& buckets() { return *buckets_; }
  Optimizer& optimizer() { return *optimizer_; }
  BatchLoader& train_loader() { return *data_->train_loader; }
  BatchLoader& test_loader() { return *data_->test_loader; }
  // With train.reproducible; else null.
  StepStatistics* step_statistics() { return step_statistics_.get(); }
  Timeline* timeline() { return timeline_.get(); }
  TrainingLength length() const;
  // Of that length; its warm-up and milestones are where train.epochs puts them, and its rate is that for the
  // samples of all ranks' steps.
  Schedule schedule() const { return schedule_of(config_); }
  // The schedule of another configuration with the same data and global batch.
  Schedule schedule_of(const Config& config) const;
  int threads() const { return threads_; }
  // That the ranks of this node may use.
  int node_cores() const { return node_cores_; }
  // That the network was planned with.
  int planned_threads() const { return planned_threads_; }
  // Of the network, as text.
  std::string kernels() const { return planning_->choices(); }
  // Whoever sets the backend's says so here.
  void set_threads(int threads) { threads_ = threads; }
  // Of the batches that a Trainer copies to a GPU.
  std::size_t device_batch_bytes() const { return data_->device_bytes(config_.loader.batch); }
  // Of the average of parameters that a Trainer keeps.
  std::size_t average_bytes() const { return average_bytes(network_->memory()); }
  // What codecs hold on a rank; of those that "auto" may choose, about the most.
  std::size_t codec_bytes() const;
  // By plan, the largest batch of at most so many samples that a rank's memory has room for; 0: none. A tenth
  // of a CPU's is left: a process that takes all of it is killed. A GPU's has room for libraries, too, by
  // what they have taken so far: best asked after some steps.
  std::int64_t largest_batch(std::int64_t most) const;
  // Whether 16 bits would be computed with faster, and are not.
  bool halves_are_fast() const;
  // What advice on communication depends on, beside what was measured.
  AdviceContext advice_context(const World& world) const;
  // Whether micro-batches of so many samples have room in what there was at the start, and what would make
  // it.
  BatchRoom room_for(std::int64_t batch, const World& world) const;
  // What a Trainer works with; valid as long as this and `host` are.
  Trainer::Parts parts(LayerObserver* observer = nullptr);

 private:
  const OptimizerKind& optimizer_kind() const {
    return lockstep::optimizer_kind(config_.optimizer.name, registry_.optimizers);
  }
  void prepare_data(World& world, const DeviceChoice& choice, bool reads_images);
  void prepare_plan(const World& world, const DeviceChoice& choice);
  // Without allocating it.
  MemoryNeed memory_need(NetworkPlanning& planning, std::int64_t batch, const World& world) const;
  std::size_t sums_bytes(const MemoryPlan& plan, Device device) const;
  std::size_t average_bytes(const MemoryPlan& plan) const;
  std::size_t codec_bytes_for(const MemoryPlan& plan, const World& world) const;
  void connect(World& world, const DeviceChoice& choice);
  TracedRun traced_run(const World& world) const;

  Config config_;
  Registry registry_;
  Communicator& host_;
  Communicator* communicator_;
  std::unique_ptr<Communicator> device_communicator_;
  std::unique_ptr<Communicator> layers_communicator_;  // where batch norm is synchronised
  std::optional<CommunicatorGather> across_;           // over that
  std::optional<TrainingData> data_;
  std::string told_of_data_;
  std::string unused_devices_;
  std::unique_ptr<Timeline> timeline_;
  std::optional<NetworkPlanning> planning_;
  std::optional<MemoryBudget> budget_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<StepStatistics> step_statistics_;
  std::unique_ptr<Optimizer> optimizer_;
  int threads_ = 1;
  int node_cores_ = 1;
  std::size_t planned_codec_bytes_ = 0;
  int planned_threads_ = 1;
};

}  // namespace lockstep
