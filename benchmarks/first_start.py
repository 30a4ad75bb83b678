#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long a start takes: wall time of `lockstep plan`, which is a start without the training. The first
start times kernels, and later ones read the choices from the cache. Images are 32x32, the batch is 64."""

import argparse
import json
import pathlib
import statistics
import tempfile

import suite
import training_runs

HERE = pathlib.Path(__file__).resolve().parent


def start(options, model, images, cache):
    settings = {"data.path": images, "model.name": model, "train.batch": 64, "train.threads": options.threads,
                "train.precision": options.precision, "kernels.cache": cache}
    run = suite.execute([options.lockstep, "plan", "fashion_mnist_cnn",
                         *[part for name, value in settings.items() for part in ("--set", f"{name}={value}")]])
    if run.status != "ok":
        raise SystemExit(f"{run.text}: {run.reason}")
    return run.seconds


def measure(options, model, images):
    first, later = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            first.append(start(options, model, images, cache))
            later += [start(options, model, images, cache) for _ in range(3)]
    print(f"{model:<14} first {statistics.median(first):.2f} s, later {statistics.median(later):.2f} s", flush=True)
    return {"model": model, "first_seconds": first, "later_seconds": later,
            "first_median": statistics.median(first), "later_median": statistics.median(later)}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", default=HERE.parent / "build/cpu/bin/lockstep", type=pathlib.Path)
parser.add_argument("--models", nargs="+", default=["resnet18", "resnet50"])
parser.add_argument("--precision", default="fp32")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=3, help="first starts of each network; each is followed by three later ones")
parser.add_argument("--json", type=pathlib.Path, help="write every start to this file")
options = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    training_runs.write_images(pathlib.Path(folder), train=640, test=128, side=32)
    rows = [measure(options, model, folder) for model in options.models]
if options.json:
    options.json.write_text(json.dumps({"threads": options.threads, "precision": options.precision, "starts": rows},
                                       indent=1) + "\n")
