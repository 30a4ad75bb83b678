#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the step time that `lockstep plan --ranks` predicts for a cluster with measurements. Trains on ranks of
one thread, one per node, on nodes of this machine (tests/nodes.sh) joined by links of given rates. Each node has the
same share of the processors, and all shares together do not exceed the machine: so a node computes as fast as it does
alone, as on a cluster. The plan is fitted to one rank alone and to two ranks over two links. It predicts two
ranks over a third link, and three and four ranks over all links. A forward pass overlaps with no all-reduce:
if it takes much longer than alone (last column), nodes disturbed each other or other programs used the
machine, and the case is not valid. A run takes about three minutes, adds a turn to FILE and computes the
table of the medians over all turns. It refuses a FILE whose turns have other options, another machine, other
versions or another revision.

  benchmarks/validate_plan.py benchmarks/results/plan_validation.json

With --published it trains nothing. It predicts the images per second of published trainings on GPUs from the
published rate of one GPU and the published speeds of links (benchmarks/published_scaling.json, with all
sources), and prints the errors. Nothing is fitted to the trainings. A row's error contains what the rate of one
GPU does not have: its smaller batch (columns batch and of), another version of the program, and reading images.
With FILE it also writes the table there:

  benchmarks/validate_plan.py --published benchmarks/results/plan_published.json

Exit codes: 0, 64 wrong command line, 70 a program failed or FILE has other turns."""

import json
import pathlib
import shlex
import statistics
import sys
import tempfile

import record
import suite
import training_runs

FITTED, UNSEEN = ["200mbit", "1gbit"], ["500mbit"]
RANKS = [2, 3, 4]
SPARE = 0.2  # share of the processors for the kernel and the launcher
LIMIT = 170  # seconds that a run may take
OPTIONS = ("model", "batch", "bucket_mib", "set", "steps", "between_nodes", "cores")  # equal in all turns of a file
PUBLISHED = training_runs.ROOT / "benchmarks/published_scaling.json"
# Only the network's gradients matter to a plan with a given step time, so the batch is small. The published
# trainings send gradients as fp16 on any number of ranks.
NETWORK = ["data.format=synthetic", "data.synthetic.height=224", "data.synthetic.width=224",
           "data.synthetic.classes=1000", "data.synthetic.train_samples=1000", "data.synthetic.test_samples=1000",
           "data.random_resized_crop=false", "data.resize=0", "data.center_crop=1", "train.batch=2",
           "train.precision=fp16", "comm.sum_type=gradients", "world.device=cpu", "kernels.choose=direct"]


def said(rate):
    """Converts tc's notation of a rate to that of `lockstep plan`: 200mbit to 200Mb/s."""
    return rate.replace("mbit", "Mb/s").replace("gbit", "Gb/s")


class Trace:
    """A trace of rank 0: medians over its steps, without the first two."""

    def __init__(self, file):
        self.events = [event for event in json.loads(file.read_text())["traceEvents"]
                       if event["ph"] == "X" and event["pid"] == 0]

    def phase_seconds(self, name):
        return statistics.median([event["dur"] for event in self.events if event["name"] == name][2:]) * 1e-6

    def step_seconds(self):
        begins = sorted(event["ts"] for event in self.events if event["name"] == "forward")
        return statistics.median(after - before for before, after in zip(begins[2:], begins[3:])) * 1e-6


