// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog/watchdog.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "comm/agreement.h"
#include "comm/job/networks.h"
#include "comm/watchdog/evidence.h"
#include "core/error.h"
#include "core/log.h"
#include "core/system/backtrace.h"

namespace lockstep {
namespace {

using Milliseconds = std::chrono::milliseconds;
using SteadyClock = JobState::Clock;

constexpr Milliseconds kEvidenceWait{3000};  // for other ranks to answer
constexpr Milliseconds kDeadWait{3000};      // for a launcher to end the job of a dead rank itself
constexpr Milliseconds kConnectWait{5000};   // for a post to be reached
constexpr Milliseconds kToldWait{500};       // before an ended link is reported
constexpr Milliseconds kEndWait{5000};       // for a launcher to end this process

Milliseconds interval_for(Milliseconds silence) {
  return std::clamp(silence / 20, Milliseconds(50), Milliseconds(1000));
}

// Rank 0, and the first rank of another node, or rank 1 if there is one node.
std::vector<int> posts_of(std::span<const int> node_of_rank) {
  if (node_of_rank.size() == 1) return {0};
  const auto other = std::ranges::find_if(node_of_rank, [&](int node) { return node != node_of_rank[0]; });
  return {0, other == node_of_rank.end() ? 1 : static_cast<int>(other - node_of_rank.begin())};
}

// The addresses at which ranks of the job reach this one: only loopback if all of them are on its node.
std::vector<std::string> places_of_job(std::span<const int> node_of_rank) {
  std::vector<std::string> places = {"127.0.0.1"};
  if (std::ranges::all_of(node_of_rank, [&](int node) { return node == node_of_rank[0]; })) return places;
  for (const OwnAddress& each : addresses_of_job(own_addresses(), &std::getenv))
    places.push_back(each.address);
  return places;
}

// The text on new lines, indented by two spaces.
std::string indented(const std::string& text) {
  std::string result("\n  ");
  for (const char letter : text) {
    result += letter;
    if (letter == '\n') result.append(2, ' ');
  }
  return result;
}

}  // namespace

Watchdog::Watchdog(Communicator& host, Options options)
    : rank_(host.rank()),
      size_(host.size()),
      job_(host.job()),
      options_(std::move(options)),
      interval_(interval_for(options_.silence)),
      posts_(posts_of(host.node_of_rank())) {
  std::string way;
  if (size_ > 1 && std::ranges::find(posts_, rank_) != posts_.end()) {
    try {
      way = meeting_point_.emplace(places_of_job(host.node_of_rank())).way();
    } catch (const std::exception& error) {
      log::warning("peers cannot reach this rank's watchdog: {}", error.what());
    }
  }
  if (size_ == 1 || is_post()) heard_.resize(static_cast<std::size_t>(size_));
  if (size_ > 1) {
    const std::vector<std::string> all = gather_texts(host, way);
    for (const int post : posts_) ways_.push_back(all[static_cast<std::size_t>(post)]);
  }
  for (std::size_t rank = 0; rank < heard_.size(); ++rank)
    heard_[rank].rank.status.rank = static_cast<std::int32_t>(rank);
  prepare_backtraces();
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  job_->set_watched(true);
  thread_ = start_without_signals("ls-watchdog", [this, place = current_rank()] {
    const RankScope scope(place);
    run();
  });
}

Watchdog::~Watchdog() {
  job_->set_watched(false);
  farewell();
  stopping_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
  close(wake_);
}

void Watchdog::farewell() {
  const std::lock_guard lock(mutex_);
  for (WatchLink& link : links_) link.say(WatchWord::goodbye);
}

void Watchdog::set_device(std::function<DevicePlace()> place) {
  const std::lock_guard lock(device_mutex_);
  device_ = std::move(place);
}

void Watchdog::run() {
  connect();
  auto next = SteadyClock::now();
  while (!stopping_) {
    const auto now = SteadyClock::now();
    if (now >= next) {
      beat();
      if (!heard_.empty()) watch_others();
      next = now + interval_;
    }
    serve(std::chrono::ceil<Milliseconds>(next - SteadyClock::now()));
    // The launcher has been asked to end this process.
    if (told_to_end_ && SteadyClock::now() - *told_to_end_ > kEndWait) std::_Exit(exit_code::resumable);
  }
}

void Watchdog::connect() {
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    if (posts_[i] == rank_) continue;
    std::optional<WatchLink> link = reach(ways_[i]);
    if (stopping_) return;
    if (!link) {
      log::warning(
          "cannot reach the watchdog of rank {} by TCP: if this rank hangs, the job ends without naming it",
          posts_[i]);
      continue;
    }
    const std::lock_guard lock(mutex_);
    links_.push_back(std::move(*link));
  }
}

// Tries for kConnectWait, or until this watchdog stops.
std::optional<WatchLink> Watchdog::reach(const std::string& way) {
  if (way.empty()) return std::nullopt;
  const auto meanwhile = [this] {
    if (is_post()) serve_visitors();
    return !stopping_;
  };
  const auto deadline = SteadyClock::now() + kConnectWait;
  while (!stopping_) {
    if (std::optional<WatchLink> link = connect_to(way, rank_, meanwhile)) return link;
    if (SteadyClock::now() >= deadline) break;
    serve(Milliseconds(100));
  }
  return std::nullopt;
}

