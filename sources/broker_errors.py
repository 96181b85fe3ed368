"""The errors of a broker in the words of the source: Spark shows the message of the one that ends a query.

The classes are those of `broker_edge.errors`; these functions write the sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_edge.errors import FencedError, RefusedError, UnavailableError


def unreachable(server: str, reason: str) -> UnavailableError:
    """The broker at `server` does not answer, or cannot serve now; trying again may help."""
    error = UnavailableError(
        f"cannot reach the broker at {server}: {reason}; check that it runs and that `servers` names its Flight port"
    )
    error.server, error.reason = server, reason
    return error


def leaderless(nodes: Sequence[str], reasons: Mapping[str, str]) -> UnavailableError:
    """No node of a cluster serves; `reasons` says why, for those that were asked. Trying again may help."""
    server, reason = ", ".join(nodes), "; ".join(f"{node}: {why}" for node, why in sorted(reasons.items()))
    error = UnavailableError(
        f"no node of the cluster {server} serves as its leader ({reason}): look at `headwater cluster status`, two "
        "nodes that are in sync have to run"
    )
    error.server, error.reason = server, reason
    return error


def left_alone(server: str, reason: str) -> UnavailableError:
    """The broker at `server` answers, and is not read while it says the log that it says."""
    error = UnavailableError(f"the broker at {server} is left alone: {reason}")
    error.server, error.reason = server, reason
    return error


def refused(server: str, code: str, detail: Mapping[str, Any]) -> RefusedError:
    """The broker understood the request and refused it; `code` and `detail` are those of the protocol."""
    error = RefusedError(f"the broker at {server} refused: {detail.get('message', code)} ({code})")
    error.server, error.detail = server, {**detail, "error": code}
    return error


def unusable(server: str, what: str) -> RefusedError:
    """The broker answers, but nothing can be done with the answer, however often it is asked."""
    detail = {"message": f"{what}: look at this broker, and take it out of `servers` until it is right"}
    error = RefusedError(f"the broker at {server} answers what cannot be used: {detail['message']}")
    error.server, error.detail = server, {**detail, "error": "internal"}
    return error


def fenced(server: str, detail: Mapping[str, Any]) -> FencedError:
    """Two queries read with one consumer group; the older one ends here."""
    group, reader_epoch = detail.get("group"), detail.get("reader_epoch")
    error = FencedError(
        f"another query reads with consumer group {group} from {server} and took over (reader epoch {reader_epoch}): "
        "stop one of them, or give this one its own consumerGroup",
        group=str(group),
        reader_epoch=int(reader_epoch or 0),
    )
    error.detail = detail
    return error