class Turn:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.settings = ["data.format=idx", f"data.path={folder}", "model.name=" + options.model,
                         f"train.batch={options.batch}", "train.threads=1", "train.epochs=100", "world.device=cpu",
                         "kernels.choose=direct",  # timed choices may differ between runs
                         f"comm.bucket_mib={options.bucket_mib}",
                         f"comm.between_nodes={options.between_nodes}", *options.set]

    def lockstep(self, command, *settings):
        return [self.options.lockstep, command, self.folder / "config.toml",
                *training_runs.overrides([*self.settings, *settings])]

    def on_nodes(self, nodes, rate, name):
        """Trains on one rank per node and returns the path of the trace. With --again it only returns the path."""
        trace = self.folder / f"{name}.json"
        if not self.options.again:
            command = self.lockstep("train", f"train.steps={self.options.steps}", f"run.dir={self.folder / name}")
            training_runs.succeeded(suite.execute(
                ["env", f"LOCKSTEP_NODES_CORES={self.options.cores:.3f}", training_runs.NODES, rate, nodes, 1, *command,
                 "--trace", trace], LIMIT))
        return trace

    def plan(self, ranks, rate, device, fits):
        file = self.folder / "plan.json"
        fit = [word for at, trace in fits.items() for word in ("--fit", f"{trace}@{said(at)}")]
        training_runs.succeeded(suite.execute(
            [*self.lockstep("plan"), "--ranks", ranks, "--nodes", ranks, "--link", said(rate), "--device-step", device, *fit,
             "--json", file], LIMIT))
        return json.loads(file.read_text())

    def measure(self):
        (self.folder / "config.toml").write_text("")
        training_runs.write_images(self.folder, 4096, 32, 28)
        rates = sorted(FITTED + UNSEEN, key=lambda rate: float(rate.rstrip("mgbit")) * (1000 if "gbit" in rate else 1))
        device = self.on_nodes(1, "none", "alone")
        traces = {(ranks, rate): self.on_nodes(ranks, rate, f"{ranks}_over_{rate}")
                  for ranks in RANKS for rate in rates}
        fits = {rate: traces[2, rate] for rate in FITTED}
        alone, rows = Trace(device), []
        for (ranks, rate), file in traces.items():
            plan, trace = self.plan(ranks, rate, device, fits), Trace(file)
            asked = plan["predictions"][-1]
            rows.append({"ranks": ranks, "link": rate, "fitted": ranks == 2 and rate in FITTED,
                         "predicted_seconds": asked["step_seconds"], "measured_seconds": trace.step_seconds(),
                         "interval_seconds": [asked["low_seconds"], asked["high_seconds"]],
                         "predicted_exposed_seconds": asked["exposed_seconds"],
                         "measured_exposed_seconds": trace.phase_seconds("exchange"),
                         "forward_ratio": trace.phase_seconds("forward") / alone.phase_seconds("forward")})
        return {"rows": rows, "fit": plan["fit_between_nodes"],
                "fit_beside_compute": plan["fit_beside_compute"], "loss": plan["loss"], "cores": self.options.cores,
                "alone_seconds": alone.step_seconds()}


def conditions(options, circumstances):
    """The values that are equal in all turns of a file, by name."""
    return {**{f"--{name.replace('_', '-')}": getattr(options, name) for name in OPTIONS}, **circumstances["machine"],
            **circumstances["versions"], "revision": circumstances["revision"]}


def earlier_turns(options, circumstances):
    """The turns of the file, whose options are those of its command. Throws Failed if they have other conditions."""
    if options.fresh or not options.file.is_file():
        return []
    before = json.loads(options.file.read_text())
    then = parse_arguments(shlex.split(before["command"])[1:])
    then.cores = before["turns"][0]["cores"]  # the default depends on the machine
    old, new = conditions(then, before), conditions(options, circumstances)
    differ = [f"{name} {old.get(name)}, not {new.get(name)}" for name in {**old, **new} if old.get(name) != new.get(name)]
    if differ:
        raise training_runs.Failed(f"{options.file} has turns with {'; '.join(differ)}. Give another FILE, or --fresh to "
                                   "discard these turns")
    return before["turns"]


def table_of(turns):
    """The medians of each case over its turns. error: of the predicted step time, relative to the measured
    one."""
    table = []
    for cases in zip(*(turn["rows"] for turn in turns)):
        errors = [case["predicted_seconds"] / case["measured_seconds"] - 1 for case in cases]
        table.append({key: cases[0][key] for key in ("ranks", "link", "fitted")} |
                     {key: statistics.median(case[key] for case in cases)
                      for key in ("predicted_seconds", "measured_seconds", "predicted_exposed_seconds",
                                  "measured_exposed_seconds", "forward_ratio")} |
                     {"error": statistics.median(errors), "errors": errors})
    return table


def text_of(table):
    lines = ["ranks  link     step predicted  measured   error  exposed predicted  measured  forward"]
    for row in table:
        lines.append(f"{row['ranks']:5}  {row['link']:7}  {row['predicted_seconds'] * 1e3:11.1f} ms  "
                     f"{row['measured_seconds'] * 1e3:5.1f} ms  {row['error']:+6.1%}  "
                     f"{row['predicted_exposed_seconds'] * 1e3:14.1f} ms  "
                     f"{row['measured_exposed_seconds'] * 1e3:5.1f} ms  {row['forward_ratio']:6.2f}x" +
                     ("  (fitted)" if row["fitted"] else ""))
    return "\n".join(lines)


def plan_of(row, single, settings, lockstep, folder):
    """Plans the row's cluster with the step time that one GPU has for the row's batch."""
    file = folder / "plan.json"
    milliseconds = 1e3 * row["batch"] / single["images_per_second"]
    command = [lockstep, "plan", "imagenet_resnet50", "--gpu", row["gpu"], "--ranks", row["gpus"], "--nodes", row["nodes"],
               "--device-step", f"{milliseconds:.6f}ms", "--json", file, *training_runs.overrides(settings)]
    if "link" in row:
        command += ["--link", row["link"]]
    training_runs.succeeded(suite.execute(command, LIMIT))
    return json.loads(file.read_text())


