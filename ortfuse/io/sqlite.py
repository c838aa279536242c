"""Open untrusted SQLite files: only tables, since views, triggers and virtual tables may compute without end."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Any


def opened(path: Path, **how: Any) -> sqlite3.Connection:
    """A connection to a database of tables alone: what computes rows (a view, a trigger, a virtual table) may have no end.

    Args:
        path: The file; made if there is none.
        how: As for `sqlite3.connect`.

    Raises:
        OSError: It is a folder, a pipe or a device.
        sqlite3.Error: It is no database, or has more than tables.
    """
    if os.path.lexists(path) and not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is a folder, a device or a pipe, not a regular file")
    connection: sqlite3.Connection = sqlite3.connect(path, **how)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        found = connection.execute(_COMPUTED).fetchone()
        if found is not None:
            raise sqlite3.DatabaseError(f"the database has a {found[0]}, which is not read")
    except BaseException:
        connection.close()
        raise
    return connection


_COMPUTED = (
    "SELECT type FROM sqlite_master WHERE type IN ('view', 'trigger') OR upper(sql) LIKE 'CREATE VIRTUAL%' "
    "OR upper(sql) LIKE '%GENERATED ALWAYS%' LIMIT 1"
)
