// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/transfers.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "tests/cuda_emulator/nccl/exchange.h"
#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

constexpr std::size_t kLine = 64;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

}  // namespace

TransferExchange::TransferExchange(EmulatedCommunicator& communicator, const Operation& operation)
    : communicator_(communicator),
      operation_(operation),
      rank_(communicator.rank()),
      ranks_(communicator.ranks()),
      part_bytes_((kChunkBytes / index(ranks_) - sizeof(Row)) / kLine * kLine) {}

TransferExchange::Row* TransferExchange::table(int rank) {
  return reinterpret_cast<Row*>(communicator_.segment().slot(rank, communicator_.parity()));
}

std::byte* TransferExchange::part(int from, int to) {
  return reinterpret_cast<std::byte*>(table(from) + ranks_) + index(to) * part_bytes_;
}

void TransferExchange::run() {
  for (const Transfer& send : operation_.sends)
    require_memory(communicator_, operation_.call, send.data, send.bytes());
  for (const Transfer& receive : operation_.receives)
    require_memory(communicator_, operation_.call, receive.data, receive.bytes());
  {
    const Unseen unseen;
    if (communicator_.broken())
      throw DeviceFault("the communicator is broken, because its ranks made different calls");
    communicator_.segment().member(rank_).calls[communicator_.parity()] = operation_.call;
  }
  publish_table();
  auto done = std::chrono::steady_clock::now();
  std::size_t all = 1;
  for (std::size_t round = 0; round < all; ++round) {
    publish(round);
    {
      const Unseen unseen;
      if (!communicator_.meet()) return;
    }
    if (round == 0) {
      compare_calls(communicator_, operation_.call);
      compare_tables();
      all = rounds();
      done = std::chrono::steady_clock::now() + communicator_.ring().least_time_of_transfers(most_bytes());
    }
    collect(round);
    communicator_.next_chunk();
  }
  const Unseen unseen;
  if (communicator_.ledger().sleep_until(done)) communicator_.count();
}

void TransferExchange::publish_table() {
  Row* const mine = table(rank_);
  std::fill_n(mine, ranks_, Row{});
  for (const Transfer& send : operation_.sends)
    mine[send.peer].send = {.type = send.type, .present = 1, .count = send.count};
  for (const Transfer& receive : operation_.receives)
    mine[receive.peer].receive = {.type = receive.type, .present = 1, .count = receive.count};
}

void TransferExchange::compare_tables() {
  const auto words = [](const Side& side) {
    return side.present == 0 ? std::string("nothing")
                             : fmt::format("{} elements ({})", side.count, name_of_type(side.type));
  };
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) {
      const Side& sent = table(from)[to].send;
      const Side& received = table(to)[from].receive;
      if (sent.present == received.present && sent.type == received.type && sent.count == received.count)
        continue;
      const Unseen unseen;
      end_with_mistake(
          communicator_,
          fmt::format("in {}, rank {} sends {} to rank {}, and rank {} receives {} from rank {}",
                      describe(operation_.call), from, words(sent), to, to, words(received), from));
    }
  }
}

std::size_t TransferExchange::rounds() {
  std::size_t longest = 0;
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) {
      const Side& sent = table(from)[to].send;
      if (sent.present != 0) longest = std::max(longest, sent.count * size_of_type(sent.type));
    }
  }
  return std::max<std::size_t>(1, (longest + part_bytes_ - 1) / part_bytes_);
}

double TransferExchange::most_bytes() {
  double most = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    double sent = 0;
    double received = 0;
    for (int other = 0; other < ranks_; ++other) {
      if (other == rank) continue;
      const Row& row = table(rank)[other];
      sent += static_cast<double>(row.send.count * size_of_type(row.send.type));
      received += static_cast<double>(row.receive.count * size_of_type(row.receive.type));
    }
    most = std::max({most, sent, received});
  }
  return most;
}

void TransferExchange::publish(std::size_t round) {
  const std::size_t at = round * part_bytes_;
  bool contributes = false;
  for (const Transfer& send : operation_.sends) {
    if (at >= send.bytes()) continue;
    std::memcpy(part(rank_, send.peer), send.data + at, std::min(part_bytes_, send.bytes() - at));
    contributes = true;
  }
  if (contributes) announce(communicator_.order().of(rank_, communicator_.parity()));
}

void TransferExchange::collect(std::size_t round) {
  const std::size_t at = round * part_bytes_;
  for (const Transfer& receive : operation_.receives) {
    if (at >= receive.bytes()) continue;
    follow(communicator_.order().of(receive.peer, communicator_.parity()));
    std::memcpy(receive.data + at, part(receive.peer, rank_), std::min(part_bytes_, receive.bytes() - at));
  }
}

}  // namespace lockstep::emulator
