"""The version of Skate: of the package, and what one process tells another."""

VERSION = "0.1.0"
#: What `ray.__commit__` says: that this is not Ray.
COMMIT = f"skate-{VERSION}"
