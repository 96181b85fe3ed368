"""What the devices of the sample measure: yesterday, stored on the device and uploaded at once, and now.

The temperatures were measured (`pipelines.demo.series`). Some sensors misbehave as those of a common kind do: 85 °C is
what they report after power-on, -127 °C what their driver reports when the cable is off, and text is an error of the
firmware.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import ClassVar

import paho.mqtt.client as mqtt

from broker_edge.device.fleet import Sample
from pipelines.demo.series import hourly_temperatures

FORGOTTEN = "pump-0099"
"""The device whose records are purged from the log."""
EVERY = timedelta(minutes=15)
_PER_HOUR = 4
_CONNECTED_S = 30.0

_POWER_ON, _CABLE_OFF = 85.0, -127.0
_SITES = ("Harbour", "Mill", "Quarry", "Station")
_PLACES = ("north", "east", "south", "west")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The devices `pump-0001`…, each with a name and a site among its labels, and one that is described but was never
    there."""

    prefix: ClassVar[str] = "pump"
    count: ClassVar[int] = 15

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}-{number:04}" for number in range(1, self.count + 1))

    @property
    def never_there(self) -> str:
        return f"{self.prefix}-{self.count + 1:04}"

    @property
    def labels(self) -> dict[str, dict[str, str]]:
        """Labels by device id, with those of the device that was never there."""
        found = {}
        for index, id_ in enumerate((*self.ids, self.never_there)):
            site, place = _SITES[index // len(_PLACES)], _PLACES[index % len(_PLACES)]
            found[id_] = {"name": f"{site} {place}", "site": site.lower()}
        return found


@dataclass(frozen=True, slots=True)
class Stored:
    device_id: str
    payload: bytes


def stored_readings(fleet: Fleet, *, silent: str) -> list[Stored]:
    """A reading every 15 minutes of yesterday in UTC from each device, in the order of devices and time. `silent`
    stopped at 15:00; the sixth device has none from 02:00 to 05:30; some sensors report nonsense."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    hole_of = fleet.ids[5]
    return [
        Stored(id_, payload)
        for number, id_ in enumerate((*fleet.ids, FORGOTTEN))
        for slot, payload in enumerate(_day(number, midnight))
        if not (id_ == silent and slot >= 15 * _PER_HOUR)
        and not (id_ == hole_of and 2 * _PER_HOUR <= slot < 5.5 * _PER_HOUR)
    ]


def _day(number: int, midnight: datetime) -> Iterator[bytes]:
    series = hourly_temperatures()
    for slot in range(24 * _PER_HOUR):
        # For each device another day between May and July: the lines of a site are apart.
        hour, part = divmod(slot, _PER_HOUR)
        first = (120 + 20 * (number % len(_PLACES)) + number) * 24 + hour
        celsius = series[first] + (series[first + 1] - series[first]) * part / _PER_HOUR
        at_us = int((midnight + slot * EVERY).timestamp()) * 1_000_000
        yield _payload(at_us, slot + 1, _reported(number, slot, round(celsius, 2)))


def _payload(at_us: int, seq: int, celsius: float | str) -> bytes:
    body = json.dumps({"ts": at_us, "seq": seq, "temperature_c": celsius}, separators=(",", ":")).encode()
    # A device that is switched off while it writes leaves half a line.
    return body[:-9] if celsius == "half" else body


def _reported(number: int, slot: int, celsius: float) -> float | str:
    """What the sensor of the device makes of it."""
    match number:
        case 1 if slot % 32 == 7:
            return _POWER_ON
        case 3 if 40 <= slot < 48:
            return _CABLE_OFF
        case 7 if slot % 24 == 11:
            return "half"
        case 10 if slot % 16 == 5:
            return "ERR 7"
        case _:
            return celsius


def live_samples() -> tuple[Sample, ...]:
    """What the devices replay now, one value after the other, with a nonsense value now and then."""
    values: list[float | str] = list(hourly_temperatures()[4_700:5_150])
    for at in range(4, len(values), 23):
        values[at] = (_POWER_ON, _CABLE_OFF, "ERR 7")[at % 3]
    return tuple({"temperature_c": value} for value in values)


def upload(address: str, readings: Iterable[Stored]) -> None:
    """Publishes the readings, each device with its own connection, and returns when all are acknowledged."""
    host, _, port = address.rpartition(":")
    for device_id, rows in groupby(readings, key=lambda row: row.device_id):
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=device_id, protocol=mqtt.MQTTv5)
        client.max_queued_messages_set(0)
        client.connect(host, int(port))
        client.loop_start()
        sent = [client.publish(f"devices/{device_id}/telemetry", row.payload, qos=1) for row in rows]
        for message in sent:
            message.wait_for_publish(_CONNECTED_S)
        client.disconnect()
        client.loop_stop()
