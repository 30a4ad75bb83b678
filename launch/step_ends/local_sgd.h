// SPDX-License-Identifier: Apache-2.0
//
// LocalSgd: ranks train apart and meet every H steps. In a local step a rank takes its own gradients, the
// mean over its own samples, and talks to nobody. In an averaging step it then subtracts the last average
// from its parameters, lets what is left go through the buckets' exchange in the place of gradients, and adds
// the mean over ranks to the last average: all ranks have the same bits again. Moments (momentum, those of
// AdamW) stay each rank's own and are not averaged, as in post-local SGD (Lin, Stich, Patel, Jaggi, "Don't
// Use Large Mini-Batches, Use Local SGD", 2020) and in PyTorch's PostLocalSGDOptimizer.
//
// The difference is of fp32, or of the gradients' 16-bit type where they have one. What a codec has left of
// it is added to the next difference.
//
// Evaluations, exports and digests see the average of all ranks' parameters, also between two meetings;
// training goes on with each rank's own. Taking that average is a dense sum over ranks, and changes nothing
// that training sees.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "comm/buckets.h"
#include "comm/communicator.h"
#include "core/buffer.h"
#include "core/state.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "launch/step_kind.h"
#include "models/network.h"

namespace lockstep {

struct LocalSgdOptions {
  // Ranks average nothing; the last average is what was there at first, or what remember_average() says.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  std::int64_t every = 1;  // steps from one average to the next; 1: average behind every step
  std::int64_t after = 0;  // synchronous steps before the first local one
};

class LocalSgd {
 public:
  // Collective. All outlive this; the communicator is the buckets'.
  LocalSgd(Network& network, GradientBuckets& buckets, Communicator& communicator,
           const LocalSgdOptions& options);
  // Of fp32 parameters of so many bytes.
  static std::size_t planned_bytes(std::size_t parameter_bytes) { return 2 * parameter_bytes; }

  // Of a step of the training, counted from 0. The same on every rank.
  StepKind kind_of(std::int64_t step) const;
  // Whether ranks may have different parameters before this step.
  bool apart_before(std::int64_t step) const;

  // Before a step, outside of what is recorded: puts the rank's own parameters back in their place. Before
  // the first local step it remembers them, and what a codec has not sent of gradients is dropped: it is no
  // difference of parameters.
  void begin_step(Stream& compute, std::int64_t step);
  // Collective, behind the optimizer of an averaging step; may be recorded. moments: see
  // GradientBuckets::begin. Where the sum of the differences is not finite, every rank goes back to the last
  // average.
  void average(Stream& compute, StepSlot slot, std::span<BucketMoments> moments);
  // Whether the last one with this slot was finite, on every rank alike. The device is done with it.
  bool averaged(StepSlot slot) const { return flags()[slot.index] != 0; }

  // Collective, before the step of that number. From here until begin_step() the network has the average.
  void show_average(Stream& compute, std::int64_t step);
  // Behind it: this is the last average from now on.
  void remember_average(Stream& compute);
  // The same of the average before the steps since.
  void show_last_average(Stream& compute);

  // Each rank's own parameters, by the network's names, and the last average. Behind show_average(); where it
  // writes, begin_step() puts the parameters into the network. Waits for the stream.
  void visit_state(StateVisitor& visitor, Stream& compute);

  std::size_t memory_bytes() const { return memory_.bytes(); }

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(network_.values().size()); }
  std::size_t bytes() const { return network_.values().size_bytes(); }
  std::int32_t* flags() const { return reinterpret_cast<std::int32_t*>(told_.data()); }
  struct OnDevice {
    std::int32_t finite = 0;              // the last average was
    std::int32_t largest_difference = 0;  // see LargestMagnitude
    float scale = 1;                      // of differences while they travel
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
  void visit(StateVisitor& visitor, const char* suffix, float* values, StateScope scope);

  Network& network_;
  GradientBuckets& buckets_;
  Communicator& communicator_;
  LocalSgdOptions options_;
  bool scales_;              // differences, which travel in 16 bits
  bool has_unsent_ = false;  // a codec adds what it has not sent yet
  Buffer memory_;
  // The last average, negated: what is added to take a difference. The same bits on every rank.
  float* negative_;
  // The rank's own parameters while the network has the average; the difference while one is taken.
  float* own_;
  bool shown_ = false;
  Buffer device_;  // OnDevice
  Buffer told_;    // OnDevice::finite by slot, in pinned memory
};

}  // namespace lockstep
