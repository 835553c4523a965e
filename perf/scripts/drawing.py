"""What draws: matplotlib, or what to install where there is none."""
import contextlib
import io
import re
import sys


def uplink_text(uplink):
    """moeccl-lab's none, 1gbit and 100mbit, as on pages."""
    return "unshaped" if uplink == "none" else re.sub(r"^(\d+)([gm])bit$", lambda found: f"{found[1]} {found[2].upper()}bit/s", uplink)


@contextlib.contextmanager
def output(path):
    """A file to write; ends the program where that does not go."""
    try:
        with open(path, "wb") as file:
            yield file
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: cannot write {path}: {error.strerror}")


def pyplot():
    """matplotlib.pyplot, for files alone; ends the program where it is missing."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        matplotlib.rcParams["figure.max_open_warning"] = 0  # a page has as many pictures as groups
        from matplotlib import pyplot as found
    except ImportError as error:
        sys.exit(f"{sys.argv[0]}: drawing needs matplotlib, and {sys.executable} has none ({error}). On Debian: "
                 f"apt-get install python3-matplotlib, and run /usr/bin/python3 {sys.argv[0]}; elsewhere: "
                 f"{sys.executable} -m pip install matplotlib")
    return found


def png(figure):
    """A figure as PNG of few colours, a quarter of the size of full ones."""
    from PIL import Image  # comes with matplotlib

    full = io.BytesIO()
    figure.savefig(full, format="png", dpi=80)
    few = Image.open(full).convert("RGB").quantize(32, dither=Image.Dither.NONE)
    small = io.BytesIO()
    few.save(small, format="png", optimize=True)
    return small.getvalue()


def save(figure, path):
    with output(path) as file:
        file.write(png(figure))
