"""The real node's way into a platform that runs already: its programs are built in the background."""
