"""Configuration: plain values and back, strict, with an error that names the field."""

from __future__ import annotations

import os
import string
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Optional

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core.config import decode, encode, merge, override, read_yaml, read_yaml_text, resolve, to_yaml
from tilework.core.errors import ConfigError
from tilework.core.registry import Registry

figures: Registry[Any] = Registry("figure")


class Figure:
    choices: ClassVar[Registry[Any]] = figures


@figures.add("circle")
@dataclass(frozen=True)
class Circle(Figure):
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise ValueError(f"a radius of {self.radius}")


@figures.add("box")
@dataclass(frozen=True)
class Box(Figure):
    sides: tuple[int, int] = (2, 3)
    label: str = ""


@dataclass(frozen=True)
class Optimiser:
    rate: float = 0.1
    steps: int = 3
    nesterov: bool = False


@dataclass(frozen=True)
class Job:
    title: str
    optimiser: Optimiser = Optimiser()
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None
    decay: Optional[float] = 0.5  # noqa: UP045 (the older spelling must work too)
    grid: tuple[int, int] = (4, 6)
    names: tuple[str, ...] = ()
    scores: list[float] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    figure: Figure = Circle()
    figures: tuple[Figure, ...] = ()
    folder: Path = Path("data")
    size: int | str = 1
    extra: Any = None
    derived: int = field(default=0, init=False)


