// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/torch_trace.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text/json_text.h"

namespace lockstep {
namespace {

// Threads of the host's process, and streams of the device. torch-tb-profiler distinguishes them by number
// only, regardless of the process.
enum class Lane : std::uint8_t { training = 1, communication, compute_stream, communication_stream, layers };

constexpr std::string_view kAnnotation = "user_annotation", kDeviceAnnotation = "gpu_user_annotation",
                           kOperator = "cpu_op", kKernel = "kernel", kLaunch = "cuda_runtime";

class TorchTraceWriter {
 public:
  TorchTraceWriter(const TraceHead& head, const LayerFacts& facts, const TraceClock& clock)
      : head_(head), facts_(facts), clock_(clock), on_gpu_(head.device.kind == DeviceKind::cuda) {}

  std::string write(const Timeline& timeline, std::span<const LayerRun> layers, std::size_t dropped) {
    add_names();
    for (const Span& span : timeline.spans())
      if (span.track == Track::step) steps_.push_back(span);
    for (const Span& span : timeline.spans()) add_span(span);
    if (head_.ranks > 1) {
      for (const BucketFlow& flow : timeline.flows()) add_flow(flow);
    }
    for (const LayerRun& run : layers) add_layer(run);
    end_pass();
    // traceEvents is the last member because torch-tb-profiler appends to it. HolisticTraceAnalysis finds the
    // rank by the blank.
    return fmt::format(
        R"({{"schemaVersion":1,"deviceProperties":{},"distributedInfo":{{"backend":"{}","rank": {},"world_size":{}}},)"
        R"("displayTimeUnit":"ms","baseTimeNanoseconds":{},"droppedSpans":{},"otherData":{{"lockstep":{}}},)"
        "\"traceEvents\":[\n{}]}}",
        device_properties(), on_gpu_ ? "nccl" : "mpi", head_.rank, head_.ranks, head_.base_unix_ns,
        timeline.dropped() + dropped, timeline.about(), text_);
  }

 private:
  std::string device_properties() const {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (std::size_t i = 0; on_gpu_ && i < head_.devices.size(); ++i) {
      const CudaDevice& device = head_.devices[i];
      all.push_back({{"id", i},
                     {"name", device.name},
                     {"totalGlobalMem", device.memory_bytes},
                     {"computeMajor", device.compute_capability / 10},
                     {"computeMinor", device.compute_capability % 10}});
    }
    return dumped(all);
  }

  int process_of(Lane lane) const {
    const bool of_device = lane == Lane::compute_stream || lane == Lane::communication_stream;
    return of_device ? head_.device.index : head_.process;
  }
  Lane compute_lane() const { return on_gpu_ ? Lane::compute_stream : Lane::training; }
  Lane communication_lane() const { return on_gpu_ ? Lane::communication_stream : Lane::communication; }

  // Exact, with three decimals.
  static std::string microseconds(std::int64_t ns) {
    return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
  }
  std::string moment(std::int64_t ns) const { return microseconds(clock_(ns)); }

  // Writes the members common to all events; the caller closes the object.
  auto begin_event(char phase, std::string_view name, std::string_view category, Lane lane,
                   std::int64_t at_ns) {
    if (!text_.empty()) text_ += ",\n";
    const auto out = std::back_inserter(text_);
    fmt::format_to(out, R"({{"ph":"{}","cat":"{}","name":{},"pid":{},"tid":{},"ts":{})", phase, category,
                   dumped(nlohmann::json(name)), process_of(lane), static_cast<int>(lane), moment(at_ns));
    return out;
  }

  // arguments: members of a JSON object, may be empty.
  void add_duration(std::string_view name, std::string_view category, Lane lane, std::int64_t begin_ns,
                    std::int64_t end_ns, const std::string& arguments) {
    const auto out = begin_event('X', name, category, lane, begin_ns);
    fmt::format_to(out, R"(,"dur":{},"args":{{"External id":{}{}{}}}}})",
                   microseconds(clock_(end_ns) - clock_(begin_ns)), ++last_id_, arguments.empty() ? "" : ",",
                   arguments);
  }

  void add_name(std::string_view what, int process, int thread, const std::string& member) {
    if (!text_.empty()) text_ += ",\n";
    fmt::format_to(std::back_inserter(text_),
                   R"({{"ph":"M","name":"{}","pid":{},"tid":{},"ts":0,"args":{{{}}}}})", what, process,
                   thread, member);
  }

