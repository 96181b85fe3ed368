"""The measured series that the demo's devices replay. Not a simulated sensor: every value was measured."""

from __future__ import annotations

from functools import cache


@cache
def hourly_temperatures() -> tuple[float, ...]:
    """Hourly air temperatures of 2010 in Seattle, measured by NOAA, in degrees Celsius, in order of time (8,759
    values).

    Source: `vega_datasets`, data set `seattle_temps` (degrees Fahrenheit there).
    """
    from vega_datasets import data

    frame = data.seattle_temps().sort_values("date")
    return tuple(round((float(f) - 32.0) / 1.8, 2) for f in frame["temp"])


def samples() -> tuple[dict[str, float], ...]:
    """The series as a fleet replays it: the fields of each payload besides `ts` and `seq`."""
    return tuple({"temperature_c": celsius} for celsius in hourly_temperatures())
