"""DoPut: Arrow messages with modified bytes, and rows that MQTT would refuse."""

from __future__ import annotations

import random
import time

from attacks.arena import APP, Arena, Caller, as_refusals, reason_of, variable

MUTATIONS = 200
METHOD = "/arrow.flight.protocol.FlightService/DoPut"


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of protobuf."""
    return variable(number << 3 | 2) + variable(len(payload)) + payload


def _flight_data(header: bytes, body: bytes = b"", descriptor: bytes = b"") -> bytes:
    start = _field(1, descriptor) if descriptor else b""
    return start + _field(2, header) + _field(1000, body)


def _messages() -> list[tuple[bytes, bytes]]:
    """Header and body of a schema and of a batch with every column that DoPut takes."""
    import pyarrow as pa

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    names = ["topic", "value", "key", "headers", "qos", "idempotency_key"]
    types = [pa.string(), pa.binary(), pa.binary(), headers, pa.int8(), pa.string()]
    rows = [["south/rows", "south/rows"], [b"one", b"two"], [b"k", None], [[{"key": "a", "value": b"b"}], None]]
    columns = [*rows, [1, 0], ["i1", "i2"]]
    arrays = [pa.array(column, type=kind) for column, kind in zip(columns, types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    found = [pa.ipc.read_message(part.serialize()) for part in (batch.schema, batch)]
    return [(one.metadata.to_pybytes(), one.body.to_pybytes() if one.body else b"") for one in found]


def _changed(original: bytes, chance: random.Random) -> bytes:
    changed = bytearray(original)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed))
        changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ (1 << chance.randrange(8))))
    return bytes(changed)


def malformed(arena: Arena) -> None:
    """Modifies some bytes of the schema's or the batch's header; one turn uses one connection."""
    import grpc

    (schema, _), (header, body) = _messages()
    descriptor = _field(2, b'{"op": "produce"}')
    # The descriptor type `command`.
    descriptor = b"\x08\x02" + descriptor
    chance = random.Random(arena.seed * 1000 + arena.number())
    metadata = [("authorization", arena.basic(APP))]
    with grpc.insecure_channel("{}:{}".format(*arena.doors.flight)) as channel:
        put = channel.stream_stream(METHOD)
        for number in range(MUTATIONS):
            first, second = (
                (_changed(schema, chance), header) if number % 4 == 0 else (schema, _changed(header, chance))
            )
            arena.tried()
            try:
                parts = [_flight_data(first, descriptor=descriptor), _flight_data(second, body)]
                for _ in put(iter(parts), metadata=metadata, timeout=5.0):
                    arena.given("rows")
            except grpc.RpcError as error:
                arena.refused(f"grpc {error.code().name.lower()}")
                if "panic" in str(error.details()):
                    arena.breach("panic in the broker")
            time.sleep(0.002)


def topics(arena: Arena) -> None:
    """Topics and sizes that MQTT refuses."""
    import pyarrow as pa

    schema = pa.schema([("topic", pa.string()), ("value", pa.binary())])
    cases = (
        ("control characters in a topic", "south/\x1b[2J\x07", b"x"),
        ("a zero in a topic", "south/\x00", b"x"),
        ("30,000 levels", "south/" + "/" * 30_000, b"x"),
        ("a topic over 64 KiB", "south/" + "t" * 70_000, b"x"),
        ("a payload of 20 MiB", "south/large", bytes(20 << 20)),
        ("a topic of another tenant", "north/x", b"x"),
        ("a command to another tenant", "devices/north-0001/actions", b"forged"),
        ("a wildcard", "south/#", b"x"),
        ("a topic of the broker", "$receipts", b"x"),
    )
    for name, topic, value in cases:
        arena.tried()
        caller = Caller(arena, APP)
        try:
            writer, answers = caller.put(schema)
            with writer:
                writer.write_batch(pa.RecordBatch.from_arrays([pa.array([topic]), pa.array([value])], schema=schema))
                if answers.read() is not None:
                    arena.breach(f"put: {name}")
        except pa.ArrowException as error:
            arena.refused(reason_of(error))
        except Exception as error:
            as_refusals(arena, error)
        finally:
            caller.close()
        time.sleep(0.05)
