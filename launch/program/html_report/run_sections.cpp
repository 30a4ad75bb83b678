// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/run_sections.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <fmt/format.h>

#include "core/text/text.h"
#include "launch/observe/charts/markup.h"
#include "launch/program/html_report/charts/chart.h"
#include "launch/program/html_report/charts/heat_table.h"
#include "launch/program/html_report/files/run_summary.h"
#include "launch/program/html_report/html.h"
#include "launch/program/own_command.h"

namespace lockstep {
namespace {

constexpr double kWorthAWord = 0.05;      // share of the time worth reporting
constexpr std::size_t kMostAdvice = 4;    // pieces
constexpr std::size_t kMostEvents = 200;  // rows
constexpr std::size_t kMostBucketsWithNumbers = 30;
constexpr std::size_t kMostExposedRanks = 64;

// The remedy for a phase that takes long; launch/observe/account/README.md has the same list.
const char* remedy_for(Phase phase) {
  switch (phase) {
    case Phase::data_wait:
      return "data.loader_threads (0 chooses the number), data.loader = \"preload\", lockstep pack";
    case Phase::forward:
    case Phase::backward:
      return "train.threads, train.batch, kernels.choose";
    case Phase::exposed_communication:
      return "comm.cross_barrier, smaller comm.bucket_mib, more work per step (train.batch, "
             "train.accumulation), --bind-to none";
    case Phase::idle:
      return "train.cuda_graph, more work per step (train.batch), fewer other programs on the machine";
    case Phase::rest:
      return "fewer checkpoints (run.checkpoint_minutes, run.checkpoint_every), if training waits for them";
    default:
      return "";
  }
}

double share_of(const StepAccount& account, Phase phase) { return account[phase] / account.total(); }

double compute_share(const StepAccount& account) {
  return share_of(account, Phase::forward) + share_of(account, Phase::backward) +
         share_of(account, Phase::optimizer);
}

// The share of rank 0's time in which its compute threads had no core. 0 on GPUs. Files of earlier versions
// have only the mean of all ranks.
double coreless_share(const RunFolder& run, const StepAccount& account) {
  const std::vector<double> by_rank = busy_by_rank(run);
  const double busy = by_rank.empty() ? headline_of(run).busy : by_rank.front();
  return std::isfinite(busy) ? std::max(0.0, compute_share(account) - busy) : 0;
}

Phase largest_wait(const StepAccount& account) {
  Phase largest = Phase::data_wait;
  for (const Phase phase : {Phase::exposed_communication, Phase::idle, Phase::rest})
    if (account[phase] > account[largest]) largest = phase;
  return largest;
}

std::string verdict_text(const RunHeadline& headline, const StepAccount& account, double coreless) {
  std::string text;
  if (std::isfinite(headline.busy)) {
    text = fmt::format("The devices were busy for {} of the training time", percent_text(headline.busy));
    if (std::isfinite(headline.peak))
      text += fmt::format(", at {} of their peak", percent_text(headline.peak));
  } else {
    text = fmt::format(
        "This run does not record how busy its devices were; compute took {} of rank 0\u2019s time",
        percent_text(compute_share(account)));
  }
  const Phase wait = largest_wait(account);
  if (coreless > share_of(account, wait) && coreless >= kWorthAWord) {
    return text +
           fmt::format(". In most of the rest compute threads waited for a core: about {} of the time.",
                       percent_text(coreless));
  }
  if (share_of(account, wait) < 0.005) return text + ". No kind of wait took 0.5 % of the time.";
  return text + fmt::format(". The largest part of the rest is {}: {} of rank 0\u2019s time.",
                            phase_text(wait), percent_text(share_of(account, wait)));
}

std::string advice_html(const std::vector<GivenAdvice>& given, const StepAccount& account) {
  std::string html;
  for (std::size_t i = 0; i < std::min(given.size(), kMostAdvice); ++i) {
    const GivenAdvice& each = given[i];
    const Advice& advice = each.advice;
    html += fmt::format("<div class=\"advice\"><p><b>{}</b></p><p class=\"soft\">", in_markup(advice.text));
    if (!advice.key.empty())
      html += fmt::format("<code>{}</code>. ",
                          in_markup(shell_command({"--set", advice.key + '=' + advice.value})));
    html += fmt::format("Cause: {}; reported after {}, last after epoch {}.</p></div>\n",
                        in_markup(advice.cause), counted(each.times, "epoch"), number_text(each.last_epoch));
  }
  if (!html.empty()) return html;
  const Phase wait = largest_wait(account);
  const std::string remedy = remedy_for(wait);
  if (share_of(account, wait) < kWorthAWord)
    return "<p class=\"soft\">No phase except compute takes 5 % of the time: only faster compute would "
           "shorten the steps.</p>\n";
  if (remedy.empty()) return {};
  return fmt::format("<div class=\"advice\"><p><b>What to change: {}</b></p></div>\n", in_markup(remedy));
}

// Keeps the cell wide enough for few lines on a narrow page.
HtmlCell wide_cell(const std::string& text) {
  return {.html = fmt::format("<span class=\"wide\">{}</span>", in_markup(text))};
}

std::string account_table(const WholeAccount& whole, double coreless) {
  HtmlTable table{.heads = {text_cell("part of rank 0\u2019s time"), number_cell("share"),
                            number_cell("per step"), number_cell("total"),
                            text_cell("what to change if it is large")}};
  for (std::size_t i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    const double seconds = whole.account[phase];
    if (seconds <= 0) continue;
    table.rows.push_back(
        {{.html = fmt::format("<span class=\"key {}\"></span>{}", phase_class(phase), phase_text(phase))},
         number_cell(percent_text(share_of(whole.account, phase))),
         number_cell(seconds_text(seconds / whole.steps)),
         number_cell(seconds_text(seconds)),
         wide_cell(remedy_for(phase))});
  }
  if (coreless >= kWorthAWord) {
    const double seconds = coreless * whole.account.total();
    table.rows.push_back({text_cell("part of compute without a core"), number_cell(percent_text(coreless)),
                          number_cell(seconds_text(seconds / whole.steps)),
                          number_cell(seconds_text(seconds)),
                          wide_cell("fewer ranks or threads (train.threads) than cores; no other programs "
                                    "on the machine; each rank bound to separate cores")});
  }
  return to_html(table);
}

// Exposed communication of a step, beside the most of any row.
HtmlCell exposed_cell(double seconds, double most) {
  return barred_cell(seconds_text(seconds), most > 0 ? seconds / most : 0, "p3");
}

std::string rank_table(const EpochCommunication& sum, const std::vector<double>& busy) {
  HtmlTable table{.heads = {number_cell("rank"), number_cell("exposed per step"), number_cell("hidden"),
                            number_cell("waited for peers"), number_cell("wire"), number_cell("starved"),
                            number_cell("no core"), number_cell("busy")}};
  const auto steps = static_cast<double>(sum.mine.steps);
  double most = 0;
  for (const RankCommunication& rank : sum.by_rank) most = std::fmax(most, rank.exposed);
  for (std::size_t i = 0; i < sum.by_rank.size(); ++i) {
    const RankCommunication& rank = sum.by_rank[i];
    const auto a_step = [&](double seconds) { return number_cell(seconds_text(seconds / steps)); };
    table.rows.push_back({number_cell(fmt::format("{}", i)), exposed_cell(rank.exposed / steps, most / steps),
                          a_step(rank.hidden), a_step(rank.waited), a_step(rank.wire), a_step(rank.starved),
                          a_step(rank.no_core),
                          number_cell(percent_text(i < busy.size() ? busy[i] : kNotTold))});
  }
  return to_html(table);
}

std::string bucket_table(const EpochCommunication& sum) {
  HtmlTable table{.heads = {number_cell("bucket"), number_cell("size"), number_cell("exposed per step"),
                            number_cell("hidden"), number_cell("waited for peers"), number_cell("wire"),
                            number_cell("starved")}};
  const auto steps = static_cast<double>(sum.mine.steps);
  double most = 0;
  for (const BucketSums& bucket : sum.mine.buckets) most = std::fmax(most, bucket.exposed);
  for (std::size_t i = 0; i < sum.mine.buckets.size(); ++i) {
    const BucketSums& bucket = sum.mine.buckets[i];
    const auto a_step = [&](double seconds) { return number_cell(seconds_text(seconds / steps)); };
    table.rows.push_back({number_cell(fmt::format("{}", i)), number_cell(bytes_text(sum.bucket_bytes[i])),
                          exposed_cell(bucket.exposed / steps, most / steps), a_step(bucket.hidden),
                          a_step(bucket.late), a_step(bucket.wire), a_step(bucket.starved)});
  }
  return to_html(table);
}

// The kMostExposedRanks ranks with the most exposed communication, sorted by rank.
std::vector<std::size_t> most_exposed(const std::vector<RankCommunication>& ranks) {
  std::vector<std::size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t rank) {
    return std::isfinite(ranks[rank].exposed) ? ranks[rank].exposed : 0.0;
  });
  order.resize(std::min(order.size(), kMostExposedRanks));
  std::ranges::sort(order);
  return order;
}

