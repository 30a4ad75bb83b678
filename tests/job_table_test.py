#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the tests and scripts which tests/README.md names for each kind of job exist."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = 18


def rows_of(page):
    table = page.split("<!-- jobs: ")[1].split("<!-- end of jobs -->")[0]
    return {int(number): (what, tests) for number, what, tests in
            re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)}


def tests_there(folder):
    defined = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
    return {f"{suite}.{name}" for file in folder.rglob("*.cpp") for suite, name in defined.findall(file.read_text())}


def missing(name, there):
    return not (ROOT / name).is_file() if "/" in name else name not in there


class JobTable(unittest.TestCase):
    def test_every_row_names_existing_tests(self):
        rows, there = rows_of((ROOT / "tests/README.md").read_text()), tests_there(ROOT / "tests")
        self.assertEqual(sorted(rows), list(range(1, ROWS + 1)))
        for number, (_, tests) in rows.items():
            names = re.findall(r"`([^`]+)`", tests)
            self.assertTrue(names or tests == "not yet", f"row {number} names no test")
            self.assertEqual([name for name in names if missing(name, there)], [], f"row {number}: unknown tests")

    def test_a_name_without_a_test_is_reported(self):
        there = tests_there(ROOT / "tests")
        self.assertTrue(missing("Resume.NoSuchTest", there))
        self.assertTrue(missing("tests/no_such_file.sh", there))
        self.assertFalse(missing("Resume.ContinuesBitForBitAfterAKill", there))


if __name__ == "__main__":
    unittest.main()
