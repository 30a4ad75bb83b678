// SPDX-License-Identifier: Apache-2.0
//
// Network: a Graph planned for a device and a batch size. The constructor decides everything once: kernels
// and their layouts, one activation arena with overlapping lifetimes, one parameter arena. After that,
// forward and backward allocate nothing.
//
// Owns activations, parameter values and running statistics. GradientBuckets own the gradients and must be
// attached (they set Parameter::gradient) before the first backward.
//
// The memory of frozen layers (Graph::freeze) is separate: parameters(), values() and statistics() exclude
// it, so code that exchanges, updates, averages or saves them never touches it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/state.h"
#include "core/stream.h"
#include "core/tensor/batch.h"
#include "core/tensor/buffer.h"
#include "core/tensor/parameter.h"
#include "core/tensor/tensor.h"
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
  // Augmentation of training images; its key is derived from seed. With GraphInput::masks it must not crop,
  // flip or mix images.
  Augmentation augmentation;
  // Label smoothing of the training loss; evaluation uses none. See SoftmaxCrossEntropy.
  double label_smoothing = 0;
  // Values that backward computes again instead of keeping them: the same bits, less memory, more time. Must
  // not be open: see chosen_recompute().
  Recompute recompute = Recompute::nothing;
  MemorySharing sharing = MemorySharing::planned;
  // The number of ranks that normalise their batches together (synchronised batch norm). Above 1, training
  // passes need Pass::across.
  int batch_norm_ranks = 1;
  // The choices of kernels; missing ones are made and added. Null: the first candidate of each.
  KernelChoices* choices = nullptr;
  // False for a network that is only described: it cannot compute, and activations take no memory of a CPU.
  bool computes = true;
};

// Bytes.
struct MemoryPlan {
  // The arena, images after color jitter and, with masks, labels, weights and losses of pixels.
  std::size_t activations = 0;
  std::size_t activations_unshared = 0;  // the same if no tensors shared memory
  std::size_t activations_kept = 0;      // the same if nothing were recomputed
  std::size_t workspace = 0;             // part of the arena: scratch memory of kernels
  std::size_t parameters = 0;            // of trained layers, like the next three
  std::size_t weight_copies = 0;         // in half precision: the copies that layers compute with
  std::size_t gradients = 0;             // in the types that backward writes; not owned by the network
  std::size_t statistics = 0;            // of training, of evaluation, and saved from before the step
  std::size_t frozen = 0;                // of frozen layers: parameters, running statistics, and copies
};

class Network {
 public:
  // Throws what plan_network() throws, and ConfigError for a device that was not built.
  Network(const Graph& graph, const NetworkOptions& options);
  Network(Network&&) = delete;  // parameters and bindings point into it

  Device device() const { return options_.device; }
  Precision precision() const { return options_.precision; }
  Backend& backend() { return backend_; }
  std::int64_t batch() const { return input_.batch; }
  std::int64_t classes() const { return input_.classes; }
  Loss loss_kind() const { return input_.loss; }
  const MemoryPlan& memory() const { return memory_; }
  // The memory that a network would need, without creating it. A missing kernel choice is assumed to be the
  // first candidate.
  static MemoryPlan planned_memory(const Graph& graph, const NetworkOptions& options);
  // Chooses the recomputation with the least work with which activations take at most this many bytes; if
  // they cannot, the choice with the least memory. Ignores options.recompute; kernels as for
  // planned_memory().
  static Recompute chosen_recompute(const Graph& graph, const NetworkOptions& options,
                                    std::size_t most_activations);
  const Recompute& recomputes() const { return options_.recompute; }
  const NetworkPlan& plan() const { return plan_; }
  // The planned layers, in forward order.
  std::span<const PlannedNode> nodes() const { return plan_.nodes; }

