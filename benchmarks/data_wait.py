#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the share of a step that waits for data, for every preset: trains each for some steps, on one rank
and on two, and reads data_wait from the account of rank 0. The presets of CIFAR-10 (without --cifar10) and of
ImageNet train on synthetic images of the same size, which cost the loader more than reading images from
files. dense_binary and shapes_unet always compute their data. cifar10_resnet18_finetune trains from random weights,
and its profile is off.

Exit codes: 0, 64 wrong command line, 70 a program failed."""

import pathlib
import statistics
import sys
import tempfile

import record
import suite
import training_runs

# Steps of a run, and settings that shorten it.
PRESETS = {"dense_binary": (1800, ()), "fashion_mnist_mlp": (1800, ()), "fashion_mnist_cnn": (600, ()), "shapes_unet": (100, ()),
           "fashion_mnist_resnet20": (60, ()), "cifar10_resnet20": (20, ()), "cifar10_resnet18": (4, ()),
           "cifar10_resnet18_finetune": (3, ("profile.active=0",)), "imagenet_resnet50": (3, ("train.batch=8",))}
COMPUTED = {"cifar10": (32, 32), "imagenet": (224, 224)}  # height and width of images in place of files
COMPUTED_BY_PRESET = ("dense", "shapes")


def parse_arguments(arguments):
    parser = training_runs.argument_parser("data_wait.py", __doc__)
    parser.add_argument("--lockstep", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin/lockstep")
    parser.add_argument("--presets", nargs="+", choices=list(PRESETS), default=list(PRESETS))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, help="number of steps (default: depends on the preset)")
    parser.add_argument("--cifar10", type=pathlib.Path, help="folder of images for the presets of CIFAR-10 (default: synthetic images)")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def data_of(preset, options):
    """Settings of the data, and its kind: "files" or "computed"."""
    kind = preset.split("_", maxsplit=1)[0]
    if kind == "cifar10" and options.cifar10:
        return [f"data.path={options.cifar10}"], "files"
    if kind in COMPUTED:
        height, width = COMPUTED[kind]
        return ["data.format=synthetic", f"data.synthetic.height={height}", f"data.synthetic.width={width}",
                "data.synthetic.test_samples=100"], "computed"
    return [], "computed" if kind in COMPUTED_BY_PRESET else "files"


def measure(options, preset, ranks):
    steps, settings = PRESETS[preset]
    data, _ = data_of(preset, options)
    with tempfile.TemporaryDirectory() as folder:
        told = [f"run.dir={folder}/run", f"train.steps={options.steps or steps}", "world.device=cpu", *settings, *data]
        command = [options.lockstep, "train", preset, *training_runs.overrides(told)]
        training_runs.succeeded(suite.execute([*training_runs.launcher(ranks), *command]))
        accounts = [line["account"] for line in training_runs.lines_of(pathlib.Path(folder) / "run/metrics.jsonl")]
    seconds = sum(sum(account.values()) for account in accounts)
    return {"share": sum(account["data_wait"] for account in accounts) / seconds,
            "step_ms": 1e3 * seconds / (options.steps or steps)}


def rows_of(options):
    rows = []
    for preset in options.presets:
        turns = suite.take_turns({ranks: lambda ranks=ranks, preset=preset: measure(options, preset, ranks) for ranks in options.ranks},
                                 options.turns)
        for ranks, results in turns.items():
            shares = [result["share"] for result in results]
            row = {"preset": preset, "data": data_of(preset, options)[1], "ranks": ranks,
                   "step_ms": statistics.median(result["step_ms"] for result in results),
                   "data_wait_share": statistics.median(shares), "data_wait_share_spread": [min(shares), max(shares)]}
            rows.append(row)
            print(f"{preset:<24} {ranks} ranks {row['step_ms']:8.1f} ms a step, data wait {100 * row['data_wait_share']:.2f} % "
                  f"({100 * min(shares):.2f} to {100 * max(shares):.2f})", flush=True)
    return rows


def run(options, _):
    with tempfile.TemporaryDirectory() as folder:
        if options.cifar10:  # each run ends with an evaluation, which takes minutes with 10,000 images of 224x224
            options.cifar10 = training_runs.first_images(options.cifar10, pathlib.Path(folder), {"train": None, "test": 10})
        rows = rows_of(options)
    record.write(options.json, {"benchmark": "data_wait", "turns": options.turns, "rows": rows})


if __name__ == "__main__":
    sys.exit(training_runs.main("data_wait.py", parse_arguments, run, sys.argv[1:]))
