"""Where the ledger lies: its tables, and a connection on which a commit is durable and writers take turns.

Two databases are supported, because their locking is known and tested: SQLite (a file for one machine) and
PostgreSQL (a server for a team). Any other dialect is refused: several accept ``FOR UPDATE`` and ignore it,
and two processes could then overspend together. A SQLite file on a network disk has no trustworthy locks
either; a team that shares a budget over several machines wants PostgreSQL.

Everything in these tables is independent of the private records: names, settings, events at their caps and
what they cost. No vote, size or count of records, no digest of a private file; ``binding`` is a keyed digest of
settings, ``outcome`` one of what is released, under a key that never leaves the private zone.
"""

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    Double,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from data.errors import UserError

VERSION = 2
WAIT_SECONDS = 60  # how long a writer waits for the others before it gives up

METADATA = MetaData()

LEDGER = Table("pate_ledger", METADATA, Column("version", Integer, primary_key=True, autoincrement=False))

DATASETS = Table(
    "pate_datasets",
    METADATA,
    Column("name", String(255), primary_key=True),
    Column("unit", Text, nullable=False),
    Column("adjacency", Text, nullable=False),
    Column("delta", Double, nullable=False),
    Column("tested_delta", Double, nullable=False),
    Column("order", Double, nullable=False),
    Column("limit_epsilon", Double, nullable=False),
    Column("opened_at", Text, nullable=False),
    Column("opened_by", Text, nullable=False),
)

LIMITS = Table(
    "pate_limits",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("dataset", String(255), ForeignKey("pate_datasets.name"), nullable=False, index=True),
    Column("epsilon", Double, nullable=False),
    Column("who", Text, nullable=False),
    Column("when", Text, nullable=False),
    Column("why", Text, nullable=False),
    sqlite_autoincrement=True,
)

