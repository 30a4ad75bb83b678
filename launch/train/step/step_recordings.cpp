// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step/step_recordings.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "comm/agreement.h"
#include "core/log.h"

namespace lockstep {

StepRecordings::StepRecordings(Stream& stream, std::vector<Communicator*> communicators)
    : stream_(stream), communicators_(std::move(communicators)) {}

void StepRecordings::begin(bool records, std::int64_t enqueue_every, std::int64_t first_exchange) {
  records_ = records;
  enqueue_every_ = enqueue_every;
  first_exchange_ = first_exchange;
}

// Enqueues the first two steps of a kind one by one, because libraries allocate in their first calls.
void StepRecordings::restart(std::int64_t warmup_steps) {
  recordings_ = {};
  enqueued_ = {};
  logged_ = {};
  first_recorded_ = std::max<std::int64_t>(2, warmup_steps) + first_exchange_;
}

bool StepRecordings::records_now() const {
  const std::int64_t before = enqueued_[static_cast<std::size_t>(kind_)];
  const bool by_name = enqueue_every_ > 0 && (before + 1) % enqueue_every_ == 0;
  return records_ && before >= first_recorded_ && !by_name;
}

void StepRecordings::run(StepKind kind, StepSlot slot, StepDetail detail,
                         const std::function<void()>& enqueue) {
  kind_ = kind;
  Recorded& recorded =
      recordings_[static_cast<std::size_t>(detail)][static_cast<std::size_t>(kind)][slot.index];
  if (records_now() && recorded.work.empty()) recorded = record(enqueue);
  if (recorded.work.empty() || !records_now()) {
    enqueue();
  } else {
    stream_.replay(recorded.work);
    for (std::size_t i = 0; i < communicators_.size(); ++i)
      communicators_[i]->replayed(recorded.collectives[i], stream_);
    check_replayed_calls();
  }
  ++enqueued();
}

// Returns an empty recording if a rank cannot record the step: NCCL requires a collective to be replayed by
// all ranks or none, and a step is no faster than its slowest rank.
StepRecordings::Recorded StepRecordings::record(const std::function<void()>& enqueue) {
  std::string reason;
  check_due_ = false;
  Recorded step{.work = stream_.record_work(enqueue, reason), .collectives = {}};
  for (Communicator* communicator : communicators_) step.collectives.push_back(communicator->take_recorded());
  Communicator& host = communicators_.front()->host();
  const int first_without = first_rank_where(host, step.work.empty());
  if (first_without < 0) {
    if (check_due_) compare_calls(true);
    if (!std::exchange(logged_[static_cast<std::size_t>(kind_)], true)) {
      constexpr std::string_view kNames[] = {"", "local ", "averaging "};
      static_assert(std::size(kNames) == kStepKinds);
      log::info("{}steps are recorded and replayed: {} operations each",
                kNames[static_cast<std::size_t>(kind_)], step.work.operations());
    }
    return step;
  }
  if (first_without == host.rank()) log::warning("steps are enqueued one by one: {}", reason);
  for (std::size_t i = 0; i < communicators_.size(); ++i) communicators_[i]->discard(step.collectives[i]);
  records_ = false;
  recordings_ = {};
  return {};
}

// A plan is new in the first step of its kind, and when it is recorded: in the third and fourth step, or
// later. A rank whose device refuses to record may not come here, so a recorded step compares in record().
void StepRecordings::check_calls() {
  if (records_now())
    check_due_ = true;
  else
    compare_calls(enqueued() <= first_exchange_);
}

// With CallCheck::collective, enqueued collectives are already compared, but recorded ones are not.
void StepRecordings::compare_calls(bool new_plan) const {
  for (Communicator* communicator : communicators_) {
    const CallCheck check = communicator->call_check();
    if (new_plan ? check != CallCheck::off : check == CallCheck::step) communicator->check_calls();
  }
}

// A replay cannot compare before each collective, so CallCheck::collective compares here, too.
void StepRecordings::check_replayed_calls() const {
  if (kind_ == StepKind::local) return;
  for (Communicator* communicator : communicators_) {
    const CallCheck check = communicator->call_check();
    if (check == CallCheck::step || check == CallCheck::collective) communicator->check_calls();
  }
}

}  // namespace lockstep
