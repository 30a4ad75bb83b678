// SPDX-License-Identifier: Apache-2.0
#include "models/memory_plan.h"

#include <algorithm>

#include "core/error.h"
#include "core/tensor/buffer.h"

namespace lockstep {
namespace {

constexpr int kNever = -1;

// Time runs from the input (0) through the layers and the loss back to the first layer. A repeated range runs
// forward again just before the backward of its last layer.
class MemoryPlanner {
 public:
  MemoryPlanner(NetworkPlan& plan, MemorySharing sharing)
      : plan_(plan),
        sharing_(sharing),
        count_(plan.nodes.size()),
        forward_(count_),
        recompute_(count_, kNever),
        backward_(count_) {}

  void run(const Recompute& recompute) {
    plan_.blocks.clear();
    plan_.unshared_bytes = 0;
    plan_.scratch_block = -1;
    for (PlannedNode& node : plan_.nodes) node.recomputed = false;
    for (PlannedValue& value : plan_.values) value.gradient_block = -1;
    plan_.repeated.clear();
    if (recompute == Recompute::blocks) plan_.repeated = plan_.blocks_of_graph;
    if (recompute.scope == Recompute::Scope::segments) plan_.repeated = segments_of(recompute.layers);
    mark_recomputed();
    set_times();
    place_data();
    place_gradients();
    place_saved();
    if (sharing_ == MemorySharing::none) keep_all_blocks_alive();
    plan_.arena = plan_arena(plan_.blocks);
    plan_.times.clear();
    for (std::size_t i = 0; i < count_; ++i)
      plan_.times.push_back({.forward = forward_[i], .recompute = recompute_[i], .backward = backward_[i]});
  }

 private:
  const PlannedNode& node(int index) const { return plan_.nodes[static_cast<std::size_t>(index)]; }
  PlannedValue& value(int index) const { return plan_.values[static_cast<std::size_t>(index)]; }
  int forward_time(int index) const { return forward_[static_cast<std::size_t>(index)]; }
  int recompute_time(int index) const { return recompute_[static_cast<std::size_t>(index)]; }
  int backward_time(int index) const { return backward_[static_cast<std::size_t>(index)]; }
  int last_node() const { return static_cast<int>(count_) - 1; }

  // Runs of this many layers of the graph, with the forks of their inputs. The last run is kept: its backward
  // follows its forward.
  std::vector<NodeRange> segments_of(std::int64_t layers) const {
    std::vector<NodeRange> segments;
    int first = 0;
    for (int index = 0; index <= last_node(); ++index) {
      const int layer = node(index).layer_index;
      if (layer < 0 || (layer + 1) % layers != 0 || index == last_node()) continue;
      segments.push_back({first, index});
      first = index + 1;
    }
    return segments;
  }

  // A layer inside a range runs again if backward reads its output, directly or through layers that run
  // again. Outputs that are used outside the range are kept, and so is memory that they share.
  void mark_recomputed() {
    std::vector<bool> kept(count_);
    for (const NodeRange& range : plan_.repeated) {
      const auto inside = [&](int index) { return index >= range.first && index <= range.last; };
      for (int index = range.last; index >= range.first; --index) {
        PlannedNode& made = plan_.nodes[static_cast<std::size_t>(index)];
        const auto is_kept = [&](int output) {
          const int consumer = value(output).consumer;
          if (!inside(consumer)) return true;
          const PlannedNode& next = node(consumer);
          const auto shared = static_cast<std::size_t>(next.layer->shared_input());
          return kept[static_cast<std::size_t>(consumer)] && next.layer->output_sharing() == Sharing::same &&
                 next.inputs[shared] == output;
        };
        const auto is_needed = [&](int output) {
          const PlannedValue& v = value(output);
          return backward_reads(v) || node(v.consumer).recomputed;
        };
        kept[static_cast<std::size_t>(index)] = std::ranges::any_of(made.outputs, is_kept);
        made.recomputed =
            !kept[static_cast<std::size_t>(index)] && std::ranges::any_of(made.outputs, is_needed);
      }
    }
  }