def predict_published(published, lockstep):
    """The rows of PUBLISHED, its content, with their predictions. error: of the predicted images per second, relative to the
    published ones."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in published["rows"]:
            single = published["single_gpus"][row["gpu"]]
            plan = plan_of(row, single, NETWORK + published["settings"], lockstep, pathlib.Path(folder))
            step, total = plan["predictions"][-1], plan["nccl_sums"][-1]
            predicted = row["gpus"] * row["batch"] / step["step_seconds"]
            rows.append(row | {"single_gpu_batch": single["batch"], "predicted_images_per_second": predicted,
                               "error": predicted / row["images_per_second"] - 1, "step_seconds": step["step_seconds"],
                               "exposed_seconds": step["exposed_seconds"], "algorithm": total["algorithm"]})
    return rows


def published_text(rows):
    lines = [f"{'system':38}  {'GPUs':>5}  nodes  batch   of  published  predicted   error  exposed  sum"]
    for row in rows:
        lines.append(f"{row['system']:38}  {row['gpus']:5,}  {row['nodes']:5}  {row['batch']:5}  {row['single_gpu_batch']:3}  "
                     f"{row['images_per_second']:9,.0f}  {row['predicted_images_per_second']:9,.0f}  {row['error']:+6.1%}  "
                     f"{row['exposed_seconds'] * 1e3:4.2f} ms  {row['algorithm']}")
    return "\n".join(lines)


def validate_published(options, command):
    published = json.loads(PUBLISHED.read_text())
    rows = predict_published(published, options.lockstep)
    print(published_text(rows))
    if options.file:
        result = {**record.circumstances(command, options.lockstep), "benchmark": "plan_published",
                  "single_gpus": published["single_gpus"], "rows": rows}
        record.write(options.file, result)


def parse_arguments(arguments):
    parser = training_runs.argument_parser("validate_plan.py", __doc__)
    parser.add_argument("file", type=pathlib.Path, nargs="?", help="result; required without --published")
    parser.add_argument("--published", action="store_true", help="predict published trainings on GPUs instead")
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--batch", type=int, default=8, help="samples per step and rank")
    parser.add_argument("--bucket-mib", default="[0.1, 1, 0.1]",
                        help="comm.bucket_mib; sums of several sizes separate latency from bandwidth")
    parser.add_argument("--set", action="append", default=[], help="set this key of the configuration, SECTION.KEY=VALUE")
    parser.add_argument("--steps", type=int, default=30, help="steps of each run")
    parser.add_argument("--between-nodes", default="auto", help="comm.between_nodes: how nodes add up")
    parser.add_argument("--cores", type=float, default=(1 - SPARE) * record.cores() / max(RANKS),
                        help="cores of each node (default: 0.8 of the cores that this program may use, divided by the largest number of nodes)")
    parser.add_argument("--fresh", action="store_true", help="discard the turns in FILE")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the traces in this folder (default: they are removed)")
    parser.add_argument("--again", action="store_true", help="predict from the traces of an earlier --keep, without training")
    parser.add_argument("--lockstep", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin/lockstep")
    options = parser.parse_args(arguments)
    if not options.published and not options.file:
        parser.error("FILE is required without --published")
    if options.again and not options.keep:
        parser.error("--again needs the --keep FOLDER of an earlier run")
    return options


def run(options, arguments):
    command = shlex.join(["benchmarks/validate_plan.py", *arguments])
    if options.published:
        validate_published(options, command)
        return
    circumstances = record.circumstances(command, options.lockstep)
    turns = earlier_turns(options, circumstances)
    with tempfile.TemporaryDirectory() as folder:
        turns.append(Turn(options, options.keep or pathlib.Path(folder)).measure())
    table = table_of(turns)
    unseen = [abs(error) for row in table if not row["fitted"] for error in row["errors"]]
    result = {**circumstances,
              "median_error": statistics.median(unseen), "largest_error": max(unseen), "table": table, "turns": turns}
    record.write(options.file, result)
    print(text_of(table))
    print(f"median of the absolute errors of {len(unseen)} runs of cases that were not fitted: {result['median_error']:.1%}, "
          f"largest {result['largest_error']:.1%}")


if __name__ == "__main__":
    sys.exit(training_runs.main("validate_plan.py", parse_arguments, run, sys.argv[1:]))
