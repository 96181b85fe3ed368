"""What an operator wants to know before strangers may reach a broker: `headwater doctor --security`.

`outside` asks the listeners as a stranger would, `box` reads the settings and the files that they name, `operated` asks
the admin listener as an operator. Nothing here changes anything, in a broker or on the box, and no secret leaves the
machine without TLS. The explanation of each check is in docs/security.md.
"""

from broker_edge.security.box import box
from broker_edge.security.check import Check, worst
from broker_edge.security.doors import Door, doors_of_addresses, doors_of_settings
from broker_edge.security.operated import operated
from broker_edge.security.outside import neighbours, outside

__all__ = [
    "Check",
    "Door",
    "box",
    "doors_of_addresses",
    "doors_of_settings",
    "neighbours",
    "operated",
    "outside",
    "worst",
]
