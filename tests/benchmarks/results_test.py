#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that every committed result has its machine, versions, revision, date and command, and that the pages
and charts agree with the results."""

import json
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks/peers")]

import accuracy_chart  # noqa: E402
import codec_accuracy  # noqa: E402
import idle_ladder  # noqa: E402
import links_bench  # noqa: E402
import overlap_bench  # noqa: E402
import readme_table  # noqa: E402
import record  # noqa: E402
import scaling_bench  # noqa: E402

COMPLETE = {"machine": {"cores": 2}, "versions": {"Lockstep": "1"}, "revision": "abc", "date": "2026-01-01",
            "command": "bench"}


class CommittedResults(unittest.TestCase):
    def test_results_are_complete_and_the_pages_show_them(self):
        self.assertEqual(readme_table.problems(ROOT), [])

    def test_charts_agree_with_their_results(self):
        draw = {"scaling": scaling_bench.draw, "overlap": overlap_bench.draw, "links": links_bench.draw,
                "codec_accuracy": codec_accuracy.draw, "accuracy_beside_pytorch": accuracy_chart.draw, "idle_ladder": idle_ladder.draw}
        for file in (ROOT / "benchmarks/results").glob("*.svg"):
            result = json.loads(file.with_suffix(".json").read_text())
            self.assertEqual(file.read_text(), draw[result["benchmark"]](result), f"redraw {file.name} with --redraw")


class Missing(unittest.TestCase):
    def test_a_complete_result_lacks_nothing(self):
        self.assertEqual(record.missing({**COMPLETE, "rows": []}), [])

    def test_every_field_is_required(self):
        for field in record.FIELDS:
            self.assertEqual(record.missing({**COMPLETE, field: None}), [field])
            self.assertEqual(record.missing({name: value for name, value in COMPLETE.items() if name != field}), [field])

    def test_a_command_contains_no_folder_of_a_machine(self):
        self.assertEqual(record.missing({**COMPLETE, "command": "suite.py --python /home/me/bin/python"}), ["command"])
        told = record.circumstances("suite.py --models 'resnet18 bf16' --python /home/me/bin/python3 --rounds 3")
        self.assertEqual(told["command"], "suite.py --models 'resnet18 bf16' --python python3 --rounds 3")

    def test_every_part_must_be_complete(self):
        document = {"benchmark": "suite", "one": dict(COMPLETE), "two": dict(COMPLETE)}
        self.assertEqual(record.missing(document), [])
        del document["two"]["date"]
        self.assertEqual(record.missing(document), ["two: date"])

    def test_a_part_without_any_field_is_found(self):
        self.assertEqual(len(record.missing({"one": dict(COMPLETE), "two": {"ratio": 2}})), 1)
        self.assertEqual(len(record.missing({"one": dict(COMPLETE), "two": None})), 1)

    def test_an_empty_result_lacks_every_field(self):
        self.assertEqual(record.missing({}), list(record.FIELDS))

    def test_a_new_record_is_complete(self):
        told = record.circumstances("bench", lockstep="/no/such/program")
        self.assertEqual(set(told), set(record.FIELDS))
        self.assertTrue(told["machine"]["processor"])
        self.assertEqual(told["versions"], {}, "versions that cannot be found must be missing")

    def test_a_second_line_of_presets_contains_no_version(self):
        told = "Lockstep 0.1.0\ncpu      2 cores; oneDNN 2.6.3\npresets  cifar10_resnet18,\n         fashion_mnist_mlp\n"
        self.assertEqual(record.versions_in(told), {"Lockstep": "0.1.0", "cpu": "2 cores; oneDNN 2.6.3"})


class Check(unittest.TestCase):
    """Works on a copy of the pages and results."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        shutil.copytree(ROOT / "benchmarks/results", self.root / "benchmarks/results")
        for page in readme_table.PAGES:
            (self.root / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / page, self.root / page)

    def test_an_edited_table_is_found(self):
        page = self.root / "README.md"
        page.write_text(page.read_text().replace(" samples/s", " samples per second"))
        self.assertEqual(len(readme_table.problems(self.root)), 1)

    def test_a_new_result_changes_the_pages(self):
        file = self.root / "benchmarks/results/quickstart.json"
        result = json.loads(file.read_text())
        result["epochs"][-1]["test_accuracy"] = 0.5
        file.write_text(json.dumps(result))
        self.assertEqual(len(readme_table.problems(self.root)), 2)

    def test_a_result_without_its_date_is_refused(self):
        file = self.root / "benchmarks/results/quickstart.json"
        result = json.loads(file.read_text())
        del result["date"]
        file.write_text(json.dumps(result))
        self.assertEqual(readme_table.problems(self.root), ["benchmarks/results/quickstart.json lacks date"])

    def test_a_new_file_must_be_complete_too(self):
        (self.root / "benchmarks/results/new.json").write_text('{"machine": {"cores": 1}}')
        self.assertEqual(len(readme_table.problems(self.root)), len(record.FIELDS) - 1)


if __name__ == "__main__":
    unittest.main()
