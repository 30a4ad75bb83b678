// SPDX-License-Identifier: Apache-2.0
//
// The codecs int8 and sign: blocks of 256 values become records of a scale and 8 bits, or 1, per value
// (kernels/codec.h), in two phases. Every rank sends each other rank the records of that rank's part, and
// sums its own part in fp32; it encodes the sum as records and sends them to all. So the bytes do not grow
// with the number of ranks: for n values a rank sends 2 (1 - 1 / ranks) n / 256 records, as an all_reduce
// would send values.
//
// The error of each encoding, of this rank's values and of the sums of its part, is added to its input in the
// next step.
#include <algorithm>
#include <optional>

#include "comm/codecs/codec.h"
#include "comm/codecs/residual.h"
#include "comm/exchanges/exchanges.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

constexpr NumberOption kInt8Options[] = {
    {.name = "stochastic",
     .initial = 0,
     .least = 0,
     .most = 1,
     .meaning = "1 rounds up or down at random, without bias; 0 rounds to the nearest",
     .whole = true},
    kErrorFeedback};
constexpr NumberOption kSignOptions[] = {kErrorFeedback};

bool is_on(const ExchangeChoice& choice, std::string_view option) { return choice.option(option) != 0; }

std::int64_t blocks_of(const CodecShare& share) { return share.count / kBlockElements; }

// The rank's part of each share.
std::vector<CodecShare> parts_of(std::span<const CodecShare> shares, int rank, int ranks) {
  std::vector<CodecShare> parts;
  for (const CodecShare& share : shares) {
    const std::int64_t count = share.count / ranks;
    const ElementRange part{rank * count, (rank + 1) * count};
    CodecShare own{.values = static_cast<float*>(share.values) + part.begin, .count = count, .pieces = {}};
    for (const CodecPiece& piece : share.pieces) {
      const std::int64_t begin = std::max(piece.place, part.begin);
      const std::int64_t end = std::min(piece.place + piece.range.count(), part.end);
      if (begin >= end) continue;
      const std::int64_t first = piece.range.begin + begin - piece.place;
      own.pieces.push_back(
          {.parameter = piece.parameter, .range = {first, first + end - begin}, .place = begin - part.begin});
    }
    parts.push_back(std::move(own));
  }
  return parts;
}

// For each physical element 1, or 0 if the layout pads it.
std::vector<float> real_elements(const Layout& layout, Device device) {
  const auto physical = static_cast<std::size_t>(layout.physical_elements());
  if (layout.shape().elements() == layout.physical_elements()) return std::vector<float>(physical, 1.0f);
  Stream stream(device, StreamUse::compute);
  const Layout plain(layout.shape(), DType::f32);
  const std::vector<float> ones(static_cast<std::size_t>(layout.shape().elements()), 1.0f);
  const Buffer from(plain.bytes(), device), to(layout.bytes(), device);
  stream.copy(from.data(), ones.data(), plain.bytes());
  backend_for(device).reorder(plain, layout)->run(stream, from.data(), to.data());
  std::vector<float> real(physical);
  stream.copy(real.data(), to.data(), layout.bytes());
  stream.synchronize();
  return real;
}

// One bit per value of the shares: 1 for a gradient, 0 for padding (BlockEncode::real).
class RealBits {
 public:
  RealBits(const CodecContext& context, Device device) {
    std::int64_t words = 0;
    for (const CodecShare& share : context.shares) {
      begin_.push_back(words);
      words += share.count / 32;
    }
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(words));
    for (std::size_t bucket = 0; bucket < context.shares.size(); ++bucket) {
      for (const CodecPiece& piece : context.shares[bucket].pieces) {
        const std::vector<float> real = real_elements(context.parameters[piece.parameter].layout, device);
        for (std::int64_t i = 0; i < piece.range.count(); ++i) {
          if (real[static_cast<std::size_t>(piece.range.begin + i)] == 0) continue;
          const std::int64_t place = piece.place + i;
          bits[static_cast<std::size_t>(begin_[bucket] + place / 32)] |= std::uint32_t{1} << (place % 32);
        }
      }
    }
    memory_ = Buffer(bits.size() * sizeof(std::uint32_t), device);
    Stream stream(device, StreamUse::compute);
    stream.copy(memory_.data(), bits.data(), memory_.bytes());
    stream.synchronize();
  }

  // The bits from the bucket's block `block` on.
  const std::uint32_t* of(std::size_t bucket, std::int64_t block) const {
    return reinterpret_cast<const std::uint32_t*>(memory_.data()) + begin_[bucket] +
           block * (kBlockElements / 32);
  }
  std::size_t memory_bytes() const { return memory_.bytes(); }

 private:
  std::vector<std::int64_t> begin_;  // words, by bucket
  Buffer memory_;
};

class BlockCodec final : public Codec {
 public:
  BlockCodec(const CodecContext& context, BlockCode code)
      : code_(code),
        shares_(context.shares),
        parameters_(context.parameters),
        across_(context.across),
        parts_(parts_of(shares_, across_.rank(), across_.size())),
        real_(context, across_.stream().device()) {
    const Device device = across_.stream().device();
    if (is_on(context.choice, kErrorFeedback.name)) {
      residual_.emplace("residual", shares_, parameters_, device);
      sum_residual_.emplace("sum_residual", parts_, parameters_, device);
    }
    if (code == BlockCode::int8 && is_on(context.choice, "stochastic")) {
      step_ = Buffer(sizeof(StepDigits), device);
      key_ = key_for(static_cast<std::uint64_t>(across_.rank()), "rounding of int8");
    }
    const auto bytes =
        static_cast<std::size_t>(context.largest_share() / kBlockElements * record_bytes(code));
    sent_ = across_.allocate(bytes);
    received_ = across_.allocate(bytes);
  }

