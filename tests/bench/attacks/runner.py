"""One process per attack, which repeats the attack until it is killed and reports its counts twice a second."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from herd import cpu_s

from attacks import ATTACKS
from attacks.arena import Arena, Doors, as_refusals

NICE = 10
"""Real attackers have their own machines: the cost of the simulated ones must not count as the broker's delay."""
TELL_S = 0.5
REST_S = 0.2
"""Pause between two turns, so that an attack that is refused at once does not become a busy loop."""
Tally = dict[str, int]


def _tell(arena: Arena, pipe: Connection) -> None:
    while True:
        time.sleep(TELL_S)
        try:
            pipe.send(arena.snapshot())
        except OSError:
            return


def _attack(name: str, arena: Arena, pipe: Connection) -> None:
    os.nice(NICE)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.Thread(target=_tell, args=(arena, pipe), daemon=True).start()
    while True:
        try:
            ATTACKS[name](arena)
            arena.given("whole turns")
        except Exception as error:
            try:
                as_refusals(arena, error)
            except Exception:
                traceback.print_exc()
                arena.given(f"BROKEN ATTACK: {type(error).__name__}: {error}"[:200])
                time.sleep(TELL_S)
        time.sleep(REST_S)


class Horde:
    """All attackers of one broker."""

    def __init__(self, doors: Doors, passwords: dict[str, str], names: list[str], seed: int) -> None:
        self._workers: dict[str, tuple[BaseProcess, Connection]] = {}
        fork = multiprocessing.get_context("fork")
        for name in names:
            ours, theirs = fork.Pipe(duplex=False)
            arena = Arena(doors, passwords, seed)
            process = fork.Process(target=_attack, args=(name, arena, theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers[name] = (process, ours)
        self._last: dict[str, Tally] = {name: {} for name in names}

    def look(self) -> None:
        """Reads the attackers' reports; call it more than once a second."""
        for name, (_, pipe) in self._workers.items():
            while pipe.poll():
                try:
                    self._last[name] = pipe.recv()
                except (EOFError, OSError):
                    break

    def cpu_s(self) -> float:
        """Processor time of all attackers so far."""
        return sum(cpu_s(process.pid) for process, _ in self._workers.values() if process.pid and process.is_alive())

    def end(self) -> dict[str, Tally]:
        self.look()
        for process, _ in self._workers.values():
            process.kill()
        for process, pipe in self._workers.values():
            process.join()
            pipe.close()
        return self._last
