// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/contract.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/comm/contract_elements.h"

namespace lockstep {
namespace {

// Smaller than a rank's share, smaller than a vector, and larger than one message.
constexpr std::array<std::size_t, 3> kBadSplits = {5, 83, 5003};

// Here and in the checks below, counts are in ascending order.
template <typename T>
void check_all_reduce(ContractRank rank, ReduceOp op, std::span<const std::size_t> counts = kCounts) {
  Communicator& communicator = rank.communicator;
  for (Memory memory : kMemories) {
    Elements<T> data(rank, memory, counts.back());
    for (std::size_t count : counts) {
      SCOPED_TRACE(testing::Message()
                   << count << " elements, " << (memory == Memory::plain ? "plain" : "registered"));
      data.resize(count);
      fill(rank, data);
      communicator.all_reduce(data.data(), count, dtype_of<T>, op);
      expect_elements<T>(data.get(), [&](std::size_t i) { return expected<T>(rank, i, op); });
    }
  }
}

void all_reduce_sum(ContractRank rank) {
  check_all_reduce<float>(rank, ReduceOp::sum);
  check_all_reduce<std::int32_t>(rank, ReduceOp::sum);
}

// On the CPU: added in fp32 and rounded once.
void all_reduce_sum_of_16_bits(ContractRank rank) {
  check_all_reduce<Half>(rank, ReduceOp::sum);
  check_all_reduce<BFloat16>(rank, ReduceOp::sum);
}

void all_reduce_max_and_min(ContractRank rank) {
  check_all_reduce<float>(rank, ReduceOp::max);
  check_all_reduce<std::int32_t>(rank, ReduceOp::max);
  check_all_reduce<Half>(rank, ReduceOp::max);
  check_all_reduce<BFloat16>(rank, ReduceOp::max);
  check_all_reduce<std::int32_t>(rank, ReduceOp::min);
}

// More than the staging memory of any implementation.
void all_reduce_large(ContractRank rank) {
  constexpr std::size_t kCount = 3'500'001 / kFewer;
  for (Memory memory : kMemories) {
    Elements<float> wide(rank, memory, kCount);
    Elements<BFloat16> narrow(rank, memory, kCount);
    fill(rank, wide);
    fill(rank, narrow);
    rank.communicator.all_reduce(wide.data(), kCount, DType::f32, ReduceOp::sum);
    rank.communicator.all_reduce(narrow.data(), kCount, DType::bf16, ReduceOp::sum);
    expect_elements<float>(wide.get(),
                           [&](std::size_t i) { return expected<float>(rank, i, ReduceOp::sum); });
    expect_elements<BFloat16>(narrow.get(),
                              [&](std::size_t i) { return expected<BFloat16>(rank, i, ReduceOp::sum); });
  }
}

// (1 + 1e8) + (-1e8 + 1) is 0, but 1 + 1e8 - 1e8 + 1 is 1 in rank order.
void four_ranks_are_added_as_two_pairs(ContractRank rank) {
  if (rank.sums == Sums::in_any_order) return;
  constexpr std::array<float, 4> kTerms = {1.0f, 1e8f, -1e8f, 1.0f};
  const int size = rank.communicator.size();
  Elements<float> data(rank, Memory::plain, 100'000);
  data.set([&](std::size_t) { return kTerms[static_cast<std::size_t>(rank.communicator.rank()) % 4]; });
  rank.communicator.all_reduce(data.data(), 100'000, DType::f32, ReduceOp::sum);
  const std::vector<float>& sums = data.get();
  if (size == 3 || size == 4) {
    EXPECT_EQ(sums.front(), 0.0f);
  }
  for (float element : sums) ASSERT_EQ(element, sums.front());
}

void pieces_give_the_same_bits_as_the_whole(ContractRank rank) {
  constexpr std::size_t kCount = 50'021;
  constexpr std::array<std::size_t, 6> kCuts = {0, 1, 17, 4099, 30'000, kCount};
  for (Memory memory : kMemories) {
    Elements<float> whole(rank, Memory::plain, kCount);
    Elements<float> pieces(rank, memory, kCount);
    fill(rank, whole);
    fill(rank, pieces);
    rank.communicator.all_reduce(whole.data(), kCount, DType::f32, ReduceOp::sum);
    for (std::size_t k = 0; k + 1 < kCuts.size(); ++k) {
      rank.communicator.all_reduce(pieces.data() + kCuts[k], kCuts[k + 1] - kCuts[k], DType::f32,
                                   ReduceOp::sum);
    }
    EXPECT_EQ(std::memcmp(whole.get().data(), pieces.get().data(), kCount * sizeof(float)), 0);
  }
}

// Sums that depend on their order.
void all_ranks_hold_the_same_bits(ContractRank rank) {
  constexpr std::size_t kCount = 10'007;
  const auto size = static_cast<std::size_t>(rank.communicator.size());
  Elements<float> data(rank, Memory::registered, kCount);
  Elements<float> everybody(rank, Memory::plain, size * kCount);
  data.set([&](std::size_t i) { return value<float>(Sums::along_the_tree, rank.communicator.rank(), i); });
  rank.communicator.all_reduce(data.data(), kCount, DType::f32, ReduceOp::sum);
  rank.communicator.all_gather(data.data(), everybody.data(), kCount, DType::f32);
  const std::vector<float>& all = everybody.get();
  for (std::size_t k = 0; k < size; ++k) {
    EXPECT_EQ(std::memcmp(data.get().data(), all.data() + k * kCount, kCount * sizeof(float)), 0)
        << "rank " << k;
  }
}

template <typename T>
void check_reduce_scatter(ContractRank rank, Memory memory, std::span<const std::size_t> counts,
                          bool in_place) {
  const auto size = static_cast<std::size_t>(rank.communicator.size());
  Elements<T> send(rank, memory, size * counts.back());
  Elements<T> recv(rank, memory, counts.back());
  for (const std::size_t count : counts) {
    SCOPED_TRACE(testing::Message() << count << " elements of " << name_of(dtype_of<T>));
    const std::size_t first = static_cast<std::size_t>(rank.communicator.rank()) * count;
    send.resize(size * count);
    recv.resize(count);
    fill(rank, send);
    recv.set([](std::size_t) { return T{}; });
    T* result = in_place ? send.data() + first : recv.data();
    rank.communicator.reduce_scatter(send.data(), result, count, dtype_of<T>, ReduceOp::sum);
    const std::span<const T> got =
        in_place ? std::span<const T>(send.get()).subspan(first, count) : std::span<const T>(recv.get());
    expect_elements<T>(got, [&](std::size_t i) { return expected<T>(rank, first + i, ReduceOp::sum); });
  }
}

void reduce_scatter(ContractRank rank) {
  const auto counts = share_counts(rank);
  for (Memory memory : kMemories) {
    check_reduce_scatter<float>(rank, memory, counts, false);
    check_reduce_scatter<float>(rank, memory, counts, true);
    check_reduce_scatter<BFloat16>(rank, memory, counts, true);
  }
}

template <typename T>
void check_all_gather(ContractRank rank, Memory memory, std::span<const std::size_t> counts, bool in_place) {
  const auto size = static_cast<std::size_t>(rank.communicator.size());
  const auto me = static_cast<std::size_t>(rank.communicator.rank());
  Elements<T> send(rank, memory, counts.back());
  Elements<T> recv(rank, memory, size * counts.back());
  const auto of_rank = [&](std::size_t k, std::size_t i) {
    return value<T>(rank.sums, static_cast<int>(k), i);
  };
  for (const std::size_t count : counts) {
    SCOPED_TRACE(testing::Message() << count << " elements of " << name_of(dtype_of<T>));
    send.resize(count);
    recv.resize(size * count);
    fill(rank, send);
    recv.set_blocks(size,
                    [&](std::size_t k, std::size_t i) { return in_place && k == me ? of_rank(k, i) : T{}; });
    const T* own = in_place ? recv.data() + me * count : send.data();
    rank.communicator.all_gather(own, recv.data(), count, dtype_of<T>);
    expect_blocks<T>(recv.get(), size, of_rank);
  }
}

void all_gather(ContractRank rank) {
  const auto counts = share_counts(rank);
  for (Memory memory : kMemories) {
    check_all_gather<float>(rank, memory, counts, false);
    check_all_gather<std::int32_t>(rank, memory, counts, true);
    check_all_gather<std::uint8_t>(rank, memory, counts, true);
  }
}

// Element i of the block that rank `from` sends to rank `to`.
template <typename T>
T block_value(const ContractRank& rank, int from, int to, std::size_t i) {
  return value<T>(rank.sums, from * rank.communicator.size() + to, i);
}

// The sent data must not change.
template <typename T>
void check_all_to_all(ContractRank rank, Memory send_memory, Memory recv_memory,
                      std::span<const std::size_t> counts) {
  const int me = rank.communicator.rank();
  const auto size = static_cast<std::size_t>(rank.communicator.size());
  Elements<T> send(rank, send_memory, size * counts.back());
  Elements<T> recv(rank, recv_memory, size * counts.back());
  const auto sent = [&](std::size_t to, std::size_t i) {
    return block_value<T>(rank, me, static_cast<int>(to), i);
  };
  for (const std::size_t count : counts) {
    SCOPED_TRACE(testing::Message() << count << " elements of " << name_of(dtype_of<T>));
    send.resize(size * count);
    recv.resize(size * count);
    send.set_blocks(size, sent);
    recv.set([](std::size_t) { return T{}; });
    rank.communicator.all_to_all(send.data(), recv.data(), count, dtype_of<T>);
    expect_blocks<T>(recv.get(), size, [&](std::size_t from, std::size_t i) {
      return block_value<T>(rank, static_cast<int>(from), me, i);
    });
    expect_blocks<T>(send.get(), size, sent);
  }
}

void all_to_all(ContractRank rank) {
  const auto counts = share_counts(rank);
  for (Memory memory : kMemories) {
    check_all_to_all<float>(rank, memory, memory, counts);
    check_all_to_all<BFloat16>(rank, memory, Memory::plain, counts);
    check_all_to_all<std::uint8_t>(rank, Memory::plain, memory, counts);
  }
}

void broadcast_from_every_root(ContractRank rank) {
  for (Memory memory : kMemories) {
    Elements<float> data(rank, memory, kCounts.back());
    for (int root = 0; root < rank.communicator.size(); ++root) {
      for (std::size_t count : kCounts) {
        SCOPED_TRACE(testing::Message() << count << " from " << root);
        data.resize(count);
        fill(rank, data);
        rank.communicator.broadcast(data.data(), count, DType::f32, root);
        expect_elements<float>(data.get(), [&](std::size_t i) { return value<float>(rank.sums, root, i); });
      }
    }
  }
}

// Sizes around the staging limits: up to 8 KiB at once, then rounds of 64 KiB and an odd last round.
template <typename T>
void check_around_staging(ContractRank rank) {
  constexpr std::size_t kSmall = (8 << 10) / sizeof(T);
  constexpr std::size_t kRound = (64 << 10) / sizeof(T);
  constexpr std::size_t kSizes[] = {kSmall, kSmall + 1, kRound - 1, kRound, kRound + 1, 3 * kRound + 7};
  check_all_reduce<T>(rank, ReduceOp::sum, kSizes);
  if constexpr (std::is_same_v<T, std::int32_t> || std::is_same_v<T, Half>)
    return;  // copied in the same way as the other types
  const auto size = static_cast<std::size_t>(rank.communicator.size());
  const std::array<std::size_t, 3> shares = {kSmall / size + 1, kRound / size + 1, kRound + 1};
  for (Memory memory : kMemories) {
    for (const bool in_place : {false, true}) {
      check_reduce_scatter<T>(rank, memory, shares, in_place);
      check_all_gather<T>(rank, memory, shares, in_place);
    }
    check_all_to_all<T>(rank, memory, memory, shares);
  }
}

void sizes_around_what_is_staged(ContractRank rank) {
  if (kOneOf > 1) return;  // sanitizers run no implementation that stages elements
  check_around_staging<float>(rank);
  check_around_staging<std::int32_t>(rank);
  check_around_staging<Half>(rank);
  check_around_staging<BFloat16>(rank);
}

// A value that depends on all earlier calls: each must be complete when it returns.
void what_is_completed_is_done(ContractRank rank) {
  Communicator& host = rank.communicator.host();
  std::int32_t value = 0;
  for (int k = 0; k < 100; ++k) {
    std::int32_t enqueued = host.rank() == 0 || k % 3 > 0 ? 2 : 0;
    if (k % 3 == 0) host.broadcast(&enqueued, 1, DType::i32, 0);
    if (host.rank() == k % host.size()) ++value;
    host.complete({.kind = CollectiveKind::all_reduce,
                   .dtype = DType::i32,
                   .op = ReduceOp::max,
                   .recv = &value,
                   .count = 1});
    ASSERT_EQ(value, 1 + k);
    ASSERT_EQ(enqueued, 2);
  }
  const std::uint64_t sequence = host.complete({.kind = CollectiveKind::barrier});
  EXPECT_EQ(host.log().read().back().collective.sequence, sequence);
}

void agreements_travel_in_host_memory(ContractRank rank) {
  Communicator& host = rank.communicator.host();
  ASSERT_EQ(host.size(), rank.communicator.size());
  ASSERT_EQ(host.rank(), rank.communicator.rank());
  const std::int32_t mine = 100 + host.rank();
  std::vector<std::int32_t> all(static_cast<std::size_t>(host.size()));
  host.all_gather(&mine, all.data(), 1, DType::i32);
  host.stream().synchronize();
  for (int k = 0; k < host.size(); ++k) EXPECT_EQ(all[static_cast<std::size_t>(k)], 100 + k);
}

// Each rank writes a file as its earlier work; after the barrier all files exist.
void barrier_waits_for_everybodys_earlier_work(ContractRank rank) {
  namespace fs = std::filesystem;
  Communicator& communicator = rank.communicator;
  std::uint32_t unique = std::random_device{}();
  communicator.host().broadcast(&unique, 1, DType::i32, 0);
  communicator.host().stream().synchronize();
  const fs::path folder = fs::temp_directory_path() / ("lockstep_barrier_" + std::to_string(unique));
  fs::create_directories(folder);
  const fs::path own = folder / std::to_string(communicator.rank());
  std::ptrdiff_t seen = 0;

  communicator.stream().enqueue([&own] { std::ofstream(own) << "here"; });
  communicator.barrier();
  communicator.stream().enqueue(
      [&] { seen = std::distance(fs::directory_iterator(folder), fs::directory_iterator()); });
  communicator.barrier();
  communicator.stream().synchronize();
  EXPECT_EQ(seen, communicator.size());
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

void operations_run_in_the_order_enqueued(ContractRank rank) {
  constexpr int kRounds = 300;
  Communicator& communicator = rank.communicator;
  Stream& stream = communicator.stream();
  const int size = communicator.size();
  const Buffer host(sizeof(std::int32_t), stream.device(), MemoryKind::pinned_host);
  auto* number = reinterpret_cast<std::int32_t*>(host.data());
  Elements<std::int32_t> plain(rank, Memory::plain, 1);
  Elements<std::int32_t> count(rank, Memory::registered, 1);
  count.set([](std::size_t) { return 0; });
  for (int round = 0; round < kRounds; ++round) {
    stream.copy(number, count.data(), sizeof(std::int32_t));
    stream.enqueue([number, size] { *number = *number / size + 1; });
    stream.copy(plain.data(), number, sizeof(std::int32_t));
    communicator.broadcast(plain.data(), 1, DType::i32, round % size);
    stream.copy(count.data(), plain.data(), sizeof(std::int32_t));
    communicator.all_reduce(count.data(), 1, DType::i32, ReduceOp::sum);
  }
  EXPECT_EQ(count.get().front(), kRounds * size);
}

// The bytes that all ranks together have sent since `before`.
std::int32_t sent_by_all(Communicator& communicator, const Traffic& before) {
  communicator.stream().synchronize();
  const auto sent = static_cast<std::int32_t>(communicator.traffic().sent_bytes - before.sent_bytes);
  Elements<std::int32_t> sum({communicator}, Memory::plain, 1);
  sum.set([&](std::size_t) { return sent; });
  communicator.all_reduce(sum.data(), 1, DType::i32, ReduceOp::sum);
  return sum.get().front();
}

void traffic_is_counted(ContractRank rank) {
  constexpr std::size_t kCount = 9'999;
  Communicator& communicator = rank.communicator;
  const std::int32_t peers = communicator.size() - 1;
  constexpr std::int32_t kBytes = kCount * sizeof(float);
  for (Memory memory : kMemories) {
    Elements<float> data(rank, memory, kCount);
    const Traffic before = communicator.traffic();
    communicator.all_reduce(data.data(), kCount, DType::f32, ReduceOp::sum);
    EXPECT_EQ(sent_by_all(communicator, before), 2 * peers * kBytes);
    EXPECT_EQ(communicator.traffic().operations, before.operations + 2);
  }
  Elements<float> parts(rank, Memory::plain, kCount * static_cast<std::size_t>(communicator.size()));
  Traffic before = communicator.traffic();
  communicator.broadcast(parts.data(), kCount, DType::f32, 0);
  EXPECT_EQ(sent_by_all(communicator, before), peers * kBytes);

  before = communicator.traffic();
  communicator.all_gather(parts.data() + kCount * static_cast<std::size_t>(communicator.rank()), parts.data(),
                          kCount, DType::f32);
  EXPECT_EQ(sent_by_all(communicator, before), (peers + 1) * peers * kBytes);

  Elements<float> others(rank, Memory::plain, kCount * static_cast<std::size_t>(communicator.size()));
  before = communicator.traffic();
  communicator.all_to_all(parts.data(), others.data(), kCount, DType::f32);
  EXPECT_EQ(sent_by_all(communicator, before), (peers + 1) * peers * kBytes);
}

// After the error no more host work runs: on the CPU, none of the later tasks.
void errors_on_the_stream_reach_the_waiter(ContractRank rank) {
  Communicator& communicator = rank.communicator;
  const Device device = communicator.stream().device();
  Event done(device);
  bool behind = false;
  try {  // a world of one on a CPU throws at once, because the caller runs the task
    communicator.stream().enqueue([] { throw std::runtime_error("trouble on the worker"); });
    communicator.stream().enqueue([ran = &behind] { *ran = true; });
    communicator.stream().record(done);
    done.synchronize();
    ADD_FAILURE() << "expected an exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "trouble on the worker");
  }
  if (communicator.name() != "self") {
    EXPECT_THROW(communicator.stream().synchronize(), std::runtime_error);
  }
  if (device.kind == DeviceKind::cpu) {
    EXPECT_FALSE(behind);
  }
}

void wrong_arguments_are_refused(ContractRank rank) {
  Elements<std::uint8_t> byte(rank, Memory::plain, 1);
  EXPECT_THROW(rank.communicator.all_reduce(byte.data(), 1, DType::u8, ReduceOp::sum), Error);
  EXPECT_THROW(rank.communicator.broadcast(byte.data(), 1, DType::u8, rank.communicator.size()), Error);
  EXPECT_THROW(rank.communicator.broadcast(byte.data(), 1, DType::u8, -1), Error);
  const auto size = static_cast<std::size_t>(rank.communicator.size());
  Elements<std::uint8_t> bytes(rank, Memory::plain, 2 * size);
  std::uint8_t* const data = bytes.data();
  EXPECT_THROW(rank.communicator.all_to_all(nullptr, data, 1, DType::u8), Error);
  EXPECT_THROW(rank.communicator.all_to_all(data, data, 1, DType::u8), Error) << "in place";
  EXPECT_THROW(rank.communicator.all_to_all(data + size - 1, data, 1, DType::u8), Error) << "overlapping";
}

// Every second rank, in descending order: a group has its own collectives, agreements, log and rank numbers,
// and leaves the parent communicator unchanged.
void groups_are_communicators(ContractRank rank) {
  Communicator& all = rank.communicator;
  const int colour = all.rank() % 2;
  const int size = (all.size() + 1 - colour) / 2;
  Elements<float> before(rank, Memory::registered, 5003);
  Elements<float> after(rank, Memory::registered, 5003);
  fill(rank, before);
  all.all_reduce(before.data(), 5003, DType::f32, ReduceOp::sum);

  EXPECT_EQ(all.split(-1, 0), nullptr);
  const std::unique_ptr<Communicator> group = all.split(colour, -all.rank());
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->size(), size);
  EXPECT_EQ(group->rank(), size - 1 - all.rank() / 2);
  EXPECT_EQ(group->name(), all.name());
  EXPECT_EQ(group->job(), all.job());
  const ContractRank in_group{*group, rank.sums};
  check_all_reduce<float>(in_group, ReduceOp::sum, kBadSplits);
  check_all_reduce<BFloat16>(in_group, ReduceOp::sum, kBadSplits);
  EXPECT_EQ(first_rank_where(group->host(), true), 0);
  group->set_call_check(CallCheck::collective);
  group->barrier();
  group->stream().synchronize();
  EXPECT_EQ(group->log().read().size(), std::min<std::size_t>(group->traffic().operations, 1024));
  EXPECT_NE(group->traffic().operations, all.traffic().operations);

  fill(rank, after);
  all.all_reduce(after.data(), 5003, DType::f32, ReduceOp::sum);
  EXPECT_EQ(std::memcmp(before.get().data(), after.get().data(), 5003 * sizeof(float)), 0);
}

void memory_may_outlive_the_communicator(ContractRank rank) {
  std::unique_ptr<Communicator> group = rank.communicator.split(0, rank.communicator.rank());
  const Buffer memory = group->allocate(5000);
  group->all_reduce(memory.data(), 1000, DType::f32, ReduceOp::sum);
  group->stream().synchronize();
  group.reset();
  Elements<float> used(rank, Memory::plain, 1000);
  Stream& stream = rank.communicator.stream();
  stream.copy(memory.data(), used.data(), 4000);
  stream.copy(used.data(), memory.data(), 4000);
  stream.synchronize();
}

constexpr ContractCase kCases[] = {
    {"all_reduce_sum", all_reduce_sum},
    {"all_reduce_sum_of_16_bits", all_reduce_sum_of_16_bits},
    {"all_reduce_max_and_min", all_reduce_max_and_min},
    {"all_reduce_large", all_reduce_large},
    {"sums_follow_the_tree", sums_follow_the_tree},
    {"four_ranks_are_added_as_two_pairs", four_ranks_are_added_as_two_pairs},
    {"pieces_give_the_same_bits_as_the_whole", pieces_give_the_same_bits_as_the_whole},
    {"all_ranks_hold_the_same_bits", all_ranks_hold_the_same_bits},
    {"reduce_scatter", reduce_scatter},
    {"all_gather", all_gather},
    {"all_to_all", all_to_all},
    {"broadcast_from_every_root", broadcast_from_every_root},
    {"sizes_around_what_is_staged", sizes_around_what_is_staged},
    {"what_is_completed_is_done", what_is_completed_is_done},
    {"agreements_travel_in_host_memory", agreements_travel_in_host_memory},
    {"barrier_waits_for_everybodys_earlier_work", barrier_waits_for_everybodys_earlier_work},
    {"operations_run_in_the_order_enqueued", operations_run_in_the_order_enqueued},
    {"traffic_is_counted", traffic_is_counted},
    {"errors_on_the_stream_reach_the_waiter", errors_on_the_stream_reach_the_waiter},
    {"wrong_arguments_are_refused", wrong_arguments_are_refused},
    {"groups_are_communicators", groups_are_communicators},
    {"memory_may_outlive_the_communicator", memory_may_outlive_the_communicator},
};

}  // namespace

std::span<const ContractCase> communicator_contract() { return kCases; }

void sums_follow_the_tree(ContractRank rank) {
  check_all_reduce<float>(rank, ReduceOp::sum, kBadSplits);
  check_all_reduce<std::int32_t>(rank, ReduceOp::sum, kBadSplits);
  check_all_reduce<Half>(rank, ReduceOp::sum, kBadSplits);
  check_all_reduce<BFloat16>(rank, ReduceOp::sum, kBadSplits);
  // all_reduce_max_and_min checks the other types.
  check_all_reduce<float>(rank, ReduceOp::max, kBadSplits);
  check_all_reduce<BFloat16>(rank, ReduceOp::max, kBadSplits);
}

}  // namespace lockstep
