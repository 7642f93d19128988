"""`python -m vkgateway` is the command `vkgateway`."""

from vkgateway.cli.main import main

if __name__ == "__main__":
    main()
