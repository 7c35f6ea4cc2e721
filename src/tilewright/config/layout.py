"""Every path that the workflow writes, as templates with Snakemake's wildcards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PLANE = "cycle{cycle}_channel{channel}"


@dataclass(frozen=True)
class Layout:
    """Path templates below the results folder.

    The templates hold ``{sample}``, ``{cycle}`` and ``{channel}``.

    >>> Layout("results").stitch.format(sample="tonsil", cycle=2, channel="1")
    'results/tonsil/stitch/cycle2_channel1.zarr'
    """

    results: str

    def _sample(self, tail: str) -> str:
        return f"{self.results}/{{sample}}/{tail}"

    @property
    def manifest(self) -> str:
        """The checked list of raw planes of one cycle."""
        return self._sample("raw/cycle{cycle}.csv")

    @property
    def illumination(self) -> str:
        """Stem of the flat-field, dark-field and their numbers."""
        return self._sample(f"illumination/{_PLANE}")

    @property
    def flat(self) -> str:
        """The flat-field."""
        return f"{self.illumination}-ffp.tif"

    @property
    def dark(self) -> str:
        """The dark-field."""
        return f"{self.illumination}-dfp.tif"

    @property
    def illumination_json(self) -> str:
        """How the flat-field was found and how well it holds."""
        return f"{self.illumination}.json"

    @property
    def positions(self) -> str:
        """Tile positions of one cycle."""
        return self._sample("tile_positions/cycle{cycle}/positions.csv")

    @property
    def edges(self) -> str:
        """Measured overlaps of one cycle."""
        return self._sample("tile_positions/cycle{cycle}/edges.csv")

    @property
    def tile_configuration(self) -> str:
        """The positions in Fiji's format."""
        return self._sample("tile_positions/cycle{cycle}/TileConfiguration.txt")

    @property
    def stitch(self) -> str:
        """The mosaic z-stack."""
        return self._sample(f"stitch/{_PLANE}.zarr")

    @property
    def deconvolve(self) -> str:
        """The deconvolved mosaic z-stack."""
        return self._sample(f"deconvolve/{_PLANE}.zarr")

    @property
    def deconvolve_focus(self) -> str:
        """What the deconvolution says about the in-focus plane."""
        return self._sample(f"deconvolve/{_PLANE}_focus.zarr")

    @property
    def edf(self) -> str:
        """The in-focus plane."""
        return self._sample(f"edf/{_PLANE}.zarr")

    @property
    def height(self) -> str:
        """Where in z the in-focus plane was found."""
        return self._sample(f"edf/{_PLANE}_height.tif")

    @property
    def transform(self) -> str:
        """The transform from the reference cycle to this one."""
        return self._sample("register/cycle{cycle}.npz")

    @property
    def transform_json(self) -> str:
        """How well the cycle is registered."""
        return self._sample("register/cycle{cycle}.json")

    @property
    def image_tiff(self) -> str:
        """The registered multi-channel pyramid."""
        return self._sample("registration/{sample}.ome.tif")

    @property
    def image_zarr(self) -> str:
        """The registered multi-channel pyramid as OME-Zarr."""
        return self._sample("registration/{sample}.ome.zarr")

    @property
    def image_markers(self) -> str:
        """The marker of each channel of the registered image, as MCMICRO reads it."""
        return self._sample("registration/markers.csv")

    def qc(self, stage: str, suffix: str) -> str:
        """Return the quality numbers (json) or picture (png) of one stage and cycle."""
        return self._sample(f"qc/{stage}_cycle{{cycle}}.{suffix}")

    @property
    def report(self) -> str:
        """The report of all samples."""
        return f"{self.results}/report.html"

    @property
    def qc_json(self) -> str:
        """All quality items."""
        return f"{self.results}/qc.json"

    @property
    def qc_csv(self) -> str:
        """All quality items as a table."""
        return f"{self.results}/qc.csv"

    @property
    def trusted_markers(self) -> str:
        """The verdict of each marker of each sample."""
        return f"{self.results}/trusted_markers.csv"

    @property
    def ledger(self) -> Path:
        """Every placement of every run on a cluster; no rule's output."""
        return Path(self.results) / "placement" / "ledger.jsonl"

    @property
    def device_evidence(self) -> Path:
        """What each job made of the device it held; no rule's output."""
        return self.ledger.with_name("devices.jsonl")

    def log(self, rule: str, wildcards: str) -> str:
        """Return the log of a rule; ``wildcards`` is a template such as ``{sample}_{cycle}``."""
        return f"{self.results}/logs/{rule}/{wildcards}.log"

    def benchmark(self, rule: str, wildcards: str) -> str:
        """Return Snakemake's benchmark table of a rule."""
        return f"{self.results}/benchmarks/{rule}/{wildcards}.tsv"