FULL = Job(
    title="run",
    optimiser=Optimiser(5e-5, 10, True),
    mode="slow",
    limit=7,
    decay=None,
    grid=(2, 8),
    names=("a", "b"),
    scores=[0.5, 2.0],
    tags={"x": 1, "y": 2},
    figure=Box((5, 6), "on"),
    figures=(Circle(3.0), Box()),
    folder=Path("/some/where"),
    size="large",
    extra=[1, {"a": None}],
)
FULL_PLAIN = {
    "title": "run",
    "optimiser": {"rate": 5e-5, "steps": 10, "nesterov": True},
    "mode": "slow",
    "limit": 7,
    "decay": None,
    "grid": [2, 8],
    "names": ["a", "b"],
    "scores": [0.5, 2.0],
    "tags": {"x": 1, "y": 2},
    "figure": {"name": "box", "sides": [5, 6], "label": "on"},
    "figures": [{"name": "circle", "radius": 3.0}, {"name": "box", "sides": [2, 3], "label": ""}],
    "folder": "/some/where",
    "size": "large",
    "extra": [1, {"a": None}],
}
words = st.text(string.printable + "äß€", max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
circles = st.builds(Circle, st.floats(0, 1e300))
WHOLE = st.integers(-(2**63) + 1, 2**63 - 1)
boxes = st.builds(Box, st.tuples(WHOLE, WHOLE), words)
jobs = st.builds(
    Job,
    title=words,
    optimiser=st.builds(Optimiser, numbers, WHOLE, st.booleans()),
    mode=st.sampled_from(["fast", "slow"]),
    limit=st.none() | WHOLE,
    decay=st.none() | numbers,
    grid=st.tuples(WHOLE, WHOLE),
    names=st.lists(words, max_size=3).map(tuple),
    scores=st.lists(numbers, max_size=3),
    tags=st.dictionaries(words, WHOLE, max_size=3),
    figure=circles | boxes,
    figures=st.lists(circles | boxes, max_size=3).map(tuple),
    size=WHOLE | words,
)


def refused(value: Any, kind: Any = Job) -> str:
    with pytest.raises(ConfigError) as caught:
        decode(kind, value)
    return str(caught.value)


def test_encode_gives_plain_values() -> None:
    assert encode(FULL) == FULL_PLAIN


def test_decode_is_the_inverse() -> None:
    job = decode(Job, FULL_PLAIN)
    assert job == FULL
    assert (type(job.grid), type(job.scores), type(job.figures[0])) == (tuple, list, Circle)


def test_defaults_fill_in() -> None:
    assert decode(Job, {"title": "x"}) == Job("x")


@settings(max_examples=80, deadline=None)
@given(jobs)
def test_round_trip_through_yaml(job: Job) -> None:
    assert decode(Job, read_yaml_text(to_yaml(job), "text")) == job


def test_yaml_keeps_the_order_of_definition() -> None:
    assert list(yaml.safe_load(to_yaml(FULL))) == list(FULL_PLAIN)


def test_a_choice_can_be_only_its_name() -> None:
    assert decode(Job, {"title": "x", "figure": "box"}).figure == Box()


def test_unknown_key_names_the_nearest() -> None:
    message = refused({"title": "x", "optimiser": {"stepps": 3}})
    assert "unknown key 'optimiser.stepps'" in message
    assert "did you mean 'steps'?" in message


def test_unknown_key_at_the_top() -> None:
    assert "unknown key 'titel': did you mean 'title'?" in refused({"titel": "x"})


def test_unknown_choice_names_the_nearest() -> None:
    message = refused({"title": "x", "figure": "circel"})
    assert "unknown figure 'circel'" in message
    assert "did you mean 'circle'?" in message


def test_unknown_key_of_a_choice() -> None:
    assert "unknown key 'figures.1.side'" in refused({"title": "x", "figures": ["circle", {"name": "box", "side": 1}]})


def test_derived_field_cannot_be_set() -> None:
    assert "unknown key 'derived'" in refused({"title": "x", "derived": 3})


def test_missing_field_is_named() -> None:
    assert "lacks 'title'" in refused({"limit": 3})


def test_exponent_without_a_point_becomes_a_float() -> None:
    assert isinstance(yaml.safe_load("5e-4"), str)  # why this is needed at all
    assert decode(Job, {"title": "x", "optimiser": {"rate": "5e-4"}}).optimiser.rate == 5e-4
    assert resolve(Job("x"), assignments=["optimiser.rate=5e-4"]).optimiser.rate == 5e-4


def test_whole_number_becomes_a_float() -> None:
    rate = decode(Job, {"title": "x", "optimiser": {"rate": 2}}).optimiser.rate
    assert (rate, type(rate)) == (2.0, float)


@pytest.mark.parametrize(
    ("plain", "path"),
    [
        ({"optimiser": {"rate": "quick"}}, "optimiser.rate"),
        ({"optimiser": {"rate": True}}, "optimiser.rate"),
        ({"optimiser": {"rate": None}}, "optimiser.rate"),
        ({"optimiser": {"rate": 10**400}}, "optimiser.rate"),
        ({"optimiser": {"steps": True}}, "optimiser.steps"),
        ({"optimiser": {"steps": 3.0}}, "optimiser.steps"),
        ({"optimiser": {"steps": "3"}}, "optimiser.steps"),
        ({"optimiser": {"nesterov": 1}}, "optimiser.nesterov"),
        ({"optimiser": {"nesterov": "true"}}, "optimiser.nesterov"),
        ({"optimiser": 3}, "optimiser"),
        ({"optimiser": None}, "optimiser"),
        ({"optimiser": [1, 2]}, "optimiser"),
        ({"limit": "many"}, "limit"),
        ({"limit": True}, "limit"),
        ({"mode": "medium"}, "mode"),
        ({"mode": ["fast"]}, "mode"),
        ({"grid": [1, "a"]}, "grid.1"),
        ({"grid": [1, 2, 3]}, "grid has 3 values"),
        ({"grid": "12"}, "grid"),
        ({"grid": 12}, "grid"),
        ({"grid": {1: 2}}, "grid"),
        ({"names": "ab"}, "names"),
        ({"names": ["a", 3]}, "names.1"),
        ({"scores": [1, 2, "x"]}, "scores.2"),
        ({"tags": {"a": "b"}}, "tags.a"),
        ({"tags": [1]}, "tags"),
        ({"figure": {"radius": 1}}, "figure"),
        ({"figure": 3}, "figure"),
        ({"figure": None}, "figure"),
        ({"figure": {"name": "circle", "radius": "x"}}, "figure.radius"),
        ({"figures": [{"name": "circle"}, {"name": "box", "sides": [1, None]}]}, "figures.1.sides.1"),
        ({"folder": 3}, "folder"),
        ({"title": 3}, "title"),
        ({"title": None}, "title"),
        ({"size": 1.5}, "size"),
    ],
)
def test_wrong_value_names_its_field(plain: dict[str, Any], path: str) -> None:
    assert refused({"title": "x", **plain}).startswith(path)


@pytest.mark.parametrize("name", [5, None, ["circle"], {"a": 1}, True, 1.5])
def test_name_of_a_choice_must_be_a_word(name: Any) -> None:
    assert "figure" in refused({"title": "x", "figure": {"name": name}})


@pytest.mark.parametrize("value", [None, 3, "text", [1, 2]])
def test_configuration_must_be_a_mapping(value: Any) -> None:
    assert "a mapping is needed" in refused(value)


def test_literal_lists_what_is_possible() -> None:
    assert "one of fast, slow is needed" in refused({"title": "x", "mode": "medium"})


def test_a_dataclass_that_refuses_becomes_a_config_error() -> None:
    message = refused({"title": "x", "figures": ["box", {"name": "circle", "radius": -1}]})
    assert message == "invalid settings of figures.1: a radius of -1.0"


def test_override_sets_inner_values() -> None:
    job = resolve(Job("x"), assignments=["optimiser.steps=9", "mode=slow", "limit=3", "decay=null", "title=a=b"])
    assert job == replace(Job("x"), optimiser=Optimiser(steps=9), mode="slow", limit=3, decay=None, title="a=b")


def test_override_of_list_positions() -> None:
    job = resolve(FULL, assignments=["grid.1=9", "figures.0.radius=0.25", "names.0=z", "figures.1={name: circle}"])
    assert job.grid == (2, 9)
    assert job.figures == (Circle(0.25), Circle())
    assert job.names == ("z", "b")


def test_override_of_list_items_by_name() -> None:
    job = resolve(FULL, assignments=["figures.box.sides.1=9", "figures.circle.radius=0.25", "figures.box.label=z"])
    assert job.figures == (Circle(0.25), Box((2, 9), "z"))
    assert resolve(FULL, assignments=["figures.circle={name: box}", "figures.1=circle"]).figures == (Box(), Circle())


@dataclass(frozen=True)
class Weighted:
    figure: Figure
    weight: float = 1.0


@dataclass(frozen=True)
class Step:
    name: str
    job: Job


@dataclass(frozen=True)
class Plan:
    extra: tuple[Weighted, ...] = (Weighted(Box()), Weighted(Circle(), 0.5))
    steps: tuple[Step, ...] = (Step("first", FULL), Step("second", Job("x", figures=(Circle(), Box(), Circle(2.0)))))


def test_items_without_a_name_go_by_that_of_their_part() -> None:
    plan = resolve(Plan(), assignments=["extra.circle.weight=2", "extra.box.figure.label=b"])
    assert plan.extra == (Weighted(Box(label="b")), Weighted(Circle(), 2.0))


def test_names_inside_names() -> None:
    plan = resolve(Plan(), assignments=["steps.first.job.figures.circle.radius=7", "steps.second.job.limit=3"])
    assert plan.steps[0].job == replace(FULL, figures=(Circle(7.0), Box()))
    assert plan.steps[1].job == replace(Plan().steps[1].job, limit=3)


def test_a_name_that_stands_twice_is_refused() -> None:
    for apply in (
        lambda: resolve(Plan(), assignments=["steps.second.job.figures.circle.radius=1"]),
        lambda: merge(encode(Plan()), {"steps": {"second": {"job": {"figures": {"circle": {"radius": 1}}}}}}),
    ):
        with pytest.raises(ConfigError) as caught:
            apply()
        where = "steps.second.job.figures.circle"
        assert str(caught.value).startswith(f"'circle' in '{where}")
        assert str(caught.value).endswith("is at 0 and 2: give the index instead")
        assert caught.value.exit_code == 4
    plan = resolve(Plan(), assignments=["steps.second.job.figures.2.radius=1"])
    assert plan.steps[1].job.figures == (Circle(), Box(), Circle())


def test_a_mapping_over_a_list_changes_the_items_it_names(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("extra: {circle: {weight: 3}}\nsteps: {first: {job: {figures: {box: {label: z}, 0: box}}}}\n")
    plan = resolve(Plan(), file)
    assert plan.extra == (Weighted(Box()), Weighted(Circle(), 3.0))
    assert plan.steps == (Step("first", replace(FULL, figures=(Box(), Box(label="z")))), Plan().steps[1])
    file.write_text("figures: {box: {name: circle, radius: 4}}\ngrid: {1: 9}\n")
    assert resolve(FULL, file) == replace(FULL, figures=(Circle(3.0), Circle(4.0)), grid=(2, 9))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("figures: {circel: {radius: 1}}", "no 'circel' in the list of 'figures.circel': did you mean 'circle'?"),
        ("figures: {5: {radius: 1}}", "'5' in 'figures.5' is not an index of a list of 2"),
        ("grid: {x: 1}", "'x' in 'grid.x' is not an index of a list of 2"),
    ],
)
def test_a_mapping_over_a_list_names_what_is_there(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(FULL, tmp_path / "run.yaml")
    assert message in str(caught.value)


def test_override_adds_to_a_dict() -> None:
    assert resolve(FULL, assignments=["tags.z=3"]).tags == {"x": 1, "y": 2, "z": 3}


def test_override_of_a_whole_part() -> None:
    job = resolve(Job("x"), assignments=["grid=[7, 8]", "figure=box", "optimiser={steps: 1}"])
    assert (job.grid, job.figure, job.optimiser) == ((7, 8), Box(), Optimiser(steps=1))


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'limit' is given twice"):
        resolve(Job("x"), assignments=["limit=1", "limit=2"])


def test_override_leaves_its_input_alone() -> None:
    plain = encode(FULL)
    override(plain, ["grid.0=99", "optimiser.steps=99", "figures.0.radius=99", "tags.x=99"])
    assert plain == FULL_PLAIN


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("limit", "override 'limit' has no '='"),
        ("grid.2=1", "'2' in 'grid.2' is not an index of a list of 2: count from 0"),
        ("grid.x=1", "'x' in 'grid.x' is not an index of a list of 2: count from 0"),
        ("grid.-1=1", "'-1' in 'grid.-1' is not an index of a list of 2: count from 0"),
        ("figures.2.radius=1", "'2' in 'figures.2.radius' is not an index of a list of 2: count from 0"),
        ("figures.-1.radius=1", "'-1' in 'figures.-1.radius' is not an index of a list of 2: count from 0"),
        ("figures.circel.radius=1", "no 'circel' in the list of 'figures.circel.radius': did you mean 'circle'?"),
        ("figures.circle.radios=1", "unknown key 'figures.0.radios': did you mean 'radius'?"),
        ("mode.inner=1", "'mode.inner' names a key inside a plain value"),
        ("optimiser.stepps=1", "did you mean 'steps'?"),
        ("=1", "unknown key ''"),
        ("limit=[1", "override 'limit=[1' is not YAML"),
        ("limit=!!python/object/apply:os.getcwd []", "is not YAML"),
        ("title=2024-13-45", "title=2024-13-45"),
        ("limit=" + "9" * 5000, "limit=999"),
        ("limit=" + "[" * 700, "limit=[[["),
    ],
)
def test_wrong_override_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(FULL, assignments=[assignment])
    assert message in str(caught.value)


