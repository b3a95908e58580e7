"""A local stack of the real parts: API server, Kafka, Redis, Prometheus and more, without containers.

For tests, benchmarks and trying things out. Everything listens on the loopback address, everything that is started is
also ended, and what is built lies in a cache outside the source tree.
"""

from tools.stack.errors import StackError
from tools.stack.info import StackInfo
from tools.stack.parts import ALL, DEFAULT
from tools.stack.stack import Stack

__all__ = ["ALL", "DEFAULT", "Stack", "StackError", "StackInfo"]