// Exposed time by rank and bucket; empty if ranks do not report it.
std::string exposed_table(const EpochCommunication& sum) {
  double most = 0;
  for (const std::vector<double>& buckets : sum.exposed_by_bucket)
    for (const double seconds : buckets) most = std::fmax(most, seconds);
  const std::vector<double>& bytes = sum.bucket_bytes;
  HeatTable table{.corner = "rank, by bucket", .small = bytes.size() > kMostBucketsWithNumbers};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    table.column_names.push_back(table.small ? "" : fmt::format("{} \u00b7 {}", i, bytes_text(bytes[i])));
  const std::vector<std::size_t> ranks = most_exposed(sum.by_rank);
  for (const std::size_t i : ranks) {
    const std::vector<double>& buckets = sum.exposed_by_bucket[i];
    if (buckets.empty() || buckets.size() != bytes.size()) continue;
    table.row_names.push_back(fmt::format("{}", i));
    std::vector<HeatCell>& row = table.rows.emplace_back();
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      const std::string text = seconds_text(buckets[bucket] / static_cast<double>(sum.mine.steps));
      row.push_back({.shade = most > 0 ? buckets[bucket] / most : 0,
                     .text = table.small ? "" : text,
                     .title = fmt::format("rank {}, bucket {}: {} per step", i, bucket, text),
                     .stands_out = true});
    }
  }
  if (table.rows.empty()) return {};
  return fmt::format("<div><h3>Exposed by rank and bucket{}</h3>\n<div class=\"panel\">{}</div></div>\n",
                     ranks.size() < sum.by_rank.size()
                         ? fmt::format(", for the {} ranks that waited longest", ranks.size())
                         : "",
                     to_html(table));
}

