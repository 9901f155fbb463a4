"""The version of Skate: of the package, and what one process tells another."""

VERSION = "0.1.0"
