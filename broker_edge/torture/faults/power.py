"""The power fails: what was only in the page cache is lost, and parts of it may have reached the disk in any order."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import TracebackType

from broker_edge.torture.life import Bench, Life
from broker_edge.torture.loop_image import LoopImage, missing_prerequisites
from broker_edge.torture.strace import injected

IMAGE_BYTES = 512 << 20


class Power(Life):
    """Everything acknowledged or delivered was on the disk, not only in the page cache.

    Some cuts happen while strace, if installed, delays syncs, and some of their pages have already reached the disk.
    """

    name = "power"
    about = "the power of the disk is cut (ext4 on a loop device; needs root)"
    uses_root = True
    image_bytes = IMAGE_BYTES

    def __init__(self, bench: Bench) -> None:
        self.image = LoopImage(bench.folder / "disk", size_bytes=self.image_bytes)
        self._strace = shutil.which("strace")
        super().__init__(bench)

    @staticmethod
    def lacks() -> list[str]:
        return missing_prerequisites()

    @property
    def data_dir(self) -> Path:
        return self.image.mount_point / "data"

    def __enter__(self) -> Life:
        self.image.__enter__()
        try:
            return super().__enter__()
        except BaseException:
            self.broker.kill()
            self.image.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if not self.report.clean:
            # The image is removed with this block, so copy the findings first.
            shutil.copytree(self.data_dir, self.bench.folder / "data", dirs_exist_ok=True)
        self.image.__exit__(kind, error, trace)

    def crash(self, *, under_load: bool) -> None:
        if under_load and self._strace and self.broker.is_running and self.moments.random() < 0.3:
            with injected(self._strace, pid=self.broker.pid, call="fdatasync", what="delay_enter=500ms"):
                time.sleep(self.moments.uniform(0.0, 0.05))  # A random time of the cut.
                self.image.write_some_back(self.moments)
                self.image.cut_power()
                self.broker.kill()
            return
        if under_load and self.moments.random() < 0.3:
            self.image.write_some_back(self.moments)
        self.image.cut_power()
        self.broker.kill()

    def restore(self) -> None:
        self.image.power_on()
