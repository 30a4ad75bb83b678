#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""profile_test.py LOCKSTEP MPIEXEC EMULATED: tests the profiles and traces of a training of two ranks.
TensorBoard's plugin torch-tb-profiler opens the profiles, and its numbers must agree with the events.
Profiles and files of --trace follow the schema of the events that Perfetto imports, and are consistent: spans
nest, flow arrows connect spans, counters have the expected values. Profiles of GPUs come from the emulated
device.

Python packages are also searched in LOCKSTEP_TENSORBOARD. Tests whose package is not installed are skipped by
name."""

import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = MPIEXEC = EMULATED = None
SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "trace_event_schema.json"
RANKS = 2
CYCLES = [[4, 5], [9, 10]]
os.environ.setdefault("TORCH_PROFILER_START_METHOD", "fork")  # for the plugin's processes
# A folder that does not exist: these jobs ignore claims of other jobs on emulated devices.
PRIVATE = tempfile.TemporaryDirectory()
os.environ.setdefault("LOCKSTEP_CLAIMS", os.path.join(PRIVATE.name, "no_claims"))
sys.path[:0] = [path for path in [os.environ.get("LOCKSTEP_TENSORBOARD")] if path]


def run(command, folder, settings, *flags, program=None):
    shape = ["data.format=synthetic", "data.synthetic.train_samples=2048", "data.synthetic.test_samples=64",
             "data.synthetic.channels=1", "data.synthetic.height=12", "data.synthetic.width=12", "train.batch=32", "model.name=cnn",
             "train.accumulation=2", "train.threads=1", "comm.bucket_mib=[0.05, 0.5, 0.05]", "run.measure_peak=false"]
    if program == EMULATED:  # it computes slowly
        shape += ["world.device=cuda", "kernels.choose=direct", "train.batch=4", "data.synthetic.test_samples=16"]
    done = subprocess.run([MPIEXEC, "--oversubscribe", "--bind-to", "none", "-np", str(RANKS), program or LOCKSTEP, command,
                           "fashion_mnist_cnn",
                           *(part for each in shape + settings + [f'run.dir="{folder}"'] for part in ("--set", each)), *flags],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def durations(trace):
    """{(pid, tid): [(name, begin, end)]} in ns, sorted by begin; of equal begins the longest span is
    first."""
    lanes = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append(
                (event["name"], round(1000 * event["ts"]), round(1000 * event["ts"]) + round(1000 * event["dur"])))
    return {lane: sorted(spans, key=lambda span: (span[1], -span[2])) for lane, spans in lanes.items()}


def crossing(trace):
    """Pairs of spans of a thread where the second begins within the first and ends after it."""
    found = []
    for lane, spans in durations(trace).items():
        around = []
        for span in spans:
            while around and around[-1][2] <= span[1]:
                around.pop()
            if around and span[2] > around[-1][2]:
                found.append((lane, around[-1], span))
            around.append(span)
    return found


def union(ranges):
    total, reached = 0, -1
    for begin, end in sorted(ranges):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def named(trace, prefix):
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["name"].startswith(prefix)]


class Profile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.place.name)
        run("train", folder / "run",
            ["train.steps=12", "profile.wait=2", "profile.warmup=1", "profile.active=2", "profile.repeat=2"])
        cls.folder = folder / "run" / "profile"
        run("train", folder / "traced", ["train.steps=4"], "--trace", str(folder / "trace.json"))
        run("profile", folder / "layers", [], "--steps", "2", "--trace", str(folder / "layers.json"))
        cls.traces = {path.name: json.loads(path.read_text())
                      for path in [*sorted(cls.folder.iterdir()), folder / "trace.json", folder / "layers.json"]}
        cls.profiles = [trace for trace in cls.traces.values() if "distributedInfo" in trace]

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def of_rank(self, rank):
        """The profiles of a rank by cycle: file names of a rank sort by time."""
        return [trace for trace in self.profiles if trace["distributedInfo"]["rank"] == rank]

    def test_each_rank_has_a_file_of_each_cycle(self):
        self.assertEqual(len(self.profiles), RANKS * len(CYCLES))
        for rank in range(RANKS):
            self.assertEqual([[int(event["name"].split("#")[1]) for event in named(trace, "ProfilerStep#")]
                              for trace in self.of_rank(rank)], CYCLES)

    def test_traces_follow_the_schema_of_trace_events(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("the Python package jsonschema is not installed")
        validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
        for name, trace in self.traces.items():
            self.assertEqual([(error.json_path, error.message[:300]) for error in validator.iter_errors(trace)][:3], [], name)
        for spoil in (lambda event: event.pop("ts"), lambda event: event.pop("dur"), lambda event: event.update(dur=-1),
                      lambda event: event.update(ph="Y"), lambda event: event.update(ph="C", args={"memory": "much"}),
                      lambda event: event.update(ph="f", id=1), lambda event: event.update(pid="rank 0")):
            event = copy.deepcopy(named(self.profiles[0], "forward")[0])
            spoil(event)
            self.assertFalse(validator.is_valid({"traceEvents": [event]}), event)

    def test_spans_of_a_thread_nest(self):
        for name, trace in self.traces.items():
            self.assertEqual(crossing(trace)[:3], [], name)
        spoiled = copy.deepcopy(self.profiles[0])
        step = named(spoiled, "ProfilerStep#")[0]
        step["dur"] /= 2
        self.assertNotEqual(crossing(spoiled), [])

    def test_every_arrow_connects_three_spans(self):
        for name, trace in self.traces.items():
            lanes, arrows = durations(trace), {}
            for event in trace["traceEvents"]:
                if event["ph"] in "stf":
                    arrows.setdefault(event["id"], []).append(event)
            self.assertNotEqual(arrows, {}, name)
            for arrow in arrows.values():
                self.assertEqual([event["ph"] for event in arrow], ["s", "t", "f"], name)
                moments = [round(1000 * event["ts"]) for event in arrow]
                self.assertEqual(moments, sorted(moments), arrow)
                for event, moment in zip(arrow, moments):
                    around = [span for span in lanes[event["pid"], event["tid"]] if span[1] <= moment <= span[2]]
                    self.assertNotEqual(around, [], (name, event))

    def test_memory_matches_the_plan(self):
        for trace in self.profiles:
            counted = [event["args"]["activations"] for event in trace["traceEvents"] if event["ph"] == "C"]
            self.assertGreater(max(counted), 0)
            self.assertEqual(min(counted), 0)
            told = [event["args"]["activation bytes"] for event in named(trace, "convolution")]
            self.assertEqual(len(told), 2 * 3 * 2 * 2)  # layers, directions, micro-batches and steps
            self.assertTrue(set(told) <= set(counted))

    def test_ranks_of_a_node_share_one_clock(self):
        for first, second in zip(self.of_rank(0), self.of_rank(1)):
            self.assertEqual(first["baseTimeNanoseconds"], second["baseTimeNanoseconds"])
            for mine, other in zip(named(first, "ProfilerStep#"), named(second, "ProfilerStep#")):
                self.assertLess(mine["ts"], other["ts"] + other["dur"])
                self.assertLess(other["ts"], mine["ts"] + mine["dur"])

    def opened(self, folder):
        """Opens the folder with TensorBoard's plugin."""
        try:
            from torch_tb_profiler import io
            from torch_tb_profiler.profiler import RunLoader
        except ImportError:
            self.skipTest("the Python package torch-tb-profiler is not installed")
        with tempfile.TemporaryDirectory() as cache_folder, io.Cache(cache_folder) as cache:
            with self.assertNoLogs("pytorch_profiler", "WARNING"):
                return RunLoader("run", str(folder), cache).load()

    def expect_layers(self, trace, steps):
        """Checks the layers of a GPU: their number, times within the phases, source lines and memory."""
        self.assertEqual(crossing(trace), [])
        self.assertEqual(len(named(trace, "convolution forward")), 2 * 2 * steps)  # layers, micro-batches and steps
        phases = {name: [(each["ts"], each["ts"] + each["dur"]) for each in named(trace, name) if each["cat"] == "kernel"]
                  for name in ("forward", "backward")}
        layers = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
        for layer in layers:
            self.assertGreater(layer["dur"], 0)
            phase = "forward" if layer["name"].endswith("forward") else "backward"
            begin, end = layer["ts"], layer["ts"] + layer["dur"]
            self.assertTrue(any(first - 0.002 <= begin and end <= last + 0.002 for first, last in phases[phase]), layer)
        for layer in named(trace, "convolution"):
            self.assertRegex(layer["args"]["place"], r"^models/networks/networks\.cpp:\d+$")
            self.assertGreater(layer["args"]["activation bytes"], 0)
        blocks = [event["args"] for event in trace["traceEvents"] if event["name"] == "[memory]"]
        self.assertEqual(sum(block["Bytes"] for block in blocks), 0)
        self.assertEqual({(block["Device Type"], block["Device Id"]) for block in blocks}, {(1, blocks[0]["Device Id"])})
        counted = [event["args"]["activations"] for event in trace["traceEvents"] if event["ph"] == "C"]
        self.assertEqual((min(counted), max(counted)), (0, max(block["Total Allocated"] for block in blocks)))

    def test_gpu_profiles_of_replayed_steps_have_phases_and_layers(self):
        if not EMULATED.exists():
            self.skipTest("there is no emulated device in this build")
        folder = pathlib.Path(self.place.name) / "gpu"
        run("train", folder, ["train.steps=8", "profile.wait=5", "profile.active=2", "profile.repeat=1"], program=EMULATED)
        traces = [json.loads(path.read_text()) for path in sorted((folder / "profile").iterdir())]
        self.assertEqual([trace["distributedInfo"]["rank"] for trace in traces], [0, 1])
        for trace in traces:
            self.expect_layers(trace, 2)
            for name in ("forward", "backward"):
                self.assertEqual(len([each for each in named(trace, name) if each["cat"] == "kernel"]), 2 * 2)  # steps and micro-batches
            self.assertEqual([event["name"] for event in named(trace, "ProfilerStep#")], ["ProfilerStep#6", "ProfilerStep#7"])
        opened = self.opened(folder / "profile")
        for worker, trace in zip(opened.workers[1:], traces, strict=True):
            profile = opened.get_profile(worker, "1")
            self.assertLessEqual({"Kernel", "Operator", "Memory"}, {view.display_name for view in profile.views})
            self.expect_memory(profile, trace)
            kernels = {}
            for event in trace["traceEvents"]:
                if event.get("cat") == "kernel":
                    kernels.setdefault(event["name"], []).append(event["dur"])
            self.assertEqual(set(kernels), {"forward", "backward", "optimizer", "ncclKernel_AllReduce"})
            for name, _, calls, total, *_ in profile.kernel_table["data"]["rows"]:
                self.assertEqual(calls, len(kernels[name]))
                self.assertAlmostEqual(total, sum(kernels[name]), delta=1)
            columns = [column.get("name") for column in profile.overview["steps"]["columns"]]
            for row, step in zip(profile.overview["steps"]["rows"], named(trace, "ProfilerStep#"), strict=True):
                begin, end = step["ts"], step["ts"] + step["dur"]
                self.assertEqual(f"ProfilerStep#{row[0]}", step["name"])
                computed = union([(each["ts"], each["ts"] + each["dur"]) for name in ("forward", "backward", "optimizer")
                                  for each in named(trace, name) if begin <= each["ts"] < end])
                self.assertAlmostEqual(row[columns.index("Kernel")], computed, places=2)

    def test_gpu_profiles_of_enqueued_steps_have_layers(self):
        if not EMULATED.exists():
            self.skipTest("there is no emulated device in this build")
        folder = pathlib.Path(self.place.name) / "enqueued"
        run("train", folder, ["train.steps=3", "profile.wait=1", "profile.active=1", "profile.repeat=1", "train.cuda_graph=false"],
            program=EMULATED)
        for path in (folder / "profile").iterdir():
            trace = json.loads(path.read_text())
            self.assertEqual(len(named(trace, "ProfilerStep#")), 1)
            self.expect_layers(trace, 1)

    def test_torch_tb_profiler_opens_the_profiles(self):
        opened = self.opened(self.folder)
        workers = [worker for worker in opened.workers if worker != "All"]
        self.assertEqual([worker.rsplit("_", 1)[1] for worker in workers], ["0", "1"])
        self.assertEqual([view.display_name for view in opened.views], ["Overview", "Operator", "Trace", "Distributed", "Memory"])
        for rank, worker in enumerate(workers):
            for cycle, trace in enumerate(self.of_rank(rank)):
                with self.subTest(rank=rank, cycle=cycle):
                    profile = opened.get_profile(worker, str(cycle + 1))
                    self.expect_steps(profile, trace, CYCLES[cycle])
                    self.expect_operators(profile, trace)
                    self.expect_memory(profile, trace)
        for cycle, steps in enumerate(CYCLES):
            self.expect_sums(opened.get_profile("All", str(cycle + 1)), workers, cycle, steps)

    def expect_steps(self, profile, trace, steps):
        """Checks the times of each step: total, all-reduces, and data loading."""
        columns = [column.get("name") for column in profile.overview["steps"]["columns"]]
        rows = profile.overview["steps"]["rows"]
        self.assertEqual([row[0] for row in rows], [str(step) for step in steps])
        for row, step in zip(rows, named(trace, "ProfilerStep#")):
            costs = {name: row[place] for place, name in enumerate(columns) if name not in (None, "Step")}
            self.assertAlmostEqual(sum(costs.values()), step["dur"], places=2)
            begin, end = step["ts"], step["ts"] + step["dur"]
            sums = union([(max(begin, sum["ts"]), min(end, sum["ts"] + sum["dur"]))
                          for sum in named(trace, "gloo:all_reduce") if sum["ts"] < end and begin < sum["ts"] + sum["dur"]])
            self.assertAlmostEqual(costs["Communication"], sums, places=2)
            self.assertGreater(costs["DataLoader"], 0)
            self.assertGreater(costs["CPU Exec"], 0)

    def expect_operators(self, profile, trace):
        """Checks calls, times and shapes of each kind of layer."""
        table = {row["name"]: row for row in profile.operation_table_by_name["data"]}
        layers = [event for event in trace["traceEvents"] if "Input Dims" in event.get("args", {}) and event["cat"] == "cpu_op"]
        self.assertTrue({"convolution forward", "convolution gradient of weights", "batch norm backward"} <= set(table))
        for name in {event["name"] for event in layers}:
            of_name = [event["dur"] for event in layers if event["name"] == name]
            self.assertEqual(table[name]["calls"], len(of_name), name)
            self.assertAlmostEqual(table[name]["host_self_duration"], sum(of_name), delta=1)
        shapes = {(row["name"], row["input_shape"]) for row in profile.operation_table_by_name_input["data"]}
        for event in layers:
            self.assertIn((event["name"], str(event["args"]["Input Dims"])), shapes)
        stacks = [row["call_stack"] for row in profile.operation_stack_by_name["convolution forward"]["data"]]
        self.assertTrue(all("models/networks/networks.cpp(" in stack for stack in stacks), stacks)

    def expect_memory(self, profile, trace):
        peak = max(event["args"]["activations"] for event in trace["traceEvents"] if event["ph"] == "C")
        (told,) = profile.memory_snapshot.get_peak_memory().values()
        self.assertEqual(told, peak)

    def expect_sums(self, profile, workers, cycle, steps):
        self.assertEqual(set(profile.steps_to_overlap["data"]), {"all", *map(str, steps)})
        for rank, worker in enumerate(workers):
            sums = named(self.of_rank(rank)[cycle], "gloo:all_reduce")
            ((name, calls, size, *_),) = profile.comm_ops["data"][worker]["rows"]
            self.assertEqual((name, calls, size), ("gloo:all_reduce", len(sums), sum(each["args"]["bytes"] for each in sums)))
            self.assertGreater(len(sums), len(steps))  # several buckets


if __name__ == "__main__":
    LOCKSTEP, MPIEXEC, EMULATED = os.path.abspath(sys.argv.pop(1)), sys.argv.pop(1), pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
