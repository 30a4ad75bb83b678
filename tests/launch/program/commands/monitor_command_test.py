#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""monitor_command_test.py LOCKSTEP MPIEXEC [MonitorCommand.CASE ..]: tests the output of `lockstep monitor` for a
running training."""

import fcntl
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

LOCKSTEP = MPIEXEC = None
# Images of the preset's size, which need not be unpacked.
SETTINGS = ["data.format=synthetic", "data.path=none", "data.synthetic.height=28", "data.synthetic.width=28",
            "data.synthetic.channels=1", "data.synthetic.train_samples=60000", "data.synthetic.test_samples=100",
            "train.epochs=1000000", "train.threads=1", "comm.timeout_seconds=3600", "run.log_every=1",
            "run.monitor_seconds=0", "run.measure_peak=false", "world.device=cpu"]


class MonitorCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = pathlib.Path(folder.name) / "run"

    # Starts a training in the background; the end of the test kills it.
    def train(self, *settings, environment={}):
        all_settings = [*SETTINGS, f"run.dir={self.run_dir}", *settings]
        command = [MPIEXEC, "--oversubscribe", "--bind-to", "none", "-np", "2", LOCKSTEP, "train", "fashion_mnist_mlp"]
        job = subprocess.Popen([*command, *(part for each in all_settings for part in ("--set", each))],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
        self.addCleanup(self.end, job)
        return job

    # Starts a training and waits until the rank is held after its first step. It continues once the file is removed.
    def train_held(self, rank, *settings):
        held = self.run_dir.parent / "held"
        job = self.train(*settings, environment={"LOCKSTEP_HOLD": f"step:{rank}:{held}"})
        while not held.exists():
            self.assertIsNone(job.poll())
            time.sleep(0.02)
        return job, held

    def end(self, job):
        if job.poll() is None:
            job.kill()
        job.wait()
        self.wait_for_end()  # ranks whose launcher was killed end by themselves

    def wait_for_end(self):
        self.assertTrue(any(not look["jobs"] for look in self.looks()), "ranks are still running after two minutes")

    # Yields the monitor's lines, for at most two minutes (6000 x 0.02 s).
    def looks(self, *flags):
        monitor = subprocess.Popen([LOCKSTEP, "monitor", str(self.run_dir), "--json", "--every", "0.02", "--count",
                                    "6000", *flags], stdout=subprocess.PIPE, text=True)
        try:
            for line in monitor.stdout:
                yield json.loads(line)
        finally:
            monitor.terminate()
            monitor.communicate()

    # The ranks of the first look for which holds(rank 0, rank 1) is true.
    def ranks_when(self, holds, *flags):
        for look in self.looks(*flags):
            self.assertLessEqual(len(look["jobs"]), 1)
            ranks = {rank["rank"]: rank for job in look["jobs"] for rank in job["here"]}
            if len(ranks) == 2 and holds(ranks[0], ranks[1]):
                return ranks
        self.fail("the condition did not hold within two minutes")

    def wait_for_steps(self, steps=1):
        return self.ranks_when(lambda *ranks: all(rank["step"] >= steps for rank in ranks))

    def shown_files(self, job):
        return [file for file in os.listdir("/dev/shm") if file.startswith("lockstep-rank.") and job in file]

    def test_running_training(self):
        self.train()
        self.shows_both_ranks_with_increasing_steps()
        self.redraws_one_table_on_a_terminal()
        self.shows_figures_of_the_files_of_the_run()

    def shows_both_ranks_with_increasing_steps(self):
        before = self.wait_for_steps()
        after = self.wait_for_steps(before[0]["step"] + 50)
        for rank in (0, 1):
            self.assertEqual(after[rank]["process"], before[rank]["process"])
            self.assertGreater(after[rank]["step"], before[rank]["step"])
            self.assertEqual(after[rank]["device"], "cpu")
            self.assertIsNone(after[rank]["idle"])
        self.assertNotEqual(after[0]["process"], after[1]["process"])
        command = pathlib.Path(f"/proc/{after[1]['process']}/cmdline").read_text().split("\0")
        self.assertIn("fashion_mnist_mlp", command)

    def shows_figures_of_the_files_of_the_run(self):
        # A rank without a recent step has no account.
        seen = self.ranks_when(lambda first, _: first["state"] == "training" and first["account"] and
                               first["window_steps"] > 1 and first["window_step"] > 100)[0]
        last, count = seen["window_step"], seen["window_steps"]
        self.wait_for_steps(last + 1)
        lines = [json.loads(line) for line in (self.run_dir / "steps.jsonl").read_text().splitlines()[:last]]
        window = [line for line in lines if last - count < line["step"] <= last]
        self.assertEqual(len(window), count)
        # The window is published at intervals, the position after each step: it may be in the next epoch.
        self.assertIn(seen["epoch"] - window[-1]["epoch"], (0, 1))
        self.assertEqual(window[-1]["learning_rate"], seen["learning_rate"])
        self.assertAlmostEqual(sum(line["loss"] for line in window) / count, seen["loss"], places=5)
        for phase in ("forward", "backward", "exposed_communication", "optimizer"):
            told = sum(line["account"][phase] for line in window)
            self.assertAlmostEqual(told, seen["account"][phase], delta=0.01 * told + 1e-3)

    # The three tables that the monitor draws one over the other on a terminal of this size.
    def drawn(self, rows, columns):
        master, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        monitor = subprocess.Popen([LOCKSTEP, "monitor", str(self.run_dir), "--count", "3", "--every", "0.05"],
                                   stdout=terminal, stdin=terminal)
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(master, 4096):
                shown += part
        except OSError:  # the terminal is closed
            pass
        os.close(master)
        self.assertEqual(monitor.wait(), 0)
        parts = re.split(r"\x1b\[(\d+)A\x1b\[J", shown.decode().replace("\r\n", "\n"))
        self.assertEqual(len(parts), 5, parts)
        for table, lines_up in zip(parts[0::2], parts[1::2]):
            self.assertEqual(table.count("\n"), int(lines_up))
        for table in parts[0::2]:
            self.assertLessEqual(max(map(len, table.split("\n"))), columns, table)
        return parts[0::2]

    def redraws_one_table_on_a_terminal(self):
        for columns in (80, 40):
            for table in self.drawn(24, columns):
                self.assertEqual(len(re.findall(r"\brank +device +state\b", table)), 1, table)
                self.assertRegex(table, r"\n +1 cpu ")
            for table in self.drawn(5, columns):
                self.assertEqual(table.count("\n"), 4, table)
                self.assertRegex(table, r"\n\d+ [^\n]*\n$")  # the number of lines that have no room

    def test_stopped_and_killed_rank(self):
        job, held = self.train_held(1)
        self.shows_that_a_stopped_rank_is_idle_and_resumes(held)
        self.shows_a_killed_rank_and_removes_its_files(job)

    # The stopped rank is held after its first step, so its peer waits in an all-reduce of the second.
    def shows_that_a_stopped_rank_is_idle_and_resumes(self, held):
        stopped = self.wait_for_steps()[1]["process"]
        os.kill(stopped, signal.SIGSTOP)
        ranks = self.ranks_when(lambda first, second: first["idle"] and second["idle"] and
                                first["state"] == "waiting", "--idle", "1")
        self.assertEqual(ranks[1]["state"], "stopped")
        self.assertIn("all_reduce", ranks[0]["waits"]["collective"])
        for rank in ranks.values():
            self.assertGreaterEqual(rank["idle"]["seconds"], 1)
            self.assertRegex(rank["idle"]["why"], r"\b\d+ s\b")
        self.assertIn("all_reduce", ranks[0]["idle"]["why"])
        self.assertNotIn("all_reduce", ranks[1]["idle"]["why"])  # the signal is the reason, not a collective
        table = subprocess.run([LOCKSTEP, "monitor", str(self.run_dir), "--idle", "1"], capture_output=True, text=True)
        self.assertEqual(table.returncode, 0)
        self.assertRegex(table.stdout, r"\n +0 cpu +waiting .*\n +1 cpu +stopped ")
        why = re.sub(r"\d+", r"\\d+", re.escape(ranks[1]["idle"]["why"]))
        self.assertRegex(table.stdout, rf"\nrank 1\b.*{why}\n")
        held.unlink()
        os.kill(stopped, signal.SIGCONT)
        ranks = self.ranks_when(lambda first, second: first["step"] > ranks[0]["step"] + 20 and
                                second["state"] == "training")
        self.assertIsNone(ranks[1]["idle"])

    def shows_a_killed_rank_and_removes_its_files(self, job):
        look = next(self.looks())
        name, killed = look["jobs"][0]["job"], look["jobs"][0]["here"][1]["process"]
        self.assertEqual(len(self.shown_files(name)), 2)
        os.kill(killed, signal.SIGKILL)
        ranks = self.ranks_when(lambda _, second: second["state"] == "died")
        self.assertEqual(ranks[1]["process"], killed)
        self.assertIsNone(ranks[1]["idle"])
        job.wait()
        self.wait_for_end()
        self.assertEqual(self.shown_files(name), [])

    # The monitor ends with the training, and no file remains. The training is held until the monitor has shown it.
    def test_end_of_training(self):
        job, held = self.train_held(0, "train.steps=100")
        name = next(look["jobs"][0]["job"] for look in self.looks() if look["jobs"])
        until_end = subprocess.Popen([LOCKSTEP, "monitor", str(self.run_dir), "--json", "--every", "0.05"],
                                     stdout=subprocess.PIPE, text=True)
        first = until_end.stdout.readline()
        held.unlink()
        shown = first + until_end.communicate()[0]
        self.assertEqual(until_end.returncode, 0)
        looks = [json.loads(line) for line in shown.splitlines()]
        self.assertEqual(looks[-1]["jobs"], [])
        states = [rank["state"] for look in looks for job_ in look["jobs"] for rank in job_["here"]]
        self.assertIn("training", states)
        self.assertNotIn("died", states)
        self.assertEqual(job.wait(), 0)
        self.assertEqual(self.shown_files(name), [])

    def test_no_training(self):
        command = [LOCKSTEP, "monitor", str(self.run_dir)]
        told = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(told.returncode, 0)
        self.assertEqual(told.stdout.count("\n"), 1, told.stdout)
        self.assertIn(str(self.run_dir), told.stdout)
        self.assertIn(os.uname().nodename, told.stdout)
        told = subprocess.run([*command, "--json"], capture_output=True, text=True)
        self.assertEqual(told.returncode, 0)
        self.assertEqual(json.loads(told.stdout)["jobs"], [])
        # A user stops a monitor with a signal, so the signal is no reason for a message.
        monitor = subprocess.Popen([*command, "--every", "0.02", "--count", "1000000"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        monitor.stdout.readline()
        monitor.terminate()
        self.assertEqual(monitor.communicate()[1], "")
        self.assertEqual(monitor.returncode, 75)


if __name__ == "__main__":
    LOCKSTEP, MPIEXEC = os.path.abspath(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    unittest.main()