  void add_process(int process, const std::string& label, int place) {
    add_name("process_name", process, 0,
             fmt::format(R"("name":{})",
                         dumped(nlohmann::json(fmt::format("rank {} on {}", head_.rank, head_.host)))));
    add_name("process_labels", process, 0, fmt::format(R"("labels":{})", dumped(nlohmann::json(label))));
    add_name("process_sort_index", process, 0, fmt::format(R"("sort_index":{})", place));
  }

  void add_names() {
    const auto add_lane = [&](Lane lane, const char* name) {
      add_name("thread_name", process_of(lane), static_cast<int>(lane), fmt::format(R"("name":"{}")", name));
    };
    add_process(head_.process, "CPU", 2 * head_.rank);
    add_lane(Lane::training, "training");
    if (!on_gpu_) return add_lane(Lane::communication, "communication");
    add_lane(Lane::layers, "layers (time of the device)");
    add_process(head_.device.index, fmt::format("GPU {}", head_.device.index), 2 * head_.rank + 1);
    add_lane(Lane::compute_stream, "compute stream");
    add_lane(Lane::communication_stream, "communication stream");
  }

  // Arguments of kernels only: tools count every event with a stream as a kernel. The correlation links a
  // kernel to the launch of its step, as for CUDA graphs.
  std::string of_stream(Lane lane, std::int64_t begin_ns) const {
    const auto step = std::ranges::find_if(
        steps_, [&](const Span& each) { return each.begin_ns <= begin_ns && begin_ns <= each.end_ns; });
    return fmt::format(R"("device":{},"stream":{},"correlation":{})", head_.device.index,
                       static_cast<int>(lane), step == steps_.end() ? 0 : step->index + 1);
  }

  void add_step(const Span& span) {
    add_duration(fmt::format("ProfilerStep#{}", span.index + 1), kAnnotation, Lane::training, span.begin_ns,
                 span.end_ns, "");
    if (!on_gpu_) return;
    add_duration(
        "launch", kLaunch, Lane::training, span.begin_ns, span.begin_ns,
        fmt::format(R"("correlation":{},"what":"the host launched the step earlier")", span.index + 1));
  }

  void add_span(const Span& span) {
    const std::string_view name = span.name;
    if (span.track == Track::step) {
      add_step(span);
    } else if (span.track == Track::communication) {
      if (head_.ranks > 1) add_sum(span);
    } else if (on_gpu_) {
      const bool computes = name == "forward" || name == "backward" || name == "optimizer";
      add_duration(name, computes ? kKernel : kDeviceAnnotation, compute_lane(), span.begin_ns, span.end_ns,
                   computes ? of_stream(compute_lane(), span.begin_ns) : "");
    } else if (span.track == Track::data) {
      add_duration("enumerate(DataLoader)#BatchLoader.__next__", kOperator, Lane::training, span.begin_ns,
                   span.end_ns, "");
    } else if (name == "optimizer") {
      add_duration(fmt::format("Optimizer.step#{}.step", head_.optimizer), kOperator, Lane::training,
                   span.begin_ns, span.end_ns, "");
    } else {
      add_duration(name, kAnnotation, Lane::training, span.begin_ns, span.end_ns, "");
    }
  }

  // Writes the all-reduce of a bucket.
  void add_sum(const Span& span) {
    const Bucket& bucket = head_.buckets.at(static_cast<std::size_t>(span.index));
    const Lane lane = communication_lane();
    std::string arguments = fmt::format(
        R"("bucket":{},"bytes":{},"Input Dims":[[{}]],"Input type":["{}"],"what":"all-reduce of a gradient bucket by {}")",
        span.index, bucket.bytes(), bucket.count(), torch_name(bucket.type),
        on_gpu_ ? "NCCL" : "Lockstep's own collectives over MPI and shared memory");
    if (!on_gpu_)
      return add_duration("gloo:all_reduce", kAnnotation, lane, span.begin_ns, span.end_ns, arguments);
    // Tools link the kernel to the annotation by equal ids.
    add_duration("nccl:all_reduce", kDeviceAnnotation, lane, span.begin_ns, span.end_ns, arguments);
    arguments += "," + of_stream(lane, span.begin_ns);
    --last_id_;
    add_duration("ncclKernel_AllReduce", kKernel, lane, span.begin_ns, span.end_ns, arguments);
  }