std::vector<EventLine> stragglers_of(const RunFolder& run) {
  const auto step = [](std::int64_t number) {  // 0: the line lacks it
    return number > 0 ? static_cast<double>(number) : kNotTold;
  };
  std::vector<EventLine> events;
  for (const EpochReport& epoch : run.epochs) {
    for (const Straggler& each : epoch.stragglers) {
      events.push_back({.step = step(each.found_step),
                        .kind = "straggler",
                        .cause = fmt::format("rank {} on {}", number_text(each.rank), each.host),
                        .text = fmt::format("own time per step {} since step {}, median of the ranks {}",
                                            seconds_text(each.seconds), number_text(step(each.since_step)),
                                            seconds_text(each.median_seconds))});
    }
  }
  return events;
}

}  // namespace

std::string verdict_section(const RunFolder& run) {
  const WholeAccount whole = whole_account(run);
  if (!(whole.account.total() > 0))
    return "<div class=\"panel\"><p>No step account has been written yet.</p></div>\n";
  const double coreless = coreless_share(run, whole.account);
  const std::string over_time = account_figure(
      run.steps.empty() ? "Step account of each epoch" : "Step account over time", account_points(run));
  return fmt::format(
      "<div class=\"panel\"><p class=\"verdict\">{}</p>\n{}<p class=\"legend\">{}</p>\n{}</div>\n"
      "<div class=\"panel\">{}</div>\n<div class=\"charts\">\n{}{}</div>\n",
      verdict_text(headline_of(run), whole.account, coreless), account_bar(whole.account),
      account_legend(whole.account), advice_html(advice_of(run), whole.account),
      account_table(whole, coreless), over_time, speed_charts({.runs = {&run, 1}, .names = {""}}));
}

