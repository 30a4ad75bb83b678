// SPDX-License-Identifier: Apache-2.0
#include "launch/program/inject/injection.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text/named_entries.h"
#include "core/text/text.h"
#include "launch/program/config/suggestions.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_injection(const std::string& text, const std::string& why) {
  throw UsageError(
      fmt::format("--inject {}: {}; expected KIND:rank=R,step=S, such as kill:rank=1,step=20. Kinds:\n{}",
                  text, why, describe_fault_kinds()));
}

const FaultKind& kind_named(const std::string& text, const std::string& name) {
  for (const FaultKind& kind : fault_kinds())
    if (kind.name == name) return kind;
  refuse_injection(text, fmt::format("unknown fault \"{}\"{}", name,
                                     did_you_mean(suggested_word(name, names_in(fault_kinds())))));
}

double number_in(const std::string& text, const std::string& word) {
  const auto number = number_from<double>(word);
  if (!number || !std::isfinite(*number)) refuse_injection(text, fmt::format("\"{}\" is not a number", word));
  return *number;
}

void set_option(const std::string& text, const std::string& option, Injection& injection) {
  const std::size_t equals = option.find('=');
  if (equals == std::string::npos) refuse_injection(text, fmt::format("\"{}\" is not NAME=NUMBER", option));
  const std::string name = option.substr(0, equals);
  const double number = number_in(text, option.substr(equals + 1));
  const bool whole = number == std::floor(number) && std::abs(number) < 1e15;
  if (name == "rank" && whole && number >= 0 && number < 1e9) {
    injection.rank = static_cast<int>(number);
  } else if (name == "step" && whole && number >= 1) {
    injection.step = static_cast<std::int64_t>(number);
  } else if (name == injection.kind->amount && number >= injection.kind->least &&
             number <= injection.kind->most) {
    injection.amount = number;
  } else {
    const FaultKind& kind = *injection.kind;
    refuse_injection(
        text, fmt::format("\"{}\" is not allowed; rank is a whole number from 0, step from 1{}", option,
                          kind.amount.empty()
                              ? ""
                              : fmt::format(", {} from {} to {}", kind.amount, kind.least, kind.most)));
  }
}

}  // namespace

std::string describe_fault_kinds() {
  std::string text;
  for (const FaultKind& kind : fault_kinds()) {
    text += fmt::format("  {:<12} {}", kind.name, kind.meaning);
    if (!kind.amount.empty())
      text +=
          fmt::format(" ({} from {} to {}, default {})", kind.amount, kind.least, kind.most, kind.otherwise);
    text += "\n";
  }
  return text;
}

Injection parse_injection(const std::string& text) {
  const std::size_t colon = text.find(':');
  Injection injection{.kind = &kind_named(text, text.substr(0, colon))};
  injection.amount = injection.kind->otherwise;
  if (colon == std::string::npos) return injection;
  for (const std::string_view option : split_text(std::string_view(text).substr(colon + 1), ','))
    set_option(text, std::string(option), injection);
  return injection;
}

Injector::Injector(std::span<const std::string> texts, Trainer& trainer, Communicator& host,
                   std::filesystem::path run_dir)
    : trainer_(trainer), host_(host), folder_(std::move(run_dir)) {
  for (const std::string& text : texts) {
    const Injection injection = parse_injection(text);
    planned_.push_back({injection, injection.kind->make()});
    if (host.rank() == 0) log::warning("this job injects a fault on purpose: {}", text);
  }
}

bool Injector::goes_on() {
  for_step(trainer_.steps(), [](Fault& fault, FaultSite& site) { fault.after_step(site); });
  return true;
}

void Injector::step_failed() {
  for_step(trainer_.steps(), [](Fault& fault, FaultSite& site) { fault.after_step(site); });
}

void Injector::before_step() {
  for_step(trainer_.steps() + 1, [](Fault& fault, FaultSite& site) { fault.before_step(site); });
}

template <typename Call>
void Injector::for_step(std::int64_t step, const Call& call) {
  for (Planned& each : planned_) {
    const Injection& injection = each.injection;
    if (step < injection.step || (step > injection.step && !injection.kind->lasts)) continue;
    FaultSite site{.trainer = trainer_,
                   .host = host_,
                   .folder = folder_,
                   .amount = injection.amount,
                   .here = host_.rank() == injection.rank};
    call(*each.fault, site);
  }
}

}  // namespace lockstep
