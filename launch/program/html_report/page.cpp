// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/page.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "core/text/text.h"
#include "launch/observe/charts/markup.h"
#include "launch/program/html_report/charts/chart.h"
#include "launch/program/html_report/files/run_summary.h"
#include "launch/program/html_report/html.h"
#include "launch/program/html_report/run_sections.h"
#include "launch/program/html_report/style.h"

namespace lockstep {
namespace {

// "mlp on fashion_mnist, 2 ranks, on host worker-1, started 2024-..".
std::string subtitle_of(const RunFolder& run, const RunHeadline& headline) {
  std::vector<std::string> parts;
  if (const std::string model = fact_named(run.config, "model.name"); !model.empty()) parts.push_back(model);
  if (const std::string ranks = fact_named(run.machine, "ranks"); !ranks.empty())
    parts.push_back(ranks + (ranks == "1" ? " rank" : " ranks"));
  for (const auto& [name, before] :
       {std::pair("device", "on "), std::pair("host", "host "), std::pair("started", "started ")})
    if (const std::string fact = fact_named(run.machine, name); !fact.empty()) parts.push_back(before + fact);
  parts.push_back(fmt::format("{} step{}", number_text(headline.steps), headline.steps == 1 ? "" : "s"));
  parts.push_back(counted(headline.epochs, "completed epoch"));
  return fmt::format("<p class=\"soft\">{}</p>\n",
                     in_markup(fmt::format("{}", fmt::join(parts, " \u00b7 "))));
}

std::string cards_of(const RunHeadline& headline) {
  return "<div class=\"cards\">\n" +
         html_card("busy", percent_text(headline.busy), "of the training time", CardUse::leads) +
         html_card("peak", percent_text(headline.peak), "of the peak rate", CardUse::leads) +
         html_card("speed", number_text(headline.samples_per_second), "samples/s") +
         html_card("test accuracy", percent_text(headline.test_accuracy),
                   "test loss " + number_text(headline.test_loss)) +
         html_card("time", seconds_text(headline.train_seconds),
                   "plus " + seconds_text(headline.evaluation_seconds) + " of evaluation") +
         "</div>\n";
}

std::string section(const std::string& title, const std::string& html) {
  return html.empty() ? html : fmt::format("<h2>{}</h2>\n{}", title, html);
}

std::string charts_html(const std::string& figures) {
  return figures.empty() ? "<p class=\"soft\">No data to draw yet.</p>\n"
                         : fmt::format("<div class=\"charts\">\n{}</div>\n", figures);
}

std::string all_facts(const NamedRuns& named) {
  const std::string facts = facts_section(named, false);
  return facts.empty() ? facts
                       : fmt::format("<details><summary>All keys and facts</summary>\n{}</details>\n", facts);
}

// The sections that a run has on a page alone and beside others.
std::string sections_of(const RunFolder& run) {
  return section("Classes", class_section(run)) + section("Communication", communication_section(run)) +
         section("Memory", memory_section(run)) + section("Devices and hosts", monitor_section(run)) +
         section("Events", events_section(run));
}

std::string page_of_one(const RunFolder& run, const NamedRuns& named) {
  const RunHeadline headline = headline_of(run);
  return fmt::format("<h1>{}</h1>\n", in_markup(named.names[0])) + subtitle_of(run, headline) +
         cards_of(headline) + section("Why was the device idle?", verdict_section(run)) +
         section("Training", charts_html(learning_charts(named))) + sections_of(run) +
         section("Configuration and machine", all_facts(named)) + absent_section(run);
}

StepAccount account_of_all(const NamedRuns& named) {
  StepAccount all;
  for (const RunFolder& run : named.runs) all += whole_account(run).account;
  return all;
}

std::string headline_table(const NamedRuns& named) {
  HtmlTable table{.heads = {text_cell("")}};
  std::vector<RunHeadline> headlines;
  for (std::size_t i = 0; i < named.runs.size(); ++i) {
    headlines.push_back(headline_of(named.runs[i]));
    table.heads.push_back(
        {.html = fmt::format("<span class=\"key {}\"></span>{}", curve_class(i), in_markup(named.names[i]))});
  }
  const auto add = [&](const char* name, const auto& text) {
    std::vector<HtmlCell> cells = {text_cell(name)};
    for (const RunHeadline& headline : headlines) cells.push_back(text_cell(text(headline)));
    table.rows.push_back(std::move(cells));
  };
  add("busy", [](const RunHeadline& run) { return percent_text(run.busy); });
  add("peak", [](const RunHeadline& run) { return percent_text(run.peak); });
  add("samples/s", [](const RunHeadline& run) { return number_text(run.samples_per_second); });
  add("test accuracy", [](const RunHeadline& run) { return percent_text(run.test_accuracy); });
  if (std::ranges::any_of(headlines, [](const RunHeadline& run) { return std::isfinite(run.top5); }))
    add("top-5 accuracy", [](const RunHeadline& run) { return percent_text(run.top5); });
  if (std::ranges::any_of(headlines, [](const RunHeadline& run) { return std::isfinite(run.f1_macro); }))
    add("F1, mean over classes", [](const RunHeadline& run) { return percent_text(run.f1_macro); });
  if (std::ranges::any_of(headlines, [](const RunHeadline& run) { return std::isfinite(run.iou_mean); }))
    add("IoU, mean over classes", [](const RunHeadline& run) { return percent_text(run.iou_mean); });
  add("test loss", [](const RunHeadline& run) { return number_text(run.test_loss); });
  add("training loss", [](const RunHeadline& run) { return number_text(run.train_loss); });
  add("training time", [](const RunHeadline& run) { return seconds_text(run.train_seconds); });
  add("evaluation time", [](const RunHeadline& run) { return seconds_text(run.evaluation_seconds); });
  add("steps", [](const RunHeadline& run) { return number_text(run.steps); });
  add("epochs", [](const RunHeadline& run) { return fmt::format("{}", run.epochs); });
  std::vector<HtmlCell> accounts = {text_cell("step account")};
  for (const RunFolder& run : named.runs)
    accounts.push_back({.html = account_bar(whole_account(run).account)});
  table.rows.push_back(std::move(accounts));
  return fmt::format("<div class=\"panel\">{}<p class=\"legend\">{}</p></div>\n", to_html(table),
                     account_legend(account_of_all(named)));
}

std::string legend_of_runs(const NamedRuns& named) {
  std::string html;
  for (std::size_t i = 0; i < named.names.size(); ++i)
    html += fmt::format("<span><i class=\"{}{}\"></i>{}</span> ", curve_class(i),
                        i >= kCurveColors ? " dashed" : "", in_markup(named.names[i]));
  return fmt::format("<p class=\"legend\">{}</p>\n", html);
}

std::string page_of_several(const NamedRuns& named) {
  const std::string differences = facts_section(named, true);
  std::string accounts, each;
  for (std::size_t i = 0; i < named.runs.size(); ++i) {
    const RunFolder& run = named.runs[i];
    accounts += account_figure(named.names[i], account_points(run));
    each += fmt::format("<details><summary>{}</summary>\n{}{}{}</details>\n", in_markup(named.names[i]),
                        verdict_section(run), sections_of(run), absent_section(run));
  }
  return fmt::format("<h1>{} runs side by side</h1>\n", named.runs.size()) +
         section("Differences", differences.empty()
                                    ? "<p class=\"soft\">The runs do not differ in config.toml and "
                                      "run.json.</p>\n"
                                    : differences) +
         section("Key figures", headline_table(named)) +
         section("Speed", legend_of_runs(named) + charts_html(speed_charts(named))) +
         section("Step account over time",
                 fmt::format("<p class=\"legend\">{}</p>\n", account_legend(account_of_all(named))) +
                     charts_html(accounts)) +
         section("Training", legend_of_runs(named) + charts_html(learning_charts(named))) +
         section("Each run", each) + section("Configuration and machine", all_facts(named));
}

}  // namespace

std::string report_page(std::span<const RunFolder> runs) {
  const NamedRuns named{.runs = runs, .names = run_names(runs)};
  const std::string title = runs.size() == 1 ? named.names[0] : fmt::format("{} runs", runs.size());
  return html_page(
      title, runs.size() == 1 ? page_of_one(runs[0], named) : page_of_several(named),
      "A thinned curve shows the mean of each column, with a band from the lowest to the highest "
      "value. Move the pointer over a chart to see its values.");
}

}  // namespace lockstep
