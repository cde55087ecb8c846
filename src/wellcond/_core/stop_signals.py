"""SIGINT, SIGTERM and SIGHUP end a command in order: one line on what is kept, and exit code 128 + the signal's number.

The signal raises `KeyboardInterrupt` in the main thread, once, and `finally` clears up. Python runs a signal's handler
between two of its own instructions, and so not while a factorisation or a collective is under way; a thread, which
hears of the signal at once, ends the process after a few seconds, or at a second signal. That is safe at any moment:
files are written whole or not at all, as for a process that is killed.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker

from wellcond._core.safe_text import visible

SIGNAL_NAMES = {"SIGINT": "Ctrl-C (SIGINT)", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP (the terminal is gone)"}
SIGNALS = tuple(getattr(signal, name) for name in SIGNAL_NAMES if hasattr(signal, name))  # Windows has no SIGHUP
SECONDS_TO_CLEAR_UP = 3.5  # exit is within five
NOTHING_IS_LOST = "no file is left half-written; give the same command again"


class _State:
    """The stop of this process."""

    asked: int | None = None  # the first signal that came
    raised = said = False
    words: Callable[[], str] = staticmethod(lambda: NOTHING_IS_LOST)
    saying = threading.Lock()


def take_over_signals() -> None:
    """Take the signals over for the rest of this process; one that it was started to ignore, as by nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():
        return  # Python allows handlers in the main thread only
    heard, tell = socket.socketpair()
    tell.setblocking(False)
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    signal.set_wakeup_fd(tell.detach(), warn_on_full_buffer=False)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_leave_to_the_parent)
    atexit.register(_end_at_once)  # after what is registered from here on
    threading.Thread(target=_end_in_time, args=(heard,), daemon=True).start()


def start_tracker() -> None:
    """Start the process that tracks multiprocessing's semaphores now, deaf to the end of the terminal.

    It ignores SIGINT and SIGTERM by itself; ended by SIGHUP before the others, it has them print pages of warnings.
    """
    if hasattr(signal, "pthread_sigmask"):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            resource_tracker.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def asked() -> bool:
    """Return whether this process was told to stop: what fails now fails because of that."""
    return _State.asked is not None


def end_readers() -> None:
    """Kill the processes that read data for this one, before they or torch complain about each other's end."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


@contextmanager
def kept(words: Callable[[], str]) -> Iterator[None]:
    """Within the context, print these words at a stop: what is kept and how to go on.

    >>> with kept(lambda: "2 of 3 are done"):
    ...     _State.words()
    '2 of 3 are done'
    """
    before, _State.words = _State.words, words
    try:
        yield
    finally:
        if not asked():  # the line is printed further out
            _State.words = before


@contextmanager
def exit_when_stopped() -> Iterator[None]:
    """Turn a stop, and whatever failed because of it, into one line on stderr and an exit code."""
    try:
        yield
    except BaseException as error:
        if not asked() and not isinstance(error, KeyboardInterrupt):
            raise
        number = _State.asked or signal.SIGINT
        _say(number)
        raise SystemExit(128 + number) from None


def _interrupt(number: int, frame: object) -> None:
    _State.asked = _State.asked or number
    if not _State.raised:  # what clears up is not interrupted
        _State.raised = True
        end_readers()
        raise KeyboardInterrupt


def _end_in_time(heard: socket.socket) -> None:
    """Wait, in a thread, for a signal, then for the main thread's end or a second signal; then end all at once."""
    parent = os.getppid()
    # A launcher that is killed cannot pass that on: torchrun's processes see to it themselves.
    while not select.select([heard], [], [], 1.0 if "RANK" in os.environ else None)[0]:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
    number = _next(heard)
    _State.asked = _State.asked or number
    heard.settimeout(SECONDS_TO_CLEAR_UP)
    with suppress(TimeoutError):
        _next(heard)
    line = threading.Thread(target=_say, args=(number,), daemon=True)  # stderr may be stuck, or the folder's disk
    line.start()
    line.join(1)
    _end_at_once()


def _end_at_once() -> None:
    """End the process without taking Python and torch apart, which can take seconds."""
    if _State.asked is not None:
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(128 + _State.asked)


def _next(heard: socket.socket) -> int:
    """The next of our signals; others have handlers of their own."""
    while True:
        number = heard.recv(1)[0]
        if number in SIGNALS:
            return number


def _say(number: int) -> None:
    """Print the line once, in the first of several processes."""
    with _State.saying:
        if not _State.said and os.environ.get("RANK", "0") == "0":
            _State.said = True
            line = f"stopped by {SIGNAL_NAMES[signal.Signals(number).name]}: {_State.words()}"
            with suppress(OSError):  # a terminal that is gone
                print(visible(line), file=sys.stderr, flush=True)  # noqa: T201


def _leave_to_the_parent() -> None:
    """Ignore the terminal's signals in a process made by fork, which reads data: its parent ends it."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
