#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads files from ctest --output-junit and prints the number of tests, the failed ones and the ten
slowest."""

import pathlib
import sys
import xml.etree.ElementTree

COUNT = 10

tests = []
for path in sys.argv[1:]:
    suite = xml.etree.ElementTree.parse(path).getroot()
    leg = pathlib.Path(path).stem.removeprefix("tests_")
    cases = [(float(case.get("time", 0)), leg, case.get("name"), case.get("status")) for case in suite.iter("testcase")]
    failed = [name for _, _, name, status in cases if status == "fail"]
    print(f"{leg:<8} {len(cases):>5} tests, {sum(seconds for seconds, *_ in cases):.0f} s in total, {len(failed)} failed")
    for name in failed:
        print(f"  failed: {name}")
    tests += cases
for seconds, leg, name, _ in sorted(tests, reverse=True)[:COUNT]:
    print(f"{seconds:>8.1f} s  {leg}: {name}")