  void set_times() {
    int time = 0;
    for (std::size_t i = 0; i < count_; ++i) forward_[i] = ++time;
    loss_time_ = ++time;
    for (int index = last_node(); index >= 0; --index) {
      for (const NodeRange& range : plan_.repeated) {
        if (range.last != index) continue;
        for (int inside = range.first; inside < range.last; ++inside) {
          if (node(inside).recomputed) recompute_[static_cast<std::size_t>(inside)] = ++time;
        }
      }
      backward_[static_cast<std::size_t>(index)] = ++time;
    }
  }

  bool backward_reads(const PlannedValue& v) const {
    return producer_backward_reads(v) || (v.consumer >= 0 && consumer_backward_reads(v));
  }
  bool producer_backward_reads(const PlannedValue& v) const {
    return v.producer >= 0 && node(v.producer).goes_backward &&
           node(v.producer).layer->backward_reads_output();
  }
  bool consumer_backward_reads(const PlannedValue& v) const {
    const PlannedNode& consumer = node(v.consumer);
    if (!consumer.goes_backward) return false;
    for (std::size_t i = 0; i < consumer.inputs.size(); ++i) {
      const bool is_value = &value(consumer.inputs[i]) == &v;
      if (is_value && consumer.layer->backward_reads_input(static_cast<int>(i))) return true;
    }
    return false;
  }

  // The last time after the loss at which the value is read; kNever if it is not.
  int last_after_loss(const PlannedValue& v) const {
    int last = kNever;
    if (producer_backward_reads(v)) last = backward_time(v.producer);
    if (v.consumer < 0) return last;
    if (consumer_backward_reads(v)) last = std::max(last, backward_time(v.consumer));
    return std::max(last, recompute_time(v.consumer));
  }

  // The value's lifetime: from `made` to its last reader in forward, and to last_after_loss in backward: one
  // lifetime, or two if the producer runs again.
  ArenaBlock block_for(const PlannedValue& v) const {
    const int made = v.producer < 0 ? 0 : forward_time(v.producer);
    const int read = v.consumer < 0 ? loss_time_ : forward_time(v.consumer);
    const int last = last_after_loss(v);
    ArenaBlock block{.bytes = v.layout.bytes(), .life = {made, read}};
    if (v.producer >= 0 && node(v.producer).recomputed) {
      block.again = Lifetime{recompute_time(v.producer), std::max(last, recompute_time(v.producer))};
    } else {
      block.life.last = std::max(read, last);
    }
    return block;
  }

  int add(const ArenaBlock& block) {
    plan_.blocks.push_back(block);
    plan_.unshared_bytes += align_up(block.bytes);
    return static_cast<int>(plan_.blocks.size()) - 1;
  }
  // Places a tensor in an existing block and extends the block's lifetime.
  int join(int index, const ArenaBlock& block) {
    const auto extend = [](Lifetime& life, const Lifetime& by) {
      life = {std::min(life.first, by.first), std::max(life.last, by.last)};
    };
    ArenaBlock& joined = plan_.blocks[static_cast<std::size_t>(index)];
    extend(joined.life, block.life);
    if (block.again) joined.again ? extend(*joined.again, *block.again) : void(joined.again = block.again);
    plan_.unshared_bytes += align_up(block.bytes);
    return index;
  }
  // True if the block is not read after this time, so that the result computed then may overwrite it.
  bool may_overwrite(int index, std::size_t bytes, int time) const {
    if (sharing_ == MemorySharing::none) return false;
    const ArenaBlock& existing = plan_.blocks[static_cast<std::size_t>(index)];
    return existing.life.last <= time && !existing.again && existing.bytes == bytes;
  }

