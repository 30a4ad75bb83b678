# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG, using only the standard library. The same data give the same bytes, so a committed
chart changes only with its result."""

import dataclasses
import math
from xml.sax.saxutils import escape

WIDTH, PANEL_HEIGHT = 840, 330
LEFT, RIGHT, TOP, BOTTOM = 74, 280, 44, 56  # margins of the plot in its panel; the legend is on the right
# Okabe and Ito's colours, which colour-blind people can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = ("circle", "square", "diamond", "triangle")
INK, FAINT = "#333333", "#dddddd"


@dataclasses.dataclass
class Series:
    """Points (x, y), or (x, y, least, most) to draw a bar for the spread. Series of the same family share a
    colour and a marker."""
    name: str
    points: list
    dashed: bool = False
    family: int = None
    markers: bool = True


@dataclasses.dataclass
class Panel:
    title: str
    x_label: str  # with its unit
    y_label: str
    series: list
    log_x: bool = False
    y_most: float = None  # the axis reaches at least this value
    y_least: float = None  # the axis starts near this value instead of at 0; no value is lower


def number(value):
    """The label of a tick, without insignificant digits."""
    return f"{value:,.6g}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def nice_step(span, ticks=5):
    """The smallest of 1, 2, 2.5, 5 times a power of ten that divides the span into about `ticks` steps or
    fewer."""
    rough = span / ticks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


class Axis:
    """Maps a value to a coordinate in pixels."""

    def __init__(self, low, high, begin, end, log=False):
        self.log, self.begin, self.end = log, begin, end
        self.low, self.high = (math.log2(low), math.log2(high)) if log else (low, high)

    def __call__(self, value):
        value = math.log2(value) if self.log else value
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)


def x_axis(panel):
    """The axis and its ticks: the x values themselves if there are at most 10; else powers of two on a
    logarithmic axis and multiples of a round step on a linear one."""
    values = sorted({point[0] for series in panel.series for point in series.points})
    low, high = values[0], values[-1]
    if panel.log_x:
        ticks = values if len(values) <= 10 else [2.0 ** e for e in range(math.ceil(math.log2(low)),
                                                                          math.floor(math.log2(high)) + 1)]
        room = 1.15 if low < high else 2
        return Axis(low / room, high * room, LEFT, WIDTH - RIGHT, log=True), ticks
    room = 0.04 * (high - low) or 1
    step = nice_step(high - low or 1, 8)
    ticks = values if len(values) <= 10 else [step * i for i in range(math.ceil(low / step), int(high / step) + 1)]
    return Axis(low - room, high + room, LEFT, WIDTH - RIGHT), ticks


def y_axis(panel, top):
    """The axis and its ticks. It starts at 0 unless the panel sets y_least."""
    most = max([max(point[1:]) for series in panel.series for point in series.points] + [panel.y_most or 0]) or 1
    least = panel.y_least or 0
    step = nice_step((most - least) or 1)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return (Axis(first * step, last * step, top + PANEL_HEIGHT - BOTTOM, top + TOP),
            [step * i for i in range(first, last + 1)])


def at(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


def line(x1, y1, x2, y2, colour, extra=""):
    return f'<line x1="{at(x1)}" y1="{at(y1)}" x2="{at(x2)}" y2="{at(y2)}" stroke="{colour}"{extra}/>'


def text(x, y, words, anchor="middle", extra=""):
    return f'<text x="{at(x)}" y="{at(y)}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'


def marker(shape, x, y, colour):
    if shape == "circle":
        return f'<circle cx="{at(x)}" cy="{at(y)}" r="3.5" fill="{colour}"/>'
    corners = {"square": [(-3, -3), (3, -3), (3, 3), (-3, 3)], "diamond": [(0, -4.5), (4.5, 0), (0, 4.5), (-4.5, 0)],
               "triangle": [(0, -4), (4, 3.5), (-4, 3.5)]}[shape]
    return f'<polygon points="{" ".join(f"{at(x + dx)},{at(y + dy)}" for dx, dy in corners)}" fill="{colour}"/>'


def style_of(series, index):
    """Colour, marker and dash attribute of a series. If a colour is used again, the line is dotted."""
    family = index if series.family is None else series.family
    dashes = "5 4" if series.dashed else "1.5 2.5" if family >= len(COLOURS) else ""
    return (COLOURS[family % len(COLOURS)], MARKERS[family % len(MARKERS)],
            f' stroke-dasharray="{dashes}"' if dashes else "")


def draw_axes(panel, x, x_ticks, y, y_ticks, top):
    bottom = top + PANEL_HEIGHT - BOTTOM
    yield text(LEFT, top + 22, panel.title, "start", ' font-size="15" font-weight="bold"')
    for tick in y_ticks:
        yield line(LEFT, y(tick), WIDTH - RIGHT, y(tick), INK if tick == 0 else FAINT)
        yield text(LEFT - 8, y(tick) + 4, number(tick), "end")
    for tick in x_ticks:
        yield line(x(tick), bottom, x(tick), bottom + 5, INK)
        yield text(x(tick), bottom + 20, number(tick))
    yield line(LEFT, top + TOP, LEFT, bottom, INK)
    yield text((LEFT + WIDTH - RIGHT) / 2, bottom + 42, panel.x_label)
    middle = (top + TOP + bottom) / 2
    yield text(18, middle, panel.y_label, "middle", f' transform="rotate(-90 18 {at(middle)})"')


def draw_series(series, index, x, y):
    colour, shape, dashes = style_of(series, index)
    points = sorted(series.points)
    path = " ".join(f"{at(x(point[0]))},{at(y(point[1]))}" for point in points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>'
    for point in points:
        if len(point) == 4:
            yield line(x(point[0]), y(point[2]), x(point[0]), y(point[3]), colour, ' stroke-opacity="0.6"')
        if series.markers:
            yield marker(shape, x(point[0]), y(point[1]), colour)


def draw_legend(panel, top):
    left = WIDTH - RIGHT + 16
    for index, series in enumerate(panel.series):
        colour, shape, dashes = style_of(series, index)
        height = top + TOP + 8 + 20 * index
        yield line(left, height, left + 28, height, colour, f' stroke-width="1.8"{dashes}')
        if series.markers:
            yield marker(shape, left + 14, height, colour)
        yield text(left + 36, height + 4, series.name, "start")


def draw_panel(panel, top):
    if not any(series.points for series in panel.series):
        raise ValueError(f"the chart \"{panel.title}\" has no points")
    x, x_ticks = x_axis(panel)
    y, y_ticks = y_axis(panel, top)
    yield from draw_axes(panel, x, x_ticks, y, y_ticks, top)
    for index, series in enumerate(panel.series):
        yield from draw_series(series, index, x, y)
    yield from draw_legend(panel, top)


def svg(title, panels, note):
    """The text of an SVG file: a title, the panels one below the other, and a note at the foot."""
    head, foot = 34, 26
    height = head + PANEL_HEIGHT * len(panels) + foot
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
             f'role="img" font-family="sans-serif" font-size="12" fill="{INK}">',
             f"<title>{escape(title)}</title>", f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
             text(LEFT, 28, title, "start", ' font-size="17" font-weight="bold"')]
    for index, panel in enumerate(panels):
        parts += draw_panel(panel, head + PANEL_HEIGHT * index)
    parts += [text(LEFT, height - 10, note, "start", ' fill="#666666" font-size="11"'), "</svg>"]
    return "\n".join(parts) + "\n"
