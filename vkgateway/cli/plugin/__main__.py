"""`python -m vkgateway.cli.plugin` is the plugin."""

from vkgateway.cli.plugin.main import main

if __name__ == "__main__":
    main()
