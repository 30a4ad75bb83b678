// SPDX-License-Identifier: Apache-2.0
//
// LocalSgd: ranks train separately and average parameters every H steps. In a local step a rank applies its
// own gradients, the mean over its own samples, and exchanges nothing. In an averaging step it then subtracts
// the last average from its parameters, sends the difference through the buckets' exchange in place of
// gradients, and adds the mean over ranks to the last average: all ranks have the same bits again. Optimizer
// moments (momentum, AdamW's) stay each rank's own and are not averaged, as in post-local SGD (Lin, Stich,
// Patel, Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", 2020) and in PyTorch's PostLocalSGDOptimizer.
//
// The difference has the gradients' type, fp32 or 16-bit. A codec's unsent part is added to the next
// difference.
//
// Evaluations, exports and digests use the average of all ranks' parameters, also between two averaging
// steps; training continues with each rank's own. This average is a dense sum over ranks and does not change
// training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "comm/gradients/buckets.h"
#include "core/state.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "launch/train/step/step_kind.h"
#include "models/network.h"

namespace lockstep {

class LocalSgd {
 public:
  // Collective. All outlive this; the communicator is the buckets'.
  LocalSgd(Network& network, GradientBuckets& buckets, Communicator& communicator,
           const LocalSgdOptions& options);
  // Memory for this size of fp32 parameters.
  static std::size_t planned_bytes(std::size_t parameter_bytes) { return 2 * parameter_bytes; }

  // True if ranks may have different parameters before this step.
  bool apart_before(std::int64_t step) const;

  // Call before a step, outside of recorded work: restores the rank's own parameters after show_average().
  // Before the first local step it remembers the parameters as the last average, and drops what codecs have
  // not sent of gradients, because that is no difference of parameters.
  void begin_step(Stream& compute, std::int64_t step);
  // Collective; call after the optimizer of an averaging step; may be recorded. moments: see
  // GradientBuckets::begin. If the sum of the differences is not finite, every rank gets the last average.
  void average(Stream& compute, StepSlot slot, std::span<BucketMoments> moments);
  // True if the last average() with this slot was finite; the same on every rank. The device has completed
  // it.
  bool averaged(StepSlot slot) const { return flags()[slot.index] != 0; }

  // Collective; call before the step of that number. The network holds the average until begin_step().
  void show_average(Stream& compute, std::int64_t step);
  // Call after show_average(): makes this average the last average.
  void remember_average(Stream& compute);
  // Gives the network the last average until begin_step().
  void show_last_average(Stream& compute);

  // Gives the network this rank's own parameters again, if it has an average.
  void leave_average(Stream& compute);

  // Visits each rank's own parameters, under the network's names, and the last average: after show_average(),
  // or with a visitor that writes after leave_average(), which may have written to the network. begin_step()
  // then puts the written parameters into the network. Waits for the stream.
  void visit_state(StateVisitor& visitor, Stream& compute);

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(network_.values().size()); }
  std::size_t bytes() const { return network_.values().size_bytes(); }
  std::int32_t* flags() const { return reinterpret_cast<std::int32_t*>(finite_by_slot_.data()); }
  struct OnDevice {
    std::int32_t finite = 0;              // 1: the last average was finite
    std::int32_t largest_difference = 0;  // see LargestMagnitude
    float scale = 1;                      // of differences during the exchange
    float inverse = 1;
  };
  OnDevice* on_device() const { return reinterpret_cast<OnDevice*>(device_.data()); }
  std::int32_t* finite() const { return &on_device()->finite; }

  void scale(Stream& compute, float* values, float factor);
  void choose_scale(Stream& compute);
  void fill_gradients(Stream& compute);
  void exchange(Stream& compute, std::span<BucketMoments> moments);
  void take_sums(Stream& compute);
  void set_values(Stream& compute, const float* from, float factor);
  void drop_unsent(Stream& compute);

  Network& network_;
  GradientBuckets& buckets_;
  Communicator& communicator_;
  LocalSgdOptions options_;
  bool scales_;              // differences are sent in 16 bits and so are scaled
  bool has_unsent_ = false;  // a codec has unsent parts to add
  Buffer memory_;
  // The last average, negated: added to the parameters, it gives the difference. The same bits on every rank.
  float* negative_;
  // The rank's own parameters while the network holds the average; the difference during average().
  float* own_;
  bool holds_average_ = false;  // the network holds an average, own_ this rank's parameters
  Buffer device_;               // OnDevice
  Buffer finite_by_slot_;       // OnDevice::finite by slot, in pinned memory
};

}  // namespace lockstep
