#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests how the benchmarks compare Lockstep with a peer (benchmarks/suite.py), on made-up speeds."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
import suite


class Recorded:
    """Ways that return given speeds, one per turn; None is a failure."""

    def __init__(self, **speeds):
        self.order = []
        self.speeds = {name: iter(values) for name, values in speeds.items()}

    def ways(self):
        return {name: lambda name=name: self.call(name) for name in self.speeds}

    def call(self, name):
        self.order.append(name)
        speed = next(self.speeds[name])
        return speed and {"samples_per_second": speed, "version": "1"}


class TakeTurns(unittest.TestCase):
    def test_every_way_runs_in_every_turn_and_the_order_alternates(self):
        recorded = Recorded(lockstep=[1, 2, 3], eager=[4, 5, 6], compiled=[7, 8, 9])
        turns = suite.take_turns(recorded.ways(), 3)
        self.assertEqual({name: suite.speeds(results) for name, results in turns.items()},
                         {"lockstep": [1, 2, 3], "eager": [4, 5, 6], "compiled": [7, 8, 9]})
        forwards = ["lockstep", "eager", "compiled"]
        self.assertEqual(recorded.order, forwards + forwards[::-1] + forwards)

    def test_a_failed_way_is_not_run_again(self):
        recorded = Recorded(lockstep=[1, 2, 3], eager=[4, None], compiled=[None])
        turns = suite.take_turns(recorded.ways(), 3)
        self.assertEqual(suite.speeds(turns["eager"]), [4, None, None])
        self.assertNotIn("compiled", turns)

    def test_ways_that_were_clearly_slower_twice_take_no_third_turn(self):
        recorded = Recorded(lockstep=[1, 1, 1], eager=[5, 9, 8], compiled=[10, 4, 6], fused=[5, 5])
        turns = suite.take_turns(recorded.ways(), 3, suite.without_clearly_slower)
        self.assertEqual(suite.speeds(turns["fused"]), [5, 5, None])
        self.assertEqual(suite.speeds(turns["eager"]), [5, 9, 8])
        self.assertEqual(suite.compare(turns)["pytorch"]["best"], "eager")


class Compare(unittest.TestCase):
    def row(self, **speeds):
        return suite.compare(suite.take_turns(Recorded(**speeds).ways(), 3))

    def test_the_ratio_is_the_median_over_turns(self):
        # The machine is faster in the second turn. The ratio of the medians would be 1; the median ratio is
        # 2.
        row = self.row(lockstep=[10, 40, 20], eager=[5, 20, 20])
        self.assertEqual(row["ratios"], [2, 2, 1])
        self.assertEqual((row["ratio"], row["ratio_spread"]), (2, [1, 2]))
        self.assertEqual(row["turns"]["eager"], [5, 20, 20])

    def test_the_best_way_of_the_peer_has_the_best_median(self):
        row = self.row(lockstep=[10, 10, 10], eager=[9, 2, 2], compiled=[5, 5, 5])
        self.assertEqual((row["pytorch"]["best"], row["ratio"]), ("compiled", 2))

    def test_direct_kernels_belong_to_lockstep(self):
        row = self.row(**{"lockstep": [10, 10, 10], "lockstep, direct kernels": [8, 8, 8], "eager": [4, 4, 4]})
        self.assertEqual((row["pytorch"]["best"], row["direct"]["ratio"]), ("eager", 2))
        self.assertRegex(suite.summary(row), r"direct.* 2\.00 ")

    def test_the_fastest_precision_of_each_side_is_compared(self):
        turns = suite.take_turns(Recorded(**{"lockstep": [10, 10], "lockstep, bf16": [18, 18], "lockstep, direct kernels": [99, 99],
                                             "eager": [6, 6], "eager, bf16": [9, 9]}).ways(), 2)
        row = suite.compare_fastest(turns)
        self.assertEqual((row["best"], row["pytorch"]["best"], row["ratio"]), ("lockstep, bf16", "eager, bf16", 2))

    def test_a_way_of_ours_that_failed_in_a_turn_is_not_the_fastest(self):
        turns = suite.take_turns(Recorded(**{"lockstep": [10, 10], "lockstep, bf16": [18, None], "eager": [6, 6]}).ways(), 2)
        self.assertEqual(suite.compare_fastest(turns)["best"], "lockstep")
        self.assertFalse(suite.own_ways_ran(turns))
        self.assertTrue(suite.own_ways_ran({"lockstep": [10, 10], "eager": [6, None]}))
        self.assertFalse(suite.own_ways_ran({"eager": [6, 6]}))

    def test_a_failed_side_has_no_ratio(self):
        self.assertNotIn("ratio", self.row(lockstep=[10, 10, 10], eager=[None]))
        self.assertNotIn("ratio", self.row(lockstep=[None], eager=[1, 1, 1]))


if __name__ == "__main__":
    unittest.main()