def test_recipe_then_file_then_override(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("optimiser: {steps: 20, rate: 5e-4}\nlimit: 5\n")
    job = resolve(Job("recipe", Optimiser(steps=1, nesterov=True), limit=1), file, ["optimiser.steps=300"])
    assert job == Job("recipe", Optimiser(rate=5e-4, steps=300, nesterov=True), limit=5)


def test_file_of_the_same_name_merges_into_the_part() -> None:
    assert merge({"figure": {"name": "box", "sides": [1, 2], "label": "a"}}, {"figure": {"label": "b"}}) == {
        "figure": {"name": "box", "sides": [1, 2], "label": "b"}
    }
    named = merge({"figure": {"name": "box", "label": "a"}}, {"figure": {"name": "box", "sides": [3, 4]}})
    assert named == {"figure": {"name": "box", "label": "a", "sides": [3, 4]}}


def test_file_with_another_name_replaces_the_part(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("figure: {name: circle, radius: 2}\n")
    assert resolve(FULL, file) == replace(FULL, figure=Circle(2.0))


def test_file_replaces_lists_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("names: [c]\nlimit: null\n")
    assert resolve(FULL, file) == replace(FULL, names=("c",), limit=None)


def test_merge_leaves_both_inputs_alone() -> None:
    below, above = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}
    assert merge(below, above) == {"a": {"b": 3, "c": 2}}
    assert (below, above) == ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})


