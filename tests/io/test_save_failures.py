import contextlib
import errno
import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir
import pytest
from model_files import large, run, weight_of, write_external, write_linear

import ortfuse.io.write
from ortfuse.errors import OutputError
from ortfuse.io import atomic_write
from ortfuse.io.load_and_save import load, save


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt, which pytest would take for itself."""


@pytest.fixture(params=["one file", "with a data file", "with a linked and another data file"])
def old_and_new(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, functools.partial[None]]:
    """A model file, and what saves another model over it."""
    write = write_linear if request.param == "one file" else write_external
    (tmp_path / "source").mkdir()
    model = load(write(tmp_path / "source" / "m.onnx"))
    target = tmp_path / "target"
    target.mkdir()
    save(model, target / "m.onnx")
    changed = large() * 2
    model.graph.initializers["w"].const_value = onnx_ir.tensor(changed, name="w")
    if request.param != "one file":
        other = load(tmp_path / "source" / "m.onnx").graph.initializers["w"].const_value
        model.graph.register_initializer(onnx_ir.Value(name="keeps_it_external", const_value=other))
    linked = request.param == "with a linked and another data file"
    return target / "m.onnx", functools.partial(save, model, target / "m.onnx", link=linked)


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), Interrupted()])
@pytest.mark.parametrize("step", ["open", "write", "fsync", "link", *(f"replace {index}" for index in range(4))])
def test_a_failure_at_any_step_leaves_the_old_files_as_they_were(
    step: str,
    failure: BaseException,
    old_and_new: tuple[Path, functools.partial[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, save_new = old_and_new
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    replaced = []

    def fail(*args: object, **options: object) -> None:
        raise failure

    replace = Path.replace

    def failing_replace(self: Path, target: Path) -> Path:
        replaced.append(target)
        if f"replace {len(replaced) - 1}" == step:
            raise failure
        return replace(self, target)

    with monkeypatch.context() as patch:
        if step == "open":
            patch.setattr(atomic_write.os, "open", fail)
        elif step == "write":
            patch.setattr(ortfuse.io.write, "_write_model", fail)
        elif step == "fsync":
            patch.setattr(atomic_write.os, "fsync", fail)
        elif step == "link":
            patch.setattr(atomic_write.os, "link", fail)
        else:
            patch.setattr(Path, "replace", failing_replace)
        steps = {1: 1, 2: 3}[len(before)] + (save_new.keywords["link"])
        if (len(before) == 1 and step == "link") or (step.startswith("replace") and int(step[-1]) >= steps):
            pytest.skip("there is no such step")
        with pytest.raises(OutputError if isinstance(failure, OSError) else Interrupted):
            save_new()
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("link", [False, True])
def test_a_failure_leaves_no_new_data_file(
    step: int, link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(write_external(tmp_path / "m.onnx"))
    before = sorted(tmp_path.iterdir())
    replace, calls = Path.replace, iter(range(9))

    def failing_replace(self: Path, target: Path) -> Path:
        if next(calls) == step:
            raise OSError(errno.EIO, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing_replace)
    with pytest.raises(OutputError, match="Input/output error"):
        save(model, tmp_path / "o.onnx", link=link)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("stop", range(5))
def test_a_crash_between_any_two_steps_leaves_a_model_with_its_own_data(
    stop: int, old_and_new: tuple[Path, functools.partial[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, save_new = old_and_new
    replace, calls = Path.replace, iter(range(9))

    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    def crashing_replace(self: Path, target: Path) -> Path:
        if next(calls) == stop:
            raise Crash
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crashing_replace)
        patch.setattr(atomic_write.Staging, "_undo", crash)
        patch.setattr(atomic_write.Staging, "__exit__", lambda *_: None)
        with contextlib.suppress(Crash):
            save_new()
    weight = weight_of(load(path))
    assert np.array_equal(weight, large()) or np.array_equal(weight, 2 * large())


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    path = write_linear(tmp_path / "m.onnx")
    script = f"""
