"""Tokenizing on a Ray cluster: every part of the list is a task, which leaves one spooled part and its receipt.

Parts that are there are skipped, tasks whose worker is lost run again, and the bytes are those of a single process.
All machines must see the images and the output under the same paths.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tilework.core.errors import MachineError, TileworkError
from tilework.data.images import Broken
from tilework.data.open_images import Images
from tilework.store import Spool
from tilework.tokenizers.tokenize import Tokenizing, check_receipt, count_images, spool_parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RETRIES = 5  # of a part whose worker is lost
_held: dict[str, tuple[Images, Tokenizing]] = {}  # by a worker, from one part to the next


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
    with _cluster() as ray:
        work = ray.put((images, job))
        task = ray.remote(_spool_part).options(
            num_cpus=1, num_gpus=float(job.device.type == "cuda"), max_retries=RETRIES, retry_exceptions=False
        )
        path = spool.path.absolute()
        waiting = {
            task.remote([work], path, number, max_broken): number
            for number in range(spool.plan.parts)
            if number not in done
        }
        try:
            while waiting:
                (ready,), _ = ray.wait(list(waiting))
                ray.get(ready)
                number = waiting.pop(ready)
                seen += count_images(images, job, number)
                check_receipt(spool, number, broken, len(images), max_broken)
                progress(seen, len(images))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TileworkError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise MachineError(f"Ray lost a worker {RETRIES + 1} times", f"run it again to go on ({first})") from error
        finally:
            for left in waiting:
                ray.cancel(left)


def _spool_part(work: list[Any], path: Path, number: int, max_broken: float) -> None:
    import ray

    (reference,) = work  # in a list, so that Ray does not fetch it for each part anew
    if reference.hex() not in _held:
        _held.clear()
        _held[reference.hex()] = ray.get(reference)
    images, job = _held[reference.hex()]
    spool_parts(images, job, Spool.open(path), [number], [], max_broken)


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
