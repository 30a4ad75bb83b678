// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "comm/agreement.h"
#include "comm/sums/reduce.h"
#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kComparable = 256;  // the last collectives, which check_calls() can compare

struct CallsSoFar {
  std::uint64_t sequence;
  std::uint64_t hash;
};

// `call` is what the rank's ring of its last calls holds at the place of `sequence`. If the rank has not
// reached that sequence, this is an older call, or none.
std::string describe_call(int rank, const CollectiveIdentity& call, std::uint64_t sequence) {
  if (call.sequence != sequence) return fmt::format("rank {} has no collective {}", rank, sequence);
  return fmt::format("rank {} is in {}", rank, describe(collective_of(call)));
}

[[noreturn]] void throw_calls_differ(std::string_view communicator, const std::string& how) {
  throw_agreed(Error(exit_code::failed,
                     fmt::format("the ranks' collectives differ (communicator {}): {}; all ranks must "
                                 "enqueue the same collectives in the same order",
                                 communicator, how)));
}

}  // namespace

Communicator::Communicator(std::string_view name, int rank, int size, std::shared_ptr<JobState> job)
    : rank_(rank),
      size_(size),
      job_(std::move(job)),
      node_of_rank_(static_cast<std::size_t>(size), 0),
      log_(name, rank, size),
      calls_(kComparable) {
  job_->add_log(log_);
}

Communicator::~Communicator() { job_->remove_log(log_); }

std::uint64_t Communicator::enqueue(Collective collective) { return submit(collective, &Communicator::run); }

std::uint64_t Communicator::complete(Collective collective) {
  const std::uint64_t sequence = submit(collective, &Communicator::run_to_its_end);
  if (collective.count == 0) stream().synchronize();
  return sequence;
}

std::uint64_t Communicator::submit(Collective& collective, Run how) {
  check(collective);
  if (collective.purpose.bucket < 0 && collective.purpose.layer < 0) collective.purpose = purpose_;
  const std::uint64_t hash_before = calls_hash_;
  const CollectiveIdentity identity = number(collective);
  const bool recorded = recording();
  // A rank that cannot record its work enqueues none of it, and so would not compare.
  if (call_check_ == CallCheck::collective && !recorded) compare({&identity, 1});
  if (recorded && recorded_.collectives.empty()) recorded_.hash_before = hash_before;
  recorded ? recorded_.collectives.push_back(collective) : begin(collective);
  if (collective.count == 0 && collective.kind != CollectiveKind::barrier) return collective.sequence;
  (this->*how)(collective);
  const std::uint64_t bytes = bytes_sent_by(collective);
  recorded ? void(recorded_.sent_bytes += bytes) : sent(collective, bytes);
  return collective.sequence;
}

void Communicator::check(const Collective& collective) const {
  const CollectiveKind kind = collective.kind;
  const bool reduces = kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
  const bool exchanges = kind == CollectiveKind::all_to_all;
  const bool has_send =
      kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_gather || exchanges;
  CHECK(!reduces || reducible(collective.dtype), "{} cannot be reduced", name_of(collective.dtype));
  CHECK(kind != CollectiveKind::broadcast || (collective.root >= 0 && collective.root < size_),
        "root {} of {} ranks", collective.root, size_);
  if (collective.count == 0) return;
  CHECK(collective.recv != nullptr && (!has_send || collective.send != nullptr), "{} has a null pointer",
        describe(collective));
  if (!exchanges) return;
  const auto* send = static_cast<const std::byte*>(collective.send);
  const auto* recv = static_cast<const std::byte*>(collective.recv);
  const std::size_t bytes = collective.count * size_of(collective.dtype) * static_cast<std::size_t>(size_);
  const std::less_equal<> not_after;
  CHECK(not_after(send + bytes, recv) || not_after(recv + bytes, send),
        "{}: the send and receive buffers overlap ({} bytes at {} and at {})", describe(collective), bytes,
        collective.send, collective.recv);
}

CollectiveIdentity Communicator::number(Collective& collective) {
  collective.sequence = ++sequence_;
  const CollectiveIdentity identity = identity_of(collective);
  calls_hash_ = chained_hash(calls_hash_, identity);
  calls_[collective.sequence % kComparable] = identity;
  return identity;
}

void Communicator::begin(const Collective& collective) {
  ++operations_;
  log_.begin(collective);
}

void Communicator::sent(const Collective& collective, std::uint64_t bytes) {
  if (collective.sequence == 0) return;
  sent_bytes_ += bytes;
  if (bytes > 0) log_.sent(collective.sequence, bytes);
}

