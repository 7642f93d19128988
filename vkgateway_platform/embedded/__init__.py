"""The embedded platform: a complete installation of vkgateway on one machine."""
