"""The support bundle of `kubectl vkgateway report`: what it contains, what it leaves out, and its archive."""
