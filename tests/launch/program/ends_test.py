#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ends_test.py LOCKSTEP: tests how a training ends, or refuses to start, when its output is not read, its
results cannot be written, another job uses its folder, or its schedule differs from the saved one."""

import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

LOCKSTEP = None
SETTINGS = {"data.format": "synthetic", "data.synthetic.height": 8, "data.synthetic.width": 8, "data.synthetic.channels": 1,
            "data.synthetic.train_samples": 640, "data.synthetic.test_samples": 64, "data.mean": "[]", "data.deviation": "[]",
            "train.batch": 32, "train.epochs": 2, "train.threads": 1, "kernels.choose": "direct", "run.measure_peak": "false",
            "run.monitor_seconds": 0, "run.log_every": 1}
FULL_DISK = ("mount -t tmpfs -o size=64k none \"$1\" && head -c 1M /dev/zero >\"$1/filler\" 2>/dev/null; "
             "grep -q \" $1 tmpfs\" /proc/mounts || exit 77; shift; exec \"$@\"")


class Ends(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_ends_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "run"

    def command(self, *more, **settings):
        told = {**SETTINGS, "run.dir": self.run_dir, **{name.replace("__", "."): value for name, value in settings.items()}}
        flags = [part for name, value in told.items() for part in ("--set", f"{name}={value}")]
        return [LOCKSTEP, "train", "fashion_mnist_mlp", *flags, *map(str, more)]

    def run_all(self, command, **options):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
        return done.returncode, done.stdout + done.stderr

    def steps(self):
        file = self.run_dir / "steps.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_for(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def full_pipe(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        return reader, writer

    def end_where_nothing_is_read(self, name, begins, writer):
        process = subprocess.Popen(self.command(train__epochs=10 ** 6, run__grace_seconds=1), stdin=subprocess.DEVNULL,
                                   stdout=writer, stderr=writer)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        begins(process)
        process.send_signal(name)
        self.assertEqual(process.wait(40), 75)

    def test_unread_output_does_not_extend_the_grace_period(self):
        reader, writer = self.full_pipe()

        def blocks(process):
            seen = -1
            # Until lines of at most 500 bytes fill the pipe and the training blocks.
            while int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder) < 3596 or seen < self.steps():
                self.assertIsNone(process.poll())
                seen = self.steps()
                time.sleep(0.1)
        self.end_where_nothing_is_read(signal.SIGTERM, blocks, writer)

    def test_process_with_nothing_to_save_ends_with_unread_output(self):
        _, writer = self.full_pipe()
        os.write(writer, b"x" * 4096)
        self.end_where_nothing_is_read(signal.SIGINT, lambda process: self.wait_for((self.run_dir / "run.lock").exists), writer)

    def test_signal_cancels_an_evaluation_and_saves_its_epoch(self):
        held, log = self.folder / "held", self.folder / "log"
        with log.open("w") as output:
            process = subprocess.Popen(self.command(data__synthetic__test_samples=10240, run__grace_seconds=60),
                                       stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                       env={**os.environ, "LOCKSTEP_HOLD": f"evaluation:0:{held}"})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_for(lambda: held.exists() or process.poll() is not None)
        self.assertTrue(held.exists(), log.read_text())
        process.send_signal(signal.SIGTERM)
        self.wait_for(lambda: "SIGTERM" in log.read_text() or process.poll() is not None)
        held.unlink(missing_ok=True)
        self.assertEqual(process.wait(60), 75, log.read_text())
        self.assertTrue((self.run_dir / "checkpoints/step-000000020").is_dir())
        self.assertEqual((self.run_dir / "metrics.jsonl").read_text(), "")

    def expect_refused(self, code, said):
        self.assertEqual(code, 74, said)
        self.assertEqual(self.steps(), 0, "training started before the check")

    def test_unwritable_results_are_refused_before_training(self):
        (self.folder / "folder").mkdir()
        for flag, path in (("--export", "folder"), ("--export", "x" * 256), ("--export", "nowhere/weights"),
                           ("--digest", "folder"), ("--trace", "nowhere/trace")):
            self.expect_refused(*self.run_all(self.command(flag, self.folder / path)))
        code, said = self.run_all(self.command("--export", self.folder / "weights"))
        self.assertEqual(code, 0, said)
        self.assertFalse(list(self.folder.glob("*.partial*")))

    def test_full_disk_is_refused_before_training(self):
        (self.folder / "full").mkdir()
        code, said = self.run_all(["unshare", "-rm", "bash", "-c", FULL_DISK, "bash", self.folder / "full",
                                   *self.command("--export", self.folder / "full/weights")])
        if code in (1, 77) and "Lockstep" not in said and self.steps() == 0:
            self.skipTest(f"this user may not mount file systems: {said}")
        self.expect_refused(code, said)

    def test_failed_result_leaves_a_checkpoint_that_writes_it(self):
        results, held = self.folder / "results", self.folder / "held"
        results.mkdir()
        command = self.command("--export", results / "weights", run__checkpoint_minutes=0)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "LOCKSTEP_HOLD": f"export:0:{held}"})
        self.addCleanup(process.kill)
        self.wait_for(lambda: held.exists() or process.poll() is not None)
        shutil.rmtree(results)
        held.unlink()
        said = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 74, said)
        (saved,) = self.run_dir.glob("checkpoints/step-*")
        self.assertIn(str(saved), said)
        results.mkdir()
        code, said = self.run_all([*command, "--resume", "auto"])
        self.assertEqual(code, 0, said)
        self.assertIn(str(saved), said)
        self.assertFalse((self.run_dir / "checkpoints.1").exists(), "a new training moves the checkpoint aside")
        self.assertEqual(self.run_all(self.command("--export", self.folder / "whole", run__dir=self.folder / "other"))[0], 0)
        self.assertEqual((results / "weights").read_bytes(), (self.folder / "whole").read_bytes())

    def test_resuming_run_waits_for_a_folder_in_use(self):
        self.run_dir.mkdir()
        with (self.run_dir / "run.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            code, said = self.run_all(self.command())
            self.assertEqual(code, 78, said)
            process = subprocess.Popen(self.command("--resume", "auto"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(process.kill)
            while not ("run.dir" in (line := process.stdout.readline()) and str(self.run_dir) in line):
                self.assertTrue(line, "it ended")
        said = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, said)

    def warnings_of(self, said, step):
        return [line for line in said.splitlines() if "warning [rank 0]" in line and re.search(rf"\bstep {step}\b", line)]

    def test_changed_learning_rate_is_reported_once(self):
        settings = {"optimizer__learning_rate": 0.05, "schedule__name": "cosine"}
        self.assertEqual(self.run_all(self.command(**settings))[0], 0)
        self.assertTrue((self.run_dir / "checkpoints/step-000000040").is_dir(), "the last step is saved by default")
        goes_on = ("--resume", "auto", "--resume-with", "train.epochs")
        code, said = self.run_all(self.command(*goes_on, **settings, train__epochs=4))
        self.assertEqual(code, 0, said)
        warnings = self.warnings_of(said, 40)
        self.assertEqual(len(warnings), 1, said)
        self.assertRegex(warnings[0], r"\b0\.025\b")
        lines = map(json.loads, (self.run_dir / "steps.jsonl").read_text().splitlines())
        self.assertAlmostEqual({line["step"]: line["learning_rate"] for line in lines}[41], 0.025)
        code, said = self.run_all(self.command(*goes_on, **settings, train__epochs=4))
        self.assertEqual(code, 0, said)
        self.assertEqual(self.warnings_of(said, 80), [], said)


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv.pop(1))
    unittest.main()