def test_written_configuration_resolves_to_itself(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(FULL), "utf-8")
    assert resolve(Job("other"), file) == FULL


def test_a_choice_can_be_the_whole_configuration() -> None:
    assert resolve(Circle(), assignments=["radius=4"]) == Circle(4.0)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/object/new:os.system", "!anything"])
def test_yaml_cannot_run_code(tmp_path: Path, tag: str) -> None:
    mark, file = tmp_path / "mark", tmp_path / "evil.yaml"
    file.write_text(f"title: {tag} ['touch {mark}']\n")
    with pytest.raises(ConfigError, match=r"evil\.yaml is not YAML"):
        resolve(Job("x"), file)
    assert not mark.exists()


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "3", "# only a comment\n"])
def test_file_must_hold_a_mapping(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match="a mapping of keys to values is needed"):
        resolve(Job("x"), tmp_path / "run.yaml")


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"title: \xff\xfe")
    for name in ("absent.yaml", "bytes.yaml", "."):
        with pytest.raises(ConfigError, match="cannot read"):
            read_yaml(tmp_path / name)


@pytest.mark.parametrize(
    "text", ["a: 2024-13-45", "a: " + "9" * 5000, "[" * 700, "a: [1", "a: b: c", "{[1]: 2}", "\0"], ids=range(7)
)
def test_text_that_yaml_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="some place"):
        read_yaml_text(text, "some place")


