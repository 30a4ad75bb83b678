#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast does the loader read record files, also compared with PyTorch's DataLoader? Packs synthetic images
of 32x32 and of 224x224 pixels into record files, as pixels and as JPEG, and runs loader_bench on each. Then
compares, in turns on pixels of 32x32, loader_bench with a DataLoader over images in memory, the cheapest
possible dataset.

Exit codes: 0, 64 wrong command line, 70 a program failed."""

import pathlib
import sys
import tempfile

import record
import suite
import training_runs

# Name: height and width, images, coding in the record files, samples of a turn, batch.
SETS = {"pixels 32x32": (32, 50000, "pixels", 50000, 128),
        "pixels 224x224": (224, 5000, "pixels", 3000, 64),
        "jpeg 32x32": (32, 50000, "jpeg", 40000, 128),
        "jpeg 224x224": (224, 2000, "jpeg", 2000, 64)}
WORKERS = 2


def parse_arguments(arguments):
    parser = training_runs.argument_parser("loader_suite.py", __doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin", help="folder of the built programs")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--peer", help="a Python with torch, for the DataLoader (default: no comparison)")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def pack(options, name, folder):
    side, images, coding, _, _ = SETS[name]
    settings = ["data.format=synthetic", f"data.synthetic.height={side}", f"data.synthetic.width={side}",
                f"data.synthetic.train_samples={images}", "data.synthetic.test_samples=100"]
    training_runs.succeeded(suite.execute([options.bin / "lockstep", "pack", "cifar10_resnet20", folder, "--as", coding,
                                           *training_runs.overrides(settings)]))


def loader_bench(options, name, folder, threads, turns):
    _, _, _, samples, batch = SETS[name]
    settings = {"data.format": "records", "data.path": folder, "train.batch": batch}
    done = suite.execute_with_json([options.bin / "loader_bench", "cifar10_resnet20", *training_runs.overrides(settings),
                                    "--threads", threads, "--samples", samples, "--turns", turns])
    return training_runs.succeeded(done).result["result"]


def beside_pytorch(options, folder):
    """Compares the loader with a DataLoader that has as many workers as the loader has threads."""
    name = "pixels 32x32"

    def ours():
        rows = loader_bench(options, name, folder, WORKERS, 3)["rows"]
        return next(row for row in rows if row["stage"] == "loader")

    def theirs():
        done = training_runs.succeeded(suite.execute_with_json(
            [options.peer, pathlib.Path(__file__).parent / "peers/pytorch_loader.py", "arrays", "--samples", 50000, "--image", 32,
             "--batch", 128, "--workers", WORKERS, "--turns", 1]))
        return {**done.result, "version": done.result["peer"]}
    return suite.compare(suite.take_turns({"lockstep": ours, "arrays": theirs}, max(3, options.turns // 2)))


def run(options, _):
    document = {"benchmark": "loader_suite", "sets": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets:
            records = pathlib.Path(folder) / name.replace(" ", "_")
            pack(options, name, records)
            part = document["sets"][name] = loader_bench(options, name, records, 1, options.turns)
            for row in part["rows"]:
                ratios = ", ".join(f"{100 * row[of]['median']:.0f} % {of.replace('_', ' ')}" for of in ("of_copy", "of_decode") if row[of])
                print(f"{name:<15} {row['stage']:<8} {row['threads']} threads {row['samples_per_second']:12,.0f} samples/s  {ratios}",
                      flush=True)
        if options.peer and "pixels 32x32" in options.sets:
            compared = document["pytorch"] = beside_pytorch(options, pathlib.Path(folder) / "pixels_32x32")
            print(f"beside {compared['pytorch']['version']}'s DataLoader, {WORKERS} workers: {suite.with_spread(compared)} times")
    record.write(options.json, document)


if __name__ == "__main__":
    sys.exit(training_runs.main("loader_suite.py", parse_arguments, run, sys.argv[1:]))
