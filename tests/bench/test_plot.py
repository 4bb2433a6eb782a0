"""One plot: where things are drawn, and round numbers at its axes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from pipeline.bench.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, Series, draw, nice_values


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def dots(svg: str, colour: str) -> list[tuple[float, float]]:
    return [
        (float(e.attrib["cx"]), float(e.attrib["cy"])) for e in parse(svg).iter("circle") if colour in e.attrib["class"]
    ]


def test_values_and_intervals_stand_where_they_belong() -> None:
    line = Series("T 0", (Point(0, 1.0, 0.8, 1.2), Point(1, 2.0, 1.5, 2.5), Point(2, 1.5)))
    svg = draw("speedup", "requests", [line], ["1", "4", "16"], mark=1.0)
    (x0, y0), (x1, y1), (x2, y2) = dots(svg, "s0")
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and LEFT < x0 < x2 < WIDTH - RIGHT
    assert TOP < y1 < y2 < y0 < HEIGHT - BOTTOM, "more is higher"
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.2)
    spreads = [e for e in parse(svg).iter("line") if "spread" in e.attrib["class"]]
    assert len(spreads) == 2, "a point without an interval has none"
    upper, lower = float(spreads[0].attrib["y2"]), float(spreads[0].attrib["y1"])
    assert upper < y0 < lower and (upper + lower) / 2 == pytest.approx(y0, abs=0.2)
    [mark] = [e for e in parse(svg).iter("line") if e.attrib["class"] == "mark"]
    assert float(mark.attrib["y1"]) == pytest.approx(y0, abs=0.1), "1 is where the first point is"
    texts = [element.text for element in parse(svg).iter("text")]
    assert {"speedup", "requests", "1", "4", "16", "T 0"} <= set(texts)


def test_series_have_colours_and_steps_of_their_own() -> None:
    points = (Point(0.0, 1.0), Point(2.0, 3.0))
    svg = draw("K", "seconds", [Series("K", points, steps=True), Series("kept", points)])
    lines = {element.attrib["class"]: element.attrib["points"].split() for element in parse(svg).iter("polyline")}
    assert len(lines["line s0"]) == 3, "a step has a corner"
    start, corner, end = (tuple(map(float, place.split(","))) for place in lines["line s0"])
    assert corner == (end[0], start[1]) and len(lines["line s1"]) == 2
    assert dots(svg, "s0") == dots(svg, "s1"), "nothing is moved aside on a numbered axis"


def test_names_are_texts_and_not_markup() -> None:
    svg = draw("<b>&", "x", [Series("<script>", (Point(0, 1.0),))], ["<i>"])
    assert "<script>" not in svg and "<b>" not in svg and "<i>" not in svg
    assert next(element.text for element in parse(svg).iter("text")) == "<b>&"


@pytest.mark.parametrize("values", [(0.0,), (0.0, 0.0), (5.0, 5.0), (1e-4, 2e-4), (1e6, 3e6)])
def test_every_range_can_be_drawn(values: tuple[float, ...]) -> None:
    svg = draw("t", "x", [Series("a", tuple(Point(i, value) for i, value in enumerate(values)))])
    numbers = [float(number) for number in re.findall(r'c[xy]="([^"]+)"', svg)]
    assert len(numbers) == 2 * len(values) and all(0 <= number <= WIDTH for number in numbers)


def test_axes_have_round_numbers() -> None:
    assert nice_values(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_values(0.83, 1.31) == [0.9, 1.0, 1.1, 1.2, 1.3]
    assert nice_values(0.0, 320.0) == [0.0, 100.0, 200.0, 300.0]
    assert nice_values(2.0, 2.0) == [2.0]
