// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/collective_bench.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include "benchmarks/collective_options.h"
#include "core/error.h"

namespace lockstep {
namespace {

using Sizes = std::vector<std::size_t>;

constexpr CollectiveKind kKinds[] = {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter,
                                     CollectiveKind::all_gather, CollectiveKind::all_to_all,
                                     CollectiveKind::broadcast};

CollectiveOptions parsed(std::vector<std::string> arguments) {
  CollectiveOptions options;
  CLI::App app;
  options.add_flags(app);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  app.parse(arguments);
  return options;
}

TEST(CollectiveOptions, HasTheFlagsOfNcclTests) {
  const CollectiveOptions o = parsed({"-b",     "8",        "-e", "2K",  "-f",           "4",
                                      "-n",     "7",        "-w", "1",   "-c",           "0",
                                      "-d",     "half",     "-o", "max", "--collective", "all_gather,barrier",
                                      "--ways", "plain,mpi"});
  EXPECT_EQ(o.sizes(), (Sizes{8, 32, 128, 512, 2048}));
  EXPECT_EQ(o.iters, 7);
  EXPECT_EQ(o.warmup_iters, 1);
  EXPECT_FALSE(o.check);
  EXPECT_EQ(o.dtype, DType::f16);
  EXPECT_EQ(o.op, ReduceOp::max);
  EXPECT_EQ(o.collectives, (std::vector{CollectiveKind::all_gather, CollectiveKind::barrier}));
  EXPECT_EQ(o.ways, (std::vector<std::string>{"plain", "mpi"}));
}

TEST(CollectiveOptions, HasTheLongFlagsOfNcclTests) {
  const CollectiveOptions o =
      parsed({"--minbytes", "1M", "--maxbytes", "3M", "--stepbytes", "1M", "--iters", "2", "--warmup_iters",
              "0", "--check", "1", "--datatype", "bfloat16", "--op", "min"});
  EXPECT_EQ(o.sizes(), (Sizes{1 << 20, 2 << 20, 3 << 20}));
  EXPECT_EQ(parsed({"-b", "1G", "-e", "1G"}).sizes().front(), std::size_t{1} << 30);
}

TEST(CollectiveOptions, SizesEndAtTheLargestNumbers) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max(), kQuarter = std::size_t{1} << 62;
  CollectiveOptions options;
  options.min_bytes = kQuarter;
  options.max_bytes = kMost;
  options.step_factor = 4;
  EXPECT_EQ(options.sizes(), Sizes{kQuarter});
  options.step_bytes = kQuarter;
  EXPECT_EQ(options.sizes(), (Sizes{kQuarter, 2 * kQuarter, 3 * kQuarter}));
}

TEST(CollectiveOptions, RefusesInvalidOptions) {
  EXPECT_THROW(parsed({"-d", "double"}), CLI::ValidationError);
  EXPECT_THROW(parsed({"--ways", "window,carrier_pigeon"}), CLI::ValidationError);
  EXPECT_THROW(parsed({"-f", "1"}), CLI::ValidationError);
  EXPECT_THROW(parsed({"-f", "2", "-i", "1K"}), CLI::ExcludesError);
  EXPECT_THROW(parsed({"-b", "2M", "-e", "1M"}).sizes(), UsageError);
  EXPECT_THROW(parsed({"-i", "0"}).sizes(), UsageError);
}

TEST(CollectiveCase, CountsAsNcclTestsDo) {
  const auto of = [](CollectiveKind kind) { return case_of(kind, DType::f32, ReduceOp::sum, 4, 1024); };
  EXPECT_EQ(of(CollectiveKind::all_reduce).count, 256u);
  EXPECT_EQ(of(CollectiveKind::broadcast).count, 256u);
  // Counts are elements of one share; the size is that of all shares.
  EXPECT_EQ(of(CollectiveKind::all_gather).count, 64u);
  EXPECT_EQ(of(CollectiveKind::reduce_scatter).count, 64u);
  EXPECT_EQ(of(CollectiveKind::all_to_all).count, 64u);
  for (const CollectiveKind kind : kKinds) EXPECT_EQ(of(kind).bytes(), 1024u);
  // The shares of three ranks are multiples of 16 bytes if they are larger than that.
  EXPECT_EQ(case_of(CollectiveKind::all_gather, DType::f32, ReduceOp::sum, 3, 1024).bytes(), 3u * 336);
  EXPECT_EQ(case_of(CollectiveKind::all_gather, DType::f32, ReduceOp::sum, 3, 16).count, 1u);
  EXPECT_THROW(case_of(CollectiveKind::all_gather, DType::f32, ReduceOp::sum, 3, 11), UsageError);
  EXPECT_THROW(case_of(CollectiveKind::all_reduce, DType::u8, ReduceOp::sum, 3, 64), UsageError);
}

TEST(CollectiveCase, HasTheBusBandwidthOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_reduce, 8), 2.0 * 7 / 8);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::reduce_scatter, 8), 7.0 / 8);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_gather, 8), 7.0 / 8);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_to_all, 8), 7.0 / 8);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::broadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_reduce, 1), 0);
}

