"""Run the models of a sweep: in processes of this machine, or on a cluster of Ray."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime

from ortfuse.api.models_file import ModelsFile, Settings
from ortfuse.errors import ModelFileError, OptionError, OutputError
from ortfuse.io.atomic_write import demand_no_link, real, writable_target
from ortfuse.io.bounded_text_files import from_json, read_bytes, regular_file
from ortfuse.io.python_subprocess import start
from ortfuse.options import Options
from ortfuse.serialization import Record, derived, entry
from ortfuse.sweeping.files_of_row import model_files, named_files
from ortfuse.sweeping.find_models import find_models
from ortfuse.sweeping.result_row import Row
from ortfuse.version import __version__

LIMIT = 1800.0
"""The seconds that one model may take."""

RETRIES = 2
"""How often a model is tried again on another worker of a cluster, after one has died."""

_PARTING = 2.0
"""The seconds that a process has to end itself before it is ended."""

_ALARM = int(getattr(signal, "SIGALRM", 0))
"""The signal by which the system ends a process that has taken too long; 0 if it has none, so that who started it has to look."""


@dataclass(frozen=True)
class Sweep(Record):
    """The rows of a sweep.

    Attributes:
        rows: One a model, in the order in which they were named.
        resumed: How many of them were known from an earlier run.
    """

    rows: Sequence[Row]
    resumed: int = 0

    def __repr__(self) -> str:
        count = sum(row.as_expected for row in self.rows)
        return f"<{type(self).__name__}: {count} of {len(self.rows)} models as expected>"

    @property
    @derived()
    def ok(self) -> bool:
        """Whether every model is ok, or fails as the file of models says."""
        return all(row.as_expected for row in self.rows)


@dataclass(frozen=True)
class _Job(Record):
    key: str = field(metadata=entry(omit=True))
    model: str
    output: str
    options: Mapping[str, Any]
    measured: bool


def sweep(
    places: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    options: Options | None = None,
    *,
    models: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    output: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    measured: bool = True,
    ray: str | None = None,
    limit: float = LIMIT,
    progress: Callable[[Row, int, int], None] = lambda row, done, total: None,
) -> Sweep:
    """Optimise, verify and measure many models. One that fails, hangs or crashes is a row, and not the end.

    Args:
        places: Folders, lists of paths, or models; see `find_models`. By default those that `models` names.
        options: How to optimise and measure; those that can stand in a file.
        models: A TOML file with options of single models, which go before `options`, and with their known failures; see
            `ortfuse.api.models_file`.
        jobs: How many models are worked on at a time. Measurements are made one at a time on each machine, while nothing else of
            a sweep runs there.
        output: The folder for the results; `None` keeps none. Models in it are results of an earlier sweep, and left out.
        store: The file (JSON lines) that keeps rows, so that a sweep that was stopped goes on; rows are known by the contents of
            the model and its external data, by the options and the files that these name, by the versions of ortfuse and the
            runtime, and by where its result goes, if that is still there. By default `sweep.jsonl` in `output`.
        measured: Whether to measure.
        ray: The address of a cluster of Ray (`auto` for the one that this machine belongs to) instead of processes here. Its
            workers must see the models and `output` under the same paths.
        limit: The seconds that one model may take, without those in which it waits until nobody else measures.
        progress: Called with each row, how many there are, and how many there will be.

    Raises:
        ModelFileError: A place does not exist, or holds no model.
        OptionError: An option cannot stand in a file, or Ray is not installed or not reached.
        OutputError: The folder or the file cannot be written, or results would replace the models.
    """
    table = None if models is None else ModelsFile.load(models)
    kept = None if store is None and output is None else Path(store or Path(output or "") / "sweep.jsonl")
    with tempfile.TemporaryDirectory(prefix="ortfuse") as folder:
        made = targets(places, output, Path(folder), table)
        expected = {str(path): Settings() if table is None else table.settings(path) for path, _ in made}
        named = _jobs(made, expected, options or Options(), output is not None, measured)
        if kept is not None and store is None:
            demand_no_link(kept, "remove it, or name a file with `store`")
        if kept is not None and kept.exists():
            writable_target(kept)
        for job in named if output is not None else ():
            demand_no_link(Path(job.output), "remove it, or give another folder")
        known = _read(kept)
        found = {
            job.model: replace(known[job.key], model=job.model)
            for job in named
            if job.key in known and (output is None or _is_there(known[job.key], job.output))
        }
        waiting = [job for job in named if job.model not in found]
        for done, (job, row) in enumerate(_rows(waiting, jobs, ray, limit), len(found) + 1):
            row = found[job.model] = row if output is not None else replace(row, written="")
            _append(kept, job.key, row)
            progress(row.judged(expected[job.model]), done, len(named))
    rows = [found[job.model].judged(expected[job.model]) for job in named]
    return Sweep(rows, len(named) - len(waiting))


def _jobs(
    made: Iterable[tuple[Path, Path]], settings: Mapping[str, Settings], options: Options, is_kept: bool, measured: bool
) -> list[_Job]:
    """The job of each model, given the file of its result.

    Raises:
        OptionError: An option cannot stand in a file, or contradicts one of the file of models.
    """
    asked = {
        path: _as_data(one.over(options.with_(verify="whole", bench=measured, fastest=False)))
        for path, one in settings.items()
    }
    digests: dict[str, str] = {}

    def same(options: Mapping[str, Any]) -> str:
        said = repr((sorted(options.items()), measured, __version__, onnxruntime.__version__))
        if said not in digests:
            digests[said] = _digest(said, named_files(options))
        return digests[said]

    return [
        _Job(
            _key(path, same(asked[str(path)]), str(target) if is_kept else ""),
            str(path), str(target), asked[str(path)], measured,
        )
        for path, target in made
    ]  # fmt: skip


def targets(
    places: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None,
    otherwise: Path = Path(),
    table: ModelsFile | None = None,
) -> list[tuple[Path, Path]]:
    """The models of a sweep, each with the file of its result.

    Args:
        places: Folders, lists of paths, or models.
        output: The folder for the results.
        otherwise: The folder for results that are not kept.
        table: Names the models if there are no places.

    Raises:
        ModelFileError: A place does not exist, or holds no model, or none is given.
        OutputError: All models are in the folder for the results.
    """
    several = [places] if isinstance(places, str | os.PathLike) else list(places)
    if not several and table is None:
        raise ModelFileError("no model is given; name models, folders of models or a file of models")
    models = _outside(find_models(several) if several or table is None else table.models(), output)
    folder = Path(otherwise if output is None else output)
    return [(path, _target(path, models, folder)) for path in models]


def _outside(models: list[Path], output: str | os.PathLike[str] | None) -> list[Path]:
    """The models that are not in the folder for the results, where those of an earlier sweep are.

    Raises:
        OutputError: All of them are.
    """
    if output is None:
        return models
    folder = real(output)
    found = [path for path in models if not real(path).is_relative_to(folder)]
    if not found:
        raise OutputError(f"{output}: the models are in it, and results would replace them; give another folder")
    return found


def _is_there(row: Row, output: str) -> bool:
    """Whether the result that a row speaks of is still there, and is where it belongs; what is not ok has none."""
    return row.status != "ok" or (row.written == output and Path(output).is_file())


def _rows(waiting: Sequence[_Job], jobs: int, ray: str | None, limit: float) -> Iterator[tuple[_Job, Row]]:
    if ray is not None:
        yield from _on_ray(waiting, ray, limit)
        return
    pool, processes = ThreadPoolExecutor(max_workers=max(1, jobs)), Processes()
    try:
        running = {pool.submit(in_process, job.to_dict(), limit, processes): job for job in waiting}
        for future in as_completed(running):
            yield running[future], future.result()
    finally:  # who interrupts a sweep does not want the rest of it
        pool.shutdown(wait=False, cancel_futures=True)
        processes.end()
        pool.shutdown()


class Processes:
    """Processes that are ended together, also those that are started afterwards."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = False
        self._lock = threading.Lock()

    @contextmanager
    def having(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Have a process among them for as long as it is waited for."""
        with self._lock:
            self._running.add(process)
            if self._over:
                process.terminate()
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(process)

    def end(self) -> None:
        """End all of them, with a moment to remove what they have in the folder for temporary files."""
        with self._lock:
            self._over = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_PARTING)
            except subprocess.TimeoutExpired:
                process.kill()


def in_process(asked: Mapping[str, Any], limit: float, processes: Processes | None = None) -> Row:
    """A model in a process of its own, which ends when it has taken so many seconds, or with the `processes` that it is among."""
    hung = Row(str(asked["model"]), "hung", seconds=limit, reason=f"not done after {limit:.0f} s")
    # What its process leaves behind when it is ended is removed from here; a part of it may live a moment longer.
    with tempfile.TemporaryDirectory(prefix="ortfuse", ignore_cleanup_errors=True) as folder, start(
        ["-m", "ortfuse.sweeping.sweep_one_model"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process, (processes or Processes()).having(process):  # fmt: skip
        request = json.dumps({**asked, "limit": limit, "temporary": folder})
        try:
            said, errors = process.communicate(request.encode(), None if _ALARM else limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return hung
        except BaseException:
            process.kill()
            raise
    if process.returncode == -_ALARM and _ALARM:
        return hung
    try:
        return Row.from_dict(from_json(said))
    except ValueError:
        return Row(str(asked["model"]), "crashed", reason=_how(process.returncode, errors.decode(errors="replace")))


def _how(code: int, said: str) -> str:
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "no message")
    return f"ended with code {code}: {last.strip()[:300]}"


def _on_ray(
    waiting: Sequence[_Job], address: str, limit: float, work: Callable[..., Row] = in_process
) -> Iterator[tuple[_Job, Row]]:
    try:
        import ray
    except ImportError as error:
        raise OptionError("ray", "is not installed; install it with `pip install 'ortfuse[ray]'`") from error
    try:
        ray.init(address=address, ignore_reinit_error=True, logging_level="ERROR", log_to_driver=False)
    except Exception as error:
        raise OptionError("ray", f"{address} is not reached: {str(error).splitlines()[0]}") from None
    try:
        remote = ray.remote(max_retries=RETRIES, num_cpus=1)(work)
        running = {remote.remote(job.to_dict(), limit): job for job in waiting}
        while running:
            (ready, *_), _rest = ray.wait(list(running), num_returns=1)
            job = running.pop(ready)
            try:
                yield job, ray.get(ready)
            except Exception as error:
                yield job, Row(job.model, "crashed", reason=str(error).splitlines()[0][:300])
    finally:
        ray.shutdown()


def _target(path: Path, models: Sequence[Path], folder: Path) -> Path:
    """The result file of a model: under its path from the folder that all models are in."""
    root = Path(os.path.commonpath([real(model).parent for model in models]))
    return folder / real(path).relative_to(root)


def _as_data(options: Options) -> dict[str, Any]:
    """The options that are not at their defaults, as JSON can carry them.

    Raises:
        OptionError: One is an object.
    """
    options.to_toml()
    return json.loads(json.dumps(options.to_dict()))  # type: ignore[no-any-return]


def _key(path: Path, same: str, target: str) -> str:
    """The key of a row: the model, its result file, and what is the `same` for all of the sweep."""
    return _digest(repr((same, target)), [path, *model_files(path)])[:32]


def _digest(said: str, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(said.encode())
    for path in files:
        try:
            with regular_file(path) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError:
            digest.update(str(path).encode())
    return digest.hexdigest()


def _read(path: Path | None) -> dict[str, Row]:
    """The rows of earlier runs; a line that was cut off is left out."""
    found: dict[str, Row] = {}
    if path is None or not path.is_file():
        return found
    try:
        lines = read_bytes(path).decode(errors="replace").splitlines()
    except OSError as error:
        raise OutputError(f"{path}: rows cannot be read from there: {error.strerror or error}") from error
    for line in lines:
        try:
            entry = from_json(line)
            found[str(entry["key"])] = Row.from_dict(entry["row"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _append(path: Path | None, key: str, row: Row) -> None:
    if path is None or row.status in ("crashed", "hung"):  # these are tried again
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # the line before was cut off
            file.write(json.dumps({"key": key, "row": asdict(row)}).encode() + b"\n")
    except OSError as error:
        raise OutputError(f"{path}: rows cannot be kept there: {error.strerror}") from error