ALIASES = "&a0 [x,x,x,x,x,x,x,x]"
for level in range(1, 9):
    ALIASES = f"&a{level} [{ALIASES}," + ",".join([f"*a{level - 1}"] * 7) + "]"


@pytest.mark.parametrize(
    "text",
    [
        ALIASES,
        "{zz: &a {b: *a}}",
        "&m {q: 1, r: {<<: *m}}",
        "!!bool foo",
        "!!timestamp foo",
        "!!int ''",
        "!!float ''",
        ":".join(["1"] * 200) + ":1.5",
    ],
)
def test_yaml_that_grows_or_is_senseless_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    """Names for parts that are used again, as a few bytes become gigabytes by them; tags that do not fit."""
    (tmp_path / "c.yaml").write_text(f"fit: {text}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml is not YAML") as refused:
        read_yaml(tmp_path / "c.yaml")
    assert len(str(refused.value)) < 1000
    assert "\n" not in str(refused.value)


@dataclass(frozen=True)
class Sized:
    size: int = 1
    name: str = ""


@pytest.mark.parametrize("value", [int("f" * 10_000, 16), 2**63, -(2**70)], ids=["long", "2**63", "-2**70"])
def test_numbers_beyond_64_bits_are_refused(value: int) -> None:
    with pytest.raises(ConfigError, match="size is"):
        decode(Sized, {"size": value})
    with pytest.raises(ConfigError, match="a mapping is needed"):
        decode(Sized, value)
    assert decode(Sized, {"size": 2**63 - 1}).size == 2**63 - 1


def test_large_values_are_cut_in_messages() -> None:
    with pytest.raises(ConfigError, match=r"name is .*str is needed") as refused:
        decode(Sized, {"name": [["x" * 1000] * 1000] * 1000})
    assert len(str(refused.value)) < 1000


def test_settings_are_written_without_names_for_parts() -> None:
    shared = [1, 2]
    assert yaml.safe_load(to_yaml({"a": shared, "b": shared})) == {"a": shared, "b": shared}
    assert "&" not in to_yaml({"a": shared, "b": shared})


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        read_yaml(tmp_path / "c.yaml")
