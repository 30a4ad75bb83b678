#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""monitor_program_test.py LOCKSTEP MPIEXEC: tests monitor.csv of trainings, read as a user's script reads
it."""

import csv
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "benchmarks"))
import training_runs

LOCKSTEP = MPIEXEC = None

NVIDIA_SMI = ["timestamp", "name", "pci.bus_id", "driver_version", "pstate", "pcie.link.gen.max", "pcie.link.gen.current",
              "temperature.gpu", "utilization.gpu [%]", "utilization.memory [%]", "memory.total [MiB]",
              "memory.free [MiB]", "memory.used [MiB]"]


def number(text, unit):
    value, given = text.rsplit(" ", 1)
    assert given == unit, text
    return float(value)


class Monitor(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = pathlib.Path(folder.name) / "run"
        self.images = pathlib.Path(folder.name)
        training_runs.write_images(self.images, 4000, 100, 28)

    def command(self, steps, *more, seconds=0.05):
        settings = [f"data.path=\"{self.images}\"", f"train.steps={steps}", "train.batch=500", "train.threads=1", "model.name=\"mlp\"",
                    f"run.monitor_seconds={seconds}", f"run.dir=\"{self.run_dir}\"", "run.measure_peak=false"]
        return [LOCKSTEP, "train", "fashion_mnist_cnn", *training_runs.overrides(settings), *more]

    def train(self, *arguments, **more):
        done = subprocess.run(self.command(*arguments, **more), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def train_held(self, steps, while_held):
        """Holds a training of two ranks in its first step while WHILE_HELD(wait_for, said) runs, because on a
        busy machine a short training may end before the second row."""
        held, log = self.images / "held", self.images / "log"
        with log.open("wb") as output:
            job = subprocess.Popen([MPIEXEC, "--oversubscribe", "--bind-to", "none", "-np", "2", *self.command(steps)],
                                   stdout=output, stderr=output, env={**os.environ, "LOCKSTEP_HOLD": f"step:0:{held}"})
        self.addCleanup(job.wait)
        self.addCleanup(job.terminate)

        def said():
            return log.read_text(errors="replace")

        def wait_for(condition):
            deadline = time.monotonic() + 120
            while not condition():
                self.assertIsNone(job.poll(), said())
                self.assertLess(time.monotonic(), deadline, said())
                time.sleep(0.01)

        try:
            wait_for(held.exists)
            while_held(wait_for, said)
        finally:
            held.unlink(missing_ok=True)
        self.assertEqual(job.wait(), 0, said())
        return said()

    def rows(self, name="monitor.csv"):
        with open(self.run_dir / name, newline="") as file:
            header, *rows = csv.reader(file, skipinitialspace=True)
        self.assertEqual(header[:len(NVIDIA_SMI)], NVIDIA_SMI)
        for row in rows:
            self.assertEqual(len(row), len(header))
        return [dict(zip(header, row)) for row in rows]

    def test_rows_have_times_and_host_figures(self):
        file = self.run_dir / "monitor.csv"
        before = datetime.datetime.now()
        self.train_held(4, lambda wait_for, said: wait_for(lambda: file.exists() and file.read_text().count("\n") > 2))
        after = datetime.datetime.now()
        rows = self.rows()
        times = [datetime.datetime.strptime(row["timestamp"], "%Y/%m/%d %H:%M:%S.%f") for row in rows]
        self.assertEqual(times, sorted(times))
        self.assertGreaterEqual(times[0], before - datetime.timedelta(milliseconds=1))
        self.assertLessEqual(times[-1], after)
        memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) // 1024
        for row in rows:
            self.assertEqual(row["ranks"], "0 1")
            self.assertEqual(row["utilization.gpu [%]"], "[N/A]")
            self.assertEqual(number(row["host.memory.total [MiB]"], "MiB"), memory)
            self.assertLess(number(row["host.memory.used [MiB]"], "MiB"), memory)
        busy = [number(row["host.job [%]"], "%") for row in rows if row["host.job [%]"] != "[N/A]"]
        self.assertTrue(busy)  # rounded to 0.0 % on many cores

    def test_resumed_run_adds_rows_and_new_run_starts_a_new_file(self):
        self.train(2, "--set", "run.checkpoint_every=1")
        first = (self.run_dir / "monitor.csv").read_text()
        self.train(4, "--resume", "auto", "--resume-with", "train.steps")
        both = (self.run_dir / "monitor.csv").read_text()
        self.assertEqual(both[:len(first)], first)
        self.assertGreater(len(self.rows()), len(first.splitlines()) - 1)
        self.train(2)
        self.assertEqual((self.run_dir / "monitor.1.csv").read_text(), both)
        self.assertGreaterEqual(len(self.rows()), 1)

    def test_price_adds_a_cost_to_each_epoch(self):
        for settings, costs in (([], False), (["--set", "run.price_per_kwh=0.3"], True)):
            self.train(2, *settings)
            epoch = json.loads((self.run_dir / "metrics.jsonl").read_text())
            self.assertEqual("cost" in epoch["device"], costs, epoch)  # null on a machine that reports no energy

    def test_interval_of_zero_writes_no_file(self):
        self.train(2, seconds=0)
        self.assertEqual(list(self.run_dir.glob("monitor*")), [])

    def test_unwritable_file_does_not_end_the_training(self):
        file = self.run_dir / "monitor.csv"
        warning = "monitor.csv: Too many levels of symbolic links"

        def replace_file(wait_for, said):
            wait_for(file.exists)
            link = self.images / "link"
            link.symlink_to("/dev/full")  # the training must never write through it
            os.replace(link, file)  # the monitor may write the file at any time
            wait_for(lambda: warning in said())

        self.assertEqual(self.train_held(2, replace_file).count(warning), 1)


if __name__ == "__main__":
    LOCKSTEP, MPIEXEC = os.path.abspath(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    unittest.main()
