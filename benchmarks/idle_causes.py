#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Provokes each cause of an idle device: runs a training that has the cause, reads the advice from
events.jsonl, applies the proposed change, and compares the measured speedup with the predicted one. Both
trainings take turns, several times.

  rate      samples per second, including the time between steps, such as evaluations; excludes the first line
            of steps.jsonl

The cause "memory" is provoked on the emulated device, so its figures are not those of a GPU. The cause
"allocation" by a GPU that is too hot needs a GPU; the test EmulatedIdle.AnOverheatedGpuHasCauseAllocation covers
its advice.

Exit codes: 0 each cause was reported, 1 one was not, 64 wrong command line, 70 a program failed."""

import os
import pathlib
import statistics
import sys
import tempfile

import record
import suite
import training_runs

TOLD = {"run.log_every": 10, "run.busy_lines": 2, "run.event_pause_seconds": 0}
MLP = {"model.name": "mlp", "world.device": "cpu", "train.threads": 1, "train.batch": 64, "train.steps": 300,
       "optimizer.learning_rate": 0.001}


def parse_arguments(arguments):
    parser = training_runs.argument_parser("idle_causes.py", __doc__)
    parser.add_argument("--build", type=pathlib.Path, default=training_runs.ROOT / "build/cpu")
    parser.add_argument("--images", type=pathlib.Path, required=True, help="folder of images: train/CLASS/ and test/CLASS/")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=[case.cause for case in cases("", "")], help="provoke only this cause")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


class Case:
    """A cause, a training in which it loses the most time, and the change that removes it: the proposed
    setting, or `change` where a person has to act."""

    def __init__(self, cause, how, settings, ranks=1, before=(), flags=(), change=None, preset="fashion_mnist_mlp"):
        self.cause, self.how, self.settings, self.ranks = cause, how, {**TOLD, **settings}, ranks
        self.before, self.flags, self.change, self.preset = list(before), list(flags), change, preset

    def follow(self, event):
        """The change to apply: {"settings", "before", "flags"}; None if the event proposes no setting."""
        if self.change:
            return self.change
        return {"settings": {event["key"]: event["value"]}} if event["key"] else None


def cases(images, records):
    jpeg = {"data.format": "image_folder", "data.path": images, "data.loader": "stream", "data.loader_threads": 1,
            "data.resize": 8}
    emulated = {"world.device": "cuda", "run.measure_peak": "false", "train.precision": "fp32", "kernels.choose": "direct",
                "data.loader": "stream", "train.batch": 256, "train.steps": 60}
    return [
        Case("small_work", "a batch of one sample", {**MLP, "train.batch": 1, "train.steps": 2000}),
        Case("data", "JPEG files, decoded by one thread, for a small network", {**MLP, **jpeg, "train.batch": 256, "train.steps": 150, "train.threads": 2,
             "run.busy_below": 0.9}, preset="cifar10_resnet18",
             change={"settings": {"data.format": "records", "data.path": records}}),
        Case("architecture", "MobileNetV2: depthwise convolutions and batch norm",
             {**MLP, "model.name": "mobilenet_v2", "train.batch": 16, "train.steps": 40, "run.peak_below": 0.9, "run.busy_below": 0.5,
              "kernels.choose": "direct"}, change={"settings": {"kernels.choose": "time"}}, preset="fashion_mnist_cnn"),
        Case("memory", "the emulated device, with 11.2 MiB and a slow host", emulated, before=["env", "LOCKSTEP_EMULATED_CONTEXT=0", "LOCKSTEP_EMULATED_MEMORY=11500KiB"],
             flags=["--inject", "slow:rank=0,step=1,ms=400"]),
        Case("communication", "one of two ranks is 20 ms late", {**MLP, "train.steps": 100}, ranks=2,
             flags=["--inject", "slow:rank=1,step=1,ms=20"]),
        Case("allocation", "two ranks on one core", {**MLP, "train.batch": 256}, ranks=2, before=["taskset", "-c", str(min(os.sched_getaffinity(0)))],
             change={"before": []}),
        Case("monitoring", "an evaluation after each step", {**MLP, "run.metrics_every": 1, "train.steps": 60}),
    ]


def train(options, case, folder, settings, before, flags):
    program = options.build / "bin" / ("lockstep-emulated" if case.cause == "memory" else "lockstep")
    # Emulated devices have the same names in every job: separate claims keep other jobs' devices apart.
    environment = {"LOCKSTEP_CLAIMS": os.environ.get("LOCKSTEP_CLAIMS", str(folder))}
    words = training_runs.overrides({**settings, "run.dir": folder})
    command = [*training_runs.launcher(case.ranks), *before, program, "train", case.preset, *words, *flags]
    training_runs.succeeded(suite.execute(command, environment=environment))


def rate_of(folder):
    lines = training_runs.lines_of(folder / "steps.jsonl")[1:]
    samples = sum(line["samples_per_second"] * sum(line["account"].values()) for line in lines)
    return samples / sum(sum(line["account"].values()) + line["evaluation_seconds"] for line in lines)


def measure(options, case, folder):
    """Rates before the change, pairs of rates (before, after) of the turns that apply the change, and the event."""
    was, told, event, change = [], [], None, None
    for repeat in range(options.repeats):
        place = folder / f"{case.cause}-{repeat}"
        train(options, case, place / "was", case.settings, case.before, case.flags)
        was.append(rate_of(place / "was"))
        found = next((each for each in training_runs.lines_of(place / "was/events.jsonl") if each["cause"] == case.cause), None)
        event = event or found
        if event is None:
            continue
        change = change or case.follow(event)
        if change is None:
            continue
        train(options, case, place / "told", {**case.settings, **change.get("settings", {})}, change.get("before", case.before),
              change.get("flags", case.flags))
        told.append((was[-1], rate_of(place / "told")))
    return was, told, event


def row_of(case, was, told, event):
    row = {"cause": case.cause, "provoked_by": case.how, "samples_per_second": statistics.median(was)}
    if event is None:
        return row
    promised = event["samples_per_second_estimated"]
    row |= {"said": event["text"], "promised_percent": promised and 100 * (promised / event["samples_per_second"] - 1)}
    if told:
        gains = [100 * (after / before - 1) for before, after in told]
        row |= {"gained_percent": statistics.median(gains), "gained_percent_least": min(gains), "gained_percent_most": max(gains),
                "samples_per_second_changed": statistics.median(after for _, after in told)}
    return row


def pack(options, folder):
    settings = {"data.format": "image_folder", "data.path": options.images, "data.resize": 8}
    training_runs.succeeded(suite.execute([options.build / "bin/lockstep", "pack", "cifar10_resnet18", folder,
                                           *training_runs.overrides(settings)]))


def run(options, _):
    rows = []
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        pack(options, folder / "records")
        for case in cases(options.images, folder / "records"):
            if options.only not in (None, case.cause):
                continue
            row = row_of(case, *measure(options, case, folder))
            rows.append(row)
            print(f"{case.cause:<14} promised {row.get('promised_percent') or 0:+6.0f} %  gained {row.get('gained_percent', 0):+6.0f} %  "
                  f"{row.get('said', 'no event')}", flush=True)
    record.write(options.json, {"benchmark": "idle_causes", "repeats": options.repeats, "rows": rows})
    return 0 if all("said" in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(training_runs.main("idle_causes.py", parse_arguments, run, sys.argv[1:]))
