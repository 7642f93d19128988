"""The version of this program, told by `vkgateway version` and the Node objects it makes."""

__version__ = "0.1.0"
