#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the rate of `lockstep predict` and its `busy`, the share of the time in which the device computes. Trains
the network for some steps, exports it, and classifies the images of a folder in several turns. Loaders that decode on
the same cores also slow down the computation, which `busy` does not show.

Exit codes: 0, 64 wrong command line, 70 a program failed."""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile

import suite
import training_runs

TOLD = re.compile(r"([\d,]+) images in ([\d.]+) s: ([\d,]+) images/s, busy (\d+) %")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(64, f"predict_rate.py: {message}; see --help\n")
    parser.add_argument("--lockstep", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin/lockstep")
    parser.add_argument("--images", type=pathlib.Path, required=True, help="folder of images: train/CLASS/ and test/CLASS/")
    parser.add_argument("--models", nargs="+", default=["cnn", "resnet20"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def run(*words):
    done = suite.execute(words)
    if done.status != "ok":
        raise training_runs.Failed(f"{done.text}: {done.reason}")
    return done.output


def examine(options, model, folder):
    export = folder / f"{model}.safetensors"
    run(options.lockstep, "train", "cifar10_resnet20", "--set", f"data.path={options.images}", "--set", f"model.name={model}",
        "--set", "train.precision=fp32", "--set", "train.steps=20", "--set", f"run.dir={folder / model}", "--export", export)
    turns = []
    for _ in range(options.turns):
        told = TOLD.search(run(options.lockstep, "predict", export, options.images / "test", "--set", "kernels.choose=time"))
        if not told:
            raise training_runs.Failed("lockstep predict printed no rate")
        turns.append({"images": int(told[1].replace(",", "")), "images_per_second": int(told[3].replace(",", "")), "busy": int(told[4]) / 100})
    busy = statistics.median(turn["busy"] for turn in turns)
    print(f"{model:<10} {statistics.median(turn['images_per_second'] for turn in turns):8,.0f} images/s, busy {100 * busy:.0f} %")
    return {"model": model, "busy": busy, "turns": turns}


def main():
    options = parse_arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        results = [examine(options, model, pathlib.Path(folder)) for model in options.models]
    options.json.write_text(json.dumps({"benchmark": "predict_rate", "cores": os.cpu_count(), "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except training_runs.Failed as failure:
        print(f"predict_rate.py: {failure}", file=sys.stderr)
        sys.exit(70)
