"""What draws: matplotlib, or what to install where there is none."""
import sys


def pyplot():
    """matplotlib.pyplot, for files alone; ends the program where it is missing."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot as found
    except ImportError as error:
        sys.exit(f"{sys.argv[0]}: drawing needs matplotlib, and {sys.executable} has none ({error}). On Debian: "
                 f"apt-get install python3-matplotlib, and run /usr/bin/python3 {sys.argv[0]}; elsewhere: "
                 f"{sys.executable} -m pip install matplotlib")
    return found
