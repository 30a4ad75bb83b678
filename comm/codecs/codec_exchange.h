// SPDX-License-Identifier: Apache-2.0
//
// CodecExchange: gradients summed densely inside a node and by codecs between nodes. Of each bucket, on the
// communication stream:
//
//   1. What is too small to compress is packed and summed over all ranks.
//   2. What a codec takes is packed in fp32 and summed over the ranks of the node, of which each that drives
//      keeps its share. A node of one rank has nothing to sum.
//   3. Each share is exchanged by its codec with the same local rank of the other nodes.
//   4. Shares are handed out inside the node and unpacked to where gradients lie.
//
// Where no node has a second rank, a bucket of which a codec takes one stretch, in the type it works in and
// without zeros behind it, is not packed: the codec works where gradients lie.
//
// With one node there is nothing to compress: the exchange is the dense sum.
#pragma once

#include <memory>
#include <vector>

#include "comm/codecs/codec.h"
#include "comm/codecs/codec_plan.h"
#include "comm/node_groups.h"
#include "core/buffer.h"

namespace lockstep {

class CodecExchange final : public GradientExchange {
 public:
  // Collective. Throws ConfigError where a codec finds nothing to compress.
  explicit CodecExchange(const ExchangeContext& context);
  // Of what was chosen elsewhere; the last choices are the rules' of the context. Over groups that outlive
  // this: those of the context's communicator.
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
  // Where stretches are packed, one bucket after another.
  struct Packing {
    DType type = DType::f32;
    std::byte* memory = nullptr;
    void* at(std::int64_t element) const {
      return memory + element * static_cast<std::int64_t>(size_of(type));
    }
  };
  // All that one codec does.
  struct Lane {
    ExchangeChoice choice;
    std::vector<PackedStretch> stretches;  // by bucket
    std::vector<bool> in_place;            // by bucket: not packed
    Buffer memory;
    Packing packing;
    std::vector<CodecShare> shares;  // by bucket; of a rank that drives
    std::unique_ptr<Codec> codec;    // of a rank that drives
  };

  void make_codecs(const ExchangeContext& context);
  // The last choices are the rules', each of which must find something to compress; so must what is the only
  // choice beside them.
  void make_lanes(const CodecAssignment& assignment, const ExchangeContext& context);
  // In which the values of a lane are packed.
  DType packed_type(const Lane& lane) const;
  void make_codec(Lane& lane, const GradientMomentum& momentum);
  std::vector<PackedStretch> stretches_of(const std::vector<bool>& chosen) const;
  bool lies_ready(const Bucket& bucket, const PackedStretch& stretch, DType type) const;
  // Collective. Of the ranks that sum what is packed there.
  Buffer allocate(std::int64_t elements, DType type);
  void allocate_dense(const ExchangeContext& context);
  void allocate_zeros();

  void enqueue_dense(std::size_t bucket);
  void enqueue_lane(std::size_t bucket, Lane& lane);
  void sum_in_node(const PackedStretch& stretch, const Packing& packing);
  void hand_out(const PackedStretch& stretch, const Packing& packing);
  void pack(const Bucket& bucket, const PackedStretch& stretch, const Packing& packing);
  void unpack(const Bucket& bucket, const PackedStretch& stretch, const Packing& packing);
  // What `to` is asked for from now on runs behind what `from` was asked for.
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
  Buffer zeros_;                     // as many as there are behind any stretch
  Event behind_;
  GradientUnit unit_;
};

}  // namespace lockstep
