// SPDX-License-Identifier: Apache-2.0
//
// PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019): each weight's gradient is sent as two factors of
// `rank` columns. A step is one step of a power iteration that continues over training steps, on the sum M of
// all ranks' matrices:
//
//   P = M Q;  P's columns are made orthonormal;  Q = M^T P;  M is taken for P Q^T
//
// Products with M are sums of each rank's products, so only two all-reduces of a bucket's factors are sent. A
// rank adds the part of its matrix that it has not sent, M_r - P P^T M_r, to its next gradient: this
// residual's norm is at most the matrix's, and if the rank of M is at most `rank` the residuals sum to zero.
// It is kept multiplied by the learning rate of its step (Zheng, Huang and Kwok, "Communication-Efficient
// Distributed Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019), in units of parameter updates:
// otherwise a late gradient would have too small an effect when the rate falls. (The variant with one
// all-reduce, which updates P and Q by turns, sends half of that, but represents no gradient exactly before
// its second step, and its steps would differ, while a step is recorded once.)
#include <optional>
#include <vector>

#include "comm/codecs/codec.h"
#include "comm/codecs/kept_memory.h"
#include "comm/codecs/residual.h"
#include "comm/exchanges/exchanges.h"
#include "core/error.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

constexpr NumberOption kPowerSgdOptions[] = {
    {.name = "rank",
     .initial = 2,
     .least = 1,
     .most = 64,
     .meaning = "columns of each factor, the rank of the approximation",
     .whole = true},
    {.name = "start_step",
     .initial = 100,
     .least = 0,
     .most = 1e9,
     .meaning = "first steps, whose gradients are summed densely without compression",
     .whole = true},
    kErrorFeedback,
};

bool pays(const LowRankShape& shape, std::int64_t rank) {
  return shape.elements() > 2 * rank * shape.factor_elements();
}

bool takes_matrix(const ExchangeChoice& choice, const Parameter& parameter) {
  return takes_large_tensors(choice, parameter) &&
         pays(LowRankShape(parameter.layout.matrix_view()), choice.whole_option("rank"));
}

class PowerSgd final : public Codec {
 public:
  explicit PowerSgd(const CodecContext& context);

  void exchange(std::size_t bucket, const GradientUnit& unit) override;
  void settle(Stream& compute, const std::int32_t* finite) override;
  std::vector<ExchangeState> state() override;
  std::size_t memory_bytes() const override;

 private:
  // The matrix of one parameter; places are elements of the memory named.
  struct Matrix {
    std::size_t parameter;
    LowRankShape shape;
    std::int64_t place;    // in the values of its share, and in their residual
    std::int64_t rows;     // in rows_
    std::int64_t columns;  // in columns_ and own_columns_
    PhiloxKey key;
  };
  struct Matrices {
    std::vector<Matrix> matrices;
    std::int64_t row_elements = 0;
    std::int64_t column_elements = 0;
  };

  void compress(std::size_t bucket, const GradientUnit& unit);
  void start_columns();
  float* rows(const Matrix& matrix) const { return at(rows_, matrix.rows); }
  static float* at(const Buffer& memory, std::int64_t place) {
    return reinterpret_cast<float*>(memory.data()) + place;
  }
  Tensor tensor(float* data, std::int64_t elements) const {
    return {.data = data, .shape = {elements}, .device = across_.stream().device()};
  }

  std::span<const Parameter> parameters_;
  std::span<const CodecShare> shares_;
  Communicator& across_;
  Backend& backend_;
  std::int64_t rank_;
  std::int64_t start_step_;
  std::vector<Matrices> buckets_;
  std::optional<Residual> residual_;   // with error feedback
  std::optional<KeptMemory> columns_;  // Q
  Buffer own_columns_;                 // before the sum
  Buffer rows_;                        // P
  StepCount steps_;
  bool begun_ = false;  // a step is under way
  bool compresses_ = true;
};

PowerSgd::PowerSgd(const CodecContext& context)
    : parameters_(context.parameters),
      shares_(context.shares),
      across_(context.across),
      backend_(backend_for(context.across.stream().device())),
      rank_(context.choice.whole_option("rank")),
      start_step_(context.choice.whole_option("start_step")),
      buckets_(context.shares.size()),
      steps_(context.across.stream().device()) {
  const Device device = across_.stream().device();
  std::int64_t row_elements = 0, column_elements = 0;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    Matrices& made = buckets_[bucket];
    for (const CodecPiece& piece : shares_[bucket].pieces) {
      const Parameter& parameter = parameters_[piece.parameter];
      CHECK(piece.whole(parameter), "{} is split between shares", parameter.name);
      const LowRankShape shape(parameter.layout.matrix_view());
      made.matrices.push_back({.parameter = piece.parameter,
                               .shape = shape,
                               .place = piece.place,
                               .rows = row_elements + made.row_elements,
                               .columns = column_elements + made.column_elements,
                               .key = key_for(0, "powersgd " + parameter.name)});
      made.row_elements += rank_ * shape.rows();
      made.column_elements += rank_ * shape.columns();
    }
    row_elements += made.row_elements;
    column_elements += made.column_elements;
  }
  if (context.choice.whole_option(kErrorFeedback.name) != 0)
    residual_.emplace(context.update_residual(), shares_, parameters_, device);
  columns_.emplace(column_elements, device);
  own_columns_ = Buffer(static_cast<std::size_t>(column_elements) * sizeof(float), device);
  rows_ = Buffer(static_cast<std::size_t>(row_elements) * sizeof(float), device);
  start_columns();
}