void Watchdog::serve(Milliseconds longest_wait) {
  std::vector<pollfd> descriptors = {{.fd = wake_, .events = POLLIN, .revents = 0}};
  const auto add = [&](int descriptor) {
    descriptors.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
  };
  if (meeting_point_)
    for (const int descriptor : meeting_point_->descriptors()) add(descriptor);
  for (const Visitor& visitor : visitors_) add(visitor.link.descriptor());
  for (const WatchLink& link : links_) add(link.descriptor());
  poll(descriptors.data(), descriptors.size(),
       static_cast<int>(std::max<std::int64_t>(0, longest_wait.count())));
  if (is_post()) serve_visitors();
  std::vector<std::pair<std::size_t, WatchMessage>> heard;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < links_.size(); ++i)
      for (WatchMessage& message : links_[i].listen()) heard.emplace_back(i, std::move(message));
  }
  for (const auto& [i, message] : heard) heed_post(links_[i], message);
  const std::lock_guard lock(mutex_);
  std::erase_if(links_, [](const WatchLink& link) { return link.ended(); });
}

void Watchdog::serve_visitors() {
  for (MeetingPoint::Guest& guest : meeting_point_->admit()) {
    if (guest.rank >= size_) continue;
    Heard& heard = heard_[static_cast<std::size_t>(guest.rank)];
    heard.gone.reset();
    heard.rank.dead = heard.told_gone = false;
    visitors_.push_back({.link = std::move(guest.link), .rank = guest.rank});
  }
  for (Visitor& visitor : visitors_)
    for (const WatchMessage& message : visitor.link.listen()) heed_visitor(visitor, message);
  std::vector<int> ended;
  for (const Visitor& visitor : visitors_)
    if (visitor.link.ended()) ended.push_back(visitor.rank);
  std::erase_if(visitors_, [](const Visitor& visitor) { return visitor.link.ended(); });
  for (const int rank : ended) {
    // A rank connects again if its first connection times out. Its earlier link then ends.
    const bool connected = std::ranges::find(visitors_, rank, &Visitor::rank) != visitors_.end();
    Heard& heard = heard_[static_cast<std::size_t>(rank)];
    if (!connected && !heard.rank.left) heard.gone.emplace();
  }
}

void Watchdog::heed_visitor(Visitor& visitor, const WatchMessage& message) {
  Heard& heard = heard_[static_cast<std::size_t>(visitor.rank)];
  heard.silence = {};
  if (message.word == WatchWord::goodbye) heard.rank.left = true;
  if (message.word == WatchWord::evidence) heed_answer(visitor.rank, message.text);
  if (message.word != WatchWord::status) return;
  if (std::optional<RankStatus> status = decode_status(message.text);
      status && status->rank == visitor.rank) {
    heard.rank.status = std::move(*status);
    heard.rank.heard = true;
  }
}

void Watchdog::heed_post(WatchLink& post, const WatchMessage& message) {
  std::string answer;
  if (message.word == WatchWord::ask)
    answer = own_stacks();
  else if (message.word == WatchWord::witness)
    answer = seen_of(message.text);
  else if (message.word == WatchWord::end && !told_to_end_)
    told_to_end_ = SteadyClock::now();
  if (answer.empty()) return;
  const std::lock_guard lock(mutex_);
  post.say(WatchWord::evidence, answer);
}

void Watchdog::beat() {
  RankStatus status = look();
  const std::string bytes = encode(status);
  {
    const std::lock_guard lock(mutex_);
    for (WatchLink& link : links_)
      if (link.idle()) link.say(WatchWord::status, bytes);
  }
  if (heard_.empty()) return;
  Heard& own = heard_[static_cast<std::size_t>(rank_)];
  own.rank.status = std::move(status);
  own.rank.heard = true;
  own.silence = {};
}

RankStatus Watchdog::look() {
  RankStatus status{.rank = rank_,
                    .process = getpid(),
                    .step = current_step(),
                    .patience_ms = options_.silence.count(),
                    .host = options_.host};
  {
    const std::lock_guard lock(device_mutex_);
    if (device_) status.device = device_();
  }
  look_at_waits(status);
  look_for_overdue(status);
  return status;
}

// For a GPU the log has no times of begin and end, unless comm.kernel_times is set: its last collective is
// the one enqueued last.
void Watchdog::look_at_waits(RankStatus& status) {
  Wait oldest;
  std::int64_t oldest_ns = 0, last_ns = 0;
  job_->for_each_log([&](const CollectiveLog& log) {
    for (const CollectiveRecord& record : log.read()) {
      const CollectiveMoments& moments = record.moments;
      if (moments.started_ns > 0 && moments.finished_ns == 0 &&
          (oldest.log == nullptr || moments.started_ns < oldest_ns)) {
        oldest.log = &log;
        oldest.sequence = record.collective.sequence;
        oldest_ns = moments.started_ns;
        status.waits_in = describe(record.collective);
      }
      const std::int64_t done_ns = moments.started_ns > 0 ? moments.finished_ns : moments.enqueued_ns;
      if (done_ns > last_ns) {
        last_ns = done_ns;
        status.last = describe(record.collective);
      }
    }
  });
  if (oldest.log != wait_.log || oldest.sequence != wait_.sequence) wait_ = oldest;
  if (wait_.log != nullptr) status.waited_ms = wait_.clock.look().count();
}

