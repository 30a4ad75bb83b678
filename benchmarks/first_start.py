#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long a start takes: wall time of `lockstep plan`, which is a start without the training. The first
start times kernels, and later ones read the choices from the cache. Images are 32x32, the batch is 64.

Exit codes: 0, 64 wrong command line, 70 a program failed."""

import pathlib
import statistics
import sys
import tempfile

import record
import suite
import training_runs


def start(options, model, images, cache):
    settings = {"data.path": images, "model.name": model, "train.batch": 64, "train.threads": options.threads,
                "train.precision": options.precision, "kernels.cache": cache}
    done = suite.execute([options.lockstep, "plan", "fashion_mnist_cnn", *training_runs.overrides(settings)])
    return training_runs.succeeded(done).seconds


def measure(options, model, images):
    first, later = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            first.append(start(options, model, images, cache))
            later += [start(options, model, images, cache) for _ in range(3)]
    print(f"{model:<14} first {statistics.median(first):.2f} s, later {statistics.median(later):.2f} s", flush=True)
    return {"model": model, "first_seconds": first, "later_seconds": later,
            "first_median": statistics.median(first), "later_median": statistics.median(later)}


def parse_arguments(arguments):
    parser = training_runs.argument_parser("first_start.py", __doc__)
    parser.add_argument("--lockstep", default=training_runs.ROOT / "build/cpu/bin/lockstep", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="first starts of each network; each is followed by three later ones")
    parser.add_argument("--json", type=pathlib.Path, help="write every start to this file")
    return parser.parse_args(arguments)


def run(options, _):
    with tempfile.TemporaryDirectory() as folder:
        training_runs.write_images(pathlib.Path(folder), train=640, test=128, side=32)
        rows = [measure(options, model, folder) for model in options.models]
    if options.json:
        record.write(options.json, {"threads": options.threads, "precision": options.precision, "starts": rows})


if __name__ == "__main__":
    sys.exit(training_runs.main("first_start.py", parse_arguments, run, sys.argv[1:]))
