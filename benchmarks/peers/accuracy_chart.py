# SPDX-License-Identifier: Apache-2.0
"""Draws the chart of a result of accuracy_beside_pytorch.py. Needs neither PyTorch nor numpy nor Pillow."""

import chart


def draw(result):
    series = [chart.Series(name, [(epoch + 1, point["accuracy"]) for epoch, point in enumerate(curve)], family=family)
              for family, (name, curve) in enumerate(result["curves"].items())]
    return chart.svg(f"{result['network']} on CIFAR-10, from the same weights",
                     [chart.Panel("", "epoch", "test accuracy (%)", series, y_least=40)],
                     f"One run each, batch {result['batch']}; {result['date']}")
