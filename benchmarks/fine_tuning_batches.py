#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which batch is best for the preset cifar10_resnet18_finetune? Trains it once with each batch, by the same number of
samples, and then evaluates it on the first test images of each class.

Columns: batch; steps; samples/s of the training; busy, the share of the time in which the device computes; memory of
the process (on a GPU, of the device) after the training; train loss, the mean over the samples, each before its step
changes the weights; test loss after all samples. Steps are neither profiled nor is the peak measured. On a CPU the
first run with a batch times kernels before it trains, which is not part of the samples/s.

Without --init the weights are random, and the losses say nothing about fine-tuning.

Exit codes: 0, 64 wrong command line, 70 a program failed."""

import pathlib
import shlex
import sys
import tempfile

import record
import suite
import training_runs


def parse_arguments(arguments):
    parser = training_runs.argument_parser("fine_tuning_batches.py", __doc__)
    parser.add_argument("--lockstep", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin/lockstep")
    parser.add_argument("--images", type=pathlib.Path,
                        help="folder with train/CLASS/*.jpg and test/CLASS/*.jpg (default: the dataset that --set names)")
    parser.add_argument("--init", type=pathlib.Path, help="weights, as safetensors")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 32, 512])
    parser.add_argument("--samples", type=int, default=512, help="training samples of each batch; a multiple of each")
    parser.add_argument("--test-samples", type=int, default=10, help="test images of each class")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="more")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    options = parser.parse_args(arguments)
    uneven = [batch for batch in options.batches if options.samples % batch]
    if uneven:
        parser.error(f"--samples {options.samples} is no multiple of the batch {uneven[0]}")
    return options


def measure(options, batch, images, folder):
    data = [f"data.path={images}"] if images else []
    settings = [*data, "data.loader=stream", f"train.batch={batch}", f"train.steps={options.samples // batch}",
                "profile.active=0", "run.measure_peak=false", f"run.dir={folder}", *options.more]
    init = ["--init", options.init] if options.init else []
    training_runs.succeeded(suite.execute([options.lockstep, "train", "cifar10_resnet18_finetune", *init,
                                           *training_runs.overrides(settings)]))
    last = training_runs.lines_of(folder / "metrics.jsonl")[-1]
    if last["steps"] * batch != options.samples:
        raise training_runs.Failed(f"batch {batch}: the dataset has fewer than {options.samples} training samples")
    device = last.get("device_memory")
    return {"batch": batch, "steps": last["steps"], "samples": last["steps"] * batch,
            "samples_per_second": last["samples_per_second"], "busy": last["busy"],
            "memory_bytes": device["buffers"] + device["libraries"] if device else last["resident_bytes_by_rank"][0],
            "train_loss": last["train_loss"], "test_loss": last["test_loss"], "test_accuracy": last["test_accuracy"]}


def line_of(row):
    return (f"batch {row['batch']:>4} {row['steps']:>6} steps {row['samples_per_second']:9.1f} samples/s  busy {100 * row['busy']:3.0f} %"
            f" {row['memory_bytes'] / 2**30:6.2f} GiB  train loss {row['train_loss']:.3f}  test loss {row['test_loss']:.3f}")


def run(options, arguments):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        images = training_runs.first_images(options.images, folder / "images",
                                            {"train": None, "test": options.test_samples}) if options.images else None
        for batch in options.batches:
            rows.append(measure(options, batch, images, folder / f"batch_{batch}"))
            print(line_of(rows[-1]), flush=True)
    command = shlex.join(["benchmarks/fine_tuning_batches.py", *arguments])
    result = {"benchmark": "fine_tuning_batches", **record.circumstances(command, options.lockstep),
              "weights": "of a file" if options.init else "random", "settings": options.more, "rows": rows}
    record.write(options.json, result)


if __name__ == "__main__":
    sys.exit(training_runs.main("fine_tuning_batches.py", parse_arguments, run, sys.argv[1:]))