import resource
from ortfuse.errors import OutputError
from ortfuse.io.load_and_save import load, save
model = load({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    save(model, {str(tmp_path / "o.onnx")!r})
except OutputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "o.onnx: cannot be written: File too large; nothing was changed" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_really_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(
            OutputError, match=r"o\.onnx: cannot be written: No space left on device; nothing was changed"
        ):
            save(load(write_linear(tmp_path / "m.onnx")), disk / "o.onnx")
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("missing/o.onnx", r"the folder .*missing does not exist; create it first"),
        ("file/o.onnx", "Not a directory|is not a folder"),
        ("folder", "is a folder; give the name of a file in it"),
        ("pipe", "is a device or a pipe"),
        ("nul\0l", "null byte"),
        ("x" * 300, "File name too long"),
        ("circle", "Too many levels of symbolic links"),
    ],
)
def test_an_output_that_cannot_be_is_named(place: str, message: str, tmp_path: Path) -> None:
    model = load(write_linear(tmp_path / "m.onnx"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OutputError, match=message):
        save(model, tmp_path / place)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("read_only", ["file", "folder"])
def test_what_is_read_only_is_not_written(read_only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(write_linear(tmp_path / "m.onnx"))
    target = tmp_path / "o.onnx"
    target.touch()
    refused = target if read_only == "file" else tmp_path
    monkeypatch.setattr(
        atomic_write.os, "access", lambda path, mode: Path(path) != refused
    )  # root may write everything
    with pytest.raises(OutputError, match=f"the {read_only}.* is read-only"):
        save(model, target)
    assert target.stat().st_size == 0


def test_a_new_file_gets_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    model = load(write_linear(tmp_path / "m.onnx"))
    (tmp_path / "old.onnx").touch()
    (tmp_path / "old.onnx").chmod(0o640)
    (tmp_path / "usual").touch()
    for name in ("old.onnx", "new.onnx"):
        save(model, tmp_path / name)
    assert (tmp_path / "old.onnx").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "new.onnx").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("link", [False, True])
def test_the_data_of_the_model_that_was_loaded_are_not_replaced_by_a_result_of_another_name(
    link: bool, tmp_path: Path
) -> None:
    write_external(tmp_path / "before.onnx", "after.onnx.data")
    expected = run(tmp_path / "before.onnx")
    for _ in range(2):
        save(load(tmp_path / "before.onnx"), tmp_path / "after.onnx", link=link)
        for name in ("before.onnx", "after.onnx"):
            np.testing.assert_array_equal(run(tmp_path / name)[0], expected[0])
    assert (tmp_path / "after.onnx.data.1").exists()


@pytest.mark.parametrize("there", [True, False], ids=["a file", "nothing yet"])
def test_through_a_symbolic_link_the_file_that_it_leads_to_is_written(there: bool, tmp_path: Path) -> None:
    model = load(write_linear(tmp_path / "m.onnx"))
    (tmp_path / "elsewhere").mkdir()
    place, link = tmp_path / "elsewhere" / "real.onnx", tmp_path / "o.onnx"
    if there:
        place.write_bytes(b"before")
    link.symlink_to("elsewhere/real.onnx")
    save(model, link)
    assert link.is_symlink()
    assert not place.is_symlink()
    assert [node.op_type for node in load(link).graph] == [node.op_type for node in model.graph]
    assert [path.name for path in place.parent.iterdir()] == ["real.onnx"]


def test_small_files_too_are_written_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    atomic_write.write_text(tmp_path / "link", "one")
    atomic_write.write_text(tmp_path / "link", "two")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "two"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_folder_that_a_symbolic_link_leads_to_and_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing/o.onnx")
    with pytest.raises(OutputError, match=r"the folder .*missing does not exist"):
        save(load(write_linear(tmp_path / "m.onnx")), tmp_path / "link")
