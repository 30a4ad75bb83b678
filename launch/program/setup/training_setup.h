// SPDX-License-Identifier: Apache-2.0
//
// TrainingSetup: builds the parts of a run from a Config, in the order of their dependencies. `lockstep
// train`, `lockstep plan` and `lockstep profile` share it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/communicator_gather.h"
#include "comm/gradients/buckets.h"
#include "comm/world.h"
#include "core/timeline.h"
#include "launch/observe/account/advice.h"
#include "launch/program/config/config.h"
#include "launch/program/devices/device_choice.h"
#include "launch/program/devices/memory_need.h"
#include "launch/program/plan/step_trace.h"
#include "launch/program/setup/network_planning.h"
#include "launch/program/setup/rank_memory.h"
#include "launch/program/setup/training_data.h"
#include "launch/program/setup/training_length.h"
#include "launch/train/trainer.h"
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

// Collective. Errors are agreed. `host`, a communicator of host memory, outlives this. Gradients are reduced
// by `host` or, on GPUs, by a communicator that this makes.
class TrainingSetup {
 public:
  struct Options {
    std::string init;          // safetensors file with initial weights, read by rank 0; empty: random
    bool trace = false;        // record a timeline
    std::string kernels = {};  // kernels to reuse: see NetworkPlanning::prefer(); empty: none
    Registry registry = {};
    Datasets datasets = {};  // shared with another training on the same data; null: opens and compares them
    bool computes = true;    // false: reads no images and does not touch a CPU's activations
    bool trains = true;      // false: accepts batches in which batch norm cannot be trained
  };
  TrainingSetup(const Config& config, World& world, Communicator& host, const Options& options);
  TrainingSetup(TrainingSetup&&) = delete;  // members refer to each other

  const Datasets& datasets() const { return data_->sets; }
  // How images reach the loaders, for the log; empty if there was no choice.
  const std::string& told_of_data() const { return told_of_data_; }
  // True if the training images are kept in memory, decoded.
  bool keeps_images() const { return keeps_images_; }
  // On rank 0, the note of load_state(); empty if there is none.
  const std::string& told_of_weights() const { return told_of_weights_; }
  // GPUs that are visible to this job but that no rank uses: "4 of 8 on node7"; empty: none.
  const std::string& unused_devices() const { return unused_devices_; }
  Dataset& train_set() { return *data_->sets.train; }
  Dataset& test_set() { return *data_->sets.test; }
  const Graph& graph() const { return planning_->graph(); }
  Network& network() { return *network_; }
  GradientBuckets& buckets() { return *buckets_; }
  Optimizer& optimizer() { return *optimizer_; }
  BatchLoader& train_loader() { return *data_->train_loader; }
  BatchLoader& test_loader() { return *data_->test_loader; }
  // Null without train.reproducible.
  StepStatistics* step_statistics() { return step_statistics_.get(); }
  Timeline* timeline() { return timeline_.get(); }
  TrainingLength length() const;
  // The schedule for length(). Warm-up and milestones depend on train.epochs, the learning rate on the global
  // batch.
  Schedule schedule() const;
  // schedule() of another configuration with the same data.
  Schedule schedule_of(const Config& config, std::int64_t global_batch) const;
  int threads() const { return threads_; }
  // Cores that the ranks of this node may use.
  int node_cores() const { return node_cores_; }
  // Threads with which the network was planned.
  int planned_threads() const { return planned_threads_; }
  // The network's kernels, as text.
  std::string kernels() const { return planning_->choices(); }
  // Call after setting the backend's threads.
  void set_threads(int threads) { threads_ = threads; }
  // The choice of train.recompute = "auto" or "least", for the log; empty if it is set to another value.
  std::string told_of_recompute() const;
  // Memory of the batches that a Trainer copies to a GPU.
  std::size_t device_batch_bytes() const { return data_->device_bytes(config_.loader.batch); }
  // Memory of a Trainer's averaged parameters.
  std::size_t average_bytes() const { return planned_average_need(config_, network_->memory()); }
  // Memory of codecs on a rank; with "auto", an estimate of the maximum over the candidates.
  std::size_t codec_bytes() const;
  // The largest planned batch, up to `most` samples, that fits this rank's memory; 0: none. Leaves a tenth of
  // a CPU's memory free, because Linux kills a process that takes all of it, and room for libraries on a GPU,
  // by what they have allocated so far: call it after some steps.
  std::int64_t largest_batch(std::int64_t most) const;
  // True if 16-bit precision would compute faster but is not used.
  bool halves_are_fast() const;
  // Input for advice on communication, without measurements.
  AdviceContext advice_context(const World& world) const;
  // Checks if micro-batches of this size fit the memory that was free at the start, and finds settings that
  // make them fit.
  BatchRoom room_for(std::int64_t batch, const World& world) const;
  // The parts of a Trainer; valid as long as this and `host`.
  Trainer::Parts parts(LayerObserver* observer = nullptr);

 private:
  const OptimizerKind& optimizer_kind() const {
    return lockstep::optimizer_kind(config_.optimizer.name, registry_.optimizers);
  }
  void prepare_data(World& world, const DeviceChoice& choice, bool reads_images);
  void prepare_plan(const World& world, const DeviceChoice& choice);
  // Collective. Chooses what train.recompute = "auto" recomputes.
  void keep_to_limit(const World& world);
  void choose_recompute(const World& world);
  // The budget's memory, without the part of the free memory that largest_batch() leaves free.
  std::size_t usable_memory() const;
  // Bytes of the device's memory that images, and on a CPU batches, take.
  std::size_t held_bytes(Device device) const;
  // Computes the need without allocating.
  MemoryNeed memory_need(NetworkPlanning& planning, std::int64_t batch, const World& world) const;
  void connect(World& world, const DeviceChoice& choice);
  TracedRun traced_run(const World& world) const;

  Config config_;
  Registry registry_;
  Communicator& host_;
  Communicator* communicator_;
  std::unique_ptr<Communicator> device_communicator_;
  std::unique_ptr<Communicator> layers_communicator_;  // for synchronised batch norm; else null
  std::optional<CommunicatorGather> across_;           // uses layers_communicator_
  std::optional<TrainingData> data_;
  std::string told_of_data_, told_of_weights_;
  bool keeps_images_ = false;
  std::string unused_devices_;
  std::unique_ptr<Timeline> timeline_;
  std::optional<NetworkPlanning> planning_;
  std::optional<MemoryBudget> budget_;
  std::size_t free_memory_ = 0;  // of the device, for this rank, before the network was planned
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
