"""Who must have signed what a device installs and does: key lists, policies of artifacts, commands (docs/adr/0021).

Values and their checks, for devices, the command line and the action engine. The words are those of TUF and Uptane.
Nothing here remembers anything: what a device holds is in `broker_edge.device.guard`.
"""

from broker_edge.policy.commands import SignedCommand, sign_command
from broker_edge.policy.published import KEYS_TOPIC, publish_roots, published_roots
from broker_edge.policy.roots import DIRECTOR, ROOT, TARGETS, Root, chain_bytes, parse_chain
from broker_edge.policy.signed import PolicyError, Role, Signed
from broker_edge.policy.targets import Policy
from broker_edge.policy.versions import Floor, VersionOrder

__all__ = [
    "DIRECTOR",
    "Floor",
    "KEYS_TOPIC",
    "VersionOrder",
    "Policy",
    "PolicyError",
    "ROOT",
    "Role",
    "Root",
    "Signed",
    "SignedCommand",
    "TARGETS",
    "chain_bytes",
    "parse_chain",
    "publish_roots",
    "published_roots",
    "sign_command",
]
