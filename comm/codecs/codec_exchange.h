// SPDX-License-Identifier: Apache-2.0
//
// CodecExchange: sums gradients densely inside a node and with codecs between nodes. For each bucket, on the
// communication stream:
//
//   1. Parameters that no codec takes are packed and summed over all ranks.
//   2. Parameters that a codec takes are packed in fp32 and summed over the ranks of the node; each rank that
//      drives keeps its share. A node of one rank has nothing to sum.
//   3. Each share is exchanged by its codec with the same local rank of the other nodes.
//   4. Shares are distributed inside the node and unpacked into the gradients' memory.
//
// If every node has one rank, a bucket of which a codec takes one stretch, in the codec's type and without
// zeros after it, is not packed: the codec works in the gradients' memory.
//
// With one node there is nothing to compress: the exchange is the dense sum.
#pragma once

#include <memory>
#include <vector>

#include "comm/codecs/codec.h"
#include "comm/codecs/codec_plan.h"
#include "comm/node_groups.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class CodecExchange final : public GradientExchange {
 public:
  // Collective. Throws ConfigError if a codec has nothing to compress.
  explicit CodecExchange(const ExchangeContext& context);
  // With the caller's assignment, whose last choices are the context's rules. groups: those of the context's
  // communicator; they outlive this.
  CodecExchange(const ExchangeContext& context, const CodecAssignment& assignment, NodeGroups& groups);

  void begin(const GradientUnit& unit) override { unit_ = unit; }
  bool uses_learning_rate() const override;
  void enqueue(std::size_t bucket) override;
  bool adds_momentum(std::size_t parameter) const override { return adds_momentum_[parameter]; }
  bool same_on_every_rank() const override { return true; }
  std::int64_t warmup_steps() const override;
  void settle(Stream& compute, const std::int32_t* finite) override;
  std::vector<ExchangeState> state() override;
  std::vector<Communicator*> communicators() override {
    return own_groups_ ? groups_.own() : std::vector<Communicator*>();
  }
  std::size_t memory_bytes() const override;

 private:
  // The memory in which stretches are packed; buckets use it one after another.
  struct Packing {
    DType type = DType::f32;
    std::byte* memory = nullptr;
    void* at(std::int64_t element) const {
      return memory + element * static_cast<std::int64_t>(size_of(type));
    }
  };
  // The work of one codec.
  struct Lane {
    ExchangeChoice choice;
    std::vector<PackedStretch> stretches;  // by bucket
    std::vector<bool> in_place;            // by bucket: not packed
    Buffer memory;
    Packing packing;
    std::vector<CodecShare> shares;  // by bucket; only on a rank that drives
    std::unique_ptr<Codec> codec;    // only on a rank that drives
  };

  void make_codecs(const ExchangeContext& context);
  // The last choices are the rules'. Each rule must find something to compress, and so must the choice beside
  // them if there is only one.
  void make_lanes(const CodecAssignment& assignment, const ExchangeContext& context);
  // The type in which a lane's values are packed.
  DType packed_type(const Lane& lane) const;
  void make_codec(Lane& lane, const ExchangeContext& context);
  std::vector<PackedStretch> stretches_of(const std::vector<bool>& chosen) const;
  bool lies_ready(const Bucket& bucket, const PackedStretch& stretch, DType type) const;
  // Collective over the ranks that sum the packed values.
  Buffer allocate(std::int64_t elements, DType type);
  void allocate_dense(const ExchangeContext& context);
  void allocate_zeros();

  void enqueue_dense(std::size_t bucket);
  void enqueue_lane(std::size_t bucket, Lane& lane);
  void sum_in_node(const PackedStretch& stretch, const Packing& packing);
  void hand_out(const PackedStretch& stretch, const Packing& packing);
  void pack(const Bucket& bucket, const PackedStretch& stretch, const Packing& packing);
  void unpack(const Bucket& bucket, const PackedStretch& stretch, const Packing& packing);
  // Makes later work on `to` wait for earlier work on `from`.
  void go_on(Stream& from, Stream& to);

  std::span<const Parameter> parameters_;
  const BucketPlan& plan_;
  const GradientArena& arena_;
  Communicator& communicator_;
  std::unique_ptr<NodeGroups> own_groups_;
  NodeGroups& groups_;
  std::vector<PackedStretch> dense_;  // by bucket
  std::vector<DType> dense_types_;    // by bucket: the type of its sum
  Buffer dense_memory_;
  std::vector<Lane> lanes_;
  std::vector<bool> adds_momentum_;  // by parameter
  Buffer zeros_;                     // as many as follow any stretch
  Event behind_;
  GradientUnit unit_;
};

}  // namespace lockstep
