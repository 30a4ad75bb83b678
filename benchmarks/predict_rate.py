#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the rate of `lockstep predict` and its `busy`, the share of the time in which the device computes. Trains
the network for some steps, exports it, and classifies the images of a folder in several turns. Loaders that decode on
the same cores also slow down the computation, which `busy` does not show.

Exit codes: 0, 64 wrong command line, 70 a program failed."""

import pathlib
import re
import statistics
import sys
import tempfile

import record
import suite
import training_runs

TOLD = re.compile(r"([\d,]+) images in ([\d.]+) s: ([\d,.]+) images/s, busy (\d+) %")


def parse_arguments(arguments):
    parser = training_runs.argument_parser("predict_rate.py", __doc__)
    parser.add_argument("--lockstep", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin/lockstep")
    parser.add_argument("--images", type=pathlib.Path, required=True, help="folder of images: train/CLASS/ and test/CLASS/")
    parser.add_argument("--models", nargs="+", default=["cnn", "resnet20"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def turn_of(output):
    """The number of images, their rate and the busy share, as `lockstep predict` prints them at its end. A
    rate below 10 has decimals."""
    told = TOLD.search(output)
    if not told:
        raise training_runs.Failed("lockstep predict printed no rate")
    return {"images": int(told[1].replace(",", "")), "images_per_second": float(told[3].replace(",", "")), "busy": int(told[4]) / 100}


def examine(options, model, folder):
    export = folder / f"{model}.safetensors"
    settings = {"data.path": options.images, "model.name": model, "train.precision": "fp32", "train.steps": 20,
                "run.dir": folder / model}
    training_runs.succeeded(suite.execute([options.lockstep, "train", "cifar10_resnet20", *training_runs.overrides(settings),
                                           "--export", export]))
    turns = []
    for _ in range(options.turns):
        done = suite.execute([options.lockstep, "predict", export, options.images / "test", "--set", "kernels.choose=time"])
        turns.append(turn_of(training_runs.succeeded(done).output))
    busy = statistics.median(turn["busy"] for turn in turns)
    rate = statistics.median(turn["images_per_second"] for turn in turns)
    print(f"{model:<10} {rate:8,.{0 if rate >= 10 else 2}f} images/s, busy {100 * busy:.0f} %")
    return {"model": model, "busy": busy, "turns": turns}


def run(options, _):
    with tempfile.TemporaryDirectory() as folder:
        results = [examine(options, model, pathlib.Path(folder)) for model in options.models]
    record.write(options.json, {"benchmark": "predict_rate", "results": results})


if __name__ == "__main__":
    sys.exit(training_runs.main("predict_rate.py", parse_arguments, run, sys.argv[1:]))
