"""The brokers of the demo: one, or several of which the last one can be restarted at the same addresses, or a cluster
whose leader can be killed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from broker_edge import Broker
from broker_edge.access import BrokerAccess
from broker_edge.errors import SettingsError
from broker_edge.mqtt_address import parse_mqtt
from pipelines.demo.broker import DemoBroker, open_broker
from pipelines.demo.cluster import DemoCluster, open_cluster
from pipelines.demo.layout import Layout
from pipelines.settings import Settings


class DemoBrokers:
    """Running brokers in the order of their names. `settings` reach all of them as the jobs do."""

    def __init__(
        self, brokers: Sequence[DemoBroker], settings: Settings, last: _Last | DemoCluster | None = None
    ) -> None:
        self.all, self.settings, self._last = tuple(brokers), settings, last

    @property
    def names(self) -> tuple[str, ...]:
        """What `devices.log` calls them."""
        return tuple(_name(number) for number in range(len(self.all)))

    @property
    def restart_step(self) -> str | None:
        """What `restart` does; None if it does nothing."""
        if self._last is None:
            return None
        return "killing the leader" if isinstance(self._last, DemoCluster) else f"restarting {self.names[-1]}"

    def restart(self) -> bool:
        """Restarts the last of several brokers, or kills the leader of a cluster; returns whether it did."""
        if self._last is None:
            return False
        self._last.restart()
        return True


@contextmanager
def open_brokers(
    layout: Layout, count: int, *, devices: Sequence[str], secure: bool, cluster: bool = False
) -> Iterator[DemoBrokers]:
    """Starts `count` brokers, or a cluster. Raises SettingsError if the folder or the other options do not go with
    that."""
    if cluster:
        if count > 1 or secure:
            raise SettingsError("the demo has a cluster without users and TLS: give --cluster, --brokers or --secure")
        if any(layout.broker.iterdir()):
            raise SettingsError(f"{layout.root} has records of a broker alone: name another folder with --data")
        with open_cluster(layout) as made:
            yield DemoBrokers([made.broker], _named(made.broker.settings), made)
        return
    if layout.cluster.is_dir():
        raise SettingsError(f"{layout.root} has records of a cluster: give --cluster, or another folder with --data")
    if layout.broker_of(count).is_dir():
        more = f"name another folder with --data, or give --brokers {count + 1} or more"
        raise SettingsError(f"{layout.root} has records of more than {count} brokers: {more}")
    if len(devices) < count:
        raise SettingsError(f"{len(devices)} devices are too few for {count} brokers: each gets at least one")
    if count == 1:
        with open_broker(layout, devices=devices, secure=secure) as broker:
            yield DemoBrokers([broker], _named(broker.settings))
        return
    if secure:
        raise SettingsError("the demo has users and TLS with one broker only: give --secure or --brokers")
    with ExitStack() as stack:
        started = [stack.enter_context(Broker(layout.broker_of(number))) for number in range(count - 1)]
        last = stack.enter_context(_Last(layout, count - 1))
        rows = [{"server": one.server, "name": _name(number)} for number, one in enumerate((*started, last.broker))]
        settings = Settings.model_validate({"brokers": rows})
        brokers = [
            DemoBroker(settings, BrokerAccess(one.server), parse_mqtt(one.mqtt), one.admin)
            for one in (*started, last.broker)
        ]
        yield DemoBrokers(brokers, settings, last)


def _name(number: int) -> str:
    return f"broker-{number + 1}"


def _named(settings: Settings) -> Settings:
    """The settings of the only broker, with its name: its log stays its own when a later run has other ports, and more
    brokers."""
    named = settings.with_servers([broker.server for broker in settings.fleet()])
    (one,) = named.brokers
    return named.model_copy(update={"brokers": [one.model_copy(update={"name": _name(0)})]})


class _Last:
    """A broker that can be restarted."""

    def __init__(self, layout: Layout, number: int) -> None:
        self._folder = layout.broker_of(number)
        self.broker = Broker(self._folder)

    def __enter__(self) -> _Last:
        self.broker.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.broker.stop()

    def restart(self) -> None:
        """Stops it and starts it again with the same log and the same addresses."""
        binds = {"mqtt": self.broker.mqtt, "flight": self.broker.flight, "admin": self.broker.admin}
        settings = {f"listeners.{name}.bind": address for name, address in binds.items()}
        self.broker.stop()
        self.broker = Broker(self._folder, settings=settings, free_ports=False).start()
