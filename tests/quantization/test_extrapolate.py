"""Sites that there was no time for are taken to be like those of their kind."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.quantization.extrapolate import in_turns, with_extrapolated
from ortfuse.quantization.site_measurements import MeasuredScheme, MeasuredSite
from ortfuse.runtime.single_site_model import Part, cut


@pytest.fixture(scope="module")
def parts() -> dict[str, Part]:
    """Products in a row: `b`, `c` and `e` are of one kind, `a` and `d` are wider and narrower."""
    sizes = {"a": (8, 4), "b": (4, 4), "c": (4, 4), "d": (4, 6), "e": (4, 4)}
    taken = {"a": "x", "b": "a", "c": "b", "d": "c", "e": "c"}
    lines = [f"{name} = MatMul({taken[name]}, w{name})" for name in sizes]
    weights = ", ".join(f"float[{n}, {m}] w{name} = {{{', '.join(['1'] * n * m)}}}" for name, (n, m) in sizes.items())
    text = f'<ir_version: 10, opset_import: ["": 20]> g (float[n, 8] x) => (float[n, 6] d, float[n, 4] e) <{weights}> {{ {" ".join(lines)} }}'
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    facts = Facts(model)
    return {name: cut(model, name, [taken[name]], facts) for name in sizes}


def site(name: str, *schemes: MeasuredScheme, seconds: float = 1.0) -> MeasuredSite:
    return MeasuredSite(name, "kind", "[2, 4]", seconds, 100, schemes)


def test_one_of_each_kind_comes_first_and_of_these_what_stands_for_most(parts: dict[str, Part]) -> None:
    ordered, kinds = in_turns(list(parts.values()))
    assert [part.name for part in ordered] == ["b", "a", "d", "c", "e"]
    assert kinds == 3


def test_what_was_not_measured_errs_as_much_as_the_worst_of_its_kind(parts: dict[str, Part]) -> None:
    measured = [
        site(
            "e",
            MeasuredScheme("fine", 0.9, 50, 0.1, (0.3, 0.1)),
            MeasuredScheme("coarse", 0.5, 25, 0.2, (0.5, 0.5)),
            seconds=2.0,
        ),
        site(
            "c",
            MeasuredScheme("fine", 0.9, 50, 0.2, (0.2, 0.4)),
            MeasuredScheme("coarse", 0.5, 25, dropped="not finite"),
        ),
    ]
    schemes = dict.fromkeys(parts, ("fine", "coarse"))
    found = {one.name: one for one in with_extrapolated(list(parts.values()), measured, schemes)}
    assert list(found) == ["b", "c", "e"], "nothing is known of the other kinds"
    assert found["b"].like == "c"
    assert (found["c"].like, found["e"].like) == ("", "")
    assert [(one.name, one.local, one.effects) for one in found["b"].schemes] == [
        ("fine", 0.2, (0.3, 0.4)),
        ("coarse", None, None),
    ]


def test_a_scheme_that_is_not_legal_at_a_site_is_not_presumed_there(parts: dict[str, Part]) -> None:
    measured = [site("c", MeasuredScheme("fine", 0.9, 50, 0.1, (0.3,)), MeasuredScheme("coarse", 0.5, 25, 0.2, (0.5,)))]
    schemes = {"b": ("coarse",), "c": ("fine", "coarse"), "e": ()}
    wanted = [parts[name] for name in schemes]
    assert [[scheme.name for scheme in one.schemes] for one in with_extrapolated(wanted, measured, schemes)] == [["coarse"], ["fine", "coarse"], []]  # fmt: skip
