"""What the mistake `ack-before-sync` changes: acknowledgements of publishes, and nothing about stored state."""

from __future__ import annotations

from broker_edge.torture.process import BrokerProcess, binary, faults_binary
from broker_edge.torture.waiting import wait_until
from tests.support.raw_mqtt import PUBCOMP, PUBREC, PUBREL, RawMqtt

# In the order of this test: the mark of the first start, the session, its publish, and the release of its packet id.
RELEASE_BATCH = 4


def test_control_ack_before_sync_releases_no_state(tmp_path, need):
    program = faults_binary(binary())
    need([] if program.exists() else [f"{program} is missing: run `make faults-build`"])
    log_file = tmp_path / "headwaterd.log"
    with BrokerProcess(data_dir=tmp_path / "data", log_file=log_file, program=program) as broker:
        broker.faults = f"sabotage:ack-before-sync,hang@batch-written#{RELEASE_BATCH}"
        broker.start()
        with RawMqtt(broker.mqtt, "lasting") as client:
            packet_id = client.publish("t", b"x", qos=2)
            assert client.take(PUBREC).packet_id == packet_id
            client.send(PUBREL, packet_id)
            hangs = f"Hang at batch-written {RELEASE_BATCH}"
            wait_until(lambda: hangs in log_file.read_text(), seconds=30, what="the release to be written")
            # The release is not durable, and its writer does nothing more. Every ping takes a turn of the loop.
            assert all(client.nothing_waits(PUBCOMP) for _ in range(3))
