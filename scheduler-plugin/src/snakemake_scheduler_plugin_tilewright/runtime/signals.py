"""SIGTERM for a scheduler that may hold Snakemake's lock."""

import _thread
import signal
import threading


def handle_sigterm_in_a_thread() -> None:
    """Let the present handler of SIGTERM run in a thread of its own.

    Snakemake's takes the scheduler's lock, which the main thread holds while it selects jobs. A
    signal in these seconds would wait for what it interrupted, and the run would never end.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        # A threading.Thread waits for its start, and takes locks that may be held here too.
        signal.signal(
            signal.SIGTERM, lambda number, _: _thread.start_new_thread(handler, (number, None))
        )
