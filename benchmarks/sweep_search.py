#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how busy `lockstep sweep` keeps its slots, and which share of a grid's steps successive halving
takes. Searches learning rate and width of a small network on Fashion-MNIST, over every combination of both,
and reads the sweep's result. busy_share: time of the jobs over the time of all slots, from the start of the
first job to the end of the last one. steps_of_all: steps of the whole grid.

Exit codes: 0, 64 wrong command line, 70 a program failed."""

import json
import pathlib
import sys
import tempfile

import record
import suite
import training_runs

SWEEP = """[sweep]
config = "fashion_mnist_cnn"
method = "halving"
epochs = {epochs}
eta = 3
jobs = {jobs}
trials = 27
dir = "{folder}/sweep"
[keys]
optimizer.learning_rate = {{ min = 1e-5, max = 1.0, scale = "log", points = 9 }}
model.cnn.width = {widths}
"""


def parse_arguments(arguments):
    parser = training_runs.argument_parser("sweep_search.py", __doc__)
    parser.add_argument("--lockstep", type=pathlib.Path, default=training_runs.ROOT / "build/cpu/bin/lockstep")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--widths", type=int, nargs=3, default=[2, 4, 8])
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def run(options, _):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "sweep.toml"
        file.write_text(SWEEP.format(epochs=options.epochs, jobs=options.jobs, widths=options.widths, folder=folder))
        done = training_runs.succeeded(suite.execute([options.lockstep, "sweep", file, "--json"]))
        outcome = json.loads(done.output[done.output.index("{"):])
    best = next(trial for trial in outcome["trials"] if trial["trial"] == outcome["best"])
    outcome.pop("dir")
    result = {"benchmark": "sweep", "config": "fashion_mnist_cnn", "epochs": options.epochs, "eta": 3,
              "steps_share": outcome["steps"] / outcome["steps_of_all"], **outcome}
    record.write(options.json, result)
    print(f"{len(outcome['trials'])} trials in {outcome['jobs']} jobs and {outcome['seconds']:.0f} s: slots busy "
          f"{100 * outcome['busy_share']:.1f} %, {100 * result['steps_share']:.1f} % of the grid's steps; best "
          f"{100 * best['accuracy']:.2f} % with {best['settings']}")


if __name__ == "__main__":
    sys.exit(training_runs.main("sweep_search.py", parse_arguments, run, sys.argv[1:]))