  // The trained parameters, in ascending order of offsets: in half precision those with half gradients first,
  // and within each type in the order in which backward finishes gradients.
  std::span<Parameter> parameters() { return parameters_; }
  // Indices into parameters() of the parameters of nodes()[node]; empty if it is frozen.
  std::span<const std::size_t> parameters_of(std::size_t node) const { return parameters_of_[node]; }
  // The parameter arena, including padding: parameters()[i] is at its offset.
  std::span<float> values() const;
  // Moves the arena to this memory of the device, of the same size; earlier pointers to values are invalid.
  void move_values(Buffer memory);
  // The half copies of weights that layers compute with; empty in fp32. The optimizer updates them with the
  // values; other code that writes values must call copy_weights.
  FlatRange weight_copies() const;
  void copy_weights(Stream& stream);
  // The same, after a change of values() only.
  void copy_trained_weights(Stream& stream);
  // Parameters and running statistics of frozen layers, including padding. Code that writes them must call
  // copy_weights.
  std::span<float> frozen() const { return frozen_.values(); }
  // All running statistics as one range, including padding; empty without batch norm. Training updates the
  // rank's own; evaluation reads a copy and updates neither.
  std::span<float> statistics() const;
  std::span<float> evaluation_statistics() const;
  // Copies the training statistics to the evaluation statistics. The training loop calls it before an
  // evaluation or an export, and then averages them over the ranks.
  void copy_statistics(Stream& stream);
  // Saves the running statistics, and restores them: unconditionally, or if control says that the step is
  // skipped.
  void keep_statistics(Stream& stream);
  void restore_statistics(Stream& stream);
  void restore_statistics_if_skipped(Stream& stream, const StepControl* control);
  // Saves these statistics for later restores, unless the step is skipped; their contents are undefined
  // afterwards.
  void keep_unless_skipped(Stream& stream, const StepControl* control, std::span<float> statistics);
  // The name of the layer that computes the logits: the prefix of its parameters' names, without the dot.
  const std::string& head() const { return head_; }
  // Visits, in forward order under PyTorch's names, the parameters (including frozen ones) and the evaluation
  // statistics as replicated state, then the training statistics as per-rank state under the same names. No
  // work on the network may be pending.
  void visit_state(StateVisitor& visitor);

  // Forward, including the loss. The batch lies in the device's memory and must stay valid until the stream
  // has finished. batch.samples is only needed for training with dropout or augmentation.
  void forward(const Batch& batch, const Pass& pass);
  // Backward of the last forward, which must have been in training mode.
  void backward(const Pass& pass);
  // The loss sums of the last forward; waits for the stream.
  LossSums loss(Stream& stream) const;
  // Copies the loss sums to host memory in stream order, without waiting.
  void copy_loss(Stream& stream, LossSums* host) const;
  // For observers of a pass: the tensors that a layer has just written. After forward its outputs, after
  // backward_parameters the gradients of its parameters, after backward_inputs those of its inputs. Later
  // layers may reuse the memory.
  std::vector<FlatRange> made_by(std::size_t node, Direction direction) const;
  // The logits [rows, classes], or [rows, 1] (see OutputLoss), of the last forward, in the device's memory
  // and the network's storage type; backward may overwrite them. Rows: samples, or with masks pixels, image
  // by image.
  Tensor logits() const;
  // True if each pixel has a label: GraphInput::masks.
  bool has_masks() const { return input_.masks; }
  // The rows of an image: 1, or its pixels.
  std::int64_t rows_per_sample() const { return input_.masks ? input_.height * input_.width : 1; }
  // Labels i32 and weights f32 of the rows in the last forward, which was of this batch.
  struct Targets {
    const std::int32_t* labels;
    const float* weights;
  };
  Targets targets(const Batch& batch) const;

 private:
  void place_parameters();
  void place_state();
  void bind_memory();
  std::byte* block_data(int block) const;  // null for block -1
  void recompute(const NodeRange& range, const Pass& pass);
  void initialize();
  void compute_loss(const Batch& batch, const Pass& pass);
  void take_samples(const Batch& batch, const Pass& pass);
  // The batch's images, or in training the output of ColorJitter.
  const void* colored(const Batch& batch, const Pass& pass);

  NetworkOptions options_;
  GraphInput input_;
  std::string head_;
  Backend& backend_;
  NetworkPlan plan_;
  std::vector<LayerMemory> bindings_;                    // by node
  std::vector<std::vector<std::size_t>> parameters_of_;  // indices into parameters_, by node
  std::vector<Parameter> parameters_;
  std::vector<StateTensor> state_;           // in forward order, with the evaluation statistics
  std::vector<StateTensor> own_statistics_;  // training statistics
  MemoryPlan memory_;
  FrozenMemory frozen_;
  Buffer activation_arena_;
  Buffer parameter_arena_;
  Buffer copy_arena_;
  std::int64_t copied_elements_ = 0;  // number of elements with copies, from the start of the flat order
  Buffer statistics_arena_;
  Buffer kept_statistics_;
  Buffer evaluation_statistics_;
  Buffer loss_;
  Buffer loss_scratch_;
  Buffer samples_;                       // SampleId [batch]
  Buffer shares_;                        // fp32 [batch], if images are mixed
  Buffer pixel_labels_, pixel_weights_;  // of all rows, if there are masks
  Buffer colored_;                       // u8, same size as the batch's images, if color jitter is used
};

}  // namespace lockstep
