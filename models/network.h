// SPDX-License-Identifier: Apache-2.0
//
// Network: a Graph planned for a device and a batch size. Construction does everything that can be decided
// once: kernels and their layouts, one activation arena with overlapping lifetimes, one parameter arena.
// After that forward and backward allocate nothing and decide nothing.
//
// Owns activations, parameter values and running statistics. Gradients belong to GradientBuckets, which must
// be attached (it sets Parameter::gradient) before the first backward.
//
// What layers that are frozen (Graph::freeze) hold lies apart from what training moves: parameters(),
// values() and statistics() are without it, so whoever exchanges, updates, averages or keeps them never
// touches it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/buffer.h"
#include "core/parameter.h"
#include "core/state.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/backend.h"
#include "models/frozen_memory.h"
#include "models/graph.h"
#include "models/memory_plan.h"
#include "models/network_plan.h"
#include "models/pass.h"
#include "models/precision.h"

namespace lockstep {

struct NetworkOptions {
  Device device;
  Precision precision = Precision::fp32;
  std::uint64_t seed = 1;
  // Input normalisation per channel; see ImageInput.
  std::vector<double> mean;
  std::vector<double> deviation;
  // Of the images, in training only; its key is made of the seed.
  Augmentation augmentation;
  // Of the training loss; evaluation has none. See SoftmaxCrossEntropy.
  double label_smoothing = 0;
  // The insides of the graph's blocks are computed again in backward instead of being kept: the same bits,
  // less memory, more time.
  Recompute recompute = Recompute::nothing;
  MemorySharing sharing = MemorySharing::planned;
  // How many ranks normalise their batches together (synchronised batch norm); training passes then need
  // Pass::across.
  int batch_norm_ranks = 1;
  // Which kernels compute it; those that have no choice yet get one. Null: the first candidate of each.
  KernelChoices* choices = nullptr;
};

// Bytes.
struct MemoryPlan {
  std::size_t activations = 0;           // the arena
  std::size_t activations_unshared = 0;  // what it would be if nothing shared memory
  std::size_t activations_kept = 0;      // what it would be if nothing were recomputed
  std::size_t workspace = 0;             // of the arena: what a kernel needs while it runs
  std::size_t parameters = 0;            // that are trained; so are the next three's
  std::size_t weight_copies = 0;         // in half precision: what layers compute with
  std::size_t gradients = 0;   // of the parameters, in the types backward writes; not the network's own
  std::size_t statistics = 0;  // training's and evaluation's, and what training's were before the step
  std::size_t frozen = 0;      // of frozen layers: parameters, running statistics, and copies
};

class Network {
 public:
  // Throws ConfigError for a graph without logits, or a device that was not built.
  Network(const Graph& graph, const NetworkOptions& options);
  Network(Network&&) = delete;  // parameters and bindings point into it

  Device device() const { return options_.device; }
  Precision precision() const { return options_.precision; }
  Backend& backend() { return backend_; }
  std::int64_t batch() const { return input_.batch; }
  const MemoryPlan& memory() const { return memory_; }
  // The memory of a network without making it: what has a choice of kernels that is not made yet is taken to
  // use the first.
  static MemoryPlan planned_memory(const Graph& graph, const NetworkOptions& options);
  const NetworkPlan& plan() const { return plan_; }
  // The planned layers, in forward order.
  std::span<const PlannedNode> nodes() const { return plan_.nodes; }

