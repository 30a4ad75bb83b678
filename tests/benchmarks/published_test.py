#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests how validate_plan.py --published computes its table, with a plan in place of `lockstep` that adds nothing to
the step of one GPU, that every published value has its source, and that all turns of a file have the same options and
circumstances."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import readme_table  # noqa: E402
import record  # noqa: E402
import training_runs  # noqa: E402
import validate_plan  # noqa: E402

PLAN = """#!/usr/bin/env python3
import json, sys
def after(flag):
    return sys.argv[sys.argv.index(flag) + 1]
assert ("--link" in sys.argv) == (after("--nodes") != "1")
seconds = float(after("--device-step").removesuffix("ms")) / 1e3
json.dump({"predictions": [{"step_seconds": seconds, "exposed_seconds": 0.0}],
           "nccl_sums": [{"algorithm": "ring", "seconds": 0.0}]}, open(after("--json"), "w"))
"""


class Published(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.lockstep = self.folder / "lockstep"
        self.lockstep.write_text(PLAN)
        self.lockstep.chmod(0o755)

    def test_without_communication_the_rate_is_that_of_all_gpus(self):
        published = json.loads(validate_plan.PUBLISHED.read_text())
        rows = validate_plan.predict_published(published, self.lockstep)
        self.assertEqual(len(rows), len(published["rows"]))
        for row in rows:
            rate = row["gpus"] * published["single_gpus"][row["gpu"]]["images_per_second"]
            self.assertAlmostEqual(row["predicted_images_per_second"] / rate, 1, places=6)
            self.assertAlmostEqual(row["error"], rate / row["images_per_second"] - 1, places=6)
            fields = validate_plan.published_text([row]).splitlines()[-1].split()
            self.assertEqual(fields[-4:], [f"{row['error']:+.1%}", "0.00", "ms", "ring"])

    def test_the_file_has_its_circumstances_and_a_row_of_the_page(self):
        file = self.folder / "plan_published.json"
        arguments = ["--published", str(file), "--lockstep", str(self.lockstep)]
        with contextlib.redirect_stdout(io.StringIO()):
            validate_plan.run(validate_plan.parse_arguments(arguments), arguments)
        result = json.loads(file.read_text())
        self.assertLessEqual(set(record.FIELDS), set(result))
        _, text, _ = readme_table.plan_published(readme_table.Results(self.folder))
        self.assertIn("1,024 A100 on 128 nodes", text)

    def test_each_value_names_its_source(self):
        published = json.loads(validate_plan.PUBLISHED.read_text())
        for value in [*published["single_gpus"].values(), *published["rows"]]:
            self.assertTrue(value["source"].startswith(("https://", "benchmarks/results/")), value)
            self.assertEqual("link" in value, "link_source" in value)
            self.assertEqual("link" in value, value.get("nodes", 1) > 1)
        ours = json.loads((ROOT / "benchmarks/results/gpu_speed.json").read_text())["comparisons"]["resnet50 fp16"]
        self.assertAlmostEqual(published["single_gpus"]["h200"]["images_per_second"], ours["samples_per_second"], places=1)

    def test_measurements_need_a_result_and_repeated_ones_also_their_traces(self):
        for arguments in ([], ["result.json", "--again"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as end:
                validate_plan.parse_arguments(arguments)
            self.assertEqual(end.exception.code, 64)


class Turns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "plan_validation.json"
        self.committed = (ROOT / "benchmarks/results/plan_validation.json").read_text()
        self.file.write_text(self.committed)
        self.before = json.loads(self.committed)

    def run_again(self, *arguments, **changed):
        """Adds a turn to the committed ones, without training. Returns the exit code and the error."""
        here = {field: changed.get(field, self.before[field]) for field in record.FIELDS}
        here["command"] = record.portable(f"benchmarks/validate_plan.py {self.file}")
        arguments = [str(self.file), "--cores", str(self.before["turns"][0]["cores"]), *arguments]
        with mock.patch.object(record, "circumstances", return_value=here), \
                mock.patch.object(validate_plan.Turn, "measure", return_value=self.before["turns"][0]), \
                contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as told:
            code = training_runs.main("validate_plan.py", validate_plan.parse_arguments, validate_plan.run, arguments)
        return code, told.getvalue()

    def test_turns_with_other_conditions_are_refused(self):
        machine = {**self.before["machine"], "processor": "another one"}
        for name, arguments, changed in (("--model mobilenet_v2", ["--model", "cnn"], {}), ("--batch 8", ["--batch", "4"], {}),
                                         ("--cores 0.4", ["--cores", "0.3"], {}), ("--set", ["--set", "comm.overlap=false"], {}),
                                         ("processor", [], {"machine": machine}), ("revision", [], {"revision": "abc"}),
                                         ("mpi", [], {"versions": {**self.before["versions"], "mpi": "another one"}})):
            code, told = self.run_again(*arguments, **changed)
            self.assertEqual((code, self.file.read_text()), (70, self.committed), name)
            for word in (name, "--fresh"):
                self.assertIn(word, told)

    def test_equal_turns_are_added_and_others_replace_them_on_request(self):
        for _ in range(2):
            turns = len(json.loads(self.file.read_text())["turns"])
            self.assertEqual(self.run_again(), (0, ""))
            self.assertEqual(len(json.loads(self.file.read_text())["turns"]), turns + 1)
        self.assertEqual(self.run_again("--model", "cnn", "--fresh"), (0, ""))
        self.assertEqual(len(json.loads(self.file.read_text())["turns"]), 1)


if __name__ == "__main__":
    unittest.main()