RecordedCollectives Communicator::take_recorded() { return std::exchange(recorded_, {}); }

void Communicator::discard(const RecordedCollectives& recorded) {
  if (recorded.collectives.empty()) return;
  sequence_ = recorded.collectives.front().sequence - 1;
  calls_hash_ = recorded.hash_before;
}

void Communicator::replayed(const RecordedCollectives& recorded, Stream& stream) {
  for (Collective collective : recorded.collectives) {
    number(collective);
    collective.purpose.final_ns = collective.purpose.enqueued_ns = 0;
    begin(collective);
  }
  sent_bytes_ += recorded.sent_bytes;
  replayed_on(stream);
}

void Communicator::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  enqueue({.kind = CollectiveKind::all_reduce, .dtype = dtype, .op = op, .recv = data, .count = count});
}

void Communicator::reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) {
  enqueue({.kind = CollectiveKind::reduce_scatter,
           .dtype = dtype,
           .op = op,
           .send = send,
           .recv = recv,
           .count = count});
}

void Communicator::all_gather(const void* send, void* recv, std::size_t count, DType dtype) {
  enqueue({.kind = CollectiveKind::all_gather, .dtype = dtype, .send = send, .recv = recv, .count = count});
}

void Communicator::all_to_all(const void* send, void* recv, std::size_t count, DType dtype) {
  enqueue({.kind = CollectiveKind::all_to_all, .dtype = dtype, .send = send, .recv = recv, .count = count});
}

void Communicator::broadcast(void* data, std::size_t count, DType dtype, int root) {
  enqueue({.kind = CollectiveKind::broadcast, .dtype = dtype, .root = root, .recv = data, .count = count});
}

void Communicator::barrier() { enqueue({.kind = CollectiveKind::barrier}); }

void Communicator::check_calls() {
  if (size_ == 1) return;
  const CallsSoFar mine{sequence_, calls_hash_};
  std::vector<CallsSoFar> all(static_cast<std::size_t>(size_));
  gather_unseen(&mine, all.data(), sizeof(mine));
  const bool same = std::ranges::all_of(all, [&](const CallsSoFar& other) {
    return other.sequence == all[0].sequence && other.hash == all[0].hash;
  });
  if (same) return;
  compare(calls_);
  throw_calls_differ(name(), fmt::format("the last {} are equal, but an earlier one differs, which "
                                         "comm.check = \"collective\" names",
                                         kComparable));
}

// Finds the lowest sequence at which a rank differs from rank 0; ranks may hold different windows of
// sequences.
void Communicator::compare(std::span<const CollectiveIdentity> mine) {
  if (size_ == 1) return;
  const std::size_t each = mine.size();
  std::vector<CollectiveIdentity> all(each * static_cast<std::size_t>(size_));
  gather_unseen(mine.data(), all.data(), mine.size_bytes());
  const auto of = [&](int rank, std::size_t i) { return all[static_cast<std::size_t>(rank) * each + i]; };
  struct FirstDifference {
    std::uint64_t sequence;
    int rank;
    std::size_t place;
  };
  std::optional<FirstDifference> first;
  for (int rank = 1; rank < size_; ++rank) {
    for (std::size_t i = 0; i < each; ++i) {
      if (of(rank, i) == of(0, i)) continue;
      const std::uint64_t sequence = std::max(of(0, i).sequence, of(rank, i).sequence);
      if (!first || sequence < first->sequence) first = FirstDifference{sequence, rank, i};
    }
  }
  if (!first) return;
  throw_calls_differ(name(),
                     fmt::format("{}, {}", describe_call(0, of(0, first->place), first->sequence),
                                 describe_call(first->rank, of(first->rank, first->place), first->sequence)));
}

void Communicator::gather_unseen(const void* mine, void* all, std::size_t bytes) {
  host().run_to_its_end(
      {.kind = CollectiveKind::all_gather, .dtype = DType::u8, .send = mine, .recv = all, .count = bytes});
}

int first_rank_where(Communicator& host, bool found) {
  const std::int32_t size = host.size();
  std::int32_t from_the_end = found ? size - host.rank() : 0;  // largest on the lowest rank
  host.complete({.kind = CollectiveKind::all_reduce,
                 .dtype = DType::i32,
                 .op = ReduceOp::max,
                 .recv = &from_the_end,
                 .count = 1});
  return from_the_end == 0 ? -1 : size - from_the_end;
}

}  // namespace lockstep
