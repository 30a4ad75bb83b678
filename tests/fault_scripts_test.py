#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests, without jobs, which ends of a job random_faults.py accepts, what soak.py keeps of a part that ran, how nodes.sh
starts and ends, which clone faults.sh tests and which lost checkpoints it finds, which cases machines.sh knows, and what
the hash of run.sh covers."""

import contextlib
import io
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import random_faults
import soak

HERE = pathlib.Path(__file__).resolve().parent


class RandomFaults(unittest.TestCase):
    def run_jobs(self, kind, *ends):
        """Returns (end, limits) of a fault whose jobs have these ends: (exit code, output)."""
        plan = random_faults.Plan(0, "mlp", (2,), kind, rank=0, step=5, milliseconds=1, checkpoint_every=5, grace=0)
        runner = mock.Mock(spec=random_faults.Runner)
        runner.run.side_effect = ends
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            end = random_faults.Runner.run_until_fault(runner, plan, pathlib.Path(folder) / "run", [])
        return end, [call.args[-1] for call in runner.run.call_args_list]

    def test_a_hang_before_the_injected_fault_is_not_its_hang(self):
        early, hung = (75, random_faults.HANG), (75, random_faults.FAULT + random_faults.HANG)
        for kind in ("stop", "hang", "link-down"):
            self.assertEqual(self.run_jobs(kind, early, hung), (hung, [3, 6]))
            with self.assertRaises(random_faults.Wrong):
                self.run_jobs(kind, *[early] * 5)

    def test_only_a_stopped_rank_may_hang_after_a_signal(self):
        hung, saved = (75, random_faults.HANG), (75, "saved")
        self.assertEqual(self.run_jobs("STOP to a rank", hung)[0], hung)
        self.assertEqual(self.run_jobs("TERM to a rank", saved)[0], saved)
        for kind in ("TERM to a rank", "TERM to mpirun", "USR1 to mpirun", "kill"):
            with self.assertRaises(random_faults.Wrong):
                self.run_jobs(kind, hung)

    def row(self, newest, resumed):
        """Returns the result of a killed job that wrote the checkpoints of steps 5 and 10. newest: the step of the newest
        one afterwards; resumed: the step from which the next job resumes."""
        plan = random_faults.Plan(0, "mlp", (2,), "kill", rank=0, step=12, milliseconds=1, checkpoint_every=5, grace=0)
        runner = mock.Mock(spec=random_faults.Runner, folder=pathlib.Path("/nowhere"))
        written = [f"info [rank 0] checkpoint /run/checkpoints/step-{step:09}: 1.7 MB on rank 0, written in 0.2 s\n"
                   for step in (5, 10)]
        runner.run_until_fault.return_value = 137, "".join(written)
        runner.newest.return_value = newest
        runner.run.return_value = 0, f"training resumes after step {resumed} from /run\n" if resumed else ""
        return random_faults.Runner.row(runner, plan)

    def test_a_written_checkpoint_is_not_lost_and_is_resumed(self):
        self.assertEqual(self.row(10, 10), {"code": 137, "saved": 10, "end": "same bits"})
        self.assertEqual(self.row(15, 15)["saved"], 15)  # killed before it named this one
        for newest, resumed in ((None, None), (5, 5), (10, None), (10, 5)):
            with self.subTest(newest=newest, resumed=resumed), self.assertRaises(random_faults.Wrong):
                self.row(newest, resumed)


class Soak(unittest.TestCase):
    def run_soak(self, wrong):
        """Returns (error, names of the parts in the file) of a soak without namespaces."""
        found = {"steps": 1, "hours_at_100_ms_a_step": 1.0, "growth": []}
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            folder = pathlib.Path(name)
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(mock.patch.object(soak, "soak", return_value=(found, wrong)))
            stack.enter_context(mock.patch.object(soak, "start_apart", side_effect=soak.training_runs.Skipped("no namespaces")))
            stack.enter_context(mock.patch.object(soak.training_runs, "write_images"))
            stack.enter_context(mock.patch.object(soak.record, "circumstances", return_value={}))
            options = soak.parse_arguments(["--json", str(folder / "soak.json")])
            with self.assertRaises((soak.training_runs.Skipped, soak.training_runs.Failed)) as raised:
                soak.run(options, [], folder)
            return raised.exception, list(json.loads((folder / "soak.json").read_text()))

    def test_the_long_training_is_kept_where_short_ones_are_skipped(self):
        error, parts = self.run_soak([])
        self.assertIsInstance(error, soak.training_runs.Skipped)
        self.assertEqual(parts, ["benchmark", "soak"])

    def test_growth_is_a_failure_where_short_trainings_are_skipped(self):
        error, parts = self.run_soak(["memory_kib grows"])
        self.assertIsInstance(error, soak.training_runs.Failed)
        self.assertEqual(parts, ["benchmark", "soak"])


class Nodes(unittest.TestCase):
    def test_sigkill_of_the_script_ends_its_command(self):
        command = "import time; print('started', flush=True); time.sleep(60); print('alive')"
        with subprocess.Popen(["bash", "-c", 'source "$0"; end_with "$@"', HERE / "apart.sh", sys.executable, "-c", command],
                              stdout=subprocess.PIPE, text=True) as script:
            self.assertEqual(script.stdout.readline(), "started\n")
            script.kill()
            self.assertEqual(script.stdout.read(), "")

    @unittest.skipUnless(os.access("/usr/sbin/tc", os.X_OK), "tc is not in /usr/sbin")
    def test_start_without_sbin_on_the_path(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("mpirun", "unshare"):
                tool = pathlib.Path(folder) / name
                tool.write_text("#!/bin/sh\nexit 1\n")
                tool.chmod(0o755)
            done = subprocess.run([HERE / "nodes.sh", "none", "1", "1", "true"], capture_output=True, text=True,
                                  env={"PATH": f"{folder}:/usr/bin:/bin"})
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("namespaces cannot be made", done.stderr)


class Faults(unittest.TestCase):
    def test_another_clone_on_cdpath_is_not_tested(self):
        with tempfile.TemporaryDirectory() as name:
            (pathlib.Path(name) / "tests").mkdir()
            mpirun = pathlib.Path(name) / "mpirun"
            mpirun.write_text("#!/bin/sh\npwd\nexit 1\n")
            mpirun.chmod(0o755)
            done = subprocess.run(["tests/faults.sh"], cwd=HERE.parent, capture_output=True, text=True,
                                  env={"PATH": f"{name}:/usr/bin:/bin", "CDPATH": name})
        self.assertEqual(done.stdout.splitlines()[-1:], [str(HERE.parent)], done.stderr)

    def test_a_lost_or_ignored_checkpoint_is_an_error(self):
        for saves, error in (("", "kill 0 left step 0"), ("mkdir -p $run/checkpoints/step-000000005", "kill 1 did not resume")):
            with self.subTest(saves=saves), tempfile.TemporaryDirectory() as name:
                mpirun = pathlib.Path(name) / "mpirun"
                mpirun.write_text("#!/bin/sh\n"
                                  'for word; do case $word in run.dir=*) run=${word#run.dir=};; --inject) code=137;; esac; done\n'
                                  f"{saves}\n"
                                  'echo "info [rank 0] checkpoint $run/checkpoints/step-000000005: 1 MB, written in 0.1 s"\n'
                                  "exit ${code:-0}\n")
                mpirun.chmod(0o755)
                done = subprocess.run(["tests/faults.sh"], cwd=HERE.parent, capture_output=True, text=True,
                                      env={"PATH": f"{name}:/usr/bin:/bin"})
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertIn(error, done.stdout)


class Machines(unittest.TestCase):
    def test_an_unknown_case_is_refused(self):
        done = subprocess.run([HERE / "machines.sh", "build/none", "true"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn('unknown case "true"', done.stderr)


class Sanitizers(unittest.TestCase):
    def test_the_hash_of_device_code_covers_the_headers_that_it_includes(self):
        pathspecs = shlex.split((HERE / "run.sh").read_text().split("git ls-files -- ")[1].split("|")[0])
        listed = subprocess.run(["git", "ls-files", "--", *pathspecs], cwd=HERE.parent, capture_output=True, text=True)
        if listed.returncode != 0:
            self.skipTest("git does not list the sources")
        included = {header for file in (HERE.parent / "kernels/cuda").iterdir() if file.suffix in (".cu", ".h")
                    for header in re.findall(r'^#include "(kernels/[^"]+)"', file.read_text(), re.MULTILINE)}
        self.assertIn("kernels/functors.h", included)
        self.assertEqual(included - set(listed.stdout.split()), set())


if __name__ == "__main__":
    unittest.main()
