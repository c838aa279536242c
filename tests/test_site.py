"""The pages of the site that are made from the rules: every rule has its place, and what leads to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs")

from mkdocs.config.defaults import MkDocsConfig

from docs import generated
from ortfuse.pipeline import load_catalogue


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The text of each page that is made, by its path."""
    return generated.made()


def test_every_rule_stands_on_one_page_and_the_index_leads_there(pages: dict[str, str]) -> None:
    for name, rules in load_catalogue().passes().items():
        text = pages[f"catalogue/{name}.md"]
        for rule in rules:
            anchor = re.sub(r"[^\w-]", "", rule.name)
            assert text.count(f"### {rule.name}\n") == 1
            assert f"(catalogue/{name}.md#{anchor})" in pages["catalogue.md"]
            assert f'id="{anchor}"' in pages["catalogue.md"], "links to the one long page that there was"


def test_families_lead_to_their_rules(pages: dict[str, str]) -> None:
    assert "[`gelu.from_erf_form`](catalogue/fuse.activation.md#gelufrom_erf_form)" in pages["families.md"]


def test_a_rule_that_no_family_names_stands_at_the_end_of_the_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "families.toml"
    table.write_text('[[family]]\ngroup = "G"\nname = "GELU"\nwhat = "With erf."\nrules = ["gelu.*"]\n')
    monkeypatch.setattr(generated, "FAMILIES", table)
    families, _, further = "\n".join(generated._families()).partition("## Further rules")
    assert "`gelu.from_erf_form`" in families
    assert "`gelu.from_erf_form`" not in further
    assert "`softplus.max_plus_log_one_plus_exp`" in further


def test_the_navigation_has_the_pages_behind_their_index() -> None:
    config: Any = MkDocsConfig()
    config.load_dict({"site_name": "a", "nav": [{"Reference": [{"Rules": "catalogue.md"}, {"Other": "other.md"}]}]})
    rules, other = generated.on_config(config).nav[0]["Reference"]
    assert rules["Rules"][0] == {"Index": "catalogue.md"}
    assert {"target_decompositions": "catalogue/target_decompositions.md"} in rules["Rules"]
    assert other == {"Other": "other.md"}


def test_short_code_is_not_torn_apart() -> None:
    assert generated.on_page_content("<code>--list</code>", *[None] * 3) == '<code class="whole">--list</code>'
    long = f"<code>{'a-' * 20}</code>"
    assert generated.on_page_content(long, *[None] * 3) == long