  // Arrows as in --trace: from the last gradient through the bucket to the compute that waits for it.
  void add_flow(const BucketFlow& flow) {
    const std::uint64_t id = (static_cast<std::uint64_t>(head_.rank) << 32) + next_flow_++;
    const auto arrow = [&](char phase, Lane lane, std::int64_t at_ns, const char* binding) {
      fmt::format_to(begin_event(phase, "gradients", "gradients", lane, at_ns),
                     R"(,"id":{}{},"args":{{"bucket":{},"bytes":{}}}}})", id, binding, flow.bucket,
                     flow.sent_bytes);
    };
    arrow('s', compute_lane(), flow.final_ns, "");
    arrow('t', communication_lane(), flow.started_ns, "");
    arrow('f', compute_lane(), flow.needed_ns, R"(,"bp":"e")");
    if (flow.met_ns <= flow.started_ns) return;
    add_duration("wait for other ranks", on_gpu_ ? kDeviceAnnotation : kAnnotation, communication_lane(),
                 flow.started_ns, flow.met_ns, fmt::format(R"("bucket":{})", flow.bucket));
  }

  void add_layer(const LayerRun& run) {
    const int time = facts_.time(run.node, run.direction);
    if (time < memory_time_) end_pass();  // the next micro-batch
    add_memory(time, run.begin_ns);
    const Lane lane = on_gpu_ ? Lane::layers : Lane::training;
    add_duration(
        facts_.name(run.node, run.direction), kOperator, lane, run.begin_ns, run.end_ns,
        fmt::format(R"({},"activation bytes":{})", facts_.arguments(run.node, run.direction), live_));
    layer_end_ns_ = run.end_ns;
  }

  // Frees what the micro-batch holds at its end. Its last layer may be any one: frozen layers have no
  // backward.
  void end_pass() {
    if (memory_time_ >= 0) add_memory(facts_.end_time(), layer_end_ns_);
    memory_time_ = -1;
  }

  // Writes the changes of the memory plan up to `time`, and a counter of the result.
  void add_memory(int time, std::int64_t at_ns) {
    if (memory_time_ >= time) return;
    while (memory_time_ < time) {
      for (const MemoryChange& change : facts_.changes(++memory_time_)) add_change(change, at_ns);
    }
    fmt::format_to(begin_event('C', "memory", "memory", Lane::training, at_ns),
                   R"(,"args":{{"activations":{},"parameters":{},"gradients":{}}}}})", live_,
                   head_.parameter_bytes, head_.gradient_bytes);
  }

  void add_change(const MemoryChange& change, std::int64_t at_ns) {
    live_ += static_cast<std::size_t>(change.bytes);
    fmt::format_to(
        begin_event('i', "[memory]", "cpu_instant_event", on_gpu_ ? Lane::layers : Lane::training, at_ns),
        R"(,"s":"t","args":{{"Device Type":{},"Device Id":{},"Addr":{},"Bytes":{},"Total Allocated":{},"Total Reserved":{}}}}})",
        on_gpu_ ? 1 : 0, on_gpu_ ? head_.device.index : -1, change.offset, change.bytes, live_,
        facts_.arena_bytes());
  }

  const TraceHead& head_;
  const LayerFacts& facts_;
  TraceClock clock_;
  bool on_gpu_;
  std::string text_;
  std::vector<Span> steps_;
  std::int64_t last_id_ = 0;
  std::uint64_t next_flow_ = 0;
  int memory_time_ = -1;  // time of the plan up to which changes are written
  std::int64_t layer_end_ns_ = 0;
  std::size_t live_ = 0;
};

}  // namespace

std::string torch_trace(const TraceHead& head, const Timeline& timeline, std::span<const LayerRun> layers,
                        std::size_t dropped, const LayerFacts& facts, const TraceClock& clock) {
  return TorchTraceWriter(head, facts, clock).write(timeline, layers, dropped);
}

std::string torch_trace_name(const TraceHead& head, std::int64_t unix_ns) {
  const std::size_t digits = std::to_string(head.ranks - 1).size();
  return fmt::format("{}_{:0{}}.{}.pt.trace.json", head.host, head.rank, digits, unix_ns);
}

}  // namespace lockstep