// The results of the five collectives on two ranks, computed from the input of each rank.
TEST(CollectiveCase, CountsWrongElementsOfEveryCollective) {
  for (const CollectiveKind kind : kKinds) {
    const CollectiveCase c = case_of(kind, DType::i32, ReduceOp::sum, 2, 400);
    std::vector<std::int32_t> send[2];
    for (int rank = 0; rank < 2; ++rank) {
      send[rank].resize(c.send_count());
      fill_input(c, rank, reinterpret_cast<std::byte*>(send[rank].data()));
    }
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<std::int32_t> recv(c.recv_count());
      const std::size_t first = kind == CollectiveKind::reduce_scatter && rank == 1 ? c.count : 0;
      const std::size_t block = rank == 1 ? c.count : 0;  // of an all_to_all
      for (std::size_t i = 0; i < recv.size(); ++i) {
        recv[i] = kind == CollectiveKind::all_gather   ? send[i / c.count][i % c.count]
                  : kind == CollectiveKind::all_to_all ? send[i / c.count][block + i % c.count]
                  : kind == CollectiveKind::broadcast  ? send[0][i]
                                                       : send[0][first + i] + send[1][first + i];
      }
      EXPECT_EQ(count_wrong(c, rank, reinterpret_cast<std::byte*>(recv.data())), 0u) << name_of(kind);
      ++recv.back();
      EXPECT_EQ(count_wrong(c, rank, reinterpret_cast<std::byte*>(recv.data())), 1u) << name_of(kind);
    }
  }
}

template <typename F>
auto with_type(DType dtype, F function) {
  switch (dtype) {
    case DType::f16:
      return function(Half{});
    case DType::bf16:
      return function(BFloat16{});
    case DType::i32:
      return function(std::int32_t{});
    default:
      return function(float{});
  }
}

double number_at(DType dtype, const std::byte* data, std::size_t i) {
  return with_type(dtype, [&]<typename T>(T value) {
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return static_cast<double>(static_cast<float>(value));
  });
}

void put_number(DType dtype, std::byte* data, std::size_t i, double number) {
  with_type(dtype, [&]<typename T>(T value) {
    value = static_cast<T>(static_cast<float>(number));
    std::memcpy(data + i * sizeof value, &value, sizeof value);
  });
}

TEST(CollectiveCase, SumsStayExactInEveryType) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32}) {
    const CollectiveCase c = case_of(CollectiveKind::all_reduce, dtype, ReduceOp::sum, 100, 4096);
    std::vector<std::byte> input(c.bytes());
    std::vector<double> sums(c.count);
    for (int rank = 0; rank < c.ranks; ++rank) {
      fill_input(c, rank, input.data());
      EXPECT_GT(count_wrong(c, 0, input.data()), 0u) << "the input of one rank must not pass as the sum";
      for (std::size_t i = 0; i < c.count; ++i) sums[i] += number_at(dtype, input.data(), i);
    }
    for (std::size_t i = 0; i < c.count; ++i) {
      put_number(dtype, input.data(), i, sums[i]);
      ASSERT_EQ(number_at(dtype, input.data(), i), sums[i]) << name_of(dtype);
    }
    EXPECT_EQ(count_wrong(c, 0, input.data()), 0u) << name_of(dtype);
  }
  // 256 is the last integer that bfloat16 has without gaps.
  const CollectiveCase many = case_of(CollectiveKind::all_reduce, DType::bf16, ReduceOp::sum, 300, 64);
  std::vector<std::byte> input(many.bytes());
  EXPECT_THROW(fill_input(many, 0, input.data()), Error);
}

// A world of one rank, whose collectives are the identity.
class TimeWays : public ::testing::Test {
 protected:
  std::shared_ptr<WayMemory> memory() {
    return std::make_shared<WayMemory>(WayMemory{Buffer(kBytes, Device{}), Buffer(kBytes, Device{})});
  }
  CollectiveCase sum() const {
    return case_of(CollectiveKind::all_reduce, DType::f32, ReduceOp::sum, 1, kBytes);
  }

