#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that charts are well-formed SVG and that points agree with the ticks of the axes."""

import pathlib
import sys
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import chart  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def drawn(series, **panel):
    return xml.etree.ElementTree.fromstring(chart.svg("T", [chart.Panel("P", "x (s)", "y (ms)", series, **panel)], "note"))


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def line_points(root):
    return [[tuple(map(float, pair.split(","))) for pair in element.get("points").split()]
            for element in root.iter(f"{SVG}polyline")]


def tick(root, label):
    """(x, y) of the text of a tick: centred under an x tick, beside a y tick."""
    element = next(e for e in root.iter(f"{SVG}text") if e.text == label and e.get("transform") is None)
    return float(element.get("x")), float(element.get("y"))


class Chart(unittest.TestCase):
    def test_points_agree_with_the_ticks(self):
        root = drawn([chart.Series("one", [(1, 10), (2, 20), (4, 50)])])
        (points,) = line_points(root)
        for (x, y), (label_x, label_y) in zip(points, [("1", "10"), ("2", "20"), ("4", "50")]):
            self.assertAlmostEqual(x, tick(root, label_x)[0], places=1)
            self.assertAlmostEqual(y, tick(root, label_y)[1] - 4, places=1)

    def test_a_logarithmic_axis_has_equal_steps_for_equal_factors(self):
        root = drawn([chart.Series("one", [(1, 1), (4, 1), (16, 1)])], log_x=True)
        ((a, _), (b, _), (c, _)), = line_points(root)
        self.assertAlmostEqual(b - a, c - b, places=1)
        for x, label in ((a, "1"), (b, "4"), (c, "16")):
            self.assertAlmostEqual(x, [float(e.get("x")) for e in root.iter(f"{SVG}text") if e.text == label][-1], places=1)

    def test_every_line_has_a_different_style(self):
        root = drawn([chart.Series(f"line {i}", [(1, i), (2, i)], dashed=i == 2, markers=False) for i in range(12)])
        looks = [(e.get("stroke"), e.get("stroke-dasharray")) for e in root.iter(f"{SVG}polyline")]
        self.assertEqual(len(set(looks)), 12)

    def test_the_vertical_axis_begins_at_zero_and_has_room_for_all(self):
        root = drawn([chart.Series("one", [(1, 80, 70, 97), (2, 90, 85, 95)])])
        self.assertIn("0", texts(root))
        self.assertIn("100", texts(root))
        bars = [e for e in root.iter(f"{SVG}line") if e.get("stroke-opacity")]
        self.assertEqual(len(bars), 2)
        low, high = float(bars[0].get("y1")), float(bars[0].get("y2"))
        self.assertLess(high, line_points(root)[0][0][1])
        self.assertGreater(low, line_points(root)[0][0][1])

    def test_labels_units_and_legend_are_complete_and_escaped(self):
        root = drawn([chart.Series("a < b & c", [(1, 1)]), chart.Series("off", [(1, 2), (2, 3)], dashed=True)])
        for text in ("T", "P", "x (s)", "y (ms)", "a < b & c", "off", "note"):
            self.assertIn(text, texts(root))
        dashed = [e for e in root.iter(f"{SVG}polyline") if e.get("stroke-dasharray")]
        self.assertEqual(len(dashed), 1)

    def test_everything_is_inside_the_chart(self):
        root = drawn([chart.Series("one", [(x, x * x) for x in range(1, 40)])])
        self.assertTrue(all(0 <= x <= chart.WIDTH and 0 <= y <= float(root.get("height"))
                            for points in line_points(root) for x, y in points))
        labels = [e for e in root.iter(f"{SVG}text") if e.get("x")]
        self.assertTrue(all(0 <= float(e.get("x")) <= chart.WIDTH for e in labels))

    def test_one_point_and_zeros_can_be_drawn(self):
        for log_x in (False, True):
            drawn([chart.Series("one", [(2, 0)])], log_x=log_x)

    def test_the_same_data_give_the_same_bytes(self):
        panels = [chart.Panel("P", "x", "y", [chart.Series("one", [(1, 1 / 3), (3, 2 / 3)])], log_x=True)] * 2
        self.assertEqual(chart.svg("T", panels, "note"), chart.svg("T", panels, "note"))

    def test_the_axis_may_begin_near_the_values(self):
        labels = texts(drawn([chart.Series("one", [(1, 88), (2, 92)])], y_least=87.5))
        self.assertIn("88", labels)
        self.assertNotIn("0", labels)

    def test_without_points_there_is_no_chart(self):
        with self.assertRaises(ValueError):
            drawn([chart.Series("one", [])])

    def test_steps_of_ticks_are_round(self):
        for span, step in ((5, 1), (10, 2), (12, 2.5), (97, 20), (0.3, 0.1), (2400, 500)):
            self.assertAlmostEqual(chart.nice_step(span), step)


if __name__ == "__main__":
    unittest.main()