  // Those that are trained, with ascending offsets: in half precision those with half gradients first, each
  // type in the order backward finishes gradients.
  std::span<Parameter> parameters() { return parameters_; }
  // Of one of nodes(): indices of its parameters; none where it is frozen.
  std::span<const std::size_t> parameters_of(std::size_t node) const { return parameters_of_[node]; }
  // The parameter arena, padding included: parameters()[i] lies at its offset.
  std::span<float> values() const;
  // The half copies of weights that layers compute with; empty in fp32. An optimizer keeps them true to the
  // values; whoever else writes values calls copy_weights.
  FlatRange weight_copies() const;
  void copy_weights(Stream& stream);
  // What frozen layers hold, parameters and running statistics, padding included. Who writes it calls
  // copy_weights, too.
  std::span<float> frozen() const { return frozen_.values(); }
  // All running statistics as one piece, padding included; empty without batch norm. Training moves a rank's
  // own; evaluation reads a copy, and leaves both alone.
  std::span<float> statistics() const;
  std::span<float> evaluation_statistics() const;
  // Copies training's to evaluation's. Whoever trains does it before an evaluation or an export, and then
  // takes their mean over ranks where there are several.
  void copy_statistics(Stream& stream);
  // Remembers the running statistics, and brings them back: at once, or if the step is skipped that control
  // tells of.
  void keep_statistics(Stream& stream);
  void restore_statistics(Stream& stream);
  void restore_statistics_if_skipped(Stream& stream, const StepControl* control);
  // Remembers these as what they were, unless the step is skipped; undefined afterwards.
  void keep_unless_skipped(Stream& stream, const StepControl* control, std::span<float> statistics);
  // Of the layer that makes the logits: the prefix of its parameters' names, without the dot.
  const std::string& head() const { return head_; }
  // In forward order, by PyTorch's names: the parameters, frozen ones among them, and as replicated the
  // statistics that evaluation reads. Then, as each rank's own, those that training moves, by the same names.
  // No work on the network may be under way.
  void visit_state(StateVisitor& visitor);

  // Forward through the loss. The batch, all of it in the device's memory, must stay valid until the stream
  // has passed; only training with dropout or augmentation needs its samples.
  void forward(const Batch& batch, const Pass& pass);
  // Backward of the last forward, which must have been in training mode.
  void backward(const Pass& pass);
  // What the last forward's batch contributed; waits for the stream.
  LossSums loss(Stream& stream) const;
  // The same without waiting: to host memory, in stream order.
  void copy_loss(Stream& stream, LossSums* host) const;
  // For whoever observes a pass: what a layer has just made. Behind forward its outputs, behind
  // backward_parameters the gradients of its parameters, behind backward_inputs those of its inputs. Layers
  // that run later may use the same memory.
  std::vector<FlatRange> made_by(std::size_t node, Direction direction) const;
  // [batch, classes] of the last forward, in the device's memory and the network's precision.
  Tensor logits() const;

 private:
  void place_parameters();
  void place_state();
  void bind_memory();
  std::byte* block_data(int block) const;  // null for block -1
  void recompute(const NodeRange& block, const Pass& pass);
  void initialize();
  void take_samples(const Batch& batch, const Pass& pass);
  // The batch's images, or to train with, what ColorJitter makes of them.
  const void* colored(const Batch& batch, const Pass& pass);

  NetworkOptions options_;
  GraphInput input_;
  std::string head_;
  Backend& backend_;
  NetworkPlan plan_;
  std::vector<LayerMemory> bindings_;                    // by node
  std::vector<std::vector<std::size_t>> parameters_of_;  // by node: indices of its parameters
  std::vector<Parameter> parameters_;
  std::vector<StateTensor> state_;           // in forward order, with evaluation's statistics
  std::vector<StateTensor> own_statistics_;  // training's
  MemoryPlan memory_;
  FrozenMemory frozen_;
  Buffer activation_arena_;
  Buffer parameter_arena_;
  Buffer copy_arena_;
  std::int64_t copied_elements_ = 0;  // the first of the flat order
  Buffer statistics_arena_;
  Buffer kept_statistics_;
  Buffer evaluation_statistics_;
  Buffer loss_;
  Buffer loss_scratch_;
  Buffer samples_;  // SampleId [batch]
  Buffer shares_;   // fp32 [batch], where images are mixed
  Buffer colored_;  // u8 as the batch's images, where their color is drawn
};

}  // namespace lockstep
