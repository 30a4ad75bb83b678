// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/jobs/job_json.h"

#include <optional>

#include <nlohmann/json.hpp>

#include "core/text/json_text.h"
#include "launch/observe/account/account_json.h"
#include "launch/observe/monitor/idle_device.h"

namespace lockstep {
namespace {

using SeenJson = nlohmann::ordered_json;

SeenJson text_or_null(const std::string& text) { return text.empty() ? SeenJson() : SeenJson(text); }

void add_identity(const SeenRank& rank, SeenJson& json) {
  const RankIdentity& identity = rank.identity;
  json["rank"] = identity.rank;
  json["host"] = identity.host.str();
  json["node"] = identity.node;
  json["local_rank"] = identity.local_rank;
  json["process"] = identity.process;
  json["device"] = text_or_null(identity.device.str());
  json["device_name"] = text_or_null(identity.device_name.str());
  json["uuid"] = text_or_null(identity.device_uuid.str());
  json["pci_address"] = text_or_null(identity.device_address.str());
  json["threads"] = identity.threads;
}

void add_progress(const SeenRank& rank, std::int64_t now, SeenJson& json) {
  const RankProgress& progress = rank.progress;
  json["state"] = state_of(rank);
  json["activity"] = name_of(progress.activity);
  json["epoch"] = progress.epoch;
  json["epoch_step"] = progress.epoch_step;
  json["epoch_steps"] = progress.epoch_steps;
  json["step"] = progress.step;
  json["seconds_since_step"] =
      progress.step_ns > 0 ? SeenJson(seconds_between(progress.step_ns, now)) : SeenJson();
  const bool hold = figures_hold(rank, now);
  const auto figure = [&](const char* name, double value) {
    json[name] = hold ? json_or_null(value) : SeenJson();
  };
  figure("busy", progress.busy);
  figure("peak", progress.peak);
  figure("samples_per_second", progress.samples_per_second / static_cast<double>(rank.identity.ranks));
  figure("loss", progress.loss);
  figure("learning_rate", progress.learning_rate);
  json["window_steps"] = progress.window_steps;
  json["window_step"] = progress.window_step;
  json["account"] = hold ? json_of(progress.account) : SeenJson();
}

SeenJson rank_json(const SeenRank& rank, const NodeView& view, double idle_seconds) {
  SeenJson json;
  add_identity(rank, json);
  add_progress(rank, view.time_ns, json);
  json["processor_seconds"] = rank.process ? SeenJson(rank.process->processor_seconds()) : SeenJson();
  json["waits"] =
      rank.waits ? SeenJson{{"collective", rank.waits->what}, {"seconds", rank.waits->seconds}} : SeenJson();
  const std::optional<IdleDevice> idle = idle_device(rank, view, idle_seconds);
  json["idle"] = idle ? SeenJson{{"seconds", idle->seconds}, {"why", idle->why}} : SeenJson();
  json["idle_contexts"] = SeenJson::array();
  for (const DeviceContext& context : idle_contexts(rank, view))
    json["idle_contexts"].push_back({{"uuid", context.uuid}, {"pci_bus_id", context.pci_bus_id}});
  return json;
}

SeenJson job_json(const SeenJob& job, const NodeView& view, double idle_seconds) {
  const SeenRank& speaker = job.speaker();
  const RankIdentity& identity = speaker.identity;
  SeenJson json{{"job", identity.job.str()},     {"run_dir", identity.run_dir.str()},
                {"model", identity.model.str()}, {"user", speaker.user},
                {"since", identity.since},       {"ranks", identity.ranks},
                {"epochs", identity.epochs},     {"global_batch", identity.global_batch}};
  const bool hold = figures_hold(speaker, view.time_ns);
  json["samples_per_second"] = hold ? json_or_null(speaker.progress.samples_per_second) : SeenJson();
  json["here"] = SeenJson::array();
  for (const SeenRank& rank : job.ranks) json["here"].push_back(rank_json(rank, view, idle_seconds));
  return json;
}

SeenJson device_json(const std::string& uuid, const DeviceFigures& figures) {
  const auto bytes = [](const std::optional<std::uint64_t>& value) {
    return value ? SeenJson(*value) : SeenJson();
  };
  SeenJson json{{"uuid", uuid}, {"name", figures.name}, {"pci_bus_id", figures.pci_bus_id}};
  json["utilization"] = json_or_null(figures.utilization);  // per cent
  json["memory_used_bytes"] = bytes(figures.memory_used_bytes);
  json["memory_bytes"] = bytes(figures.memory_bytes);
  json["watts"] = json_or_null(figures.watts);
  json["celsius"] = json_or_null(figures.celsius);
  return json;
}

}  // namespace

std::string to_json(const NodeView& view, double idle_seconds) {
  SeenJson json{{"time", view.time}, {"host", view.host}};
  json["silent_seconds"] = view.silent_seconds > 0 ? SeenJson(view.silent_seconds) : SeenJson();
  json["jobs"] = SeenJson::array();
  for (const SeenJob& job : view.jobs) json["jobs"].push_back(job_json(job, view, idle_seconds));
  json["devices"] = SeenJson::array();
  for (const auto& [uuid, figures] : view.devices) json["devices"].push_back(device_json(uuid, figures));
  return dumped(json);
}

}  // namespace lockstep
