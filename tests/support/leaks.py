"""The search for secrets in what a long run leaves behind: files, tables, and the list of processes while it runs.

A secret is searched as it is and as HTTP sends it (Basic). Files are searched by grep, because there are many of both.
Content that is compressed is not seen: tables are searched as they are read (`in_tables`).
"""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import pyarrow as pa
from deltalake import DeltaTable

from pipelines.spark.pack import ARCHIVE, NAME
from support.programs import program

_LOOK_S = 0.2
_PACKED = (b"PK\x03\x04", b"\x1f\x8b")
"""How a jar and a compressed archive begin."""


class Secrets:
    """`passwords` by user, and other texts. `scratch` is a folder for files of the search, which is not searched."""

    def __init__(self, scratch: Path, passwords: Mapping[str, str], others: Iterable[str] = ()) -> None:
        basic = [base64.b64encode(f"{user}:{password}".encode()).decode() for user, password in passwords.items()]
        self.texts = (*passwords.values(), *basic, *others)
        assert all(len(text) >= 16 and "\n" not in text for text in self.texts), "too short to be searched"
        self._wanted = [text.encode() for text in self.texts]
        self._scratch = scratch
        scratch.mkdir()
        self._patterns = scratch / "patterns"
        self._patterns.write_text("".join(f"{text}\n" for text in self.texts))

    def in_files(self, *folders: Path) -> set[Path]:
        """The files below the folders that contain any secret."""
        names = [os.fsencode(path) for folder in folders for path in _searchable(folder)]
        words = [program("xargs", "findutils"), "--null", "--no-run-if-empty", program("grep", "grep")]
        words += ["--files-with-matches", "--text", "--fixed-strings", "--null", "--no-messages"]
        words.append(f"--file={self._patterns}")
        done = subprocess.run(words, input=b"\0".join(names), capture_output=True, check=False, env={"LC_ALL": "C"})
        # xargs has no code of its own for grep that found nothing (123), or whose file went away.
        assert done.returncode in (0, 123), done.stderr
        return {Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name}

    def in_tables(self, *tables: Path) -> set[Path]:
        """The tables of which a row contains any secret."""
        found = set()
        for number, table in enumerate(tables):
            copy = self._scratch / "rows" / f"{number}.arrow"
            copy.parent.mkdir(exist_ok=True)
            rows = DeltaTable(table).to_pyarrow_table()
            with pa.OSFile(str(copy), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
                writer.write_table(rows)
            if self.in_files(copy.parent):
                found.add(table)
            copy.unlink()
        return found

    def watch(self) -> ProcessWatch:
        """Looks at the command lines of this machine, and of all machines of a test, until the context ends."""
        return ProcessWatch(self._wanted)


def _searchable(folder: Path) -> Iterator[Path]:
    """The files below a folder, without jars and archives, and without what the archive of headwater was unpacked to:
    each executor has copies of these."""
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in (NAME, ARCHIVE)]
        for name in names:
            path = Path(at, name)
            try:
                with path.open("rb") as file:
                    is_packed = file.read(4).startswith(_PACKED)
            except OSError:
                # It went away, or is a socket.
                continue
            if not is_packed:
                yield path


class ProcessWatch:
    """`seen`: the command lines with a secret. `looks` and `lines` say how much was looked at."""

    def __init__(self, wanted: list[bytes]) -> None:
        self._wanted = wanted
        self._known: set[bytes] = set()
        self.seen: set[str] = set()
        self.looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-watch", daemon=True)

    @property
    def lines(self) -> int:
        return len(self._known)

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Once; a command line that was seen before is not searched again."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                # The process has ended.
                continue
            if line not in self._known:
                self._known.add(line)
                if any(secret in line for secret in self._wanted):
                    self.seen.add(line.replace(b"\0", b" ").decode(errors="replace"))
        self.looks += 1
