"""Keeps Python's garbage collector from pausing the engine."""

from __future__ import annotations

import gc


def set_apart() -> None:
    """
    Let the collector pass over all that is there by now: libraries, model, engine.

    With torch these are 170,000 objects, and to look through them holds up every thread for some 50 ms, at a time that
    nobody chose. What has become garbage since the last call is collected first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def put_back() -> None:
    """Let the collector look at everything again."""
    gc.unfreeze()
