"""Writing results: never half a file, never over a file that is already there unless asked."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from facegraph_client._errors import OutputError


def write_files(contents: Mapping[Path, bytes], *, overwrite: bool) -> None:
    """Write files that belong together: all of them are complete before the first one appears under its name.

    Args:
        contents: the bytes of each path. The files appear in this order, so put what others refer to first.
        overwrite: replace files that exist.

    Raises:
        OutputError: a file exists and ``overwrite`` is false, or a file cannot be written.

    """
    refuse_existing(contents, overwrite=overwrite)
    temporary = {path: path.with_name(f".facegraph-{secrets.token_hex(8)}.tmp") for path in contents}
    current = Path()
    try:
        for current, content in contents.items():
            with temporary[current].open("xb") as file:
                file.write(content)
        for current in contents:
            _move(temporary[current], current, overwrite=overwrite)
    except OSError as error:
        raise _output_error(current, error) from error
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def refuse_existing(paths: Iterable[Path], *, overwrite: bool) -> None:
    """Raise :class:`OutputError` for the first path that a write without ``overwrite`` would replace."""
    for path in paths:
        try:
            # A folder of that name can't be replaced, whatever the caller allows.
            if path.is_dir() or (not overwrite and (path.exists() or path.is_symlink())):
                raise _exists_error(path)
        except OSError as error:  # a name too long for the file system, a parent that may not be read
            raise _output_error(path, error) from error


def prepare_folder(folder: Path) -> None:
    """Create the folder where needed and check, by writing a file, that results can be written to it.

    Raises:
        OutputError: the folder cannot be created or written to.

    """
    probe = folder / f".facegraph-{secrets.token_hex(8)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch(exist_ok=False)
        probe.unlink()
    except FileExistsError as error:
        raise OutputError(f"{folder} is a file: choose a folder for the results") from error
    except OSError as error:
        raise _output_error(folder, error) from error


def _move(source: Path, target: Path, *, overwrite: bool) -> None:
    if overwrite:
        os.replace(source, target)
        return
    try:
        os.link(source, target)  # unlike a rename, fails where another process was faster
    except FileExistsError as error:
        raise _exists_error(target) from error
    except OSError:  # a file system without hard links
        os.replace(source, target)


def _exists_error(path: Path) -> OutputError:
    return OutputError(
        f"{path} exists already: choose another name or folder, or allow overwriting it (on the command line:"
        " --overwrite)"
    )


def _output_error(path: Path, error: OSError) -> OutputError:
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return OutputError(f"cannot write {path}: the folder {path.parent} does not exist; create it first")
    reason = error.strerror or str(error)
    return OutputError(f"cannot write {path}: {reason}; choose a place that can be written to")
