"""Dask and Ray as runners of chunks: a cluster at ``teachers.address``, or one on this machine for the run.

A cluster belongs to the private zone: its workers read shards and write teachers in ``run_root``. What passes through
its scheduler, logs and state are names of functions, paths, settings and keys. A cluster started here listens on
127.0.0.1 only, lets nobody else in (TLS with certificates made for the run; Ray's token) and has no dashboard.
"""

import contextlib
import itertools
import logging
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from data.errors import StageError, UserError
from teachers.calls import ATTEMPTS, Call, guarded, lost, unguarded
from teachers.settings import TeacherSettings

_CONNECT_SECONDS = 30
# The least that Ray takes; nothing but paths passes through it.
_OBJECT_STORE_BYTES = 80 * 2**20


@contextlib.contextmanager
def dask(settings: TeacherSettings) -> Iterator[Call]:
    """Calls on a Dask cluster; a chunk takes ``teachers.gpus`` of the resource GPU that workers declare."""
    from dask import config
    from distributed import Client
    from distributed.scheduler import KilledWorker

    resources = {"GPU": settings.gpus} if settings.gpus else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet("distributed"))
        # A chunk whose worker died goes to another one; of a scheduler that runs already its own setting counts.
        stack.enter_context(config.set({"distributed.scheduler.allowed-failures": ATTEMPTS - 1}))
        try:
            target = settings.address or stack.enter_context(_local_dask(settings.workers))
            client = stack.enter_context(Client(target, timeout=_CONNECT_SECONDS, set_as_default=False))
        except Exception as error:
            raise _no_cluster(settings, error) from None
        if resources and not _has_gpus(client, settings.gpus):
            raise UserError(
                f"teachers.gpus = {settings.gpus:g}: no worker of {settings.address} declares as much; "
                "start workers with --resources GPU=1"
            )
        number = itertools.count()
        run = secrets.token_hex(4)

        def call(function: Callable[[Any], Any], job: Any) -> Any:
            key = f"{function.__name__}-{run}-{next(number)}"
            future = client.submit(guarded, function, job, key=key, pure=False, resources=resources)
            try:
                result = future.result()
            except KilledWorker:
                raise lost(settings) from None
            except BaseException as error:
                raise _broken(settings, error) from None
            finally:
                future.release()
            return unguarded(result)

        yield call


@contextlib.contextmanager
def ray(settings: TeacherSettings) -> Iterator[Call]:
    """Calls on a Ray cluster; a chunk takes one CPU and ``teachers.gpus`` GPUs, which Ray hands out."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without gpus no chunk takes one.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    if settings.address is None and "RAY_AUTH_MODE" not in os.environ:
        # Read when ray is imported. Without it Ray would write a token into the home folder.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray as library
    from ray import exceptions

    deaths = (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.LocalRayletDiedError,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet("ray"))
        try:
            arguments = {"address": settings.address} if settings.address else _local_ray(settings, stack)
            _require_listener(settings.address)
            stack.callback(library.shutdown)
            library.init(**arguments, log_to_driver=False, logging_level=logging.CRITICAL)
        # Where nobody answers Ray ends the process.
        except (Exception, SystemExit) as error:
            raise _no_cluster(settings, error) from None
        if settings.gpus and library.cluster_resources().get("GPU", 0) < settings.gpus:
            raise UserError(f"teachers.gpus = {settings.gpus:g}: the Ray cluster has fewer GPUs")
        # Ray makes a function known to the cluster at its first call, which two threads must not do at once.
        submitting = threading.Lock()
        remote = library.remote(guarded).options(
            num_cpus=1, num_gpus=settings.gpus, max_retries=ATTEMPTS - 1, retry_exceptions=False
        )

        def call(function: Callable[[Any], Any], job: Any) -> Any:
            try:
                with submitting:
                    reference = remote.remote(function, job)
                result = library.get(reference)
            except deaths:
                raise lost(settings) from None
            except BaseException as error:
                raise _broken(settings, error) from None
            return unguarded(result)

        yield call


@contextlib.contextmanager
def _local_dask(workers: int) -> Iterator[Any]:
    from distributed import LocalCluster

    with (
        tempfile.TemporaryDirectory(prefix="pate-dask-") as scratch,
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            # The operating system, not Dask, decides when memory is short: a limit would depend on the machine's load.
            memory_limit=0,
            host="127.0.0.1",
            security=True,
            dashboard_address=None,
            local_directory=scratch,
            silence_logs=logging.CRITICAL,
        ) as cluster,
    ):
        yield cluster


def _has_gpus(client: Any, gpus: float) -> bool:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    # A cluster that grows with its load may have no worker yet.
    return not workers or any(worker.get("resources", {}).get("GPU", 0) >= gpus for worker in workers)


def _local_ray(settings: TeacherSettings, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Arguments of ray.init for a cluster on this machine, for this run."""
    # Ray's own default is a folder that every user may read; its sockets' paths must be short.
    scratch = tempfile.TemporaryDirectory(prefix="pate-ray-", dir="/tmp", ignore_cleanup_errors=True)
    return {
        "address": "local",
        "num_cpus": settings.workers,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": stack.enter_context(scratch),
    }


def _require_listener(address: str | None) -> None:
    """Raises OSError where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


def _no_cluster(settings: TeacherSettings, error: BaseException) -> UserError | StageError:
    kind = type(error).__name__
    if settings.address is None:
        return StageError(f"teachers.runner = {settings.runner!r}: no cluster could be started here ({kind})")
    what = "Dask scheduler" if settings.runner == "dask" else "Ray cluster"
    return UserError(f"teachers.address = {settings.address!r}: no {what} answers there ({kind})")


def _broken(settings: TeacherSettings, error: BaseException) -> StageError:
    """A fault of the cluster: what it says is not repeated."""
    return StageError(
        f"teachers.runner = {settings.runner!r}: the cluster failed with {type(error).__name__}; its workers need this "
        "version of pate, and a rerun trains only what is missing"
    )


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """The cluster's own lines are not for the console of a run."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
