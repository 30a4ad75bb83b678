#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how much accuracy it costs to send fewer bytes. Trains the same network from the same seeds with every
codec and with every way to exchange less often, and compares each with the dense sum of the same seed. Codecs
also compress between ranks of one node (comm.compress_within_node), so the accuracy needs no nodes. --link
needs them: it measures the step time of every way over a link of that rate, in turns, for the chart's second
panel.

A run takes minutes. The file is written after each run, and a later call skips the runs that the file has. Each run
has its own machine, versions, revision, date and command. The part's are those of its first call.

Exit codes: 0, 64 wrong command line, 70 a run failed, 77 this machine cannot create nodes."""

import dataclasses
import functools
import json
import pathlib
import shlex
import statistics
import sys
import tempfile

import chart
import record
import suite
import training_runs


@dataclasses.dataclass
class Way:
    """How gradients are exchanged."""
    settings: list
    least: float = None  # lowest accepted difference to the dense sum's accuracy, in percentage points
    one_node: bool = False  # --link skips it
    dense_key: str = ""  # configuration key of the number of dense steps at the start
    warmup_key: str = ""  # configuration key of the number of steps until the density is final


WAYS = {
    "none": Way([]),
    "fp16": Way(['comm.codec="fp16"'], -0.3),
    "bf16": Way(['comm.codec="bf16"'], -0.3),
    "int8": Way(['comm.codec="int8"'], -0.3),
    "powersgd rank 2": Way(['comm.codec="powersgd"', "comm.powersgd.rank=2"], -0.3,
                           dense_key="comm.powersgd.start_step"),
    "powersgd rank 2, no error feedback": Way(['comm.codec="powersgd"', "comm.powersgd.rank=2", "comm.powersgd.start_step=0",
                                               "comm.powersgd.error_feedback=0"]),
    "sign": Way(['comm.codec="sign"'], -0.3),
    "topk 1 %": Way(['comm.codec="topk"', "comm.topk.density=0.01"], -0.3, warmup_key="comm.topk.warmup_steps"),
    "dgc 0.1 %": Way(['comm.codec="dgc"', "comm.dgc.density=0.001"], -0.4, warmup_key="comm.dgc.warmup_steps"),
    "local SGD, 8 steps": Way(["train.average_every=8"], -0.5, dense_key="train.average_after"),
    "gradients a step late": Way(["train.staleness=1"], -0.5),
    "gossip on a ring": Way(['comm.topology="ring"'], -1.0, one_node=True),
}


@dataclasses.dataclass
class Task:
    config: str  # a preset
    ranks: int
    epochs: int
    model: str
    image: tuple  # side, channels
    batch: int
    settings: list
    dense: dict  # values for dense_key by way, if not the default; the chart's time also uses them
    warmup: dict  # values for warmup_key, by way


RESNET20 = ['model.name="resnet20"', 'train.precision="fp32"', "schedule.warmup_epochs=1",
            "optimizer.weight_decay=1e-4"]

TASKS = {
    "fashion_mnist_cnn": Task("fashion_mnist_cnn", 4, 15, "cnn", (28, 1), 128,
                              ["optimizer.learning_rate=0.1", "schedule.warmup_epochs=1"],
                              dense={"powersgd rank 2": 175}, warmup={}),
    "cifar10_resnet20": Task("cifar10_resnet18", 2, 10, "resnet20", (32, 3), 128, RESNET20,
                             dense={"powersgd rank 2": 390, "local SGD, 8 steps": 390},
                             warmup={"topk 1 %": 1365, "dgc 0.1 %": 1365}),
    # Twice as many epochs, dense steps and warm-up steps.
    "cifar10_resnet20_long": Task("cifar10_resnet18", 2, 20, "resnet20", (32, 3), 128, RESNET20,
                                  dense={"powersgd rank 2": 780, "local SGD, 8 steps": 780},
                                  warmup={"topk 1 %": 2730, "dgc 0.1 %": 2730}),
}


def parse_arguments(arguments):
    parser = training_runs.argument_parser("codec_accuracy.py", __doc__)
    parser.add_argument("--bin", default=str(training_runs.ROOT / "build/cpu/bin"), help="folder of the built programs")
    parser.add_argument("--task", choices=list(TASKS), default="fashion_mnist_cnn")
    parser.add_argument("--data", help="folder of the images (default: the preset's)")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="number of epochs (default: the task's)")
    parser.add_argument("--link", help="measure steps over nodes joined by links of this rate (tests/nodes.sh)")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a run over the link, after as many warm-up steps")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every way over the link")
    parser.add_argument("--json", type=pathlib.Path,
                        help="file to which results of runs are added; a chart (.svg) is written beside it")
    parser.add_argument("--redraw", type=pathlib.Path, metavar="FILE", help="only draw the chart of this result")
    options = parser.parse_args(arguments)
    if not options.redraw and not options.json:
        parser.error("--json is required")
    if options.link and TASKS[options.task].image[1] != 1:
        parser.error(f"--link supports only tasks with grey images, not {options.task}")
    return options


def bytes_of_step(line):
    """Mean bytes that a rank sent per step, from a line (an epoch) of metrics.jsonl."""
    communication = line["communication"]
    rate = communication["wire_bytes_per_second"] or 0  # None if neighbours read each other's memory
    return rate * communication["wire_seconds"] / communication["steps"]


def curve_of(lines):
    """One entry per epoch. "steps" counts from the start of the training; accuracy is in %."""
    return [{"steps": line["steps"], "train_loss": line["train_loss"], "test_loss": line["test_loss"], "accuracy": 100 * line["test_accuracy"],
             "bytes_per_step": round(bytes_of_step(line))} for line in lines]


def settings_of(task, way):
    start = [(WAYS[way].dense_key, task.dense.get(way)), (WAYS[way].warmup_key, task.warmup.get(way))]
    return [*task.settings, *WAYS[way].settings, *(f"{key}={steps}" for key, steps in start if steps is not None)]


def train(options, task, way, seed, folder):
    """Runs one training and returns its curve_of()."""
    run_dir = pathlib.Path(folder) / "run"
    settings = [*settings_of(task, way), f"train.batch={task.batch}",
                f"train.epochs={options.epochs or task.epochs}", f"train.seed={seed}", "train.threads=1", "comm.compress_within_node=true", "comm.timeout_seconds=1e6",
                f'run.dir="{run_dir}"', *([f'data.path="{options.data}"'] if options.data else [])]
    command = [*training_runs.launcher(task.ranks), f"{options.bin}/lockstep", "train", task.config,
               *training_runs.overrides(settings)]
    training_runs.succeeded(suite.execute(command, environment={"OMP_WAIT_POLICY": "passive"}))
    return curve_of(training_runs.lines_of(run_dir / "metrics.jsonl"))


def runs_of(part, way):
    return {run["seed"]: run for run in part["runs"] if run["way"] == way}


def circumstances_of(part, run):
    """The machine, versions, revision, date and command of a run. An older file has some of them only for the whole
    part."""
    return {field: run.get(field, part.get(field)) for field in record.FIELDS}


def ends(part, way):
    """Accuracy after the last epoch, by seed."""
    return {seed: run["epochs"][-1]["accuracy"] for seed, run in runs_of(part, way).items()}


def summary(part, way):
    """Means over the seeds that the dense sum also has: accuracy in %, difference to it in percentage points,
    and the factor by which bytes shrink. seeds_of_two_revisions: the seeds whose two runs are of different revisions.
    None without a common seed."""
    dense, own = runs_of(part, "none"), runs_of(part, way)
    seeds = sorted(set(dense) & set(own))
    if not seeds:
        return None
    points = [ends(part, way)[seed] - ends(part, "none")[seed] for seed in seeds]
    mixed = [seed for seed in seeds
             if circumstances_of(part, dense[seed])["revision"] != circumstances_of(part, own[seed])["revision"]]

    def mean_bytes(runs):
        return statistics.mean(epoch["bytes_per_step"] for seed in seeds for epoch in runs[seed]["epochs"])
    return {"way": way, "seeds": seeds, "seeds_of_two_revisions": mixed,
            "accuracy": statistics.mean(ends(part, way)[seed] for seed in seeds),
            "points": statistics.mean(points), "points_spread": [min(points), max(points)],
            "train_loss": statistics.mean(own[seed]["epochs"][-1]["train_loss"] for seed in seeds),
            "fewer_bytes": mean_bytes(dense) / mean_bytes(own) if mean_bytes(own) else None}


def line_of(row):
    low, high = row["points_spread"]
    least = WAYS[row["way"]].least if row["way"] in WAYS else None
    verdict = "" if least is None else f"   required {least:+.1f}: {'held' if row['points'] >= least else 'MISSED'}"
    fewer = f"bytes 1/{row['fewer_bytes']:.1f}" if row["fewer_bytes"] else "no messages"
    mixed = ", ".join(str(seed) for seed in row["seeds_of_two_revisions"])
    return (f"{row['way']:<36} {row['accuracy']:6.2f} %  {row['points']:+5.2f} ({low:+.2f} to {high:+.2f})  "
            f"train loss {row['train_loss']:.3f}  {fewer}  "
            f"{training_runs.counted(len(row['seeds']), 'seed')}"
            f"{f' (runs of two revisions: seed {mixed})' if mixed else ''}{verdict}")


def mean_curve(part, way):
    curves = [[epoch["accuracy"] for epoch in run["epochs"]] for run in runs_of(part, way).values()]
    return [statistics.mean(values) for values in zip(*curves)]


def draw(document):
    """The chart of a file, as SVG text."""
    panels, dates = [], []
    for task, part in training_runs.parts_of(document).items():
        dates += [part["date"], *(run["date"] for run in part["runs"] if "date" in run)]
        ways = list(dict.fromkeys(run["way"] for run in part["runs"]))
        curves = {way: mean_curve(part, way) for way in ways}
        floor = min(min(curve[len(curve) // 3:]) for curve in curves.values())

        def panel(title, label, time, curves=curves, floor=floor):
            series = [chart.Series(way, [(time(way, epoch + 1), value) for epoch, value in enumerate(curve)
                                         if value >= floor], family=family, markers=False, dashed="no error" in way)
                      for family, (way, curve) in enumerate(curves.items()) if time(way, 1) is not None]
            return chart.Panel(f"{task}: {title}", label, "test accuracy (%)", series, y_least=floor)
        panels.append(panel("accuracy over epochs", "epoch", lambda way, epoch: epoch))
        link = part.get("link")
        if link:
            steps = part["runs"][0]["epochs"][0]["steps"]
            step_seconds = {row["way"]: row["step_ms"] * 1e-3 for row in link["rows"]}

            def seconds(way, epoch, task=task, steps=steps, step_seconds=step_seconds):
                if way not in step_seconds:
                    return None
                dense = min(TASKS[task].dense.get(way, 0), steps * epoch)
                return dense * step_seconds.get("none", 0) + (steps * epoch - dense) * step_seconds[way]
            panels.append(panel(f"accuracy over time at {link['rate']}", "seconds", seconds))
    seeds = max(len(runs_of(part, "none")) for part in training_runs.parts_of(document).values())
    return chart.svg("Accuracy of codecs", panels,
                     f"Means of up to {training_runs.counted(seeds, 'seed')}; time: steps, each the median one over the "
                     f"link, behind warm-ups; {max(dates)}")


def time_steps(options, task, folder):
    """The step time of each way over the link, medians over the turns."""
    training = training_runs.Training(f"{options.bin}/lockstep", task.model, task.image[0], options.steps, 1, [], folder)
    launch = training_runs.launcher(task.ranks, options.link)

    def step(way):
        return training.run(launch, task.ranks, task.batch, WAYS[way].settings)
    turns = suite.take_turns({way: functools.partial(step, way) for way in options.ways
                              if not WAYS[way].one_node}, options.rounds)
    rows = []
    for way, results in turns.items():
        typical, least, most = training_runs.middle([result["step_ms"] for result in results])
        rows.append({"way": way, "step_ms": typical, "step_ms_spread": [least, most]})
    return {"rate": options.link, "ranks": task.ranks, "rounds": options.rounds, "steps": options.steps, "rows": rows}


def write(options, document):
    record.write(options.json, document)
    if any(part["runs"] for part in training_runs.parts_of(document).values()):
        options.json.with_suffix(".svg").write_text(draw(document))


def run(options, arguments):
    document = json.loads(options.json.read_text()) if options.json.exists() else {"benchmark": "codec_accuracy"}
    task = TASKS[options.task]
    command = shlex.join(["benchmarks/codec_accuracy.py", *arguments])
    circumstances = record.circumstances(command, f"{options.bin}/lockstep")
    part = document.setdefault(options.task, {"runs": [], **circumstances})
    part |= {"ranks": task.ranks, "batch_per_rank": task.batch, "settings": task.settings}
    epochs = options.epochs or task.epochs
    if other := {len(run["epochs"]) for run in part["runs"]} - {epochs}:
        raise training_runs.Failed(f"{options.json} has runs of {other.pop()} epochs, not of {epochs}; give another --json")
    for seed in options.seeds:
        for way in options.ways:
            if seed in runs_of(part, way):
                continue
            with tempfile.TemporaryDirectory() as folder:
                curve = train(options, task, way, seed, folder)
            part["runs"].append({"way": way, "seed": seed, **circumstances, "epochs": curve})
            write(options, document)
            print(f"seed {seed}  {way:<36} {curve[-1]['accuracy']:6.2f} %", flush=True)
    if options.link:
        with tempfile.TemporaryDirectory() as folder:
            part["link"] = {**circumstances, **time_steps(options, task, pathlib.Path(folder))}
    part["summary"] = [row for row in (summary(part, way) for way in WAYS) if row]
    write(options, document)
    print("\n".join(line_of(row) for row in part["summary"]), flush=True)


if __name__ == "__main__":
    sys.exit(training_runs.main("codec_accuracy.py", parse_arguments, run, sys.argv[1:], draw))
