"""The parts of moeccl-lab; README.md beside this file says how they fit together."""

VERSION = "0.3.0"
