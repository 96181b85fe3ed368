"""`headwater torture --cluster 3`: the same load and checks as for one broker, on a cluster of three nodes with etcd.

`links.py` is what lies between the nodes, `nodes.py` the processes, `watch.py` what nodes say of themselves,
`traffic.py` the clients, `life.py` one cluster through many faults. The faults are in `faults`.
"""
