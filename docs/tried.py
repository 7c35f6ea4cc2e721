"""Tables of what was tested, from the lists of the tests: formats, damages, features."""

from typing import get_args

from docs.markdown import table
from tests.support.features import FEATURES
from tests.support.microscope_files import UNTOLD, WRITERS
from tests.support.quality.damages import DAMAGES, MISSED
from tilewright.config.settings import Convention
from tilewright.io.formats.containers import FORMATS as CONTAINERS

#: What the files of each convention look like.
FILES = {
    "codex": "`Cyc1_reg1/1_00001_Z001_CH1.tif`, any spelling and zeros; in the folder or in its "
    "`data/raw`, `raw` or `data`",
    "pattern": "the path below `raw_dir`, as `acquisition.pattern` gives it",
    "imagexpress": "`plate_A01_s3_w2.tif`, also below MetaXpress's folders; sites are tiles, wells "
    "regions, `TimePoint_n` cycles, z-planes lie in `ZStep_n` (projections are left out)",
    "fiji": "tiles that a `TileConfiguration.txt` places; `C2-` or `_CH2` next to the files listed "
    "is another channel",
    "ome_tiff": "OME-TIFF with PositionX and PositionY, or TIFFs described by a `.companion.ome`; "
    "Micro-Manager's OME-TIFF stacks",
    "macsima": "raw tiles of MACSima; racks, wells and ROIs are regions, each scan is a cycle; of "
    "several exposures the longest",
    "phenix": "Opera Phenix and Operetta: `Index.idx.xml` and TIFFs; wells are regions",
    "cv8000": "Yokogawa CV7000 and CV8000: `MeasurementData.mlf` and TIFFs; wells are regions, "
    "each measurement is a cycle",
    "ndtiff": "NDTiff 2 and 3 of Micro-Manager and Pycro-Manager; each data set is a cycle",
    "czi": "ZEISS mosaics; scenes are regions",
    "nd2": "Nikon multipoint, turned by the camera's matrix",
    "lif": "Leica tile scans; each is a region; merged images and overviews are passed over",
    "stitched": "images that are stitched already, one file per cycle, see below",
}
_METADATA = {"emission": "emission", "exposure": "exposure", "z": "z-step", "aperture": "NA"}


def _places(convention: str) -> str:
    """Return by what tiles are placed."""
    names = {"codex": "number", "pattern": "number, or row and column", "stitched": ""}
    names["imagexpress"] = "stage position (MetaXpress's TIFFs), else number"
    return names.get(convention, "stage position")


def formats() -> str:
    """Return the table of the conventions of raw data."""
    rows = []
    for name in get_args(Convention):
        metadata = ""
        if name in WRITERS:
            words = [word for key, word in _METADATA.items() if key not in UNTOLD.get(name, ())]
            metadata = ", ".join(["names", "pixel size", *words])
        extra = f"`{name}`" if name in CONTAINERS else ""
        rows.append((f"`{name}`", FILES[name], _places(name), metadata, extra))
    return table(("Convention", "Files", "Tiles placed by", "Read from files", "Extra"), *rows)


def damages() -> str:
    """Return the list of known damages, with the numbers that must warn and those that pass."""
    rows = [
        (
            name,
            "**no**" if name in MISSED else "yes",
            ", ".join(f"`{metric}`" for metric in damage.warns.split()),
        )
        for name, damage in DAMAGES.items()
    ]
    return table(("Damage", "Noticed", "Must warn"), *rows)


def features() -> str:
    """Return the table of what becomes of the features of a workflow."""
    rows = [(f.name, f.what, f"`{f.test}`" if f.test else "") for f in FEATURES]
    return table(("Feature", "What placement does", "Test"), *rows)
