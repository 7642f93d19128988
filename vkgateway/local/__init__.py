"""The embedded platform: a whole installation of vkgateway on one machine."""
