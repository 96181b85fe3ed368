"""Writes the bill of materials of what is shipped, as CycloneDX JSON: `python -m supply.sbom [--to FILE]`.

It runs with the library of supply/tools.lock on the path (`make sbom`). It checks the document with the schema of
CycloneDX and writes it only if it is valid. The same lock files give the same bytes: the serial number is derived from
the parts, and there is no time in it unless SOURCE_DATE_EPOCH is set. Exit codes: 0 written, 1 the lists cannot be
read.

Why one script and not one tool for each language: the tool for crates (cargo-cyclonedx) must be compiled for minutes,
no tool reads a list of jars, and the documents would have to be merged. The library is CycloneDX's own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from supply.shipped import ROOT, Part, ShippedError, parts

_SPACE = uuid.UUID("5a3d6f2e-8f0b-5f57-9d43-0c6f1d5f2b11")
"""Of our serial numbers only, so that they are those of no other document."""


def document(found: Sequence[Part], *, version: str, at: datetime | None = None) -> str:
    """The bill of materials as JSON text that fits the schema; raises ShippedError if it does not."""
    root = Component(
        name="headwater",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"pkg:pypi/headwater@{version}",
        purl=PackageURL("pypi", name="headwater", version=version),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    components = {part.purl: _component(part) for part in found}
    bom = Bom(components=components.values(), serial_number=uuid.uuid5(_SPACE, repr((version, *found))))
    bom.metadata.component = root
    # The library fills in the present time, which would differ between two runs.
    bom.metadata.timestamp = at
    needed = {need for part in found for need in part.needs}
    top = [Dependency(components[purl].bom_ref) for purl in components if purl not in needed]
    bom.dependencies.add(Dependency(root.bom_ref, dependencies=top))
    for part in found:
        needs = [Dependency(components[need].bom_ref) for need in part.needs if need in components]
        bom.dependencies.add(Dependency(components[part.purl].bom_ref, dependencies=needs))
    text: str = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    if (error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ShippedError(f"the document does not fit the schema of CycloneDX 1.6: {error}")
    return text


def _component(part: Part) -> Component:
    purl = PackageURL.from_string(part.purl)
    return Component(
        name=purl.name,
        group=purl.namespace,
        version=part.version,
        type=ComponentType.LIBRARY,
        bom_ref=part.purl,
        purl=purl,
        scope=ComponentScope(part.scope),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in part.sha256],
        licenses=[] if part.licence is None else [_licence(part.licence)],
        properties=[Property(name="headwater:belongs_to", value=part.belongs_to)],
    )


def _licence(text: str) -> License:
    """An SPDX id or expression where the text is one, otherwise a name."""
    return LicenseFactory().make_from_string(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m supply.sbom", description="Write the bill of materials.")
    parser.add_argument("--to", type=Path, help="file to write (default dist/headwater-VERSION.cdx.json)")
    options = parser.parse_args(arguments)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    to = options.to or ROOT / "dist" / f"headwater-{version}.cdx.json"
    try:
        at = _epoch(os.environ.get("SOURCE_DATE_EPOCH"))
        text = document(found := parts(), version=version, at=at)
    except ShippedError as error:
        sys.stderr.write(f"sbom: {error}\n")
        return 1
    to.parent.mkdir(parents=True, exist_ok=True)
    whole = to.with_name(f".{to.name}.part")
    whole.write_text(text, "utf-8")
    os.replace(whole, to)
    sys.stderr.write(f"sbom: {len(found)} parts in {to}\n")
    return 0


def _epoch(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError):
        raise ShippedError(f"SOURCE_DATE_EPOCH is `{text}`: write seconds since 1970") from None


if __name__ == "__main__":
    sys.exit(main())
