"""Rule costs of the ONNX Runtime of another environment."""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime
import pytest

import ortfuse
from ortfuse.errors import OptionError, TargetError
from ortfuse.targets import calibrated_speedups, default_spec
from ortfuse.tuning.rule_costs import measure_in_environment
from ortfuse.tuning.rule_costs.measure_in_environment import packages_of


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with the installed runtime in place of an older one."""
    packages = tmp_path / "old" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "onnxruntime").symlink_to(Path(onnxruntime.__file__).parent, target_is_directory=True)
    return tmp_path / "old"


def test_costs_are_measured_with_the_runtime_of_the_environment(environment: Path, tmp_path: Path) -> None:
    file, steps = tmp_path / "calibration.json", list[str]()
    found = ortfuse.calibrate(
        only=["clip.relu_of_relu"], budget=0, threads=1, environment=environment, file=file,
        step=lambda done, total, what: steps.append(what),
    )  # fmt: skip
    assert steps and steps[0].startswith("clip.relu_of_relu at ")
    assert found.runtime == f"onnxruntime {onnxruntime.__version__}"
    assert (found.file, found.threads) == (file, 1)
    kept = calibrated_speedups.stored(found.runtime, default_spec().provider, 1, file)
    assert kept == found.speedups


def test_what_is_refused_there_is_told(environment: Path) -> None:
    with pytest.raises(TargetError, match="no rule or family 'nothing'"):
        ortfuse.calibrate(only=["nothing"], environment=environment)


def test_objects_cannot_be_told_to_another_process(environment: Path) -> None:
    with pytest.raises(OptionError, match="not as TargetSpec"):
        ortfuse.calibrate(target=default_spec(), environment=environment)


def test_a_folder_without_a_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is no virtual environment of Python"):
        packages_of(tmp_path)
    (tmp_path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages").mkdir(parents=True)
    with pytest.raises(OptionError, match="has no onnxruntime"):
        packages_of(tmp_path)


def test_a_folder_that_python_does_not_load_from_is_refused(environment: Path) -> None:
    """Python takes a folder without a program for a part of a package, and the installed runtime for the whole."""
    (folder,) = environment.glob("lib/*/site-packages/onnxruntime")
    folder.unlink()
    folder.mkdir()
    with pytest.raises(OptionError, match="has no onnxruntime"):
        ortfuse.calibrate(only=["clip.relu_of_relu"], budget=0, environment=environment)


def test_another_runtime_than_that_of_the_environment_is_not_measured(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_in_environment, "packages_of", lambda _: tmp_path)
    (tmp_path / "onnxruntime").mkdir()
    file = tmp_path / "calibration.json"
    with pytest.raises(
        TargetError, match=r"Python loads onnxruntime from .* instead of .*; install the release there again"
    ):
        ortfuse.calibrate(only=["clip.relu_of_relu"], budget=0, environment=environment, file=file)
    assert not file.exists()


@pytest.mark.parametrize("text", ["bye", "{}", "3"])
def test_what_others_print_is_left_aside(text: str, environment: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(f"import atexit\nRULES = []\nprint('no line', end='')\natexit.register(print, {text!r})\n")
    found = ortfuse.calibrate(
        only=["clip.relu_of_relu"], budget=0, environment=environment, file=tmp_path / "c.json", patterns=rules
    )
    assert found.runtime == f"onnxruntime {onnxruntime.__version__}"
    with pytest.raises(TargetError, match="no rule or family 'nothing'"):
        ortfuse.calibrate(only=["nothing"], environment=environment, patterns=rules)