  static constexpr std::size_t kBytes = 4096;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  std::unique_ptr<Way> plain_ = own_way("plain", *self_, memory());
  std::unique_ptr<Way> mpi_ = own_way("mpi", *self_, memory());  // for comparison
};

// Omits the last element when it works out of place.
class Forgetful : public Way {
 public:
  using Way::Way;
  void run(const CollectiveCase& c, std::byte* send, std::byte* recv) override {
    if (send != recv) std::memcpy(recv, send, c.bytes() - size_of(c.dtype));
  }
};

TEST_F(TimeWays, CountsEveryWrongElementOfEveryTurn) {
  Forgetful way("forgetful", memory());
  const auto timings = time_ways(*self_, {plain_.get(), &way}, sum(), {.timed = 3, .warmup = 2});
  EXPECT_EQ(timings[0].out_of_place->wrong, 0u);
  EXPECT_EQ(timings[0].in_place.wrong, 0u);
  EXPECT_EQ(timings[1].out_of_place->wrong, 5u) << "wrong elements of warm-up turns count, too";
  EXPECT_EQ(timings[1].in_place.wrong, 0u);
  const auto rows = rows_of(sum(), timings);
  EXPECT_EQ(wrong_in(rows), 5u);
  EXPECT_NE(table_footer(rows, true).find("5 FAILED"), std::string::npos);
}

TEST_F(TimeWays, WithoutCheckCountsNoWrongElements) {
  const auto timings = time_ways(*self_, {plain_.get()}, sum(), {.timed = 2, .warmup = 0, .check = false});
  EXPECT_FALSE(timings[0].in_place.wrong);
  EXPECT_EQ(timings[0].in_place.seconds.size(), 2u);
  EXPECT_NE(table_line(rows_of(sum(), timings)[0]).find("N/A"), std::string::npos);
}

TEST_F(TimeWays, ABarrierHasATimeAndNoBytes) {
  const CollectiveCase c = case_of(CollectiveKind::barrier, DType::f32, ReduceOp::sum, 1, 0);
  const auto rows = rows_of(c, time_ways(*self_, {plain_.get(), mpi_.get()}, c, {.timed = 2, .warmup = 0}));
  EXPECT_FALSE(rows[0].out_of_place);
  EXPECT_EQ(rows[0].in_place.algbw, 0);
  EXPECT_TRUE(to_json(rows[0])["out_of_place"].is_null());
}

TEST(BandwidthRow, HoldsMediansOfTheTurns) {
  const CollectiveCase c = case_of(CollectiveKind::all_reduce, DType::f32, ReduceOp::sum, 4, 1 << 20);
  const Timing own{.seconds = {1e-3, 3e-3, 2e-3}, .wrong = 0}, mpi{.seconds = {4e-3, 3e-3, 4e-3}, .wrong = 0};
  const auto rows = rows_of(c, {{"window", own, own}, {"mpi", mpi, mpi}});
  EXPECT_DOUBLE_EQ(rows[0].in_place.time_us, 2000);
  EXPECT_DOUBLE_EQ(rows[0].in_place.algbw, (1 << 20) / 2e-3 * 1e-9);
  EXPECT_DOUBLE_EQ(rows[0].in_place.busbw, rows[0].in_place.algbw * 1.5);
  EXPECT_EQ(rows[0].in_place.over.at(1).first, "mpi");
  EXPECT_DOUBLE_EQ(rows[0].in_place.over.at(1).second.typical, 2);
  EXPECT_NE(table_line(rows[0]).find(" 0.524   0.786 "), std::string::npos) << table_line(rows[0]);
  const nlohmann::json json = to_json(rows[0]);
  EXPECT_EQ(json["collective"], "all_reduce");
  EXPECT_EQ(json["bytes"], 1 << 20);
  EXPECT_EQ(json["count"], 1 << 18);
  EXPECT_EQ(json["type"], "float");
  EXPECT_EQ(json["redop"], "sum");
  EXPECT_EQ(json["root"], -1);
  EXPECT_EQ(json["in_place"]["wrong"], 0);
  EXPECT_EQ(json["in_place"]["speed_over"]["mpi"]["spread"], nlohmann::json({1.0, 4.0}));
  EXPECT_EQ(to_json(rows[1])["out_of_place"]["speed_over"]["window"]["spread"], nlohmann::json({0.25, 1.0}));
  EXPECT_DOUBLE_EQ(json["out_of_place"]["time_us"], 2000);
}

}  // namespace
}  // namespace lockstep
