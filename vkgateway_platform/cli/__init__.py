"""Commands of the embedded platform, which `vkgateway` shows if this package is installed."""
