#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads files from ctest --output-junit and prints the number of tests, the failed ones with the last lines of
their output, and the ten slowest."""

import pathlib
import sys
import xml.etree.ElementTree

COUNT = 10
LAST_LINES = 20

tests = []
for path in sys.argv[1:]:
    suite = xml.etree.ElementTree.parse(path).getroot()
    leg = pathlib.Path(path).stem.removeprefix("tests_")
    cases = list(suite.iter("testcase"))
    timed = [(float(case.get("time", 0)), leg, case.get("name")) for case in cases]
    failed = [case for case in cases if case.get("status") == "fail"]
    print(f"{leg:<8} {len(cases):>5} tests, {sum(seconds for seconds, *_ in timed):.0f} s in total, {len(failed)} failed")
    for case in failed:
        print(f"  failed: {case.get('name')}")
        for line in case.findtext("system-out", "").splitlines()[-LAST_LINES:]:
            print(f"    {line}")
    tests += timed
for seconds, leg, name in sorted(tests, reverse=True)[:COUNT]:
    print(f"{seconds:>8.1f} s  {leg}: {name}")
