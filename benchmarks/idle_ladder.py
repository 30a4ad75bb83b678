#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes an idle machine busy by following only the advice of the trainings: trains, reads the event in
events.jsonl with the largest loss that a program can fix, applies its change, and trains again, until devices
are busy for 90 % of the time or two trainings in a row propose no change that a program can apply. Each rung
records the predicted and the measured result.

It starts as a first attempt often does: one rank, one sample per step, images that are decoded when they are
needed, and F1 of the test images after each step, in fp32. The first images of each class suffice.

  busy      share of the time of steps and of evaluations between them

Exit codes: 0 busy for 90 %, 1 not, 64 wrong command line, 70 a program failed."""

import pathlib
import re
import shlex
import sys
import tempfile

import chart
import record
import suite
import training_runs

ENOUGH = 0.9
MOST_RUNGS = 12
AGAIN = "again"  # no change: other programs may have used the cores
WATCH = {"run.busy_below": ENOUGH, "run.log_every": 10, "run.busy_lines": 3, "run.event_pause_seconds": 0}


def parse_arguments(arguments):
    parser = training_runs.argument_parser("idle_ladder.py", __doc__)
    parser.add_argument("--lockstep", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin/lockstep")
    parser.add_argument("--images", type=pathlib.Path, help="folder of images: train/CLASS/ and test/CLASS/")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="more")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--redraw", type=pathlib.Path, metavar="FILE", help="only draw the chart of this result")
    options = parser.parse_args(arguments)
    if not options.redraw and not (options.images and options.json):
        parser.error("--images and --json are required")
    return options


def lockstep(options, ranks, *words):
    launch = training_runs.launcher(ranks) if ranks else []
    training_runs.succeeded(suite.execute([*launch, options.lockstep, *words]))


def train(options, ranks, settings, folder):
    lockstep(options, ranks, "train", "cifar10_resnet18", *training_runs.overrides({**settings, **WATCH, "run.dir": folder}))
    epochs = training_runs.lines_of(folder / "metrics.jsonl")
    seconds = sum(epoch["train_seconds"] + epoch.get("evaluations_within", {}).get("seconds", 0) for epoch in epochs)

    def mean(name):
        return sum(epoch[name] * epoch["train_seconds"] for epoch in epochs) / seconds

    return {name: mean(name) for name in ("busy", "peak", "samples_per_second")}, training_runs.lines_of(folder / "events.jsonl")


def can_follow(event):
    return "lockstep pack" in event["text"] or bool(event["key"]) or bool(re.search(r"--ranks \d", event["text"]))


def follow(options, event, ranks, settings, folder):
    """Applies the advice: returns (ranks, settings, change in words); None if a program cannot apply it."""
    if "lockstep pack" in event["text"]:
        lockstep(options, 0, "pack", "cifar10_resnet18", folder / "records", *training_runs.overrides(settings))
        return ranks, {**settings, "data.format": "records", "data.path": folder / "records"}, "lockstep pack"
    if event["key"]:
        # The images are decoded before the first step, not by the first epoch's steps.
        before = {"data.preload": "before"} if event["value"] == "preload" else {}
        return ranks, {**settings, event["key"]: event["value"], **before}, f"{event['key']}={event['value']}"
    fewer = re.search(r"--ranks (\d+)", event["text"])
    if fewer:
        return int(fewer[1]), settings, f"{fewer[1]} ranks"
    return None


def climb(options, folder):
    ranks = options.ranks
    images = training_runs.first_images(options.images, folder / "images", {"train": 26, "test": 10})  # several epochs are short
    settings = {"data.path": images, "data.loader": "stream", "model.name": "cnn", "world.device": "cpu", "train.precision": "fp32", "train.batch": options.batch,
                "train.steps": options.steps, "train.epochs": options.steps, "run.metrics": "f1", "run.metrics_every": 1, "run.evaluate_every": 0,
                **dict(each.split("=", 1) for each in options.more)}
    rungs = []
    change = None
    for number in range(MOST_RUNGS):
        place = folder / str(number)
        place.mkdir()
        found, events = train(options, ranks, settings, place / "run")
        event = max(events, key=lambda each: (can_follow(each), each["lost_seconds"]), default=None)
        rungs.append({"change": change, "ranks": ranks, **found,
                      "told": event and {name: event[name] for name in ("cause", "text", "samples_per_second", "samples_per_second_estimated")}})
        print(f"{change or 'unchanged':<28} busy {100 * found['busy']:5.1f} %  peak {100 * found['peak']:5.1f} %  "
              f"{found['samples_per_second']:9.0f} samples/s  {event['text'] if event else ''}", flush=True)
        step = follow(options, event, ranks, settings, place) if event and found["busy"] < ENOUGH else None
        if step is None and found["busy"] < ENOUGH and change != AGAIN:
            step = ranks, settings, AGAIN
        if step is None:
            break
        ranks, settings, change = step
    return rungs


def draw(result):
    """The chart of a result, as SVG text."""
    rungs = result["rungs"]

    def series(name, scale=1):
        return [chart.Series(name.replace("_", " "), [(number, scale * rung[name]) for number, rung in enumerate(rungs)])]
    changes = ", ".join(f"{number} {rung['change']}" for number, rung in enumerate(rungs) if number)
    return chart.svg("From idle to busy by following the advice of each training",
                     [chart.Panel("Busy", "changes", "%", series("busy", 100), y_most=100),
                      chart.Panel("Throughput", "changes", "samples/s", series("samples_per_second"))],
                     f"{changes}; {result['date']}")


def run(options, arguments):
    with tempfile.TemporaryDirectory() as folder:
        rungs = climb(options, pathlib.Path(folder))
    command = shlex.join(["benchmarks/idle_ladder.py", *arguments])
    record.write(options.json, {"benchmark": "idle_ladder", **record.circumstances(command, options.lockstep),
                                "steps": options.steps, "rungs": rungs})
    return 0 if rungs[-1]["busy"] >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(training_runs.main("idle_ladder.py", parse_arguments, run, sys.argv[1:], draw))
