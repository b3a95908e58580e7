"""The values everything else speaks in: requests, GPUs, nodes, tasks, jobs, queues. Pure, immutable, exact integers.

Units everywhere: CPU in milli-cores, memory in MiB, GPU share in milli of one device (1000 = the whole device), GPU
memory in MiB. Requests are rounded up and capacities down when they are read from Kubernetes, so that an integer sum
never promises more than a node has.
"""