EVENTS = Table(
    "pate_events",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("dataset", String(255), ForeignKey("pate_datasets.name"), nullable=False, index=True),
    Column("run", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("event", Text, nullable=False),
    Column("rdp", Double, nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    Column("admitted_under", Double, nullable=False),
    Column("binding", Text),
    Column("outcome", Text),
    Column("who", Text, nullable=False),
    Column("when", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    CheckConstraint("state IN ('reserved', 'drawing', 'committed', 'cancelled')", name="pate_events_state"),
    CheckConstraint("rdp >= 0", name="pate_events_rdp"),
    sqlite_autoincrement=True,
)


def connect(url: str) -> Engine:
    """The engine of the ledger at ``url``; its tables are created at first use.

    Errors: :class:`UserError` when the URL, its dialect, the file or the server will not do, when a SQLite
    file is damaged, or is anything but a ledger (an emptied file must not pass for a fresh budget).
    """
    parsed = _parse(url)
    try:
        engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
    except OSError as error:
        raise UserError(f"{_field(parsed)}: cannot be created or opened ({error.strerror})") from None
    with transaction(engine, read_only=True) as connection:
        version = _check(connection, parsed)
    if version != VERSION:
        with transaction(engine) as connection:
            _upgrade(connection)
    return engine


@contextmanager
def transaction(engine: Engine, *, read_only: bool = False) -> Iterator[Connection]:
    """One transaction: everything in it is written, durably, or nothing is.

    A writer holds SQLite's one write lock from its first statement (BEGIN IMMEDIATE): what it reads cannot
    be changed before it writes. On PostgreSQL the caller locks the dataset's row and every statement after
    that sees what the others committed (READ COMMITTED). Errors of the database become one line without its
    password.
    """
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(read_only=read_only)
            with connection.begin():
                yield connection
    except DBAPIError as error:
        raise UserError(f"{_field(engine.url)}: {_reason(error.orig)}") from None
    except sqlite3.Error as error:
        raise UserError(f"{_field(engine.url)}: {_reason(error)}") from None


def exclude_openers(connection: Connection) -> None:
    """Let one opener in at a time: there is no row to lock yet. (SQLite's writers take turns anyway.)"""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(5041544500)")


def _field(url: URL) -> str:
    return f"ledger.url = {url.render_as_string(hide_password=True)!r}"


def _reason(error: BaseException | None) -> str:
    """The database's own words, kept to one line."""
    text = " ".join(str(error).split())
    if "database is locked" in text:
        return f"locked by another process for over {WAIT_SECONDS} s; try again"
    return f"the ledger cannot be read or written ({text})"


def _parse(url: str) -> URL:
    allowed = "must be sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    try:
        parsed = make_url(url)
        # Not url itself in the text below: it may hold a password.
        shown = _field(parsed)
        backend, driver = parsed.get_backend_name(), parsed.drivername.partition("+")[2]
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise UserError(f"ledger.url: not a database URL; {allowed}") from None
    if backend == "sqlite" and driver in ("", "pysqlite"):
        if not parsed.database or parsed.database == ":memory:":
            raise UserError(f"{shown}: a ledger in memory would forget what was spent; {allowed}")
        if parsed.query:
            raise UserError(f"{shown}: takes no parameters (some switch locks or the file off); {allowed}")
        return parsed.set(database=str(Path(parsed.database).expanduser().resolve()))
    if backend == "postgresql" and driver in ("", "psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    raise UserError(f"{shown}: {allowed}")


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database))
    if not path.exists():
        _create_file(path, url)
    if not path.is_file():
        raise UserError(f"{_field(url)}: not a file")
    with contextlib.suppress(PermissionError):  # another owner's file: readable to us by their choice
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    return _sqlite_engine(url)


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": WAIT_SECONDS})

    @event.listens_for(engine, "connect")
    def _configure(dbapi: Any, _record: Any) -> None:
        dbapi.isolation_level = None  # the driver must not begin transactions of its own
        # EXTRA is FULL and also syncs the folder when the rollback journal goes: with FULL alone a power cut
        # just after a commit may bring the journal back, and undo a charge whose noise has been drawn.
        dbapi.execute("PRAGMA synchronous = EXTRA")
        dbapi.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get("read_only", False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def _create_file(path: Path, url: URL) -> None:
    """A complete ledger appears at ``path`` at once, mode 0600: a crash leaves no empty file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with transaction(_sqlite_engine(url.set(database=str(draft)))) as connection:
            _create_tables(connection)
        # Unlike a rename, a link never replaces the ledger that another process made meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _postgresql(url: URL) -> Engine:
    try:
        engine = create_engine(
            url, poolclass=NullPool, isolation_level="READ COMMITTED", connect_args={"connect_timeout": 10}
        )
    except ModuleNotFoundError:
        raise UserError(f"{_field(url)}: needs the PostgreSQL driver; pip install 'pate[postgres]'") from None

    @event.listens_for(engine, "begin")
    def _durable(connection: Connection) -> None:
        # A server tuned for speed may acknowledge commits that a power cut undoes; not these.
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")

    with transaction(engine) as connection:
        exclude_openers(connection)
        if not inspect(connection).has_table(LEDGER.name):
            _create_tables(connection)
    return engine


def _create_tables(connection: Connection) -> None:
    METADATA.create_all(connection, checkfirst=False)
    connection.execute(insert(LEDGER).values(version=VERSION))


def _check(connection: Connection, url: URL) -> int:
    """The ledger's version, one that this program can read or upgrade."""
    if connection.dialect.name == "sqlite":
        verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if verdict != "ok":
            raise UserError(f"{_field(url)}: the ledger is damaged; restore it from a backup")
    if not inspect(connection).has_table(LEDGER.name):
        raise UserError(f"{_field(url)}: exists but is not a ledger; name another file or restore a backup")
    version = connection.execute(select(LEDGER.c.version)).scalar()
    if version not in (1, VERSION):
        raise UserError(f"{_field(url)}: ledger version {version}: this program reads version {VERSION}")
    return int(version)


def _upgrade(connection: Connection) -> None:
    """Version 1 to 2, in place: a refused ledger would be replaced by a fresh one, and its budgets forgotten.

    Accounts opened before set nothing of their delta aside for tests, and never will.
    """
    exclude_openers(connection)
    if connection.execute(select(LEDGER.c.version)).scalar() == 1:
        connection.exec_driver_sql(
            f"ALTER TABLE {DATASETS.name} ADD COLUMN tested_delta DOUBLE PRECISION DEFAULT 0 NOT NULL"
        )
        connection.execute(update(LEDGER).values(version=VERSION))
