"""Tokenizing on a Ray cluster: every part of the list is a task, which leaves one spooled part and its receipt.

Parts that are there are skipped, tasks whose worker is lost run again, and the bytes are those of a single process.
All machines must see the images and the output under the same paths.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tilework.core.errors import MachineError, TileworkError
from tilework.data.image_files import Broken
from tilework.data.image_folder import ImageFolder, Images
from tilework.data.pairs import PairFolder
from tilework.store import Spool
from tilework.store.seal import Sealing
from tilework.tokenizers.image_codes import Tokenizing, count_images
from tilework.tokenizers.receipts import check_receipt
from tilework.tokenizers.tokenize import spool_parts

if TYPE_CHECKING:
    from pathlib import Path

RETRIES = 5  # of a part whose worker is lost
LOST = {"max_retries": RETRIES, "retry_exceptions": False}
WINDOW = 4  # tasks that are submitted for each processor of the cluster
_held: dict[str, tuple[Any, Tokenizing, int]] = {}  # by a worker, from one part to the next


def spool_on_ray(
    images: Images,
    job: Tokenizing,
    spool: Spool,
    max_broken: float = 0.05,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Spool every part that is not there yet, in the workers of a cluster: that of RAY_ADDRESS, or one made here."""
    done = set(spool.done())
    broken: list[Broken] = []
    for number in done:
        check_receipt(spool, number, broken, len(images), max_broken)
    seen = sum(count_images(images, job, number) for number in done)
    progress(seen, len(images))
    shares = [number for number in range(spool.plan.parts) if number not in done]
    with _cluster() as ray:
        cut = _slice(images, job, 0) is not None  # then each part travels with its own images, not all with each worker
        work = ray.put((None if cut else images, job, len(images)))
        task = ray.remote(_spool_part).options(num_cpus=1, num_gpus=float(job.device.type == "cuda"), **LOST)
        path = spool.path.absolute()

        def start(number: int) -> Any:
            return task.remote([work], _slice(images, job, number), path, number, max_broken)

        for number in _each(ray, shares, start):
            seen += count_images(images, job, number)
            check_receipt(spool, number, broken, len(images), max_broken)
            progress(seen, len(images))


def code_on_ray(spool: Spool, numbers: Sequence[int], progress: Callable[[int, int], None]) -> None:
    """Code ranges of a spool that is being sealed, in the workers of a cluster."""
    with _cluster() as ray:
        task, path = ray.remote(_code_range).options(num_cpus=1, **LOST), spool.path.absolute()
        for done, _ in enumerate(_each(ray, numbers, lambda number: task.remote(path, number)), 1):
            progress(done, len(numbers))


def _each(ray: Any, numbers: Sequence[int], start: Callable[[int], Any]) -> Iterator[int]:
    """Run a task for each number, a window of them at a time; gives those that have ended, as they end.

    Waiting for all tasks at once would take time in the square of their number.
    """
    window = int(WINDOW * max(1.0, ray.cluster_resources().get("CPU", 1)))
    left, waiting = iter(numbers), dict[Any, int]()
    try:
        while True:
            for number in itertools.islice(left, window - len(waiting)):
                waiting[start(number)] = number
            if not waiting:
                return
            ready, _ = ray.wait(list(waiting))
            for one in ready:
                ray.get(one)
                yield waiting.pop(one)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TileworkError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MachineError(f"Ray lost a worker {RETRIES + 1} times", f"run it again to go on ({first})") from error
    finally:
        for one in waiting:
            ray.cancel(one)


def _code_range(path: Path, number: int) -> None:
    Sealing.open(Spool.open(path)).code([number])


def _slice(images: Images, job: Tokenizing, number: int) -> tuple[Images, int] | None:
    """The images of a part and how many lie before it; None where the list cannot be cut (tar and Parquet files)."""
    if not isinstance(images, ImageFolder | PairFolder):
        return None
    first = number * job.part
    return images.take(np.arange(first, first + count_images(images, job, number))), first


def _spool_part(work: list[Any], own: tuple[Images, int] | None, path: Path, number: int, share: float) -> None:
    import ray

    (reference,) = work  # in a list, so that Ray does not fetch it for each part anew
    if reference.hex() not in _held:
        _held.clear()
        _held[reference.hex()] = ray.get(reference)
    whole, job, total = _held[reference.hex()]
    images, first = (whole, 0) if own is None else own
    spool_parts(images, job, Spool.open(path), [number if own is None else 0], [], share, first=first, total=total)


@contextmanager
def _cluster() -> Iterator[Any]:
    """Ray, connected; what was started here is stopped."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MachineError("the engine 'ray' needs Ray", "pip install 'tilework[ray]'") from error
    mine = not ray.is_initialized()
    if mine:
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises plain ones when its processes come too late
            raise MachineError("Ray cannot be reached or started", " ".join(str(error).split())[:300]) from error
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()