  void exchange(std::size_t bucket, const GradientUnit& unit) override {
    const CodecShare& share = shares_[bucket];
    const CodecShare& part = parts_[bucket];
    const auto part_bytes = static_cast<std::size_t>(blocks_of(part) * record_bytes(code_));
    const std::int64_t first = blocks_of(part) * across_.rank();
    std::byte* own = sent_.data() + first * record_bytes(code_);
    Stream& stream = across_.stream();
    Backend& backend = backend_for(stream.device());
    encode({.bucket = bucket, .share = share, .residual = residual_, .to = sent_.data()}, unit.loss_scale);
    across_.all_to_all(sent_.data(), received_.data(), part_bytes, DType::u8);
    backend.sum_blocks(stream, {.code = code_,
                                .blocks = blocks_of(part),
                                .parts = across_.size(),
                                .records = received_.data(),
                                .real = real_.of(bucket, first),
                                .values = static_cast<float*>(part.values)});
    encode({.bucket = bucket, .first_block = first, .share = part, .residual = sum_residual_, .to = own},
           unit.loss_scale);
    across_.all_gather(own, sent_.data(), part_bytes, DType::u8);
    backend.sum_blocks(stream, {.code = code_,
                                .blocks = blocks_of(share),
                                .records = sent_.data(),
                                .real = real_.of(bucket, 0),
                                .values = static_cast<float*>(share.values)});
  }

  void settle(Stream& compute, const std::int32_t* finite) override {
    if (residual_) residual_->settle(compute, finite);
    if (sum_residual_) sum_residual_->settle(compute, finite);
    if (step() == nullptr) return;
    backend_for(compute.device()).keep_if_finite(compute, {.finite = finite, .steps = step()});
  }

  std::vector<ExchangeState> state() override {
    std::vector<ExchangeState> all;
    if (residual_) residual_->add_state(all);
    if (sum_residual_) sum_residual_->add_state(all);
    const auto first = std::ranges::find_if(shares_, [](const CodecShare& share) { return share.count > 0; });
    if (step() != nullptr && first != shares_.end()) {
      all.push_back({.name = parameters_[first->pieces.front().parameter].name + ".rounding_step",
                     .scope = StateScope::per_rank,
                     .memory = {.data = step(), .shape = {2}, .dtype = DType::f32},
                     .on_other_ranks = OnOtherRanks::same});
    }
    return all;
  }

  std::size_t memory_bytes() const override {
    return sent_.bytes() + received_.bytes() + step_.bytes() + real_.memory_bytes() +
           (residual_ ? residual_->memory_bytes() + sum_residual_->memory_bytes() : 0);
  }

 private:
  struct Encoding {
    std::size_t bucket;
    std::int64_t first_block = 0;  // in the bucket's share
    const CodecShare& share;
    std::optional<Residual>& residual;
    std::byte* to;
  };

  void encode(const Encoding& what, const float* loss_scale) {
    Stream& stream = across_.stream();
    const bool second = &what.residual == &sum_residual_;
    backend_for(stream.device())
        .encode_blocks(stream, {.code = code_,
                                .blocks = blocks_of(what.share),
                                .values = static_cast<const float*>(what.share.values),
                                .residual = what.residual ? what.residual->now(what.bucket) : nullptr,
                                .left = what.residual ? what.residual->next(what.bucket) : nullptr,
                                .loss_scale = loss_scale,
                                .real = real_.of(what.bucket, what.first_block),
                                .records = what.to,
                                .key = key_,
                                .step = step(),
                                .purpose = static_cast<std::uint32_t>(2 * what.bucket + (second ? 1 : 0))});
  }
  StepDigits* step() const { return reinterpret_cast<StepDigits*>(step_.data()); }

  BlockCode code_;
  std::span<const CodecShare> shares_;
  std::span<const Parameter> parameters_;
  Communicator& across_;
  std::vector<CodecShare> parts_;  // the parts that this rank sums
  std::optional<Residual> residual_;
  std::optional<Residual> sum_residual_;
  RealBits real_;
  Buffer step_;  // for stochastic int8: steps so far
  PhiloxKey key_ = {};
  Buffer sent_;      // records of a share
  Buffer received_;  // records of this rank's part, from every rank
};

template <BlockCode code>
constexpr CodecKind kBlocks = {
    .make = [](const CodecContext& context) -> std::unique_ptr<Codec> {
      return std::make_unique<BlockCodec>(context, code);
    },
    .sent_share =
        [](const ExchangeChoice&, const Parameter&, int) {
          return static_cast<double>(record_bytes(code)) / (kBlockElements * sizeof(float));
        },
    // Residuals of this rank's values, and of the sums of its part.
    .kept = [](const ExchangeChoice& choice,
               int nodes) { return is_on(choice, kErrorFeedback.name) ? 2 + 2.0 / nodes : 0; }};

}  // namespace

constinit const ExchangeKind kInt8Codec = {
    .name = "int8",
    .meaning = "8 bits per value and a scale per 256 values, 3.9 times fewer bytes",
    .options = kInt8Options,
    .make = make_codec_exchange,
    .codec = &kBlocks<BlockCode::int8>};

constinit const ExchangeKind kSignCodec = {
    .name = "sign",
    .meaning = "1 bit per value and a scale per 256 values, after a rotation, 28 times fewer bytes",
    .options = kSignOptions,
    .make = make_codec_exchange,
    .codec = &kBlocks<BlockCode::sign>};

}  // namespace lockstep