std::string communication_section(const RunFolder& run) {
  const EpochCommunication sum = whole_communication(run);
  if (sum.mine.steps == 0)
    return "<p class=\"soft\">No communication was recorded: the run has one rank, or no epoch has "
           "ended.</p>\n";
  return fmt::format(
      "<p class=\"soft\">Mean times per step, over {} steps. Compute waited for exposed communication; "
      "hidden communication ran during the backward pass.</p>\n<h3>By rank</h3>\n<div "
      "class=\"panel\">{}</div>\n"
      "<h3>By bucket of rank 0</h3>\n<div class=\"panel\">{}</div>\n<div class=\"pair\">\n{}<div><h3>Over "
      "time</h3>\n{}</div>\n</div>\n",
      number_text(static_cast<double>(sum.mine.steps)), rank_table(sum, busy_by_rank(run)), bucket_table(sum),
      exposed_table(sum), exposed_figure(run));
}

std::string events_section(const RunFolder& run) {
  std::vector<EventLine> events = run.events;
  const std::vector<EventLine> stragglers = stragglers_of(run);
  events.insert(events.end(), stragglers.begin(), stragglers.end());
  if (events.empty()) return "<p class=\"soft\">No events were recorded.</p>\n";
  std::ranges::stable_sort(events, [](const EventLine& one, const EventLine& other) {
    return (std::isfinite(one.step) ? one.step : -1) < (std::isfinite(other.step) ? other.step : -1);
  });
  HtmlTable table{.heads = {number_cell("time (UTC)"), number_cell("step"), text_cell("kind"),
                            text_cell("cause"), text_cell("description")}};
  const std::size_t left_out = events.size() - std::min(events.size(), kMostEvents);
  for (const EventLine& event : std::span(events).subspan(left_out))
    table.rows.push_back({number_cell(utc_text(event.time)), number_cell(number_text(event.step)),
                          text_cell(event.kind), text_cell(event.cause), wide_cell(event.text)});
  return fmt::format("{}<div class=\"panel\">{}</div>\n",
                     left_out == 0 ? ""
                                   : fmt::format("<p class=\"soft\">The last {} of {} events.</p>\n",
                                                 kMostEvents, events.size()),
                     to_html(table));
}

std::string facts_section(const NamedRuns& named, bool only_differences) {
  HtmlTable table{.heads = {text_cell("key"), text_cell("file")}};
  for (const std::string& name : named.names)
    table.heads.push_back(text_cell(named.names.size() == 1 ? "value" : name));
  for (const auto& [facts, file] :
       {std::pair{&RunFolder::config, "config.toml"}, std::pair{&RunFolder::machine, "run.json"}}) {
    for (const FactRow& row : fact_rows(named.runs, facts)) {
      if (only_differences && !row.differs) continue;
      std::vector<HtmlCell> cells = {{.html = fmt::format("<code>{}</code>", in_markup(row.key))},
                                     {.html = fmt::format("<span class=\"soft\">{}</span>", file)}};
      for (const std::string& value : row.values) cells.push_back(text_cell(value));
      table.rows.push_back(std::move(cells));
    }
  }
  if (table.rows.empty()) return {};
  return fmt::format("<div class=\"panel\">{}</div>\n", to_html(table));
}

std::string absent_section(const RunFolder& run) {
  std::string html;
  for (const std::string& name : run.absent) {
    const char* part = name == "steps.jsonl"    ? "charts have one point per epoch, without the gradient norm"
                       : name == "events.jsonl" ? "only the events of metrics.jsonl are shown"
                       : name == "config.toml"  ? "the configuration is omitted"
                       : name == "run.json"     ? "the machine is omitted"
                                                : "the use of devices and hosts is omitted";
    const bool large = name == "monitor.csv" && run.monitor_exceeds_limit;
    html +=
        fmt::format("<p class=\"note\">{} {}: {}.</p>\n", name, large ? "exceeds 1 GiB" : "is missing", part);
  }
  return html;
}

}  // namespace lockstep
