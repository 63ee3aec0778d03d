"""The decoder of JSON: each type takes what it should, and a refusal says where and what."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest

from bype.data.decode import check_fields, decode, decode_file
from bype.data.files import FileError, to_json


@dataclass(frozen=True)
class Ascent:
    name: Literal["ascent"]
    step_size: float


@dataclass(frozen=True)
class Still:
    name: Literal["still", "frozen"]


@dataclass(frozen=True)
class Point:
    x: float
    y: float | None

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError(f"x must not be negative, not {self.x}")


@dataclass(frozen=True)
class Picture:
    version: Literal[1] = field(default=1, kw_only=True)
    title: str
    points: list[Point]
    shape: tuple[int, ...]
    pair: tuple[int, dict[str, float]]
    by_name: dict[str, list[Point]]
    rule: Ascent | Still
    second_rule: Ascent | Still | None
    is_done: bool
    colour: Literal["red", "blue"] = "red"


PICTURE = Picture(
    "a title",
    [Point(1.0, None), Point(2.0, -3.5)],
    (1, 2, 3),
    (4, {"a": 0.5}),
    {"some": [Point(0.0, 1.0)], "none": []},
    Ascent("ascent", 0.1),
    None,
    True,
)


def fields() -> dict[str, Any]:
    """Return what a file of the picture holds."""
    read: dict[str, Any] = json.loads(to_json(asdict(PICTURE)))
    return read


def test_a_nested_example_comes_back():
    assert decode(Picture, fields()) == PICTURE
    assert decode(Picture, asdict(PICTURE)) == PICTURE
    assert next(iter(fields())) == "version"
    other = {**fields(), "rule": {"name": "frozen"}, "second_rule": {"name": "ascent", "step_size": 1}}
    assert decode(Picture, other).rule == Still("frozen")
    assert decode(Picture, other).second_rule == Ascent("ascent", 1.0)


@pytest.mark.parametrize(
    ("kind", "value", "decoded"),
    [
        (bool, False, False),
        (int, -7, -7),
        (int, 2**62 - 1, 2**62 - 1),
        (float, 1.5, 1.5),
        (float, 3, 3.0),
        (float, -3.4e38, -3.4e38),
        (float, 10**90, 1e90),
        (str, "é", "é"),
        (str, "", ""),
        (int | None, None, None),
        (None | int, 5, 5),
        (list[int], [], []),
        (list[int | None], [1, None], [1, None]),
        (list[list[float]], [[1], []], [[1.0], []]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dict[str, float], {"a": 1, "": 2.0}, {"a": 1.0, "": 2.0}),
        (Literal["a", 2], 2, 2),
        (Still, {"name": "still"}, Still("still")),
        (Ascent | Still, {"name": "frozen"}, Still("frozen")),
    ],
)
def test_what_is_taken(kind, value, decoded):
    found = decode(kind, value)
    assert found == decoded
    assert type(found) is type(decoded)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (bool, 1, "1 is not true or false"),
        (bool, None, "None is not true or false"),
        (int, True, "True is not a whole number"),
        (int, 1.0, r"1\.0 is not a whole number"),
        (int, "many", "'many' is not a whole number"),
        (int, 2**62, f"{2**62} is out of range"),
        (int, -(10**4000), r"-1000.*000 is out of range"),
        (float, False, "False is not a number"),
        (float, "1", "'1' is not a number"),
        (float, float("nan"), "nan is not a number"),
        (float, float("inf"), "inf is out of range"),
        (float, 1e200, r"1e\+200 is out of range"),
        (float, -(10**400), "is out of range"),
        (float, None, "None is not a number"),
        (str, 5, "5 is not text"),
        (str, "\ud800", r"'\\ud800' is not text"),
        (int | None, "x", "'x' is not a whole number"),
        (list[int], "abc", "'abc' is not a list"),
        (list[int], {"0": 1}, r"\{'0': 1\} is not a list"),
        (list[int], [1, None], r"\[1\]: None is not a whole number"),
        (list[list[float]], [[], [1, "x"]], r"\[1\]\[1\]: 'x' is not a number"),
        (tuple[int, ...], 5, "5 is not a list"),
        (tuple[int, ...], [1, True], r"\[1\]: True is not a whole number"),
        (tuple[int, str], [1], r"\[1\] is not a list of 2"),
        (tuple[int, str], [1, "a", 2], "is not a list of 2"),
        (dict[str, float], [1], r"\[1\] is not an object"),
        (dict[str, float], {"a": None}, r"\['a'\]: None is not a number"),
        (dict[str, float], {"\udc00": 1.0}, r"'\\udc00' is not text"),
        (Literal["a", "b"], "c", "'c' is not one of a, b"),
        (Literal["a", "b"], ["a"], r"\['a'\] is not one of a, b"),
        (Literal[1], 2, "2 is not 1"),
        (Literal[1], True, "True is not 1"),
        (Literal[1], 1.0, r"1\.0 is not 1"),
        (Still, "still", "'still' is not an object"),
        (Still, None, "None is not an object"),
        (Still, {}, "the field name is missing"),
        (Still, {"name": "still", "more": 1}, "the field 'more' is unknown"),
        (Point, {"x": -1, "y": None}, r"^x must not be negative, not -1\.0$"),
        (Point, {"x": None, "y": None}, "^x: None is not a number$"),
        (Ascent | Still, {"name": "descent"}, "^name: 'descent' is not one of ascent, still, frozen$"),
        (Ascent | Still, {"name": ["still"]}, r"^name: \['still'\] is not one of"),
        (Ascent | Still, {"step_size": 1}, "^the field name is missing$"),
        (Ascent | Still, {"name": "still", "step_size": 1}, "^the field 'step_size' is unknown$"),
        (Ascent | Still, None, "None is not an object"),
        (Ascent | Still | None, "still", "'still' is not an object"),
    ],
)
def test_what_is_refused(kind, value, message):
    with pytest.raises(ValueError, match=message):
        decode(kind, value)


FAULTS = {
    "points[1].y: 'x' is not a number": lambda f: f["points"][1].update(y="x"),
    "points[0]: x must not be negative, not -1.0": lambda f: f["points"][0].update(x=-1),
    "points[0]: the field y is missing": lambda f: f["points"][0].pop("y"),
    "points[0]: the field 'z' is unknown": lambda f: f["points"][0].update(z=1),
    "by_name['some'][0].x: None is not a number": lambda f: f["by_name"]["some"][0].update(x=None),
    "pair[1]['a']: True is not a number": lambda f: f["pair"][1].update(a=True),
    "rule: None is not an object": lambda f: f.update(rule=None),
    "rule.name: 'x' is not one of ascent, still, frozen": lambda f: f.update(rule={"name": "x"}),
    "rule.step_size: 'x' is not a number": lambda f: f["rule"].update(step_size="x"),
    "colour: 'green' is not one of red, blue": lambda f: f.update(colour="green"),
    "the field colour is missing": lambda f: f.pop("colour"),
    # A file of another version has other fields as well: that is not the news.
    "version: 2 is not 1": lambda f: (f.update(version=2, more=1), f.pop("title")),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_refusal_says_where(message):
    read = fields()
    FAULTS[message](read)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - all of the message is compared
        decode(Picture, read)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        "\n" * 100,
        [[["y" * 100] * 100] * 100] * 100,
        {"k\n" * 1000: {"k" * 1000: 1}},
        {"points": [{"z" * 1000: 1, "x": 1, "y": 1}]},
    ],
)
def test_a_refusal_is_one_short_line_whatever_is_in_the_file(value):
    for kind in (int, list[int], dict[str, int], Literal["a"], Picture):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - any message will do, if it is short
            decode(kind, value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200


def test_an_instance_is_checked_in_the_same_way():
    check_fields(PICTURE)
    check_fields(Point(1, None))  # a whole number is a number
    with pytest.raises(ValueError, match=r"^shape\[1\]: 2\.5 is not a whole number$"):
        check_fields(Picture("", [], (1, 2.5), (0, {}), {}, Still("still"), None, False))
    with pytest.raises(ValueError, match=r"^rule: .* is not an object$"):
        check_fields(Picture("", [], (), (0, {}), {}, Point(1.0, None), None, False))


def test_a_file_is_named(tmp_path):
    path = tmp_path / "point.json"
    path.write_text('{"x": 1, "y": null}')
    assert decode_file(Point, path) == Point(1.0, None)
    for text in ('{"x": 1, "y": "a"}', "{", '{"x": -1, "y": null}'):
        path.write_text(text)
        with pytest.raises(FileError, match=str(path)):
            decode_file(Point, path)


def test_a_type_that_json_does_not_have_is_a_mistake_of_the_program():
    for kind in (bytes, set[int], list, int | str):
        with pytest.raises(TypeError, match="cannot be decoded"):
            decode(kind, [])


def test_reading_it_is_quick():
    code = "import sys, bype.data.decode; print({'torch', 'numpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