  void place_data() {
    value(0).data_block = add(block_for(value(0)));
    for (int index = 0; index <= last_node(); ++index) {
      const PlannedNode& planned = node(index);
      const Sharing sharing = planned.layer->output_sharing();
      for (const int output : planned.outputs) {
        PlannedValue& made = value(output);
        const auto shared = static_cast<std::size_t>(planned.layer->shared_input());
        const int source = value(planned.inputs[shared]).data_block;
        const ArenaBlock block = block_for(made);
        const bool shares =
            sharing == Sharing::same ||
            (sharing == Sharing::in_place && may_overwrite(source, block.bytes, forward_time(index)));
        made.data_block = shares ? join(source, block) : add(block);
      }
    }
  }

  void place_gradients() {
    PlannedValue& logits = value(plan_.logits);
    logits.gradient_block =
        add({.bytes = logits.layout.bytes(), .life = {loss_time_, backward_time(logits.producer)}});
    for (int index = last_node(); index >= 0; --index) {
      const PlannedNode& planned = node(index);
      const int source = value(planned.outputs[0]).gradient_block;
      for (std::size_t i = 0; i < planned.inputs.size(); ++i) {
        PlannedValue& input = value(planned.inputs[i]);
        if (!input.wants_gradient) continue;
        const int time = backward_time(index);
        const bool summed = value(planned.outputs[0]).addend >= 0;  // a fork with summed gradients
        const Sharing sharing = summed ? Sharing::same : planned.layer->gradient_sharing(static_cast<int>(i));
        const ArenaBlock block{.bytes = input.layout.bytes(),
                               .life = {time, input.producer < 0 ? time : backward_time(input.producer)}};
        if (input.addend >= 0) {
          const int addend = value(input.addend).gradient_block;
          input.gradient_block = is_read_from(addend, input.addend, time) ? add(block) : join(addend, block);
          continue;
        }
        const bool shares = sharing == Sharing::same ||
                            (sharing == Sharing::in_place && may_overwrite(source, block.bytes, time));
        input.gradient_block = shares ? join(source, block) : add(block);
      }
    }
  }

  // True if the block holds another value's gradient that is read at this time or later.
  bool is_read_from(int block, int other, int time) const {
    return std::ranges::any_of(plan_.values, [&](const PlannedValue& v) {
      return v.gradient_block == block && &v != &value(other) && v.producer >= 0 &&
             backward_time(v.producer) >= time;
    });
  }

  void place_saved() {
    std::size_t scratch = 0;
    for (int index = 0; index <= last_node(); ++index) {
      PlannedNode& planned = plan_.nodes[static_cast<std::size_t>(index)];
      scratch = std::max(scratch, planned.layer->scratch_bytes());
      const std::size_t saved = planned.goes_backward ? planned.layer->saved_bytes() : 0;
      planned.saved_block = -1;
      if (saved == 0) continue;
      ArenaBlock block{.bytes = saved, .life = {forward_time(index), backward_time(index)}};
      if (planned.recomputed) {
        block.life.last = forward_time(index);
        block.again = Lifetime{recompute_time(index), backward_time(index)};
      }
      planned.saved_block = add(block);
    }
    if (scratch > 0) plan_.scratch_block = add({.bytes = scratch, .life = {0, backward_time(0)}});
  }

  void keep_all_blocks_alive() {
    for (ArenaBlock& block : plan_.blocks) block.life = {0, backward_time(0)};
  }

  NetworkPlan& plan_;
  MemorySharing sharing_;
  std::size_t count_;
  std::vector<int> forward_;  // times by node
  std::vector<int> recompute_;
  std::vector<int> backward_;
  int loss_time_ = 0;
};

}  // namespace

void plan_memory(NetworkPlan& plan, const Recompute& recompute, MemorySharing sharing) {
  CHECK(!recompute.is_open(), "choose what to recompute before planning");
  CHECK(recompute.scope != Recompute::Scope::segments || recompute.layers > 0,
        "segments of {} layers cannot be recomputed; a segment has at least 1", recompute.layers);
  MemoryPlanner(plan, sharing).run(Recompute::nothing);
  plan.kept_bytes = plan.arena.bytes;
  if (recompute != Recompute::nothing) MemoryPlanner(plan, sharing).run(recompute);
}

}  // namespace lockstep