void PowerSgd::start_columns() {
  Stream& stream = across_.stream();
  for (const Matrices& bucket : buckets_) {
    for (const Matrix& matrix : bucket.matrices) {
      backend_.low_rank_revive(stream, {.count = matrix.shape.columns(),
                                        .rank = rank_,
                                        .key = matrix.key,
                                        .vectors = columns_->now() + matrix.columns});
    }
  }
  stream.synchronize();
}

void PowerSgd::exchange(std::size_t bucket, const GradientUnit& unit) {
  if (!begun_) compresses_ = start_step_ == 0 || steps_.begin() >= start_step_;
  begun_ = true;
  const CodecShare& share = shares_[bucket];
  if (share.count == 0) return;
  if (compresses_) return compress(bucket, unit);
  across_.all_reduce(share.values, static_cast<std::size_t>(share.count), DType::f32, ReduceOp::sum);
}

void PowerSgd::compress(std::size_t bucket, const GradientUnit& unit) {
  const Matrices& made = buckets_[bucket];
  if (made.matrices.empty()) return;
  Stream& stream = across_.stream();
  auto* values = static_cast<float*>(shares_[bucket].values);
  const auto sum = [&](float* data, std::int64_t elements) {
    across_.all_reduce(data, static_cast<std::size_t>(elements), DType::f32, ReduceOp::sum);
  };
  for (const Matrix& matrix : made.matrices) {
    backend_.low_rank_rows(stream, {.shape = &matrix.shape,
                                    .rank = rank_,
                                    .matrix = values + matrix.place,
                                    .loss_scale = unit.loss_scale,
                                    .learning_rate = unit.learning_rate,
                                    .residual = residual_ ? residual_->now(bucket) + matrix.place : nullptr,
                                    .columns = columns_->now() + matrix.columns,
                                    .rows = rows(matrix)});
  }
  sum(rows(made.matrices.front()), made.row_elements);
  for (const Matrix& matrix : made.matrices) {
    backend_.low_rank_orthogonalize(stream,
                                    {.count = matrix.shape.rows(), .rank = rank_, .vectors = rows(matrix)});
    backend_.low_rank_columns(stream, {.shape = &matrix.shape,
                                       .rank = rank_,
                                       .matrix = values + matrix.place,
                                       .rows = rows(matrix),
                                       .columns = at(own_columns_, matrix.columns)});
  }
  const std::int64_t first = made.matrices.front().columns;
  stream.copy(columns_->next() + first, at(own_columns_, first),
              static_cast<std::size_t>(made.column_elements) * sizeof(float));
  sum(columns_->next() + first, made.column_elements);
  for (const Matrix& matrix : made.matrices) {
    float* columns = columns_->next() + matrix.columns;
    backend_.low_rank_decode(stream,
                             {.shape = &matrix.shape,
                              .rank = rank_,
                              .rows = rows(matrix),
                              .own_columns = at(own_columns_, matrix.columns),
                              .columns = columns,
                              .loss_scale = unit.loss_scale,
                              .learning_rate = unit.learning_rate,
                              .matrix = values + matrix.place,
                              .residual = residual_ ? residual_->next(bucket) + matrix.place : nullptr});
    backend_.low_rank_revive(
        stream, {.count = matrix.shape.columns(), .rank = rank_, .key = matrix.key, .vectors = columns});
  }
}

void PowerSgd::settle(Stream& compute, const std::int32_t* finite) {
  if (!begun_) return;  // this rank drives nothing
  begun_ = false;
  steps_.settle(compute, finite);
  if (!compresses_) return;
  if (residual_) residual_->settle(compute, finite);
  columns_->settle(compute, finite);
}

std::vector<ExchangeState> PowerSgd::state() {
  std::vector<ExchangeState> states;
  for (const Matrices& bucket : buckets_) {
    for (const Matrix& matrix : bucket.matrices) {
      const std::string& name = parameters_[matrix.parameter].name;
      if (states.empty())
        states.push_back({.name = name + ".powersgd_steps",
                          .memory = tensor(&steps_.memory()->low, StepCount::kNumbers),
                          .on_other_ranks = OnOtherRanks::same,
                          .counts_skipped = steps_.counts_skipped()});
      states.push_back({.name = name + ".powersgd_columns",
                        .memory = tensor(columns_->now() + matrix.columns, rank_ * matrix.shape.columns()),
                        .on_other_ranks = OnOtherRanks::same});
    }
  }
  if (residual_) residual_->add_state(states);
  return states;
}

std::size_t PowerSgd::memory_bytes() const {
  return (residual_ ? residual_->memory_bytes() : 0) + columns_->memory_bytes() + own_columns_.bytes() +
         rows_.bytes() + steps_.memory_bytes();
}

double share_of_factors(const ExchangeChoice& choice, const Parameter& parameter, int) {
  const LowRankShape shape(parameter.layout.matrix_view());
  return static_cast<double>(choice.whole_option("rank") * shape.factor_elements()) /
         static_cast<double>(shape.elements());
}

constexpr CodecKind kPowerSgdKind = {
    .takes = takes_matrix,
    .warmup_option = "start_step",
    .uses_learning_rate = true,
    .whole_parameters = true,
    .make = [](const CodecContext& context) -> std::unique_ptr<Codec> {
      return std::make_unique<PowerSgd>(context);
    },
    .sent_share = share_of_factors,
    .round_trips = 2,
    .kept = [](const ExchangeChoice& choice,
               int) { return choice.whole_option(kErrorFeedback.name) != 0 ? 2.0 : 0.0; }};

}  // namespace

constinit const ExchangeKind kPowerSgdCodec = {
    .name = "powersgd",
    .meaning = "each weight's gradient as a product of two narrow matrices, with error feedback",
    .options = kPowerSgdOptions,
    .make = make_codec_exchange,
    .codec = &kPowerSgdKind};

}  // namespace lockstep
