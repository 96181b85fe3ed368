"""`headwater console`: the page of the broker for a fleet, served with what the tables and the brokers say.

It keeps no state: rollouts, devices and quality are Delta tables, and requests become rows of `action_requests`. Needs
neither Spark nor Java. The contract with the page is docs/console.md.
"""
