"""The settings of a session as text, and what cannot be one."""

from __future__ import annotations

import json

import pytest

from ortfuse.errors import OptionError
from ortfuse.runtime.session_settings import SessionConfig, Setting

CONFIG = SessionConfig(
    (
        Setting("enable_mem_reuse", False, "measured"),
        Setting("session.set_denormal_as_zero", "1"),
        Setting("disabled_optimizers", ["NchwcTransformer"]),
        Setting("providers", ["CPUExecutionProvider", ["XnnpackExecutionProvider", {"intra_op_num_threads": 2}]]),
    ),
    "1.23.0",
)


def test_settings_survive_as_text() -> None:
    assert SessionConfig.from_json(CONFIG.to_json(), "x") == CONFIG


def test_settings_are_changed_and_taken_out_by_name() -> None:
    changed = CONFIG.with_({"enable_mem_reuse": None, "intra_op_num_threads": 2})
    assert "enable_mem_reuse" not in changed
    assert changed.value("intra_op_num_threads") == 2
    assert changed.value("session.set_denormal_as_zero") == "1"
    assert list(changed.values()) == [
        "session.set_denormal_as_zero",
        "disabled_optimizers",
        "providers",
        "intra_op_num_threads",
    ]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("enable_mem_reus", True, "did you mean enable_mem_reuse"),
        ("enable_mem_reuse", 1, "write true or false"),
        ("intra_op_num_threads", -1, "0 or more"),
        ("intra_op_num_threads", True, "0 or more"),
        ("execution_mode", "parallell", "'sequential' or 'parallel'"),
        ("session.set_denormal_as_zero", 1, "write '1'"),
        ("disabled_optimizers", "GeluFusion", "list of names"),
        ("providers", [], "write a list"),
        ("providers", [("a",)], "pairs of a name and its options"),
    ],
)
def test_what_is_no_setting_is_refused(name: str, value: object, text: str) -> None:
    with pytest.raises(OptionError, match=text) as error:
        SessionConfig().with_({name: value})
    assert error.value.option == name


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not JSON"),
        ("[]", "has no list"),
        (json.dumps({"schema": 1, "settings": [{"name": "a"}]}), "has no list"),
        (json.dumps({"schema": 2, "settings": []}), "is of version 2"),
        (json.dumps({"schema": 1, "settings": [{"name": "enable_mem_reuse", "value": True}] * 2}), "twice in there"),
    ],
)
def test_damaged_texts_are_refused_with_their_place(content: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        SessionConfig.from_json(content, "there")
