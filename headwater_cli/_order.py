"""The options of `headwater actions create` and `plan`: defined once, turned into an `Order`.

Typer reads a command's signature; `with_order` adds the parameters of `_order` to a command's own.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.times import SECONDS_MAX, UNITS
from headwater_cli._options import finite, time_of

if TYPE_CHECKING:
    from actions.fleet_desk import Order

_TIME = "TIME"
_DURATION = re.compile(r"([0-9]+)([smhd]?)")
_INT_MAX = 2**31 - 1
"""The columns have 32 bits."""


def seconds_of(text: str) -> int:
    """The seconds of `90`, `90s`, `15m`, `24h` or `7d`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"`{text}` is not a duration: write seconds, or 90s, 15m, 24h, 7d")
    if len(found[1]) > 10 or (seconds := int(found[1]) * UNITS[found[2]]) > SECONDS_MAX:
        raise typer.BadParameter(f"`{text}` is too long: at most {SECONDS_MAX} s")
    return seconds


def with_order(command: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command whose first argument is the order that the options describe."""
    # The class `Order` needs deltalake from an extra. Without it the annotation cannot be resolved, and need not be.
    absent = {"Order": object}
    options = inspect.signature(_order, locals=absent, eval_str=True).parameters
    own = list(inspect.signature(command, locals=absent, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        command(_order(**{name: given.pop(name) for name in options}), **given)

    # Keyword-only, because one without a default may follow.
    parameters = [*options.values(), *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _order(
    name: Annotated[str, typer.Argument(metavar="COMMAND", help="Command to execute, for example echo.")],
    params: Annotated[str, typer.Option(metavar="JSON", help="JSON object with parameters of the command.")] = "{}",
    artifact: Annotated[
        str | None, typer.Option(metavar="NAME:VERSION", help="Install this artifact: makes the action an OTA.")
    ] = None,
    device: Annotated[list[str] | None, typer.Option(metavar="ID", help="Select this device; repeatable.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Select by label; repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Select members of any of these groups; repeatable.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Select by expression, such as: site = roof and not old.")
    ] = None,
    reported: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Select by what devices report: version < 2.0.0 and seen < 7d."),
    ] = None,
    selector: Annotated[
        str | None, typer.Option(metavar="NAME", help="Select as saved: headwater devices select save NAME.")
    ] = None,
    percentage: Annotated[
        float | None, typer.Option(callback=finite, help="Select this percentage, by a hash.")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Devices may join and leave while it runs.")] = False,
    wave: Annotated[
        list[str] | None,
        typer.Option(metavar="PERCENT[,KEY=VALUE…]", help="For example 1,success=90,error=10,min=5,soak=1h,approve."),
    ] = None,
    needs_approval: Annotated[bool, typer.Option("--needs-approval", help="Another person must approve it.")] = False,
    rate: Annotated[int | None, typer.Option(max=_INT_MAX, metavar="N", help="Maximum commands per minute.")] = None,
    max_in_flight: Annotated[
        int | None, typer.Option(max=_INT_MAX, metavar="N", help="Maximum devices at work at once.")
    ] = None,
    abort: Annotated[
        float | None, typer.Option(callback=finite, metavar="PERCENT", help="Stop above this share of errors.")
    ] = None,
    abort_min: Annotated[
        int | None, typer.Option(max=_INT_MAX, metavar="N", help="Devices that must have ended before it stops.")
    ] = None,
    not_before: Annotated[str | None, typer.Option(metavar="TIME", help="Start: ISO 8601, or +2h from now.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="End: ISO 8601, or +2h from now.")] = None,
    window: Annotated[str | None, typer.Option(metavar="WINDOW", help="Mon-Fri 22:00-06:00, in device time.")] = None,
    timeout_queued: Annotated[
        int | None,
        typer.Option(parser=seconds_of, metavar=_TIME, help="Until a device has the command: 90s, 15m, 24h, 7d."),
    ] = None,
    timeout_delivered: Annotated[
        int | None, typer.Option(parser=seconds_of, metavar=_TIME, help="Until it has begun: 90s, 15m, 24h, 7d.")
    ] = None,
    timeout_in_progress: Annotated[
        int | None, typer.Option(parser=seconds_of, metavar=_TIME, help="Until it has ended: 90s, 15m, 24h, 7d.")
    ] = None,
    timeout_step: Annotated[
        int | None, typer.Option(parser=seconds_of, metavar=_TIME, help="Between two reports: 90s, 15m, 24h, 7d.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(max=_INT_MAX, metavar="N", help="Further attempts after an error.")
    ] = None,
    retry_backoff: Annotated[
        int | None,
        typer.Option(parser=seconds_of, metavar=_TIME, help="Pause before the first retry: 90s, 15m, 24h, 7d."),
    ] = None,
    priority: Annotated[int | None, typer.Option(min=-_INT_MAX, max=_INT_MAX, help="Higher first.")] = None,
    depends_on: Annotated[list[str] | None, typer.Option(metavar="ACTION_ID", help="Must succeed first.")] = None,
    mode: Annotated[str | None, typer.Option(help="OTA: forced, soft or download_only.")] = None,
    supersede: Annotated[bool, typer.Option("--supersede", help="OTA: cancel older ones on its devices.")] = False,
    requires: Annotated[
        list[str] | None, typer.Option(metavar="VERSION", help="OTA: device must run one of these.")
    ] = None,
    target_version: Annotated[str | None, typer.Option(metavar="VERSION", help="OTA: version to be reported.")] = None,
) -> Order:
    from actions.fleet_desk import Order

    of_ota = {
        "--mode": mode,
        "--supersede": supersede or None,
        "--requires": requires,
        "--target-version": target_version,
    }
    unused = next((option for option, value in of_ota.items() if value and artifact is None), None)
    if unused is not None:
        raise typer.BadParameter(f"{unused} is for an OTA: give --artifact NAME:VERSION, or omit it")
    artifact_name, _, artifact_version = (artifact or "").partition(":")
    if artifact is not None and not (artifact_name and artifact_version):
        raise typer.BadParameter(f"--artifact {artifact}: write NAME:VERSION")
    return Order(
        name=name,
        params=_params(params),
        type="ota" if artifact else "command",
        artifact_name=artifact_name or None,
        artifact_version=artifact_version or None,
        device_ids=device or None,
        labels=labels_of(label) if label else None,
        groups=group or None,
        label_expression=where,
        reported_expression=reported,
        selector=selector,
        percentage=percentage,
        membership="dynamic" if dynamic else None,
        waves=[_wave(text) for text in wave] if wave else None,
        needs_approval=needs_approval or None,
        rate_per_minute=rate,
        max_in_flight=max_in_flight,
        abort_percentage=abort,
        abort_min_reported=abort_min,
        not_before_us=time_of("--not-before", not_before),
        deadline_us=time_of("--deadline", deadline),
        maintenance_window=window,
        timeout_queued_s=timeout_queued,
        timeout_delivered_s=timeout_delivered,
        timeout_in_progress_s=timeout_in_progress,
        timeout_step_s=timeout_step,
        retries=retries,
        retry_backoff_s=retry_backoff,
        priority=priority,
        depends_on=depends_on or None,
        mode=mode,
        supersede=supersede or None,
        requires_versions=requires or None,
        target_version=target_version,
    )


def labels_of(texts: list[str]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"--label {text}: write KEY=VALUE")
        if key in labels:
            raise typer.BadParameter(f"--label {text}: {key} is there twice, and a device has one value of a label")
        labels[key] = value
    return labels


def _params(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--params is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("--params must be a JSON object")
    return value


_WAVE_KEYS: dict[str, tuple[str, Callable[[str], float]]] = {
    "success": ("success_percentage", float),
    "error": ("error_percentage", float),
    "min": ("min_reported", int),
    "soak": ("soak_s", seconds_of),
}


def _wave(text: str) -> dict[str, Any]:
    share, *rest = text.split(",")
    wave: dict[str, Any] = {}
    try:
        wave["percentage"] = float(share.removesuffix("%"))
        for part in rest:
            key, _, value = part.partition("=")
            if part == "approve":
                wave["approve"] = True
            else:
                name, kind = _WAVE_KEYS[key]
                wave[name] = kind(value)
    except (KeyError, ValueError) as error:
        keys = ", ".join(_WAVE_KEYS)
        raise typer.BadParameter(f"--wave {text}: write PERCENT[,KEY=NUMBER…][,approve] with {keys}") from error
    return wave
