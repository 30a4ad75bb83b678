#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests, without jobs, which ends of a job random_faults.py accepts, and what soak.py keeps of a part that ran."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest
from unittest import mock

import random_faults
import soak


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


if __name__ == "__main__":
    unittest.main()