void Watchdog::look_for_overdue(RankStatus& status) {
  if (step_ != status.step || !in_steps_) in_step_ = {};
  step_ = status.step;
  const Milliseconds in_step = in_step_.look();
  in_step_ms_ = in_step.count();
  const Milliseconds timeout = job_->timeout();
  if (const std::optional<OverdueWait> wait = job_->overdue()) {
    status.overdue_text = wait->reason;
    // A GPU may not have begun the collective: earlier work may not have finished.
    if (status.device.step > 0 && !wait->collective.empty()) {
      status.overdue_text = fmt::format("it has not finished {} after {:.1f} s", wait->collective,
                                        1e-3 * static_cast<double>(timeout.count()));
    } else if (status.waits_in.empty() && !wait->collective.empty()) {
      status.waits_in = wait->collective;
      status.waited_ms = timeout.count();
    }
  } else if (timeout.count() > 0 && status.waited_ms >= timeout.count()) {
    status.overdue_text =
        fmt::format("in {} for {:.1f} s", status.waits_in, 1e-3 * static_cast<double>(status.waited_ms));
  } else if (timeout.count() > 0 && in_steps_ && in_step >= timeout) {
    status.overdue_text = fmt::format("its step lasts {:.1f} s", 1e-3 * static_cast<double>(in_step.count()));
  }
  status.overdue = !status.overdue_text.empty();
}

// The second post acts if the first one cannot.
bool Watchdog::in_charge() const {
  if (rank_ == posts_[0]) return true;
  const WatchedRank& first = heard_[static_cast<std::size_t>(posts_[0])].rank;
  return first.left || is_lost(first, interval_);
}

void Watchdog::watch_others() {
  for (Heard& heard : heard_) {
    heard.rank.silent = heard.rank.heard ? heard.silence.look() : Milliseconds(0);
    if (!heard.gone) continue;
    const Milliseconds gone = heard.gone->look();
    heard.rank.dead = gone >= kDeadWait;
    if (gone < kToldWait || std::exchange(heard.told_gone, true) || !in_charge()) continue;
    log::warning("{}", describe_dead(heard.rank));
  }
  std::vector<WatchedRank> ranks;
  for (const Heard& heard : heard_) ranks.push_back(heard.rank);
  if (!needs_verdict(ranks) || !in_charge()) return wrong_since_.reset();
  const auto now = SteadyClock::now();
  if (!wrong_since_) wrong_since_ = now;
  // Waits until the statuses of all ranks have arrived.
  if (now - *wrong_since_ >= 3 * interval_) end(judge(ranks, interval_));
}

void Watchdog::end(const Verdict& verdict) {
  ask(verdict);
  const auto deadline = SteadyClock::now() + kEvidenceWait;
  const auto open = [](const Question& question) { return !question.answer; };
  while (std::ranges::any_of(questions_, open) && SteadyClock::now() < deadline && !stopping_)
    serve(Milliseconds(50));
  if (stopping_) return;
  const std::string report = verdict.text + answers();
  for (Visitor& visitor : visitors_) visitor.link.say(WatchWord::end);
  stopping_ = true;
  options_.end_job(report);
}

void Watchdog::ask(const Verdict& verdict) {
  for (const Verdict::Witness& witness : verdict.witnesses) {
    const RankStatus& status = heard_[static_cast<std::size_t>(witness.of)].rank.status;
    if (witness.rank >= 0)
      ask(witness.rank, fmt::format("process state of rank {}:", witness.of), WatchWord::witness,
          std::to_string(status.process));
  }
  for (const int rank : verdict.ask) ask(rank, fmt::format("stacks of rank {}:", rank), WatchWord::ask);
}

void Watchdog::ask(int rank, std::string title, WatchWord word, const std::string& text) {
  questions_.push_back({.rank = rank, .title = std::move(title), .answer = {}});
  if (rank == rank_) questions_.back().answer = word == WatchWord::ask ? own_stacks() : seen_of(text);
  for (Visitor& visitor : visitors_)
    if (visitor.rank == rank) visitor.link.say(word, text);
}

void Watchdog::heed_answer(int rank, const std::string& text) {
  for (Question& question : questions_) {
    if (question.rank != rank || question.answer) continue;
    question.answer = text;
    return;
  }
}

std::string Watchdog::answers() const {
  std::string text;
  for (const Question& question : questions_)
    text += fmt::format("\n{}{}", question.title, indented(question.answer.value_or("no answer")));
  return text;
}

}  // namespace lockstep
