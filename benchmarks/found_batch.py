#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the predictions of `lockstep find-batch`: runs it once for each configuration, then trains as
configured and as recommended, in turns. Reports the predicted speedup, the measured one (median of the ratios
of samples/s over all turns) and the seconds that the search took.

Exit codes: 0, 64 wrong command line, 70 a program failed."""

import json
import pathlib
import statistics
import sys
import tempfile

import record
import suite
import training_runs


def parse_arguments(arguments):
    parser = training_runs.argument_parser("found_batch.py", __doc__)
    parser.add_argument("--lockstep", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin/lockstep")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=45, help="seconds of a search")
    parser.add_argument("--train-seconds", type=float, default=5, help="approximate seconds of each training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="more", help="set this key in all configurations")
    parser.add_argument("configurations", nargs="+", metavar="PRESET[,KEY=VALUE ..]")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def lockstep(options, *words):
    launch = training_runs.launcher(options.ranks) if options.ranks > 1 else []
    training_runs.succeeded(suite.execute([*launch, options.lockstep, *words]))


def train(options, preset, settings, steps, folder):
    settings = [*settings, f"train.steps={steps}", "run.measure_peak=false", f"run.dir={folder}"]
    lockstep(options, "train", preset, *training_runs.overrides(settings))
    epochs = training_runs.lines_of(folder / "metrics.jsonl")
    seconds = sum(epoch["train_seconds"] for epoch in epochs)
    return sum(epoch["samples_per_second"] * epoch["train_seconds"] for epoch in epochs) / seconds


def examine(options, configuration, folder):
    preset, *given = configuration.split(",")
    settings = [*options.more, *given]
    lockstep(options, "find-batch", preset, "--seconds", options.seconds, "--out", folder / "found",
             *training_runs.overrides([*settings, f"run.dir={folder / 'found'}"]))
    found = json.loads((folder / "found" / "found_batch.json").read_text())
    before, after = found["configured"], found["recommended"]
    result = {"configuration": configuration, "configured": before, "recommended": after, "seconds": found["seconds"],
              "critical_batch": found["gradient_noise"]["critical_batch"], "largest": found["largest"]["batch"], "batches": found["batches"]}
    if after["changes"]:
        recommended = [f"train.batch={after['batch']}", f"train.accumulation={after['accumulation']}",
                       f"optimizer.learning_rate={after['learning_rate']}", f"schedule.warmup_epochs={after['warmup_epochs']}"]
        rate = next(each["samples_per_second"] for each in found["batches"] if each["batch"] == before["batch"])

        def one(more, rate, global_batch, place):
            return train(options, preset, [*settings, *more], max(3, round(options.train_seconds * rate / global_batch)), folder / place)

        faster = rate * after["samples_per_second_ratio"]
        pairs = [(one([], rate, before["global_batch"], f"{turn}a"), one(recommended, faster, after["global_batch"], f"{turn}b"))
                 for turn in range(options.turns)]
        gains = [new / old for old, new in pairs]
        result |= {"promised": after["samples_per_second_ratio"], "gained": statistics.median(gains), "gains": gains,
                   "as_configured": statistics.median(old for old, _ in pairs), "as_recommended": statistics.median(new for _, new in pairs)}
    return result


def line_of(result):
    text = f"{result['configuration']:<50} batch {result['configured']['batch']} -> {result['recommended']['batch']}  {result['seconds']:.0f} s"
    if "gained" not in result:
        return text + "  stays"
    return text + f"  promised {result['promised']:.2f}x  gained {result['gained']:.2f}x ({min(result['gains']):.2f} to {max(result['gains']):.2f})"


def run(options, _):
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for number, configuration in enumerate(options.configurations):
            results.append(examine(options, configuration, pathlib.Path(folder) / str(number)))
            print(line_of(results[-1]), flush=True)
    record.write(options.json, {"benchmark": "found_batch", "ranks": options.ranks, "results": results})


if __name__ == "__main__":
    sys.exit(training_runs.main("found_batch.py", parse_arguments, run, sys.argv[1:]))
